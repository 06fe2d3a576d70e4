//! What the dashboard costs a server with ten million jobs: each page's and each statement's time, a hundred thousand
//! dead jobs retried, and a hundred browsers beside workers that claim all the while. `make bench-web`; `ARGS='--jobs
//! 100000 --rounds 4'` for a look.
//!
//! How many jobs workers do in a second depends on what else the machine does, by a quarter from one moment to the
//! next, and a look a second changes it by less than a hundredth. So the look is repeated as quickly as the server
//! answers, tens of times a second, in many short windows in turns with others: what that costs the workers, divided by
//! the number of looks, is what one costs.

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
const WINDOW: Duration = Duration::from_secs(3);
/// So long the dashboard's own processor time is taken for a share of one.
const LONG: Duration = Duration::from_secs(60);
/// So many dead jobs are retried.
const DEAD: usize = 100_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or(default, |at| args[at + 1].parse().unwrap_or_else(|_| panic!("{name} NUMBER")))
    };
    let (jobs, rounds) = (number("--jobs", 10_000_000), number("--rounds", 25));
    let cluster = Cluster::new()
        .conf("shared_preload_libraries = 'pg_queue, pg_stat_statements'")
        .conf("shared_buffers = '512MB'")
        .conf("max_connections = 50")
        .conf("max_wal_size = '8GB'")
        .start();
    let mut client = cluster.create_database(DATABASE);
    fill(&mut client, jobs);
    client.run("CREATE EXTENSION pg_stat_statements; CREATE ROLE dashboard LOGIN SUPERUSER");
    let web = Web::start(&cluster, &["--database", "user=dashboard dbname=app", "--allow-actions"]);
    pages(&web, &mut client);
    statements(&mut client);
    load(&cluster, rounds);
    statements(&mut client);
    // Last, as what was dead is looked through at each look until history has it.
    retry(&web, &mut client);
    statements(&mut client);
}

/// Nine tenths are ready, one has ended; and some of each other state.
fn fill(client: &mut Client, jobs: usize) {
    client.run(
        "SELECT queue.create('q', max_attempts => 3), queue.create('work'), queue.create('failed'), \
        queue.create('flows')",
    );
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
    for _ in 0..1_000 {
        client.run(
            "SELECT queue.enqueue_flow('flows', \
            '[{\"task\": \"a\"}, {\"task\": \"b\"}, {\"task\": \"c\", \"after\": [\"a\", \"b\"]}]')",
        );
    }
    client.run("SELECT count(*) FROM queue.claim('q', 100, worker => 'w')");
    client.run("ANALYZE");
    // What has ended is copied to history for a while; that is measured elsewhere.
    let newest = "SELECT max(entry) FROM queue_internal.segment_log";
    let mut last = (0, Instant::now());
    while last.1.elapsed() < Duration::from_secs(10) {
        let entry: i64 = client.value(newest);
        if entry != last.0 {
            last = (entry, Instant::now());
        }
        sleep(Duration::from_millis(500));
    }
    let counts = "SELECT concat_ws(', ', ready || ' ready', completed || ' completed', dead || ' dead') \
        FROM queue.stats WHERE queue_name = 'q'";
    println!("{} after {} s", client.value::<String>(counts), begun.elapsed().as_secs());
}

