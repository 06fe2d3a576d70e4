//! Compares the rows of the logs, of history and of the settings with each other, for `queue.check()`.
//!
//! Responsible for the one statement that reads all these tables, and for its snapshot. Not responsible for the second
//! look, nor for mending (`audit`), nor for shared memory (`memory`).
//!
//! Invariant: before the snapshot is taken, all tables are locked so that none can be emptied. The locks are released
//! after the statement. So the statement sees each move, copy and end as a whole or not at all. A segment that is being
//! emptied is not read. If a segment was emptied after a row was written, the row that it refers to may have gone with
//! that segment. Then no fault is reported.

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys;

use crate::catalog::{self, spi, triggers};
use crate::doctor::audit::fault::Fault;
use crate::error::Result;
use crate::log::segment;
use crate::pg::scan::Snapshot;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{lock, transaction};
use crate::shmem::ledger::Ledger;
use crate::shmem::segments::{OLD, State, Word};

/// Reads all tables and returns the faults. Keeps no lock. Expects the doctor's search_path.
pub fn look() -> Result<Vec<Fault>> {
    let catalog = catalog::pinned();
    transaction::look(|| {
        lock_segments();
        let _snapshot = ActiveSnapshot::latest();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
        let segments: Vec<Segment> = segment::plannable()
            .into_iter()
            .map(|n| Segment { n, is_read: ledger.is_read_here(n), is_free: ledger.word(n).state() == State::Free })
            .collect();
        spi::read_rows(&statement(&segments), &[], |row| {
            Ok(Fault {
                name: row.get::<String>(1)?.unwrap_or_default(),
                queue: row.get(2)?,
                job_id: row.get(3)?,
                attempt_id: row.get(4)?,
                segment: row.get::<i32>(5)?.map(|n| n as u8),
                problem: row.get::<String>(6)?.unwrap_or_default(),
            })
        })
    })
}

/// Locks the tables of all segments, so that none is emptied until the transaction, or `transaction::look`, ends.
pub fn lock_segments() {
    let catalog = catalog::pinned();
    let tables = catalog.segments.iter().flat_map(|segment| segment.tables());
    tables.for_each(|table| lock::lock(table, pg_sys::AccessShareLock));
}

/// A segment whose tables a statement may name.
struct Segment {
    n: u8,
    /// True if its attempts count in this segment.
    is_read: bool,
    is_free: bool,
}

/// Returns one query for each segment that `filter` accepts. N in `sql` stands for the segment's number.
fn each(segments: &[Segment], sql: &str, filter: impl Fn(&Segment) -> bool) -> String {
    let of = |segment: &Segment| {
        sql.replace("_N", &format!("_{}", segment.n))
            .replace("$N", &segment.n.to_string())
            .replace("$READ", if segment.is_read { "true" } else { "false" })
    };
    segments.iter().filter(|segment| filter(segment)).map(of).collect::<Vec<_>>().join("\nUNION ALL\n")
}

/// Attempts with their claims and outcomes.
const LIFE: &str = "SELECT $N AS segment, $READ AS is_read, a.id, a.job_id, a.lane, a.payload_of, a.unique_key,
           c.kind, c.claimed_at, o.outcome, o.ended_at, o.next_id
    FROM queue_internal.attempt_N AS a LEFT JOIN queue_internal.claim_N AS c ON c.id = a.id LEFT
    JOIN queue_internal.outcome_N AS o
    ON o.id = a.id";

