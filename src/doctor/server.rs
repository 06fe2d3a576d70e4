//! Checks of the processes and of what the server gives them: library, launcher, worker, slots, compiled plans, roles.
//!
//! Not responsible for locks and transactions that delay the worker: see `transactions`.

use std::collections::BTreeSet;

use crate::catalog::{permission, queue, spi};
use crate::doctor::check::{Finding, assert_loaded, needs_instance, patience, time};
use crate::duty::all;
use crate::error::Result;
use crate::executor::table as executors;
use crate::pg::{role, session, syscache, time};
use crate::shmem::databases::DatabaseState;
use crate::worker::table;
use crate::{guc, shmem};

/// Checks that the library was preloaded, and that the extension's SQL has the same version.
pub fn library() -> Result<Finding> {
    assert_loaded()?;
    let loaded = guc::VERSION.to_string_lossy();
    let installed = spi::texts("SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'", &[])?;
    let installed = installed.first().map_or("", String::as_str);
    let parts = |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
    let detail = format!("The server has loaded version {loaded}; the extension is of version {installed}.");
    Ok(match parts(&loaded).cmp(&parts(installed)) {
        std::cmp::Ordering::Equal => Finding::well(format!("Library and extension are of version {loaded}.")),
        std::cmp::Ordering::Greater => Finding::ill(detail, "Run ALTER EXTENSION pg_queue UPDATE."),
        std::cmp::Ordering::Less => {
            Finding::ill(detail, format!("Install the library of version {installed} and restart the server."))
        }
    })
}

/// Checks that the launcher runs.
pub fn launcher() -> Result<Finding> {
    assert_loaded()?;
    if session::in_recovery() {
        return Ok(Finding::well("A standby has none until it is promoted."));
    }
    Ok(match table::launcher() {
        0 => Finding::ill(
            "No launcher runs: databases without a worker get none.",
            "The server starts it again after a second. If it keeps ending, the server's log says why.",
        ),
        pid => Finding::well(format!("It is process {pid}.")),
    })
}

/// Checks that this database's worker runs and does its duties, and that no duty fails.
pub fn worker() -> Result<Finding> {
    const LOG: &str = "The server's log says why.";
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("A standby has none until it is promoted."));
    }
    let (now, latest) = (time::monotonic_us(), time::now_us().saturating_sub(patience()));
    let seen = shmem::with_instance(|_, i| {
        // A worker that has just started has not yet said when it wakes.
        let is_late = i.due.next < latest || i.expiry.next_at(latest) < latest;
        let is_due = i.worker.wakes_at < now.saturating_sub(patience()) || i.restore.is_awake() && is_late;
        (i.worker.pid, i.worker.status, is_due)
    });
    let Some((pid, status, is_due)) = seen.filter(|(pid, ..)| *pid != 0) else {
        return Ok(match table::entry(session::database()) {
            Some(entry) if entry.is_short => Finding::ill(
                "The server has no free slot for this database's worker.",
                "Raise max_worker_processes and restart the server.",
            ),
            Some(entry) if entry.deaths > 0 => {
                Finding::ill(format!("It has died {} times in a row. It is being restarted.", entry.deaths), LOG)
            }
            Some(entry) if entry.state == DatabaseState::Blocked => Finding::ill(
                "A transaction that needs the database without connections keeps the worker from running.",
                "It starts again when that transaction has ended.",
            ),
            Some(_) => Finding::ill(
                "It does not run yet.",
                "It starts within a moment. If it does not, look at the checks launcher and worker_slots.",
            ),
            None => Finding::ill(
                "The launcher does not know this database.",
                "A template, or a database without connections, has none; with very many databases raise \
                    pg_queue.max_databases.",
            ),
        });
    };
    if status.is_off {
        return Ok(Finding::ill(
            "It does nothing because pg_queue.worker is off: no lease expires, no delayed job starts, \
             nothing is reclaimed.",
            "Switch it on with ALTER DATABASE … RESET pg_queue.worker, or call queue.maintain() often.",
        ));
    }
    let silent = now.saturating_sub(status.at);
    if is_due && silent > patience() {
        return Ok(Finding::ill(
            format!("Process {pid} has something to do and was silent for {}.", time(silent)),
            "pg_stat_activity and pg_blocking_pids() show what it does. pg_terminate_backend() ends it, \
             and another one starts.",
        ));
    }
    let failing = all::ALL.iter().enumerate().filter(|(n, _)| status.failing & 1 << n != 0);
    let failing: Vec<String> = failing.map(|(_, duty)| format!("Its duty {} fails.", duty.name)).collect();
    Ok(Finding::of(&failing, &format!("It is process {pid}."), LOG))
}

