//! The checkers find faults: each test has a ledger with one fault, and the same ledger without it.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use super::case::{Case, SeenAttempt, SeenJob, World};
use super::hold::holds;
use super::{after, keys, lease, limits, loss, order, waiting};
use crate::ledger::{Claim, Deal, End, Fact, Fate, Job, Ledger, Micros, What};
use crate::plan::QUEUES;
use crate::shared::Patience;

/// Adds a deal whose only fact took from `from` to `to`, and which ended right after.
pub fn deal(ledger: &mut Ledger, fate: Fate, what: What, from: Micros, to: Micros) {
    let mut deal = Deal::new(ledger.deals.len() as i64 + 1);
    (deal.fate, deal.begun, deal.end_from, deal.end_to) = (fate, from, to, to + 1);
    deal.facts.push(Fact { what, from, to, undone: None });
    ledger.deals.push(deal);
}

pub fn queue(name: &str) -> usize {
    QUEUES.iter().position(|queue| queue.name == name).expect("a queue of this name")
}

pub fn job(name: &str, id: i64, priority: i32) -> Job {
    Job { priority, group: Some("g".to_owned()), is_due: true, ..Job::plain(id, queue(name), format!("t{id}")) }
}

pub fn claim(job: &Job, attempt: i64, lease: Micros) -> What {
    What::Claimed(Claim {
        attempt,
        job: job.id,
        queue: job.queue,
        stage: None,
        token: job.token.clone(),
        priority: job.priority,
        group: job.group.clone(),
        number: 1,
        disconnect: None,
        lease,
    })
}

pub fn enqueued(ledger: &mut Ledger, job: &Job, time: Micros) {
    deal(ledger, Fate::Committed, What::Enqueued(job.clone()), time, time + 1);
}

pub fn ended(job: &Job, attempt: i64) -> What {
    What::Ended { attempt, job: job.id, end: End::Completed }
}

/// Returns the checker's findings about a ledger and an otherwise empty world.
pub fn found(check: impl Fn(&Case<'_>) -> Vec<String>, ledger: &Ledger, world: &World) -> Vec<String> {
    check(&Case { ledger, world, crashes: &[], promotions: &[], clock_was_set: false })
}

pub fn seen(job: i64, state: &str, finished_at: Micros) -> SeenAttempt {
    SeenAttempt { job, state: state.to_owned(), number: 1, claimed_at: Some(0), finished_at: Some(finished_at) }
}

#[test]
fn a_strict_job_that_is_claimed_after_the_rolled_back_claim_of_an_earlier_one() {
    let (first, second) = (job("strict", 1, 0), job("strict", 2, 0));
    for is_wrong in [true, false] {
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &first, 10);
        enqueued(&mut ledger, &second, 20);
        deal(&mut ledger, Fate::RolledBack, claim(&first, 101, 1000), 100, 110);
        if !is_wrong {
            deal(&mut ledger, Fate::Committed, ended(&first, 101), 112, 113);
        }
        deal(&mut ledger, Fate::Committed, claim(&second, 102, 1000), 114, 120);
        deal(&mut ledger, Fate::Committed, ended(&first, 101), 900, 910);
        let found = found(|case| order::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(is_wrong), "{found:?}");
    }
}

#[test]
fn a_strict_job_that_passes_one_that_has_failed() {
    let (first, second) = (job("strict", 1, 0), job("strict", 2, -5));
    for again in [500, 115] {
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &first, 10);
        deal(&mut ledger, Fate::Committed, claim(&first, 101, 1000), 20, 30);
        deal(&mut ledger, Fate::Committed, What::Ended { attempt: 101, job: 1, end: End::Failed }, 40, 50);
        enqueued(&mut ledger, &second, 60);
        deal(&mut ledger, Fate::Committed, claim(&second, 102, 1000), 110, 120);
        deal(&mut ledger, Fate::Committed, claim(&first, 103, 1000), again, again + 10);
        let found = found(|case| order::check(case, &holds(case)), &ledger, &World::default());
        let got = found.iter().filter(|one| one.contains("has passed")).count();
        assert_eq!(got, usize::from(again == 500), "{found:?}");
    }
}

