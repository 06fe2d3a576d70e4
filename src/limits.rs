//! Before a limited queue is claimed from: memory must know what runs, and what has started within the period of
//! its rate. After a start of the server it learns both from the logs.
//!
//! Invariant: no claim from a limited queue is granted before both are known.

use pg_queue_core::frontier::{Claimer, Limits};
use pg_queue_core::id::SEGMENTS;

use crate::duty::recover;
use crate::error::{Error, Result};
use crate::instance::Catalog;
use crate::log::census::Census;
use crate::queue::Queue;
use crate::segment::{self, State};
use crate::spi;
use crate::{guc, hold, shmem, sys, transaction};

/// What this session's transaction has to say when it claims from a limited queue.
pub struct Guest<'a> {
    queue: &'a Queue,
    limits: Limits,
    ending: Vec<i64>,
}

impl<'a> Guest<'a> {
    /// `None`: the queue has no limits.
    ///
    /// Errors: 53400 when memory has no room for all that runs, so that nobody can say how much it is; 55000 when this
    /// transaction has altered the limits: memory can only have one opinion of them.
    pub fn of(catalog: &Catalog, queue: &'a Queue) -> Result<Option<Self>> {
        if transaction::has_altered_limits(catalog.number, queue.lane) {
            return Err(Error::new(
                crate::error::WRONG_STATE,
                format!("the limits of queue \"{}\" were altered by this transaction", queue.name),
            )
            .detail("Until it commits, others claim by the limits as they were.")
            .hint("Claim in another transaction."));
        }
        let Some(limits) = queue.limits else { return Ok(None) };
        let guest = Self { queue, limits, ending: transaction::ending(catalog.number, queue.lanes()) };
        recover_first(catalog)?;
        guest.seed(catalog)?;
        Ok(Some(guest))
    }

    /// As of now.
    pub fn claimer(&self) -> Claimer<'_> {
        Claimer { ending: &self.ending, ..looker(self.queue, self.limits) }
    }

    /// Tells memory what has started within the period, when that began before memory did.
    fn seed(&self, catalog: &Catalog) -> Result<()> {
        let now = sys::monotonic_us();
        let is_needed = self.limits.rate > 0 && shmem::born_at() > now.saturating_sub(self.limits.period);
        let number = catalog.number;
        if !is_needed || shmem::with(|shared| shared.frontier.has_gate(number, self.queue.id)) {
            return Ok(());
        }
        let starts = starts(catalog, self.queue.lanes(), self.limits.period)?;
        let wall = sys::now_us();
        let starts: Vec<(i64, u32)> = starts
            .chunks_exact(2)
            .map(|pair| (now.saturating_sub((wall - pair[0]).max(0)), u32::try_from(pair[1]).unwrap_or(u32::MAX)))
            .collect();
        shmem::with(|shared| {
            // Somebody may have been quicker.
            if !shared.frontier.has_gate(number, self.queue.id) {
                shared.frontier.seed_rate(number, &self.claimer(), &starts);
            }
        });
        Ok(())
    }
}

/// What somebody says who has claimed nothing and will not.
pub fn looker(queue: &Queue, limits: Limits) -> Claimer<'_> {
    Claimer { queue: queue.id, limits, lanes: queue.lanes(), ending: &[], now: sys::monotonic_us() }
}

fn recover_first(catalog: &Catalog) -> Result<()> {
    let is_recovered = || shmem::with_instance(catalog.number, |_, instance| instance.is_recovered).unwrap_or(false);
    if is_recovered() {
        return Ok(());
    }
    recover::run(catalog.number);
    if is_recovered() { Ok(()) } else { Err(hold::running_full()) }
}

/// Times and numbers of claims by workers within the last so many microseconds, in order: first the time, then the
/// number. What has been reclaimed meanwhile is known by the minute.
fn starts(catalog: &Catalog, lanes: &[i32], period: i64) -> Result<Vec<i64>> {
    let lanes = lanes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    // The others are in the rollup, and a crash may have left them half empty. One that goes there meanwhile counts
    // twice at worst.
    let is_read = |n: &u8| !matches!(segment::word(catalog, *n).state(), State::Free | State::Copied | State::Emptying);
    let logs: String = (0..SEGMENTS as u8)
        .filter(is_read)
        .map(|n| {
            format!(
                "SELECT c.claimed_at AS at, 1::pg_catalog.int8 AS n FROM queue.claim_{n} AS c
                 JOIN queue.attempt_{n} AS a ON a.id OPERATOR(pg_catalog.=) c.id
                 WHERE a.lane OPERATOR(pg_catalog.=) ANY (ARRAY[{lanes}])
                   AND (c.kind OPERATOR(pg_catalog.=) 'w' OR c.kind OPERATOR(pg_catalog.=) 'b') UNION ALL "
            )
        })
        .collect();
    // A few parts of the period are enough: memory keeps no more apart.
    let sql = format!(
        "SELECT pg_catalog.unnest(ARRAY[at, n]) FROM (
             SELECT pg_catalog.max(us) AS at, pg_catalog.sum(n)::pg_catalog.int8 AS n FROM (
                 SELECT (pg_catalog.date_part('epoch', at OPERATOR(pg_catalog.-)
                            '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) OPERATOR(pg_catalog.*) 1e6::pg_catalog.float8
                        )::pg_catalog.int8 AS us, n
                 FROM ({logs}
                       SELECT least(minute OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval,
                                    pg_catalog.clock_timestamp()) AS at, claimed AS n FROM queue.rollup
                       WHERE lane OPERATOR(pg_catalog.=) ANY (ARRAY[{lanes}])
                         AND claimed OPERATOR(pg_catalog.>) 0) AS all_starts) AS starts
             WHERE us OPERATOR(pg_catalog.>) $1 GROUP BY us OPERATOR(pg_catalog./) $2 ORDER BY 1) AS parts"
    );
    let from = sys::now_us().saturating_sub(period);
    spi::read_i64_column(&sql, &[from.into(), (period / 256).max(1).into()])
}

/// Checks that a queue may get so many more jobs. What other open transactions are adding does not count: together
/// they may exceed it.
///
/// Errors: 53400 when it may not.
pub fn has_room(catalog: &Catalog, queue: &Queue, most: i64, more: usize) -> Result<()> {
    let number = catalog.number;
    let known = shmem::with_tallies(number, |tallies| {
        queue
            .lanes()
            .iter()
            .filter_map(|&lane| tallies.get(number, lane))
            .map(|tally| tally.counts.waiting)
            .sum::<i64>()
    });
    // After a start, until they are counted, or when memory has no room for all.
    let waiting = known.unwrap_or_else(|| {
        let census = Census::take(catalog);
        queue.lanes().iter().filter_map(|lane| census.0.get(lane)).map(|found| found.tally.counts.waiting).sum()
    });
    let waiting = waiting + transaction::added(number, queue.lanes());
    let more = i64::try_from(more).unwrap_or(i64::MAX);
    if waiting.saturating_add(more) <= most {
        return Ok(());
    }
    Err(Error::new(crate::error::LIMIT, format!("queue \"{}\" is full", queue.name))
        .detail(format!("{waiting} jobs wait, {more} more would exceed max_waiting, which is {most}."))
        .hint("Try again later, or raise the limit with queue.alter."))
}

/// The error for memory that has no room for another limited queue.
pub fn gates_full() -> Error {
    Error::new(crate::error::LIMIT, "too many limited queues are in use at once")
        .detail(format!("Shared memory has room for {} of them.", guc::MAX_LANES.get()))
        .hint("Raise pg_queue.max_lanes and restart the server.")
}
