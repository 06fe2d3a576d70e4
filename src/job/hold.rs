//! Lets a transaction hold an attempt in order to end it.
//!
//! `hold_for_end` holds a claimed attempt, for complete, fail and others. It finds the attempt (`job::claimed`), and
//! probes the outcome's key last. `take::take_waiting` takes an unclaimed attempt in the frontier as a claimer would,
//! for cancel, reprioritize and others.
//!
//! Invariant: no call waits. An attempt that another open transaction holds is "in use" (55006). Only a session that
//! meets an attempt while its segment is being reclaimed waits for the milliseconds of the move, and follows the
//! attempt.

use std::rc::Rc;

use pg_queue_core::frontier::State;

use crate::catalog::ids;
use crate::catalog::permission::{self, Rights};
use crate::catalog::queue::{self, Queue};
use crate::error::{Error, Result};
use crate::job::claimed::{self, Answer, Caller, Claimed};
use crate::job::held::{self, Held, Refusal};
use crate::job::outcomes::Outcomes;
use crate::job::{recover, take};
use crate::log::note::{self, Note};
use crate::log::reader::Reader;
use crate::log::segment::{BoundedWait, Home};
use crate::log::{claim, outcome};
use crate::pg::fault::fault;
use crate::pg::memory;
use crate::pg::scan::Probe;
use crate::pg::session;
use crate::shmem::{self, here};
use crate::transaction::{self, SegmentStep};

/// Holds a claimed attempt, to end it in more than one row. The outcome's key was free a moment ago. On success a step
/// is recorded, so that a rollback undoes the hold. While the attempt is held, no deadline fires.
pub fn hold_for_end(outcomes: &mut Outcomes, id: i64) -> std::result::Result<Held, Refusal> {
    let held = hold_claimed(id)?;
    check_not_ended(outcomes, held)
}

/// Holds an attempt that was seen with this deadline, which has passed. The attempt is lost if it has a later deadline
/// now.
pub fn expired(outcomes: &mut Outcomes, id: i64, deadline: i64) -> std::result::Result<Held, Refusal> {
    let held = hold_expired(id, deadline)?;
    check_not_ended(outcomes, held)
}

/// Returns the held attempt, if its outcome's key is free.
pub fn check_not_ended(outcomes: &mut Outcomes, mut held: Held) -> std::result::Result<Held, Refusal> {
    loop {
        if outcomes.probe(&held) == Probe::Absent {
            queue_of(outcomes, &held)?;
            return Ok(held);
        }
        held = resolve_conflict(outcomes, held)?;
    }
}

/// Returns the queue of a held attempt, and opens the outcomes of its segment. Attempts of a dropped queue are lost:
/// their segment may have been emptied and filled again, while memory has their old places. A drop before the outcomes
/// were opened is known here. After a later drop the segment is not emptied before this transaction ends.
pub fn queue_of(outcomes: &mut Outcomes, held: &Held) -> std::result::Result<Rc<Queue>, Refusal> {
    outcomes.writer(held.home);
    session::accept_invalidations();
    match queue::by_lane(held.entry.lane)? {
        Some(queue) => Ok(queue),
        None if transaction::drops(held.entry.lane) => {
            release_hold(held.id);
            Err(held::dropped(held.id))
        }
        None => {
            vanished(held.id);
            Err(held::dropped(held.id))
        }
    }
}

/// Makes memory forget a held attempt whose row is gone. Returns the refusal.
pub fn vanished(id: i64) -> Refusal {
    transaction::unrecord(id);
    take::forget_entry(id);
    held::removed(id)
}

/// Holds a claimed attempt as `hold_for_end` does, but without a probe of the outcome's key. If the insert of the
/// outcome finds the key taken, the caller calls `resolve_conflict`.
pub fn hold_claimed(id: i64) -> std::result::Result<Held, Refusal> {
    hold_expired(id, i64::MAX)
}

fn hold_expired(id: i64, deadline: i64) -> std::result::Result<Held, Refusal> {
    let caller = Caller { session: session::session(), rights: &permission::rights() };
    let claimed = claimed::find(id, caller.rights, || {
        transaction::reserve(1);
        shmem::with_instance_and_awaited(|frontier, instance, awaited| {
            caller.take_to_end(frontier, instance, awaited, id, deadline)
        })
    })?;
    let step = transaction::record(claimed.step());
    let held = claimed.hold(step);
    fault!("end.held");
    Ok(held)
}

