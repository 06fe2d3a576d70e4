//! Lets the events happen one after the other, and measures how the cluster recovers.

use std::sync::atomic::Ordering;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use queue_tests::random::Random;
use queue_tests::{StopAtEnd, wait};

use crate::event::Event;
use crate::judge::{self, Verdict};
use crate::ledger::{Fact, Ledger};
use crate::load::{self, Load};
use crate::log;
use crate::node::{Member, Node};
use crate::options::Options;
use crate::place::{NO_SPLIT, NODES, Place};

/// A claim must follow a promotion within this time. The median of all events counts, since a busy machine delays a
/// single one.
const CLAIM_WITHIN_MS: i64 = 1000;

/// How long a node may take to return. A split takes Patroni's `ttl` in addition.
const PATIENCE: Duration = Duration::from_secs(120);

const PRODUCERS: usize = 2;
const WORKERS: usize = 4;

/// The measurements of an event.
struct Outcome {
    event: Event,
    /// From the event to the first claim on another server, in milliseconds.
    outage_ms: i64,
    /// From the beginning of the promotion to that claim. If the old server still takes calls, the time begins when it
    /// stops.
    promotion_ms: i64,
    /// How the old primary returned.
    rejoined: Rejoined,
    /// It took over itself, because no other server had everything that it had acknowledged.
    is_same: bool,
    /// More servers were promoted than the one that took over. Acknowledged work may be lost.
    is_contested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rejoined {
    ByRewind,
    /// The old primary had nothing that the new primary lacks.
    AsItWas,
    ByCopy,
}

/// What an event acts on.
struct Drill<'a> {
    nodes: &'a [Node<'a>],
    place: &'a Place,
    ledger: &'a Ledger,
    options: &'a Options,
}

/// Runs the drill and prints the results. Returns true if all promises were kept.
pub fn drill(place: &Place, options: &Options) -> bool {
    let nodes: Vec<Node> = (0..NODES).map(|number| Node::new(place, number)).collect();
    let start = Instant::now();
    println!("starting {NODES} nodes");
    nodes.iter().for_each(Node::start_etcd);
    nodes.iter().for_each(Node::start_patroni);
    wait_whole(&nodes);
    println!("Patroni {}", nodes[0].patroni_version().expect("an answer of Patroni"));
    let (mut client, _) = load::connect(place, 0).expect("a primary");
    client.batch_execute(load::SETUP).expect("the queue");

    let ledger = Ledger::new(&place.dir.join("ledger"));
    let load = Load::new(place, &ledger);
    let drill = Drill { nodes: &nodes, place, ledger: &ledger, options };
    let mut random = Random::new(log::now_ms().unsigned_abs());
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
            // Lets the load run between two events. Each event comes at another moment of Patroni's cycle of two
            // seconds.
            sleep(Duration::from_millis(2000 + random.below(2000)));
            let outcome = befall(&drill, event, &mut random);
            print_outcome(&outcome);
            outcomes.push(outcome);
            wait_whole(&nodes);
        }
        load.drain();
        load.is_over.store(true, Ordering::Relaxed);
    });

    let (mut client, _) = load::connect(place, 0).expect("a primary");
    let facts = ledger.facts();
    let verdict = judge::judge(&facts, &judge::effects(&mut client), 500);
    let faults = client.query("SELECT name, problem FROM queue.check()", &[]).expect("queue.check()");
    let faults: Vec<String> =
        faults.iter().map(|row| format!("{}: {}", row.get::<_, &str>(0), row.get::<_, &str>(1))).collect();
    let promoted: usize = nodes.iter().map(|node| promotions(node).len()).sum();
    print_verdict(&verdict, &faults);
    print_losses(&facts, &verdict);
    if !place.has_networks() {
        println!("LEFT OUT:     the primary cut off from the others, from all, and frozen: {NO_SPLIT}");
    }
    println!("first claim:  {} ms after a promotion, the median", median_ms(&outcomes));
    println!("it took {} s", start.elapsed().as_secs());
    is_promised(options, &outcomes, promoted, &verdict, &faults)
}

fn events(place: &Place, options: &Options) -> Vec<Event> {
    let mut events = options.only.clone();
    if events.is_empty() {
        events.push(Event::Switchover);
        events.extend(vec![Event::KillServer; options.kills]);
        events.extend([Event::KillTwice, Event::KillBoth, Event::KillPatroni]);
        events.extend([Event::CutOff, Event::CutOffFromAll, Event::Freeze]);
    }
    let takes_networks = |event: &Event| matches!(event, Event::CutOff | Event::CutOffFromAll | Event::Freeze);
    events.retain(|event| place.has_networks() || !takes_networks(event));
    events.repeat(options.rounds)
}

