//! `queue.create`, `alter`, `drop`, `pause`, `resume`: the life of a queue.
//!
//! A queue has a lane of its own and one for each stage. The lane of a removed stage is kept for the attempts that have
//! ended in it, and serves again if the stage comes back.
//!
//! Not here: how sessions read and cache queues (`catalog::queue`), and which roles may use them (`api::permissions`).
//!
//! Invariant: settings are rows of `queue.queue`, and the commit of every change tells all sessions.

use pg_queue_core::frontier::GATE_LANES;
use pgrx::pg_sys::{self, Datum};

use crate::api::{self, executors, former_stages, names, permissions, sql_function, topics};
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::{self, Catalog, drops, schedule, spi, topic};
use crate::error::{self, Error, Result};
use crate::job::notice;
use crate::job::options::lease_us;
use crate::log::waiting;
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::parameter::Parameter;
use crate::pg::{relcache, session};
use crate::shmem;
use crate::transaction::{self, Step};

sql_function!(pg_queue_create, pg_finfo_pg_queue_create => create);
sql_function!(pg_queue_alter, pg_finfo_pg_queue_alter => alter);
sql_function!(pg_queue_drop, pg_finfo_pg_queue_drop => drop_queue);
sql_function!(pg_queue_pause, pg_finfo_pg_queue_pause => pause);
sql_function!(pg_queue_resume, pg_finfo_pg_queue_resume => resume);

/// The type of an option.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    Int,
    BigInt,
    Interval,
    Text,
    Float,
    Bool,
    TextArray,
    Jsonb,
}

impl Type {
    fn oid(self) -> pg_sys::Oid {
        match self {
            Self::Int => pg_sys::INT4OID,
            Self::BigInt => pg_sys::INT8OID,
            Self::Interval => pg_sys::INTERVALOID,
            Self::Text => pg_sys::TEXTOID,
            Self::Float => pg_sys::FLOAT8OID,
            Self::Bool => pg_sys::BOOLOID,
            Self::TextArray => pg_sys::TEXTARRAYOID,
            Self::Jsonb => pg_sys::JSONBOID,
        }
    }
}

/// Options whose values shared memory keeps for all claimers.
const LIMITS: [&str; 7] = [
    "max_running",
    "max_running_per_group",
    "strict_order",
    "rate_limit",
    "rate_limit_per_group",
    "rate_period",
    "stages",
];

/// The options of a queue in the order of the arguments of `create` and `alter`: name, type, default as SQL.
const OPTIONS: [(&str, Type, &str); 23] = [
    ("max_attempts", Type::Int, "20"),
    ("lease", Type::Interval, "'5 minutes'"),
    ("backoff", Type::Text, "'exponential'"),
    ("backoff_base", Type::Interval, "'10 seconds'"),
    ("backoff_max", Type::Interval, "'1 day'"),
    ("backoff_jitter", Type::Float, "0.1"),
    ("retention", Type::Interval, "'1 day'"),
    ("dead_retention", Type::Interval, "'90 days'"),
    ("dead_letter", Type::Text, "NULL"),
    ("max_running", Type::Int, "NULL"),
    ("max_running_per_group", Type::Int, "NULL"),
    ("strict_order", Type::Bool, "false"),
    ("rate_limit", Type::Int, "NULL"),
    ("rate_period", Type::Interval, "'1 second'"),
    ("max_waiting", Type::BigInt, "NULL"),
    ("stages", Type::TextArray, "NULL"),
    ("notify", Type::Bool, "false"),
    ("if_not_exists", Type::Bool, "false"),
    ("executor", Type::Text, "NULL"),
    ("procedure", Type::Text, "NULL"),
    ("run_as", Type::Text, "NULL"),
    ("settings", Type::Jsonb, "NULL"),
    ("rate_limit_per_group", Type::Int, "NULL"),
];

