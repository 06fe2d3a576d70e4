//! The role as which a job's command runs: the role that wrote it. The job's row keeps its name and its oid. Both must
//! belong to the same role when the command runs, so a new role with an old name inherits nothing.
//!
//! Responsible for noting the role, for finding it again, and for refusing data where commands run. Not responsible for
//! the parts of a command (`api::command`), nor for running it (`executor`).
//!
//! Invariant: a row names a role if and only if that role wrote the row's payload as a command. The queue does not
//! matter: data that reaches a queue of commands is never run. Only the library fills these columns, with the current
//! user at the time of the call.

use pgrx::pg_sys::{Datum, Oid};

pub use crate::catalog::noted::Noted;
use crate::catalog::queue::{Executor, Queue};
use crate::error::{self, Error, Result};
use crate::guc;
use crate::pg::datum::{text, text_datum};
use crate::pg::role;

/// A role as a row stores it.
#[derive(Clone, Copy)]
pub struct RunAs {
    pub name: Datum,
    pub id: i64,
}

impl RunAs {
    /// Returns the current user. In a SECURITY DEFINER function, that is the function's owner.
    pub fn caller() -> Option<Self> {
        let user = role::user();
        let name = role::role_name(user)?;
        Some(Self { name: text_datum(&name), id: i64::from(user.to_u32()) })
    }

    /// Returns the role of the two columns of a row. `None` if they are NULL.
    pub fn of(name: Option<Datum>, id: Option<i64>) -> Option<Self> {
        Some(Self { name: name?, id: id? })
    }

    /// Returns a copy that does not depend on the row. `since` is the time of the row.
    pub fn noted(self, since: i64) -> Noted {
        Noted { name: text(self.name), id: self.id, since }
    }

    /// Returns the same role. If the row was restored, it gets the oid that the role has now. `since` is the time of
    /// the row.
    pub fn renewed(self, since: i64) -> Self {
        let id = self.noted(since).role().map_or(self.id, |role| i64::from(role.to_u32()));
        Self { id, ..self }
    }
}

/// Returns the current user as the role that wrote a command for a queue.
///
/// Errors: 55000 if the queue runs no commands, 42501 if no job runs as this user.
pub fn of_command(queue: &Queue) -> Result<Option<RunAs>> {
    if !matches!(queue.executor, Some(Executor::Sql)) {
        return Err(Error::new(error::WRONG_STATE, format!("queue \"{}\" runs no commands", queue.name))
            .hint("Use a queue with executor => 'sql'; others take payloads, by queue.enqueue."));
    }
    may_run(role::user())?;
    Ok(RunAs::caller())
}

/// Refuses a payload that was not written as a command.
///
/// Errors: 22023 if the queue runs commands.
pub fn refuse_data(queue: &Queue) -> Result<()> {
    if !matches!(queue.executor, Some(Executor::Sql)) {
        return Ok(());
    }
    Err(Error::invalid(format!("queue \"{}\" runs commands, and this payload is not written as one", queue.name))
        .detail("A payload is data, whatever it holds: no queue makes a command of it.")
        .hint(
            "Use queue.enqueue_sql; or the field \"command\" of a job of queue.enqueue_batch or of a flow's task, \
                or the \
             argument command of queue.schedule or queue.enqueue_flow.",
        ))
}

/// Checks that jobs may run as a role.
///
/// Errors: 42501 if the role is a superuser and `pg_queue.superuser_jobs` is off, if it cannot start sessions, or if it
/// may not connect to this database.
pub fn may_run(role: Oid) -> Result<()> {
    let name = || role::role_name(role).unwrap_or_default();
    if role::is_superuser(role) && !guc::SUPERUSER_JOBS.get() {
        return Err(Error::new(error::DENIED, format!("role \"{}\" is a superuser, and no job runs as one", name()))
            .hint("Use a role with the rights that the job needs, or set pg_queue.superuser_jobs."));
    }
    if !role::can_start_sessions(role) {
        return Err(Error::new(error::DENIED, format!("role \"{}\" may not log in, and no job runs as it", name()))
            .hint("Give it LOGIN; without a password or a line in pg_hba.conf nobody can use that to connect."));
    }
    if !role::can_connect(role) {
        return Err(Error::new(
            error::DENIED,
            format!("role \"{}\" may not connect to this database, and no job runs as it", name()),
        )
        .hint("GRANT CONNECT ON DATABASE … to it."));
    }
    Ok(())
}
