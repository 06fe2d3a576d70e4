//! `queue.weigh`: the weights of groups in queues with fair shares.
//!
//! Not responsible for what a weight does (`pg_queue_core::frontier`), nor for how sessions know it
//! (`catalog::queue`).
//!
//! Invariant: a weight is a row. The commit of every change tells all sessions.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::{queue, spi};
use crate::error::{self, Error, Result};
use crate::job::options::Options;
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, VOID};

sql_function!(pg_queue_weigh, pg_finfo_pg_queue_weigh => weigh);

/// The most weights of a queue: each session that claims from it keeps them.
const MAX_WEIGHTS: i64 = 10_000;

/// `queue.weigh(queue_name, group_key, weight)`.
fn weigh(call: &Call) -> Result<Option<Datum>> {
    api::writable("weigh a group")?;
    let queue = queue::by_name(&call.need(args::weigh::QUEUE_NAME)?)?;
    let key = call.need(args::weigh::GROUP_KEY)?;
    permission::check(&queue, Privilege::Manage)?;
    let datum = text_datum(&key);
    let mut options = Options::default();
    options.set_group_key(Some(datum))?;
    let hash = options.group_hash().unwrap_or_default();
    queue::lock(&queue)?;
    match call.get(args::weigh::WEIGHT) {
        None => {
            let delete = "DELETE FROM queue_internal.weight
                WHERE queue_id OPERATOR(pg_catalog.=) $1 AND group_hash OPERATOR(pg_catalog.=) $2";
            spi::run(delete, &[queue.id.into(), hash.into()])?;
        }
        Some(weight) if (0.01..=100.0).contains(&weight) => {
            let insert = "INSERT INTO queue_internal.weight (queue_id, group_hash, weight, group_key)
                SELECT $1, $2, $3, $4 WHERE (SELECT pg_catalog.count(*) FROM queue_internal.weight AS w
                    WHERE w.queue_id OPERATOR(pg_catalog.=) $1 AND w.group_hash OPERATOR(pg_catalog.<>) $2)
                    OPERATOR(pg_catalog.<) $5
                ON CONFLICT (queue_id, group_hash) DO UPDATE SET weight = excluded.weight";
            let parameters = [queue.id.into(), hash.into(), weight.into(), key.into(), MAX_WEIGHTS.into()];
            if spi::run(insert, &parameters)? == 0 {
                let name = &queue.name;
                return Err(Error::new(error::LIMIT, format!("queue \"{name}\" has {MAX_WEIGHTS} weights"))
                    .hint("Give NULL for groups whose weight is to be 1 again."));
            }
        }
        Some(weight) => {
            return Err(Error::invalid("weight must be between 0.01 and 100")
                .detail(format!("It is {weight}."))
                .hint("Weights compare groups of a queue: 2 gets twice as much as 1."));
        }
    }
    queue::changed();
    Ok(Some(VOID))
}