/// The options that columns hold.
fn columns() -> impl Iterator<Item = &'static (&'static str, Type, &'static str)> {
    OPTIONS.iter().filter(|(name, ..)| *name != "if_not_exists")
}

/// Position of the first option among the arguments.
const FIRST: usize = 1;
/// Position of `dead_letter` among the arguments.
const DEAD_LETTER: usize = 9;
/// The most stages that a queue may have: together with its own lane as many as a gate counts.
const MAX_STAGES: usize = GATE_LANES - 1;
/// Position of `if_not_exists` (create) and of `reset` (alter).
const LAST: usize = 18;

/// Returns the options that were given, checked: column and value.
///
/// Errors: 22023 for values out of range.
fn given(call: &Call) -> Result<Vec<(&'static str, Parameter)>> {
    let mut found = Vec::new();
    for (k, (name, kind, _)) in OPTIONS.iter().enumerate().filter(|(k, _)| FIRST + k != LAST) {
        let n = FIRST + k;
        let Some(datum) = call.datum(n) else { continue };
        match *name {
            "max_attempts" if !(1..=1_000_000).contains(&call.i32(n).unwrap_or(0)) => {
                return Err(Error::invalid("max_attempts must be between 1 and 1000000")
                    .detail(format!("It is {}.", call.i32(n).unwrap_or(0))));
            }
            "lease" => {
                call.interval(n).map(lease_us).transpose()?;
            }
            "backoff" => {
                let value = call.text(n).unwrap_or_default();
                if pg_queue_core::backoff::Curve::parse(&value).is_none() {
                    return Err(Error::invalid(format!("invalid value for backoff: \"{value}\""))
                        .hint("Use 'constant', 'linear' or 'exponential'."));
                }
            }
            "backoff_jitter" if !(0.0..=1.0).contains(&call.f64(n).unwrap_or(-1.0)) => {
                return Err(Error::invalid("backoff_jitter must be between 0 and 1")
                    .detail(format!("It is {}.", call.f64(n).unwrap_or(0.0))));
            }
            "backoff_base" | "backoff_max" if call.interval(n).map_or(0, Interval::us) < 0 => {
                return Err(Error::invalid(format!("{name} cannot be negative")).detail(given_interval(call, n)));
            }
            // '-1' means for ever. As an interval it is minus one second.
            "retention" | "dead_retention"
                if !(call.interval(n).map_or(0, Interval::us) >= 0 || is_for_ever(call, n)) =>
            {
                return Err(Error::invalid(format!("{name} cannot be negative"))
                    .detail(given_interval(call, n))
                    .hint("Use '0' to keep nothing, '-1' to keep all for ever."));
            }
            "max_running" | "max_running_per_group" | "rate_limit" | "rate_limit_per_group"
                if call.i32(n).is_some_and(|limit| limit < 1) =>
            {
                return Err(Error::invalid(format!("{name} must be at least 1"))
                    .detail(format!("It is {}.", call.i32(n).unwrap_or(0)))
                    .hint("To stop a queue use queue.pause; to lift the limit, queue.alter with reset."));
            }
            "max_waiting" if call.i64(n).is_some_and(|limit| limit < 1) => {
                return Err(Error::invalid("max_waiting must be at least 1")
                    .detail(format!("It is {}.", call.i64(n).unwrap_or(0))));
            }
            "stages" => check_stages(&call.text_array(n).unwrap_or_default())?,
            "executor" => executors::check_kind(&call.text(n).unwrap_or_default())?,
            "rate_period" if call.interval(n).map_or(0, Interval::us) <= 0 => {
                return Err(Error::invalid("rate_period must be positive").detail(given_interval(call, n)));
            }
            _ => {}
        }
        let text = || call.text(n).unwrap_or_default();
        match *name {
            "procedure" => found.extend(executors::procedure(&text())?),
            "run_as" => found.extend(executors::run_as(&text())?),
            "settings" => found.extend(executors::settings(datum)?),
            name => found.push((name, Parameter::raw(Some(datum), kind.oid()))),
        }
    }
    Ok(found)
}

