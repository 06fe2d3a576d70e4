//! Checks of what fills up or must not be altered: shared memory, segments, tables and their triggers, and the settings
//! of vacuum.
//!
//! Not responsible for transactions that keep vacuum from removing rows: see `transactions`.

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::{self, Oid};

use crate::catalog::{self, queue, spi, tables, triggers, unlogged};
use crate::doctor::audit;
use crate::doctor::check::{Finding, assert_loaded, needs_instance, patience, time};
use crate::doctor::transactions::{self, Lock};
use crate::error::Result;
use crate::guc;
use crate::log::history;
use crate::pg::table::Relation;
use crate::pg::{lock, session, syscache, time, trigger};
use crate::shmem::segments::{OLD, State};
use crate::shmem::{self, here, keys, usage};

/// Checks that no kind of memory is nearly full, that is, in use to nine tenths.
pub fn memory() -> Result<Finding> {
    assert_loaded()?;
    let mut troubles: Vec<String> = usage::in_use()
        .iter()
        .filter(|kind| kind.used * 10 >= kind.size * 9)
        .map(|kind| {
            let most = kind.most.filter(|&(_, held)| held > 0).map_or_else(String::new, |(database, held)| {
                format!(" Database \"{}\" uses the most of them: {held}.", syscache::database_name(database))
            });
            format!("{} of {} ({}) are in use.{most}", kind.used, kind.size, kind.setting)
        })
        .collect();
    troubles.extend(shares()?);
    if shmem::with(|shared| shared.instances.iter().any(|i| i.number != 0 && i.counting.is_full())) {
        troubles.push("There are more queues and stages than can be counted (four times pg_queue.max_lanes).".into());
    }
    Ok(Finding::of(
        &troubles,
        "There is room everywhere.",
        "Raise the setting and restart the server; docs/settings.md says what happens at each limit.",
    ))
}

/// Returns a sentence for each queue of this database that has nearly used up its share of memory. All databases share
/// that memory.
fn shares() -> Result<Vec<String>> {
    // A standby, and a database without the extension, have no shares.
    if needs_instance().is_err() {
        return Ok(Vec::new());
    }
    let is_short = |(held, room): (u32, u32)| held > 0 && held >= room.saturating_mul(9);
    let mut found = Vec::new();
    for lane in queue::lanes() {
        let running = shmem::with(|shared| {
            (shared.frontier.running.held(here::number(), lane).0, shared.frontier.running.places(here::number(), lane))
        });
        let Some(queue) = queue::by_lane(lane)? else { continue };
        // A queue with stages holds its keys for all stages together.
        let keys = if lane == queue.lane {
            keys::with_holders(|holders| holders.share(here::number(), queue.id.cast_unsigned()))
        } else {
            (0, 0)
        };
        let stage = queue.stage_of(lane).map_or_else(String::new, |stage| format!(", stage \"{stage}\","));
        for (share, what) in [(running, "running jobs"), (keys, "unique keys of open transactions")] {
            if is_short(share) {
                let (held, room) = share;
                found.push(format!("Queue \"{}\"{stage} has {held} {what}, and room for {room} more.", queue.name));
            }
        }
    }
    Ok(found)
}

/// Checks that segments are closed, moved out of, copied and emptied in time.
pub fn segments() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    if !guc::RECLAIM.get() {
        return Ok(Finding::ill(
            "pg_queue.reclaim is off: the logs grow.",
            "Switch it on again when the dump of the standby is over.",
        ));
    }
    let seen = shmem::with_instance(|_, i| i.storage);
    let Some(storage) = seen else { return Ok(Finding::well("There are none.")) };
    let (now, patience) = (time::now_us(), patience());
    let state = |n: u8| storage.word(n).state();
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    let mut troubles = Vec::new();
    let catalog = catalog::pinned();
    for n in 0..SEGMENTS as u8 {
        let since = now.saturating_sub(storage.fillings[n as usize].since);
        let stuck = |what: &str, wanted: &[Lock]| -> Result<String> {
            let blame = transactions::holders(wanted)?;
            let blame = if blame.is_empty() { "nothing visible blocks it".into() } else { blame.join("; ") };
            Ok(format!("Segment {n} has been {what} for {}: {blame}.", time(since)))
        };
        let trouble = match state(n) {
            State::Moving if since > patience => stuck("moving its living jobs", &[Lock::inserting(n)])?,
            State::Drained if since > patience => {
                stuck("copied to history", &[Lock::against_writers(catalog.history)])?
            }
            State::Copied | State::Emptying if since > patience.saturating_add(delay) => {
                stuck("waiting to be emptied", &[Lock::any(catalog::segment(n).tables().collect()), Lock::of_dumps()?])?
            }
            _ => continue,
        };
        troubles.push(trouble);
    }
    // The open segment is closed when another segment is free.
    let open = &storage.fillings[storage.young() as usize];
    let overdue = now.saturating_sub(open.opened_at) - i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
    if open.attempts > 0 && open.opened_at > 0 && overdue > patience {
        let closed: Vec<Lock> = (0..OLD).filter(|&n| state(n) == State::Closed).map(Lock::inserting).collect();
        let blame = transactions::holders(&closed)?;
        let blame = if blame.is_empty() { String::new() } else { format!(": {}", blame.join("; ")) };
        troubles.push(format!("No segment was free for {}{blame}.", time(overdue)));
    }
    let free = (0..OLD).filter(|&n| state(n) == State::Free).count();
    Ok(Finding::of(
        &troubles,
        &format!("{free} of {OLD} young segments are free; none has waited for long."),
        "End what blocks it. Until then the logs grow; jobs are still claimed.",
    ))
}

