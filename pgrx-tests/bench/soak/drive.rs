//! Runs a soak: producers that send by the clock, workers, one session that keeps its snapshot from beginning to end,
//! and an observer that looks every few seconds.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use queue_tests::sql::Sql;

use crate::contender::{Contender, Session};
use crate::drive::{Task, side_by_side, steady};
use crate::error::Result;
use crate::server::{Cost, Server};
use crate::soak::contenders::{self, BATCH};
use crate::soak::ledger::Ledger;
use crate::soak::load::{Load, Lot};
use crate::soak::report::{self, Look, Soaked};
use crate::soak::storage::Observer;

/// Connections that send jobs.
const PRODUCERS: usize = 2;
/// How long a worker keeps the jobs of a batch before it finishes all of them.
const WORK: Duration = Duration::from_millis(10);
/// How long a worker sleeps after an empty claim, if its claim does not sleep.
const POLL: Duration = Duration::from_millis(10);
/// The pause between two checks of the time.
const LOOK: Duration = Duration::from_millis(20);
/// How long the workers may continue after the last job was sent.
const LAST_WORK: Duration = Duration::from_secs(10);
/// The longest time between two lines of output.
const WINDOW: Duration = Duration::from_secs(10);
/// A short run has at least this many lines.
const LEAST_WINDOWS: f64 = 6.0;

/// Soaks the contender for this time, with or without an open snapshot.
pub fn run(contender: &Contender, load: Load, length: Duration, has_snapshot: bool) -> Result<Soaked> {
    let server = &contender.server;
    let mut observer = Observer::new(contender)?;
    let sessions = |count, lot| (0..count).map(|_| contenders::session(contender, lot)).collect::<Result<Vec<_>>>();
    // Events go to one consumer, and no event waits.
    let (workers, late) = if contenders::is_plain(contender) { (1, 0) } else { (4, 1) };
    let (producers, workers) = (sessions(PRODUCERS, Lot::Usual)?, sessions(workers, Lot::Usual)?);
    let late = sessions(late, Lot::Held)?;
    let ticker = if contenders::is_plain(contender) { Some(contenders::ticker(server)?) } else { None };
    let snapshot = if has_snapshot { Some(server.snapshot()?) } else { None };

    let ledger = &Ledger::new(load, length);
    let mut clients: Vec<Task> = Vec::new();
    clients.extend((0..).zip(producers).map(|(first, producer)| produce(producer, ledger, first)));
    clients.extend(workers.into_iter().map(|worker| work(worker, ledger)));
    clients.extend(late.into_iter().map(|worker| work_late(worker, ledger)));
    clients.extend(ticker);
    let (_, looks) = side_by_side(clients, |all_run| {
        let looks = watch(server, &mut observer, ledger, all_run, length);
        ledger.stop_sending.store(true, Relaxed);
        let end = Instant::now();
        while looks.is_ok() && ledger.overdue(length) > 0 && end.elapsed() < LAST_WORK && all_run() {
            thread::sleep(LOOK);
        }
        looks
    })?;
    let age = "SELECT age(backend_xmin)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid()";
    Ok(Soaked {
        looks,
        missing: ledger.overdue(length),
        twice: ledger.twice.load(Relaxed),
        snapshot_age: snapshot.map(|mut session| session.value(age)),
    })
}

/// Observes and prints a line, until the time is over or a client has failed.
fn watch(
    server: &Server,
    observer: &mut Observer,
    ledger: &Ledger,
    all_run: &dyn Fn() -> bool,
    length: Duration,
) -> Result<Vec<Look>> {
    let count = (length.as_secs_f64() / WINDOW.as_secs_f64()).ceil().max(LEAST_WINDOWS) as u32;
    let table = report::table();
    let mut looks = vec![look(server, observer, ledger, false)?];
    for n in 1..=count {
        let [before, due] = [n - 1, n].map(|n| length / count * n);
        while ledger.start.elapsed() < due && all_run() {
            thread::sleep(LOOK.min(due.saturating_sub(ledger.start.elapsed())));
        }
        if !all_run() {
            break;
        }
        // Each minute, and at the end.
        let counts_dead = n == count || due.as_secs() / 60 > before.as_secs() / 60;
        looks.push(look(server, observer, ledger, counts_dead)?);
        report::print_last(&table, &looks);
    }
    Ok(looks)
}

