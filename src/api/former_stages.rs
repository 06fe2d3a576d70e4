//! The lanes of stages that were removed from a queue. They are needed to show the jobs that have ended there, so a
//! lane stays while any row of a job names it.
//!
//! Responsible for removing the others, and for the bound. Not responsible for closing a lane (`queues`).
//!
//! Invariant: a lane is removed only if an earlier transaction has closed it, so that no job can come into it.

use std::fmt::Write as _;

use pg_queue_core::id::SEGMENTS;

use crate::catalog::queue::{self, Queue};
use crate::catalog::spi;
use crate::error::{self, Error, Result};
use crate::pg::relcache;

/// The most former stages of a queue. Each of them makes every read of the queue slower.
const MAX_FORMER_STAGES: usize = 1_000;

/// Removes the lanes of former stages that no row of a job names. `before`: the queue before the change of its stages.
///
/// Errors: 53400 if too many former stages are left.
pub fn clear(before: &Queue) -> Result<()> {
    let now = queue::by_name(&before.name)?;
    let is_closed = |&lane: &i32| now.former().any(|other| other == lane);
    let closed: Vec<i64> = before.former().filter(is_closed).map(i64::from).collect();
    let mut left = now.former().count();
    if !closed.is_empty() {
        let mut sql = "DELETE FROM queue_internal.lane AS l WHERE l.lane OPERATOR(pg_catalog.=) ANY ($1)
             AND NOT EXISTS (SELECT FROM queue_internal.total AS t WHERE t.lane OPERATOR(pg_catalog.=) l.lane)"
            .to_owned();
        for n in 0..SEGMENTS {
            let _ = write!(
                sql,
                " AND NOT EXISTS (SELECT FROM queue_internal.attempt_{n} AS a
                 WHERE a.lane OPERATOR(pg_catalog.=) l.lane)"
            );
        }
        left -= spi::run(&sql, &[closed.into()])? as usize;
        relcache::forget_queues();
    }
    if left > MAX_FORMER_STAGES {
        return Err(Error::new(error::LIMIT, format!("queue \"{}\" has had too many stages", before.name))
            .detail(format!(
                "There are {left} stages that it has no more and that jobs have passed; there can be \
                    {MAX_FORMER_STAGES}."
            ))
            .hint("Name stages as they were named before, or create another queue."));
    }
    Ok(())
}