fn given_interval(call: &Call, n: usize) -> String {
    format!("It is {}.", call.interval(n).map_or_else(String::new, Interval::text))
}

/// Checks the names of stages.
///
/// Errors: 22023 unless there are 1 to `MAX_STAGES` different names of 1 to 200 characters.
fn check_stages(stages: &[Option<String>]) -> Result<()> {
    if stages.is_empty() || stages.len() > MAX_STAGES {
        return Err(Error::invalid(format!("stages must name 1 to {MAX_STAGES} stages"))
            .detail(format!("It names {}.", stages.len()))
            .hint("For a queue without stages leave them out, or use reset => '{stages}'."));
    }
    for (n, stage) in stages.iter().enumerate() {
        let Some(name) = stage else { return Err(Error::null(&format!("stages[{}]", n + 1))) };
        let length = name.chars().count();
        if !(1..=200).contains(&length) {
            return Err(Error::invalid(format!("stages[{}] must have 1 to 200 characters", n + 1))
                .detail(format!("It has {length}.")));
        }
        if stages[..n].contains(stage) {
            return Err(Error::invalid(format!("stage \"{name}\" is named twice")));
        }
    }
    Ok(())
}

/// Checks the option `dead_letter`.
///
/// Errors: 42704 if there is no such queue or topic, 22023 if it is the queue itself or leads back to it, 42501 if the current
/// user may not enqueue into it, or publish on it.
fn check_dead_letter(catalog: &Catalog, call: &Call, name: &str) -> Result<()> {
    let Some(target) = call.text(DEAD_LETTER) else { return Ok(()) };
    if target == name {
        return Err(Error::invalid(format!("queue \"{name}\" cannot be its own dead_letter"))
            .hint("Create another queue for the dead jobs."));
    }
    names::lock_ways(catalog);
    match topic::find(&target)? {
        Some(topic) => permission::check_topic(catalog, &topic, Privilege::Produce)?,
        None => permission::check(catalog, &*queue::by_name(catalog, &target)?, Privilege::Produce)?,
    }
    names::check_no_circle(catalog, name, &target)
}

fn is_for_ever(call: &Call, n: usize) -> bool {
    call.interval(n) == Some(Interval { months: 0, days: 0, time: -1_000_000 })
}

fn name_of(call: &Call) -> Result<String> {
    names::checked("queue_name", call)
}

fn exists(name: &str) -> Error {
    Error::new(error::DUPLICATE, format!("queue \"{name}\" already exists"))
        .hint("Use queue.alter, or if_not_exists => true.")
}

