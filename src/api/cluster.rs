//! The verbs of `pg_queue_cluster` that cost nothing at home. Each call is passed on: to `queue.VERB` if it concerns
//! only this server, otherwise to `queue_cluster.away_VERB`, which is SQL and asks other servers. Also the facts of a
//! key that move with it to another server.
//!
//! Not responsible for the calls to other servers (`cluster/sql`), nor for passing calls on (`pg::pass_on`).
//!
//! Invariant: a call with a key, or about jobs that might be elsewhere, is never passed on at home without a check.

use pg_queue_core::id;
use pgrx::pg_sys::{self, Datum};

use crate::api::{self, end_batch, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::{self, ids, permission, queue};
use crate::error::{self, Error, Result};
use crate::guc;
use crate::job::rerun;
use crate::job::unique::{self, Known};
use crate::pg::argument::{Argument, kind};
use crate::pg::datum;
use crate::pg::function::{Call, VOID};
use crate::pg::lock;
use crate::pg::pass_on::{self, To, Way};

sql_function!(pg_queue_cluster_home, pg_finfo_pg_queue_cluster_home => home);
sql_function!(pg_queue_cluster_is_home, pg_finfo_pg_queue_cluster_is_home => is_home, api::run_unpinned);
sql_function!(pg_queue_cluster_id_of_end, pg_finfo_pg_queue_cluster_id_of_end => id_of_end, api::run_unpinned);
sql_function!(pg_queue_cluster_remember, pg_finfo_pg_queue_cluster_remember => remember);
sql_function!(pg_queue_cluster_is_owed, pg_finfo_pg_queue_cluster_is_owed => is_owed);
sql_function!(pg_queue_cluster_hold_slot, pg_finfo_pg_queue_cluster_hold_slot => hold_slot);
sql_function!(pg_queue_cluster_take_slot, pg_finfo_pg_queue_cluster_take_slot => take_slot);
sql_function!(pg_queue_cluster_lock_map, pg_finfo_pg_queue_cluster_lock_map => lock_map);
sql_function!(pg_queue_cluster_by_id, pg_finfo_pg_queue_cluster_by_id => by_id, pass_on::run);
sql_function!(pg_queue_cluster_by_ids, pg_finfo_pg_queue_cluster_by_ids => by_ids, pass_on::run);
sql_function!(pg_queue_cluster_claim, pg_finfo_pg_queue_cluster_claim => claim, pass_on::run);
sql_function!(pg_queue_cluster_at_home, pg_finfo_pg_queue_cluster_at_home => at_home, pass_on::run);
sql_function!(pg_queue_cluster_enqueue, pg_finfo_pg_queue_cluster_enqueue => enqueue, pass_on::run);
sql_function!(pg_queue_cluster_enqueue_flow, pg_finfo_pg_queue_cluster_enqueue_flow => enqueue_flow, pass_on::run);
sql_function!(pg_queue_cluster_publish, pg_finfo_pg_queue_cluster_publish => publish, pass_on::run);

/// `queue_cluster.home()`.
fn home(_call: &Call) -> Result<Option<Datum>> {
    Ok(Some(guc::NODE_ID.get().into()))
}

/// `queue_cluster.is_home(id)`: whether this server has made the id. NULL of NULL.
fn is_home(call: &Call) -> Result<Option<Datum>> {
    Ok(call.get(args::cluster_is_home::ID).map(|id| is_own(id).into()))
}

/// `queue_cluster.id_of_end(one)`: the id of the attempt that an element of `ends` is about; NULL: it names none.
fn id_of_end(call: &Call) -> Result<Option<Datum>> {
    Ok(call.str(args::cluster_id_of_end::ONE).and_then(|one| end_batch::id_of(&one)).map(Datum::from))
}

/// `queue_cluster.remember(queue_name, unique_key, job_id, expires_at, taken_until, version)`, which only superusers
/// may execute.
fn remember(call: &Call) -> Result<Option<Datum>> {
    api::writable("remember")?;
    let name = call.need_str(args::cluster_remember::QUEUE_NAME)?;
    let key = datum::plain(call.need_datum(args::cluster_remember::UNIQUE_KEY)?);
    let queue = queue::by_name(&name)?;
    let known = Known {
        entry: 0,
        job_id: call.need(args::cluster_remember::JOB_ID)?,
        expires_at: call.need(args::cluster_remember::EXPIRES_AT)?,
        taken_until: call.get(args::cluster_remember::TAKEN_UNTIL),
        version: call.get(args::cluster_remember::VERSION),
    };
    Ok(Some(unique::take_over(&queue, key, known)?.into()))
}

/// `queue_cluster.is_owed(id)`: whether another run was requested after this attempt, and is not made yet.
fn is_owed(call: &Call) -> Result<Option<Datum>> {
    let id = call.need(args::cluster_is_owed::ID)?;
    Ok(Some(rerun::is_owed_after(id).into()))
}

/// The number, among the tokens of table `queue_internal.queue`, of the lock of slot 0; and of the lock of the map.
/// Tokens of names are below (`api::names`).
const SLOT_TOKENS: u64 = 1 << 32;
const MAP_TOKEN: u64 = 2 << 32;

/// The token of a slot. No role can take it by SQL but through the functions below; of advisory locks each could take
/// any.
fn slot_token(call: &Call) -> Result<u64> {
    Ok(SLOT_TOKENS | u64::from(call.need(args::cluster_hold_slot::SLOT)? as u32))
}

/// `queue_cluster.hold_slot(slot)`: keeps a slot from being given away until the transaction ends. Does not wait.
/// Returns false if it is being given away.
///
/// Errors: 42501 the current role may do nothing on any queue.
fn hold_slot(call: &Call) -> Result<Option<Datum>> {
    let token = slot_token(call)?;
    let catalog = catalog::current()?;
    if !permission::rights().has_any() {
        return Err(Error::new(error::DENIED, "permission denied to hold keys of this server")
            .detail("This needs a privilege on a queue or a topic.")
            .hint("SELECT queue_cluster.grant('QUEUE', 'ROLE', 'produce') by a role that manages the queue."));
    }
    Ok(Some(lock::try_lock_numbered(catalog.queue, token, pg_sys::ShareLock).into()))
}

/// `queue_cluster.take_slot(slot)`: keeps all others from holding a slot until the transaction ends. Does not wait.
/// Returns false if another transaction has it. Only superusers may execute it.
fn take_slot(call: &Call) -> Result<Option<Datum>> {
    Ok(Some(lock::try_lock_numbered(catalog::current()?.queue, slot_token(call)?, pg_sys::ExclusiveLock).into()))
}

/// `queue_cluster.lock_map()`: waits until no other transaction changes the map of servers and slots, and keeps others
/// from it until the transaction ends. Only superusers may execute it.
fn lock_map(_call: &Call) -> Result<Option<Datum>> {
    lock::lock_numbered(catalog::current()?.queue, MAP_TOKEN, pg_sys::ExclusiveLock);
    Ok(Some(VOID))
}

fn is_own(id: i64) -> bool {
    id::node(id) == ids::node()
}

/// Verbs that never leave this server.
fn at_home(_call: &Call) -> Result<Way> {
    Ok(Way::plain(To::Home))
}

/// Verbs whose first argument is the id of a job or an attempt. `queue.VERB` raises the error for anything else.
fn by_id(call: &Call) -> Result<Way> {
    Ok(Way::plain(if call.get(args::complete::ID).is_none_or(is_own) { To::Home } else { To::Away }))
}

/// Verbs whose first argument is an array of ids of attempts.
fn by_ids(call: &Call) -> Result<Way> {
    Ok(Way::plain(if are_own(call, args::complete_many::IDS) { To::Home } else { To::Away }))
}

/// Whether an array of ids has none that another server has made.
fn are_own(call: &Call, argument: Argument<kind::Bigints>) -> bool {
    call.get(argument).is_none_or(|ids| ids.into_iter().flatten().all(is_own))
}

/// Verbs that add jobs, which stay at home unless one of these arguments is given.
macro_rules! by_key {
    ($verb:ident) => {
        fn $verb(call: &Call) -> Result<Way> {
            use args::$verb::{AFTER, FLOW, GROUP_KEY, UNIQUE_KEY};
            let leads = call.has(UNIQUE_KEY) || call.has(GROUP_KEY) || call.has(AFTER) || call.has(FLOW);
            Ok(Way::plain(if leads { To::Away } else { To::Home }))
        }
    };
}
by_key!(enqueue);
by_key!(enqueue_flow);
by_key!(publish);

/// `queue_cluster.claim(…, steal)` and `claim_any`, which are those of schema `queue` with one argument more. At home a
/// call that may steal does not wait, because it waits for jobs of other servers, too. A call that lingers collects a
/// batch at home, and so does not steal. Nor does a call whose claims end with the connection, which only this server
/// sees.
fn claim(call: &Call) -> Result<Way> {
    if !are_own(call, args::claim::COMPLETED) {
        return Ok(Way::plain(To::Away));
    }
    let lingers = call.get(args::claim::LINGER).is_some_and(|linger| linger.us() > 0);
    let steal = call.get(Argument::<kind::Boolean>::at(call.count() - 1, "steal")).unwrap_or(true);
    let expires = call.get(args::claim::DISCONNECT).is_some_and(|span| span.us() <= 0);
    let may_steal = steal && !lingers && !expires;
    let waits = call.get(args::claim::WAIT).is_some_and(|wait| wait.us() > 0);
    Ok(Way {
        to: To::Home,
        left_out: 1,
        zeroed: (may_steal && waits).then_some(args::claim::WAIT.place()),
        is_first: may_steal,
    })
}
