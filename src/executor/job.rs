//! Runs one job: claims it, runs its command, and writes its outcome in the command's last transaction.
//!
//! Responsible for the outcome of a job whose command succeeds, fails, is cancelled, or has no time left. Not
//! responsible for running statements (`pg::portal`), nor for writing outcomes (`crate::job`).
//!
//! Invariant: the changes of a command's last transaction count if and only if its outcome does. If the process no
//! longer has the attempt, it writes no outcome, and that transaction rolls back.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::CString;
use std::rc::Rc;

use pg_queue_core::frontier::{Disconnect, State};
use serde_json::Value;

use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::{self, pin, run_as};
use crate::error::{self, Error, Result};
use crate::executor::settings;
use crate::executor::signals::{attempt, swallow_cancel, was_terminated};
use crate::executor::table::{self, Order, Place};
use crate::job::advance;
use crate::job::claim::{self, ClaimRequest};
use crate::job::complete;
use crate::job::fail::{Failure, end_badly};
use crate::job::held::Held;
use crate::job::hold;
use crate::job::outcomes::Outcomes;
use crate::job::release::{self, Back};
use crate::job::wait::ClaimScope;
use crate::log::attempt::Attempt;
use crate::log::note::{self, Note};
use crate::pg::datum::Interval;
use crate::pg::fault::fault;
use crate::pg::portal::{self, Answer, Argument, Command};
use crate::pg::routine::Routine;
use crate::pg::{client, jsonb, process, role, session, stored_json, time, transaction as pg_transaction};
use crate::shmem::{self, here};

/// The name under which executors claim.
const WORKER: &str = "executor";
/// A lease that ends within this many microseconds counts as expired.
const ALMOST_EXPIRED_US: i64 = 5_000;
/// A result can have at most this many rows.
pub const MAX_RESULT_ROWS: u64 = 10_000;

/// The answer to [`run_next`].
pub enum Ran {
    /// No job was found.
    Nothing,
    /// A job was run, with any outcome.
    Job,
    /// The session could not be cleaned, or the process was told to end: it has to leave.
    Broken,
}

/// A claimed job.
struct Job {
    id: i64,
    job_id: i64,
    queue: Rc<Queue>,
    payload: String,
    /// The monotonic time at which its lease ends.
    deadline: i64,
}