/// `queue.create(queue_name, …, if_not_exists)`. If the queue exists and `if_not_exists` is true, its options are
/// altered to the given ones.
fn create(call: &Call) -> Result<Option<Datum>> {
    api::writable("create a queue")?;
    let name = name_of(call)?;
    let options = given(call)?;
    let catalog = catalog::current()?;
    session::accept_invalidations();
    check_dead_letter(&catalog, call, &name)?;
    let mut holds_name = false;
    loop {
        if let Ok(queue) = queue::by_name(&catalog, &name) {
            if !call.bool(LAST).unwrap_or(false) {
                return Err(exists(&name));
            }
            permission::check(&catalog, &queue, Privilege::Manage)?;
            match change(&catalog, &name, &options, &[]) {
                // The queue was dropped while this transaction waited for it.
                Err(error) if error.code == error::UNDEFINED => {}
                altered => return altered,
            }
        } else if holds_name {
            if queue::is_topic(&name)? {
                return Err(names::is_a_topic_s(&name));
            }
            break;
        } else {
            names::check_new(&name)?;
            // A queue of this name that another transaction is making cannot be seen before that ends. This transaction
            // waits for it here and not at the unique index, which raises 40001 in a transaction with one snapshot.
            names::lock(&catalog, &name);
            holds_name = true;
        }
    }
    let mut columns = vec!["queue_name".to_owned()];
    let mut values = vec!["$1".to_owned()];
    let mut parameters: Vec<Parameter> = vec![name.clone().into()];
    for (option, _, default) in self::columns() {
        columns.push((*option).to_owned());
        values.push((*default).to_owned());
    }
    for (option, parameter) in &options {
        parameters.push(*parameter);
        let value = format!("${}", parameters.len());
        match columns.iter().position(|c| c == option) {
            Some(at) => values[at] = value,
            None => {
                columns.push((*option).to_owned());
                values.push(value);
            }
        }
    }
    let made = spi::run(
        &format!(
            "WITH made AS (INSERT INTO queue.queue ({}) VALUES ({})
                           ON CONFLICT (queue_name) DO NOTHING RETURNING queue_id, stages)
             INSERT INTO queue.lane (queue_id, stage, is_held)
             SELECT queue_id, NULL, is_held FROM made, (VALUES (false), (true)) AS kind (is_held)
             UNION ALL SELECT queue_id, pg_catalog.unnest(stages), false FROM made RETURNING lane",
            columns.join(", "),
            values.join(", "),
        ),
        &parameters,
    )?;
    if made == 0 {
        return Err(exists(&name));
    }
    queue::changed(&catalog);
    permissions::created(&catalog, queue::by_name(&catalog, &name)?.id)?;
    let is_of_executor = |(option, _): &(&str, Parameter)| executors::OPTIONS.contains(option);
    if options.iter().any(is_of_executor) {
        let queue = executors::check(&catalog, &name)?;
        // The worker looks at queues that have an executor.
        announce(&catalog, &queue, false);
    }
    Ok(Some(VOID))
}

/// `queue.alter(queue_name, …, reset)`.
fn alter(call: &Call) -> Result<Option<Datum>> {
    api::writable("alter a queue")?;
    let name = name_of(call)?;
    let options = given(call)?;
    let reset = call.text_array(LAST).unwrap_or_default();
    let mut reset = reset.into_iter().map(|r| call.required("reset", r)).collect::<Result<Vec<_>>>()?;
    reset.sort_unstable();
    reset.dedup();
    let catalog = catalog::current()?;
    permission::check(&catalog, &*queue::by_name(&catalog, &name)?, Privilege::Manage)?;
    if options.is_empty() && reset.is_empty() {
        notice::nothing_to_alter(&name);
    }
    check_dead_letter(&catalog, call, &name)?;
    change(&catalog, &name, &options, &reset)
}

/// Checks how many rows a statement on the row of a queue has found; the queue was there before.
///
/// Errors: 42704 if it was dropped meanwhile, 40001 if this transaction does not see its row.
fn check_found(catalog: &Catalog, name: &str, rows: usize) -> Result<()> {
    if rows > 0 {
        return Ok(());
    }
    session::accept_invalidations();
    queue::by_name(catalog, name)?;
    Err(Error::new(error::SERIALIZATION, format!("queue \"{name}\" was changed since this transaction began"))
        .hint("Try again in a new transaction."))
}

