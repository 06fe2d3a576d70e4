//! Checks of what fills up: shared memory, segments, and what vacuum is for.

use pg_queue_core::id::SEGMENTS;

use super::transactions::{self, Lock};
use super::{Finding, assert_loaded, catalog, patience, time};
use crate::error::Result;
use crate::segment::{OLD, State, Word};
use crate::{guc, shmem, spi, sys};

/// No kind of memory is nearly full.
pub fn memory() -> Result<Finding> {
    assert_loaded()?;
    let mut troubles: Vec<String> = shmem::in_use()
        .iter()
        .filter(|kind| kind.used * 10 >= kind.size * 9)
        .map(|kind| format!("{} of {} ({}) are in use.", kind.used, kind.size, kind.setting))
        .collect();
    if shmem::with(|shared| shared.instances.iter().any(|i| i.number != 0 && i.counting.is_full())) {
        troubles.push("There are more queues and stages than can be counted (four times pg_queue.max_lanes).".into());
    }
    Ok(Finding::of(
        &troubles,
        "There is room everywhere.",
        "Raise the setting and restart the server; docs/settings.md says what happens at each limit.",
    ))
}

/// Segments are closed, moved out of, copied and emptied in time.
pub fn segments() -> Result<Finding> {
    let catalog = catalog()?;
    if sys::in_recovery() {
        return Ok(Finding::well("The primary reclaims them."));
    }
    if !guc::RECLAIM.get() {
        return Ok(Finding::ill(
            "pg_queue.reclaim is off: the logs grow.",
            "Switch it on again when the dump of the standby is over.",
        ));
    }
    let seen = shmem::with_instance(catalog.number, |_, i| (i.words, i.segments, i.open as u8));
    let Some((words, fillings, young)) = seen else { return Ok(Finding::well("There are none.")) };
    let (now, patience) = (sys::now_us(), patience());
    let state = |n: u8| Word::of(words[n as usize]).state();
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    let mut troubles = Vec::new();
    for n in 0..SEGMENTS as u8 {
        let since = now.saturating_sub(fillings[n as usize].since);
        let stuck = |what: &str, wanted: &[Lock]| -> Result<String> {
            let blame = transactions::holders(wanted)?;
            let blame = if blame.is_empty() { "nobody is seen in its way".into() } else { blame.join("; ") };
            Ok(format!("Segment {n} has been {what} for {}: {blame}.", time(since)))
        };
        let trouble = match state(n) {
            State::Moving if since > patience => stuck("moving its living jobs", &[Lock::inserting(&catalog, n)])?,
            State::Drained if since > patience => {
                stuck("copied to history", &[Lock::against_writers(catalog.history)])?
            }
            State::Copied | State::Emptying if since > patience.saturating_add(delay) => stuck(
                "waiting to be emptied",
                &[Lock::any(catalog.segments[n as usize].tables().collect()), Lock::dump()],
            )?,
            _ => continue,
        };
        troubles.push(trouble);
    }
    // It is closed as soon as another one is free.
    let open = &fillings[young as usize];
    let overdue = now.saturating_sub(open.opened_at) - i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
    if open.attempts > 0 && open.opened_at > 0 && overdue > patience {
        let closed: Vec<Lock> =
            (0..OLD).filter(|&n| state(n) == State::Closed).map(|n| Lock::inserting(&catalog, n)).collect();
        let blame = transactions::holders(&closed)?;
        let blame = if blame.is_empty() { String::new() } else { format!(": {}", blame.join("; ")) };
        troubles.push(format!("No segment was free for {}{blame}.", time(overdue)));
    }
    let free = (0..OLD).filter(|&n| state(n) == State::Free).count();
    Ok(Finding::of(
        &troubles,
        &format!("{free} of {OLD} young segments are free; none has waited for long."),
        "End what is in the way. Until then the logs grow, and jobs are claimed as ever.",
    ))
}

/// Autovacuum leaves alone what is emptied as a whole, and serves the rest.
pub fn autovacuum() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT 'Autovacuum is switched off on this server.'
         WHERE NOT (current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean)
       UNION ALL
         (SELECT format(CASE WHEN has_it THEN 'Autovacuum is on for queue.%I, which is emptied as a whole.'
                             ELSE 'Autovacuum is off for queue.%I.' END, relname)
          FROM (SELECT relname,
                       relname ~ '^(attempt|claim|outcome|note)_[0-7]$|^(firing|key)_[01]$' AS is_left_alone,
                       coalesce((SELECT option_value::boolean FROM pg_options_to_table(reloptions)
                                 WHERE option_name = 'autovacuum_enabled'), true) AS has_it
                FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'r') AS t
          WHERE has_it = is_left_alone ORDER BY relname)",
        &[],
    )?;
    Ok(Finding::of(
        &troubles,
        "It is off for the young segments, and on for the rest, as it should be.",
        "Put it back with ALTER TABLE … SET or RESET (autovacuum_enabled), or switch the server's on.",
    ))
}

/// No table comes near the wraparound of transaction ids.
pub fn wraparound() -> Result<Finding> {
    let troubles = spi::texts(
        "SELECT format('The oldest row of %s is of %s transactions ago.', oid::regclass, age)
         FROM (SELECT t.oid, age(t.relfrozenxid) AS age
               FROM pg_class AS c JOIN pg_class AS t ON t.oid IN (c.oid, c.reltoastrelid)
               WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r') AS aged
         WHERE age > 2 * current_setting('autovacuum_freeze_max_age')::bigint ORDER BY age DESC",
        &[],
    )?;
    Ok(Finding::of(
        &troubles,
        "No table is older than twice autovacuum_freeze_max_age.",
        "Look at check xmin_horizon, and why autovacuum does not come; VACUUM FREEZE does it by hand.",
    ))
}
