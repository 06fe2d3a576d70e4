//! The scenarios, each explored to its end, and the faults that the exploration finds in them.

use crate::frontier::tests::explore::explore;

use super::Protocol;
use super::data::Verb::{Cancel, Claim, Complete, Enqueue, Fail, Purge};
use super::scenario::{Fault, Promise, Scenario};

/// Asserts that every promise holds in every state.
fn holds(scenario: &Scenario, least: usize) {
    explore(Protocol { scenario: scenario.clone(), fault: None }).holds(least);
}

/// Asserts that the exploration finds one of these promises broken when the fault is put in.
fn finds<const N: usize>(scenario: &Scenario, fault: Fault, promises: [Promise; N]) {
    let model = Protocol { scenario: scenario.clone(), fault: Some(fault) };
    explore(model).finds(fault, &promises.map(|promise| Promise::ALL[promise as usize].1));
}

// ---- transactions ----

/// Jobs come while other jobs are claimed, fail and are completed. The server crashes.
const CRASHES: Scenario = Scenario {
    waiting: 1,
    scripts: &[&[&[Enqueue(2)]], &[&[Claim], &[Complete]], &[&[Claim], &[Fail]]],
    crashes: 1,
    ..Scenario::QUIET
};

/// There are more jobs than memory has room for. One transaction is rolled back, at any step.
const ROLLBACKS: Scenario = Scenario {
    waiting: 2,
    scripts: &[&[&[Enqueue(3)]], &[&[Claim], &[Complete]], &[&[Claim]]],
    aborts: 1,
    ..Scenario::QUIET
};

/// A lane is purged while jobs are claimed. Memory does not know all attempts of the purge.
const PURGES: Scenario = Scenario {
    waiting: 1,
    scripts: &[&[&[Purge]], &[&[Claim]], &[&[Claim]]],
    aborts: 1,
    // A refill may skip attempts that a purge has given back.
    is_order_checked: false,
    ..Scenario::QUIET
};

#[test]
fn transactions_hold_over_a_crash() {
    holds(&CRASHES, 170_000);
}

#[test]
fn transactions_hold_over_a_rollback() {
    holds(&ROLLBACKS, 10_000);
}

