//! What befalls the primary, one after the other, and what is measured of it.

use std::sync::atomic::Ordering;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use queue_tests::{StopAtEnd, wait};

use crate::Options;
use crate::judge::{self, Verdict};
use crate::ledger::Ledger;
use crate::load::{self, Load};
use crate::log;
use crate::node::{Member, Node};
use crate::place::{NO_SPLIT, NODES, Place};

/// A promotion is to be followed by a claim within: the median of all, since a busy machine delays a single one.
const CLAIM_WITHIN_MS: i64 = 1000;

/// How long a node may take to come back; a split takes the `ttl` besides.
const PATIENCE: Duration = Duration::from_secs(120);

const PRODUCERS: usize = 2;
const WORKERS: usize = 4;

/// What befalls the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Switchover,
    KillServer,
    /// And nothing starts it again before another server is promoted.
    KillPatroni,
    /// It reaches neither the other nodes nor their etcd; clients still reach it.
    CutOff,
    /// Nothing reaches it any more.
    CutOffFromAll,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::KillServer => "kill -9 of the server",
            Self::KillPatroni => "kill -9 of Patroni",
            Self::CutOff => "cut off from the others",
            Self::CutOffFromAll => "cut off from all",
        }
    }
}

/// What was measured of an event.
struct Outcome {
    event: Event,
    /// From the event to the first claim on another server, in milliseconds.
    outage_ms: i64,
    /// From the promotion's beginning to that claim; where the old server goes on taking calls, from its stop.
    promotion_ms: i64,
    /// How the old primary came back.
    rejoined: Rejoined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rejoined {
    ByRewind,
    /// It had nothing that the new primary lacks.
    AsItWas,
    ByCopy,
}

/// Runs the drill, prints what came of it, and tells whether all of it is as promised.
pub fn drill(place: &Place, options: &Options) -> bool {
    let nodes: Vec<Node> = (0..NODES).map(|number| Node::new(place, number)).collect();
    let start = Instant::now();
    println!("starting {NODES} nodes");
    nodes.iter().for_each(Node::start_etcd);
    nodes.iter().for_each(Node::start_patroni);
    wait_whole(&nodes);
    let (mut client, _) = load::connect(place, 0).expect("a primary");
    client.batch_execute(load::SETUP).expect("the queue");

    let ledger = Ledger::new(&place.dir.join("ledger"));
    let load = Load::new(place, &ledger);
    let mut outcomes = Vec::new();
    scope(|scope| {
        let _over = StopAtEnd(&load.is_over);
        for number in 0..PRODUCERS {
            scope.spawn({
                let load = &load;
                move || load.produce(number)
            });
        }
        for number in 0..WORKERS {
            scope.spawn({
                let load = &load;
                move || load.work(number)
            });
        }
        for event in events(place, options) {
            // Some load between two events.
            sleep(Duration::from_secs(2));
            let outcome = befall(&nodes, place, &ledger, event, options);
            print_outcome(&outcome);
            outcomes.push(outcome);
            wait_whole(&nodes);
        }
        load.drain();
        load.is_over.store(true, Ordering::Relaxed);
    });

    let (mut client, _) = load::connect(place, 0).expect("a primary");
    let verdict = judge::judge(&ledger.facts(), &judge::effects(&mut client), 500);
    let faults = client.query("SELECT name, problem FROM queue.check()", &[]).expect("queue.check()");
    let faults: Vec<String> =
        faults.iter().map(|row| format!("{}: {}", row.get::<_, &str>(0), row.get::<_, &str>(1))).collect();
    print_verdict(&verdict, &faults);
    if !place.has_networks() {
        println!("LEFT OUT:     the primary cut off from the others, and from all: {NO_SPLIT}");
    }
    println!("first claim:  {} ms after a promotion, the median", median_ms(&outcomes));
    println!("it took {} s", start.elapsed().as_secs());
    is_promised(&outcomes, &verdict, &faults)
}

fn events(place: &Place, options: &Options) -> Vec<Event> {
    let mut events = vec![Event::Switchover];
    events.extend(vec![Event::KillServer; options.kills]);
    events.push(Event::KillPatroni);
    if place.has_networks() {
        events.extend([Event::CutOff, Event::CutOffFromAll]);
    }
    events
}

/// The nodes as any of them sees them.
fn members(nodes: &[Node]) -> Vec<Member> {
    nodes.iter().map(Node::members).find(|members| !members.is_empty()).unwrap_or_default()
}

/// The primary of these members, if the others stream from it and one of them is synchronous.
fn whole(members: &[Member], nodes: &[Node]) -> Option<usize> {
    let leader = members.iter().find(|member| member.role == "leader")?;
    let is_well =
        |member: &Member| member.timeline == leader.timeline && ["running", "streaming"].contains(&&*member.state);
    let is_whole = members.len() == NODES
        && members.iter().all(is_well)
        && members.iter().any(|member| member.role == "sync_standby");
    is_whole.then(|| nodes.iter().position(|node| node.name() == leader.name)).flatten()
}

/// Waits until there is a primary, the others stream from it, and one of them is synchronous, as all of them see it: one that was
/// cut off tells for a while of what it knew before. Returns which is the primary.
fn wait_whole(nodes: &[Node]) -> usize {
    wait::within("all nodes are well, and agree", PATIENCE, || {
        let mut seen = nodes.iter().map(|node| whole(&node.members(), nodes));
        let first = seen.next()??;
        seen.all(|other| other == Some(first)).then_some(first)
    })
}

/// Lets the event happen and waits until another server is the primary and the old one is back.
fn befall(nodes: &[Node], place: &Place, ledger: &Ledger, event: Event, options: &Options) -> Outcome {
    let old = wait_whole(nodes);
    let promoted: Vec<usize> = nodes.iter().map(|node| promotions(node).len()).collect();
    let before = nodes[old].log().len();
    let start = log::now_ms();
    match event {
        Event::Switchover => {
            let sync = members(nodes).into_iter().find(|member| member.role == "sync_standby").expect("a standby");
            let body = format!("{{\"leader\": \"{}\", \"candidate\": \"{}\"}}", nodes[old].name(), sync.name);
            let (status, answer) = nodes[old].ask("POST", "/switchover", &body).expect("an answer of Patroni");
            assert_eq!(status, 200, "{answer}");
        }
        Event::KillServer => nodes[old].kill_server(),
        Event::KillPatroni => nodes[old].kill_patroni(),
        Event::CutOff => place.cut_off(old, false, true),
        Event::CutOffFromAll => place.cut_off(old, true, true),
    }
    let (new, promoted_at) = wait::within("another server is promoted", PATIENCE, || {
        let others = (0..nodes.len()).filter(|&node| node != old);
        others.into_iter().find_map(|node| Some((node, *promotions(&nodes[node]).get(promoted[node])?)))
    });
    let promoted_at = if event == Event::KillPatroni {
        // Until now the old server took calls and acknowledged none, since no standby confirms its commits any more. A
        // Patroni that finds it running forgets for a moment which standbys it waits for, and it would acknowledge them all.
        if !options.no_fence {
            nodes[old].fence();
        }
        nodes[old].start_patroni();
        let stopped = || log::times(nodes[old].log().get(before..)?, "shutdown request").first().copied();
        wait::within("the old server is stopped", PATIENCE, stopped).max(promoted_at)
    } else {
        promoted_at
    };
    let claimed_at = wait::within("a job is claimed from it", PATIENCE, || ledger.first_claim(new, promoted_at));
    match event {
        Event::CutOff => place.cut_off(old, false, false),
        Event::CutOffFromAll => place.cut_off(old, true, false),
        Event::Switchover | Event::KillServer | Event::KillPatroni => {}
    }
    wait_whole(nodes);
    let said = nodes[old].log().split_off(before);
    let rejoined = if said.contains("bootstrap from leader") {
        Rejoined::ByCopy
    } else if said.contains("pg_rewind exit code=0") {
        Rejoined::ByRewind
    } else {
        Rejoined::AsItWas
    };
    Outcome { event, outage_ms: claimed_at - start, promotion_ms: claimed_at - promoted_at, rejoined }
}

/// When the node's server was told to become the primary.
fn promotions(node: &Node) -> Vec<i64> {
    log::times(&node.log(), "received promote request")
}

fn print_outcome(outcome: &Outcome) {
    println!(
        "{:24}  claims after {:6} ms, {:4} ms after {}; the old primary came back {}",
        outcome.event.name(),
        outcome.outage_ms,
        outcome.promotion_ms,
        if outcome.event == Event::KillPatroni { "the old server's end" } else { "the promotion began" },
        match outcome.rejoined {
            Rejoined::ByRewind => "by pg_rewind",
            Rejoined::AsItWas => "as it was: nothing to rewind",
            Rejoined::ByCopy => "as a new copy",
        }
    );
}

/// The median of the times from a promotion to the first claim.
fn median_ms(outcomes: &[Outcome]) -> i64 {
    let mut times: Vec<i64> = outcomes.iter().map(|outcome| outcome.promotion_ms).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn print_verdict(verdict: &Verdict, faults: &[String]) {
    println!("acknowledged: {} enqueued, {} completed", verdict.enqueued, verdict.completed);
    println!("lost:         {} jobs, {} completions", verdict.lost.len(), verdict.undone.len());
    println!("done twice:   {}", verdict.twice.len());
    println!(
        "slots:        {}, of which {} left out, {} doubled",
        verdict.slots,
        verdict.slots_missing.len(),
        verdict.slots_twice.len()
    );
    println!("queue.check:  {} faults", faults.len());
}

fn is_promised(outcomes: &[Outcome], verdict: &Verdict, faults: &[String]) -> bool {
    let mut broken: Vec<String> = faults.to_vec();
    for (what, values) in [
        ("lost jobs", &verdict.lost),
        ("lost completions", &verdict.undone),
        ("done twice", &verdict.twice),
        ("invented", &verdict.unknown),
        ("slots left out", &verdict.slots_missing),
        ("slots doubled", &verdict.slots_twice),
    ] {
        if !values.is_empty() {
            broken.push(format!("{what}: {values:?}"));
        }
    }
    if verdict.enqueued == 0 || verdict.completed == 0 || verdict.slots == 0 {
        broken.push("nothing was done".to_owned());
    }
    for outcome in outcomes {
        let name = outcome.event.name();
        if outcome.rejoined == Rejoined::ByCopy {
            broken.push(format!("{name}: the old primary had to be copied"));
        }
    }
    let median = median_ms(outcomes);
    if median >= CLAIM_WITHIN_MS {
        broken.push(format!("half of the first claims came more than {median} ms after the promotion"));
    }
    if outcomes.len() > 3 && !outcomes.iter().any(|outcome| outcome.rejoined == Rejoined::ByRewind) {
        broken.push("pg_rewind was never needed: the drill did not drill it".to_owned());
    }
    broken.iter().for_each(|what| println!("BROKEN: {what}"));
    broken.is_empty()
}
