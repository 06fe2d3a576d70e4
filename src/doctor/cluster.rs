//! The check of a server that belongs to a cluster (`pg_queue_cluster`): its number is its own, and no other server is
//! marked down.
//!
//! Responsible for what this server's own copy of the map says. Not responsible for whether the other servers answer,
//! nor for copies that differ: `queue_cluster.check()` asks the servers, and a check of the doctor never waits.

use crate::catalog::spi;
use crate::doctor::check::{Finding, assert_loaded};
use crate::error::Result;
use crate::guc;

/// The rows of `queue_cluster.server` with this server's number. No row: no server of the cluster has this number.
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
        "If this is that server, restored from a dump, call queue_cluster.add_server for it again, on another server.";
    let Some(own) = spi::texts(OWN, &[])?.pop() else {
        return Ok(Finding::ill(
            format!(
                "pg_queue.node_id is {number}, the number of no server of the cluster: keys are enqueued elsewhere, \
                    and no server finds its jobs by their ids."
            ),
            "Restore the former pg_queue.node_id, or call queue_cluster.add_server for this server.",
        ));
    };
    if let Some(("f", name)) = own.split_once(' ') {
        return Ok(Finding::ill(
            format!(
                "pg_queue.node_id is {number}, the number of server \"{name}\", but this is another server: \
                    two servers give the same ids."
            ),
            format!("Restore the former pg_queue.node_id. {again}"),
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