#[test]
fn a_job_that_is_jumped() {
    let (first, second) = (job("plain", 1, 5), job("plain", 2, 5));
    // The first job is free all the time, or comes during the claim, or is taken by another claim meanwhile.
    for (comes, taken, is_wrong) in [(10, 500, true), (105, 500, false), (10, 107, false)] {
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &first, comes);
        enqueued(&mut ledger, &second, 20);
        deal(&mut ledger, Fate::Committed, claim(&second, 102, 1000), 100, 110);
        deal(&mut ledger, Fate::RolledBack, claim(&first, 101, 1000), taken, taken + 1);
        let found = found(|case| order::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(is_wrong), "{comes} {taken}: {found:?}");
    }
}

#[test]
fn a_job_with_a_cost_that_is_jumped_again_and_again() {
    let [first, second, third] = [1, 2, 3].map(|id| job("rated", id, 5));
    for (again, is_wrong) in [(200, false), (4_000_000, true)] {
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &first, 10);
        for (job, attempt, at) in [(&second, 102, 100), (&third, 103, again)] {
            enqueued(&mut ledger, job, 20);
            deal(&mut ledger, Fate::Committed, claim(job, attempt, 1000), at, at + 10);
        }
        let found = found(|case| order::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(is_wrong), "{again}: {found:?}");
    }
}

#[test]
fn a_job_that_was_taken_by_a_claim_without_an_answer() {
    let (first, second) = (job("plain", 1, 5), job("plain", 2, 5));
    for (fate, is_wrong) in [(Fate::Committed, false), (Fate::RolledBack, true)] {
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &first, 10);
        enqueued(&mut ledger, &second, 20);
        deal(&mut ledger, fate, What::ClaimLost { queues: vec![first.queue] }, 50, 60);
        // The attempt's lease still lasts, and the session ended long ago.
        deal(&mut ledger, Fate::Committed, claim(&second, 102, 1000), 4_900_000, 4_900_010);
        let found = found(|case| order::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(is_wrong), "{fate:?}: {found:?}");
    }
}

#[test]
fn more_than_the_limit_at_once() {
    let limit = QUEUES[queue("limited")].limit.expect("a limit");
    for many in [limit, limit + 1] {
        let mut ledger = Ledger::default();
        for n in 0..many as i64 {
            let one = Job { group: Some(format!("g{n}")), ..job("limited", n, 0) };
            deal(&mut ledger, Fate::Committed, claim(&one, 100 + n, 1_000_000), 10 + n, 20 + n);
        }
        let found = found(|case| limits::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(many > limit), "{found:?}");
    }
}

#[test]
fn more_than_the_limit_of_a_group() {
    for group in ["g", "h"] {
        let mut ledger = Ledger::default();
        for n in 0..3 {
            let name = if n == 2 { group } else { "g" };
            let one = Job { group: Some(name.to_owned()), ..job("limited", n, 0) };
            deal(&mut ledger, Fate::Committed, claim(&one, 100 + n, 1_000_000), 10 + n, 20 + n);
        }
        let found = found(|case| limits::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(group == "g"), "{found:?}");
    }
}

#[test]
fn more_starts_than_the_rate() {
    let rate = QUEUES[queue("rated")].rate.expect("a rate");
    for many in [rate, rate + 1] {
        let mut ledger = Ledger::default();
        for n in 0..many as i64 {
            // Rolled-back claims count.
            deal(&mut ledger, Fate::RolledBack, claim(&job("rated", n, 0), 1000 + n, 1000), 10 + n * 100, 20 + n * 100);
        }
        let found = found(|case| limits::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(many > rate), "{found:?}");
    }
}

#[test]
fn more_starts_of_a_group_than_its_rate() {
    let rate = QUEUES[queue("limited")].group_rate.expect("a rate");
    for (many, group) in [(rate, "g"), (rate + 1, "g"), (rate + 1, "other")] {
        let mut ledger = Ledger::default();
        for n in 0..many as i64 {
            let mut one = job("limited", n, 0);
            if n == 0 {
                one.group = Some(group.to_owned());
            }
            deal(&mut ledger, Fate::Committed, claim(&one, 1000 + n, 1), 10 + n * 100, 20 + n * 100);
        }
        let found = found(|case| limits::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(many > rate && group == "g"), "{found:?}");
    }
}

