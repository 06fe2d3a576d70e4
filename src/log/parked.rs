//! The index of groups: of each segment, the attempts that were parked, by (lane, group, priority, job). See
//! `src/core/frontier/groups.rs`.
//!
//! An attempt gets its entry when it is first parked, by whoever parks it, and not when it is enqueued: most groups
//! never have more jobs than may run. (What has moved, and where groups keep an order, gets it at once.) So the index cannot be one of the attempts' table, which has to know every row.
//! It is that of `queue.parked_N`, a table that stays empty; its entries point into `queue.attempt_N`, and nobody
//! but this code reads or writes it. VACUUM does not know of it, so an entry may outlive its row: then it points to
//! nothing, behind the end of the table, or to any other row. It only says where to look: [`Parked`] compares what is
//! there with what the entry says. Under the SQL of 0.1.0 it is the index of the attempts' table.
//!
//! Invariants: no entry is there twice, since the lane's flag lets one in at a time, who looks first; whoever says that
//! an entry is there has held a lock on the index since he knew. Should somebody build the index anew, from a table
//! without rows, or give all attempts other places (VACUUM FULL), it is another file: [`Files::are_current`].

use pg_queue_core::frontier::{Frontier, Ready};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::instance::Catalog;
use crate::log::attempt::{Attempt, column};
use crate::log::table::{Entries, Key, Relation, Tid};
use crate::segment::{self, Home};
use crate::shmem::{self, Instance};

/// Columns of the index.
const COLUMNS: usize = 4;

/// The files of the attempts' tables and of the indexes, as somebody has found them; 0: he has not looked.
#[derive(Clone, Copy, Default)]
pub struct Files([[u32; 2]; SEGMENTS]);

impl Files {
    /// Takes note of a segment's attempts and their index, which are open.
    pub fn note(&mut self, segment: u8, table: &Relation, index: &Relation) {
        self.0[segment as usize] = [table.file(), index.file()];
    }

    /// Whether they still are what the instance knows. Should somebody have built one anew, everything parked is to be
    /// read, and put there, again.
    pub fn are_current(&self, frontier: &mut Frontier<'_>, instance: &mut Instance) -> bool {
        let mut are_current = true;
        for (known, &found) in instance.parked_files.iter_mut().zip(&self.0).filter(|(_, found)| **found != [0; 2]) {
            are_current &= *known == found || *known == [0; 2];
            *known = found;
        }
        if !are_current {
            frontier.unpark_all(instance.number);
        }
        are_current
    }
}

/// Attempts that have their entries now; while this is there, nobody builds an index anew.
pub struct Filled {
    files: Files,
    _open: Vec<(Relation, Relation)>,
}

impl Filled {
    /// See [`Files::are_current`].
    pub fn is_current(&self, frontier: &mut Frontier<'_>, instance: &mut Instance) -> bool {
        self.files.are_current(frontier, instance)
    }
}

/// Makes the entries of waiting attempts of a lane, at the places where they were found; those that are not there any
/// more have moved, and got theirs with that. The caller has raised the lane's flag.
pub fn fill<'a>(catalog: &Catalog, lane: i32, attempts: impl Iterator<Item = &'a Ready> + Clone) -> Filled {
    let mut filled = Filled { files: Files::default(), _open: Vec::new() };
    for segment in 0..SEGMENTS as u8 {
        let here = attempts.clone().filter(|ready| ready.place.segment == segment);
        if here.clone().next().is_none() {
            continue;
        }
        let oids = &catalog.segments[segment as usize];
        // Lock, then resolve.
        let table = Relation::read(oids.attempt);
        if !segment::word(catalog, segment).state().is_inhabited() {
            continue;
        }
        let home = Home::now(catalog, segment);
        let index = Relation::fill_index(oids.parked_index);
        filled.files.note(segment, &table, &index);
        let mut tids = Vec::new();
        let mut keys: Vec<[Datum; COLUMNS]> = Vec::new();
        for ready in here {
            let tid = Tid::of(ready.place);
            let row = table.fetch(tid, home.generation);
            let key = (lane, ready.group, ready.rank.priority, ready.rank.job_id);
            if row.is_some_and(|row| row.i64(column::ID) == ready.id && row.i32(column::LANE) == lane)
                && !has(&table, &index, key, tid)
            {
                tids.push(tid);
                keys.push(datums(key));
            }
        }
        index.insert_entries(&table, &tids, false, |n| Some(keys[n]));
        filled._open.push((table, index));
    }
    filled
}

/// What an entry says: lane, group, priority, job.
pub type EntryKey = (i32, i64, i32, i64);

fn datums((lane, group, priority, job_id): EntryKey) -> [Datum; COLUMNS] {
    [lane.into(), group.into(), priority.into(), job_id.into()]
}

/// Makes entries of attempts that this transaction has inserted. `key`: that of each, and whether its job was there
/// before, so that another attempt of it, which is gone, may have left the very same entry.
pub fn fill_new(
    catalog: &Catalog,
    segment: u8,
    table: &Relation,
    tids: &[Tid],
    key: impl Fn(usize) -> Option<(EntryKey, bool)>,
) {
    let index = Relation::write_index(catalog.segments[segment as usize].parked_index);
    let mut files = Files::default();
    files.note(segment, table, &index);
    let missing = |n: usize| key(n).filter(|&(key, was_there)| !(was_there && has(table, &index, key, tids[n])));
    let keys: Vec<Option<EntryKey>> = (0..tids.len()).map(|n| missing(n).map(|(key, _)| key)).collect();
    index.insert_entries(table, tids, false, |n| keys[n].map(datums));
    shmem::with_instance(catalog.number, |frontier, instance| files.are_current(frontier, instance));
}

/// Whether the entry for this place is there.
fn has(table: &Relation, index: &Relation, key: EntryKey, tid: Tid) -> bool {
    let (lane, group, priority, job_id) = key;
    let keys = [Key::eq_i32(1, lane), Key::eq_i64(2, group), Key::eq_i32(3, priority), Key::eq_i64(4, job_id)];
    let mut entries = Entries::begin(table, index, &keys);
    while let Some((found, _)) = entries.next::<COLUMNS>() {
        if found == tid {
            return true;
        }
    }
    false
}

/// A walk over the parked attempts of a segment, in the order of the index.
pub struct Parked<'a> {
    table: &'a Relation,
    entries: Entries<'a>,
    home: Home,
    /// Blocks that the table has, at least.
    blocks: u32,
    /// The attempt found last: should its entry be there twice.
    last: i64,
}

impl<'a> Parked<'a> {
    /// Begins with the first entry that meets the conditions.
    pub fn begin(table: &'a Relation, index: &'a Relation, keys: &[Key], home: Home) -> Self {
        Self { table, entries: Entries::begin(table, index, keys), home, blocks: table.blocks(), last: 0 }
    }

    /// The next attempt that is there, and is what its entry says; not those that this transaction has inserted.
    pub fn next(&mut self) -> Option<Attempt> {
        loop {
            let (tid, key) = self.entries.next::<COLUMNS>()?;
            let Some(row) = self.table.fetch_if_there(tid, &mut self.blocks, self.home.generation) else { continue };
            let attempt = Attempt::new(row, self.home);
            let Ready { rank, id, group, .. } = attempt.ready();
            let is_it = datums((attempt.lane(), group, rank.priority, rank.job_id)) == key;
            if is_it && id != self.last && !attempt.is_own() {
                self.last = id;
                return Some(attempt);
            }
        }
    }
}
