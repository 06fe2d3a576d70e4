//! `queue.grant`, `queue.revoke`: which role may do what with a queue. Also `queue_internal.may_observe`, by which the
//! views choose their rows.
//!
//! Not responsible for the checks of privileges (`catalog::permission`), nor for the GRANTs derived from them
//! (`catalog::grants`).
//!
//! Invariant: the lock of `catalog::grants` is taken before a permission is written, and the GRANTs are derived before
//! the function returns.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, EVERY_QUEUE, PUBLIC, Privilege, Rights};
use crate::catalog::{self, grants, queue, spi, topic};
use crate::error::{self, Error, Result};
use crate::pg::function::{Call, VOID, run_unloaded};
use crate::pg::{role, session, syscache};
use crate::shmem::layout;

sql_function!(pg_queue_grant, pg_finfo_pg_queue_grant => grant);
sql_function!(pg_queue_revoke, pg_finfo_pg_queue_revoke => revoke);
sql_function!(pg_queue_may_observe, pg_finfo_pg_queue_may_observe => may_observe, run_unloaded);
sql_function!(pg_queue_derive_grants, pg_finfo_pg_queue_derive_grants => derive_grants);

/// Returns the id of the named queue or topic; `*` means every queue.
///
/// Errors: 42704 if there is no such queue, 42501 if the current user does not manage it.
fn managed(name: &str) -> Result<i32> {
    if name == "*" {
        permission::check_everywhere(Privilege::Manage)?;
        return Ok(EVERY_QUEUE);
    }
    if let Some(topic) = topic::find(name)? {
        permission::check_topic(&topic, Privilege::Manage)?;
        return Ok(topic.id);
    }
    let queue = queue::by_name(name).map_err(|error| match role::role(name) {
        Some(_) if error.code == error::UNDEFINED => {
            error.hint("There is a role of this name: give the queue first, then the role, then the privilege.")
        }
        _ => error,
    })?;
    permission::check(&queue, Privilege::Manage)?;
    Ok(queue.id)
}

/// `queue.grant(queue_name, role_name, privilege)`.
fn grant(call: &Call) -> Result<Option<Datum>> {
    api::writable("grant a privilege")?;
    let name = call.need(args::grant::QUEUE_NAME)?;
    let role = call.need(args::grant::ROLE_NAME)?;
    let privilege = Privilege::parse(&call.need(args::grant::PRIVILEGE)?)?;
    let id = managed(&name)?;
    if role != PUBLIC && role::role(&role).is_none() {
        return Err(permission::no_role(&role));
    }
    add(id, &role, privilege)?;
    Ok(Some(VOID))
}

fn add(id: i32, role: &str, privilege: Privilege) -> Result<()> {
    grants::lock();
    spi::run(
        "INSERT INTO queue_internal.permission (queue_id, role_name, privilege) VALUES ($1, $2, $3)
         ON CONFLICT DO NOTHING",
        &[id.into(), role.to_owned().into(), privilege.name().to_owned().into()],
    )?;
    grants::derive()
}

/// `queue.revoke(queue_name, role_name, privilege)`: the role may be gone.
fn revoke(call: &Call) -> Result<Option<Datum>> {
    api::writable("revoke a privilege")?;
    let name = call.need(args::revoke::QUEUE_NAME)?;
    let role = call.need(args::revoke::ROLE_NAME)?;
    let privilege = Privilege::parse(&call.need(args::revoke::PRIVILEGE)?)?;
    let id = managed(&name)?;
    grants::lock();
    spi::run(
        "DELETE FROM queue_internal.permission
         WHERE queue_id OPERATOR(pg_catalog.=) $1 AND role_name OPERATOR(pg_catalog.=) $2
           AND privilege OPERATOR(pg_catalog.=) $3",
        &[id.into(), role.into(), privilege.name().to_owned().into()],
    )?;
    grants::derive()?;
    Ok(Some(VOID))
}

/// Lets the current user, which has created a queue or a topic, manage it.
pub fn created(id: i32) -> Result<()> {
    let rights = permission::rights();
    if rights.on_queue(id, Privilege::Manage) {
        return Ok(());
    }
    let Some(role) = role::role_name(role::user()) else {
        return Err(Error::internal("the current user has no name"));
    };
    add(id, &role, Privilege::Manage)
}

/// Deletes the permissions on a queue or a topic that was dropped.
pub fn dropped(id: i32) -> Result<()> {
    if !grants::has_rows(|queue_id, _| queue_id == id) {
        return Ok(());
    }
    // The lock comes first, as everywhere: sessions that write and then wait for the lock would deadlock.
    grants::lock();
    spi::run("DELETE FROM queue_internal.permission WHERE queue_id OPERATOR(pg_catalog.=) $1", &[id.into()])?;
    grants::derive()
}

/// `queue_internal.may_observe(queue_id)`. Without shared memory the owner of the extension's tables can still look at
/// settings.
fn may_observe(call: &Call) -> Result<Option<Datum>> {
    let id = call.need(args::may_observe::QUEUE_ID)?;
    if !layout::is_there() {
        return Ok(Some(syscache::our_relation(c"queue").is_some_and(role::owns_table).into()));
    }
    let may = |rights: &Rights| rights.on_queue(id, Privilege::Observe);
    catalog::current()?;
    if let Some(rights) = permission::known_rights() {
        return Ok(Some(may(&rights).into()));
    }
    // The views of monitoring wait for no session. Whose rights cannot be read sees nothing.
    match session::without_waiting(|| Ok(may(&permission::rights()))) {
        Err(error) if error.code == error::LOCKED => Ok(Some(false.into())),
        other => other.map(|may| Some(may.into())),
    }
}

/// `queue_internal.derive_grants()`.
fn derive_grants(_call: &Call) -> Result<Option<Datum>> {
    api::on_primary("grant")?;
    grants::derive()?;
    Ok(Some(VOID))
}
