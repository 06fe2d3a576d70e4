//! `queue.schedule`, `unschedule`, `pause_schedule`, `resume_schedule`, `run_schedule`, `upcoming`: the life of a
//! schedule. The commit of every change wakes the worker.
//!
//! Not responsible for firing (`duty::fire_schedules`), nor for the arithmetic of slots (`core`).
//!
//! Invariant: if a schedule is replaced by one with the same plan, it keeps its slots. Programs may thus schedule their
//! jobs at every start.

use pg_queue_core::schedule::{Cron, LATEST, Missed, Plan, rfc3339};
use pgrx::pg_sys::{self, Datum};

use crate::api::command::Command;
use crate::api::{self, names, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::run_as::{self, RunAs};
use crate::catalog::schedule::{Schedule, Timing};
use crate::catalog::{self, drops, spi, topic};
use crate::error::{self, Error, Result};
use crate::job::options::Options;
use crate::job::schedule::Goal;
use crate::job::{self, headers, notice};
use crate::pg::argument::{Argument, kind};
use crate::pg::function::{Call, VOID};
use crate::pg::parameter::Parameter;
use crate::pg::{self, jsonb, time};
use crate::transaction::{self, ScheduleStep};
use crate::worker::absence;

sql_function!(pg_queue_schedule, pg_finfo_pg_queue_schedule => schedule);
sql_function!(pg_queue_unschedule, pg_finfo_pg_queue_unschedule => unschedule);
sql_function!(pg_queue_pause_schedule, pg_finfo_pg_queue_pause_schedule => pause);
sql_function!(pg_queue_resume_schedule, pg_finfo_pg_queue_resume_schedule => resume);
sql_function!(pg_queue_run_schedule, pg_finfo_pg_queue_run_schedule => run);
sql_function!(pg_queue_upcoming, pg_finfo_pg_queue_upcoming => upcoming);

fn name_of(call: &Call) -> Result<String> {
    call.need(args::schedule::NAME)
}

/// Returns a time; `None` if it is NULL.
///
/// Errors: 22023 if it is infinite.
fn finite(call: &Call, argument: Argument<kind::Timestamp>) -> Result<Option<i64>> {
    let (name, time) = (argument.name, call.get(argument));
    match time {
        Some(i64::MIN | i64::MAX) => {
            Err(Error::invalid(format!("{name} must be finite")).hint(format!("Leave {name} out.")))
        }
        _ => Ok(time),
    }
}

fn timing_of(call: &Call) -> Result<Timing> {
    let timezone = call.get(args::schedule::TIMEZONE).unwrap_or_else(|| "UTC".into());
    let timing = Timing {
        cron: call.get(args::schedule::CRON),
        every: call.get(args::schedule::EVERY),
        timezone: catalog::schedule::zone(&timezone)?.name().to_owned(),
        starts_at: finite(call, args::schedule::STARTS_AT)?,
        ends_at: finite(call, args::schedule::ENDS_AT)?,
    };
    if timing.cron.is_some() == timing.every.is_some() {
        let error = if timing.cron.is_some() {
            Error::invalid("cron and every cannot be given together")
        } else {
            Error::invalid("neither cron nor every is given")
        };
        return Err(error.hint("Give one of the two, for instance every => '1 hour'."));
    }
    if let (Some(from), Some(to)) = (timing.starts_at, timing.ends_at)
        && to <= from
    {
        return Err(Error::invalid("ends_at must be later than starts_at"));
    }
    Ok(timing)
}

/// Inserts a schedule, unless one with the name exists.
const INSERT_SCHEDULE: &str =
    "INSERT INTO queue_internal.schedule (schedule_name, queue_id, payload, cron, every, timezone, missed, starts_at,
         ends_at, overlap, priority, max_attempts, group_key, headers, anchor, planned_from, run_as, run_as_id,
         start_within)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
     ON CONFLICT (schedule_name) DO NOTHING";
/// Replaces a schedule. The caller appends its id and version, so that no other version is changed.
const REPLACE_SCHEDULE: &str =
    "UPDATE queue_internal.schedule SET queue_id = $2, payload = $3, cron = $4, every = $5, timezone = $6, missed = $7,
         starts_at = $8, ends_at = $9, overlap = $10, priority = $11, max_attempts = $12, group_key = $13,
         headers = $14, anchor = $15, planned_from = $16, run_as = $17, run_as_id = $18,
         start_within = $19, version = version OPERATOR(pg_catalog.+) 1
     WHERE schedule_name OPERATOR(pg_catalog.=) $1 AND schedule_id OPERATOR(pg_catalog.=) ";

