//! `queue.create`, `alter`, `drop`, `pause`, `resume`: the life of a queue.
//!
//! A queue has a lane of its own and one for each stage. The lane of a removed stage is kept for the attempts that have
//! ended in it, and serves again if the stage comes back.
//!
//! Not responsible for how sessions read and cache queues (`catalog::queue`), nor for which roles may use them
//! (`permissions`).
//!
//! Invariant: settings are rows of `queue_internal.queue`, and the commit of every change tells all sessions.

use pg_queue_core::advice;
use pgrx::pg_sys::Datum;

use crate::api::queue_options::{self, QueueOption, Verb};
use crate::api::{self, executors, former_stages, names, permissions, sql_function, topics};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::{drops, schedule, spi, topic};
use crate::error::{self, Error, Result};
use crate::job::{living, notice};
use crate::pg::function::{Call, VOID};
use crate::pg::parameter::Parameter;
use crate::pg::{relcache, session};
use crate::transaction::{self, QueueStep, ScheduleStep};

sql_function!(pg_queue_create, pg_finfo_pg_queue_create => create);
sql_function!(pg_queue_alter, pg_finfo_pg_queue_alter => alter);
sql_function!(pg_queue_drop, pg_finfo_pg_queue_drop => drop_queue);
sql_function!(pg_queue_pause, pg_finfo_pg_queue_pause => pause);
sql_function!(pg_queue_resume, pg_finfo_pg_queue_resume => resume);

/// Checks the option `dead_letter`.
///
/// Errors: 42704 if there is no such queue or topic, 22023 if it is the queue itself or leads back to it, 42501 if the
/// current user may not enqueue into it, or publish on it.
fn check_dead_letter(target: Option<String>, name: &str) -> Result<()> {
    let Some(target) = target else { return Ok(()) };
    if target == name {
        return Err(Error::invalid(format!("queue \"{name}\" cannot be its own dead_letter"))
            .hint("Create another queue for the dead jobs."));
    }
    names::lock_dead_letters();
    match topic::find(&target)? {
        Some(topic) => permission::check_topic(&topic, Privilege::Produce)?,
        None => permission::check(&*queue::by_name(&target)?, Privilege::Produce)?,
    }
    names::check_no_circle(name, &target)
}

fn name_of(call: &Call) -> Result<String> {
    names::checked(call, args::create::QUEUE_NAME)
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
    let options = queue_options::given(call, Verb::Create)?;
    session::accept_invalidations();
    check_dead_letter(call.get(args::create::DEAD_LETTER), &name)?;
    let mut holds_name = false;
    loop {
        if let Ok(queue) = queue::by_name(&name) {
            if !call.get(args::create::IF_NOT_EXISTS).unwrap_or(false) {
                return Err(exists(&name));
            }
            permission::check(&queue, Privilege::Manage)?;
            match change(&name, &options, &[]) {
                // The queue was dropped while this transaction waited for it.
                Err(error) if error.code == error::UNDEFINED => {}
                altered => return altered,
            }
        } else if holds_name {
            if queue::is_topic(&name)? {
                return Err(names::taken_by_topic(&name));
            }
            break;
        } else {
            names::check_new(&name)?;
            // A queue of this name that another transaction is making cannot be seen before that ends. This transaction
            // waits for it here and not at the unique index, which raises 40001 in a transaction with one snapshot.
            names::lock(&name);
            holds_name = true;
        }
    }
    let mut columns = vec!["queue_name".to_owned()];
    let mut values = vec!["$1".to_owned()];
    let mut parameters: Vec<Parameter> = vec![name.clone().into()];
    for option in queue_options::ALL {
        columns.push(option.name.to_owned());
        values.push(option.default.to_owned());
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
            "WITH made AS (INSERT INTO queue_internal.queue ({}) VALUES ({})
                           ON CONFLICT (queue_name) DO NOTHING RETURNING queue_id, stages)
             INSERT INTO queue_internal.lane (queue_id, stage, is_held)
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
    queue::changed();
    permissions::created(queue::by_name(&name)?.id)?;
    let is_of_executor = |(option, _): &(&str, Parameter)| executors::OPTION_COLUMNS.contains(option);
    if options.iter().any(is_of_executor) {
        let queue = executors::check(&name)?;
        // The worker looks at queues that have an executor.
        announce(&queue, false);
    }
    Ok(Some(VOID))
}

