//! A run: producers that send by the clock, whatever becomes of the jobs; workers; one session that keeps its
//! snapshot from beginning to end; a look at all of it every few seconds.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::contender::Session;
use crate::drive::{Task, side_by_side};
use crate::error::Result;
use crate::server::{Cost, Server};
use crate::soak::contenders::{self, BATCH, Contender};
use crate::soak::ledger::Ledger;
use crate::soak::load::{Load, Lot};
use crate::soak::report::{self, Look, Soaked};
use crate::soak::storage::Observer;

/// Connections that send jobs.
const PRODUCERS: usize = 2;
/// How long a worker has its jobs before it finishes them, all of a batch together.
const WORK: Duration = Duration::from_millis(10);
/// Between two ticks.
const TICK: Duration = Duration::from_millis(100);
/// How long a worker that found nothing sleeps before it looks again, if its claim does not sleep.
const POLL: Duration = Duration::from_millis(10);
/// Between two looks whether it is time.
const LOOK: Duration = Duration::from_millis(20);
/// How long the workers may go on when no more jobs come.
const LAST_WORK: Duration = Duration::from_secs(10);
/// The longest time between two lines.
const WINDOW: Duration = Duration::from_secs(10);
/// In a short run there are still so many lines.
const LEAST_WINDOWS: f64 = 6.0;

/// What all clients of a run share.
struct Stage {
    load: Load,
    ledger: Ledger,
    start: Instant,
    stop_sending: AtomicBool,
}

/// Soaks the contender for so long, beside an open snapshot or not.
pub fn run(contender: &Contender, load: Load, length: Duration, has_snapshot: bool) -> Result<Soaked> {
    let server = &contender.queue.server;
    let ledger = Ledger::new(load, length);
    let mut observer = Observer::new(server, contender.tables)?;
    let sessions = |count: usize, lot| (0..count).map(|_| contender.session(lot)).collect::<Result<Vec<_>>>();
    let (producers, workers) = (sessions(PRODUCERS, Lot::Usual)?, sessions(contender.workers, Lot::Usual)?);
    let late = if contender.is_plain { None } else { Some(contender.session(Lot::Held)?) };
    let ticker = contender.ticker()?;
    let snapshot = if has_snapshot { Some(Snapshot::open(server)?) } else { None };

    let stage = &Stage { load, ledger, start: Instant::now(), stop_sending: AtomicBool::new(false) };
    let mut clients: Vec<Task> = Vec::new();
    clients.extend((0..).zip(producers).map(|(first, producer)| produce(producer, stage, first)));
    clients.extend(workers.into_iter().map(|worker| work(worker, stage)));
    clients.extend(late.map(|worker| work_late(worker, stage)));
    clients.extend(ticker.map(|mut ticker| -> Task {
        Box::new(move |is_over| {
            ticker()?;
            thread::sleep(TICK);
            Ok((!is_over).then_some(0))
        })
    }));
    let (_, looks) = side_by_side(clients, |all_run| {
        let looks = watch(server, &mut observer, stage, all_run, length);
        stage.stop_sending.store(true, Relaxed);
        let end = Instant::now();
        while looks.is_ok() && stage.ledger.overdue(length) > 0 && end.elapsed() < LAST_WORK && all_run() {
            thread::sleep(LOOK);
        }
        looks
    })?;
    Ok(Soaked {
        looks,
        missing: stage.ledger.overdue(length),
        twice: stage.ledger.twice.load(Relaxed),
        snapshot_age: snapshot.map(|snapshot| snapshot.close(server)).transpose()?,
    })
}

/// Looks, prints a line, and looks again, until it is time or a client has failed.
fn watch(
    server: &Server,
    observer: &mut Observer,
    stage: &Stage,
    all_run: &dyn Fn() -> bool,
    length: Duration,
) -> Result<Vec<Look>> {
    let count = (length.as_secs_f64() / WINDOW.as_secs_f64()).ceil().max(LEAST_WINDOWS) as u32;
    let table = report::table();
    let mut looks = vec![look(server, observer, stage, false)?];
    for n in 1..=count {
        let [before, due] = [n - 1, n].map(|n| length / count * n);
        while stage.start.elapsed() < due && all_run() {
            thread::sleep(LOOK.min(due.saturating_sub(stage.start.elapsed())));
        }
        if !all_run() {
            break;
        }
        // Each minute, and in the end.
        let counts_dead = n == count || due.as_secs() / 60 > before.as_secs() / 60;
        looks.push(look(server, observer, stage, counts_dead)?);
        report::print_last(&table, &looks);
    }
    Ok(looks)
}