/// Returns the nodes as one of them sees them.
fn members(nodes: &[Node]) -> Vec<Member> {
    nodes.iter().map(Node::members).find(|members| !members.is_empty()).unwrap_or_default()
}

/// Returns the primary of these members, if the others stream from it and one of them is synchronous.
fn whole(members: &[Member], nodes: &[Node]) -> Option<usize> {
    let leader = members.iter().find(|member| member.role == "leader")?;
    let is_well =
        |member: &Member| member.timeline == leader.timeline && ["running", "streaming"].contains(&&*member.state);
    let is_whole = members.len() == NODES
        && members.iter().all(is_well)
        && members.iter().any(|member| member.role == "sync_standby");
    is_whole.then(|| nodes.iter().position(|node| node.name() == leader.name)).flatten()
}

/// Waits until all nodes agree that there is a primary, that the others stream from it, and that one of them is
/// synchronous. A node that was cut off reports old facts for a while. Returns the primary.
fn wait_whole(nodes: &[Node]) -> usize {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= PATIENCE;
        let seen: Vec<Vec<Member>> = nodes.iter().map(Node::members).collect();
        let mut primaries = seen.iter().map(|members| whole(members, nodes));
        if let Some(primary) = primaries.next().flatten().filter(|&first| primaries.all(|other| other == Some(first))) {
            return primary;
        }
        if is_last {
            for (node, members) in nodes.iter().zip(&seen) {
                let members: Vec<String> = members.iter().map(Member::to_string).collect();
                println!("{} sees: {}", node.name(), members.join(", "));
            }
            panic!("after {PATIENCE:?} it was not true that all nodes are well, and agree");
        }
        sleep(Duration::from_millis(100));
    }
}

/// Lets the event happen. Waits until a server has taken over and all others have returned.
fn befall(drill: &Drill, event: Event, random: &mut Random) -> Outcome {
    let Drill { nodes, place, ledger, options } = drill;
    let old = wait_whole(nodes);
    let standby = members(nodes).into_iter().find(|member| member.role == "sync_standby").expect("a standby");
    let before: Vec<usize> = nodes.iter().map(|node| node.log().len()).collect();
    let first = log::now_ms();
    match event {
        Event::Switchover => {
            let body = format!("{{\"leader\": \"{}\", \"candidate\": \"{}\"}}", nodes[old].name(), standby.name);
            let (status, answer) = nodes[old].ask("POST", "/switchover", &body).expect("an answer of Patroni");
            assert_eq!(status, 200, "{answer}");
        }
        Event::KillServer | Event::KillTwice => nodes[old].kill_server(),
        Event::KillBoth => {
            nodes.iter().find(|node| node.name() == standby.name).expect("the standby's node").kill_server();
            // Patroni names another standby within one or two of its cycles. So this moment is before, during or after
            // that.
            sleep(Duration::from_millis(random.below(5000)));
            nodes[old].kill_server();
        }
        Event::KillPatroni => nodes[old].kill_patroni(),
        Event::CutOff => place.cut_off(old, false, true),
        Event::CutOffFromAll => place.cut_off(old, true, true),
        Event::Freeze => {
            place.cut_off(old, true, true);
            nodes[old].freeze(true);
        }
    }
    // A server that is killed before it has a standby restarts by itself: no other server has what it acknowledged.
    let (new, promoted_at) = wait_promotion(nodes, first, (event != Event::KillBoth).then_some(old));
    let (start, killed, new, promoted_at) = if event == Event::KillTwice {
        wait_claim(ledger, new, promoted_at);
        sleep(Duration::from_millis(random.below(3000)));
        let second = log::now_ms();
        nodes[new].kill_server();
        let killed = new;
        let (new, promoted_at) = wait_promotion(nodes, second, None);
        (second, killed, new, promoted_at)
    } else {
        (first, old, new, promoted_at)
    };
    let promoted_at = if event == Event::KillPatroni {
        // Until now the old server took calls and acknowledged none, because no standby confirms its commits any more.
        // A Patroni 3.0 that finds it running briefly forgets which standbys it waits for. Then the server would
        // acknowledge all of them.
        if !options.no_fence {
            nodes[old].fence();
        }
        nodes[old].start_patroni();
        let stopped = || log::times(nodes[old].log().get(before[old]..)?, "shutdown request").first().copied();
        wait::within("the old server is stopped", PATIENCE, stopped).max(promoted_at)
    } else {
        promoted_at
    };
    let claimed_at = wait_claim(ledger, new, promoted_at);
    match event {
        Event::CutOff => place.cut_off(old, false, false),
        Event::CutOffFromAll => place.cut_off(old, true, false),
        Event::Freeze => {
            place.cut_off(old, true, false);
            nodes[old].freeze(false);
        }
        Event::Switchover | Event::KillServer | Event::KillTwice | Event::KillBoth | Event::KillPatroni => {}
    }
    let primary = wait_whole(nodes);
    let promoted = nodes.iter().flat_map(promotions).filter(|&at| at >= first).count();
    let said: Vec<String> = nodes.iter().zip(before).map(|(node, before)| node.log().split_off(before)).collect();
    let rejoined = if said.iter().any(|said| said.contains("bootstrap from leader")) {
        Rejoined::ByCopy
    } else if said[old].contains("pg_rewind exit code=0") {
        Rejoined::ByRewind
    } else {
        Rejoined::AsItWas
    };
    Outcome {
        event,
        outage_ms: claimed_at - start,
        promotion_ms: claimed_at - promoted_at,
        rejoined,
        is_same: new == killed,
        is_contested: primary != new || promoted != event.promotions(),
    }
}

