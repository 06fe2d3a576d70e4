//! What the dashboard costs a server with ten million jobs: each page's time, and a hundred browsers beside workers that
//! claim all the while. `make bench-web`; `ARGS='--jobs 100000 --rounds 2'` for a look.
//!
//! Workers run in rounds, each half with browsers and half without, in turns, so that the machine's moods meet both.

#[path = "../tests/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "../tests/place.rs"]
#[allow(dead_code)]
mod place;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::sql::Sql as _;
use queue_tests::{Cluster, StopAtEnd};

use crate::place::{DATABASE, Web};

const BROWSERS: usize = 100;
const WORKERS: usize = 2;
/// Half a round.
const WINDOW: Duration = Duration::from_secs(10);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or(default, |at| args[at + 1].parse().unwrap_or_else(|_| panic!("{name} NUMBER")))
    };
    let (jobs, rounds) = (number("--jobs", 10_000_000), number("--rounds", 10));
    let cluster = Cluster::new()
        .conf("shared_buffers = '512MB'")
        .conf("max_connections = 50")
        .conf("max_wal_size = '8GB'")
        .start();
    let mut client = cluster.create_database(DATABASE);
    fill(&mut client, jobs);
    let web = Web::start(&cluster, &[]);
    pages(&web, &mut client);
    load(&cluster, &web, rounds);
}

/// Nine tenths are ready, one has ended; and some of each other state.
fn fill(client: &mut Client, jobs: usize) {
    client.run("SELECT queue.create('q', max_attempts => 3), queue.create('work')");
    let begun = Instant::now();
    for _ in 0..jobs / 5_000 {
        client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('{\"to\": 7}'::jsonb, ARRAY[5000]))");
    }
    for _ in 0..jobs / 10_000 {
        client.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 1000)))");
    }
    for (state, many) in [("dead", 5_000), ("retrying", 1_000)] {
        let how = if state == "dead" { "fatal => true" } else { "retry_in => '1 day'" };
        client.run(&format!("SELECT queue.fail(id, 'error ' || id % 7, {how}) FROM queue.claim('q', {many})"));
    }
    client.run("SELECT count(queue.enqueue('q', delay => '1 day')) FROM generate_series(1, 1000)");
    client.run("SELECT count(*) FROM queue.claim('q', 100, worker => 'w')");
    client.run("ANALYZE");
    let counts = "SELECT concat_ws(', ', ready || ' ready', completed || ' completed', dead || ' dead') FROM queue.stats WHERE queue_name = 'q'";
    println!("{} after {} s", client.value::<String>(counts), begun.elapsed().as_secs());
}

/// The median time of each page, as the browser sees it: the server's, the program's and the way.
fn pages(web: &Web, client: &mut Client) {
    let job: i64 = client.value("SELECT job_id FROM queue.list('q', 'dead', max_jobs => 1) LIMIT 1");
    let mut paths: Vec<String> = ["overview", "errors", "schedules", "workers", "topics", "doctor", "activity"]
        .iter()
        .map(|what| format!("{what}?"))
        .collect();
    for state in ["ready", "scheduled", "retrying", "running", "held", "dead", "completed", "cancelled", "skipped"] {
        paths.push(format!("jobs?queue=q&state={state}&"));
    }
    paths.extend(
        ["queue?queue=q&", "activity?queue=q&", "activity?queue=q&span=quarter&", "flows?queue=q&"].map(str::to_owned),
    );
    paths.push(format!("job?job={job}&"));
    println!("\n{:<44} {:>8} {:>8}", "page", "median", "worst");
    for path in &paths {
        let mut times: Vec<f64> = (0..9)
            .map(|n| {
                let begun = Instant::now();
                // Not the answer of the time before.
                web.get(&format!("/api/{path}n={n}")).ok();
                begun.elapsed().as_secs_f64() * 1000.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{path:<44} {:>5.1} ms {:>5.1} ms", times[4], times[8]);
    }
}

/// Processor time of a process, in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn load(cluster: &Cluster, web: &Web, rounds: usize) {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut client = cluster.connect_to(DATABASE);
                while !stop.load(Ordering::Relaxed) {
                    client.run("SELECT queue.enqueue('work')");
                    let id: i64 = client.claim("work");
                    client.run(&format!("SELECT queue.complete({id})"));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut client = cluster.connect_to(DATABASE);
        let mut spent = |web: &Web| {
            let backends =
                client.column::<i32>("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web%'");
            cpu(web.pid()) + backends.iter().map(|pid| cpu(pid.unsigned_abs())).sum::<f64>()
        };
        let measure = || {
            let (before, begun) = (done.load(Ordering::Relaxed), Instant::now());
            sleep(WINDOW);
            (done.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
        };
        sleep(Duration::from_secs(3));
        let (mut ratios, mut shares) = (Vec::new(), Vec::new());
        println!("\nround   alone    with {BROWSERS} browsers   ratio   share of a processor");
        for round in 0..rounds {
            let alone = measure();
            let away = AtomicBool::new(false);
            let (with, share) = std::thread::scope(|browsers| {
                let _away = StopAtEnd(&away);
                for n in 0..BROWSERS {
                    let away = &away;
                    browsers.spawn(move || browse(web, n, away));
                }
                sleep(Duration::from_secs(2));
                let before = spent(web);
                let with = measure();
                (with, (spent(web) - before) / WINDOW.as_secs_f64())
            });
            println!("{round:5} {alone:7.0} {with:20.0} {:7.3} {:12.2} %", with / alone, share * 100.0);
            ratios.push(with / alone);
            shares.push(share);
        }
        ratios.sort_by(f64::total_cmp);
        shares.sort_by(f64::total_cmp);
        println!("median ratio {:.3}, share {:.2} %", ratios[rounds / 2], shares[rounds / 2] * 100.0);
    });
}

/// A browser on the overview: the stream, and what the page looks at every 15 seconds.
fn browse(web: &Web, number: usize, away: &AtomicBool) {
    let mut events = web.events(&[]);
    let mut next = Instant::now() + Duration::from_millis(150 * number as u64);
    while !away.load(Ordering::Relaxed) && events.next().is_some() {
        if Instant::now() >= next {
            web.get("/api/activity").ok();
            web.get("/api/doctor").ok();
            next += Duration::from_secs(15);
        }
    }
}
