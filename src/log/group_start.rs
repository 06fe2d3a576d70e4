//! What starts count in queues with a rate of groups or with costs, by the minute, after their segments are gone. A
//! claim after a start of the server counts them. Rows are appended and pruned when a segment is copied to history.
//!
//! Not responsible for the starts in live segments (`job::limits` reads both).
//!
//! Invariant: a start that counts for a rate is in a live segment or here.

use crate::catalog::spi;
use crate::error::Result;

/// Appends the starts of a segment that still count, and deletes older rows that no longer count.
pub fn write(segment: u8) -> Result<()> {
    // Mostly no queue has such a rate, and the table is empty.
    let is_used = "SELECT 1 FROM queue_internal.queue WHERE rate_limit_per_group IS NOT NULL OR rate_limit IS NOT NULL
                   UNION ALL SELECT 1 FROM queue_internal.group_start LIMIT 1";
    if !spi::has_row(is_used, &[])? {
        return Ok(());
    }
    let counts = "(q.rate_limit_per_group IS NOT NULL OR q.rate_limit IS NOT NULL)
                  AND {at} OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) q.rate_period)";
    spi::run(
        &format!(
            "DELETE FROM queue_internal.group_start AS s WHERE NOT EXISTS (
                 SELECT FROM queue_internal.lane AS l JOIN queue_internal.queue AS q
                 ON q.queue_id OPERATOR(pg_catalog.=) l.queue_id
                 WHERE l.lane OPERATOR(pg_catalog.=) s.lane AND {})",
            counts.replace("{at}", "(s.minute OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval)"),
        ),
        &[],
    )?;
    spi::run(
        &format!(
            "INSERT INTO queue_internal.group_start (minute, group_hash, claimed, beyond, lane)
             SELECT pg_catalog.date_trunc('minute', c.claimed_at), coalesce(a.group_hash, 0),
                    pg_catalog.sum(coalesce(c.cost, 1)), pg_catalog.sum(coalesce(c.cost, 1) OPERATOR(pg_catalog.-) 1),
                    a.lane
             FROM queue_internal.claim_{segment} AS c
             JOIN queue_internal.attempt_{segment} AS a ON a.id OPERATOR(pg_catalog.=) c.id
             JOIN queue_internal.lane AS l ON l.lane OPERATOR(pg_catalog.=) a.lane
             JOIN queue_internal.queue AS q ON q.queue_id OPERATOR(pg_catalog.=) l.queue_id
             WHERE (a.group_hash IS NOT NULL AND q.rate_limit_per_group IS NOT NULL OR c.cost IS NOT NULL) AND {}
               AND (c.kind OPERATOR(pg_catalog.=) 'w' OR c.kind OPERATOR(pg_catalog.=) 'b')
               AND NOT EXISTS (SELECT FROM queue_internal.outcome_{segment} AS o
                               WHERE o.id OPERATOR(pg_catalog.=) c.id AND o.outcome OPERATOR(pg_catalog.=) 'm')
             GROUP BY 1, 2, a.lane",
            counts.replace("{at}", "c.claimed_at"),
        ),
        &[],
    )?;
    Ok(())
}
