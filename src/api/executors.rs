//! The options of a queue whose jobs run in the server: `executor`, `procedure`, `run_as`, `settings`.
//!
//! Not here: running the jobs (`executor`), and as whom the jobs of a queue with commands run (`catalog::run_as`).
//!
//! Invariant: a role can be named by those alone that may SET ROLE to it, whichever of the options they change.

use std::rc::Rc;

use pgrx::pg_sys::{self, Datum};

use crate::catalog::queue::{self, Executor, Queue};
use crate::catalog::{Catalog, run_as};
use crate::error::{self, Error, Result};
use crate::pg::parameter::Parameter;
use crate::pg::{jsonb, relcache, role, routine, session};

/// The options, by their columns.
pub const OPTIONS: [&str; 4] = ["executor", "procedure", "run_as", "settings"];

/// Checks the option `executor`.
///
/// Errors: 22023 if there is no such kind.
pub fn check_kind(kind: &str) -> Result<()> {
    if matches!(kind, "sql" | "call") {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid value for executor: \"{kind}\"")).hint("Use 'sql' or 'call'."))
}

/// Checks settings for a session.
///
/// Errors: 22023 unless it is an object of plain values, each with the name of a setting.
pub fn check_settings(settings: Datum) -> Result<()> {
    let wrong = || Error::invalid("settings must be a JSON object of settings and their values");
    let Some(serde_json::Value::Object(fields)) = serde_json::from_str(&jsonb::text(settings)).ok() else {
        return Err(wrong().hint("For instance: '{\"work_mem\": \"64MB\"}'."));
    };
    for (name, value) in fields {
        if value.is_object() || value.is_array() || value.is_null() {
            return Err(wrong().detail(format!("The value of \"{name}\" is none.")));
        }
        if !session::is_setting(&name) {
            return Err(Error::invalid(format!("there is no setting \"{name}\""))
                .hint("View pg_settings lists them; those of extensions have a dot in their names."));
        }
    }
    Ok(())
}

/// Returns the full name of a procedure or function of one jsonb.
///
/// Errors: 42883 if there is none.
pub fn procedure(name: &str) -> Result<Parameter> {
    let found = routine::find(name).ok_or_else(|| {
        Error::new(error::NO_FUNCTION, format!("there is no procedure {name}(jsonb)"))
            .detail("Nor is there a function.")
            .hint("Give its name as in SQL, with its schema.")
    })?;
    Ok(found.name.into())
}

/// Returns the oid of a role, to be kept beside its name.
///
/// Errors: 42704 if there is no such role.
pub fn role_id(name: &str) -> Result<Parameter> {
    let role =
        role::role(name).ok_or_else(|| Error::new(error::UNDEFINED, format!("role \"{name}\" does not exist")))?;
    Ok(Parameter::raw(Some(i64::from(role.to_u32()).into()), pg_sys::INT8OID))
}

/// Checks that what a queue has of these options now makes sense together, and that the current user may have it so. Returns the queue.
///
/// Errors: 22023 if one is missing or one too many, 42501 if the user may not SET ROLE to the role, or if no job may run as it.
pub fn check(catalog: &Catalog, name: &str) -> Result<Rc<Queue>> {
    session::accept_invalidations();
    relcache::forget_queues();
    let queue = queue::by_name(catalog, name)?;
    let has = |what: &str| queue.executor_options.contains(&what);
    let named =
        match &queue.executor {
            Some(Executor::Call { role, .. }) => role,
            other => {
                let kind = if other.is_some() { "executor => 'call'" } else { "an executor" };
                let beside = if other.is_some() { &OPTIONS[1..3] } else { &OPTIONS[1..] };
                return match beside.iter().find(|option| has(option)) {
                    Some(option) => Err(Error::invalid(format!("{option} needs {kind}"))
                        .hint("Give both, or reset both with queue.alter.")),
                    None => Ok(queue),
                };
            }
        };
    if let Some(missing) = OPTIONS[1..3].iter().find(|option| !has(option)) {
        return Err(Error::invalid(format!("executor => 'call' needs {missing}"))
            .hint("Name the procedure or function of one jsonb, and the role as which it runs."));
    }
    let role = named.role(catalog);
    let named = &named.name;
    let role = role.ok_or_else(|| Error::new(error::UNDEFINED, format!("role \"{named}\" does not exist")))?;
    if !role::may_become(role) {
        return Err(Error::new(error::DENIED, format!("permission denied to run jobs as role \"{named}\""))
            .detail("This needs the right to SET ROLE to it."));
    }
    run_as::may_run(role)?;
    Ok(queue)
}
