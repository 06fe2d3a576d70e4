//! Reads running attempts from the logs into memory: one that memory does not know, or all of them after a start.
//!
//! Leases begin anew, with the longest length that was noted. Claims that end with a connection expire immediately.

use std::cell::Cell;

use pg_queue_core::frontier::{Disconnect, Running, State};

use crate::catalog::permission::{Privilege, Rights};
use crate::catalog::{self, queue};
use crate::job::held::{self, Refusal};
use crate::job::take;
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::segment::{self, Home};
use crate::log::{claim, history, note, outcome};
use crate::pg::fault::fault;
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;
use crate::pg::{process, session, time};
use crate::shmem::here;
use crate::{shmem, transaction};

/// If memory was full, the next try is this many microseconds later.
const RETRY_PAUSE_US: i64 = 5_000_000;

thread_local! {
    pub static NEXT_TRY: Cell<i64> = const { Cell::new(0) };
}

/// Returns the monotonic time of the next try.
pub fn next_try() -> i64 {
    NEXT_TRY.get()
}

/// Reads all running attempts, for the duty and for a session that must know them before it goes on.
pub fn recover_all() -> i64 {
    if shmem::with_instance(|_, instance| instance.restore.is_suspect).unwrap_or(false) {
        forget_strangers();
        shmem::with_instance(|_, instance| instance.restore.is_suspect = false);
    }
    let mut recovered = 0;
    let all_fit = segment::inhabited().all(|segment| recover_segment(segment, &mut recovered));
    if all_fit {
        shmem::with_instance(|_, instance| instance.recovered_at = time::monotonic_us());
    } else {
        NEXT_TRY.set(time::monotonic_us() + RETRY_PAUSE_US);
    }
    recovered
}

/// Drops entries whose claims are gone or that have an outcome, after the tables were written by SQL. An attempt whose
/// claim is gone waits again. The frontier was not told, because the attempt was taken.
fn forget_strangers() {
    let number = here::number();
    let is_claimed = |entry: &Running| entry.state == State::Running && entry.claimed != 0;
    let mut reader = Reader::new();
    for entry in shmem::each_running() {
        if !is_claimed(&entry) {
            continue;
        }
        let attempt = reader.by_id(entry.id);
        let has_ended = |a: &Attempt| outcome::find(a.home.segment, entry.id).is_some();
        let is_unclaimed = |a: &Attempt| claim::find(a.home.segment, entry.id).is_none();
        let attempt = attempt.filter(|a| !has_ended(a));
        if attempt.as_ref().is_some_and(|a| !is_unclaimed(a)) {
            continue;
        }
        fault!("recover.stranger");
        let waiting = attempt.map(|a| (a.lane(), a.ready(), a.run_at()));
        let woken = shmem::with_instance(|frontier, instance| {
            if !frontier.entry(number, entry.id).as_ref().is_some_and(is_claimed) {
                return [None; 2];
            }
            instance.entry_leaves(frontier, entry.id);
            let freed = frontier.discard(&mut instance.deadlines, number, entry.id);
            let Some((lane, ready, run_at)) = waiting else { return [freed, None] };
            if run_at.is_some_and(|at| at > instance.due.to) {
                instance.due.next = i64::MIN;
                return [freed, None];
            }
            [freed, frontier.push(number, lane, ready)]
        });
        woken.into_iter().flatten().flatten().for_each(shmem::wake);
    }
}

/// Reads the running attempts of a segment. Returns false if memory is full.
fn recover_segment(segment: u8, recovered: &mut i64) -> bool {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.claim);
    if table.blocks() == 0 {
        return true;
    }
    let pkey = Relation::read_index(oids.claim_pkey);
    let mut reader = Reader::new();
    let mut scan = table.scan(&pkey, &[], Snapshot::Now);
    while scan.next().is_some() {
        process::check_for_interrupts();
        let claim = claim::read(&scan.row());
        if matches!(claim.kind, claim::Kind::System | claim::Kind::Moved) || outcome::find(segment, claim.id).is_some()
        {
            continue;
        }
        if shmem::with(|shared| shared.frontier.entry(here::number(), claim.id)).is_some() {
            continue;
        }
        let Some(attempt) = reader.by_id(claim.id) else { continue };
        fault!("recover.found");
        if remember_claim(&attempt, &claim) == Some(false) {
            return false;
        }
        *recovered += 1;
    }
    true
}

/// Returns what the logs say of a claimed attempt for which memory has no room. `None`: the attempt is gone.
pub fn locate(id: i64) -> Option<(Running, Home)> {
    let mut entry = Running::of(id);
    let attempt = Reader::new().by_id(id)?;
    let ready = attempt.ready();
    (entry.lane, entry.rank, entry.place, entry.claimed) = (attempt.lane(), ready.rank, ready.place, 1);
    // The notes say whether another run was requested.
    entry.rerun = 1;
    if let Some(claim) = claim::find(attempt.home.segment, id) {
        let notes = note::summary(attempt.home.segment, id);
        (entry.lease, entry.longest) = (claim.lease, claim.lease.max(notes.lease()));
        entry.cancel = u8::from(notes.cancel().is_some());
    }
    Some((entry, attempt.home))
}

