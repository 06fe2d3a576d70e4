//! The scenarios, each explored to its end, and the faults that the exploration finds in them.

use crate::frontier::tests::explore::explore;

use super::rows::How::{Cancelled, Completed, Dead};
use super::rows::Upon;
use super::sessions::Verb::{Cancel, Claim, End, Enqueue, Expire, Move, Retry, TimeComes};
use super::{After, Fault, Plan, Promise, Scenario};

/// Asserts that every promise holds in every state.
fn holds(scenario: &Scenario, least: usize) {
    explore(After { scenario: scenario.clone(), fault: None }).holds(least);
}

/// Asserts that the exploration finds this promise broken when the fault is put in.
fn finds(scenario: &Scenario, fault: Fault, promise: Promise) {
    let model = After { scenario: scenario.clone(), fault: Some(fault) };
    explore(model).finds(fault, &[Promise::ALL[promise as usize].1]);
}

const FREE: Plan = Plan { after: 0, upon: Upon::Completed, until: false };

const fn after(jobs: u8, upon: Upon) -> Plan {
    Plan { after: jobs, upon, until: false }
}

/// Jobs as bits: two predecessors and their successors.
const P: u8 = 1;
const Q: u8 = 2;
const D: u8 = 4;

/// A job is enqueued after another one while that one ends.
const ENQUEUED: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P, Upon::Completed)],
    running: P,
    scripts: &[&[Enqueue(D)], &[End(0, Completed)], &[Claim(2)]],
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// A job and its predecessor are enqueued in one transaction, which is rolled back or not.
const TOGETHER: Scenario = Scenario {
    running: 0,
    scripts: &[&[Enqueue(P | D)], &[Claim(0), End(0, Completed)], &[Claim(2)]],
    is_behind: true,
    ..ENQUEUED
};

/// The last two predecessors end at the same time.
const TWO_LAST: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P | Q, Upon::Completed)],
    running: P | Q,
    held: D,
    scripts: &[&[End(0, Completed)], &[End(1, Completed)], &[Claim(2)]],
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// The last two predecessors end while their successor is enqueued.
const TWO_ENQUEUED: Scenario = Scenario {
    held: 0,
    scripts: &[&[Enqueue(D)], &[End(0, Completed)], &[End(1, Completed)], &[Claim(2)]],
    ..TWO_LAST
};

/// A dead job is retried and completes.
const RETRIED: Scenario = Scenario {
    held: 0,
    scripts: &[&[Enqueue(D)], &[End(0, Dead)], &[End(1, Completed)], &[Retry(0), Claim(0), End(0, Completed)]],
    aborts: 0,
    ..TWO_LAST
};

/// Like `RETRIED`, with another condition.
const RETRIED_FAILED: Scenario = Scenario { jobs: &[FREE, FREE, after(P | Q, Upon::Failed)], ..RETRIED };
const RETRIED_ENDED: Scenario = Scenario { jobs: &[FREE, FREE, after(P | Q, Upon::Ended)], ..RETRIED };

/// A job is enqueued after a dead one that is retried.
const AFTER_RETRIED: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P, Upon::Failed)],
    running: P,
    scripts: &[&[End(0, Dead), Retry(0), Enqueue(D), Claim(0), End(0, Completed)], &[Claim(2)]],
    crashes: 1,
    ..Scenario::QUIET
};

/// A job is cancelled. Its successor is skipped, and so is the successor's successor.
const CASCADE: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P | Q, Upon::Completed), after(D, Upon::Completed), after(D, Upon::Ended)],
    running: P | Q,
    held: D,
    scripts: &[&[Enqueue(8 | 16)], &[End(0, Cancelled)], &[End(1, Dead)], &[Claim(4)]],
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// A held job is cancelled while its predecessor ends. The cancel may be rolled back.
const CANCELLED: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P, Upon::Completed)],
    running: P,
    held: D,
    scripts: &[&[Cancel(2)], &[End(0, Completed)], &[Claim(2)]],
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// Like `CANCELLED`, but the predecessor is cancelled as well.
const BOTH_CANCELLED: Scenario = Scenario { scripts: &[&[Cancel(2)], &[End(0, Cancelled)]], ..CANCELLED };

/// The list has room for one job.
const FULL: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P, Upon::Completed), after(Q, Upon::Completed), after(P | Q, Upon::Ended)],
    running: P | Q,
    scripts: &[&[Enqueue(D), Enqueue(16)], &[Enqueue(8)], &[End(0, Completed)], &[End(1, Completed)]],
    room: 1,
    ..Scenario::QUIET
};

/// A job has more successors than the duty serves in one transaction, and more come.
const WIDE: Scenario = Scenario {
    jobs: &[FREE, after(P, Upon::Completed), after(P, Upon::Ended), after(P, Upon::Failed), after(P, Upon::Completed)],
    running: P,
    scripts: &[&[Enqueue(2 | 8 | 16)], &[Enqueue(4)], &[End(0, Completed)], &[Cancel(3)]],
    batch: 1,
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// Two processes do the duty, and each hand-over orders a look at everything.
const TWO_DUTIES: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P, Upon::Completed), after(Q, Upon::Completed)],
    running: P | Q,
    held: D,
    scripts: &[&[Enqueue(8)], &[End(0, Completed)], &[End(1, Completed)]],
    room: 0,
    duties: 2,
    ..Scenario::QUIET
};