/// The attempt that this process runs.
#[derive(Clone, Copy)]
pub struct Current {
    pub id: i64,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// The queue after which the session is named.
    static NAMED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the attempt that this process is running. `None`: it runs none.
pub fn current() -> Option<Current> {
    CURRENT.get()
}

/// Claims the next job of a lane's queue and runs it.
pub fn run_next(slot: usize, place: Place, lane: i32) -> Ran {
    let job = match attempt(|| claim_next(place, lane)) {
        Ok(Some(job)) => job,
        Ok(None) => return Ran::Nothing,
        Err(error) => {
            if !was_terminated() {
                error.warn();
            }
            return Ran::Broken;
        }
    };
    if must_be_durable() {
        pg_transaction::flush_log();
    }
    fault!("executor.claimed");
    table::runs(slot, job.id, job.job_id);
    CURRENT.set(Some(Current { id: job.id }));
    client::take_notices();
    let ran = match attempt(|| pg_transaction::try_in_transaction(|| read_wanted(&job))) {
        Ok(wanted) => attempt(|| run(&job, &wanted)).map_err(|error| (error, false)),
        // The payload stays the same, so another attempt would fail in the same way.
        Err(error) => {
            let is_fatal = error.code == error::INVALID;
            Err((error, is_fatal))
        }
    };
    if let Err((error, is_fatal)) = ran {
        fault!("executor.failed");
        write_failure(slot, &job, &error, is_fatal);
    }
    CURRENT.set(None);
    portal::cancel_no_more();
    if table::ran(slot) {
        swallow_cancel();
    }
    if was_terminated() {
        return Ran::Broken;
    }
    match attempt(clean) {
        Ok(()) => Ran::Job,
        Err(_) => Ran::Broken,
    }
}

/// True if a claim has to be durable before the command runs. A crash of the server undoes a claim that is not durable,
/// and the attempt is not counted. So a command that crashes the server would run again and again. Therefore claims are
/// durable for a while after a crash.
fn must_be_durable() -> bool {
    /// In microseconds, after all claims from before the crash were known.
    const DURABLE_AFTER_CRASH_US: i64 = 600_000_000;
    shmem::is_after_crash() && {
        let known_at = shmem::with_instance_of(table::INSTANCE.get(), |_, instance| instance.recovered_at).unwrap_or(0);
        known_at == 0 || time::monotonic_us().saturating_sub(known_at) < DURABLE_AFTER_CRASH_US
    }
}

/// Claims in a transaction of its own, which need not be durable. If the claim is lost, the job waits again. The commit
/// of the outcome makes the claim durable, too.
fn claim_next(place: Place, lane: i32) -> Result<Option<Job>> {
    pg_transaction::try_in_transaction(|| {
        session::accept_invalidations();
        let _call = pin::begin();
        let catalog = catalog::current()?;
        let Some(queue) = queue::by_lane(lane)? else { return Ok(None) };
        let is_mine: &dyn Fn(&Attempt) -> bool = match &queue.executor {
            Some(Executor::Sql) => &|attempt| writer(attempt).and_then(|role| role.role()) == Some(place.role),
            Some(Executor::Call { role, .. }) if role.role() == Some(place.role) => &|_| true,
            _ => return Ok(None),
        };
        // The role may have lost that right since the process was started.
        if queue.is_paused || run_as::may_run(place.role).is_err() {
            return Ok(None);
        }
        let scope = ClaimScope::of_queue(&queue);
        if scope.is_dormant {
            return Ok(None);
        }
        session::commit_without_waiting();
        let found = RefCell::new(None);
        role::as_owner(catalog.queue, || {
            claim_one(&scope, &queue, is_mine, &|claimed| {
                let left = claimed.expires_at.saturating_sub(time::now_us());
                let payload = claimed.reader.payload(claimed.attempt, |payload| payload.map(jsonb::text));
                found.replace(Some(Job {
                    id: claimed.attempt.id(),
                    job_id: claimed.attempt.job_id(),
                    queue: Rc::clone(&queue),
                    payload: payload.unwrap_or_default(),
                    deadline: time::monotonic_us().saturating_add(left),
                }));
                Ok(())
            })
        })?;
        Ok(found.into_inner())
    })
}

/// Claims the next attempt of a queue if `is_it` accepts it. If the queue has groups, an attempt that is refused goes
/// behind the attempts of the other groups. Then this function tries the following attempts until it meets one twice.
fn claim_one(scope: &ClaimScope, queue: &Queue, is_it: &dyn Fn(&Attempt) -> bool, sink: claim::Sink<'_>) -> Result<()> {
    /// After this many refused attempts it gives up. Then the worker serves the queue again.
    const MAX_REFUSED: usize = 1_000;
    let refused = Cell::new(0);
    let accepts: &dyn Fn(&Attempt) -> bool = &|attempt| {
        let is_it = is_it(attempt);
        refused.set(if is_it { 0 } else { attempt.id() });
        is_it
    };
    let request = ClaimRequest {
        max_jobs: 1,
        lease: None,
        worker: Some(WORKER.to_owned()),
        disconnect: Disconnect::EXPIRES,
        accepts: Some(accepts),
    };
    let mut met = HashSet::new();
    loop {
        refused.set(0);
        claim::claim_first(scope, &request, sink)?;
        let id = refused.get();
        if id == 0 || !queue.has_groups() || met.len() == MAX_REFUSED || !met.insert(id) {
            return Ok(());
        }
    }
}

/// Returns the role that wrote an attempt's payload.
pub fn writer(attempt: &Attempt) -> Option<run_as::Noted> {
    attempt.writer().map(|role| role.noted(attempt.enqueued_at()))
}

/// The statement of a job and how it is run.
struct Wanted {
    text: CString,
    /// The function or procedure that it calls.
    routine: Option<Routine>,
    arguments: Vec<Argument>,
    is_autocommit: bool,
    max_rows: usize,
    settings: Vec<(CString, CString)>,
}

/// Reads the statement from the job's payload, or builds the call of the queue's procedure.
///
/// Errors: 22023 for a payload that is no command; those of `settings::of_job` and of `Procedure::find`.
fn read_wanted(job: &Job) -> Result<Wanted> {
    if let Some(Executor::Call { procedure, .. }) = &job.queue.executor {
        let found = procedure.find()?;
        let verb = if found.is_procedure { "CALL" } else { "SELECT" };
        return Ok(Wanted {
            text: c_string(&format!("{verb} {}($1)", found.name))?,
            routine: Some(found),
            arguments: vec![Argument { json: job.payload.clone(), text: Some(job.payload.clone()) }],
            is_autocommit: false,
            max_rows: 0,
            settings: settings::of_job(&job.queue, None)?,
        });
    }
    // No value is read as a Rust number, because that would lose digits.
    let payload = jsonb::of_text(&job.payload).unwrap_or_else(jsonb::empty_object);
    let field = |name: &str| jsonb::field(payload, name).filter(|value| !value.is_null());
    let command = field("command").and_then(|command| command.as_str());
    let command = command.ok_or_else(|| Error::invalid("the payload has no command"))?;
    let arguments = match field("arguments") {
        None => Vec::new(),
        Some(given) => jsonb::elements(given.datum())
            .ok_or_else(|| Error::invalid("arguments must be a JSON array"))?
            .iter()
            .map(|value| {
                let json = jsonb::text(value.datum());
                let text = if value.is_null() { None } else { value.as_str().or_else(|| Some(json.clone())) };
                Argument { json, text }
            })
            .collect(),
    };
    let rows = field("result_rows").and_then(|rows| rows.as_i32()).unwrap_or(0);
    Ok(Wanted {
        text: c_string(&command)?,
        routine: None,
        arguments,
        is_autocommit: field("autocommit").and_then(|is_so| is_so.as_bool()).unwrap_or(false),
        max_rows: u64::try_from(rows).unwrap_or(0).min(MAX_RESULT_ROWS) as usize,
        settings: settings::of_job(&job.queue, field("settings").map(|given| given.datum()))?,
    })
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("the command holds a zero character"))
}