/// Looks up a claimed attempt that memory does not know, and tells memory. Either it was claimed before the server's
/// start and the worker has not read it yet, or memory is full.
pub fn recover(id: i64, rights: &Rights) -> std::result::Result<(), Refusal> {
    loop {
        let Some(attempt) = Reader::new().by_id(id) else { return Err(gone(id, rights)) };
        if !rights.on_lane(attempt.lane(), Privilege::Consume) {
            return Err(held::denied(id, attempt.lane()));
        }
        let outcome = outcome::find(attempt.home.segment, id);
        let claim = claim::find(attempt.home.segment, id);
        match (outcome, claim) {
            // The attempt moved between the two reads.
            (Some(outcome::Outcome { kind: outcome::Kind::Moved, .. }), _)
            | (_, Some(claim::Claim { kind: claim::Kind::Moved, .. })) => process::check_for_interrupts(),
            (Some(found), _) => return Err(held::ended(id, &found)),
            (None, None) => {
                return Err(held::unclaimed(id));
            }
            (None, Some(claim)) if claim.kind == claim::Kind::System => {
                return Err(held::lost(id, "The attempt was ended before it was run."));
            }
            (None, Some(claim)) => {
                if queue::by_lane(attempt.lane()).map_err(Refusal::Wrong)?.is_none() {
                    return Err(held::dropped(id));
                }
                if remember_claim(&attempt, &claim).is_some() {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns the refusal for an attempt that the logs do not know.
pub fn gone(id: i64, rights: &Rights) -> Refusal {
    match history::find(id) {
        Some(past) if !rights.on_lane(past.lane(), Privilege::Consume) => held::denied(id, past.lane()),
        Some(past) => held::ended(id, &past.outcome()),
        None => held::removed(id),
    }
}

/// Tells memory of a committed claim without an outcome. The lease starts anew, with the longest length that was noted.
/// A claim that ends with a connection has ended. Returns false if memory is full. `None`: the attempt has moved, and
/// its segment was emptied since it was found, so the caller must search again.
pub fn remember_claim(attempt: &Attempt, claim: &claim::Claim) -> Option<bool> {
    // The lock is taken before the check below. Until that check the entry may have an old place, which must not become
    // a place in the segment's next filling.
    let _held = Relation::read(catalog::segment(attempt.home.segment).claim);
    if !attempt.home.is_valid() {
        return None;
    }
    let notes = note::summary(attempt.home.segment, claim.id);
    let longest = claim.lease.max(notes.lease());
    let ready = attempt.ready();
    // Memory has all claims since the server's start, so the connection of a claim that it does not have has ended.
    let deadline =
        if claim.kind == claim::Kind::Bound { i64::MIN } else { time::monotonic_us().saturating_add(longest) };
    let mut entry = Running::of(claim.id);
    (entry.instance, entry.lane, entry.rank, entry.place) = (here::number(), attempt.lane(), ready.rank, ready.place);
    entry.group = ready.group;
    (entry.lease, entry.longest, entry.deadline) = (claim.lease, longest, deadline);
    (entry.started_at, entry.pid, entry.state) = (claim.claimed_at, claim.pid, State::Running);
    entry.cost = claim.cost.cast_unsigned();
    if claim.kind == claim::Kind::Bound {
        entry.disconnect = Disconnect::EXPIRES;
    }
    entry.cancel = u8::from(notes.cancel().is_some());
    entry.rerun = u8::from(note::newest_rerun(attempt.home.segment, claim.id).is_some());
    fault!("recover.read");
    let mut worker = None;
    let fits = shmem::with_instance(|frontier, instance| {
        worker = instance.worker.wake_by(deadline);
        frontier.recover(&mut instance.deadlines, entry)
    });
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
    // The attempt may have moved or ended, or its queue may have been dropped, before the entry existed. Then the entry
    // does not know, and its place would be taken for a place in the segment's next filling.
    session::accept_invalidations();
    let lane = attempt.lane();
    let is_dropped = matches!(queue::by_lane(lane), Ok(None)) && !transaction::drops(lane);
    let is_valid = attempt.home.is_valid();
    let home = match outcome::find(attempt.home.segment, claim.id).filter(|_| is_valid) {
        None if is_valid && !is_dropped => Some(attempt.home),
        Some(outcome) if outcome.kind != outcome::Kind::Moved => {
            take::forget_ended(claim.id);
            None
        }
        _ => match Reader::new().by_id(claim.id).filter(|_| !is_dropped) {
            Some(now) => {
                shmem::with(|shared| shared.frontier.running.relocate(here::number(), claim.id, now.ready().place));
                Some(now.home)
            }
            None => {
                take::forget_entry(claim.id);
                None
            }
        },
    };
    // Nor does the entry know of a longer lease that was noted after the notes were read.
    if let Some(home) = home {
        let noted = note::summary(home.segment, claim.id).lease();
        if noted > longest {
            let deadline = time::monotonic_us().saturating_add(noted);
            shmem::with_instance(|frontier, instance| {
                frontier.running.lengthen(&mut instance.deadlines, here::number(), claim.id, noted, deadline);
            });
        }
    }
    Some(fits.unwrap_or(false))
}
