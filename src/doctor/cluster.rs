//! The check of a server that is one of many (`pg_queue_cluster`): its number is its own, and no other server is marked
//! down.
//!
//! Responsible for what this server's own copy of the map says. Not responsible for whether the others answer, nor for
//! copies that differ: `queue_cluster.check()` asks them, and a check of the doctor waits for nobody.

use crate::catalog::spi;
use crate::doctor::check::{Finding, assert_loaded};
use crate::error::Result;
use crate::guc;

/// The rows of `queue_cluster.server` that tell about this server; none: another one's number.
const OWN: &str = "SELECT format('%s %s', s.identity = queue_cluster.identity(), s.name) FROM queue_cluster.server AS s
    WHERE s.node_id = current_setting('pg_queue.node_id')::integer AND s.state <> 'removed'";

/// Checks that the number of this server is its own, and that no server of its cluster is marked down.
pub fn cluster() -> Result<Finding> {
    assert_loaded()?;
    let is_there = "SELECT 'it is' FROM pg_extension WHERE extname = 'pg_queue_cluster'";
    if spi::texts(is_there, &[])?.is_empty() {
        return Ok(Finding::well("This server is not one of many: pg_queue_cluster is not installed."));
    }
    let living = "SELECT name FROM queue_cluster.server WHERE state <> 'removed' ORDER BY node_id";
    let servers = spi::texts(living, &[])?;
    if servers.is_empty() {
        return Ok(Finding::well("pg_queue_cluster is installed, and this server knows no other one."));
    }
    let number = guc::NODE_ID.get();
    let again =
        "If it is that server, restored from a dump, call queue_cluster.add_server for it again, on another one.";
    let Some(own) = spi::texts(OWN, &[])?.pop() else {
        return Ok(Finding::ill(
            format!(
                "pg_queue.node_id is {number}, the number of no server of the cluster: keys are enqueued elsewhere, \
                    and ids lead nowhere."
            ),
            "Set pg_queue.node_id back, or call queue_cluster.add_server for this server.",
        ));
    };
    if let Some(("f", name)) = own.split_once(' ') {
        return Ok(Finding::ill(
            format!(
                "pg_queue.node_id is {number}, that of server \"{name}\", and this is another server: \
                    two give the same ids."
            ),
            format!("Set pg_queue.node_id back. {again}"),
        ));
    }
    let down = spi::texts(
        "SELECT format('Server \"%s\" is marked down.', name) FROM queue_cluster.server WHERE state = 'down' \
            ORDER BY node_id",
        &[],
    )?;
    Ok(Finding::of(
        &down,
        &format!("It is number {number} of {} servers, none of which is marked down.", servers.len()),
        "Its keys, schedules and jobs wait: promote its standby or start it, then call queue_cluster.mark_up.",
    ))
}