fn look(server: &Server, observer: &mut Observer, stage: &Stage, counts_dead: bool) -> Result<Look> {
    let (at, cost) = (stage.start.elapsed(), Cost::of(&[server])?);
    Ok(Look {
        at,
        sent: stage.ledger.sent.load(Relaxed),
        done: stage.ledger.done.load(Relaxed),
        overdue: stage.ledger.overdue(at),
        claims: stage.ledger.take_claims(),
        cost: Cost { cpu_seconds: cost.cpu_seconds - observer.cpu_seconds(), ..cost },
        sizes: observer.sizes(counts_dead)?,
    })
}

/// Sends every so manieth job, each when its time has come, and as fast as possible those that are late. A client that
/// has sent everything goes on: one that has ended before it is time has failed.
fn produce<'a>(mut producer: Session, stage: &'a Stage, mut number: u32) -> Task<'a> {
    Box::new(move |is_over| {
        if is_over {
            return Ok(None);
        }
        let early = stage.load.at(number).saturating_sub(stage.start.elapsed());
        if stage.stop_sending.load(Relaxed) || number >= stage.ledger.jobs() || !early.is_zero() {
            thread::sleep(if early.is_zero() { LOOK } else { early.min(LOOK) });
            return Ok(Some(0));
        }
        let job = stage.load.job(number);
        number += PRODUCERS as u32;
        stage.ledger.sending(&job);
        producer.queue = contenders::queue(job.lot).into();
        producer.send(&job.payload(), job.priority, job.delay.map(|delay| delay.as_secs_f64()))?;
        Ok(Some(1))
    })
}

/// Claims, works, finishes what was done with the next claim.
fn work<'a>(mut worker: Session, stage: &'a Stage) -> Task<'a> {
    let mut in_hand: Vec<Run> = Vec::new();
    Box::new(move |is_over| {
        if is_over {
            worker.complete()?;
            finished(&in_hand, stage);
            return Ok(None);
        }
        let (runs, took) = worker.claim(BATCH as i32)?;
        finished(&in_hand, stage);
        if let (Some(took), false) = (took, runs.is_empty()) {
            stage.ledger.claimed(took.as_secs_f64() * 1e3);
        }
        if !runs.is_empty() {
            thread::sleep(WORK);
        } else if worker.polls() {
            thread::sleep(POLL);
        }
        in_hand = fail_some(&mut worker, runs, stage)?;
        Ok(Some(0))
    })
}

/// Takes held jobs, only as many as have waited long enough.
fn work_late<'a>(mut worker: Session, stage: &'a Stage) -> Task<'a> {
    let (mut next, mut ripe) = (0, 0);
    Box::new(move |is_over| {
        if is_over {
            return Ok(None);
        }
        while next < stage.ledger.jobs() && stage.load.at(next) + stage.load.hold <= stage.start.elapsed() {
            ripe += usize::from(stage.load.job(next).lot == Lot::Held);
            next += 1;
        }
        // Full batches, until it is time to come to an end.
        if ripe < BATCH && !(ripe > 0 && stage.stop_sending.load(Relaxed)) {
            thread::sleep(LOOK);
            return Ok(Some(0));
        }
        let (runs, _) = worker.claim(BATCH as i32)?;
        ripe = ripe.saturating_sub(runs.len());
        thread::sleep(WORK);
        worker.complete()?;
        finished(&runs, stage);
        Ok(Some(0))
    })
}

/// A job in a worker's hands: its attempt, which attempt of it that is, from 1, and its number.
type Run = [i64; 3];

/// Fails those that have to. Returns the others.
fn fail_some(worker: &mut Session, runs: Vec<Run>, stage: &Stage) -> Result<Vec<Run>> {
    let job = |run: &Run| stage.load.job(run[2] as u32);
    let (failed, good): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run[1] <= i64::from(job(run).failures));
    let (dead, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(|run| job(run).is_fatal);
    for (runs, is_fatal) in [(failed, false), (dead, true)] {
        if !runs.is_empty() {
            worker.fail(&runs.iter().map(|run| run[0]).collect::<Vec<_>>(), is_fatal)?;
        }
        if is_fatal {
            finished(&runs, stage);
        }
    }
    Ok(good)
}

fn finished(runs: &[Run], stage: &Stage) {
    runs.iter().for_each(|run| stage.ledger.done(&stage.load.job(run[2] as u32)));
}

/// A transaction that looks once and then does nothing: no vacuum removes what has died since. With its process.
struct Snapshot(postgres::Client, i32);

impl Snapshot {
    fn open(server: &Server) -> Result<Self> {
        let mut session = server.connect()?;
        let pid = session.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
        session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")?;
        Ok(Self(session, pid))
    }

    /// Its age in transactions. An error when it is not there any more.
    fn close(mut self, server: &Server) -> Result<i64> {
        let sql = "SELECT age(backend_xmin)::bigint FROM pg_stat_activity WHERE pid = $1";
        let age: Option<i64> = server.connect()?.query_one(sql, &[&self.1])?.try_get(0)?;
        self.0.batch_execute("COMMIT")?;
        age.ok_or_else(|| "the snapshot was not held".into())
    }
}
