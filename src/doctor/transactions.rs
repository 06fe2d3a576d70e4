//! Checks of what others keep open: restores, prepared transactions, snapshots. Also who holds a lock.

use pgrx::pg_sys;

use super::{Finding, catalog, patience};
use crate::error::Result;
use crate::instance::Catalog;
use crate::log::table::{Relation, Snapshot};
use crate::spi::{self, Parameter};
use crate::{dormant, guc, shmem, sys};

/// Locks that are in somebody's way.
pub struct Lock {
    tables: Vec<i64>,
    /// The modes, as pg_locks has them; none: any.
    modes: &'static [&'static str],
}

const WRITERS: &[&str] =
    &["RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"];
const AGAINST_WRITERS: &[&str] = &["ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"];

impl Lock {
    fn new(tables: impl IntoIterator<Item = pg_sys::Oid>, modes: &'static [&'static str]) -> Self {
        Self { tables: tables.into_iter().map(|oid| i64::from(u32::from(oid))).collect(), modes }
    }

    /// Any, on these tables, their indexes, or where their long values are.
    pub fn any(tables: Vec<pg_sys::Oid>) -> Self {
        Self::new(tables, &[])
    }

    /// Those of whoever may still insert attempts into a segment.
    pub fn inserting(catalog: &Catalog, segment: u8) -> Self {
        Self::new([catalog.segments[segment as usize].attempt], WRITERS)
    }

    /// Those that keep others from writing to a table.
    pub fn against_writers(table: pg_sys::Oid) -> Self {
        Self::new([table], AGAINST_WRITERS)
    }

    /// That of a dump.
    pub fn dump() -> Self {
        Self::new([pg_sys::ExtensionRelationId], &[])
    }
}

/// Who holds such locks: processes with what can be seen of them, prepared transactions.
pub fn holders(locks: &[Lock]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for lock in locks {
        let modes: Vec<String> = lock.modes.iter().map(|mode| (*mode).to_owned()).collect();
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
               AND l.relation IN (SELECT c.oid FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])
                                  UNION ALL SELECT c.reltoastrelid FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])
                                  UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = ANY ($1::oid[]))
             ORDER BY 1",
            &[lock.tables.clone().into(), Parameter::from(modes)],
        )?;
        found.extend(holders);
    }
    Ok(found)
}

/// The tables are not being written by SQL.
pub fn restore() -> Result<Finding> {
    let catalog = catalog()?;
    if sys::in_recovery() {
        return Ok(Finding::well("The primary says it."));
    }
    if dormant::learn(&catalog) {
        return Ok(Finding::well("No restore is under way."));
    }
    let open = shmem::with_instance(catalog.number, |_, instance| instance.dormancy.writers()).flatten().unwrap_or(0);
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
    Ok(Finding::ill(
        format!("The queues are dormant: their tables were written by SQL{by}; {open} such transactions are open."),
        "It ends by itself a while after the restore; SELECT queue.adopt() ends it now.",
    ))
}

/// No prepared transaction keeps jobs, or what was done to them, to itself for long.
pub fn prepared() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT format('The prepared transaction %L of %s holds jobs since %s.', p.gid, p.owner,
                       date_trunc('second', p.prepared))
         FROM pg_prepared_xacts AS p
         WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => $1)
           AND EXISTS (SELECT FROM pg_locks AS x JOIN pg_locks AS l ON l.virtualtransaction = x.virtualtransaction
                       JOIN pg_class AS c ON c.oid = l.relation
                       WHERE x.transactionid = p.transaction AND x.granted AND x.pid IS NULL AND l.pid IS NULL
                         AND c.relnamespace = 'queue'::regnamespace)
         ORDER BY p.prepared",
        &[f64::from(guc::PATIENCE.get()).into()],
    )?;
    Ok(Finding::of(
        &troubles,
        "No prepared transaction has held jobs for long.",
        "End it with COMMIT PREPARED or ROLLBACK PREPARED.",
    ))
}

/// How many times the patience a transaction may be open, and how many transactions a standby may be behind, before
/// the dead rows that they keep are worth a word.
const OPEN: i64 = 12;
const BEHIND: i64 = 1_000_000;

/// Nobody keeps vacuum from removing dead rows.
pub fn xmin_horizon() -> Result<Finding> {
    let mut troubles = spi::texts(
        "SELECT format('Process %s of %s has a transaction open since %s.', pid, usename, date_trunc('second', xact_start))
         FROM pg_stat_activity
         WHERE datname = current_database() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
           AND backend_type <> 'autovacuum worker' AND xact_start < clock_timestamp() - make_interval(secs => $1)
       UNION ALL
         SELECT format('The prepared transaction %L of %s is open since %s.', gid, owner, date_trunc('second', prepared))
         FROM pg_prepared_xacts
         WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1)
       UNION ALL
         SELECT format('The replication slot %I, which nobody uses, keeps what was dead %s transactions ago.', slot_name,
                       greatest(age(xmin), age(catalog_xmin)))
         FROM pg_replication_slots
         WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
           AND (database IS NULL OR database = current_database())
       UNION ALL
         SELECT format('The standby %I keeps what was dead %s transactions ago (hot_standby_feedback).', application_name,
                       age(backend_xmin))
         FROM pg_stat_replication WHERE age(backend_xmin) > $2",
        &[((patience() * OPEN) as f64 / 1e6).into(), BEHIND.into()],
    )?;
    let sees_all = spi::holds_for_user("pg_has_role('pg_read_all_stats', 'USAGE')")?;
    let blind = "Transactions of others are not seen, for that takes pg_read_all_stats.";
    if troubles.is_empty() {
        return Ok(Finding::well(if sees_all { "Nothing keeps old rows for long." } else { blind }));
    }
    if !sees_all {
        troubles.push(blind.to_owned());
    }
    Ok(Finding::of(
        &troubles,
        "",
        "End it. Queues do not mind, for they have no dead rows; but the other tables of the database grow.",
    ))
}
