//! `queue.throttle`: a worker has learnt that a queue, or a group, has to wait.
//!
//! Not responsible for what that does (`job::throttle`).

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::job::options::Options;
use crate::job::throttle;
use crate::pg::function::Call;

sql_function!(pg_queue_throttle, pg_finfo_pg_queue_throttle => throttle);

/// `queue.throttle(queue_name, period, group_key)`: returns until when no job starts; NULL if a job may start now.
fn throttle(call: &Call) -> Result<Option<Datum>> {
    api::writable("throttle a queue")?;
    let queue = queue::by_name(&call.need(args::throttle::QUEUE_NAME)?)?;
    permission::check(&queue, Privilege::Consume)?;
    let period = call.need(args::throttle::PERIOD)?;
    let mut options = Options::default();
    options.set_group_key(call.datum(args::throttle::GROUP_KEY))?;
    let until = throttle::throttle(&queue, period, options.group_hash())?;
    Ok(until.map(Datum::from))
}