/// `queue.schedule(name, queue_name, payload, cron, every, …, command)`: returns the next slot.
fn schedule(call: &Call) -> Result<Option<Datum>> {
    api::writable("schedule a job")?;
    let name = new_name(call)?;
    let queue_name = call.need(args::schedule::QUEUE_NAME)?;
    let timing = timing_of(call)?;
    let missed = call.get(args::schedule::MISSED).unwrap_or_else(|| "once".into());
    check_options(call, &missed)?;

    absence::warn();
    let goal = Goal::by_name(&queue_name)?;
    goal.check(Privilege::Manage)?;
    let lane = keep(&goal)?;
    let (payload, run_as) = content(call, &goal)?;
    let now = catalog::schedule::now_us();
    let has_new_text = loop {
        let before = find_or_lock(&name);
        before.as_ref().map_or(Ok(()), |before| may(before, Privilege::Manage))?;
        let (anchor, planned_from) = match &before {
            Some(before) => {
                let old = before.timing();
                let is_same = old == timing;
                let has_same_slots = is_same || Timing { ends_at: timing.ends_at, ..old } == timing;
                let anchor = if has_same_slots { before.anchor() } else { now };
                (anchor, if is_same { before.planned_from() } else { now })
            }
            None => (now, now),
        };
        check_fires(&timing.plan(anchor)?, planned_from, timing.ends_at.is_some_and(|at| at <= now))?;
        let time = |time: Option<i64>| Parameter::raw(time.map(Datum::from), pg_sys::TIMESTAMPTZOID);
        let given = Parameter::raw;
        let mut parameters = vec![
            name.clone().into(),
            goal.id().into(),
            given(Some(payload), pg_sys::JSONBOID),
            given(call.datum(args::schedule::CRON), pg_sys::TEXTOID),
            given(call.datum(args::schedule::EVERY), pg_sys::INTERVALOID),
            timing.timezone.clone().into(),
            missed.clone().into(),
            time(timing.starts_at),
            time(timing.ends_at),
            call.get(args::schedule::OVERLAP).unwrap_or(true).into(),
            call.get(args::schedule::PRIORITY).unwrap_or(0).into(),
            given(call.datum(args::schedule::MAX_ATTEMPTS), pg_sys::INT4OID),
            given(call.datum(args::schedule::GROUP_KEY), pg_sys::TEXTOID),
            given(call.datum(args::schedule::HEADERS), pg_sys::JSONBOID),
            time(Some(anchor)),
            time(Some(planned_from)),
            // If a command is replaced, it belongs to the role that replaces it.
            given(run_as.map(|role| role.name), pg_sys::TEXTOID),
            given(run_as.map(|role| role.id.into()), pg_sys::INT8OID),
            given(call.datum(args::schedule::START_WITHIN), pg_sys::INTERVALOID),
        ];
        // If another session has made, changed or removed the schedule meanwhile, the loop reads it and checks the
        // privilege again.
        let written = match &before {
            None => spi::run(INSERT_SCHEDULE, &parameters)?,
            Some(before) => {
                let n = parameters.len();
                parameters.extend::<[Parameter; 2]>([before.id().into(), before.version().into()]);
                let replace = format!("{REPLACE_SCHEDULE}${} AND version OPERATOR(pg_catalog.=) ${}", n + 1, n + 2);
                spi::run(&replace, &parameters)?
            }
        };
        if written > 0 {
            let meant = |timing: &Timing| timing.cron.as_deref().and_then(|cron| Cron::parse(cron).ok());
            break before.is_none_or(|before| meant(&before.timing()) != meant(&timing));
        }
        check_seen(&name)?;
    };
    transaction::record(ScheduleStep::Changed { lane });
    let made = catalog::schedule::by_name(&name)?;
    if has_new_text {
        notice_ambiguities(&made, now)?;
    }
    Ok(job::schedule::next_run_now(&made)?.map(Datum::from))
}

