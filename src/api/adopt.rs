//! `queue.adopt`: ends a restore by hand. Also the triggers on tables and views that see foreign writes.
//!
//! Not responsible for what a restore means, nor for how it ends by itself (`restore`, `duty::restore`).

use pgrx::pg_sys::{self, Datum};

use crate::api::{self, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::error::{self, Error, Result};
use crate::pg::function::{Call, VOID};
use crate::pg::{role, syscache, transaction};
use crate::restore;

sql_function!(pg_queue_adopt, pg_finfo_pg_queue_adopt => adopt);

/// `queue.adopt()`: after the commit, the rows in the tables count.
///
/// Errors: 25001 at REPEATABLE READ or above, 42501 if the current user does not manage every queue.
fn adopt(_call: &Call) -> Result<Option<Datum>> {
    api::on_primary("adopt")?;
    if transaction::uses_one_snapshot() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.adopt cannot run at REPEATABLE READ or above")
            .hint("It would not see what was restored since the transaction began."));
    }
    permission::check_everywhere(Privilege::Manage)?;
    restore::end_now()?;
    Ok(Some(VOID))
}

sql_function!(pg_queue_foreign_write, pg_finfo_pg_queue_foreign_write => foreign_write, api::run_unpinned);

/// `queue_internal.foreign_write()`: a statement trigger before each statement that changes the tables.
fn foreign_write(call: &Call) -> Result<Option<pg_sys::Datum>> {
    let Some((table, is_truncate)) = call.trigger() else {
        return Err(Error::new(error::NOT_SUPPORTED, "queue_internal.foreign_write can only be called as a trigger"));
    };
    // Rows name the roles as which jobs run.
    if !role::owns_table(table) {
        let name = syscache::table_name(table).unwrap_or_default();
        return Err(Error::new(
            error::DENIED,
            format!("permission denied to change table \"queue_internal.{name}\" by hand"),
        )
        .detail("Its rows say as whom jobs run, so privileges on it do not suffice.")
        .hint("Restore as the owner of the tables; for all else there are functions."));
    }
    if restore::matters(table) {
        restore::mark(table, !is_truncate)?;
    }
    Ok(Some(VOID))
}

sql_function!(pg_queue_read_only, pg_finfo_pg_queue_read_only => read_only, api::run_unpinned);

/// `queue_internal.read_only()`: a trigger on the views that raises 0A000. Without it rows of tables could be changed
/// through some views.
fn read_only(call: &Call) -> Result<Option<pg_sys::Datum>> {
    let Some((view, _)) = call.trigger() else {
        return Err(Error::new(error::NOT_SUPPORTED, "queue_internal.read_only can only be called as a trigger"));
    };
    let view = syscache::qualified_name(view);
    let hint = match view.as_str() {
        "queue.queues" => "Use queue.create, queue.alter, queue.pause, queue.resume and queue.drop.",
        "queue.schedules" => "Use queue.schedule, queue.pause_schedule, queue.resume_schedule and queue.unschedule.",
        "queue.jobs" => {
            "Use queue.enqueue, queue.cancel, queue.retry, queue.reprioritize, queue.reschedule and queue.forget."
        }
        "queue.attempts" => "Use queue.claim, and queue.complete, queue.fail or queue.release.",
        _ => "It shows what the functions of pg_queue have done.",
    };
    Err(Error::new(error::NOT_SUPPORTED, format!("view \"{view}\" cannot be written to")).hint(hint))
}
