//! A run: producers that send by the clock, whatever becomes of the jobs; workers; one session that keeps its
//! snapshot from beginning to end; a look at all of it every few seconds.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use postgres::Client;

use crate::server::Server;
use crate::soak::contender::{BATCH, Contender, Producer, Run, Ticker, Worker};
use crate::soak::ledger::Ledger;
use crate::soak::load::{Job, Load, Lot};
use crate::soak::report;
use crate::soak::storage::{Observer, Sizes};
use crate::{Result, soak};

/// Connections that send jobs.
const PRODUCERS: u32 = 2;
/// How long a worker has its jobs before it finishes them, all of a batch together.
const WORK: Duration = Duration::from_millis(10);
/// Between two ticks.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks whether it is time.
const LOOK: Duration = Duration::from_millis(20);
/// How long the workers may go on when no more jobs come.
const LAST_WORK: Duration = Duration::from_secs(10);
/// The longest time between two lines.
const WINDOW: Duration = Duration::from_secs(10);
/// In a short run there are still so many lines.
const LEAST_WINDOWS: f64 = 6.0;

/// What happened between two looks.
pub struct Window {
    /// When it ended.
    pub end: Duration,
    /// How long it was.
    pub seconds: f64,
    /// Jobs sent.
    pub sent: u64,
    /// Jobs ended.
    pub done: u64,
    /// Jobs that should have ended by now and have not.
    pub overdue: i64,
    /// How long claims took, in milliseconds.
    pub claims: Vec<f64>,
    /// CPU time of the server, in seconds.
    pub cpu_seconds: f64,
    /// WAL written.
    pub wal_bytes: i64,
    /// What lay on the disk.
    pub sizes: Sizes,
    /// Dead rows in the logs, if they were counted.
    pub dead: Option<i64>,
}

/// What a run brought.
pub struct Soaked {
    /// In order.
    pub windows: Vec<Window>,
    /// Jobs that should have ended and have not, some seconds after the last was sent.
    pub missing: i64,
    /// Jobs that ended twice.
    pub twice: u64,
    /// How many transactions the open snapshot had seen begin when it was closed, if there was one.
    pub snapshot_age: Option<i64>,
}

/// Everybody's view of a run.
struct Stage<'a> {
    load: Load,
    ledger: &'a Ledger,
    start: Instant,
    stop_sending: &'a AtomicBool,
    stop_working: &'a AtomicBool,
}

