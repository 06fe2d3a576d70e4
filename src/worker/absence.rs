//! Finds out that no background worker serves this database, for the warning of a session whose jobs need one.
//!
//! Responsible for when a session may warn: a worker that is about to start is no trouble. Not responsible for the
//! doctor's check, which tells every state.
//!
//! Invariant: it only reads, and takes one lock after the other.

use std::cell::Cell;

use crate::catalog::spi;
use crate::error::Result;
use crate::job::notice;
use crate::pg::{session, time};
use crate::shmem::databases::DatabaseState;
use crate::worker::table;
use crate::{guc, shmem};

/// A worker, or the launcher, that is absent for less than this, in microseconds, is about to start.
const START_US: i64 = 10_000_000;
/// A session looks at most this often, in microseconds.
const PAUSE_US: i64 = 60_000_000;
/// `queue.maintain()` that was called at most so long ago, in microseconds, does the duties of a worker.
const MAINTAINED_US: i64 = 300_000_000;

thread_local! {
    /// The monotonic time from which this session looks again.
    static NEXT_LOOK: Cell<i64> = const { Cell::new(0) };
}

/// Why no worker serves the database, and what to do.
type Absence = (String, &'static str);

const SLOTS: &str = "Raise max_worker_processes and restart the server. The check worker_slots of queue.doctor() tells \
    whether it is enough.";
const OFF: &str = "Switch it on with ALTER DATABASE … RESET pg_queue.worker, or call queue.maintain() often.";

/// Warns, once in a session, if no worker serves this database. For a call whose jobs need the worker: they have a
/// time, or wait for other jobs.
pub fn warn() {
    let now = time::monotonic_us();
    if now < NEXT_LOOK.get() {
        return;
    }
    NEXT_LOOK.set(now.saturating_add(PAUSE_US));
    if let Some((why, hint)) = find(now) {
        notice::no_worker(&why, hint);
    }
}

fn find(now: i64) -> Option<Absence> {
    let worker = shmem::with_instance(|_, instance| instance.worker)?;
    if worker.maintained_at.saturating_add(MAINTAINED_US) > now {
        return None;
    }
    if worker.pid != 0 {
        return worker.status.is_off.then(|| ("the setting pg_queue.worker is off".to_owned(), OFF));
    }
    let launcher = without_launcher(now);
    let Some(entry) = table::entry(session::database()) else { return launcher.or_else(without_room) };
    let waits = !matches!(entry.state, DatabaseState::Blocked | DatabaseState::NoExtension);
    let is_late = now.saturating_sub(entry.since) > START_US;
    if entry.is_short {
        return Some(("the server has no free slot for its worker".to_owned(), SLOTS));
    }
    if entry.deaths > 1 {
        let why = format!("its worker has died {} times in a row", entry.deaths);
        return Some((why, "The server's log says why."));
    }
    launcher.or_else(|| {
        (waits && is_late).then(|| {
            let why = "the launcher has not started its worker".to_owned();
            (why, "The checks worker and launcher of queue.doctor() tell more.")
        })
    })
}

fn without_launcher(now: i64) -> Option<Absence> {
    let is_absent = table::launcher() == 0 && now.saturating_sub(shmem::born_at()) > START_US;
    is_absent.then(|| {
        let why = "the launcher, which starts workers, does not run".to_owned();
        (why, "Raise max_worker_processes and restart the server. If it keeps ending, the server's log says why.")
    })
}

fn without_room() -> Option<Absence> {
    table::is_full().then(|| {
        let why = "the launcher has no room for more databases".to_owned();
        (why, "Raise pg_queue.max_databases and restart the server.")
    })
}

/// Warns if this database, in which the extension is being created, will most likely get no worker.
pub fn warn_at_creation() -> Result<()> {
    if session::in_recovery() {
        return Ok(());
    }
    let now = time::monotonic_us();
    let entry = table::entry(session::database());
    // The launcher may be about to list a new database.
    let known = without_launcher(now).or_else(|| if entry.is_none() { without_room() } else { None });
    let off = || (!guc::WORKER.get()).then(|| ("the setting pg_queue.worker is off".to_owned(), OFF));
    let has_worker = entry.is_some_and(|entry| entry.pid != 0);
    let found = match known.or_else(off) {
        None if !has_worker => without_slot()?,
        found => found,
    };
    if let Some((why, hint)) = found {
        notice::no_worker(&why, hint);
    }
    Ok(())
}

/// Returns whether all slots for background processes are taken. Workers that only look for the extension leave again.
/// The query runs as the current user, because the extension has no instance before it is there.
fn without_slot() -> Result<Option<Absence>> {
    let is_full = spi::holds_for_user(&format!(
        "(SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_get_activity(NULL) AS a
          WHERE a.backend_type OPERATOR(pg_catalog.<>) ALL (ARRAY['client backend', 'autovacuum launcher',
              'autovacuum worker', 'checkpointer', 'background writer', 'walwriter', 'walsender', 'walreceiver',
              'startup', 'archiver', 'logger', 'standalone backend', 'slotsync worker', 'walsummarizer', 'io worker']))
         OPERATOR(pg_catalog.-) {} OPERATOR(pg_catalog.>=)
         pg_catalog.current_setting('max_worker_processes')::pg_catalog.int8",
        table::looking()
    ))?;
    Ok(is_full.then(|| ("all slots of max_worker_processes are taken at the moment".to_owned(), SLOTS)))
}
