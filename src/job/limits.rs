//! Prepares a claim from a limited queue. Memory must know which jobs run, and which have started within the period of
//! the rate. After a start of the server it learns both from the logs.
//!
//! Invariant: no claim from a limited queue is granted before both are known.

use std::rc::Rc;

use pg_queue_core::frontier::{Claimer, Ending, Limits, PastStart};
use pg_queue_core::id::SEGMENTS;

use crate::catalog::queue::Queue;
use crate::catalog::spi;
use crate::error::{Error, Result};
use crate::job::{held, recover};
use crate::log::lane_counts::LaneCounts;
use crate::log::{segment, waiting};
use crate::pg::fault::fault;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{memory, process, session, time};
use crate::shmem::here;
use crate::shmem::segments::State;
use crate::{guc, shmem, transaction};

/// The facts that a claim from a limited queue needs.
pub struct LimitCheck<'a> {
    queue: &'a Queue,
    limits: Limits,
    ending: Option<Rc<Ending>>,
}

impl<'a> LimitCheck<'a> {
    /// Returns the facts. `None`: the queue has no limits.
    ///
    /// Errors: 53400 when memory has no room for all running jobs, so that their number is not known; 55000 when this
    /// transaction has altered the limits, because memory keeps one version of them.
    pub fn of(queue: &'a Queue) -> Result<Option<Self>> {
        if transaction::has_altered_limits(here::number(), queue.lane) {
            return Err(Error::new(
                crate::error::WRONG_STATE,
                format!("the limits of queue \"{}\" were altered by this transaction", queue.name),
            )
            .detail("Until it commits, other sessions claim by the limits as they were.")
            .hint("Claim in another transaction."));
        }
        let Some(limits) = queue.limits else { return Ok(None) };
        let check = Self { queue, limits, ending: transaction::ending(here::number(), queue.lanes()) };
        recover_first()?;
        check.seed()?;
        check.read_retries();
        Ok(Some(check))
    }

    /// Returns the claimer, with the present time.
    pub fn claimer(&self) -> Claimer<'_> {
        let charges = if self.limits.is_fair { self.queue.charges() } else { &[] };
        Claimer { ending: self.ending.as_deref(), charges, ..without_claims(self.queue, self.limits) }
    }

    /// Tells memory which groups of a strict queue have a failed job that waits, if memory does not know them. Until it
    /// does, each group takes a turn that looks for such a job in the logs.
    fn read_retries(&self) {
        /// Attempts handed over in one hold of the lock.
        const ATTEMPTS_PER_HOLD: usize = 64;
        let (number, session) = (here::number(), session::session());
        if !self.limits.is_strict
            || !shmem::with(|shared| shared.frontier.retries_begin(number, &self.claimer(), session))
        {
            return;
        }
        let mut read = RetriesRead { number, queue: self.queue, has_all: false };
        fault!("retries.begun");
        let mut found = memory::list(ATTEMPTS_PER_HOLD);
        let hand_over = |found: &mut Vec<(i32, i64, i64)>| {
            shmem::with(|shared| {
                found.iter().for_each(|&(lane, group, id)| shared.frontier.retry_waits(number, lane, group, id));
            });
            found.clear();
            process::check_for_interrupts();
        };
        let tables = waiting::open_tables();
        for &lane in self.queue.lanes() {
            for tables in &tables {
                waiting::for_each_retry(tables, lane, |group, id| {
                    found.push((lane, group, id));
                    if found.len() == ATTEMPTS_PER_HOLD {
                        hand_over(&mut found);
                    }
                });
            }
        }
        hand_over(&mut found);
        fault!("retries.read");
        read.has_all = true;
    }

    /// Tells memory which jobs have started within the period, if the period began before memory knew of claims.
    fn seed(&self) -> Result<()> {
        if self.limits.rate == 0 && self.limits.group_rate == 0 {
            return Ok(());
        }
        let number = here::number();
        let known_from = shmem::with_instance(|_, instance| instance.recovered_at);
        let from = time::monotonic_us().saturating_sub(self.limits.period);
        if known_from.is_some_and(|at| at != 0 && at <= from)
            || shmem::with(|shared| shared.frontier.has_gate(number, self.queue.id))
        {
            return Ok(());
        }
        let (mut starts, mut of_groups) = (Vec::new(), Vec::new());
        if self.limits.rate > 0 {
            starts = starts_of_queue(self.queue, self.limits.period)?;
        }
        if self.limits.group_rate > 0 {
            of_groups = starts_of_groups(self.queue.lanes(), self.limits.period)?;
        }
        fault!("limits.read");
        // The wall clock is read first. The time between the two readings makes starts later than they were, never
        // earlier.
        let (wall, now) = (time::now_us(), time::monotonic_us());
        let at = |then: i64| now.saturating_sub((wall - then).max(0));
        let count = |count: i64| u64::try_from(count).unwrap_or_default();
        let starts: Vec<(i64, u64)> = starts.chunks_exact(2).map(|pair| (at(pair[0]), count(pair[1]))).collect();
        let of_groups: Vec<PastStart> = of_groups
            .chunks_exact(4)
            .map(|of| PastStart { at: at(of[0]), count: count(of[1]), lane: of[2] as i32, group: of[3] })
            .collect();
        let claimer = self.claimer();
        let all_fit = shmem::with(|shared| {
            // Another session may have been quicker.
            shared.frontier.has_gate(number, self.queue.id)
                || shared.frontier.seed_rate(number, &claimer, &starts, &of_groups)
        });
        if all_fit { Ok(()) } else { Err(rated_groups_full(&self.queue.name)) }
    }
}

