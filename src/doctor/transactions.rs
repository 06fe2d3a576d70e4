//! Checks of transactions that stay open: restores, prepared transactions, snapshots. Also finds the processes that
//! hold a lock.
//!
//! Not responsible for deciding which locks block a segment: see `storage`.

use pgrx::{IntoDatum, pg_sys};

use crate::catalog::{self, dump, spi};
use crate::doctor::check::{Finding, needs_instance, patience};
use crate::error::Result;
use crate::pg::parameter::Parameter;
use crate::pg::scan::Snapshot;
use crate::pg::session;
use crate::pg::table::Relation;
use crate::restore;
use crate::{guc, shmem};

/// Locks that may block other sessions.
pub struct Lock {
    tables: Vec<i64>,
    /// The modes, as pg_locks has them; empty: any mode.
    modes: &'static [&'static str],
    /// The processes whose locks count. `None`: all processes, and prepared transactions.
    pids: Option<Vec<i64>>,
}

const WRITER_MODES: &[&str] =
    &["RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"];
const MODES_BLOCKING_WRITERS: &[&str] = &["ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"];

impl Lock {
    fn new(tables: impl IntoIterator<Item = pg_sys::Oid>, modes: &'static [&'static str]) -> Self {
        Self { tables: tables.into_iter().map(|oid| i64::from(u32::from(oid))).collect(), modes, pids: None }
    }

    /// Returns the locks of any mode on these tables, their indexes and their TOAST tables.
    pub fn any(tables: Vec<pg_sys::Oid>) -> Self {
        Self::new(tables, &[])
    }

    /// Returns the locks of sessions that may still insert attempts into a segment.
    pub fn inserting(segment: u8) -> Self {
        Self::new([catalog::segment(segment).attempt], WRITER_MODES)
    }

    /// Returns the locks that keep sessions from writing to a table.
    pub fn against_writers(table: pg_sys::Oid) -> Self {
        Self::new([table], MODES_BLOCKING_WRITERS)
    }

    /// Returns the locks of dumps, which lock pg_extension.
    pub fn of_dumps() -> Result<Self> {
        Ok(Self { pids: Some(dump::sessions()?), ..Self::new([pg_sys::ExtensionRelationId], &[]) })
    }
}

/// Returns the holders of such locks: prepared transactions, and processes with their visible activity.
pub fn holders(locks: &[Lock]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for lock in locks {
        let modes: Vec<String> = lock.modes.iter().map(|mode| (*mode).to_owned()).collect();
        let pids = Parameter::raw(lock.pids.clone().and_then(IntoDatum::into_datum), pg_sys::INT8ARRAYOID);
        let holders = spi::texts(
            "SELECT DISTINCT coalesce(
                 'the prepared transaction ' || quote_literal(p.gid),
                 format('process %s', l.pid) || coalesce(' of ' || s.usename, '')
                     || coalesce(', in a transaction since ' || date_trunc('second', s.xact_start), '')
                     || coalesce(': ' || nullif(left(regexp_replace(s.query, '[[:space:]]+', ' ', 'g'), 100), ''), ''))
             FROM pg_locks AS l
             LEFT JOIN pg_stat_activity AS s ON s.pid = l.pid
             LEFT JOIN (pg_locks AS x JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid)
                    ON l.pid IS NULL AND x.pid IS NULL AND x.granted AND x.virtualtransaction = l.virtualtransaction
             WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND (cardinality($2) = 0 OR l.mode = ANY ($2))
               AND ($3 IS NULL OR l.pid = ANY ($3))
               AND l.relation IN (SELECT c.oid FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])
                                  UNION ALL SELECT c.reltoastrelid FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])
                                  UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = ANY ($1::oid[]))
             ORDER BY 1",
            &[lock.tables.clone().into(), Parameter::from(modes), pids],
        )?;
        found.extend(holders);
    }
    Ok(found)
}