/// Sends a NOTICE if other tools read the schedule's cron expression in another way.
///
/// Errors: 22023 unless the plan is valid.
fn notice_ambiguities(schedule: &Schedule, now: i64) -> Result<()> {
    let cron = schedule.timing().cron.unwrap_or_default();
    let ambiguities = Cron::parse(&cron).map_or_else(|_| Vec::new(), |parsed| parsed.ambiguities(&cron));
    if !ambiguities.is_empty() {
        notice::ambiguous_cron(&cron, &ambiguities, &job::schedule::upcoming(schedule, now, 3)?);
    }
    Ok(())
}

/// Keeps other transactions from dropping a queue or topic. Returns the queue's lane, 0 for a topic.
///
/// Errors: 55006 when another transaction is dropping it.
fn keep(goal: &Goal) -> Result<i32> {
    match goal {
        Goal::Queue(queue) => drops::watch(queue.lane).map(|()| queue.lane),
        Goal::Topic(topic) => topic::lock(topic).map(|_| 0),
    }
}

/// Returns a schedule. If there is none, keeps other transactions from making it.
fn find_or_lock(name: &str) -> Option<Schedule> {
    let find = || catalog::schedule::by_name(name).ok();
    find().or_else(|| {
        names::lock_schedule(name);
        find()
    })
}

/// Returns the name of the schedule to make.
///
/// Errors: 22004, 22023 if it is empty or too long.
fn new_name(call: &Call) -> Result<String> {
    let name = name_of(call)?;
    match name.chars().count() {
        1..=200 => Ok(name),
        count => Err(Error::invalid("name must have 1 to 200 characters").detail(format!("It has {count}."))),
    }
}

/// Refuses options that would make the jobs of each slot fail.
///
/// Errors: 22023.
fn check_options(call: &Call, missed: &str) -> Result<()> {
    if Missed::parse(missed).is_none() {
        let error = Error::invalid(format!("invalid value for missed: \"{missed}\""));
        return Err(error.hint("Use 'skip', 'once' or 'all'."));
    }
    Options::default().set_max_attempts(call.get(args::schedule::MAX_ATTEMPTS))?;
    Options::default().set_group_key(call.datum(args::schedule::GROUP_KEY))?;
    headers::check(call.json(args::schedule::HEADERS)?)?;
    Options::default().set_timing(None, call.get(args::schedule::START_WITHIN), None)
}

/// Returns the payload of the jobs, and the role that runs them. Without the argument `command` the payload is data,
/// whatever the queue runs now or later.
///
/// Errors: 55000 a topic runs no commands; as `Command::payload`, `run_as::of_command` and `run_as::refuse_data`.
fn content(call: &Call, goal: &Goal) -> Result<(Datum, Option<RunAs>)> {
    match (call.get(args::schedule::COMMAND), goal) {
        (Some(command), Goal::Queue(queue)) => {
            let run_as = run_as::of_command(queue)?;
            Ok((Command::beside(command, call.json(args::schedule::PAYLOAD)?)?.payload()?, run_as))
        }
        (Some(_), Goal::Topic(topic)) => {
            let error = Error::new(error::WRONG_STATE, format!("\"{}\" is a topic, and runs no commands", topic.name));
            Err(error.hint("Name a queue with executor => 'sql'."))
        }
        (None, goal) => {
            if let Goal::Queue(queue) = goal {
                run_as::refuse_data(queue)?;
            }
            Ok((call.json(args::schedule::PAYLOAD)?.unwrap_or_else(jsonb::empty_object), None))
        }
    }
}

/// Checks that a plan has a slot after this time. A plan that has ended had one: programs may go on to schedule it at
/// every start.
///
/// Errors: 22023 if it never fires.
fn check_fires(plan: &Plan, planned_from: i64, has_ended: bool) -> Result<()> {
    let from = if has_ended { i64::MIN } else { planned_from };
    if plan.next_after(from).is_some() {
        return Ok(());
    }
    Err(Error::invalid("the schedule would never fire")
        .detail(format!("None of its times lies between starts_at and ends_at, and before {}.", rfc3339(LATEST)))
        .hint("Give an earlier starts_at, or a later ends_at."))
}

/// Checks that this transaction can see a change that another session has just made.
///
/// Errors: 40001 if it would never see the change.
fn check_seen(name: &str) -> Result<()> {
    if !pg::transaction::uses_one_snapshot() {
        return Ok(());
    }
    Err(Error::new(error::SERIALIZATION, format!("schedule \"{name}\" was changed since this transaction began"))
        .hint("Try again in a new transaction."))
}

