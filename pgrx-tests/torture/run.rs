//! One run: it sets up the servers, runs all clients and faults for the time, drains the queues with honest workers,
//! and checks.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::random::Random;
use queue_tests::{Cluster, error};

use crate::ledger::{Deal, Ledger, Micros};
use crate::options::Options;
use crate::place::{DATABASE, Place};
use crate::plan::{self, QUEUES};
use crate::session::Session;
use crate::shared::{Patience, SHOWN, Torture, short};
use crate::{beside, check, faults, flows, manager, producer, worker};

/// The time during which honest workers may make no progress.
const DRAIN: Duration = Duration::from_secs(120);

/// In this many of 1,000 cases a process pauses at a fault point, for at most this many milliseconds.
const DELAYS: (u32, u32) = (4, 30);

type Work = fn(&mut Session<'_>);

/// Producers, workers, managers and the others: their names, numbers and work.
const CLIENTS: &[(&str, usize, Work)] = &[
    ("producer", 3, producer::run),
    ("worker", 6, worker::run),
    ("manager", 2, manager::run),
    ("notary", 1, manager::notary),
    ("gauge", 1, beside::gauge),
    ("dashboard", 1, beside::look),
    ("auditor", 1, beside::audit),
    ("administrator", 1, beside::administrate),
];

/// The clients that go on until no job is left.
const LAST: [&str; 2] = ["worker", "notary"];

/// How often each verb got each answer.
pub type Counts = BTreeMap<(String, String), u64>;

/// Runs everything. Returns true if there are no findings.
pub fn run(options: &Options) -> bool {
    let options = Options { without: options.without.clone(), only: options.only.clone(), ..*options };
    println!("torture: seed {}, {} minutes", options.seed(), options.minutes);
    let mut random = Random::new(options.seed());
    let settings = plan::settings(&mut random);
    println!(
        "settings: {}",
        settings.iter().filter(|line| line.contains("max_")).cloned().collect::<Vec<_>>().join(", ")
    );
    let cluster = settings.iter().fold(Cluster::new(), |cluster, line| cluster.conf(line)).start();
    set_up(&cluster);
    if options.has("delays") {
        cluster.delay_points(DELAYS.0, DELAYS.1);
    }
    let torture = Torture {
        place: Place::new(cluster),
        options,
        is_over: AtomicBool::new(false),
        is_drained: AtomicBool::new(false),
        waiting: AtomicI64::new(0),
        jobs: Mutex::default(),
        flows: Mutex::default(),
        findings: Mutex::default(),
        crashes: Mutex::default(),
        promotions: Mutex::default(),
    };
    let mut deals: Vec<Deal> = Vec::new();
    let mut counts = Counts::new();
    let mut faults = BTreeMap::new();
    thread::scope(|scope| {
        let torture = &torture;
        let mut threads = Vec::new();
        for (name, many, work) in CLIENTS {
            if *name == "administrator" && !torture.options.has("beside") {
                continue;
            }
            for _ in 0..*many {
                let number = threads.len();
                let thread = scope.spawn(move || {
                    let mut session = Session::new(torture, number);
                    work(&mut session);
                    (session.deals, session.counts)
                });
                threads.push((*name, thread));
            }
        }
        let saboteur = scope.spawn(move || faults::run(torture));
        let length = Duration::from_secs_f64(torture.options.minutes * 60.0);
        let end = Instant::now() + length;
        while Instant::now() < end && !saboteur.is_finished() {
            thread::sleep(Duration::from_millis(100));
        }
        torture.is_over.store(true, Ordering::Relaxed);
        match saboteur.join() {
            Ok(counted) => faults = counted,
            Err(_) => torture.find("the saboteur gave up: see above".to_owned()),
        }
        torture.place.primary().delay_points(0, 0);
        let mut end = |(_, thread): (_, ScopedJoinHandle<'_, (Vec<Deal>, Counts)>)| match thread.join() {
            Ok((done, counted)) => {
                deals.extend(done);
                for (what, count) in counted {
                    *counts.entry(what).or_default() += count;
                }
            }
            Err(_) => torture.find("a client gave up: see above".to_owned()),
        };
        // The backlog is final only when no client enqueues and no schedule is resumed.
        let (last, first): (Vec<_>, Vec<_>) = threads.into_iter().partition(|(name, _)| LAST.contains(name));
        first.into_iter().for_each(&mut end);
        drain(torture);
        torture.is_drained.store(true, Ordering::Relaxed);
        last.into_iter().for_each(&mut end);
    });
    let crashes = torture.crashes.lock().unwrap().clone();
    let mut ledger = Ledger { deals };
    let promotions = torture.promotions.lock().unwrap().clone();
    for finding in check::all(&torture, &mut ledger, &crashes, &promotions) {
        torture.find(finding);
    }
    report(&counts, &faults, &ledger);
    end(torture, &ledger, &crashes)
}

fn set_up(cluster: &Cluster) {
    let mut client = cluster.create_database(DATABASE);
    let mut run = |sql: &str| client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    // The tables have no keys, so that doubles are counted and not prevented.
    run("CREATE TABLE witness (deal bigint)");
    run("CREATE TABLE effect (attempt bigint, job_id bigint)");
    for queue in QUEUES {
        run(&plan::create(queue));
    }
    run(&format!("SELECT queue.create_topic('{}')", plan::TOPIC));
    for binding in plan::BINDINGS {
        run(&binding.sql());
    }
    run(&format!("SELECT queue.schedule('tick', 'ticking', every => '{} ms', missed => 'all')", check::TICK_MS));
}

/// Waits until no job lives, then does the worker's duties, and waits again.
fn drain(torture: &Torture) {
    let living = "SELECT (SELECT count(*) FROM queue.jobs WHERE state IN ('ready', 'scheduled', 'retrying', 'running'))
                      + (SELECT count(*) FROM pg_prepared_xacts)";
    let mut client = torture.place.connection("drain");
    let mut patience = Patience::new(DRAIN);
    let mut is_maintained = false;
    for queue in QUEUES {
        let _ = client.query("SELECT queue.resume($1)", &[&queue.name]);
    }
    if let Err(e) = client.batch_execute("SELECT queue.pause_schedule(name) FROM queue.schedules") {
        torture.find(format!("the schedules cannot be paused: {e:?}"));
    }
    if let Err(e) = seal(&mut client) {
        torture.find(format!("the flows cannot be sealed: {e:?}"));
    }
    loop {
        match client.query_one(living, &[]).map(|row| row.get::<_, i64>(0)) {
            Ok(0) if is_maintained => return,
            Ok(left) => {
                if left == 0 && !is_maintained {
                    // Suspended jobs go on at their times.
                    thread::sleep(Duration::from_micros(flows::MAX_WAIT_US as u64));
                }
                is_maintained = left == 0;
                if is_maintained && let Err(e) = client.batch_execute("SELECT queue.maintain()") {
                    torture.find(format!("queue.maintain: {e:?}"));
                }
                if patience.is_over(left) {
                    break;
                }
            }
            Err(e) => {
                torture.find(format!("a look at what is left: {e:?}"));
                break;
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
    let left = torture.place.primary().psql_in(
        DATABASE,
        "SELECT queue_name, stage, state, count(*), min(job_id) FROM queue.jobs
         WHERE state IN ('ready', 'scheduled', 'retrying', 'running') GROUP BY 1, 2, 3;
         SELECT * FROM queue.stats; SELECT * FROM queue_internal.running_now() LIMIT 20;
         SELECT name, detail FROM queue.doctor() WHERE NOT ok; SELECT * FROM pg_prepared_xacts;",
    );
    torture.find(format!("stuck: jobs are left after {DRAIN:?} of honest work in which none has ended\n{left}"));
}

/// Seals all open flows so that they can end. A flow that has ended or is being changed is tried again.
fn seal(client: &mut Client) -> Result<(), postgres::Error> {
    let mut last = None;
    for _ in 0..100 {
        last = None;
        for row in client.query("SELECT job_id FROM queue.flows WHERE state = 'held'", &[])? {
            let sealed = client.execute("SELECT queue.seal($1)", &[&row.get::<_, i64>(0)]);
            last = sealed.err().filter(|e| error::code(e) != "55000").or(last);
        }
        if last.is_none() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    last.map_or(Ok(()), Err)
}

fn report(counts: &Counts, faults: &BTreeMap<String, u64>, ledger: &Ledger) {
    let mut verbs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for ((verb, answer), count) in counts {
        verbs.entry(verb).or_default().push(format!("{answer} {count}"));
    }
    println!("verbs and their answers:");
    for (verb, answers) in verbs {
        println!("  {verb}: {}", answers.join(", "));
    }
    println!("faults:");
    for (fault, count) in faults {
        println!("  {fault}: {count}");
    }
    println!("transactions: {}", ledger.deals.len());
}

/// Reports the findings. If there are any, keeps the servers' folders and the ledger.
fn end(torture: Torture, ledger: &Ledger, crashes: &[(Micros, Micros)]) -> bool {
    let findings = torture.findings.into_inner().unwrap();
    if findings.is_empty() {
        println!("torture: seed {}: nothing found", torture.options.seed());
        return true;
    }
    println!("torture: seed {}: {} findings", torture.options.seed(), findings.len());
    let logs = torture.place.logs();
    let kept = torture.place.keep();
    if let Some(folder) = kept.first() {
        let mut lines: Vec<String> = ledger.deals.iter().map(|deal| format!("{deal:?}")).collect();
        lines.extend(crashes.iter().map(|crash| format!("crash {crash:?}")));
        let _ = std::fs::write(format!("{folder}/ledger"), lines.join("\n"));
        let _ = std::fs::write(format!("{folder}/findings"), findings.join("\n"));
        for (n, log) in logs.iter().enumerate() {
            let _ = std::fs::write(format!("{folder}/server-{n}.log"), log);
        }
    }
    println!("kept: {}", kept.join(" "));
    // The findings are printed again at the very end, because the last lines are still there if the output is cut.
    for finding in findings.iter().take(SHOWN) {
        println!("FOUND {}", short(finding));
    }
    false
}