/// Soaks the contender for so long, beside an open snapshot or not.
pub fn run(contender: &dyn Contender, load: Load, length: Duration, has_snapshot: bool) -> Result<Soaked> {
    let server = contender.server();
    let ledger = Ledger::new(load, length);
    let mut observer = Observer::new(server, contender.tables())?;
    let producers = (0..PRODUCERS).map(|_| contender.producer()).collect::<Result<Vec<_>>>()?;
    let workers = (0..contender.workers()).map(|_| contender.worker(Lot::Usual)).collect::<Result<Vec<_>>>()?;
    let late = if contender.is_plain() { None } else { Some(contender.worker(Lot::Held)?) };
    let ticker = contender.ticker()?;
    let snapshot = if has_snapshot { Some(Snapshot::open(server)?) } else { None };

    let (stop_sending, stop_working) = (AtomicBool::new(false), AtomicBool::new(false));
    let stage = Stage {
        load,
        ledger: &ledger,
        start: Instant::now(),
        stop_sending: &stop_sending,
        stop_working: &stop_working,
    };
    let windows = thread::scope(|scope| {
        let stage = &stage;
        let mut clients = Vec::new();
        for (first, producer) in (0..).zip(producers) {
            clients.push(scope.spawn(move || produce(producer, stage, first)));
        }
        for worker in workers {
            clients.push(scope.spawn(move || work(worker, stage)));
        }
        clients.extend(late.map(|worker| scope.spawn(move || work_late(worker, stage))));
        clients.extend(ticker.map(|ticker| scope.spawn(move || tick(ticker, stage))));

        let windows = watch(server, &mut observer, stage, &clients, length);
        stop_sending.store(true, Relaxed);
        let end = Instant::now();
        while windows.is_ok()
            && ledger.overdue(length) > 0
            && end.elapsed() < LAST_WORK
            && all_run(&clients[PRODUCERS as usize..])
        {
            thread::sleep(LOOK);
        }
        stop_working.store(true, Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        windows
    })?;
    Ok(Soaked {
        windows,
        missing: ledger.overdue(length),
        twice: ledger.twice(),
        snapshot_age: snapshot.map(|snapshot| snapshot.close(server)).transpose()?,
    })
}

/// Before it is time, clients end only by an error.
fn all_run(clients: &[ScopedJoinHandle<'_, Result<()>>]) -> bool {
    !clients.iter().any(ScopedJoinHandle::is_finished)
}

/// Looks, prints a line, and looks again, until it is time or a client has failed.
fn watch(
    server: &Server,
    observer: &mut Observer,
    stage: &Stage,
    clients: &[ScopedJoinHandle<'_, Result<()>>],
    length: Duration,
) -> Result<Vec<Window>> {
    let count = (length.as_secs_f64() / WINDOW.as_secs_f64()).ceil().max(LEAST_WINDOWS) as u32;
    let step = length / count;
    let cost = |observer: &Observer| server.cpu_seconds() - observer.cpu_seconds();
    report::print_head();
    let mut windows: Vec<Window> = Vec::new();
    let (mut begin, mut sent, mut done) = (Duration::ZERO, 0, 0);
    let (mut cpu, mut wal) = (cost(observer), server.wal_bytes()?);
    for n in 1..=count {
        while stage.start.elapsed() < step * n && all_run(clients) {
            thread::sleep(LOOK.min((step * n).saturating_sub(stage.start.elapsed())));
        }
        if !all_run(clients) {
            break;
        }
        let end = stage.start.elapsed();
        let (cpu_now, wal_now) = (cost(observer), server.wal_bytes()?);
        let (sent_now, done_now) = (stage.ledger.total_sent(), stage.ledger.total_done());
        // Counting dead rows reads everything, so not each time.
        let is_full = n == count || (step * n).as_secs() / 60 > (step * (n - 1)).as_secs() / 60;
        let window = Window {
            end,
            seconds: (end - begin).as_secs_f64(),
            sent: sent_now - sent,
            done: done_now - done,
            overdue: stage.ledger.overdue(end),
            claims: stage.ledger.take_claims(),
            cpu_seconds: cpu_now - cpu,
            wal_bytes: wal_now - wal,
            sizes: observer.sizes()?,
            dead: if is_full { observer.dead_rows()? } else { None },
        };
        report::print_window(&window);
        windows.push(window);
        (begin, sent, done, cpu, wal) = (end, sent_now, done_now, cpu_now, wal_now);
    }
    Ok(windows)
}

/// Sends every so manieth job, each when its time has come, and as fast as possible those that are late.
fn produce(mut producer: Box<dyn Producer>, stage: &Stage, first: u32) -> Result<()> {
    for number in (first..stage.ledger.jobs()).step_by(PRODUCERS as usize) {
        loop {
            if stage.stop_sending.load(Relaxed) {
                return Ok(());
            }
            let early = stage.load.at(number).saturating_sub(stage.start.elapsed());
            if early.is_zero() {
                break;
            }
            thread::sleep(early.min(LOOK));
        }
        let job = stage.load.job(number);
        stage.ledger.sending(&job);
        producer.send(&job)?;
    }
    // A client that has sent everything is not one that has failed.
    while !stage.stop_sending.load(Relaxed) {
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Claims, works, finishes what was done with the next claim.
fn work(mut worker: Box<dyn Worker>, stage: &Stage) -> Result<()> {
    let mut in_hand = Vec::new();
    while !stage.stop_working.load(Relaxed) {
        let claimed = worker.claim(&ids(&in_hand))?;
        finished(&in_hand, stage);
        if let (Some(took), false) = (claimed.took, claimed.runs.is_empty()) {
            stage.ledger.claimed(took.as_secs_f64() * 1e3);
        }
        if !claimed.runs.is_empty() {
            thread::sleep(WORK);
        }
        in_hand = fail_some(worker.as_mut(), claimed.runs, stage)?;
    }
    worker.complete(&ids(&in_hand))?;
    finished(&in_hand, stage);
    Ok(())
}

/// Takes held jobs, only as many as have waited long enough.
fn work_late(mut worker: Box<dyn Worker>, stage: &Stage) -> Result<()> {
    let (mut next, mut ripe) = (0, 0);
    while !stage.stop_working.load(Relaxed) {
        while next < stage.ledger.jobs() && stage.load.at(next) + stage.load.hold <= stage.start.elapsed() {
            ripe += usize::from(stage.load.job(next).lot == Lot::Held);
            next += 1;
        }
        // Full batches, until it is time to come to an end.
        if ripe < BATCH && !(ripe > 0 && stage.stop_sending.load(Relaxed)) {
            thread::sleep(LOOK);
            continue;
        }
        let runs = worker.claim(&[])?.runs;
        ripe = ripe.saturating_sub(runs.len());
        thread::sleep(WORK);
        worker.complete(&ids(&runs))?;
        finished(&runs, stage);
    }
    Ok(())
}

/// Fails those that have to. Returns the others.
fn fail_some(worker: &mut dyn Worker, runs: Vec<Run>, stage: &Stage) -> Result<Vec<Run>> {
    let job = |run: &Run| stage.load.job(run.number);
    let (failed, good): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| job(run).fails(run.attempt));
    let (dead, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(|run| job(run).is_fatal);
    for (runs, is_fatal) in [(failed, false), (dead, true)] {
        if !runs.is_empty() {
            worker.fail(&ids(&runs), is_fatal)?;
        }
        if is_fatal {
            finished(&runs, stage);
        }
    }
    Ok(good)
}

fn ids(runs: &[Run]) -> Vec<i64> {
    runs.iter().map(|run| run.id).collect()
}

fn finished(runs: &[Run], stage: &Stage) {
    let jobs = runs.iter().map(|run| stage.load.job(run.number));
    jobs.for_each(|job: Job| stage.ledger.done(&job));
}

fn tick(mut ticker: Ticker, stage: &Stage) -> Result<()> {
    while !stage.stop_working.load(Relaxed) {
        ticker()?;
        thread::sleep(TICK);
    }
    Ok(())
}

/// A transaction that looks once and then does nothing: no vacuum removes what has died since.
struct Snapshot {
    session: Client,
    pid: i32,
}

impl Snapshot {
    fn open(server: &Server) -> Result<Self> {
        let mut session = soak::connect(server)?;
        let pid = session.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
        session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")?;
        Ok(Self { session, pid })
    }

    /// Its age in transactions. An error when it is not there any more.
    fn close(mut self, server: &Server) -> Result<i64> {
        let sql = "SELECT age(backend_xmin)::bigint FROM pg_stat_activity WHERE pid = $1";
        let age: Option<i64> = soak::connect(server)?.query_one(sql, &[&self.pid])?.try_get(0)?;
        self.session.batch_execute("COMMIT")?;
        age.ok_or_else(|| "the snapshot was not held".into())
    }
}
