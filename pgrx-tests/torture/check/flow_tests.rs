//! Like `tests`, for flows, steps and events.

use super::case::{SeenAttempt, SeenJob, World};
use super::tests::{deal, enqueued, found, job, seen};
use super::{flows, loss, topics};
use crate::ledger::{End, Fact, Fate, Job, Ledger, OwnFlow, What};

/// Adds a job of queue `flowing` in this state to the world, as a member of this flow if there is one.
fn flowing(world: &mut World, id: i64, state: &str, flow: Option<i64>) {
    let (queue, token) = ("flowing".to_owned(), String::new());
    world.jobs.insert(id, SeenJob { queue, state: state.to_owned(), token, flow });
}

#[test]
fn a_flow_that_runs_before_its_member_has_ended() {
    for (claimed_at, member, is_any, is_wrong) in [
        (90, "completed", false, true),
        (110, "completed", false, false),
        (110, "dead", false, true),
        (110, "cancelled", false, false),
        (90, "completed", true, true),
        (110, "completed", true, false),
        (110, "dead", true, true),
        (110, "cancelled", true, true),
    ] {
        let own_flow = Some(OwnFlow { runs: true, is_fail_fast: false, is_any });
        let (mut ledger, mut world) = (Ledger::default(), World::default());
        enqueued(&mut ledger, &Job { own_flow, ..job("flowing", 1, 0) }, 10);
        enqueued(&mut ledger, &Job { flow: Some(1), ..job("flowing", 2, 0) }, 20);
        flowing(&mut world, 1, "completed", None);
        flowing(&mut world, 2, member, Some(1));
        world.attempts.insert(21, SeenAttempt { claimed_at: Some(claimed_at), ..seen(1, "completed", 120) });
        world.attempts.insert(22, seen(2, member, 100));
        assert_eq!(!found(flows::check, &ledger, &world).is_empty(), is_wrong, "{claimed_at} {member} {is_any}");
    }
}

#[test]
fn a_flow_that_is_held_for_no_member() {
    for (member, is_any, is_wrong) in [
        ("completed", false, true),
        ("dead", false, false),
        ("held", false, false),
        ("completed", true, true),
        ("dead", true, false),
    ] {
        let (mut ledger, mut world) = (Ledger::default(), World::default());
        let own_flow = Some(OwnFlow { runs: true, is_fail_fast: false, is_any });
        enqueued(&mut ledger, &Job { own_flow, ..job("flowing", 1, 0) }, 10);
        // With upon => 'any', a dead member does not hold a flow whose first member has completed.
        if is_any {
            flowing(&mut world, 4, "dead", Some(1));
        }
        flowing(&mut world, 1, "held", None);
        flowing(&mut world, 2, member, Some(1));
        flowing(&mut world, 3, "dead", Some(2));
        assert_eq!(!found(flows::check, &ledger, &world).is_empty(), is_wrong, "{member}");
    }
}

#[test]
fn a_suspended_job_that_goes_on_before_what_it_has_made_has_ended() {
    for (claimed_at, until, is_wrong) in
        [(140, None, true), (160, None, false), (140, Some(145), true), (140, Some(135), false)]
    {
        let (mut ledger, mut world) = (Ledger::default(), World::default());
        enqueued(&mut ledger, &job("flowing", 1, 0), 10);
        enqueued(&mut ledger, &Job { flow: Some(1), ..job("flowing", 2, 0) }, 90);
        let suspended = What::Ended { attempt: 11, job: 1, end: End::Suspended { until } };
        let last = ledger.deals.last_mut().expect("a deal");
        last.facts.push(Fact { what: suspended, from: 91, to: 92, undone: None });
        flowing(&mut world, 1, "completed", None);
        flowing(&mut world, 2, "completed", Some(1));
        world.attempts.insert(11, SeenAttempt { claimed_at: Some(50), ..seen(1, "suspended", 100) });
        world.attempts.insert(21, SeenAttempt { claimed_at: Some(claimed_at), ..seen(1, "completed", 200) });
        world.attempts.insert(12, seen(2, "completed", 150));
        assert_eq!(!found(flows::check, &ledger, &world).is_empty(), is_wrong, "{claimed_at}");
    }
}

#[test]
fn a_step_that_is_forgotten_or_was_never_committed() {
    for (fate, is_done, is_wrong) in [
        (Fate::Committed, false, true),
        (Fate::Committed, true, false),
        (Fate::RolledBack, true, true),
        (Fate::RolledBack, false, false),
    ] {
        let mut ledger = Ledger::default();
        deal(&mut ledger, fate, What::StepDone { job: 1, name: "cut" }, 10, 11);
        deal(&mut ledger, Fate::Committed, What::StepSeen { job: 1, name: "cut", is_done }, 20, 21);
        assert_eq!(!found(flows::check, &ledger, &World::default()).is_empty(), is_wrong, "{fate:?} {is_done}");
    }
}

#[test]
fn an_event_that_has_reached_only_some_of_its_queues() {
    let mut ledger = Ledger::default();
    deal(&mut ledger, Fate::Committed, What::PublishLost { key: "mail.big", token: "e".to_owned() }, 10, 20);
    // Queues that keep nothing are not checked. The binding of `narrow` may have been refused.
    for (queues, is_wrong) in [
        (&["plain", "limited"][..], false),
        (&["plain", "limited", "narrow"], false),
        (&["plain"], true),
        (&["plain", "limited", "limited"], true),
        (&["plain", "limited", "strict"], true),
        (&["plain", "limited", "keyed"], true),
        (&[], true),
    ] {
        let mut world = World::default();
        for (id, name) in queues.iter().enumerate() {
            let seen =
                SeenJob { queue: (*name).to_owned(), state: "completed".to_owned(), token: "e".to_owned(), flow: None };
            world.jobs.insert(id as i64, seen);
        }
        let found = found(topics::check, &ledger, &world);
        assert_eq!(found.len(), usize::from(is_wrong), "{queues:?}: {found:?}");
    }
}

#[test]
fn a_copy_that_was_forgotten_is_no_lost_one() {
    let mut ledger = Ledger::default();
    deal(&mut ledger, Fate::Committed, What::PublishLost { key: "mail.big", token: "e".to_owned() }, 10, 20);
    let seen = |queue: &str, token: &str| SeenJob {
        queue: queue.to_owned(),
        state: "completed".to_owned(),
        token: token.to_owned(),
        flow: None,
    };
    let mut world = World::default();
    world.jobs.insert(1, seen("plain", "e"));
    world.jobs.insert(2, seen("limited", ""));
    assert_eq!(found(topics::check, &ledger, &world).len(), 1, "nobody has forgotten it");
    assert!(!found(loss::check, &ledger, &world).is_empty(), "nor enqueued it");
    deal(&mut ledger, Fate::Committed, What::Forgotten { job: 2 }, 30, 40);
    assert_eq!(found(topics::check, &ledger, &world), Vec::<String>::new());
    assert_eq!(found(loss::check, &ledger, &world), Vec::<String>::new());
}