/// Holds many claimed attempts as `hold_claimed` does, in few holds of the lock. Attempts that are lost or in use are
/// added to `refused` with the reason.
///
/// Errors: 22023 when one is not the id of an attempt; then nothing is held. 42501 when one is of a queue that the user
/// may not consume; the rollback then releases the held attempts.
pub fn hold_claimed_many(ids: &[i64], refused: &mut Vec<(i64, Refusal)>) -> Result<Vec<Held>> {
    /// Attempts in one hold of the lock.
    const ATTEMPTS_PER_HOLD: usize = 64;
    for &id in ids {
        ids::attempt_id(id)?;
    }
    let caller = Caller { session: session::session(), rights: &permission::rights() };
    let mut held = memory::list(ids.len());
    for chunk in ids.chunks(ATTEMPTS_PER_HOLD) {
        let mut yours: [Option<Claimed>; ATTEMPTS_PER_HOLD] = [const { None }; ATTEMPTS_PER_HOLD];
        transaction::reserve(chunk.len());
        shmem::with_instance_and_awaited(|frontier, instance, awaited| {
            for (&id, yours) in chunk.iter().zip(&mut yours) {
                if let Answer::Yours(claimed) = caller.take_to_end(frontier, instance, awaited, id, i64::MAX) {
                    *yours = Some(claimed);
                }
            }
        });
        let mut step = transaction::record_all(yours.iter().flatten().map(Claimed::step));
        for (&id, yours) in chunk.iter().zip(yours) {
            if let Some(claimed) = yours {
                held.push(claimed.hold(step));
                step += 1;
                continue;
            }
            match hold_claimed(id) {
                Ok(one) => held.push(one),
                Err(Refusal::Wrong(e)) => return Err(e),
                Err(refusal) => memory::push(refused, (id, refusal)),
            }
        }
    }
    Ok(held)
}

/// Releases a held attempt that has an outcome, or is being given one. If the attempt has moved instead, it stays held
/// in its new place, for another try.
pub fn resolve_conflict(outcomes: &mut Outcomes, held: Held) -> std::result::Result<Held, Refusal> {
    let id = held.id;
    match outcomes.probe(&held) {
        // The transaction that was in the way was rolled back.
        Probe::Absent => return Ok(held),
        Probe::Moved | Probe::Moving => return follow(outcomes, held),
        Probe::InProgress => {
            release_hold(id);
            return Err(held::busy(id, None));
        }
        Probe::Committed => {}
    }
    transaction::unrecord(id);
    take::forget_entry(id);
    Err(match outcome::find(held.home.segment, id) {
        Some(found) => held::ended(id, &found),
        None => held::lost_here(id),
    })
}

/// Inserts the outcome of a held attempt together with the gathered `outcomes`. If its key is taken, releases the
/// attempt or follows it: see [`resolve_conflict`].
pub fn end(outcomes: &mut Outcomes, mut held: Held, outcome: outcome::New) -> std::result::Result<(), Refusal> {
    loop {
        outcomes.add(&held, outcome);
        if outcomes.try_insert().is_empty() {
            return Ok(());
        }
        held = resolve_conflict(outcomes, held)?;
    }
}

/// Waits for the end of the move of a held attempt, and finds its new place.
fn follow(outcomes: &mut Outcomes, mut held: Held) -> std::result::Result<Held, Refusal> {
    if BoundedWait::default().settled(|| outcomes.probe(&held)) == Probe::Moving {
        release_hold(held.id);
        return Err(held::busy(held.id, None));
    }
    let Some(attempt) = Reader::new().by_id(held.id) else {
        vanished(held.id);
        return Err(recover::gone(held.id, &permission::rights()));
    };
    held.home = attempt.home;
    held.entry.place = attempt.ready().place;
    shmem::with(|shared| shared.frontier.running.relocate(here::number(), held.id, held.entry.place));
    Ok(held)
}

/// Releases a held attempt that cannot end in this way. Returns the refusal.
pub fn unfit(held: &Held, error: Error) -> Refusal {
    release_hold(held.id);
    Refusal::Unfit(error)
}

