//! After a start: reads the claims without outcome into memory, so that their leases can end. They begin
//! anew, with the longest length they were given; claims bound to a connection are due at once.
//!
//! Until this is done everything else works: completions ask the logs about what memory does not know.

use std::cell::Cell;

use pg_queue_core::frontier::{Running, State};

use crate::duty::Duty;
use crate::hold;
use crate::instance::{self, Catalog};
use crate::log::attempt::{Attempt, Reader};
use crate::log::table::{Relation, Snapshot};
use crate::log::{claim, outcome};
use crate::{late, segment, shmem, sys};

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

/// Also for whoever has to know what runs before he goes on.
pub fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    if shmem::with_instance(number, |_, instance| instance.dormancy.is_suspect).unwrap_or(false) {
        forget_strangers(&catalog);
        shmem::with_instance(number, |_, instance| instance.dormancy.is_suspect = false);
    }
    let mut recovered = 0;
    let all_fit = segment::inhabited(&catalog).all(|segment| recover_segment(&catalog, segment, &mut recovered));
    if all_fit {
        shmem::with_instance(number, |_, instance| instance.is_recovered = true);
    } else {
        NEXT_TRY.set(sys::monotonic_us() + PAUSE);
    }
    recovered
}

/// Drops entries whose claims are gone or that have an outcome: somebody wrote to the tables by SQL. An attempt
/// without its claim waits again; as it was taken, nobody else has told the frontier so.
fn forget_strangers(catalog: &Catalog) {
    let number = catalog.number;
    let is_claimed = |entry: &Running| entry.state == State::Running && entry.claimed != 0;
    let mut reader = Reader::new(catalog);
    for entry in shmem::each_running(number) {
        if !is_claimed(&entry) {
            continue;
        }
        let attempt = reader.by_id(entry.id);
        let has_ended = |a: &Attempt| outcome::find(catalog, a.home.segment, entry.id).is_some();
        let is_unclaimed = |a: &Attempt| claim::find(catalog, a.home.segment, entry.id).is_none();
        let attempt = attempt.filter(|a| !has_ended(a));
        if attempt.as_ref().is_some_and(|a| !is_unclaimed(a)) {
            continue;
        }
        let waiting = attempt.map(|a| (a.lane(), a.ready(), a.run_at()));
        let woken = shmem::with_instance(number, |frontier, instance| {
            if !frontier.entry(number, entry.id).as_ref().is_some_and(is_claimed) {
                return None;
            }
            late::leave(frontier, instance, entry.id);
            let freed = frontier.discard(&mut instance.deadlines, number, entry.id);
            let Some((lane, ready, run_at)) = waiting else { return freed };
            if run_at.is_some_and(|at| at > instance.due_to) {
                instance.next_due = i64::MIN;
                return freed;
            }
            frontier.push(number, lane, ready).or(freed)
        });
        if let Some(session) = woken.flatten() {
            shmem::wake(session);
        }
    }
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
        if matches!(claim.kind, claim::Kind::System | claim::Kind::Moved)
            || outcome::find(catalog, segment, claim.id).is_some()
        {
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
            hold::discard(catalog, claim.id);
        }
        *recovered += 1;
    }
    true
}