/// Checks that the current user has a privilege on the schedule's queue. If the queue is gone, checks for the privilege
/// on every queue.
///
/// Errors: 42501 if the user lacks it.
fn may(schedule: &Schedule, wanted: Privilege) -> Result<()> {
    match Goal::by_id(schedule.queue_id())? {
        Some(goal) => goal.check(wanted),
        None => permission::check_everywhere(wanted),
    }
}

/// `queue.unschedule(name)`.
fn unschedule(call: &Call) -> Result<Option<Datum>> {
    change(
        call,
        "unschedule a job",
        "DELETE FROM queue_internal.schedule WHERE schedule_id OPERATOR(pg_catalog.=) $1",
        &[],
        |_| false,
    )
}

/// `queue.pause_schedule(name)`.
fn pause(call: &Call) -> Result<Option<Datum>> {
    change(
        call,
        "pause a schedule",
        "UPDATE queue_internal.schedule SET is_paused = true, version = version OPERATOR(pg_catalog.+) 1
         WHERE schedule_id OPERATOR(pg_catalog.=) $1 AND NOT is_paused",
        &[],
        Schedule::is_paused,
    )
}

/// `queue.resume_schedule(name)`: the slots until now do not count as missed.
fn resume(call: &Call) -> Result<Option<Datum>> {
    change(
        call,
        "resume a schedule",
        "UPDATE queue_internal.schedule
         SET is_paused = false, planned_from = $2, version = version OPERATOR(pg_catalog.+) 1
         WHERE schedule_id OPERATOR(pg_catalog.=) $1 AND is_paused",
        &[catalog::schedule::now_us()],
        |now| !now.is_paused(),
    )
}

/// Runs a statement on the schedule that the call names. `is_done` returns whether nothing is left to do, so that the
/// statement need not change a row.
fn change(call: &Call, verb: &str, sql: &str, times: &[i64], is_done: fn(&Schedule) -> bool) -> Result<Option<Datum>> {
    api::writable(verb)?;
    let name = name_of(call)?;
    loop {
        let schedule = catalog::schedule::by_name(&name)?;
        may(&schedule, Privilege::Manage)?;
        let mut parameters: Vec<Parameter> = vec![schedule.id().into()];
        parameters.extend(times.iter().map(|&time| Parameter::raw(Some(time.into()), pg_sys::TIMESTAMPTZOID)));
        parameters.push(schedule.queue_id().into());
        let sql = format!("{sql} AND queue_id OPERATOR(pg_catalog.=) ${}", parameters.len());
        // If another session has moved the schedule to another queue meanwhile, the loop checks the privilege on that
        // queue.
        let is_seen_to = |now: Schedule| now.queue_id() == schedule.queue_id() && is_done(&now);
        if spi::run(&sql, &parameters)? > 0 || catalog::schedule::by_name(&name).map_or(true, is_seen_to) {
            break;
        }
        check_seen(&name)?;
    }
    transaction::record(ScheduleStep::Changed { lane: 0 });
    Ok(Some(VOID))
}

/// `queue.run_schedule(name)`: enqueues a job and returns its id. If the schedule publishes on a topic, returns the id
/// of the first job, or NULL if there is none.
fn run(call: &Call) -> Result<Option<Datum>> {
    api::writable("run a schedule")?;
    let schedule = catalog::schedule::by_name(&name_of(call)?)?;
    may(&schedule, Privilege::Manage)?;
    let goal = job::schedule::goal(&schedule)?;
    let ids = goal.produce(&[(schedule.payload(), schedule.options(None))], time::now_us())?;
    Ok(ids.first().filter(|&&id| id != 0).map(|&id| id.into()))
}

/// `queue.upcoming(name, runs)`: returns the next slots, 10 if `runs` is NULL.
///
/// Errors: 22023 unless `runs` is between 0 and 10000.
fn upcoming(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let schedule = catalog::schedule::by_name(&name_of(call)?)?;
    may(&schedule, Privilege::Observe)?;
    let runs = call.get(args::upcoming::RUNS).unwrap_or(10);
    let runs = usize::try_from(runs)
        .ok()
        .filter(|&runs| runs <= 10_000)
        .ok_or_else(|| Error::invalid("runs must be between 0 and 10000").detail(format!("It is {runs}.")))?;
    for slot in job::schedule::upcoming(&schedule, catalog::schedule::now_us(), runs)? {
        rows.add(&mut [slot.into()], &mut [false])?;
    }
    Ok(None)
}
