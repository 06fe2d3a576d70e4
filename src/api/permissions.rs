//! `queue.grant`, `queue.revoke`: who may do what with a queue, by the names of roles. Also `queue.may_observe`, by which
//! the views choose their rows.

use pgrx::pg_sys::Datum;

use crate::api;
use crate::call::{Call, VOID, run_unloaded, sql_function};
use crate::error::{self, Error, Result};
use crate::instance::{self, Catalog};
use crate::permission::{self, EVERY_QUEUE, PUBLIC, Privilege};
use crate::{acl, queue, shmem, spi, sys, transaction};

sql_function!(pg_queue_grant, pg_finfo_pg_queue_grant => grant);
sql_function!(pg_queue_revoke, pg_finfo_pg_queue_revoke => revoke);
sql_function!(pg_queue_may_observe, pg_finfo_pg_queue_may_observe => may_observe, run_unloaded);
sql_function!(pg_queue_derive_grants, pg_finfo_pg_queue_derive_grants => derive_grants);

/// The queue that is meant, by its number.
///
/// Errors: 42704 no such queue, 42501 the current user does not manage it.
fn managed(catalog: &Catalog, name: &str) -> Result<i32> {
    if name == "*" {
        permission::check_everywhere(catalog, Privilege::Manage)?;
        return Ok(EVERY_QUEUE);
    }
    let queue = queue::by_name(catalog, name)?;
    permission::check(catalog, &queue, Privilege::Manage)?;
    Ok(queue.id)
}

/// `queue.grant(queue_name, role_name, privilege)`.
fn grant(call: &Call) -> Result<Option<Datum>> {
    api::writable("grant a privilege")?;
    let name = call.required("queue_name", call.text(0))?;
    let role = call.required("role_name", call.text(1))?;
    let privilege = Privilege::parse(&call.required("privilege", call.text(2))?)?;
    let catalog = instance::current()?;
    let id = managed(&catalog, &name)?;
    if role != PUBLIC && sys::role(&role).is_none() {
        return Err(Error::new(error::UNDEFINED, format!("role \"{role}\" does not exist")));
    }
    add(&catalog, id, &role, privilege)?;
    Ok(Some(VOID))
}

fn add(catalog: &Catalog, id: i32, role: &str, privilege: Privilege) -> Result<()> {
    acl::lock();
    spi::run(
        "INSERT INTO queue.permission (queue_id, role_name, privilege) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        &[id.into(), role.to_owned().into(), privilege.name().to_owned().into()],
    )?;
    acl::derive(catalog)
}

/// `queue.revoke(queue_name, role_name, privilege)`: also from a role that is gone.
fn revoke(call: &Call) -> Result<Option<Datum>> {
    api::writable("revoke a privilege")?;
    let name = call.required("queue_name", call.text(0))?;
    let role = call.required("role_name", call.text(1))?;
    let privilege = Privilege::parse(&call.required("privilege", call.text(2))?)?;
    let catalog = instance::current()?;
    let id = managed(&catalog, &name)?;
    acl::lock();
    spi::run(
        "DELETE FROM queue.permission
         WHERE queue_id OPERATOR(pg_catalog.=) $1 AND role_name OPERATOR(pg_catalog.=) $2
           AND privilege OPERATOR(pg_catalog.=) $3",
        &[id.into(), role.into(), privilege.name().to_owned().into()],
    )?;
    acl::derive(&catalog)?;
    Ok(Some(VOID))
}

/// Whoever has created a queue manages it.
pub fn created(catalog: &Catalog, name: &str) -> Result<()> {
    let rights = permission::rights(catalog);
    let queue = queue::by_name(catalog, name)?;
    if rights.on_queue(queue.id, Privilege::Manage) {
        return Ok(());
    }
    let Some(role) = sys::role_name(sys::user()) else {
        return Err(Error::internal("the current user has no name"));
    };
    add(catalog, queue.id, &role, Privilege::Manage)
}

/// A queue was dropped, and what was granted on it goes with it.
pub fn dropped(catalog: &Catalog, id: i32) -> Result<()> {
    if !has_rows(|queue_id, _| queue_id == id) {
        return Ok(());
    }
    // First, as everybody else does: who writes and then waits for the lock waits for those who do the same.
    acl::lock();
    spi::run("DELETE FROM queue.permission WHERE queue_id OPERATOR(pg_catalog.=) $1", &[id.into()])?;
    acl::derive(catalog)
}

/// DROP OWNED BY these roles is about to run: what was granted to them goes with it, as all that is granted to them does.
pub fn owned_dropped(roles: &[String]) -> Result<()> {
    if sys::in_recovery() || sys::is_read_only() {
        return Ok(());
    }
    let Ok(catalog) = instance::current() else { return Ok(()) };
    transaction::register();
    // The rows of one who was renamed stay, and he keeps no GRANT all the same: it would come back in dumps.
    if !has_rows(|_, role| roles.iter().any(|name| name == role)) && !acl::has_derived(roles)? {
        return Ok(());
    }
    acl::lock();
    let of_roles = "DELETE FROM queue.permission WHERE role_name OPERATOR(pg_catalog.=) ANY ($1)";
    spi::run(of_roles, &[roles.to_vec().into()])?;
    acl::derive(&catalog)
}

/// Whether something is granted on such a queue to such a role.
fn has_rows(is_it: impl Fn(i32, &str) -> bool) -> bool {
    let mut has = false;
    permission::each_row(|queue_id, role, _| has |= is_it(queue_id, role));
    has
}

/// `queue.may_observe(queue_id)`. Without shared memory the owner can still look at settings.
fn may_observe(call: &Call) -> Result<Option<Datum>> {
    let id = call.required("queue_id", call.i32(0))?;
    if !shmem::is_there() {
        return Ok(Some(sys::our_relation(c"queue").is_some_and(sys::owns_table).into()));
    }
    let catalog = instance::current()?;
    Ok(Some(permission::rights(&catalog).on_queue(id, Privilege::Observe).into()))
}

/// `queue.derive_grants()`.
fn derive_grants(_call: &Call) -> Result<Option<Datum>> {
    api::on_primary("grant")?;
    acl::derive(&*instance::current()?)?;
    Ok(Some(VOID))
}
