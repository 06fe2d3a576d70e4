//! Compares shared memory with the tables for `queue.check()`: running attempts, waiting attempts and counters.
//!
//! Responsible for the comparisons. Not responsible for mending (`audit`): a reload of memory mends all these faults.
//!
//! Invariant: memory learns of a commit a moment after the tables show it. So a difference counts only if it persists
//! for seconds.

use pg_queue_core::counter::Counts;
use pg_queue_core::frontier::{Rank, Running, State};
use pg_queue_core::id;

use crate::catalog::{queue, spi};
use crate::doctor::audit::fault::Fault;
use crate::doctor::audit::rows;
use crate::error::Result;
use crate::log::claim::{self, Kind};
use crate::log::lane_counts::LaneCounts;
use crate::log::reader::Reader;
use crate::log::{outcome, segment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{memory, process, session, time, transaction};
use crate::shmem::{self, here};

/// A difference must persist for this long, in microseconds, and be seen again at least this often.
const MIN_PERSISTENCE_US: i64 = 3_000_000;
const MIN_LOOKS: usize = 10;
/// At most this many suspects of a lane are looked at again.
const MAX_SUSPECTS: i64 = 1_000;

/// Keeps the suspects that stay wrong for `MIN_PERSISTENCE_US` and for `MIN_LOOKS` looks.
fn persisting<T>(mut suspects: Vec<T>, mut is_wrong: impl FnMut(&T) -> bool) -> Vec<T> {
    let until = time::monotonic_us().saturating_add(MIN_PERSISTENCE_US);
    let mut looks = 0;
    while !suspects.is_empty() && (looks < MIN_LOOKS || time::monotonic_us() < until) {
        process::sleep(100);
        session::accept_invalidations();
        suspects.retain(&mut is_wrong);
        looks += 1;
    }
    suspects
}

/// Compares memory with the tables. On a standby memory has nothing to compare.
pub fn look() -> Result<Vec<Fault>> {
    let mut found = Vec::new();
    unknown_claims(&mut found)?;
    strangers(&mut found);
    unreachable(&mut found)?;
    counters(&mut found)?;
    states(&mut found);
    Ok(found)
}

/// Returns the name of the lane's queue. `None`: the queue does not exist.
fn queue_name(lane: i32) -> Option<String> {
    queue::by_lane(lane).ok().flatten().map(|queue| queue.name.clone())
}

fn entry(attempt: i64) -> Option<Running> {
    shmem::with(|shared| shared.frontier.entry(here::number(), attempt))
}

/// Returns what the tables say of an attempt: its lane, the kind of its claim, and whether it has ended. `None`: no
/// table has it.
fn in_tables(attempt: i64) -> Option<(i32, Option<Kind>, bool)> {
    let found = Reader::new().by_id(attempt)?;
    let segment = found.home.segment;
    let kind = claim::find(segment, attempt).map(|claim| claim.kind);
    let has_ended = outcome::find(segment, attempt).is_some();
    // The attempt may have moved between the reads. The next round sees it.
    found.home.is_valid().then(|| (found.lane(), kind, has_ended))
}

/// True if an open transaction claims the attempt. If that transaction also purges the queue, memory has already
/// dropped the attempt, and knows it again after a rollback.
fn is_being_claimed(attempt: i64) -> bool {
    let found = Reader::new().by_id(attempt);
    found.is_some_and(|found| claim::kind_even_open(found.home.segment, attempt).is_some())
}

fn union(sql: &str) -> String {
    let none = std::iter::once("SELECT NULL::int8, NULL::int4, NULL::int8 WHERE false".to_owned());
    let all = segment::plannable().into_iter().map(|n| sql.replace("_N", &format!("_{n}")));
    none.chain(all).collect::<Vec<_>>().join(" UNION ALL ")
}

/// Finds running attempts that memory does not know. Their leases never end, and no limit counts them.
fn unknown_claims(found: &mut Vec<Fault>) -> Result<()> {
    let is_recovered = || shmem::with_instance(|_, i| i.is_recovered()).unwrap_or(false);
    if !is_recovered() {
        return Ok(());
    }
    let running = transaction::look(|| {
        rows::lock_segments();
        let _snapshot = ActiveSnapshot::latest();
        let sql = union(
            "SELECT c.id, 0, 0::int8 FROM queue_internal.claim_N AS c
             WHERE c.kind IN ('w', 'b') AND NOT EXISTS (SELECT FROM queue_internal.outcome_N AS o WHERE o.id = c.id)",
        );
        spi::read_rows(&sql, &[], |row| row.get::<i64>(1))
    })?;
    let suspects = running.into_iter().flatten().filter(|&id| entry(id).is_none()).collect();
    let is_wrong = |id: &i64| {
        let Some((lane, Some(Kind::Worker | Kind::Bound), false)) = in_tables(*id) else { return false };
        entry(*id).is_none() && queue_name(lane).is_some() && is_recovered()
    };
    for id in persisting(suspects, is_wrong) {
        let attempt = Reader::new().by_id(id);
        found.push(Fault {
            queue: attempt.as_ref().and_then(|a| queue_name(a.lane())),
            job_id: attempt.as_ref().map(|a| a.job_id()),
            attempt_id: Some(id),
            ..Fault::new("unknown_claim", "The attempt runs, but memory does not know it: its lease does not end.")
        });
    }
    Ok(())
}

/// Finds entries of running attempts that do not run. They use up limits.
fn strangers(found: &mut Vec<Fault>) {
    let counts = |entry: &Running| entry.state == State::Running && entry.claimed != 0;
    let is_wrong = |known: &Running| {
        let has_no_claim = match in_tables(known.id) {
            None => true,
            Some((lane, kind, has_ended)) => has_ended || kind.is_none() || queue_name(lane).is_none(),
        };
        has_no_claim && entry(known.id).as_ref().is_some_and(counts)
    };
    let suspects = shmem::each_running().filter(|entry| counts(entry) && is_wrong(entry)).collect();
    for entry in persisting(suspects, is_wrong) {
        found.push(Fault {
            queue: queue_name(entry.lane),
            job_id: Some(entry.rank.job_id),
            attempt_id: Some(entry.id),
            ..Fault::new("stranger", "Memory counts the attempt as running, but it does not run.")
        });
    }
}

/// A waiting attempt.
struct Waiting {
    id: i64,
    lane: i32,
    rank: Rank,
}

/// Finds waiting attempts that no claim will ever find: they rank before the position of their lane and are not ready.
/// Attempts of groups are skipped, because memory need not know them. Attempts that became due a moment ago, and
/// attempts that have expired, are skipped, too.
fn unreachable(found: &mut Vec<Fault>) -> Result<()> {
    let number = here::number();
    let mut ids = memory::list(usize::try_from(crate::guc::MAX_READY.get()).unwrap_or(0));
    for lane in queue::lanes() {
        // The ready attempts are read first. If an attempt becomes ready later, the following rounds see it.
        let Some(position) = copy_ready(lane, &mut ids) else { continue };
        let due_to = shmem::with_instance(|_, instance| instance.due.to).unwrap_or(i64::MIN);
        if position == Rank::MIN {
            continue;
        }
        let waiting = transaction::look(|| {
            rows::lock_segments();
            let _snapshot = ActiveSnapshot::latest();
            let sql = union(
                "SELECT a.id, a.priority, a.job_id FROM queue_internal.attempt_N AS a
                 WHERE a.lane = $1 AND (a.priority, a.job_id) <= ($2, $3) AND a.group_hash IS NULL
                   AND (a.run_at IS NULL OR a.run_at <= $4 AND a.run_at <= now() - interval '1 minute')
                   AND NOT EXISTS (SELECT FROM queue_internal.claim_N AS c WHERE c.id = a.id)
                   AND NOT EXISTS (SELECT FROM queue_internal.outcome_N AS o WHERE o.id = a.id)
                   AND a.id <> ALL ($5)
                   -- What has expired is dropped from memory before it is ended.
                   AND (a.start_by IS NULL OR a.start_by > now())",
            );
            let due = crate::pg::parameter::Parameter::raw(Some(due_to.into()), pgrx::pg_sys::TIMESTAMPTZOID);
            let (priority, job_id) = (position.priority, position.job_id);
            let parameters = [lane.into(), priority.into(), job_id.into(), due, ids.clone().into()];
            spi::read_rows(&format!("{sql} LIMIT {MAX_SUSPECTS}"), &parameters, |row| {
                Ok(Waiting {
                    id: row.get(1)?.unwrap_or(0),
                    lane,
                    rank: Rank { priority: row.get(2)?.unwrap_or(0), job_id: row.get(3)?.unwrap_or(0) },
                })
            })
        })?;
        let is_hidden = |waiting: &Waiting| {
            shmem::with(|shared| {
                let frontier = &mut shared.frontier;
                if frontier.is_refilling(number, lane) || frontier.entry(number, waiting.id).is_some() {
                    return false;
                }
                let mut is_ready = false;
                let position = frontier.each_ready(number, lane, |ready| is_ready |= ready.id == waiting.id);
                !is_ready && position.is_some_and(|position| waiting.rank <= position)
            })
        };
        let is_wrong = |waiting: &Waiting| {
            is_hidden(waiting) && in_tables(waiting.id) == Some((lane, None, false)) && !is_being_claimed(waiting.id)
        };
        for waiting in persisting(waiting.into_iter().filter(is_hidden).collect(), is_wrong) {
            found.push(Fault {
                queue: queue_name(waiting.lane),
                job_id: Some(waiting.rank.job_id),
                attempt_id: Some(waiting.id),
                ..Fault::new("unreachable", "The attempt waits, but memory has skipped it: no claim finds it.")
            });
        }
    }
    Ok(())
}

/// Fills `ids` with the ready attempts of a lane. Returns how far the lane's index has been read. `None`: memory does
/// not know the lane.
fn copy_ready(lane: i32, ids: &mut Vec<i64>) -> Option<Rank> {
    ids.clear();
    shmem::with(|shared| {
        let room = ids.capacity();
        shared.frontier.each_ready(here::number(), lane, |entry| {
            if ids.len() < room {
                ids.push(entry.id);
            }
        })
    })
}

/// Compares the counters with a recount, by one snapshot.
fn counters(found: &mut Vec<Fault>) -> Result<()> {
    const ROUNDS: usize = 5;
    let Some(mut wrong) = differences()? else { return Ok(()) };
    for _ in 1..ROUNDS {
        if wrong.is_empty() {
            return Ok(());
        }
        process::sleep(500);
        let Some(again) = differences()? else { return Ok(()) };
        // A commit whose callback is about to run causes another difference each time.
        wrong.retain(|one| again.contains(one));
    }
    for (lane, differences) in wrong {
        let queue = queue::by_lane(lane)?;
        let of_stage = match &queue {
            Some(queue) if queue.is_held(lane) => ", of held jobs".to_owned(),
            Some(queue) => queue.stage_of(lane).map_or_else(String::new, |stage| format!(", of stage {stage}")),
            None => String::new(),
        };
        let differences: Vec<String> = differences.into_iter().map(|(what, by)| format!("{what} by {by}")).collect();
        found.push(Fault {
            queue: queue_name(lane),
            ..Fault::new("counter", &format!("The counts in memory{of_stage} are off: {}.", differences.join(", ")))
        });
    }
    Ok(())
}

type Differences = Vec<(&'static str, i64)>;

/// Returns by how much memory counts too many, for each lane. `None`: memory does not know the counts.
fn differences() -> Result<Option<Vec<(i32, Differences)>>> {
    transaction::look(|| {
        rows::lock_segments();
        let mut known: Vec<(i32, Counts)> = memory::list(shmem::counters());
        let (_snapshot, is_known) = ActiveSnapshot::take(|take| {
            shmem::with_counters(|counters| {
                take(&mut []);
                known.extend(counters.of(here::number()).map(|(lane, counter)| (lane, counter.counts)));
            })
        });
        if is_known.is_none() {
            return Ok(None);
        }
        let counted = LaneCounts::take(i64::MIN);
        let lanes = queue::lanes();
        let mut all = Vec::new();
        for (lane, counts) in known.into_iter().filter(|(lane, _)| lanes.contains(lane)) {
            let counted = counted.0.get(&lane).map_or_else(Counts::default, |found| found.counter.counts);
            let differences = compare(&counts, &counted);
            if !differences.is_empty() {
                all.push((lane, differences));
            }
        }
        Ok(Some(all))
    })
}

fn compare(known: &Counts, counted: &Counts) -> Differences {
    let all = [
        ("waiting", known.waiting, counted.waiting),
        ("running", known.running, counted.running),
        ("enqueued", known.totals.enqueued, counted.totals.enqueued),
        ("claimed", known.totals.claimed, counted.totals.claimed),
        ("completed", known.totals.completed, counted.totals.completed),
        ("failed", known.totals.failed, counted.totals.failed),
        ("timed out", known.totals.timed_out, counted.totals.timed_out),
        ("died", known.totals.died, counted.totals.died),
        ("expired", known.totals.expired, counted.totals.expired),
    ];
    all.into_iter()
        .filter(|(_, known, counted)| known != counted)
        .map(|(what, known, counted)| (what, known - counted))
        .collect()
}

/// Compares the state of each segment in memory with the log of segments.
fn states(found: &mut Vec<Fault>) {
    let is_wrong = |n: &u8| rows::logged(*n) != segment::word(*n);
    let all = (0..id::SEGMENTS as u8).filter(is_wrong).collect();
    for n in persisting(all, is_wrong) {
        found.push(Fault {
            segment: Some(n),
            ..Fault::new(
                "segment_state",
                &format!("Memory and queue_internal.segment_log differ on the state of segment {n}."),
            )
        });
    }
}