/// Checks what `queue.check()` can find without reading all rows.
pub fn consistency() -> Result<Finding> {
    needs_instance()?;
    if session::in_recovery() {
        return Ok(Finding::well("The primary checks this."));
    }
    Ok(Finding::of(
        &audit::cheap()?,
        "A quick look finds no fault. queue.check() reads all rows.",
        "Run SELECT * FROM queue.check(); it says what is wrong, and what can be mended.",
    ))
}

/// Checks that the tables have no triggers, rules or foreign keys that are not of pg_queue. A trigger would have to see
/// each row.
pub fn triggers() -> Result<Finding> {
    Ok(Finding::of(
        &triggers::found(true)?,
        "No table has triggers, rules or foreign keys that are not of pg_queue.",
        trigger::DROP_IT,
    ))
}

/// Checks that autovacuum is off for the tables that are emptied as a whole, and on for the others.
pub fn autovacuum() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT 'Autovacuum is switched off on this server.'
         WHERE NOT (current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean)
       UNION ALL
         (SELECT format(CASE WHEN has_it THEN 'Autovacuum is on for queue_internal.%I, which is emptied as a whole.'
                             ELSE 'Autovacuum is off for queue_internal.%I.' END, relname)
          FROM (SELECT relname,
                       relname ~ '^(attempt|claim|outcome|note)_[0-7]$|^(firing|key)_[01]$' AS is_left_alone,
                       coalesce((SELECT option_value::boolean FROM pg_options_to_table(reloptions)
                                 WHERE option_name = 'autovacuum_enabled'), true) AS has_it
                FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace AND relkind = 'r') AS t
          WHERE has_it = is_left_alone ORDER BY relname)",
        &[],
    )?;
    Ok(Finding::of(
        &troubles,
        "It is off for the young segments and on for the other tables, as it should be.",
        "Restore it with ALTER TABLE … SET or RESET (autovacuum_enabled), or switch autovacuum on in the server.",
    ))
}

/// Checks that the tables have the columns that pg_queue gave them, and that a crash does not empty them.
pub fn tables() -> Result<Finding> {
    let mut troubles = Vec::new();
    let mut hint = None;
    needs_instance()?;
    let children = history::children().into_iter().map(|child| (child.table, tables::history::SHAPE));
    let catalog = catalog::pinned();
    let all = catalog::shapes(&catalog).into_iter().map(|(table, known)| (Oid::from(table), known)).chain(children);
    // The check does not wait for a table that is being altered now.
    for (table, known) in all.filter(|(table, _)| lock::try_lock(*table, pg_sys::AccessShareLock)) {
        if let Some(fault) = Relation::read_unchecked(table).fault(known) {
            let detail = fault.detail.unwrap_or_default();
            troubles.push(format!("{}: {detail}", fault.message));
            hint = fault.hint;
        }
    }
    let unlogged = unlogged::found()?;
    if !unlogged.is_empty() {
        hint = Some("Use ALTER TABLE … SET LOGGED.".to_owned());
    }
    troubles.extend(unlogged);
    Ok(Finding::of(
        &troubles,
        "All tables have the columns that they should have, and are logged.",
        &hint.unwrap_or_default(),
    ))
}

/// Checks that no table comes near the wraparound of transaction ids.
pub fn wraparound() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT format('The oldest row of %s is of %s transactions ago.', oid::regclass, age)
         FROM (SELECT t.oid, age(t.relfrozenxid) AS age
               FROM pg_class AS c JOIN pg_class AS t ON t.oid IN (c.oid, c.reltoastrelid)
               WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r') AS aged
         WHERE age > 2 * current_setting('autovacuum_freeze_max_age')::bigint ORDER BY age DESC",
        &[],
    )?;
    Ok(Finding::of(
        &troubles,
        "No table is older than twice autovacuum_freeze_max_age.",
        "Look at check xmin_horizon, and find out why autovacuum does not run; VACUUM FREEZE does the same by hand.",
    ))
}