/// Rows whose attempt does not exist.
const ORPHANS: &str = "SELECT 'orphan_claim', NULL::text, NULL::bigint, c.id, $N,
           format('Segment %s has a claim of kind %s of an attempt that is not there.', $N, c.kind)
    FROM queue_internal.claim_N AS c WHERE NOT EXISTS (SELECT FROM queue_internal.attempt_N AS a WHERE a.id = c.id)
    UNION ALL
    SELECT 'orphan_outcome', NULL, NULL, o.id, $N,
           format('Segment %s has an outcome of kind %s of an attempt that is not there.', $N, o.outcome)
    FROM queue_internal.outcome_N AS o WHERE NOT EXISTS (SELECT FROM queue_internal.attempt_N AS a WHERE a.id = o.id)
    UNION ALL
    SELECT DISTINCT 'orphan_note', NULL, NULL::bigint, n.id, $N,
           format('Segment %s has a note of kind %s about an attempt that is not there.', $N, n.kind)
    FROM queue_internal.note_N AS n WHERE NOT EXISTS (SELECT FROM queue_internal.attempt_N AS a WHERE a.id = n.id)";

/// Held attempts that no predecessor can release.
const HELD: &str = "SELECT 'no_edge', q.queue_name, a.job_id, a.id, $N,
           'The attempt is held, but has no predecessor: nothing releases it.'
    FROM queue_internal.attempt_N AS a
    JOIN queue_internal.lane AS n ON n.lane = a.lane AND n.is_held JOIN queue_internal.queue AS q
    ON q.queue_id = n.queue_id
    WHERE $READ AND NOT EXISTS (SELECT FROM queue_internal.claim_N AS c WHERE c.id = a.id)
      AND NOT EXISTS (SELECT FROM queue_internal.note_N AS e WHERE e.id = a.id AND e.kind = 'a')";

/// Attempts that a worker has claimed too late.
const LATE: &str = "SELECT 'late_start', q.queue_name, a.job_id, a.id, $N,
           format('A worker claimed the attempt at %s, but it had to start before %s.', c.claimed_at, a.start_by)
    FROM queue_internal.attempt_N AS a JOIN queue_internal.claim_N AS c ON c.id = a.id
    JOIN queue_internal.lane AS n ON n.lane = a.lane JOIN queue_internal.queue AS q ON q.queue_id = n.queue_id
    WHERE $READ AND a.start_by <= c.claimed_at AND c.kind IN ('w', 'b')";

/// Rows of segments that should be empty.
const LEFTOVERS: &str = "SELECT 'leftover', NULL, NULL::bigint, NULL::bigint, $N,
           format('Segment %s is free, but has %s attempts.', $N, count(*))
    FROM queue_internal.attempt_N HAVING count(*) > 0";

