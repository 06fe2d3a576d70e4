//! The index of groups: of each segment, the attempts that were parked, by (lane, group, priority, job). See
//! `src/core/frontier/groups.rs`.
//!
//! An attempt gets its entry when it is first parked, by whoever parks it, and not when it is enqueued: most groups
//! never have more jobs than may run. (What has moved, and where groups keep an order, gets it at once.) So the index cannot be one of the attempts' table, which has to know every row.
//! It is that of `queue.parked_N`, a table that stays empty; its entries point into `queue.attempt_N`, and nobody
//! but this code reads or writes it. As with any index, an entry outlives the rollback of whoever made it: it only says
//! where to look. Under the SQL of 0.1.0 it is the index of the attempts' table.
//!
//! Invariants: no entry is there twice, since the lane's flag lets one in at a time, who looks first; whoever says that
//! an entry is there has held a lock on the index since he knew. Should somebody build the index anew, from a table
//! without rows, it is another file: [`Files::are_current`].

use pg_queue_core::frontier::{Frontier, Ready};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::instance::Catalog;
use crate::log::attempt::column;
use crate::log::table::{Key, Relation, Snapshot, Tid};
use crate::segment::{self, Home};
use crate::shmem::{self, Instance};

/// Columns of the index.
const COLUMNS: usize = 4;

/// The files of the indexes, as somebody has found them; 0: he has not looked.
#[derive(Clone, Copy, Default)]
pub struct Files([u32; SEGMENTS]);

impl Files {
    /// Takes note of a segment's index, which is open.
    pub fn note(&mut self, segment: u8, index: &Relation) {
        self.0[segment as usize] = index.file();
    }

    /// Whether they still are what the instance knows. Should somebody have built one anew, everything parked is to be
    /// read, and put there, again.
    pub fn are_current(&self, frontier: &mut Frontier<'_>, instance: &mut Instance) -> bool {
        let mut are_current = true;
        for (known, &found) in instance.parked_files.iter_mut().zip(&self.0).filter(|(_, found)| **found != 0) {
            are_current &= *known == found || *known == 0;
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
        filled.files.note(segment, &index);
        let mut tids = Vec::new();
        let mut keys: Vec<[Datum; COLUMNS]> = Vec::new();
        for ready in here {
            let tid = Tid::of(ready.place);
            let row = table.fetch(tid, home.generation);
            if row.is_some_and(|row| row.i64(column::ID) == ready.id && row.i32(column::LANE) == lane)
                && !has(&table, &index, lane, ready)
            {
                let rank = ready.rank;
                tids.push(tid);
                keys.push([lane.into(), ready.group.into(), rank.priority.into(), rank.job_id.into()]);
            }
        }
        index.insert_entries(&table, &tids, false, |n| Some(keys[n]));
        filled._open.push((table, index));
    }
    filled
}

/// Makes entries of attempts that this transaction has inserted.
pub fn fill_new(
    catalog: &Catalog,
    segment: u8,
    table: &Relation,
    tids: &[Tid],
    key: impl Fn(usize) -> Option<(i32, i64, i32, i64)>,
) {
    let index = Relation::write_index(catalog.segments[segment as usize].parked_index);
    let mut files = Files::default();
    files.note(segment, &index);
    index.insert_entries(table, tids, false, |n| {
        key(n).map(|(lane, group, priority, job_id)| [Datum::from(lane), group.into(), priority.into(), job_id.into()])
    });
    shmem::with_instance(catalog.number, |frontier, instance| files.are_current(frontier, instance));
}

/// Whether the entry of an attempt is there.
fn has(table: &Relation, index: &Relation, lane: i32, ready: &Ready) -> bool {
    let rank = ready.rank;
    let keys =
        [Key::eq_i32(1, lane), Key::eq_i64(2, ready.group), Key::eq_i32(3, rank.priority), Key::eq_i64(4, rank.job_id)];
    let mut scan = table.scan(index, &keys, Snapshot::Now);
    let place = ready.place;
    while let Some(tid) = scan.next() {
        let found = tid.place(place.segment);
        if (found.block, found.offset) == (place.block, place.offset) {
            return true;
        }
    }
    false
}