#[test]
fn a_job_in_the_hands_of_two() {
    let one = job("plain", 1, 0);
    for end in [500, 150] {
        let mut ledger = Ledger::default();
        deal(&mut ledger, Fate::Committed, claim(&one, 101, 10_000), 100, 110);
        deal(&mut ledger, Fate::Committed, ended(&one, 101), end, end + 10);
        deal(&mut ledger, Fate::Committed, claim(&one, 102, 10_000), 200, 210);
        let found = found(|case| limits::check(case, &holds(case)), &ledger, &World::default());
        assert_eq!(found.len(), usize::from(end == 500), "{found:?}");
    }
}

#[test]
fn a_lease_that_ends_before_what_a_heartbeat_has_answered() {
    let one = job("plain", 1, 0);
    for (finished, crashed, is_kept, is_wrong) in [
        (1_200_000, false, true, true),
        (1_200_000, false, false, true),
        (1_200_000, true, true, true),
        // A crash forgets a longer lease that was not committed.
        (1_200_000, true, false, false),
        (2_200_000, false, true, false),
    ] {
        let mut ledger = Ledger::default();
        deal(&mut ledger, Fate::Committed, claim(&one, 101, 200_000), 100, 110);
        let fate = if is_kept { Fate::Committed } else { Fate::RolledBack };
        deal(&mut ledger, fate, What::Extended { attempt: 101, until: 2_100_000, length: 2_000_000 }, 100_000, 100_010);
        let world = World { attempts: BTreeMap::from([(101, seen(1, "timed_out", finished))]), ..World::default() };
        let crashes: &[(Micros, Micros)] = if crashed { &[(500_000, 600_000)] } else { &[] };
        let case = |clock_was_set| Case { ledger: &ledger, world: &world, crashes, promotions: &[], clock_was_set };
        assert_eq!(lease::check(&case(true)), Vec::<String>::new(), "times of servers say nothing");
        let found = lease::check(&case(false));
        assert_eq!(found.len(), usize::from(is_wrong), "{finished} {crashed} {is_kept}: {found:?}");
    }
}

#[test]
fn a_heartbeat_that_was_not_answered_may_have_shortened_the_lease() {
    let one = job("plain", 1, 0);
    // The claim's lease is two seconds. The last heartbeat asks for 200 ms. If a later heartbeat is answered, that one
    // counts.
    for (finished, is_answered_later, is_wrong) in
        [(1_250_000, false, false), (1_150_000, false, true), (1_250_000, true, true), (3_200_000, true, false)]
    {
        let mut ledger = Ledger::default();
        deal(&mut ledger, Fate::Committed, claim(&one, 101, 2_000_000), 100, 110);
        let lost = What::ExtendLost { attempt: 101, length: 200_000 };
        deal(&mut ledger, Fate::Unknown, lost, 1_000_000, 1_000_010);
        if is_answered_later {
            let answered = What::Extended { attempt: 101, until: 3_100_000, length: 2_000_000 };
            deal(&mut ledger, Fate::Committed, answered, 1_100_000, 1_100_010);
        }
        let world = World { attempts: BTreeMap::from([(101, seen(1, "timed_out", finished))]), ..World::default() };
        let case = Case { ledger: &ledger, world: &world, crashes: &[], promotions: &[], clock_was_set: false };
        let found = lease::check(&case);
        assert_eq!(found.len(), usize::from(is_wrong), "{finished} {is_answered_later}: {found:?}");
    }
}