/// Releases a held attempt that the caller does not end.
pub fn release_hold(id: i64) {
    transaction::unrecord(id);
    shmem::with_instance(|frontier, instance| {
        frontier.running.undo_end(&mut instance.deadlines, here::number(), id);
    });
}

/// Checks that the caller has a claimed attempt, without ending it, for `extend` and `progress`.
pub fn check_claimed(id: i64, rights: &Rights) -> std::result::Result<Claimed, Refusal> {
    let caller = Caller { session: session::session(), rights };
    let claimed =
        claimed::find(id, rights, || shmem::with_instance(|frontier, instance| caller.look(frontier, instance, id)))?;
    if claimed.entry.state == State::Running {
        // As in `queue_of`. The later write about the attempt checks the attempt's home once more.
        session::accept_invalidations();
        if queue::by_lane(claimed.entry.lane)?.is_none() {
            return Err(held::dropped(id));
        }
    }
    Ok(claimed)
}

/// Writes a note about a claimed attempt, and follows the attempt if it moves meanwhile. A request to cancel may be
/// about an attempt that waited when it was found.
///
/// Refuses with `Lost` if the attempt is gone, or if a request is about an ended attempt: its segment may be emptied
/// before the request is served.
pub fn write_note(id: i64, home: Home, note: Note) -> std::result::Result<(), Refusal> {
    let is_request = matches!(note, Note::CancelRequested(_));
    let insert = |home: Home| {
        let is_in = note::insert(home, id, note);
        if is_in {
            // A note fills the segment as an ended attempt does. However many notes an attempt gets, the segment is
            // closed, and the move takes along only the notes that still count.
            transaction::record(SegmentStep::Counted { segment: home.segment, attempts: 1, ended: 1 });
        }
        is_in
    };
    let probe = |home: Home| {
        if is_request { probe_both(home, id) } else { outcome::probe(home.segment, id) }
    };
    match note_where_it_is(id, home, insert, probe) {
        Noted::Here(Probe::Committed) if is_request => Err(held::removed(id)),
        Noted::Here(_) => Ok(()),
        Noted::Moving => Err(held::busy(id, None)),
        Noted::Gone => Err(held::removed(id)),
    }
}

/// Returns whether a waiting or running attempt has moved or ended. If a waiting attempt moves, its mark is among the
/// claims. The outcomes decide whether it has ended.
pub fn probe_both(home: Home, id: i64) -> Probe {
    match claim::probe(home.segment, id) {
        seen @ (Probe::Moving | Probe::Moved) => seen,
        _ => outcome::probe(home.segment, id),
    }
}

/// Where an attempt was when the note about it was written.
pub enum Noted {
    /// It is where the note is. The probe of that home has returned this.
    Here(Probe),
    /// It kept moving for too long.
    Moving,
    /// It is gone.
    Gone,
}

/// Writes a note about an attempt by `insert`, and looks for the mark of a move by `probe`, until the note is where the
/// attempt is. `insert` returns false if the segment was emptied since.
///
/// The duty that moves an attempt looks for notes after it has left its mark. This session looks for the mark after it
/// has written its note. So one of the two sees the other.
pub fn note_where_it_is(
    id: i64,
    mut home: Home,
    insert: impl Fn(Home) -> bool,
    probe: impl Fn(Home) -> Probe,
) -> Noted {
    let mut bounded_wait = BoundedWait::default();
    loop {
        if insert(home) {
            match bounded_wait.settled(|| probe(home)) {
                Probe::Moving => return Noted::Moving,
                Probe::Moved => {}
                seen => return Noted::Here(seen),
            }
        }
        match Reader::new().by_id(id) {
            Some(now) => home = now.home,
            None => return Noted::Gone,
        }
    }
}

/// Writes a note about a held attempt by `insert`, as `note_where_it_is` does, and counts the note in its segment. A
/// transaction that replaces the attempt claims it and then looks for notes. So one of the two sees the other, and the
/// note counts if no claim is found after it.
pub fn note_held(id: i64, home: Home, insert: impl Fn(Home) -> bool) -> Noted {
    let counted = |home: Home| {
        let is_in = insert(home);
        if is_in {
            transaction::record(SegmentStep::Counted { segment: home.segment, attempts: 1, ended: 1 });
        }
        is_in
    };
    note_where_it_is(id, home, counted, |home| claim::probe(home.segment, id))
}