/// The session's reading of the retrying groups of a queue.
struct RetriesRead<'a> {
    number: u32,
    queue: &'a Queue,
    has_all: bool,
}

impl Drop for RetriesRead<'_> {
    fn drop(&mut self) {
        let (session, now) = (session::session(), time::monotonic_us());
        shmem::with(|shared| {
            shared.frontier.backlog.gates.retries_end(self.number, self.queue.id, session, self.has_all, now);
        });
    }
}

/// Returns the claimer of a session that reads the gate and claims nothing.
pub fn without_claims(queue: &Queue, limits: Limits) -> Claimer<'_> {
    Claimer { queue: queue.id, limits, lanes: queue.lanes(), charges: &[], ending: None, now: time::monotonic_us() }
}

fn recover_first() -> Result<()> {
    let is_recovered = || shmem::with_instance(|_, instance| instance.is_recovered()).unwrap_or(false);
    if is_recovered() {
        return Ok(());
    }
    recover::recover_all();
    if is_recovered() { Ok(()) } else { Err(held::running_full()) }
}

/// Returns the claims by workers within the last `period` microseconds, in order: a time, then the number of claims.
/// For reclaimed segments only the minute is known.
fn starts_of_queue(queue: &Queue, period: i64) -> Result<Vec<i64>> {
    // What jobs cost comes on top of their number, whatever the settings say today.
    let minutes = "(SELECT minute, lane, claimed FROM queue_internal.rollup
                    UNION ALL SELECT minute, lane, beyond FROM queue_internal.group_start) AS minutes";
    starts(queue.lanes(), period, minutes, "")
}

/// As `starts_of_queue`, for jobs in groups: time, number, lane, hash of the group.
fn starts_of_groups(lanes: &[i32], period: i64) -> Result<Vec<i64>> {
    starts(lanes, period, "queue_internal.group_start", ", lane, group_hash")
}