/// Checks that the server has a slot for each worker.
pub fn worker_slots() -> Result<Finding> {
    assert_loaded()?;
    let short =
        table::short().into_iter().map(|oid| format!("Database \"{}\" has no worker.", syscache::database_name(oid)));
    Ok(Finding::of(
        &short.collect::<Vec<_>>(),
        "Every worker that was wanted has found a slot of max_worker_processes.",
        "All slots of max_worker_processes are taken: raise it by one for each database, and restart the server.",
    ))
}

/// Checks that the server can start processes for jobs that run in it.
pub fn executors() -> Result<Finding> {
    needs_instance()?;
    let mut queues: Vec<String> = Vec::new();
    for lane in queue::lanes() {
        if let Some(queue) = queue::by_lane(lane)?.filter(|queue| queue.executor.is_some()) {
            queues.push(queue.name.clone());
        }
    }
    let Some(name) = queues.first() else { return Ok(Finding::well("No queue has an executor.")) };
    if guc::MAX_EXECUTORS.get() == 0 {
        return Ok(Finding::ill(
            format!("The jobs of queue \"{name}\" are to run in the server, but pg_queue.max_executors is 0."),
            "Raise pg_queue.max_executors and restart the server.",
        ));
    }
    if let Some((role, since)) = executors::refused(session::database()).filter(|(_, since)| *since > patience()) {
        let role = role::role_name(role).unwrap_or_else(|| role.to_u32().to_string());
        return Ok(Finding::ill(
            format!("No process could connect as role \"{role}\" for {}; its jobs are put off.", time(since)),
            "The server's log says why: the role's connection limit, for instance.",
        ));
    }
    let executors::Counts { starts, failures, short_for, .. } = executors::counts();
    Ok(match short_for.filter(|short_for| *short_for > patience()) {
        Some(short_for) => Finding::ill(
            format!("No process for jobs that run in the server could be started for {}.", time(short_for)),
            "All slots of max_worker_processes are taken: raise it by pg_queue.max_executors, and restart the server.",
        ),
        None => Finding::well(format!("Of {starts} starts of a process {failures} have failed.")),
    })
}

/// Checks that JIT does not compile the plan of `queue.jobs` at each query.
pub fn jit() -> Result<Finding> {
    if !spi::holds_for_user("has_table_privilege('queue.jobs', 'SELECT')")? {
        return Ok(Finding::well("The current user cannot read queue.jobs."));
    }
    let (cost, is_wanted) = session::plan(c"SELECT * FROM queue.jobs");
    let is_compiled = is_wanted && spi::holds_for_user("pg_jit_available()")?;
    Ok(if is_compiled {
        Finding::ill(
            format!(
                "The plan of queue.jobs has a cost of {cost:.0} and is compiled at each query, \
                    which takes longer than it saves."
            ),
            "Set jit = off for the roles that read it: ALTER ROLE … SET jit = off.",
        )
    } else {
        Finding::well(format!("The plan of queue.jobs, at a cost of {cost:.0}, is not compiled."))
    })
}

/// Checks that each role with grants exists, and that no role was granted anything on tables or sequences: a role that
/// may read a table sees the payloads of all queues.
pub fn roles() -> Result<Finding> {
    needs_instance()?;
    let mut troubles = BTreeSet::new();
    permission::each_row(|_, role, _| {
        if role != permission::PUBLIC && role::role(role).is_none() {
            troubles.insert(format!("There is no role \"{role}\"."));
        }
    });
    troubles.extend(spi::texts(
        "SELECT pg_catalog.format('Role %s was granted %s on %s tables and sequences of queue_internal by hand.',
             CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
             ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END,
             pg_catalog.string_agg(DISTINCT a.privilege_type, ', '), pg_catalog.count(DISTINCT c.oid))
         FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue_internal'::pg_catalog.regnamespace AND c.relkind
         IN ('r', 'p', 'S')
           AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
         GROUP BY a.grantee",
        &[],
    )?);
    Ok(Finding::of(
        &Vec::from_iter(troubles),
        "Every role with grants exists, and no role was granted a table.",
        "Create the role and grant again, or call queue.revoke. A grant on tables shows \
            the payloads of all \
         queues: REVOKE ALL ON ALL TABLES IN SCHEMA queue_internal FROM it, and the same for SEQUENCES; \
         queue.grant gives access to the views.",
    ))
}