/// `queue.alter(queue_name, …, reset)`.
fn alter(call: &Call) -> Result<Option<Datum>> {
    api::writable("alter a queue")?;
    let name = name_of(call)?;
    let options = queue_options::given(call, Verb::Alter)?;
    let reset = call.get(args::alter::RESET).unwrap_or_default();
    let mut reset = reset.into_iter().map(|r| call.required(args::alter::RESET, r)).collect::<Result<Vec<_>>>()?;
    reset.sort_unstable();
    reset.dedup();
    permission::check(&*queue::by_name(&name)?, Privilege::Manage)?;
    if options.is_empty() && reset.is_empty() {
        notice::nothing_to_alter(&name);
    }
    check_dead_letter(call.get(args::alter::DEAD_LETTER), &name)?;
    change(&name, &options, &reset)
}

/// Checks how many rows a statement on the row of a queue has found; the queue was there before.
///
/// Errors: 42704 if it was dropped meanwhile, 40001 if this transaction does not see its row.
fn check_found(name: &str, rows: usize) -> Result<()> {
    if rows > 0 {
        return Ok(());
    }
    session::accept_invalidations();
    queue::by_name(name)?;
    Err(Error::new(error::SERIALIZATION, format!("queue \"{name}\" was changed since this transaction began"))
        .hint("Try again in a new transaction."))
}