#[test]
fn a_job_that_is_after_another() {
    // For each case: the end of the first job, the condition of the second job, its state, and the time of its claim.
    // The first job ends at 1000.
    for (first, upon, second, claimed, is_wrong) in [
        ("completed", "completed", "completed", Some(1_100), false),
        ("completed", "completed", "completed", Some(900), true),
        ("completed", "completed", "held", None, true),
        ("completed", "completed", "skipped", None, true),
        ("completed", "failed", "skipped", None, false),
        ("completed", "failed", "completed", Some(1_100), true),
        ("dead", "completed", "held", None, false),
        ("dead", "completed", "completed", Some(1_100), true),
        ("dead", "failed", "completed", Some(1_100), false),
        ("dead", "failed", "held", None, true),
        ("cancelled", "completed", "skipped", None, false),
        ("cancelled", "completed", "held", None, true),
        ("cancelled", "ended", "skipped", None, true),
        ("cancelled", "ended", "completed", Some(1_100), false),
        ("held", "ended", "held", None, false),
        ("completed", "any", "completed", Some(1_100), false),
        ("completed", "any", "completed", Some(900), true),
        ("completed", "any", "held", None, true),
        ("completed", "any", "skipped", None, true),
        ("dead", "any", "held", None, false),
        ("dead", "any", "completed", Some(1_100), true),
        ("cancelled", "any", "skipped", None, false),
        ("cancelled", "any", "held", None, true),
        ("held", "any", "held", None, false),
    ] {
        let one = job("plain", 1, 0);
        let two = Job { after: vec![1], upon, ..job("chained", 2, 0) };
        let mut ledger = Ledger::default();
        enqueued(&mut ledger, &one, 10);
        enqueued(&mut ledger, &two, 20);
        let state = |queue: &str, state: &str| SeenJob {
            queue: queue.to_owned(),
            state: state.to_owned(),
            token: String::new(),
            flow: None,
        };
        let jobs = BTreeMap::from([(1, state("plain", first)), (2, state("chained", second))]);
        let mut attempts = BTreeMap::from([(101, seen(1, first, 1_000))]);
        attempts.extend(claimed.map(|at| (102, SeenAttempt { claimed_at: Some(at), ..seen(2, second, 2_000) })));
        let found = found(after::check, &ledger, &World { jobs, attempts, ..World::default() });
        assert_eq!(found.len(), usize::from(is_wrong), "{first} {upon} {second} {claimed:?}: {found:?}");
    }
}

#[test]
fn a_lost_connection_holds_until_its_last_answer() {
    let one = job("plain", 1, 0);
    let mut ledger = Ledger::default();
    deal(&mut ledger, Fate::RolledBack, claim(&one, 101, 200_000), 100, 110);
    let cut = ledger.deals.last_mut().expect("a deal");
    // The connection was lost during its next call, which the client noticed late.
    let what = What::ClaimLost { queues: vec![one.queue] };
    cut.facts.push(Fact { what, from: 150, to: 9_000, undone: None });
    (cut.is_cut, cut.end_from, cut.end_to) = (true, 9_000, 9_001);
    let case = Case { ledger: &ledger, world: &World::default(), crashes: &[], promotions: &[], clock_was_set: false };
    assert_eq!(holds(&case).iter().map(|hold| hold.until).collect::<Vec<_>>(), [150]);
}

#[test]
fn two_jobs_that_live_under_one_key() {
    for end in [500, 150] {
        let mut ledger = Ledger::default();
        let with_key = |id| Job { key: Some("k".to_owned()), ..job("keyed", id, 0) };
        enqueued(&mut ledger, &with_key(1), 10);
        deal(&mut ledger, Fate::Committed, ended(&with_key(1), 101), end, end + 1);
        enqueued(&mut ledger, &with_key(2), 200);
        let found = found(keys::check, &ledger, &World::default());
        assert_eq!(found.len(), usize::from(end == 500), "{found:?}");
    }
}

#[test]
fn a_renewal_that_is_lost() {
    // With `unique_for`, a call may come after the job has ended, and does nothing. The next job of the key may come
    // before the worker makes the run that was requested.
    for (token, unique_for, next, is_wrong) in [
        ("old", None, None, true),
        ("new", None, None, false),
        ("old", Some(1000), None, false),
        ("old", None, Some(300), false),
        ("old", None, Some(3_000_000), true),
    ] {
        let mut ledger = Ledger::default();
        let one = |token: &str, renews| Job {
            key: Some("k".to_owned()),
            token: token.to_owned(),
            renews,
            unique_for,
            ..job("keyed", 1, 0)
        };
        enqueued(&mut ledger, &one("old", false), 10);
        enqueued(&mut ledger, &one("new", true), 200);
        if let Some(at) = next {
            deal(&mut ledger, Fate::Committed, ended(&one("old", false), 101), 220, 230);
            enqueued(&mut ledger, &Job { id: 2, ..one("next", true) }, at);
        }
        let seen =
            SeenJob { queue: "keyed".to_owned(), state: "completed".to_owned(), token: token.to_owned(), flow: None };
        let world = World { jobs: BTreeMap::from([(1, seen)]), ..World::default() };
        let found = found(keys::check, &ledger, &world);
        assert_eq!(found.len(), usize::from(is_wrong), "{found:?}");
    }
}