/// `minutes`: the table of claims in reclaimed segments. `by`: the columns that distinguish starts.
fn starts(lanes: &[i32], period: i64, minutes: &str, by: &str) -> Result<Vec<i64>> {
    let lanes = lanes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let has_group = if by.is_empty() { "" } else { "AND group_hash OPERATOR(pg_catalog.<>) 0" };
    // The claims of the other segments are in the table of minutes, and a crash may have left these segments half
    // empty. If a segment is copied there meanwhile, its claims count twice at worst.
    let is_read = |n: &u8| !matches!(segment::word(*n).state(), State::Free | State::Copied | State::Emptying);
    let logs: String = (0..SEGMENTS as u8)
        .filter(is_read)
        .map(|n| {
            format!(
                "SELECT c.claimed_at AS at, coalesce(c.cost, 1)::pg_catalog.int8 AS n {by}
                 FROM queue_internal.claim_{n} AS c
                 JOIN queue_internal.attempt_{n} AS a ON a.id OPERATOR(pg_catalog.=) c.id
                 WHERE a.lane OPERATOR(pg_catalog.=) ANY (ARRAY[{lanes}]) {has_group}
                   AND (c.kind OPERATOR(pg_catalog.=) 'w' OR c.kind OPERATOR(pg_catalog.=) 'b')
                   AND NOT EXISTS (SELECT FROM queue_internal.outcome_{n} AS o
                                   WHERE o.id OPERATOR(pg_catalog.=) c.id AND o.outcome OPERATOR(pg_catalog.=) 'm')
                 UNION ALL "
            )
        })
        .collect();
    // Memory divides the period into a few parts, so a finer resolution is not needed.
    let sql = format!(
        "SELECT pg_catalog.unnest(ARRAY[at, n {by}]) FROM (
             SELECT pg_catalog.max(us) AS at, pg_catalog.sum(n)::pg_catalog.int8 AS n {by} FROM (
                 SELECT (pg_catalog.date_part('epoch', at OPERATOR(pg_catalog.-)
                            '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) OPERATOR(pg_catalog.*)
                            1e6::pg_catalog.float8
                        )::pg_catalog.int8 AS us, n {by}
                 FROM ({logs}
                       SELECT least(minute OPERATOR(pg_catalog.+) '1 minute'::pg_catalog.interval,
                                    pg_catalog.clock_timestamp()) AS at, claimed AS n {by} FROM {minutes}
                       WHERE lane OPERATOR(pg_catalog.=) ANY (ARRAY[{lanes}]) {has_group}
                         AND claimed OPERATOR(pg_catalog.<>) 0) AS all_starts) AS starts
             WHERE us OPERATOR(pg_catalog.>) $1 GROUP BY us OPERATOR(pg_catalog./) $2 {by} ORDER BY 1) AS parts"
    );
    let from = time::now_us().saturating_sub(period);
    spi::read_i64_column(&sql, &[from.into(), (period / 256).max(1).into()])
}

/// Checks that a queue may get `more` jobs. What other open transactions are adding does not count, so together they
/// may exceed the limit.
///
/// Errors: 53400 when the queue is full.
pub fn has_room(queue: &Queue, most: i64, more: usize) -> Result<()> {
    let number = here::number();
    let known = shmem::with_counters(|counters| {
        queue
            .lanes()
            .iter()
            .filter_map(|&lane| counters.get(number, lane))
            .map(|counter| counter.counts.waiting)
            .sum::<i64>()
    });
    // The number is unknown after a start until the jobs are counted, and if memory has no room for all lanes.
    let waiting = known.unwrap_or_else(|| {
        // This transaction's snapshot may be old, and the jobs that it has added are counted below.
        let _others = ActiveSnapshot::of_others();
        let lane_counts = LaneCounts::take(i64::MIN);
        queue.lanes().iter().filter_map(|lane| lane_counts.0.get(lane)).map(|found| found.counter.counts.waiting).sum()
    });
    let waiting = waiting + transaction::added(number, queue.lanes());
    let more = i64::try_from(more).unwrap_or(i64::MAX);
    if waiting.saturating_add(more) <= most {
        return Ok(());
    }
    Err(Error::new(crate::error::LIMIT, format!("queue \"{}\" is full", queue.name))
        .detail(format!("Waiting jobs: {waiting}; {more} more would exceed max_waiting, which is {most}."))
        .hint("Try again later, or raise the limit with queue.alter."))
}

/// Returns the error for memory that has no room for another limited queue.
pub fn gates_full() -> Error {
    Error::new(crate::error::LIMIT, "too many limited queues are in use at the same time")
        .detail(format!("Shared memory has room for {} of them.", guc::MAX_LANES.get()))
        .hint("Raise pg_queue.max_lanes and restart the server.")
}

/// Returns the error for memory that has no room for all groups with recent starts.
pub fn rated_groups_full(queue: &str) -> Error {
    Error::new(
        crate::error::LIMIT,
        format!("too many groups of queue \"{queue}\" have started jobs within its rate_period"),
    )
    .detail(format!("Shared memory has room for {} of them, over all queues.", guc::MAX_RATED_GROUPS.get()))
    .hint("Raise pg_queue.max_rated_groups and restart the server.")
}
