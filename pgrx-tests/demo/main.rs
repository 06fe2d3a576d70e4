//! The demo makes the documentation of this machine searchable, one job per file, on a throw-away server.
//!
//! The [`producer`] enqueues every text file that [`files`] finds. Four [`worker`]s, each a [`process`] of its own,
//! claim the files and index them. One worker is killed in the middle, and one job can never succeed. The lease and the
//! retries take care of both. At the end there is a search (`report.sql`), and the proof that each file was indexed
//! exactly once ([`proof`]).
//!
//! Run `make demo`, or `make demo ARGS='--files 500'` for another limit than 5,000 files. `make web` runs [`live`]: the
//! dashboard over queues under load.

mod files;
mod live;
mod process;
mod producer;
mod proof;
mod worker;

use std::process::ExitCode;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::Cluster;

use process::{DATABASE, Worker};

const WORKERS: usize = 4;
const DEFAULT_LIMIT: usize = 5_000;

/// The pause between two lines of progress.
const TICK: Duration = Duration::from_secs(2);
/// If nothing changes for this time, something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

const SETUP: &str = "
SELECT queue.create('index_files', max_attempts => 3, backoff => 'constant', backoff_base => '1 second',
                    lease => '5 seconds');
-- Nothing here hides a file that is indexed twice: path is not unique.
CREATE TABLE document (path text, tsv tsvector, job_id bigint, attempt int, indexed_by text);
CREATE INDEX ON document USING gin (tsv);";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let limit = match args[..] {
        ["worker", name] => {
            let Err(error) = worker::run(name);
            eprintln!("{name}: {error}");
            return ExitCode::FAILURE;
        }
        ["web", ref args @ ..] => return if live::run(args) { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        [] => Some(DEFAULT_LIMIT),
        ["--files", number] => number.parse().ok(),
        _ => None,
    };
    let Some(limit) = limit else {
        eprintln!("Usage: demo [--files NUMBER | web [OPTIONS OF pg_queue_web]]");
        return ExitCode::FAILURE;
    };
    if demo(limit) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the demo on an empty cluster. Returns whether the proof holds.
fn demo(limit: usize) -> bool {
    let found = files::find();
    println!("{} files below the project and {}", found.len(), files::SYSTEM.join(", "));
    if found.len() > limit {
        println!("of which only the first {limit}: --files NUMBER sets another limit");
    }
    let found = &found[..found.len().min(limit)];

    println!("starting a server");
    let (cluster, mut client) = Cluster::on_disk().conf("shared_buffers = '128MB'").start_with_database(DATABASE);
    client.batch_execute(SETUP).expect("queue and table");
    let mut workers: Vec<Worker> = (1..=WORKERS).map(|number| Worker::start(&cluster, number)).collect();
    let claims = workers[0].claims();
    let victim = &workers[0];
    // A third of the jobs have run now.
    let busy = found.len() / WORKERS / 3;

    let (enqueued, hopeless, killed) = scope(|scope| {
        let producer = scope.spawn(|| producer::produce(&mut cluster.connect_to(DATABASE), found));
        let killer = scope.spawn(|| victim.kill_at_work(&cluster, claims, busy));
        watch(&mut client, found.len() as i64, || producer.is_finished());
        // Idle workers hold no job and may be ended at any time.
        workers.iter().for_each(|worker| worker.end(&cluster));
        let (enqueued, hopeless) = producer.join().expect("the producer");
        (enqueued, hopeless, killer.join().expect("the killer"))
    });
    drop(workers);
    print!("\n{}", cluster.psql_in(DATABASE, include_str!("report.sql")));
    proof::holds(&mut client, &enqueued, hopeless, killed)
}

/// Shows the progress until no job waits or runs and `is_over` returns true.
fn watch(client: &mut Client, most: i64, is_over: impl Fn() -> bool) {
    println!("seconds  enqueued  ready  running  retrying  dead  indexed  per second  of all");
    let start = Instant::now();
    let (mut before, mut looked, mut changed) = ([0; 6], start, start);
    loop {
        sleep(TICK);
        // Asks first and counts afterwards, so that the numbers include all enqueued jobs.
        let is_over = is_over();
        let row = client
            .query_one(
                "SELECT enqueued, ready + scheduled, running, retrying, dead, completed
                 FROM queue.stats WHERE queue_name = 'index_files'",
                &[],
            )
            .expect("the statistics");
        let now: [i64; 6] = std::array::from_fn(|column| row.get(column));
        let [enqueued, ready, running, retrying, dead, completed] = now;
        // Some files are no text, so the number of jobs is only known at the end.
        let total = if is_over { enqueued } else { most.max(enqueued) };
        let speed = (completed - before[5]) as f64 / looked.elapsed().as_secs_f64();
        println!(
            "{:7}  {enqueued:8}  {ready:5}  {running:7}  {retrying:8}  {dead:4}  {completed:7}  {speed:10.0}  {}",
            start.elapsed().as_secs(),
            bar(completed + dead, total)
        );
        looked = Instant::now();
        if is_over && ready + running + retrying == 0 {
            break;
        }
        if now != before {
            (before, changed) = (now, looked);
        } else if changed.elapsed() > PATIENCE {
            println!("nothing has changed for {} s: giving up", PATIENCE.as_secs());
            break;
        }
    }
}

/// Draws a bar for a share of a total.
fn bar(done: i64, all: i64) -> String {
    const WIDTH: i64 = 24;
    let all = all.max(1);
    let full = (done.clamp(0, all) * WIDTH / all) as usize;
    format!("[{}{}] {:3} %", "#".repeat(full), "-".repeat(WIDTH as usize - full), done.clamp(0, all) * 100 / all)
}