fn change(name: &str, options: &[(&'static str, Parameter)], reset: &[String]) -> Result<Option<Datum>> {
    let mut queue = queue::by_name(name)?;
    let mut parameters: Vec<Parameter> = vec![queue.id.into()];
    let mut settings = Vec::new();
    for option in reset {
        let Some(QueueOption { name: option, default, .. }) = queue_options::by_name(option) else {
            return Err(Error::invalid(format!("unknown option \"{option}\" in reset")).hint(
                match advice::nearest(option, queue_options::ALL.iter().map(|option| option.name)) {
                    Some(meant) => format!("There is the option '{meant}'."),
                    None => "Name options of queue.create, for instance 'max_attempts'.".to_owned(),
                },
            ));
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
        let lock =
            "SELECT queue_id::bigint FROM queue_internal.queue WHERE queue_id OPERATOR(pg_catalog.=) $1 FOR UPDATE";
        spi::i64_column(lock, &[queue.id.into()])?;
        // Another transaction may have changed the queue before this one got the lock.
        session::accept_invalidations();
        queue = queue::by_name(name)?;
    }
    if !settings.is_empty() {
        let sql =
            format!("UPDATE queue_internal.queue SET {} WHERE queue_id OPERATOR(pg_catalog.=) $1", settings.join(", "));
        check_found(name, spi::run(&sql, &parameters)?)?;
        if has_new_stages {
            change_stages(&queue)?;
        }
        announce(&queue, queue.is_paused);
        let changes = |of: &[&str]| of.iter().any(|option| sets(option));
        if changes(&executors::OPTION_COLUMNS) {
            let now = executors::check(name)?;
            let runs_commands = |queue: &Queue| matches!(queue.executor, Some(Executor::Sql));
            if has_new_executor && runs_commands(&now) && !runs_commands(&queue) {
                executors::check_no_data(&now)?;
            }
        }
        if changes(&queue_options::LIMITS) {
            transaction::record(QueueStep::LimitsAltered { lane: queue.lane });
        }
    }
    Ok(Some(VOID))
}

/// Makes lanes for the stages that a queue has now, and closes those of removed stages. `queue` is the queue before the
/// change.
///
/// Errors: 55000 if a removed stage has living jobs.
fn change_stages(queue: &Queue) -> Result<()> {
    spi::run(
        "INSERT INTO queue_internal.lane (queue_id, stage)
         SELECT queue_id, pg_catalog.unnest(stages) FROM queue_internal.queue WHERE queue_id OPERATOR(pg_catalog.=) $1
         ON CONFLICT (queue_id, stage) DO NOTHING",
        &[queue.id.into()],
    )?;
    queue::changed();
    relcache::forget_queues();
    let now = queue::by_name(&queue.name)?;
    for stage in queue.stages.iter().filter(|stage| !now.has_lane(stage.lane)) {
        drops::mark(stage.lane)?;
        transaction::record(QueueStep::StageRemoved { lane: stage.lane });
        if let Some(what) = living::any(&[stage.lane])? {
            return Err(Error::new(
                error::WRONG_STATE,
                format!("stage \"{}\" of queue \"{}\" has live jobs", stage.name, queue.name),
            )
            .detail(living::count(stage.lane).unwrap_or(what))
            .hint("Let workers finish them or advance them; a stage without live jobs can be removed."));
        }
    }
    let new = now.lanes().iter().filter(|&&lane| !queue.has_lane(lane));
    for &lane in new {
        transaction::record(QueueStep::Changed { lane, paused: queue.is_paused });
    }
    former_stages::clear(queue)
}

/// Lets the commit of this transaction tell all sessions of a change, and wake sleeping claimers.
fn announce(queue: &Queue, paused: bool) {
    queue::changed();
    for &lane in queue.lanes() {
        transaction::record(QueueStep::Changed { lane, paused });
    }
}

fn set_paused(call: &Call, paused: bool) -> Result<Option<Datum>> {
    api::writable(if paused { "pause a queue" } else { "resume a queue" })?;
    let name = call.need(args::pause::QUEUE_NAME)?;
    session::accept_invalidations();
    let queue = queue::by_name(&name)?;
    permission::check(&queue, Privilege::Manage)?;
    if queue.is_paused != paused {
        let sql = "UPDATE queue_internal.queue SET is_paused = $2 WHERE queue_id OPERATOR(pg_catalog.=) $1";
        check_found(&name, spi::run(sql, &[queue.id.into(), paused.into()])?)?;
    }
    announce(&queue, paused);
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
    let name = call.need(args::drop::QUEUE_NAME)?;
    let force = call.get(args::drop::FORCE).unwrap_or(false);
    if let Some(topic) = topic::find(&name)? {
        return topics::drop_topic(&topic, force);
    }
    session::accept_invalidations();
    let queue = match queue::by_name(&name) {
        Ok(queue) => queue,
        Err(error) if error.code != error::UNDEFINED => return Err(error),
        Err(_) if call.get(args::drop::IF_EXISTS).unwrap_or(false) => {
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
    permission::check(&queue, Privilege::Manage)?;
    for lane in queue.all_lanes() {
        // No session waits in the lanes of former stages.
        if queue.has_lane(lane) {
            drops::mark(lane)?;
        }
        // The step is recorded immediately: if there is no room for the next mark, the rollback has to remove this one.
        transaction::record(QueueStep::Dropped { lane });
    }
    if !force && let Some(what) = living::any(queue.living_lanes())? {
        return Err(Error::new(error::WRONG_STATE, format!("queue \"{name}\" has live jobs"))
            .detail(what)
            .hint("Let workers finish, use queue.purge, or force => true to drop them with the queue."));
    }
    if let Some(schedule) = schedule::of_queue(queue.id, |_| true) {
        if !force {
            return Err(Error::new(error::WRONG_STATE, format!("queue \"{name}\" has schedules"))
                .detail(format!("Schedule \"{schedule}\" enqueues into it."))
                .hint("Use queue.unschedule, or force => true to drop them with the queue."));
        }
        spi::run("DELETE FROM queue_internal.schedule WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
        transaction::record(ScheduleStep::Changed { lane: 0 });
    }
    topics::queue_dropped(queue.id)?;
    spi::run("DELETE FROM queue_internal.lane WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
    let gone =
        spi::run("DELETE FROM queue_internal.queue WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
    check_found(&name, gone)?;
    // The last statement has waited for sessions that had set weights.
    spi::run("DELETE FROM queue_internal.weight WHERE queue_id OPERATOR(pg_catalog.=) $1", &[queue.id.into()])?;
    permissions::dropped(queue.id)?;
    queue::changed();
    Ok(Some(VOID))
}