/// All other faults. `life` has the attempts, `living` the attempts that wait or run, `ended` the last attempts of
/// ended jobs, in the segments and in history.
const OTHERS: &str = "
    SELECT 'no_claim', l.queue_name, l.job_id, l.id, l.segment, 'The attempt has an outcome but no claim.'
    FROM known AS l WHERE l.outcome IS NOT NULL AND l.kind IS NULL
    UNION ALL
    SELECT 'half_ended', l.queue_name, l.job_id, l.id, l.segment,
           'The attempt was claimed by the system to be ended, but has no outcome.'
    FROM known AS l WHERE l.is_read AND l.kind = 's' AND l.outcome IS NULL
    UNION ALL
    SELECT 'wrong_segment', NULL, l.job_id, l.id, l.segment,
           format('The attempt lies in segment %s, where no session looks for an attempt of this id.', l.segment)
    FROM life AS l
    WHERE l.segment < 8 AND l.id & 15 <> l.segment OR l.id & 15 > 9 OR l.job_id & 15 <> 15
    UNION ALL
    SELECT 'two_places', min(l.queue_name), min(l.job_id), l.id, min(l.segment),
           format('The attempt lives in several segments: %s.', string_agg(l.segment::text, ', ' ORDER BY l.segment))
    FROM living AS l GROUP BY l.id HAVING count(*) > 1
    UNION ALL
    SELECT 'two_living', min(l.queue_name), l.job_id, max(l.id), NULL,
           format('The job has %s attempts that wait or run: %s.', count(DISTINCT l.id),
           string_agg(DISTINCT l.id::text, ', '))
    FROM living AS l GROUP BY l.job_id HAVING count(DISTINCT l.id) > 1
    UNION ALL
    SELECT 'ended_twice', min(n.queue_name), n.job_id, max(n.id), NULL,
           CASE WHEN bool_or(n.is_living) THEN 'The job has ended, but still waits or runs.'
           ELSE 'The job has ended more than once.' END
    FROM (SELECT queue_name, job_id, id, true AS is_living FROM living
          UNION ALL SELECT queue_name, job_id, id, false FROM ended) AS n
    GROUP BY n.job_id HAVING count(*) > 1 AND NOT bool_and(n.is_living)
    UNION ALL
    SELECT 'lost_move', l.queue_name, l.job_id, l.id, l.segment,
           'The attempt was moved elsewhere, by its mark, but is nowhere.'
    FROM known AS l
    WHERE l.is_read AND (l.kind = 'm' OR l.outcome = 'm')
      AND NOT EXISTS (SELECT FROM life AS b WHERE b.id = l.id AND b.segment <> l.segment
                      AND b.lane <> 0 AND b.kind IS DISTINCT FROM 'm' AND b.outcome IS DISTINCT FROM 'm')
      AND NOT EXISTS (SELECT FROM queue_internal.history AS h WHERE h.job_id = l.job_id AND h.id = l.id)
      AND NOT EXISTS (SELECT FROM emptied AS e WHERE e.segment IN (8, 9)
      AND e.at > coalesce(l.ended_at, l.claimed_at) - slack
                      AND e.entry > coalesce((SELECT o.entry FROM opened AS o WHERE o.segment = l.segment), 0))
    UNION ALL
    SELECT 'lost_next', l.queue_name, l.job_id, l.id, l.segment,
           format('Attempt %s should go on with the job, but is nowhere.', l.next_id)
    FROM known AS l
    WHERE l.is_read AND l.next_id IS NOT NULL AND l.outcome <> 'm'
      AND NOT EXISTS (SELECT FROM life AS b WHERE b.id = l.next_id AND b.lane <> 0)
      AND NOT EXISTS (SELECT FROM queue_internal.history AS h WHERE h.job_id = l.job_id AND h.id = l.next_id)
      AND NOT EXISTS (SELECT FROM emptied AS e WHERE e.segment IN ((l.next_id & 15)::integer, 8, 9)
      AND e.at > l.ended_at - slack
                      AND e.entry > coalesce((SELECT o.entry FROM opened AS o WHERE o.segment = l.segment), 0))
    UNION ALL
    SELECT 'dead_end', l.queue_name, l.job_id, l.id, l.segment,
           format('The attempt has an outcome of kind %s, after which the job goes on, but names no next attempt.',
           l.outcome)
    FROM known AS l
    WHERE l.is_read AND l.outcome IN ('f', 'r', 'w', 'a', 's') AND l.next_id IS NULL
      AND NOT EXISTS (SELECT FROM queue_internal.successor AS s WHERE s.id = l.id)
    UNION ALL
    SELECT 'lost_successor', NULL, NULL, s.id, NULL,
           format('Attempt %s should go on with the retried job, but is nowhere.', s.next_id)
    FROM queue_internal.successor AS s
    WHERE NOT EXISTS (SELECT FROM life AS b WHERE b.id = s.next_id)
      AND NOT EXISTS (SELECT FROM queue_internal.history AS h WHERE h.id = s.next_id)
      AND NOT EXISTS (SELECT FROM emptied AS e WHERE e.segment IN ((s.next_id & 15)::integer, 8, 9)
      AND e.at > s.retried_at - slack)
    UNION ALL
    SELECT 'orphan_successor', NULL, NULL, s.id, NULL,
           format('A retry is on record (attempt %s) of an attempt that is nowhere.', s.next_id)
    FROM queue_internal.successor AS s
    WHERE NOT EXISTS (SELECT FROM life AS b WHERE b.id = s.id)
      AND NOT EXISTS (SELECT FROM queue_internal.history AS h WHERE h.id = s.id)
      AND NOT EXISTS (SELECT FROM emptied AS e WHERE e.segment IN ((s.id & 15)::integer, 8, 9) AND e.is_emptying)
    UNION ALL
    SELECT 'lost_payload', l.queue_name, l.job_id, l.id, l.segment,
           format('The attempt''s payload should lie in the row of attempt %s, which is not there.', l.payload_of)
    FROM living AS l
    WHERE l.payload_of IS NOT NULL
      AND NOT EXISTS (SELECT FROM life AS b WHERE b.id = l.payload_of AND b.payload_of IS NULL)
    UNION ALL
    SELECT 'shared_key', min(l.queue_name), max(l.job_id), max(l.id), NULL,
           format('Jobs %s live under one unique key.', string_agg(DISTINCT l.job_id::text, ', '))
    FROM living AS l WHERE l.unique_key IS NOT NULL
    GROUP BY l.queue_id, l.unique_key HAVING count(DISTINCT l.job_id) > 1
    UNION ALL
    SELECT 'lost_firing', q.queue_name, f.job_id, NULL, NULL,
           format('Schedule %s has enqueued this job for %s, but it is nowhere.', quote_ident(s.schedule_name), f.slot)
    FROM (SELECT * FROM queue_internal.firing_0 UNION ALL SELECT * FROM queue_internal.firing_1) AS f
    JOIN queue_internal.schedule AS s ON s.schedule_id = f.schedule_id
    LEFT JOIN queue_internal.queue AS q ON q.queue_id = s.queue_id
    WHERE f.kind = 'r' AND NOT EXISTS (SELECT FROM life AS b WHERE b.job_id = f.job_id)
      AND NOT EXISTS (SELECT FROM queue_internal.history AS h WHERE h.job_id = f.job_id)
      AND NOT EXISTS (SELECT FROM emptied AS e WHERE e.at > f.fired_at - slack)
    UNION ALL
    SELECT 'lane', NULL, NULL, NULL, NULL, format('Lane %s belongs to no queue.', n.lane)
    FROM queue_internal.lane AS n WHERE NOT EXISTS (SELECT FROM queue_internal.queue AS q WHERE q.queue_id = n.queue_id)
    UNION ALL
    SELECT 'lane', q.queue_name, NULL, NULL, NULL, 'The queue has no lane.'
    FROM queue_internal.queue AS q WHERE NOT EXISTS (SELECT FROM queue_internal.lane AS n WHERE n.queue_id = q.queue_id)
    UNION ALL
    SELECT 'open_segments', NULL, NULL, NULL, NULL,
           format('%s young segments and %s halves of old are open; it should be one of each.',
                  count(*) FILTER (WHERE n.segment < 8), count(*) FILTER (WHERE n.segment >= 8))
    FROM (SELECT DISTINCT ON (g.segment) g.segment, g.state FROM queue_internal.segment_log AS g
          ORDER BY g.segment, g.entry DESC) AS n
    WHERE n.state = 'o'
    HAVING count(*) FILTER (WHERE n.segment < 8) <> 1 OR count(*) FILTER (WHERE n.segment >= 8) <> 1
    UNION ALL
    SELECT 'history_table', NULL, NULL, NULL, NULL,
           format('Table %s of history would outlive the extension: it does not depend on it.', i.inhrelid::regclass)
    FROM pg_inherits AS i
    WHERE i.inhparent = 'queue_internal.history'::regclass AND NOT EXISTS (
        SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.inhrelid AND d.deptype = 'x')
    UNION ALL
    SELECT 'trigger', NULL, NULL, NULL, NULL, format('Trigger foreign_write of %s is switched off.',
    t.tgrelid::regclass)
    FROM pg_trigger AS t WHERE t.tgfoid = of_triggers AND t.tgenabled <> 'A'";