/// Waits until a server other than this one becomes the primary. Returns the server and when its promotion began.
fn wait_promotion(nodes: &[Node], since_ms: i64, except: Option<usize>) -> (usize, i64) {
    wait::within("a server is promoted", PATIENCE, || {
        let promoted = |node: usize| Some((node, promotions(&nodes[node]).into_iter().find(|&at| at >= since_ms)?));
        (0..nodes.len()).filter(|&node| Some(node) != except).find_map(promoted)
    })
}

/// Waits until a job was claimed from the node. Returns when.
fn wait_claim(ledger: &Ledger, node: usize, since_ms: i64) -> i64 {
    wait::within("a job is claimed from it", PATIENCE, || ledger.first_claim(node, since_ms))
}

/// Returns when the node's server was told to become the primary.
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
            _ if outcome.is_same => "as the primary: none had all it had acknowledged",
            Rejoined::ByRewind => "by pg_rewind",
            Rejoined::AsItWas => "as it was: nothing to rewind",
            Rejoined::ByCopy => "as a new copy",
        }
    );
}

/// Returns the median of the times from a promotion to the first claim.
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

/// Returns when the lost work was acknowledged, and by which nodes.
fn print_losses(facts: &[Fact], verdict: &Verdict) {
    for node in 0..NODES {
        let times = facts.iter().filter_map(|fact| match *fact {
            Fact::Enqueued { token, at_ms, node: by } if by == node && verdict.lost.contains(&token) => Some(at_ms),
            Fact::Completed { job_id, at_ms, node: by } if by == node && verdict.undone.contains(&job_id) => {
                Some(at_ms)
            }
            _ => None,
        });
        let times: Vec<i64> = times.collect();
        if let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) {
            println!("{} of these were acknowledged by node{node}, from {first} to {last} ms", times.len());
        }
    }
}

fn is_promised(options: &Options, outcomes: &[Outcome], promoted: usize, verdict: &Verdict, faults: &[String]) -> bool {
    let mut broken: Vec<String> = faults.to_vec();
    let expected: usize = outcomes.iter().map(|outcome| outcome.event.promotions()).sum();
    if promoted != expected {
        broken.push(format!("{promoted} promotions, where {expected} were called for"));
    }
    for (what, values) in [
        ("lost jobs", &verdict.lost),
        ("lost completions", &verdict.undone),
        ("done twice", &verdict.twice),
        ("invented", &verdict.unknown),
        ("slots left out", &verdict.slots_missing),
        ("slots doubled", &verdict.slots_twice),
    ] {
        if !values.is_empty() {
            let more = if values.len() > 10 { ", ..." } else { "" };
            let first: Vec<String> = values.iter().take(10).map(i64::to_string).collect();
            broken.push(format!("{} {what}: {}{more}", values.len(), first.join(", ")));
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
        if outcome.is_contested {
            broken.push(format!("{name}: the server that took over was replaced, though nothing befell it"));
        }
    }
    let median = median_ms(outcomes);
    if median >= CLAIM_WITHIN_MS {
        broken.push(format!("half of the first claims came more than {median} ms after the promotion"));
    }
    if options.only.is_empty()
        && options.kills > 0
        && !outcomes.iter().any(|outcome| outcome.rejoined == Rejoined::ByRewind)
    {
        broken.push("pg_rewind was never needed: the drill did not drill it".to_owned());
    }
    broken.iter().for_each(|what| println!("BROKEN: {what}"));
    broken.is_empty()
}