/// Runs a job's command, and completes the job in the command's last transaction.
fn run(job: &Job, wanted: &Wanted) -> Result<()> {
    // A cancel request may have come before the process could be signalled.
    if is_cancelled(job.id) {
        return Err(Error::new(error::CANCELLED, "the job was cancelled"));
    }
    if !wanted.settings.is_empty() {
        pg_transaction::in_transaction(|| {
            wanted.settings.iter().for_each(|(name, value)| session::set_as_user(name, value));
        });
    }
    portal::cancel_after(job.deadline.saturating_sub(time::monotonic_us()));
    set_session_name(&job.queue.name);
    process::report_activity(Some(&wanted.text));
    let command = Command {
        text: &wanted.text,
        routine: wanted.routine.as_ref(),
        arguments: &wanted.arguments,
        is_autocommit: wanted.is_autocommit,
        max_rows: wanted.max_rows,
    };
    portal::run(&command, |answer| {
        fault!("executor.done");
        let _call = pin::begin();
        role::as_owner(catalog::current()?.queue, || complete(job, answer))
    })
}

/// Names the session after its queue.
fn set_session_name(queue: &str) {
    if NAMED.with_borrow(|named| named != queue) {
        process::set_application_name(&format!("pg_queue {queue}"));
        NAMED.set(queue.to_owned());
    }
}

fn is_cancelled(id: i64) -> bool {
    let entry = shmem::with(|shared| shared.frontier.entry(table::INSTANCE.get(), id));
    entry.is_some_and(|entry| entry.cancel != 0)
}

