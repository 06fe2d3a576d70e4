//! Finds processes for the jobs of queues with an executor. It tells an idle process of the queue, starts another one,
//! and stops processes whose job is not wanted any more. The processes claim by themselves, so that the worker waits
//! for none of them.
//!
//! The worker is in the lists of these queues' lanes, like a session that waits for jobs. So commits, gates that open
//! and changed queues wake it.
//!
//! Not responsible for the slots (`executor::table`), nor for what a process does (`executor`).
//!
//! Invariant: after a run the worker is in the list of each lane, or something will make it look again: a process that
//! it has told, or a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::frontier::{Next, WAIT_LANES, Wait};
use pgrx::pg_sys::Oid;

use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::run_as::{self, Noted};
use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::{Duty, Memory, Work};
use crate::error::{self, Error, Result};
use crate::executor::table::{Asked, Place};
use crate::executor::{job, process, table};
use crate::job::refill::refill;
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::pg::{session, time};
use crate::shmem::here;
use crate::{shmem, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "dispatch", is_due: Some(is_due), next_at, work: Work::Items(run) };

/// The first and the longest pause after the server had no slot for a process, or none could connect, in microseconds.
const SHORTAGE_PAUSE_US: std::ops::RangeInclusive<i64> = 1_000_000..=60_000_000;
/// If there is no slot for a process, the worker looks again after this long, in microseconds.
const FULL_PAUSE_US: i64 = 100_000;
/// At most this many queues are looked at in one run.
const BATCH_QUEUES: usize = 64;

