//! The check of the databases whose jobs come here by `pg_queue_bridge`: each is connected, and no call was refused.
//!
//! Responsible for what the last contacts have found. Not responsible for whether the databases answer now: a check of
//! the doctor never waits.

use crate::catalog::spi;
use crate::doctor::check::{Finding, assert_loaded};
use crate::error::Result;

/// What is wrong with each source.
const FAULTS: &str = "SELECT format('Source \"%s\" %s.', s.source, f.fault) FROM queue_bridge.sources AS s
    CROSS JOIN LATERAL (VALUES
        (s.problem IS NOT NULL, format('has a problem: %s', s.problem)),
        (s.contact_at < now() - current_setting('pg_queue.patience')::interval,
         format('was last spoken with at %s', s.contact_at)),
        (s.state IN ('disconnected', 'disabled'), format('is %s', s.state)),
        (s.wal_status IN ('unreserved', 'lost'), format('has a slot whose WAL is %s', s.wal_status)),
        (s.refused > 0, format('has %s refused calls', s.refused)),
        (s.phantoms > 0, format('has lost the transactions of %s jobs', s.phantoms)),
        (s.late > 0, format('has ended %s attempts too late', s.late))) AS f (is_so, fault)
    WHERE f.is_so ORDER BY s.source, f.fault";

/// What lets others drop the extension: `dblink`, which it needs, lies in the schema of a role that is no superuser.
const LIES_APART: &str = "SELECT format('Extension dblink lies in schema \"%s\", which role \"%s\" may drop, and with \
    it the sources.', n.nspname, r.rolname)
    FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
    JOIN pg_database AS d ON d.datname = current_database()
    JOIN pg_roles AS r
        ON r.oid = CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END
    WHERE e.extname = 'dblink' AND NOT r.rolsuper";

/// What keeps calls that arrive from being carried out.
const TRIGGER: &str = "SELECT 'The trigger \"arrive\" of table queue_bridge.outbox is not enabled ALWAYS, or rows are \
    stored there.' FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname = 'arrive'
    WHERE n.nspname = 'queue_bridge' AND c.relname = 'outbox'
      AND (t.tgenabled IS DISTINCT FROM 'A' OR pg_relation_size(c.oid) > 0)";

/// Subscriptions that DROP EXTENSION … CASCADE has left.
const LEFT_BEHIND: &str = "SELECT format('Subscription \"%s\" is there without the extension.', s.subname)
    FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
    WHERE d.datname = current_database() AND s.subname ~ '^queue_bridge_' ORDER BY s.subname";

/// Checks that all sources are connected, and that no call of theirs was refused.
pub fn bridge() -> Result<Finding> {
    assert_loaded()?;
    let is_there = "SELECT 'it is' FROM pg_extension WHERE extname = 'pg_queue_bridge'";
    if spi::texts(is_there, &[])?.is_empty() {
        let left = spi::texts(LEFT_BEHIND, &[])?;
        let well = "No jobs come from other databases: pg_queue_bridge is not installed.";
        let hint = "ALTER SUBSCRIPTION … DISABLE, SET (slot_name = NONE), then DROP SUBSCRIPTION. Drop the slot at the \
                    source, too: it keeps WAL there.";
        return Ok(Finding::of(&left, well, hint));
    }
    let mut faults = spi::texts(TRIGGER, &[])?;
    faults.extend(spi::texts(FAULTS, &[])?);
    faults.extend(spi::texts(LIES_APART, &[])?);
    let hint = "See queue_bridge.sources, queue_bridge.refused and the server's log. queue_bridge.retry_refused \
                delivers refused calls again. ALTER EXTENSION dblink SET SCHEMA puts it elsewhere.";
    Ok(Finding::of(&faults, "All sources are connected, and no call was refused.", hint))
}