/// The median time of each page, as the browser sees it: the server's, the program's and the way.
fn pages(web: &Web, client: &mut Client) {
    let job: i64 = client.value("SELECT job_id FROM queue.search('q', states => '{dead}', max_jobs => 1) LIMIT 1");
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

/// The dead of a queue, retried as the page does it: counted first, then part by part.
fn retry(web: &Web, client: &mut Client) {
    for _ in 0..DEAD / 5_000 {
        client.run("SELECT count(*) FROM queue.enqueue_many('failed', array_fill('{\"to\": 7}'::jsonb, ARRAY[5000]))");
        client.run(
            "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('failed', 5000)), \
            'refused', fatal => true)",
        );
    }
    let begun = Instant::now();
    let (mut beyond, mut counted) = (String::new(), 0);
    loop {
        let filter = "field=error&op=starts&value=refused&states=%5B%22dead%22%5D";
        let part = web.get(&format!("/api/count?queue=failed&{filter}&beyond={beyond}")).ok();
        counted += part["jobs"].as_u64().unwrap_or(0);
        match part["here"].as_str() {
            Some(here) => beyond = place::encoded(here),
            None => break,
        }
    }
    let count = begun.elapsed();
    let (mut beyond, mut retried, mut longest) = (serde_json::Value::Null, 0, Duration::ZERO);
    let begun = Instant::now();
    loop {
        let body = serde_json::json!({ "queue": "failed", "states": ["dead"], "field": "error", "op": "starts",
            "value": "refused", "beyond": beyond });
        let call = Instant::now();
        let part = web.act("retry_many", &body, &[]).ok();
        longest = longest.max(call.elapsed());
        retried += part["job_ids"].as_array().map_or(0, Vec::len);
        beyond = part["here"].clone();
        if beyond.is_null() {
            break;
        }
    }
    println!(
        "\n{counted} dead jobs counted in {:.2} s; {retried} retried in {:.2} s, a call in {:.2} s at most",
        count.as_secs_f64(),
        begun.elapsed().as_secs_f64(),
        longest.as_secs_f64()
    );
}

/// What the dashboard has asked since the last time: the mean and the longest time of each statement, at the server.
fn statements(client: &mut Client) {
    println!("\n{:>8} {:>11} {:>11}  statement", "calls", "mean", "longest");
    let sql = "SELECT concat(lpad(calls::text, 8), lpad(round(mean_exec_time::numeric, 2)::text, 9), ' ms',
            lpad(round(max_exec_time::numeric, 2)::text, 9), ' ms  ',
            coalesce(substring(query from 'queue\\.\\w+.*'), left(regexp_replace(query, '\\s+', ' ', 'g'), 60)))
        FROM pg_stat_statements AS s JOIN pg_roles AS r ON r.oid = s.userid
        WHERE r.rolname = 'dashboard' ORDER BY mean_exec_time DESC";
    for line in client.column::<String>(sql) {
        println!("{}", line.lines().next().unwrap_or_default());
    }
    client.run("SELECT pg_stat_statements_reset()");
}

/// Processor time of a process, in seconds.
fn cpu(pid: u32) -> f64 {
    cpu_of(&format!("/proc/{pid}/schedstat"))
}