/// What the worker knows. Another worker starts with nothing, which does no harm.
#[derive(Default)]
struct Known {
    /// The instance, and the number of changes of queues when the queues were read. `None`: not read yet.
    changes: Option<(u32, u64)>,
    /// The queues that have an executor.
    queues: Vec<Rc<Queue>>,
    /// The index of the queue at which the next run begins.
    next: usize,
    /// True if the worker is in the lists of the queues' lanes.
    is_waiting: bool,
    /// The monotonic time at which the worker must look. `i64::MAX`: something will wake it.
    look_at: i64,
    /// The pause after a shortage of slots, and the monotonic time at which it ends.
    shortage: (i64, i64),
    /// The roles as which no process could connect: the last pause, and the monotonic time at which it ends.
    failures: HashMap<u32, (i64, i64)>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
    /// The monotonic time by which a process must have done what it was told. The table of processes has its own lock,
    /// so this is read before the look under the frontier's lock.
    static PROCESSES_AT: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// Returns the number of changes of queues if this process is the worker. Only the worker dispatches: a session that
/// calls `queue.maintain()` cannot wait for processes.
fn is_worker() -> Option<u64> {
    shmem::with_instance(|_, instance| (instance.worker.pid == session::pid()).then_some(instance.changes)).flatten()
}

fn is_due() -> bool {
    let number = here::number();
    let Some(changes) = is_worker() else { return false };
    PROCESSES_AT.set(table::next_at(number));
    KNOWN.with_borrow(|known| {
        known.changes != Some((number, changes))
            || table::has_news(number)
            || !known.queues.is_empty() && known.must_look()
            || table::has_unwanted(number, is_unwanted)
    })
}

fn next_at(_: &Memory<'_, '_>) -> i64 {
    let look_at = KNOWN.with_borrow(|known| if known.queues.is_empty() { i64::MAX } else { known.look_at });
    look_at.min(PROCESSES_AT.get())
}

impl Known {
    fn must_look(&self) -> bool {
        let is_woken = || shmem::with(|shared| shared.frontier.sessions.is_woken(session::session()));
        self.look_at <= time::monotonic_us() || self.is_waiting && is_woken()
    }
}

/// True if a running attempt must be stopped: a cancel was requested, or the attempt has already ended.
fn is_unwanted(attempt: i64) -> bool {
    let number = here::number();
    let entry = shmem::with(|shared| shared.frontier.entry(number, attempt));
    entry.is_none_or(|entry| entry.cancel != 0)
}

fn run(care: &Care) -> Result<i64> {
    let number = here::number();
    let Some(changes) = is_worker() else { return Ok(0) };
    transaction::register();
    let stopped = table::stop(number, is_unwanted);
    let mut known = KNOWN.take();
    stop_waiting();
    known.is_waiting = false;
    known.look_at = i64::MAX;
    // If this run fails, the next one starts with nothing.
    KNOWN.set(Known { look_at: 0, failures: known.failures.clone(), ..Known::default() });
    let did = dispatch(&mut known, changes, care)?;
    KNOWN.set(known);
    PROCESSES_AT.set(table::next_at(number));
    Ok(stopped + did)
}

/// Serves the queues.
fn dispatch(known: &mut Known, changes: u64, care: &Care) -> Result<i64> {
    let number = here::number();
    if known.changes != Some((number, changes)) {
        session::accept_invalidations();
        known.queues = with_executor()?;
        known.changes = Some((number, changes));
    }
    for role in table::take_news(number) {
        let (pause, until) = known.failures.entry(role.to_u32()).or_default();
        *pause = (*pause * 2).clamp(*SHORTAGE_PAUSE_US.start(), *SHORTAGE_PAUSE_US.end());
        *until = time::monotonic_us() + *pause;
    }
    let mut did = 0;
    let mut waited_for = Vec::new();
    let count = known.queues.len();
    for n in 0..count.min(BATCH_QUEUES) {
        let queue = Rc::clone(&known.queues[(known.next + n) % count]);
        if queue.is_paused {
            waited_for.extend(queue.lanes().iter().map(|&lane| (lane, true)));
            continue;
        }
        // The process that was told of this queue will answer. Then the worker looks again.
        if table::is_in_flight(number, queue.lanes()) {
            continue;
        }
        let what = || format!("jobs of queue \"{}\" could not be given to a process", queue.name);
        let served = care.serve(what, || serve(known, &queue))?;
        match served.unwrap_or_else(|| Served::Later(time::monotonic_us() + PUT_OFF_US)) {
            Served::Nothing => waited_for.extend(queue.lanes().iter().map(|&lane| (lane, false))),
            Served::Asked => did += 1,
            Served::Again => {
                did += 1;
                known.look_at = 0;
            }
            Served::Later(at) => known.look_at = known.look_at.min(at),
        }
    }
    known.next = if count == 0 { 0 } else { (known.next + 1) % count };
    if count > BATCH_QUEUES {
        known.look_at = known.look_at.min(time::monotonic_us() + FULL_PAUSE_US);
    }
    for lanes in waited_for.chunks(WAIT_LANES).skip(1) {
        // A session cannot wait for more lanes than this. So the worker looks at all queues from time to time.
        let _ = lanes;
        known.look_at = known.look_at.min(time::monotonic_us() + FULL_PAUSE_US);
    }
    waited_for.truncate(WAIT_LANES);
    if !waited_for.is_empty() {
        match wait(&waited_for) {
            Some(Wait::Sleep) => known.is_waiting = true,
            Some(Wait::Look) => known.look_at = 0,
            _ => known.look_at = known.look_at.min(time::monotonic_us() + FULL_PAUSE_US),
        }
    }
    Ok(did)
}

/// Returns the queues that have an executor.
fn with_executor() -> Result<Vec<Rc<Queue>>> {
    let mut found: Vec<Rc<Queue>> = Vec::new();
    for lane in queue::lanes() {
        if let Some(queue) = queue::by_lane(lane)?
            && queue.executor.is_some()
            && found.iter().all(|known| known.id != queue.id)
        {
            found.push(queue);
        }
    }
    Ok(found)
}

/// Puts the worker into the lists of lanes, unless one has something to look at.
fn wait(lanes: &[(i32, bool)]) -> Option<Wait> {
    shmem::with_instance(|frontier, instance| {
        if !instance.restore.is_awake() {
            return None;
        }
        let answer = frontier.wait(session::session(), here::number(), lanes, 0);
        // The frontier itself opens gates that a rate has closed.
        Some(answer)
    })
    .flatten()
}

fn stop_waiting() {
    if let Some(next) = shmem::with(|shared| shared.frontier.stop_waiting(session::session())) {
        shmem::wake(next);
    }
}

/// The result of looking at a queue.
enum Served {
    /// The queue has no job that could start.
    Nothing,
    /// A process was told of the queue, or asked for.
    Asked,
    /// A change was made after which the queue must be looked at again.
    Again,
    /// No process is available before this monotonic time, or before a process reports.
    Later(i64),
}

fn serve(known: &mut Known, queue: &Rc<Queue>) -> Result<Served> {
    let lanes: Vec<(i32, bool)> = queue.lanes().iter().map(|&lane| (lane, false)).collect();
    let answer = wait(&lanes);
    stop_waiting();
    match answer {
        Some(Wait::Look) => {}
        Some(Wait::Sleep) => return Ok(Served::Nothing),
        _ => return Ok(Served::Later(time::monotonic_us() + FULL_PAUSE_US)),
    }
    let now = time::monotonic_us();
    let wanted = match &queue.executor {
        Some(Executor::Call { role, .. }) => {
            if !has_job(queue)? {
                return Ok(Served::Again);
            }
            Some(role.clone())
        }
        _ => match role_of_next(queue)? {
            Some(noted) => noted,
            None => return Ok(Served::Nothing),
        },
    };
    let role = match role_to_start(wanted.as_ref()) {
        Ok(role) => role,
        Err(why) => {
            let is_hopeless = |attempt: &Attempt| {
                !matches!(queue.executor, Some(Executor::Sql))
                    || match (job::writer(attempt), &wanted) {
                        (Some(writer), Some(wanted)) => writer.is(wanted),
                        (writer, wanted) => writer.is_none() && wanted.is_none(),
                    }
            };
            job::bury(queue, &is_hopeless, &why)?;
            return Ok(Served::Again);
        }
    };
    if let Some((_, until)) = known.failures.get(&role.to_u32()).filter(|(_, until)| *until > now) {
        // In a queue of commands, jobs of other roles may be behind this one.
        if !matches!(queue.executor, Some(Executor::Sql)) {
            return Ok(Served::Later(*until));
        }
        let is_its = |attempt: &Attempt| job::writer(attempt).and_then(|writer| writer.role()) == Some(role);
        job::put_off(queue, &is_its, until - now)?;
        return Ok(Served::Again);
    }
    let place = Place { database: session::database(), instance: here::number(), role };
    Ok(match table::find_process(place, queue.lane, known.shortage.1 <= now) {
        Asked::Told => {
            known.failures.remove(&role.to_u32());
            Served::Asked
        }
        Asked::Start { slot, start } if process::start(slot, start) => {
            known.shortage = (0, 0);
            Served::Asked
        }
        Asked::Start { slot, .. } => {
            table::not_started(slot);
            let pause = (known.shortage.0 * 2).clamp(*SHORTAGE_PAUSE_US.start(), *SHORTAGE_PAUSE_US.end());
            known.shortage = (pause, now + pause);
            Served::Later(now + FULL_PAUSE_US)
        }
        Asked::Later | Asked::Full => Served::Later(now + FULL_PAUSE_US),
    })
}

/// True if a job of the queue is next, as memory knows. If a lane must be read first, reads it and returns false.
fn has_job(queue: &Queue) -> Result<bool> {
    for &lane in queue.lanes() {
        let next = shmem::with(|shared| shared.frontier.next_in(here::number(), lane));
        match next {
            Next::Ready(_) => return Ok(true),
            Next::Unread => {
                refill(lane)?;
                return Ok(false);
            }
            Next::Nothing => {}
        }
    }
    Ok(true)
}

/// Returns the writer of a queue's next job. `Some(None)`: the job is data. `None`: there is no job.
fn role_of_next(queue: &Rc<Queue>) -> Result<Option<Option<Noted>>> {
    if let [lane] = queue.lanes() {
        let peeked = shmem::with(|shared| shared.frontier.peek(here::number(), *lane));
        if let Some(ready) = peeked
            && let Some(attempt) = Reader::new().fetch(&ready)
        {
            return Ok(Some(job::writer(&attempt)));
        }
    }
    job::probe(queue)
}

/// Returns the role for which a process can be started. Errors: the reason why none can.
fn role_to_start(wanted: Option<&Noted>) -> Result<Oid> {
    let Some(wanted) = wanted else {
        return Err(Error::invalid("the job is no command")
            .detail(
                "It was written as data: published, copied as a dead letter, or enqueued before the queue ran \
                commands.",
            )
            .hint("Write it as a command, with queue.enqueue_sql."));
    };
    let name = &wanted.name;
    let role = wanted.role().ok_or_else(|| {
        Error::new(error::UNDEFINED, format!("role \"{name}\" does not exist"))
            .detail("The role that wrote the job was dropped. A new role of that name is not the same role.")
    })?;
    run_as::may_run(role)?;
    Ok(role)
}