/// Checks that SQL is not writing the tables.
pub fn restore() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    if restore::learn() {
        return Ok(Finding::well("No restore is under way."));
    }
    let seen = shmem::with_instance(|_, i| (i.restore.writers().unwrap_or(0), i.restore.writer()));
    let (open, writer) = seen.unwrap_or_default();
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.restoring);
    let index = Relation::read_index(catalog.restoring_idx);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    let mut pids = Vec::new();
    while scan.next().is_some() {
        let pid = scan.columns(2).0[1].value() as i32;
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let by = if pids.is_empty() { String::new() } else { format!(" by process {}", pids.join(", ")) };
    let last = writer.map_or_else(String::new, |writer| format!(" The last one was {writer}."));
    Ok(Finding::ill(
        format!(
            "The queues are dormant: their tables were written by SQL{by}; {open} such transactions are open.{last}"
        ),
        "They wake up by themselves a while after the restore. SELECT queue.adopt() wakes them now.",
    ))
}

/// Checks that no prepared transaction holds jobs for long, so that they can be neither run nor cancelled.
pub fn prepared() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT format('The prepared transaction %L of %s holds jobs since %s.', p.gid, p.owner,
                       date_trunc('second', p.prepared))
         FROM pg_prepared_xacts AS p
         WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => $1)
           AND EXISTS (SELECT FROM pg_locks AS x JOIN pg_locks AS l ON l.virtualtransaction = x.virtualtransaction
                       JOIN pg_class AS c ON c.oid = l.relation
                       WHERE x.transactionid = p.transaction AND x.granted AND x.pid IS NULL AND l.pid IS NULL
                         AND c.relnamespace = 'queue_internal'::regnamespace)
         ORDER BY p.prepared",
        &[f64::from(guc::PATIENCE.get()).into()],
    )?;
    Ok(Finding::of(
        &troubles,
        "No prepared transaction has held jobs for long.",
        "End it with COMMIT PREPARED or ROLLBACK PREPARED.",
    ))
}

/// `xmin_horizon` reports a transaction that is open for this many times `pg_queue.patience`, and a standby that is
/// this many transactions behind: they keep dead rows.
const MAX_OPEN_PATIENCES: i64 = 12;
const MAX_XIDS_BEHIND: i64 = 1_000_000;

/// Checks that nothing keeps vacuum from removing dead rows.
pub fn xmin_horizon() -> Result<Finding> {
    let mut troubles = spi::texts(
        "SELECT format('Process %s of %s has a transaction open since %s.', pid, usename,
            date_trunc('second', xact_start))
         FROM pg_stat_activity
         WHERE datname = current_database() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
           AND backend_type <> 'autovacuum worker' AND xact_start < clock_timestamp() - make_interval(secs => $1)
       UNION ALL
         SELECT format('The prepared transaction %L of %s is open since %s.', gid, owner,
         date_trunc('second', prepared))
         FROM pg_prepared_xacts
         WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1)
       UNION ALL
         SELECT format('The replication slot %I, which nobody uses, keeps what was dead %s transactions ago.',
         slot_name,
                       greatest(age(xmin), age(catalog_xmin)))
         FROM pg_replication_slots
         WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
           AND (database IS NULL OR database = current_database())
       UNION ALL
         SELECT format('The standby %I keeps what was dead %s transactions ago (hot_standby_feedback).',
         application_name,
                       age(backend_xmin))
         FROM pg_stat_replication WHERE age(backend_xmin) > $2",
        &[((patience() * MAX_OPEN_PATIENCES) as f64 / 1e6).into(), MAX_XIDS_BEHIND.into()],
    )?;
    let sees_all = spi::holds_for_user("pg_has_role('pg_read_all_stats', 'USAGE')")?;
    let blind = "Transactions of other users are not seen; this needs pg_read_all_stats.";
    if troubles.is_empty() {
        return Ok(Finding::well(if sees_all { "Nothing keeps old rows for long." } else { blind }));
    }
    if !sees_all {
        troubles.push(blind.to_owned());
    }
    Ok(Finding::of(
        &troubles,
        "",
        "End it. The queues are not affected because they have no dead rows. The other tables of the database grow.",
    ))
}
