//! After a start: reads the claims without outcome into memory, so that their leases can end. They begin
//! anew, with the longest length they were given; claims bound to a connection are due at once.
//!
//! Until this is done everything else works: completions ask the logs about what memory does not know.

use std::cell::Cell;

use crate::duty::Duty;
use crate::hold;
use crate::instance::{self, Catalog};
use crate::log::attempt::Reader;
use crate::log::table::{Relation, Snapshot};
use crate::log::{claim, outcome};
use crate::{segment, shmem, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "recover", is_due, run };

/// When memory was full: try again after this many microseconds.
const PAUSE: i64 = 5_000_000;

thread_local! {
    static NEXT_TRY: Cell<i64> = const { Cell::new(0) };
}

/// The monotonic time of the next try.
pub fn next_try() -> i64 {
    NEXT_TRY.get()
}

fn is_due(number: u32) -> bool {
    let is_recovered = shmem::with_instance(number, |_, instance| instance.is_recovered).unwrap_or(true);
    !is_recovered && sys::monotonic_us() >= NEXT_TRY.get()
}

fn run(number: u32) -> i64 {
    let catalog = match instance::current() {
        Ok(catalog) if catalog.number == number => catalog,
        _ => return 0,
    };
    let mut recovered = 0;
    let all_fit = segment::inhabited(&catalog).all(|segment| recover_segment(&catalog, segment, &mut recovered));
    if all_fit {
        shmem::with_instance(number, |_, instance| instance.is_recovered = true);
    } else {
        NEXT_TRY.set(sys::monotonic_us() + PAUSE);
    }
    recovered
}

/// False: memory is full.
fn recover_segment(catalog: &Catalog, segment: u8, recovered: &mut i64) -> bool {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.claim);
    if table.blocks() == 0 {
        return true;
    }
    let pkey = Relation::read_index(oids.claim_pkey);
    let mut reader = Reader::new(catalog);
    let mut scan = table.scan(&pkey, &[], Snapshot::Now);
    while scan.next().is_some() {
        sys::check_for_interrupts();
        let claim = claim::read(&scan.row());
        if matches!(claim.kind, claim::Kind::System | claim::Kind::Moved) || outcome::find(catalog, segment, claim.id).is_some() {
            continue;
        }
        if shmem::with(|shared| shared.frontier.entry(catalog.number, claim.id)).is_some() {
            continue;
        }
        let Some(attempt) = reader.by_id(claim.id) else { continue };
        if !hold::remember_claim(catalog, &attempt, &claim) {
            return false;
        }
        // It may have ended between the look and the entry.
        if outcome::find(catalog, segment, claim.id).is_some() {
            shmem::with_instance(catalog.number, |frontier, instance| {
                frontier.discard(&mut instance.deadlines, catalog.number, claim.id);
            });
        }
        *recovered += 1;
    }
    true
}