#[test]
fn a_version_that_replaces_a_newer_one() {
    for token in ["older", "newer"] {
        let mut ledger = Ledger::default();
        let one = |token: &str, version| Job {
            key: Some("k".to_owned()),
            token: token.to_owned(),
            renews: true,
            version: Some(version),
            ..job("versioned", 1, 0)
        };
        enqueued(&mut ledger, &one("newer", 7), 10);
        enqueued(&mut ledger, &one("older", 5), 200);
        let seen = SeenJob {
            queue: "versioned".to_owned(),
            state: "completed".to_owned(),
            token: token.to_owned(),
            flow: None,
        };
        let world = World { jobs: BTreeMap::from([(1, seen)]), ..World::default() };
        let found = found(keys::check, &ledger, &world);
        assert_eq!(found.len(), usize::from(token == "older"), "{found:?}");
    }
}

#[test]
fn a_second_job_of_a_key_that_is_still_taken() {
    for (unique_for, is_wrong) in [(1000, true), (100, false)] {
        let mut ledger = Ledger::default();
        let one = |id| Job { key: Some("k".to_owned()), unique_for: Some(unique_for), ..job("timed", id, 0) };
        enqueued(&mut ledger, &one(1), 10);
        deal(&mut ledger, Fate::Committed, ended(&one(1), 101), 20, 30);
        enqueued(&mut ledger, &one(2), 200);
        let found = found(keys::check, &ledger, &World::default());
        assert_eq!(found.len(), usize::from(is_wrong), "{unique_for}: {found:?}");
    }
}

#[test]
fn more_that_wait_than_may() {
    let most = QUEUES[queue("narrow")].waiting.expect("a limit") as i64;
    for claimed in [false, true] {
        let mut ledger = Ledger::default();
        for id in 0..most {
            enqueued(&mut ledger, &job("narrow", id, 0), 10 + 10 * id);
        }
        if claimed {
            deal(&mut ledger, Fate::RolledBack, claim(&job("narrow", 0, 0), 101, 1000), 500, 510);
        }
        assert_eq!(found(waiting::check, &ledger, &World::default()), Vec::<String>::new());
        enqueued(&mut ledger, &job("narrow", most, 0), 600);
        assert_eq!(found(waiting::check, &ledger, &World::default()).len(), usize::from(!claimed));
    }
}

/// Returns a job that was enqueued, claimed and completed, with its effect, and the matching world.
pub fn complete() -> (Ledger, World) {
    let one = job("plain", 1, 0);
    let mut ledger = Ledger::default();
    enqueued(&mut ledger, &one, 10);
    deal(&mut ledger, Fate::Committed, claim(&one, 101, 1000), 100, 110);
    deal(&mut ledger, Fate::Committed, ended(&one, 101), 200, 210);
    let seen_job = SeenJob { queue: "plain".to_owned(), state: "completed".to_owned(), token: one.token, flow: None };
    let world = World {
        jobs: BTreeMap::from([(1, seen_job)]),
        attempts: BTreeMap::from([(101, seen(1, "completed", 205))]),
        effects: vec![(101, 1)],
    };
    (ledger, world)
}

type MakeWrong = fn(&mut Ledger, &mut World);

