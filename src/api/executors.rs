//! The options of a queue whose jobs run in the server: `executor`, `procedure`, `run_as`, `settings`.
//!
//! Not responsible for running the jobs (`executor`), nor for the role as which a command runs (`catalog::run_as`).
//!
//! Invariant: only a user that may SET ROLE to a queue's role can change any of these options. A queue begins to run
//! commands only if nothing in it is data.

use std::rc::Rc;

use pgrx::pg_sys::{self, Datum};

use crate::api::names;
use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::{self, permission, schedule, topic};
use crate::error::{self, Error, Result};
use crate::job::living;
use crate::pg::parameter::Parameter;
use crate::pg::{jsonb, relcache, role, routine, session};

/// The columns of the options.
pub const OPTION_COLUMNS: [&str; 4] = ["executor", "procedure", "run_as", "settings"];

/// Checks the option `executor`.
///
/// Errors: 22023 if the kind does not exist.
pub fn check_kind(kind: &str) -> Result<()> {
    if matches!(kind, "sql" | "call") {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid value for executor: \"{kind}\"")).hint("Use 'sql' or 'call'."))
}

/// Checks settings for a session.
///
/// Errors: 22023 unless they are a JSON object of scalar values whose names are settings.
pub fn check_settings(settings: Datum) -> Result<()> {
    let wrong = || Error::invalid("settings must be a JSON object of settings and their values");
    if !jsonb::is_object(settings) {
        return Err(wrong().hint("For instance: '{\"work_mem\": \"64MB\"}'."));
    }
    for (name, value) in jsonb::fields(settings) {
        if value.is_container() || value.is_null() {
            return Err(wrong().detail(format!("The value of \"{name}\" is none.")));
        }
        if !session::is_setting(&name) {
            return Err(Error::invalid(format!("there is no setting \"{name}\""))
                .hint("View pg_settings lists them; those of extensions have a dot in their names."));
        }
    }
    Ok(())
}

/// A column of a queue, and its new value.
pub type Setting = (&'static str, Parameter);

/// Returns what a queue's row stores about a procedure or function of one jsonb: its full name, its oid and its owner.
///
/// Errors: 42883 if neither exists.
pub fn procedure(name: &str) -> Result<Vec<Setting>> {
    let found = routine::find(name).ok_or_else(|| {
        Error::new(error::NO_FUNCTION, format!("there is no procedure {name}(jsonb)"))
            .detail("Nor is there a function.")
            .hint("Give its name as in SQL, with its schema.")
    })?;
    let mut noted = vec![("procedure", found.name.into()), ("procedure_id", oid(found.oid))];
    noted.extend(noted_role(["procedure_owner", "procedure_owner_id"], found.owner));
    Ok(noted)
}

/// Returns what a queue's row stores about the role as which its jobs run.
///
/// Errors: 42704 if the role does not exist.
pub fn run_as(name: &str) -> Result<Vec<Setting>> {
    let role = role::role(name).ok_or_else(|| permission::no_role(name))?;
    Ok(noted_role(["run_as", "run_as_id"], role).into())
}

/// Returns what a queue's row stores about settings, and about the current user, which has set them.
///
/// Errors: as `check_settings`.
pub fn settings(given: Datum) -> Result<Vec<Setting>> {
    check_settings(given)?;
    let mut noted = vec![("settings", Parameter::raw(Some(given), pg_sys::JSONBOID))];
    noted.extend(noted_role(["settings_by", "settings_by_id"], role::user()));
    Ok(noted)
}

/// Returns the further columns that store an option.
pub fn beside(option: &str) -> &'static [&'static str] {
    match option {
        "procedure" => &["procedure_id", "procedure_owner", "procedure_owner_id"],
        "run_as" => &["run_as_id"],
        "settings" => &["settings_by", "settings_by_id"],
        _ => &[],
    }
}

fn oid(oid: pg_sys::Oid) -> Parameter {
    Parameter::raw(Some(i64::from(oid.to_u32()).into()), pg_sys::INT8OID)
}

fn noted_role([name, id]: [&'static str; 2], role: pg_sys::Oid) -> [Setting; 2] {
    [(name, role::role_name(role).unwrap_or_default().into()), (id, oid(role))]
}

/// Checks that a queue that shall run commands holds no data. What was written as data is never run.
///
/// Errors: 55000 if the queue is bound to a topic, or if a schedule or a living job of it is data.
pub fn check_no_data(queue: &Queue) -> Result<()> {
    names::lock_dead_letters();
    let refused = |what: String, hint: &str| {
        Err(Error::new(error::WRONG_STATE, format!("queue \"{}\" cannot run commands", queue.name))
            .detail(what)
            .hint(hint))
    };
    if let Some(topic) = topic::bound_to(queue.id)? {
        let what = format!("It is bound to topic \"{topic}\", and what is published there is data.");
        return refused(what, "Use queue.unbind, or another queue for commands.");
    }
    if let Some(schedule) = schedule::of_queue(queue.id, |schedule| !schedule.is_of_commands()) {
        let what = format!("The jobs of schedule \"{schedule}\" are data.");
        return refused(what, "Use queue.unschedule; then queue.schedule(…, command => …).");
    }
    if let Some(what) = living::any_data(queue.living_lanes())? {
        let hint = "Let workers finish them, or use queue.purge, or another queue for commands.";
        return refused(format!("It has living jobs that are data. {what}"), hint);
    }
    Ok(())
}

/// Checks that the queue's current options fit together, and that the current user may set them. Returns the queue.
///
/// Errors: 22023 if an option is missing or does not belong to the executor. 42501 if the user may not SET ROLE to the
/// role, or if no job may run as that role.
pub fn check(name: &str) -> Result<Rc<Queue>> {
    session::accept_invalidations();
    relcache::forget_queues();
    let queue = queue::by_name(name)?;
    let has = |what: &str| queue.executor_options.contains(&what);
    let named =
        match &queue.executor {
            Some(Executor::Call { role, .. }) => role,
            other => {
                let kind = if other.is_some() { "executor => 'call'" } else { "an executor" };
                let beside = if other.is_some() { &OPTION_COLUMNS[1..3] } else { &OPTION_COLUMNS[1..] };
                return match beside.iter().find(|option| has(option)) {
                    Some(option) => Err(Error::invalid(format!("{option} needs {kind}"))
                        .hint("Give both, or reset both with queue.alter.")),
                    None => Ok(queue),
                };
            }
        };
    if let Some(missing) = OPTION_COLUMNS[1..3].iter().find(|option| !has(option)) {
        return Err(Error::invalid(format!("executor => 'call' needs {missing}"))
            .hint("Name the procedure or function of one jsonb, and the role as which it runs."));
    }
    let role = named.role();
    let named = &named.name;
    let role = role.ok_or_else(|| permission::no_role(named))?;
    if !role::may_become(role) {
        return Err(Error::new(error::DENIED, format!("permission denied to run jobs as role \"{named}\""))
            .detail("This needs the right to SET ROLE to it.")
            .hint(format!(
                "A role that may can run GRANT \"{named}\" TO \"{}\".",
                role::role_name(role::user()).unwrap_or_default()
            )));
    }
    catalog::run_as::may_run(role)?;
    Ok(queue)
}
