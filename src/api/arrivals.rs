//! Counts the rows that arrive from a source, for each partition of its outbox. The numbers are compared with those of
//! the source (`bridge/sql/contact.sql`), so that no row is missed in silence.
//!
//! Responsible for one row of numbers a transaction. Not responsible for what a row means (`bridge`), nor for adding
//! the numbers up.
//!
//! Invariant: a number commits with the rows that it counts. A session that applies changes rolls back whole
//! transactions only.

use std::cell::Cell;

use pgrx::pg_sys::{BuiltinOid, Datum, Oid};

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::pg::function::Call;
use crate::pg::session;
use crate::pg::shape::Shape;
use crate::pg::table::Relation;
use crate::transaction::{self, hooks};

sql_function!(pg_queue_bridge_arrival, pg_finfo_pg_queue_bridge_arrival => arrival);

/// The number of partitions of an outbox.
const PARTITIONS: usize = 3;

/// The columns of `queue_bridge.arrived`.
const SHAPE: Shape = &[
    ("subscription", type_oid(BuiltinOid::OIDOID), true),
    ("ring", type_oid(BuiltinOid::INT4OID), true),
    ("rows", type_oid(BuiltinOid::INT8OID), true),
];

const fn type_oid(oid: BuiltinOid) -> Oid {
    Oid::from_u32(oid as u32)
}

/// What the open transaction has counted.
#[derive(Clone, Copy)]
struct Arrived {
    table: Oid,
    subscription: Oid,
    rows: [i64; PARTITIONS],
}

thread_local! {
    static ARRIVED: Cell<Option<Arrived>> = const { Cell::new(None) };
}

/// `queue_bridge.arrival(relation, ring)`: counts a row of this partition that arrives, and returns the subscription
/// whose changes this session applies. NULL: it applies none, and nothing is counted. The commit writes the numbers
/// into `relation`.
///
/// Errors: 55000 while the tables are being restored, so that no row is refused for that.
fn arrival(call: &Call) -> Result<Option<Datum>> {
    api::writable("take what arrives")?;
    let Some(subscription) = session::subscription() else { return Ok(None) };
    let table = call.need(args::bridge_arrival::RELATION)?;
    let ring = call
        .get(args::bridge_arrival::RING)
        .and_then(|ring| usize::try_from(ring).ok())
        .filter(|&ring| ring < PARTITIONS);
    if let Some(ring) = ring {
        let mut arrived = ARRIVED.get().unwrap_or_else(|| {
            transaction::register();
            hooks::before_commit(write);
            hooks::at_end(forget);
            Arrived { table, subscription, rows: [0; PARTITIONS] }
        });
        arrived.rows[ring] += 1;
        ARRIVED.set(Some(arrived));
    }
    Ok(Some(subscription.into()))
}

/// Writes what the transaction has counted.
fn write() -> Result<()> {
    if let Some(Arrived { table, subscription, rows }) = ARRIVED.get() {
        let table = Relation::write_shaped(table, SHAPE);
        for (ring, rows) in (0i32..).zip(rows).filter(|(_, rows)| *rows > 0) {
            table.insert_row([Some(subscription.into()), Some(ring.into()), Some(rows.into())], &mut []);
        }
    }
    Ok(())
}

fn forget() {
    ARRIVED.set(None);
}