/// Completes the job in the open transaction, or advances it to the queue's next stage.
///
/// Errors: QJ001 if the process no longer has the attempt.
fn complete(job: &Job, answer: &Answer) -> Result<()> {
    // The command may have ended its own job.
    let entry = shmem::with(|shared| shared.frontier.entry(here::number(), job.id));
    if entry.is_some_and(|entry| entry.state == State::Ending && entry.owner == session::session()) {
        return Ok(());
    }
    note_notices(job)?;
    let result = jsonb::of_text(&result_of(answer));
    result.map_or(Ok(()), |result| stored_json::check(result, "the result"))?;
    let held = hold::hold_claimed(job.id)?;
    let mut outcomes = Outcomes::new();
    let queue = hold::queue_of(&mut outcomes, &held)?;
    // If the command has not moved the job itself, the job advances to the next stage.
    if let Some(lane) = queue.after(held.entry.lane).filter(|_| queue.goes_on_after(held.entry.lane)) {
        let held = hold::check_not_ended(&mut outcomes, held)?;
        let to = advance::To { queue: &queue, lane, run_at: None, payload: None };
        advance::advance(&mut outcomes, &held, &to)?;
        return outcomes.insert();
    }
    Ok(complete::end(outcomes, held, result)?)
}

/// Returns the answer of a command as JSON.
fn result_of(answer: &Answer) -> String {
    if let Some(value) = &answer.value
        && answer.kept.is_empty()
    {
        return value.clone();
    }
    let tag = Value::from(answer.tag.as_str());
    let data = if answer.kept.is_empty() { String::new() } else { format!(", \"data\": [{}]", answer.kept.join(", ")) };
    format!("{{\"rows\": {}, \"tag\": {tag}{data}}}", answer.rows)
}

/// Stores the server's notices to the command as the job's progress.
fn note_notices(job: &Job) -> Result<()> {
    let notices = client::take_notices();
    if notices.is_empty() {
        return Ok(());
    }
    let held = hold::check_claimed(job.id, &catalog::permission::Rights::everything())?;
    if note::summary(held.home.segment, job.id).progress().is_some() {
        return Ok(());
    }
    let Some(body) = jsonb::of(&serde_json::json!({ "notices": notices })) else { return Ok(()) };
    Ok(hold::write_note(job.id, held.home, Note::Progress(body))?)
}

/// Writes the outcome of a job whose command has failed. Each try is a transaction of its own.
fn write_failure(slot: usize, job: &Job, error: &Error, is_fatal: bool) {
    const MAX_TRIES: usize = 3;
    for _ in 0..MAX_TRIES {
        if !was_terminated() {
            process::forget_cancel();
        }
        let done = attempt(|| {
            process::forget_cancel();
            pg_transaction::try_in_transaction(|| {
                let _call = pin::begin();
                role::as_owner(catalog::current()?.queue, || end_failed(slot, job, error, is_fatal))
            })
        });
        match done {
            Ok(()) => return,
            Err(e) if e.code == error::LOST_LEASE => return,
            Err(e) => e.warn(),
        }
    }
}

/// True if the process must leave for a reason other than its job: the server stops, or the database is dropped.
fn must_leave(slot: usize) -> bool {
    matches!(table::order(slot), Order::Leave) || process::is_server_stopping()
}

fn end_failed(slot: usize, job: &Job, error: &Error, is_fatal: bool) -> Result<()> {
    let Some(entry) = shmem::with(|shared| shared.frontier.entry(here::number(), job.id)) else { return Ok(()) };
    let is_stopped = error.code == error::CANCELLED;
    if !was_terminated() && is_stopped && entry.cancel == 0 && job.deadline <= time::monotonic_us() + ALMOST_EXPIRED_US
    {
        // The worker ends the attempt as timed out.
        return Ok(());
    }
    note_notices(job)?;
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, job.id)?;
    let was_terminated = was_terminated() && is_stopped;
    if was_terminated && must_leave(slot) {
        release::give_back(&mut outcomes, &held, Back::after(Interval::ZERO))?;
        return outcomes.insert();
    }
    let notes = note::summary(held.home.segment, job.id);
    let reason = notes.cancel().map(|cancel| cancel.reason().unwrap_or_else(|| "cancelled".to_owned()));
    // A command can end its own process, again and again. So this counts as a failure.
    let ended = "57P01: the process was told to end";
    let text = reason.unwrap_or_else(|| if was_terminated { ended.to_owned() } else { text_of(error) });
    let is_conflict = matches!(error.code, "40001" | "40P01");
    let retry_in = is_conflict.then_some(Interval::ZERO);
    let failure = Failure::Reported { error: &text, retry_in, is_fatal };
    end_badly(&mut outcomes, &held, &failure)?;
    outcomes.insert()
}