#[test]
fn whatever_is_lost_or_doubled() {
    let wrongs: [(&str, MakeWrong); 12] = [
        ("a committed job is lost", |_, world| world.jobs.clear()),
        ("never committed", |ledger, _| ledger.deals[0].fate = Fate::RolledBack),
        ("has not ended", |_, world| world.jobs.get_mut(&1).unwrap().state = "running".to_owned()),
        ("contents of another", |_, world| world.jobs.get_mut(&1).unwrap().token = "other".to_owned()),
        ("has had no effect", |_, world| world.effects.clear()),
        ("effect 2 times", |_, world| world.effects.push((101, 1))),
        ("not completed", |_, world| world.attempts.get_mut(&101).unwrap().state = "timed_out".to_owned()),
        ("claimed by deals", |ledger, _| ledger.deals.push(ledger.deals[1].clone())),
        ("ended twice", |ledger, _| ledger.deals.push(ledger.deals[2].clone())),
        ("was answered to be dead", |ledger, _| {
            let outcome = "dead".to_owned();
            deal(ledger, Fate::Committed, What::Answered { attempt: 101, outcome }, 150, 151);
        }),
        ("has had no effect", |ledger, world| {
            ledger.deals[2].facts[0].what = What::Ended { attempt: 101, job: 1, end: End::CompletedPerhaps };
            world.effects.clear();
        }),
        ("after it was lost", |ledger, _| {
            deal(ledger, Fate::RolledBack, What::Refused { attempt: 101 }, 150, 151);
        }),
    ];
    let (ledger, world) = complete();
    assert_eq!(found(loss::check, &ledger, &world), Vec::<String>::new());
    for (what, make_wrong) in wrongs {
        let (mut ledger, mut world) = complete();
        make_wrong(&mut ledger, &mut world);
        let found = found(loss::check, &ledger, &world);
        assert!(found.iter().any(|one| one.contains(what)), "{what}: {found:?}");
    }
}

#[test]
fn a_transaction_that_the_server_has_lost() {
    let (mut ledger, _) = complete();
    let numbers: Vec<i64> = ledger.deals.iter().map(|deal| deal.number).collect();
    assert_eq!(ledger.settle(&numbers), Vec::<String>::new());
    assert_eq!(ledger.settle(&numbers[1..]).len(), 1, "a committed one without its witness");
    ledger.deals[0].fate = Fate::RolledBack;
    assert_eq!(ledger.settle(&numbers).len(), 1, "a rolled back one with its witness");
    ledger.deals[0].fate = Fate::Unknown;
    assert_eq!(ledger.settle(&numbers[1..]), Vec::<String>::new());
    assert_eq!(ledger.deals[0].fate, Fate::RolledBack, "the witness decides");
}

#[test]
fn an_attempt_that_was_refused_by_what_a_promotion_has_lost() {
    // A worker's timeout was seen, but is missing on the server that took over.
    for promotions in [&[][..], &[(160, 170)]] {
        let (mut ledger, world) = complete();
        deal(&mut ledger, Fate::RolledBack, What::Refused { attempt: 101 }, 150, 151);
        let found = loss::check(&Case {
            ledger: &ledger,
            world: &world,
            crashes: promotions,
            promotions,
            clock_was_set: false,
        });
        assert_eq!(found.len(), usize::from(promotions.is_empty()), "{found:?}");
    }
}

#[test]
fn an_enqueue_whose_answer_was_lost_may_have_renewed_a_job_of_its_key() {
    for (key, is_wrong) in [("k", false), ("other", true)] {
        let (mut ledger, mut world) = complete();
        let one = Job { key: Some("k".to_owned()), ..job("keyed", 1, 0) };
        ledger.deals[0].facts[0].what = What::Enqueued(one.clone());
        let lost =
            What::EnqueueLost { queue: one.queue, key: Some(key.to_owned()), tokens: vec!["unheard".to_owned()] };
        deal(&mut ledger, Fate::Committed, lost, 120, 130);
        deal(&mut ledger, Fate::Committed, ended(&one, 102), 300, 310);
        world.attempts.insert(102, seen(1, "completed", 305));
        world.effects.push((102, 1));
        let seen = world.jobs.get_mut(&1).expect("the job");
        (seen.queue, seen.token) = ("keyed".to_owned(), "unheard".to_owned());
        let found = found(|case| [loss::check(case), keys::check(case)].concat(), &ledger, &world);
        assert_eq!(found.len(), usize::from(is_wrong), "{key}: {found:?}");
    }
}

#[test]
fn a_machine_that_is_slow_has_time_as_long_as_something_gets_less() {
    let mut patience = Patience::new(Duration::ZERO);
    thread::sleep(Duration::from_millis(1));
    assert!(!patience.is_over(10), "the first look");
    assert!(!patience.is_over(9), "one less");
    thread::sleep(Duration::from_millis(1));
    assert!(patience.is_over(9), "as many as before");
}