/// The first of two to complete releases a job, while the other one dies and the job is enqueued.
const ANY: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P | Q, Upon::Any)],
    scripts: &[&[Enqueue(D)], &[End(0, Completed)], &[End(1, Dead)], &[Claim(2)]],
    ..TWO_ENQUEUED
};

/// Both predecessors complete at the same time.
const ANY_BOTH: Scenario = Scenario { jobs: &[FREE, FREE, after(P | Q, Upon::Any)], ..TWO_LAST };

/// No predecessor completes at first: one is cancelled, and the other is dead. Then the dead one is retried and
/// completes.
const ANY_RETRIED: Scenario = Scenario {
    scripts: &[&[Enqueue(D)], &[End(0, Dead)], &[End(1, Cancelled)], &[Retry(0), Claim(0), End(0, Completed)]],
    aborts: 0,
    ..ANY
};

/// A job that waits is claimed and completed, or expires.
const EXPIRED: Scenario = Scenario {
    jobs: &[FREE, FREE, after(P | Q, Upon::Any), after(P, Upon::Completed), after(P, Upon::Ended)],
    running: Q,
    held: P | D | 8 | 16,
    scripts: &[&[Expire(0)], &[Claim(0), End(0, Completed)], &[End(1, Cancelled)]],
    is_behind: true,
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// A job is released at its time at the latest. The time comes while the job is enqueued and its predecessor ends.
const UNTIL: Scenario = Scenario {
    jobs: &[FREE, FREE, Plan { until: true, ..after(P, Upon::Completed) }],
    running: P,
    scripts: &[&[Enqueue(D)], &[End(0, Completed)], &[TimeComes], &[Claim(2)]],
    aborts: 1,
    crashes: 1,
    ..Scenario::QUIET
};

/// Like `UNTIL`, but no predecessor ends.
const UNTIL_LATE: Scenario = Scenario { scripts: &[&[Enqueue(D)], &[TimeComes], &[Claim(2)]], ..UNTIL };

/// Like `UNTIL`, but the job moves to another segment, and its predecessor dies.
const UNTIL_MOVED: Scenario =
    Scenario { held: D, scripts: &[&[Move(2)], &[End(0, Dead)], &[TimeComes], &[Claim(2)]], ..UNTIL };

/// Returns the scenario without rollbacks and crashes. Whether a promise breaks then depends only on the order of
/// steps.
const fn calm(scenario: Scenario) -> Scenario {
    Scenario { aborts: 0, crashes: 0, ..scenario }
}

/// Returns the scenario with one rollback and no crash.
const fn standing(scenario: Scenario) -> Scenario {
    Scenario { aborts: 1, crashes: 0, ..scenario }
}

#[test]
fn after_holds() {
    holds(&ENQUEUED, 5_950);
    holds(&TOGETHER, 4_300);
    holds(&TWO_LAST, 6_550);
    holds(&TWO_ENQUEUED, 66_000);
}

#[test]
fn after_holds_over_retries() {
    holds(&RETRIED, 117_000);
    holds(&RETRIED_FAILED, 169_000);
    holds(&RETRIED_ENDED, 144_000);
    holds(&AFTER_RETRIED, 900);
}

#[test]
fn after_holds_for_the_first_of_several() {
    holds(&ANY, 82_000);
    holds(&ANY_BOTH, 10_300);
    holds(&ANY_RETRIED, 119_000);
    holds(&ahead(ANY), 202_000);
    holds(&ahead(ANY_BOTH), 18_800);
    holds(&ahead(ANY_RETRIED), 205_000);
    holds(&standing(Scenario { duties: 2, ..ANY_BOTH }), 1_230);
}

#[test]
fn after_holds_over_times() {
    holds(&EXPIRED, 53_000);
    holds(&ahead(EXPIRED), 57_000);
    holds(&UNTIL, 123_000);
    holds(&ahead(UNTIL), 238_000);
    holds(&UNTIL_LATE, 10_100);
    holds(&UNTIL_MOVED, 97_500);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_about_the_first_of_several_and_times_are_found() {
    finds(&calm(ANY), Fault::DeathIsMet, Promise::NotEarly);
    finds(&ahead(calm(ANY_BOTH)), Fault::ReleasedWithoutKey, Promise::EndsOnce);
    finds(&calm(ANY), Fault::LookInsteadOfHandOver, Promise::NotStranded);
    finds(&calm(UNTIL_MOVED), Fault::TimeLostByMove, Promise::NotStranded);
    finds(&calm(UNTIL_LATE), Fault::TimeNotHandedOver, Promise::NotStranded);
    finds(&UNTIL_MOVED, Fault::TimeNotLookedAt, Promise::NotStranded);
}

#[test]
fn after_holds_over_cancels() {
    holds(&CASCADE, 116_000);
    holds(&CANCELLED, 5_800);
    holds(&BOTH_CANCELLED, 1_950);
}

#[test]
fn after_holds_with_little_memory() {
    holds(&FULL, 107_000);
    holds(&Scenario { crashes: 1, ..FULL }, 1_095_000);
    holds(&Scenario { aborts: 1, ..FULL }, 461_000);
    holds(&Scenario { one_cell: true, ..FULL }, 102_000);
}

/// A job has more successors than the duty serves in one transaction.
#[test]
fn after_holds_in_batches() {
    holds(&standing(WIDE), 104_000);
    holds(&Scenario { aborts: 0, ..WIDE }, 150_000);
    holds(&calm(Scenario { room: 1, ..WIDE }), 16_000);
}

/// Two processes do the duty.
#[test]
fn after_holds_with_two_duties() {
    holds(&TWO_DUTIES, 13_000);
    holds(&standing(Scenario { duties: 2, ..TWO_LAST }), 1_250);
    holds(&standing(Scenario { duties: 2, ..BOTH_CANCELLED }), 240);
}

/// Returns the scenario with ending transactions that release the successors of their jobs.
const fn ahead(scenario: Scenario) -> Scenario {
    Scenario { ahead: true, ..scenario }
}

/// The ending transaction itself releases the successors, so the duty has nothing to do.
#[test]
fn after_holds_if_ending_transactions_release() {
    holds(&ahead(ENQUEUED), 7_750);
    holds(&ahead(TOGETHER), 5_050);
    holds(&ahead(TWO_LAST), 12_000);
    holds(&ahead(TWO_ENQUEUED), 157_000);
    holds(&ahead(CANCELLED), 7_050);
    holds(&ahead(FULL), 234_000);
    holds(&ahead(standing(WIDE)), 67_000);
    holds(&ahead(RETRIED_ENDED), 275_000);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_ending_transactions_that_release_are_found() {
    finds(&ahead(calm(ENQUEUED)), Fault::SparedBlindly, Promise::NotStranded);
    finds(&ahead(calm(ENQUEUED)), Fault::SparedNotTold, Promise::NotStranded);
    finds(&ahead(calm(ENQUEUED)), Fault::CountedAfterLook, Promise::NotStranded);
    finds(&ahead(calm(TWO_LAST)), Fault::SparedThoughHeld, Promise::NotStranded);
    finds(&ahead(calm(RETRIED_ENDED)), Fault::ReleasedOnDeath, Promise::NotEarly);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_producers_are_found() {
    finds(&calm(ENQUEUED), Fault::ProducerSilent, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::LookInsteadOfHandOver, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::ToldInsteadOfLook, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::LookedBeforeAnnounced, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::ProducerToldBeforeVisible, Promise::NotStranded);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_ends_are_found() {
    finds(&calm(TWO_LAST), Fault::CountedInTransaction, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::FilterAskedBeforeCommit, Promise::NotStranded);
    finds(&calm(TWO_LAST), Fault::EnderToldBeforeVisible, Promise::NotStranded);
    finds(&calm(CASCADE), Fault::SkipNotTold, Promise::NotStranded);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_the_duty_are_found() {
    finds(&calm(ENQUEUED), Fault::OldSnapshot, Promise::NotStranded);
    finds(&calm(TWO_LAST), Fault::EachEdgeAlone, Promise::NotEarly);
    finds(&calm(RETRIED), Fault::FirstOutcomeCounts, Promise::NotStranded);
    finds(&calm(AFTER_RETRIED), Fault::FirstOutcomeCounts, Promise::NotEarly);
    finds(&standing(TWO_LAST), Fault::TakenForgottenByRollback, Promise::NotStranded);
    finds(&TWO_LAST, Fault::LeftForgottenByExit, Promise::NotStranded);
    finds(&calm(ENQUEUED), Fault::NotAddedWhileServed, Promise::NotStranded);
    finds(&standing(BOTH_CANCELLED), Fault::VainSkipForgotten, Promise::NotStranded);
    finds(&calm(BOTH_CANCELLED), Fault::SkippedWithoutKey, Promise::EndsOnce);
    finds(&calm(TWO_LAST), Fault::ReleaseNotPushed, Promise::NotStranded);
}

#[test]
#[cfg_attr(miri, ignore = "most faults lie deeper than miri gets")]
fn faults_of_memory_are_found() {
    finds(&calm(RETRIED), Fault::ServedLeavesFilter, Promise::NotStranded);
    finds(&calm(FULL), Fault::OverflowForgotten, Promise::NotStranded);
    finds(&calm(FULL), Fault::OrderTakenBackLate, Promise::NotStranded);
    finds(&TWO_DUTIES, Fault::TwoLooksAtOnce, Promise::NotStranded);
    finds(&TWO_LAST, Fault::NoLookAfterCrash, Promise::NotStranded);
    finds(&TWO_LAST, Fault::UnknownTakenForEmpty, Promise::NotStranded);
    finds(&ENQUEUED, Fault::RebuildMissesNew, Promise::NotStranded);
    finds(&calm(FULL), Fault::LookNotTold, Promise::NotStranded);
    finds(&standing(CANCELLED), Fault::PushedByRollback, Promise::NotEarly);
}