/// Returns the whole statement. Its columns: name, queue, job, attempt, segment, and the problem in a sentence.
fn statement(segments: &[Segment]) -> String {
    // The statement must be valid even if no segment has rows.
    let life = format!(
        "SELECT NULL::integer AS segment, false AS is_read, NULL::bigint AS id, NULL::bigint AS job_id,
            NULL::integer AS lane,
                NULL::bigint AS payload_of, NULL::text COLLATE \"C\" AS unique_key, NULL::\"char\" AS kind,
                NULL::timestamptz AS claimed_at, NULL::\"char\" AS outcome, NULL::timestamptz AS ended_at,
                NULL::bigint AS next_id
         WHERE false{}",
        union(each(segments, LIFE, |_| true))
    );
    let none = "SELECT NULL::text, NULL::text, NULL::bigint, NULL::bigint, NULL::integer, NULL::text WHERE false";
    let orphans = union(each(segments, ORPHANS, |_| true));
    let leftovers = union(each(segments, LEFTOVERS, |segment| segment.is_free));
    let held = union(each(segments, HELD, |_| true));
    let late = union(each(segments, LATE, |_| true));
    let others = OTHERS.replace("slack", "interval '10 minutes'").replace("of_triggers", triggers::foreign_write());
    format!(
        "WITH life AS MATERIALIZED ({life}),
         -- The attempts of existing queues. Rows of dropped queues may remain; nothing reads them.
         known AS (
             SELECT l.*, q.queue_id, q.queue_name FROM life AS l
             JOIN queue_internal.lane AS n ON n.lane = l.lane JOIN queue_internal.queue AS q
             ON q.queue_id = n.queue_id),
         living AS (
             SELECT * FROM known AS l
             WHERE l.is_read AND l.outcome IS NULL AND (l.kind IS NULL OR l.kind IN ('w', 'b'))),
         ended AS (
             SELECT l.queue_name, l.job_id, l.id FROM known AS l
             WHERE l.is_read AND l.outcome <> 'm' AND l.next_id IS NULL
               AND NOT EXISTS (SELECT FROM queue_internal.successor AS s WHERE s.id = l.id)
             UNION ALL
             SELECT q.queue_name, h.job_id, h.id FROM queue_internal.history AS h
             JOIN queue_internal.lane AS n ON n.lane = h.lane JOIN queue_internal.queue AS q ON q.queue_id = n.queue_id
             WHERE h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue_internal.successor AS s WHERE s.id = h.id)
               -- Rows that are still being copied count in their segment.
               AND h.generation <> ALL (ARRAY(
                   SELECT d.generation FROM queue_internal.segment_log AS d WHERE d.state IN ('m', 'd') AND NOT EXISTS (
                       SELECT FROM queue_internal.segment_log AS c WHERE c.generation = d.generation
                       AND c.state = 'h')))),
         -- When each segment was last emptied, and when it was last opened.
         emptied AS (
             SELECT g.segment, max(g.entry) AS entry, max(g.at) AS at,
                    (array_agg(g.state ORDER BY g.entry DESC))[1] = 'e' AS is_emptying
             FROM queue_internal.segment_log AS g WHERE g.state IN ('f', 'e') GROUP BY g.segment),
         opened AS (SELECT g.segment, max(g.entry) AS entry FROM queue_internal.segment_log AS g WHERE g.state = 'o'
         GROUP BY g.segment)
         {none}{orphans}{leftovers}{held}{late} UNION ALL {others}"
    )
}

fn union(queries: String) -> String {
    if queries.is_empty() { queries } else { format!("\nUNION ALL\n{queries}") }
}

/// True if SQL may write rows of this segment.
pub fn may_write(n: u8) -> bool {
    usize::from(n) < SEGMENTS && segment::plannable().contains(&n)
}

/// True if a segment is one of the halves of old.
pub fn is_old(n: u8) -> bool {
    n >= OLD
}

/// Returns the state of a segment by the log of segments.
pub fn logged(n: u8) -> Word {
    let catalog = catalog::pinned();
    Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now).word(n)
}
