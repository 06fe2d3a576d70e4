//! The index of groups: the parked attempts of a segment, by (lane, group, priority, job). It is the index of
//! `queue_internal.parked_N`, a table that stays empty. Its entries point into `queue_internal.attempt_N`, and only
//! this file reads or writes it. See docs/internals/limits.md. VACUUM does not know of these entries, so an entry may
//! outlive its row and point to nothing, behind the end of the table, or to any other row. A reader compares the row
//! with the entry.
//!
//! Invariants: no entry exists twice, because the lane's flag lets one session in at a time, which looks before it
//! writes. A session that says that an entry exists has held a lock on the index since it knew. If the index is built
//! anew from a table without rows, or if VACUUM FULL gives all attempts other places, it is another file:
//! [`Files::are_current`].

use pg_queue_core::frontier::{Frontier, Ready};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::catalog;
use crate::catalog::tables::attempt as columns;
use crate::log::segment::{self, Home};
use crate::pg::row::Tid;
use crate::pg::table::Relation;
use crate::shmem::{self, Instance};
use crate::transaction::entries;

/// Columns of the index.
pub const COLUMNS: usize = 4;

/// The file numbers of each segment's table of attempts and of its index, as a session has found them. 0 if the session
/// has not looked.
#[derive(Clone, Copy, Default)]
pub struct Files([[u32; 2]; SEGMENTS]);

impl Files {
    /// Notes the files of a segment's table of attempts and of its index. Both are open.
    pub fn note(&mut self, segment: u8, table: &Relation, index: &Relation) {
        self.0[segment as usize] = [table.file(), index.file()];
    }

    /// Returns whether the instance knows the same files. If a file is another one, it unparks everything, so that all
    /// parked attempts are read and inserted again.
    pub fn are_current(&self, frontier: &mut Frontier<'_>, instance: &mut Instance) -> bool {
        let mut are_current = true;
        for (known, &found) in
            instance.storage.parked_files.iter_mut().zip(&self.0).filter(|(_, found)| **found != [0; 2])
        {
            are_current &= *known == found || *known == [0; 2];
            *known = found;
        }
        if !are_current {
            frontier.unpark_all(instance.number);
            instance.storage.parked_version += 1;
        }
        are_current
    }
}

/// The open tables and indexes of attempts that have their entries now. While this value lives, no index is built anew.
pub struct Filled {
    files: Files,
    _open: Vec<[Relation; 3]>,
}

impl Filled {
    /// See [`Files::are_current`].
    pub fn is_current(&self, frontier: &mut Frontier<'_>, instance: &mut Instance) -> bool {
        self.files.are_current(frontier, instance)
    }
}

/// Inserts entries for waiting attempts of a lane, at the places where they were found. An attempt that is no longer
/// there has moved, and got its entry when it moved. The caller has raised the lane's flag.
pub fn fill<'a>(lane: i32, attempts: impl Iterator<Item = &'a Ready> + Clone) -> Filled {
    let mut filled = Filled { files: Files::default(), _open: Vec::new() };
    for segment in 0..SEGMENTS as u8 {
        let here = attempts.clone().filter(|ready| ready.place.segment == segment);
        if here.clone().next().is_none() {
            continue;
        }
        let oids = catalog::segment(segment);
        // The table is locked before the segment's state is read.
        let table = Relation::read(oids.attempt);
        if !segment::word(segment).state().is_inhabited() {
            continue;
        }
        let home = Home::now(segment);
        let (owner, index) = (Relation::read(oids.parked), Relation::fill_index(oids.parked_index));
        filled.files.note(segment, &table, &index);
        let mut entries: Vec<(EntryKey, Tid)> = here
            .filter(|ready| {
                let row = table.fetch(Tid::of(ready.place), home.generation);
                row.is_some_and(|row| row.i64(columns::ID) == ready.id && row.i32(columns::LANE) == lane)
            })
            .map(|ready| ((lane, ready.group, ready.rank.priority, ready.rank.job_id), Tid::of(ready.place)))
            .collect();
        // Entries of a group lie beside each other in the index, so one leaf may take them together.
        entries.sort_unstable_by_key(|&(key, _)| key);
        let (keys, tids): (Vec<EntryKey>, Vec<Tid>) = entries.into_iter().unzip();
        index.insert_missing_entries(&table, &tids, |n| Some(datums(keys[n])));
        filled._open.push([table, owner, index]);
    }
    filled
}

/// The key of an entry: lane, group, priority, job.
pub type EntryKey = (i32, i64, i32, i64);

pub fn datums((lane, group, priority, job_id): EntryKey) -> [Datum; COLUMNS] {
    [lane.into(), group.into(), priority.into(), job_id.into()]
}

/// Inserts entries for attempts that this transaction has moved here. An earlier attempt of the same job may have left
/// the same entry. `REINDEX CONCURRENTLY` may replace the index before the transaction commits. Then `unpark_all` does
/// not reach the attempts, because the frontier does not know them yet. So the commit compares the versions.
pub fn fill_new(segment: u8, table: &Relation, tids: &[Tid], key: impl Fn(usize) -> Option<EntryKey>) {
    let oids = catalog::segment(segment);
    let (_, index) = Relation::write_both(oids.parked, oids.parked_index);
    let mut files = Files::default();
    files.note(segment, table, &index);
    index.insert_missing_entries(table, tids, |n| key(n).map(datums));
    let version = shmem::with_instance(|frontier, instance| {
        files.are_current(frontier, instance);
        instance.storage.parked_version
    });
    entries::note(version.unwrap_or(0));
}