fn look(server: &Server, observer: &mut Observer, ledger: &Ledger, counts_dead: bool) -> Result<Look> {
    let (at, cost) = (ledger.start.elapsed(), Cost::of(&[server])?);
    Ok(Look {
        at,
        sent: ledger.sent.load(Relaxed),
        done: ledger.done.load(Relaxed),
        overdue: ledger.overdue(at),
        claims: ledger.take_claims(),
        cost: Cost { cpu_seconds: cost.cpu_seconds - observer.cpu_seconds(), ..cost },
        sizes: observer.sizes(counts_dead)?,
    })
}

/// Sends one of every `of` jobs when its time has come, and late jobs as fast as possible. A client that has sent all
/// its jobs stays: a client that ends early counts as failed.
fn produce<'a>(mut producer: Session, ledger: &'a Ledger, mut number: u32) -> Task<'a> {
    steady(move || {
        let early = ledger.load.at(number).saturating_sub(ledger.start.elapsed());
        if ledger.stop_sending.load(Relaxed) || number >= ledger.jobs() || !early.is_zero() {
            thread::sleep(if early.is_zero() { LOOK } else { early.min(LOOK) });
            return Ok(0);
        }
        let job = ledger.load.job(number);
        number += PRODUCERS as u32;
        ledger.sending(&job);
        producer.queue = contenders::queue(job.lot).into();
        producer.send(&job.payload(), job.priority, job.delay.map(|delay| delay.as_secs_f64()))?;
        Ok(1)
    })
}

/// Claims and works. The next claim completes the finished jobs.
fn work<'a>(mut worker: Session, ledger: &'a Ledger) -> Task<'a> {
    let mut in_hand: Vec<Run> = Vec::new();
    Box::new(move |is_over| {
        if is_over {
            worker.complete()?;
            finished(&in_hand, ledger);
            return Ok(None);
        }
        let (runs, took) = worker.claim(BATCH as i32)?;
        finished(&in_hand, ledger);
        if let (Some(took), false) = (took, runs.is_empty()) {
            ledger.claimed(took.as_secs_f64() * 1e3);
        }
        if !runs.is_empty() {
            thread::sleep(WORK);
        } else if worker.polls() {
            thread::sleep(POLL);
        }
        in_hand = fail_some(&mut worker, runs, ledger)?;
        Ok(Some(0))
    })
}

/// Takes held jobs that have waited long enough, and no other jobs.
fn work_late<'a>(mut worker: Session, ledger: &'a Ledger) -> Task<'a> {
    let (mut next, mut ripe) = (0, 0);
    steady(move || {
        while next < ledger.jobs() && ledger.load.at(next) + ledger.load.hold <= ledger.start.elapsed() {
            ripe += usize::from(ledger.load.job(next).lot == Lot::Held);
            next += 1;
        }
        // Claims full batches until the end is near.
        if ripe < BATCH && !(ripe > 0 && ledger.stop_sending.load(Relaxed)) {
            thread::sleep(LOOK);
            return Ok(0);
        }
        let (runs, _) = worker.claim(BATCH as i32)?;
        ripe = ripe.saturating_sub(runs.len());
        thread::sleep(WORK);
        worker.complete()?;
        finished(&runs, ledger);
        Ok(0)
    })
}

/// A job in a worker's hands: its attempt's id, the attempt's number from 1, and the job's number.
type Run = [i64; 3];

/// Fails the jobs that are meant to fail. Returns the others.
fn fail_some(worker: &mut Session, mut runs: Vec<Run>, ledger: &Ledger) -> Result<Vec<Run>> {
    let job = |run: &Run| ledger.load.job(run[2] as u32);
    for is_fatal in [false, true] {
        let fails = |run: &mut Run| run[1] <= i64::from(job(run).failures) && job(run).is_fatal == is_fatal;
        let failed: Vec<Run> = runs.extract_if(.., fails).collect();
        if !failed.is_empty() {
            worker.fail(&failed.iter().map(|run| run[0]).collect::<Vec<_>>(), is_fatal)?;
        }
        if is_fatal {
            finished(&failed, ledger);
        }
    }
    Ok(runs)
}

fn finished(runs: &[Run], ledger: &Ledger) {
    runs.iter().for_each(|run| ledger.done(&ledger.load.job(run[2] as u32)));
}