fn change(
    catalog: &Catalog,
    name: &str,
    options: &[(&'static str, Parameter)],
    reset: &[String],
) -> Result<Option<Datum>> {
    let mut queue = queue::by_name(catalog, name)?;
    let mut parameters: Vec<Parameter> = vec![queue.id.into()];
    let mut settings = Vec::new();
    for option in reset {
        let known = columns().find(|(name, ..)| name == option);
        let Some((option, _, default)) = known else {
            return Err(Error::invalid(format!("unknown option \"{option}\" in reset"))
                .hint("Name options of queue.create, for instance 'max_attempts'."));
        };
        if options.iter().any(|(given, _)| given == option) {
            return Err(Error::invalid(format!("option \"{option}\" is both given and reset")));
        }
        settings.push(format!("{option} = {default}"));
        settings.extend(executors::beside(option).iter().map(|column| format!("{column} = NULL")));
    }
    for (option, parameter) in options {
        parameters.push(*parameter);
        settings.push(format!("{option} = ${}", parameters.len()));
    }
    let sets = |option: &str| settings.iter().any(|setting| setting.split(' ').next() == Some(option));
    let has_new_stages = sets("stages");
    let has_new_executor = sets("executor");
    if has_new_stages || has_new_executor {
        let lock = "SELECT queue_id::bigint FROM queue.queue WHERE queue_id OPERATOR(pg_catalog.=) $1 FOR UPDATE";
        spi::i64_column(lock, &[queue.id.into()])?;
        // Another transaction may have changed the queue before this one got the lock.
        session::accept_invalidations();
        queue = queue::by_name(catalog, name)?;
    }
    if !settings.is_empty() {
        let sql = format!("UPDATE queue.queue SET {} WHERE queue_id OPERATOR(pg_catalog.=) $1", settings.join(", "));
        check_found(catalog, name, spi::run(&sql, &parameters)?)?;
        if has_new_stages {
            change_stages(catalog, &queue)?;
        }
        announce(catalog, &queue, queue.is_paused);
        let changes = |of: &[&str]| of.iter().any(|option| sets(option));
        if changes(&executors::OPTIONS) {
            let now = executors::check(catalog, name)?;
            let runs_commands = |queue: &Queue| matches!(queue.executor, Some(Executor::Sql));
            if has_new_executor && runs_commands(&now) && !runs_commands(&queue) {
                executors::check_no_data(catalog, &now)?;
            }
        }
        if changes(&LIMITS) {
            transaction::record(catalog.number, Step::LimitsAltered { lane: queue.lane });
        }
    }
    Ok(Some(VOID))
}

/// Makes lanes for the stages that a queue has now, and closes those of removed stages. `queue` is the queue before the
/// change.
///
/// Errors: 55000 if a removed stage has live jobs.
fn change_stages(catalog: &Catalog, queue: &Queue) -> Result<()> {
    spi::run(
        "INSERT INTO queue.lane (queue_id, stage)
         SELECT queue_id, pg_catalog.unnest(stages) FROM queue.queue WHERE queue_id OPERATOR(pg_catalog.=) $1
         ON CONFLICT (queue_id, stage) DO NOTHING",
        &[queue.id.into()],
    )?;
    queue::changed(catalog);
    relcache::forget_queues();
    let now = queue::by_name(catalog, &queue.name)?;
    for stage in queue.stages.iter().filter(|stage| !now.has_lane(stage.lane)) {
        drops::mark(catalog, stage.lane)?;
        transaction::record(catalog.number, Step::LaneClosed { lane: stage.lane });
        if let Some(what) = waiting::any_living(catalog, stage.lane, &|_| true)? {
            return Err(Error::new(
                error::WRONG_STATE,
                format!("stage \"{}\" of queue \"{}\" has live jobs", stage.name, queue.name),
            )
            .detail(living(catalog, stage.lane).unwrap_or(what))
            .hint("Let workers finish them or advance them; a stage without live jobs can be removed."));
        }
    }
    let new = now.lanes().iter().filter(|&&lane| !queue.has_lane(lane));
    for &lane in new {
        transaction::record(catalog.number, Step::LaneChanged { lane, paused: queue.is_paused });
    }
    former_stages::clear(catalog, queue)
}

/// Returns a sentence that tells how many jobs live in a lane, if memory knows of any.
fn living(catalog: &Catalog, lane: i32) -> Option<String> {
    let number = catalog.number;
    let counts = shmem::with_counters(number, |counters| counters.get(number, lane).map(|counter| counter.counts))??;
    let living = counts.waiting + counts.running;
    (living > 0).then(|| format!("Live jobs: {living}."))
}

/// Makes the commit of this transaction tell all sessions of a change and make sleeping claimers look again.
fn announce(catalog: &Catalog, queue: &Queue, paused: bool) {
    queue::changed(catalog);
    for &lane in queue.lanes() {
        transaction::record(catalog.number, Step::LaneChanged { lane, paused });
    }
}

fn set_paused(call: &Call, paused: bool) -> Result<Option<Datum>> {
    api::writable(if paused { "pause a queue" } else { "resume a queue" })?;
    let name = call.required("queue_name", call.text(0))?;
    let catalog = catalog::current()?;
    session::accept_invalidations();
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Manage)?;
    if queue.is_paused != paused {
        let sql = "UPDATE queue.queue SET is_paused = $2 WHERE queue_id OPERATOR(pg_catalog.=) $1";
        check_found(&catalog, &name, spi::run(sql, &[queue.id.into(), paused.into()])?)?;
    }
    announce(&catalog, &queue, paused);
    Ok(Some(VOID))
}

/// `queue.pause(queue_name)`.
fn pause(call: &Call) -> Result<Option<Datum>> {
    set_paused(call, true)
}

/// `queue.resume(queue_name)`.
fn resume(call: &Call) -> Result<Option<Datum>> {
    set_paused(call, false)
}

/// `queue.drop(queue_name, force, if_exists)`.
fn drop_queue(call: &Call) -> Result<Option<Datum>> {
    api::writable("drop a queue")?;
    let name = call.required("queue_name", call.text(0))?;
    let force = call.bool(1).unwrap_or(false);
    let catalog = catalog::current()?;
    if let Some(topic) = topic::find(&name)? {
        return topics::drop_topic(&catalog, &topic, force);
    }
    session::accept_invalidations();
    let queue = match queue::by_name(&catalog, &name) {
        Ok(queue) => queue,
        Err(error) if error.code != error::UNDEFINED => return Err(error),
        Err(_) if call.bool(2).unwrap_or(false) => {
            notice::no_queue_to_drop(&name);
            return Ok(Some(VOID));
        }
        Err(error) => {
            return Err(Error {
                hint: Some(
                    "Those that there are: SELECT queue_name FROM queue.queues. if_exists => true passes over it."
                        .into(),
                ),
                ..error
            });
        }
    };
    permission::check(&catalog, &queue, Privilege::Manage)?;
    for lane in queue.all_lanes() {
        // No session waits in the lanes of former stages.
        if queue.has_lane(lane) {
            drops::mark(&catalog, lane)?;
        }
        // It is recorded at once: if there is no room for the next mark, the abort has to take this one away.
        transaction::record(catalog.number, Step::LaneDropped { lane });
    }
    if !force && let Some(what) = any_living(&catalog, queue.living_lanes())? {
        return Err(Error::new(error::WRONG_STATE, format!("queue \"{name}\" has live jobs"))
            .detail(what)
            .hint("Let workers finish, use queue.purge, or force => true to drop them with the queue."));
    }
    if let Some(schedule) = schedule::of_queue(&catalog, queue.id, |_| true) {
        if !force {
            return Err(Error::new(error::WRONG_STATE, format!("queue \"{name}\" has schedules"))
                .detail(format!("Schedule \"{schedule}\" enqueues into it."))
                .hint("Use queue.unschedule, or force => true to drop them with the queue."));
        }
        spi::run("DELETE FROM queue.schedule WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
        transaction::record(catalog.number, Step::SchedulesChanged { lane: 0 });
    }
    topics::queue_dropped(queue.id)?;
    spi::run("DELETE FROM queue.lane WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
    let gone = spi::run("DELETE FROM queue.queue WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
    check_found(&catalog, &name, gone)?;
    permissions::dropped(&catalog, queue.id)?;
    queue::changed(&catalog);
    Ok(Some(VOID))
}

fn any_living(catalog: &Catalog, lanes: &[i32]) -> Result<Option<String>> {
    for &lane in lanes {
        if let Some(what) = waiting::any_living(catalog, lane, &|_| true)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}
