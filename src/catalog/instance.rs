//! The slot of this database's extension in shared memory: found, made, freed.
//!
//! Not responsible for what lies in the slot (`shmem::instance`), nor for reading the log into it: the first session
//! that uses the instance does that, in `log::restore::learn`.
//!
//! Invariant: a database has one instance at most, except while a transaction that has dropped its extension makes it
//! anew.

use pg_queue_core::expiry::Expiry;
use pgrx::pg_sys::Oid;

use crate::error::{self, Error, Result};
use crate::pg::{session, time};
use crate::shmem::drops::Drops;
use crate::shmem::instance::{Due, Ids, Missed, RightsChanges};
use crate::shmem::key_halves::KeyHalves;
use crate::shmem::schedules::Schedules;
use crate::shmem::segments::Storage;
use crate::shmem::topics::Topics;
use crate::shmem::troubles::Troubles;
use crate::shmem::worker::Worker;
use crate::shmem::{self, Instance, Shared};
use crate::{guc, transaction};

/// Finds or makes the instance's slot. Returns its number and its slot.
///
/// Errors: 53400 when shared memory has no free slot. Takes the frontier's lock.
pub fn enter(extension: Oid) -> Result<(u32, usize)> {
    let database = session::database();
    let now = time::now_us();
    let found = shmem::with(|shared| {
        let Shared { frontier, instances, awaited, watchers, next_instance, counters, .. } = shared;
        let is_ours = |i: &Instance| i.number != 0 && i.database == database && i.extension == extension;
        if let Some(slot) = instances.iter().position(is_ours) {
            return Some((instances[slot].number, slot));
        }
        // If the extension was dropped and created again, the old instance is worthless. If this transaction has
        // dropped it, it stays, because the transaction may be rolled back.
        let is_settled = |i: &&mut Instance| !transaction::is_dropping(i.number);
        for old in instances.iter_mut().filter(|i| i.number != 0 && i.database == database).filter(is_settled) {
            let mut root = old.deadlines;
            if let Some(session) = frontier.drop_instance(&mut root, old.number) {
                shmem::wake(session);
            }
            counters.forget_instance(old.number);
            watchers.ended_unknown(old.number);
            old.number = 0;
        }
        let at = instances.iter().position(|i| i.number == 0)?;
        awaited[at].reset();
        let slot = &mut instances[at];
        **next_instance += 1;
        *slot = Instance {
            number: **next_instance,
            database,
            extension,
            deadlines: None,
            ids: Ids::default(),
            // Every job that is due now lies behind its lane's position, which is before everything.
            due: Due { to: now, next: i64::MIN },
            counting: Default::default(),
            restore: Default::default(),
            schedules: Schedules::NOTHING,
            worker: Worker::NONE,
            recovered_at: 0,
            changes: 0,
            rights: RightsChanges::default(),
            drops: Drops::new(),
            notify: [0; 32],
            storage: Storage::new(),
            missed: Missed::NONE,
            keys: KeyHalves::default(),
            topics: Topics::NOTHING,
            troubles: Troubles::NOTHING,
            expiry: Expiry::NEW,
        };
        Some((slot.number, at))
    });
    shmem::wake_watchers();
    if let Some((number, _)) = found.filter(|_| transaction::has_dropped()) {
        transaction::record_of(number, transaction::ExtensionStep::Created);
    }
    found.ok_or_else(|| {
        Error::new(error::LIMIT, "too many databases use pg_queue")
            .detail(format!("Shared memory has room for {} databases.", guc::MAX_DATABASES.get()))
            .hint("Raise pg_queue.max_databases and restart the server.")
    })
}

/// Frees an instance whose extension or database is gone, and wakes the sessions that wait there. Takes the frontier's
/// lock.
pub fn release(number: u32) {
    loop {
        let woken = shmem::with(|shared| shared.frontier.wake_any_lane(number));
        match woken {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
    let woken = shmem::with(|shared| {
        let Shared { frontier, instances, counters, watchers, .. } = shared;
        watchers.ended_unknown(number);
        let instance = instances.iter_mut().find(|i| i.number == number && number != 0)?;
        let woken = frontier.drop_instance(&mut instance.deadlines, number);
        counters.forget_instance(number);
        instance.number = 0;
        woken
    });
    if let Some(session) = woken {
        shmem::wake(session);
    }
    shmem::wake_watchers();
}

/// Frees the instance when this transaction commits. Called while DROP EXTENSION runs.
pub fn extension_dropped(extension: Oid) {
    let database = session::database();
    let number = shmem::with(|shared| {
        shared
            .instances
            .iter()
            .find(|i| i.number != 0 && i.database == database && i.extension == extension)
            .map(|i| i.number)
    });
    if let Some(number) = number {
        transaction::on_commit_drop_instance(number);
    }
}