fn cpu_of(file: &str) -> f64 {
    let stat = std::fs::read_to_string(file).unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// What a window has measured.
struct Seen {
    /// Jobs in a second.
    rate: f64,
    /// Looks in a second.
    looks: f64,
    /// Of a processor: the dashboard's program and its sessions.
    share: f64,
}

fn load(cluster: &Cluster, rounds: usize) {
    // Some viewers with one role: one of them has no more than 50 pages open.
    let (socket, roles) = (format!("unix:{}", cluster.dir().join("web").display()), cluster.dir().join("roles"));
    let lines: String = (0..BROWSERS).map(|n| format!("viewer{n} dashboard\n")).collect();
    std::fs::write(&roles, lines).expect("a writable folder");
    let proxy = ["--auth", "proxy", "--listen", &socket, "--roles", roles.to_str().expect("a path")];
    let web = &Web::start(cluster, &[&["--database", "user=dashboard dbname=app"], &proxy[..]].concat());
    let (stop, done, looks) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let mut client = cluster.connect_to(DATABASE);
                let work = "SELECT queue.enqueue('work'), queue.complete(id) FROM queue.claim('work')";
                client.run("SELECT queue.enqueue('work')");
                while !stop.load(Ordering::Relaxed) {
                    let did = client.execute(work, &[]).expect("a job");
                    if did == 0 {
                        client.run("SELECT queue.enqueue('work')");
                    }
                    done.fetch_add(did, Ordering::Relaxed);
                }
            });
        }
        let mut client = cluster.connect_to(DATABASE);
        let mut spent = || -> f64 {
            let sessions = client.column::<i32>("SELECT pid FROM pg_stat_activity WHERE usename = 'dashboard'");
            let of = |pids: &[i32]| pids.iter().map(|pid| cpu(pid.unsigned_abs())).sum::<f64>();
            cpu(web.pid()) + threads(web.pid()) + of(&sessions)
        };
        let mut measure = |window: Duration| {
            let counts = || [&done, &looks].map(|count| count.load(Ordering::Relaxed));
            let (before, counted, begun) = (spent(), counts(), Instant::now());
            sleep(window);
            let seconds = begun.elapsed().as_secs_f64();
            let now = counts();
            let [rate, looks] = [0, 1].map(|n| (now[n] - counted[n]) as f64 / seconds);
            Seen { rate, looks, share: (spent() - before) / seconds }
        };
        sleep(Duration::from_secs(3));
        let share = {
            let away = AtomicBool::new(false);
            std::thread::scope(|browsers| {
                let _away = StopAtEnd(&away);
                for n in 0..BROWSERS {
                    let away = &away;
                    browsers.spawn(move || browse(web, n, away));
                }
                sleep(Duration::from_secs(2));
                measure(LONG).share * 100.0
            })
        };
        println!("\nthe dashboard and its sessions, with {BROWSERS} browsers: {share:.2} % of a processor");
        println!("\nround   jobs/s, beside looks   looks/s   a look each second costs");
        let mut costs = Vec::new();
        for round in 0..rounds {
            let beside = |measure: &mut dyn FnMut(Duration) -> Seen| {
                let away = AtomicBool::new(false);
                std::thread::scope(|lookers| {
                    let _away = StopAtEnd(&away);
                    lookers.spawn(|| {
                        while !away.load(Ordering::Relaxed) {
                            // Not the answer of the time before.
                            let n = looks.fetch_add(1, Ordering::Relaxed);
                            web.get(&format!("/api/overview?n={n}")).ok();
                        }
                    });
                    measure(WINDOW)
                })
            };
            // In turns, also which of the two comes first.
            let (with, alone) = if round % 2 == 0 {
                let with = beside(&mut measure);
                (with, measure(WINDOW))
            } else {
                let alone = measure(WINDOW);
                (beside(&mut measure), alone)
            };
            let cost = (1.0 - with.rate / alone.rate) / with.looks * 100.0;
            println!("{round:5} {:8.0} {:8.0} {:12.0} {cost:14.3} %", alone.rate, with.rate, with.looks);
            costs.push(cost);
        }
        costs.sort_by(f64::total_cmp);
        let quarter = |n: usize| costs[(costs.len() * n / 4).min(costs.len() - 1)];
        println!(
            "a look each second costs {:.3} % of the jobs; half of the rounds say {:.3} to {:.3}",
            quarter(2),
            quarter(1),
            quarter(3)
        );
    });
}

/// Processor time of the other threads of a process: its own file has the first alone.
fn threads(pid: u32) -> f64 {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let others =
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|thread| *thread != pid);
    others.map(|thread| cpu_of(&format!("/proc/{pid}/task/{thread}/schedstat"))).sum()
}

/// A browser on the overview: the stream, and what the page looks at every 15 seconds.
fn browse(web: &Web, number: usize, away: &AtomicBool) {
    let name = format!("viewer{number}");
    let viewer = [("x-remote-user", name.as_str())];
    let mut events = web.events(&viewer);
    let mut next = Instant::now() + Duration::from_millis(150 * number as u64);
    while !away.load(Ordering::Relaxed) && events.next().is_some() {
        if Instant::now() >= next {
            web.send("GET", "/api/activity", &viewer, "").ok();
            web.send("GET", "/api/doctor", &viewer, "").ok();
            next += Duration::from_secs(15);
        }
    }
}
