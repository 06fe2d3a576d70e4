//! Sends NOTIFY for queues with the option `notify`: on channel `pg_queue`, with the queue's name, once for any number
//! of commits since the last one. The worker sends it instead of the producer's commit, because all commits with a
//! NOTIFY share one lock.
//!
//! Not responsible for which commits request it (`QueueStep::NotifyDue`).
//!
//! Invariant: a rollback puts the request back (`QueueStep::Notified`), so no NOTIFY is lost.

use std::ffi::CString;

use crate::catalog::queue;
use crate::duty::care::Care;
use crate::duty::{Duty, Memory, Work};
use crate::error::Result;
use crate::pg::session;
use crate::shmem;
use crate::transaction::{self, QueueStep};

/// The duty.
pub const DUTY: Duty = Duty { name: "notify", is_due: None, next_at, work: Work::Items(run) };

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    if memory.instance.notify.iter().any(|&lane| lane != 0) { memory.now } else { i64::MAX }
}

fn run(care: &Care) -> Result<i64> {
    transaction::register();
    let lanes = shmem::with_instance(|_, instance| instance.notify).unwrap_or_default();
    let mut sent = 0;
    for lane in lanes.into_iter().filter(|&lane| lane != 0) {
        transaction::reserve(1);
        shmem::with_instance(|_, instance| {
            instance.notify.iter_mut().filter(|l| **l == lane).for_each(|l| *l = 0);
        });
        transaction::record(QueueStep::Notified { lane });
        let Ok(Some(queue)) = queue::by_lane(lane) else { continue };
        let Ok(name) = CString::new(queue.name.as_str()) else { continue };
        let what = || format!("the NOTIFY of queue \"{}\" could not be sent", queue.name);
        let send = || {
            session::notify(c"pg_queue", &name);
            Ok(1)
        };
        sent += care.serve(what, send)?.unwrap_or(0);
    }
    Ok(sent)
}