/// Returns an error as the job stores it. SQLSTATE and message come first, so that equal errors are counted together.
fn text_of(error: &Error) -> String {
    let mut text = format!("{}: {}", error.code, error.message);
    if let Some(detail) = &error.detail {
        text.push_str(&format!("\nDETAIL: {detail}"));
    }
    if let Some(hint) = &error.hint {
        text.push_str(&format!("\nHINT: {hint}"));
    }
    text
}

/// Restores the session to its state before the job.
fn clean() -> Result<()> {
    let command = Command { text: c"DISCARD ALL", routine: None, arguments: &[], is_autocommit: false, max_rows: 0 };
    process::forget_cancel();
    portal::run_unlogged(&command)?;
    client::take_notices();
    portal::clear();
    Ok(())
}

/// Ends the next attempt of a queue's lanes as dead, with an error, if `is_hopeless` accepts it. For the worker.
/// Returns how many attempts it has ended.
pub fn bury(queue: &Rc<Queue>, is_hopeless: &dyn Fn(&Attempt) -> bool, why: &Error) -> Result<i64> {
    let Some((mut outcomes, held)) = take_next(queue, is_hopeless)? else { return Ok(0) };
    let failure = Failure::Reported { error: &text_of(why), retry_in: None, is_fatal: true };
    end_badly(&mut outcomes, &held, &failure)?;
    outcomes.insert()?;
    Ok(1)
}

/// Delays the next attempt of a queue's lanes by `microseconds` if `is_it` accepts it, without counting a failure. The
/// attempts behind it can run then. For the worker. Returns how many attempts it has delayed.
pub fn put_off(queue: &Rc<Queue>, is_it: &dyn Fn(&Attempt) -> bool, microseconds: i64) -> Result<i64> {
    let Some((mut outcomes, held)) = take_next(queue, is_it)? else { return Ok(0) };
    let delay = Interval { months: 0, days: 0, time: microseconds };
    release::give_back(&mut outcomes, &held, Back::after(delay))?;
    outcomes.insert()?;
    Ok(1)
}

/// Takes the next attempt of a queue's lanes, to end it, if `is_it` accepts it.
fn take_next(queue: &Rc<Queue>, is_it: &dyn Fn(&Attempt) -> bool) -> Result<Option<(Outcomes, Held)>> {
    let scope = ClaimScope::of_queue(queue);
    let found = Cell::new(None);
    claim_one(&scope, queue, is_it, &|claimed| {
        found.set(Some(claimed.attempt.id()));
        Ok(())
    })?;
    let Some(id) = found.get() else { return Ok(None) };
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    Ok(Some((outcomes, held)))
}

/// Returns the role of the attempt that the queue would hand out next. It takes the attempt and gives it back, for
/// queues where memory does not know the role. `None`: no attempt is ready.
pub fn probe(queue: &Rc<Queue>) -> Result<Option<Option<run_as::Noted>>> {
    let scope = ClaimScope::of_queue(queue);
    let met = RefCell::new(None);
    let note: &dyn Fn(&Attempt) -> bool = &|attempt| {
        met.replace(Some(writer(attempt)));
        false
    };
    let request =
        ClaimRequest { max_jobs: 1, lease: None, worker: None, disconnect: Disconnect::EXPIRES, accepts: Some(note) };
    claim::claim_first(&scope, &request, &|_| Ok(()))?;
    Ok(met.into_inner())
}