#[test]
fn purges_hold() {
    holds(&PURGES, 10_000);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_transactions_are_found() {
    finds(&CRASHES, Fault::ReadBeforeFlag, [Promise::Served]);
    finds(&ROLLBACKS, Fault::SpillForgotten, [Promise::Served]);
    finds(&ROLLBACKS, Fault::ToldBeforeVisible, [Promise::Served]);
    finds(&PURGES, Fault::VainClaimForgotten, [Promise::Served]);
}

// ---- the move ----

/// Two sessions claim during a move.
const MOVED_CLAIMS: Scenario =
    Scenario { waiting: 2, scripts: &[&[&[Claim]], &[&[Claim]]], moves: true, ..Scenario::QUIET };

/// An attempt ends during a move.
const MOVED_ENDS: Scenario =
    Scenario { waiting: 1, scripts: &[&[&[Claim], &[Complete]], &[&[Claim]]], moves: true, ..Scenario::QUIET };

/// The move, a claim or a purge is rolled back.
const UNDONE_MOVE: Scenario = Scenario {
    waiting: 1,
    scripts: &[&[&[Claim]], &[&[Purge]]],
    moves: true,
    aborts: 1,
    // A refill may skip attempts that a rollback has given back.
    is_order_checked: false,
    ..Scenario::QUIET
};

/// A cancel is rolled back in the middle of a move.
const UNDONE_CANCEL: Scenario = Scenario { scripts: &[&[&[Claim]], &[&[Cancel(1)]]], ..UNDONE_MOVE };

/// A producer is slow to commit.
const SLOW_PRODUCER: Scenario = Scenario {
    scripts: &[&[&[Enqueue(1)]], &[&[Claim]]],
    moves: true,
    aborts: 1,
    is_order_checked: false,
    ..Scenario::QUIET
};

/// A worker comes back after a crash while the segment of its attempt is reclaimed.
const RECOVERED: Scenario =
    Scenario { waiting: 1, scripts: &[&[&[Claim], &[Complete]]], moves: true, crashes: 1, ..Scenario::QUIET };

/// A job is cancelled during a move, and the server crashes.
const MOVED_NOTES: Scenario = Scenario {
    waiting: 1,
    scripts: &[&[&[Claim], &[Complete]], &[&[Cancel(1)]]],
    moves: true,
    crashes: 1,
    ..Scenario::QUIET
};

#[test]
fn moves_hold() {
    holds(&MOVED_CLAIMS, 17_000);
    holds(&MOVED_ENDS, 6_000);
}

#[test]
fn moves_hold_over_a_rollback() {
    holds(&UNDONE_MOVE, 85_000);
    holds(&UNDONE_CANCEL, 135_000);
    holds(&SLOW_PRODUCER, 7_500);
}

#[test]
fn moves_hold_over_a_crash() {
    holds(&RECOVERED, 9_000);
    holds(&MOVED_NOTES, 300_000);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_moves_are_found() {
    finds(&MOVED_CLAIMS, Fault::OpenMarkIsClaim, [Promise::InOrder]);
    finds(&MOVED_CLAIMS, Fault::MovedNotTold, [Promise::Served]);
    finds(&MOVED_ENDS, Fault::ResolvedBeforeLock, [Promise::LivesOnce]);
    finds(&UNDONE_MOVE, Fault::OpenClaimTakenForSettled, [Promise::LivesOnce]);
    finds(&SLOW_PRODUCER, Fault::MovedBesideProducer, [Promise::LivesOnce, Promise::Served]);
    finds(&UNDONE_MOVE, Fault::UndoneMoveNotTold, [Promise::Served]);
    finds(&UNDONE_MOVE, Fault::PushHeldBackForgotten, [Promise::Served]);
    finds(&UNDONE_CANCEL, Fault::MovedEntryForgotten, [Promise::Served]);
    finds(&MOVED_NOTES, Fault::RecoveredWithStalePlace, [Promise::LivesOnce]);
    finds(&MOVED_NOTES, Fault::RecoveredWithoutLock, [Promise::LivesOnce]);
    finds(&MOVED_NOTES, Fault::NotesReadBeforeMark, [Promise::Cancelled]);
    finds(&MOVED_NOTES, Fault::NoLookForMarkAfterNote, [Promise::Cancelled]);
    finds(&MOVED_NOTES, Fault::MarkOfWaitingNotSeen, [Promise::Cancelled]);
    finds(&MOVED_NOTES, Fault::NoteOfWaitingLeftBehind, [Promise::Cancelled]);
    finds(&LATE_AND_MOVED, Fault::NoteOfEndedLeftBehind, [Promise::Cancelled]);
    finds(&LATE_AND_MOVED, Fault::NoteAboutEnded, [Promise::Cancelled]);
}

// ---- late requests ----

/// A job is cancelled whose attempt fails and whose next attempt is claimed.
const LATE: Scenario = Scenario {
    waiting: 1,
    scripts: &[&[&[Claim], &[Fail]], &[&[Cancel(1)]], &[&[Claim]]],
    crashes: 1,
    ..Scenario::QUIET
};

/// Like `LATE`, with a rollback of the claim, the request, or the duty that serves the request.
const UNDONE_LATE: Scenario =
    Scenario { waiting: 1, scripts: &[&[&[Claim], &[Fail]], &[&[Cancel(1)]]], aborts: 1, ..Scenario::QUIET };

/// There are two requests, and memory has room for one.
const MANY_LATE: Scenario = Scenario {
    waiting: 2,
    scripts: &[&[&[Claim, Claim], &[Fail, Fail]], &[&[Cancel(1)]], &[&[Cancel(2)]]],
    ..Scenario::QUIET
};

/// A job is cancelled while the segment of its attempt is reclaimed.
const LATE_AND_MOVED: Scenario = Scenario {
    waiting: 1,
    is_claimed: true,
    scripts: &[&[&[Fail]], &[&[Cancel(1)]], &[&[Claim]]],
    moves: true,
    ..Scenario::QUIET
};

#[test]
fn late_requests_hold_over_a_crash() {
    holds(&LATE, 200_000);
}

#[test]
fn late_requests_hold_over_a_rollback() {
    holds(&UNDONE_LATE, 850);
}

#[test]
fn many_late_requests_hold() {
    holds(&MANY_LATE, 10_000);
}

#[test]
fn late_requests_hold_beside_a_move() {
    holds(&LATE_AND_MOVED, 60_000);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_late_requests_are_found() {
    finds(&LATE, Fault::CancelAfterEndForgotten, [Promise::Cancelled]);
    finds(&LATE, Fault::LateCancelForgotten, [Promise::Cancelled]);
    finds(&LATE, Fault::EndingEntryForgotten, [Promise::Cancelled]);
    finds(&LATE, Fault::NoteTakenForTold, [Promise::Cancelled]);
    finds(&LATE, Fault::NoScanAfterCrash, [Promise::Cancelled]);
    finds(&UNDONE_LATE, Fault::CancelOfRolledBackClaimForgotten, [Promise::Cancelled]);
    finds(&UNDONE_LATE, Fault::RemovedBeforeCommit, [Promise::Cancelled]);
    finds(&MANY_LATE, Fault::OverflowForgotten, [Promise::Cancelled]);
}
