//! `queue.claim`, `claim_any`: take the next attempts, or sleep until there are attempts.
//!
//! An attempt is taken in the frontier under a short lock. Then its row is read by its place, the claim's key is
//! probed, which drops a stale entry, and the claims are inserted together. The transaction's end decides: a commit
//! starts the leases, a rollback puts the attempts back.
//!
//! Not responsible for one round of taking (`job::claim`), nor for sleeping (`job::wait`).

use pgrx::pg_sys::Datum;
use serde_json::value::RawValue;

use crate::api::queue_options::MAX_STAGES;
use crate::api::{self, answers, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::rows::ClaimedJob;
use crate::error::{Error, Result};
use crate::job::claim::{self, ClaimRequest, Claimed, ClaimedAttempt};
use crate::job::complete::complete_all;
use crate::job::held::{self, Refusal};
use crate::job::notice;
use crate::job::options::{disconnect, lease_us};
use crate::job::wait::{self, ClaimScope, Waiter, Wanted};
use crate::pg::datum::text_datum;
use crate::pg::function::{Call, Rows};
use crate::pg::{jsonb, memory, process, stored_json, time};
use crate::restore;
use crate::worker::absence;

sql_function!(pg_queue_claim, pg_finfo_pg_queue_claim => claim);
sql_function!(pg_queue_claim_any, pg_finfo_pg_queue_claim_any => claim_any);

/// Queues that one call may name.
const MAX_QUEUES: usize = 8;
/// The most names of queues in one call: each stage of a queue may be named beside it, and the queue itself once more.
const MAX_NAMES: usize = MAX_QUEUES * (MAX_STAGES + 1);
/// The most characters of a worker's name.
const MAX_WORKER_CHARACTERS: usize = 200;

/// `queue.claim(queue_name, …)`.
fn claim(call: &Call) -> Result<Option<Datum>> {
    let queue_name = call.need(args::claim::QUEUE_NAME)?;
    run(call, &[Wanted { queue_name, stages: vec![call.get(args::claim::STAGE)] }])
}

/// `queue.claim_any(queue_names, …)`.
fn claim_any(call: &Call) -> Result<Option<Datum>> {
    let names = call.need(args::claim_any::QUEUE_NAMES)?;
    let stages = call.get(args::claim_any::STAGES).unwrap_or_else(|| vec![None; names.len()]);
    if stages.len() != names.len() {
        return Err(Error::invalid("stages must have as many elements as queue_names")
            .detail(format!("It has {}, and there are {} names.", stages.len(), names.len()))
            .hint("NULL stands for all stages of a queue: stages => ARRAY['check', NULL]."));
    }
    if names.len() > MAX_NAMES {
        return Err(Error::invalid(format!("queue_names must have at most {MAX_NAMES} elements"))
            .detail(format!("It has {}.", names.len()))
            .hint("Name each queue once, or once for each of its stages."));
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    for (n, (name, stage)) in names.into_iter().zip(stages).enumerate() {
        let queue_name = name.ok_or_else(|| Error::null(&format!("queue_names[{}]", n + 1)))?;
        match wanted.iter_mut().find(|known| known.queue_name == queue_name) {
            Some(known) => known.stages.push(stage),
            None => wanted.push(Wanted { queue_name, stages: vec![stage] }),
        }
    }
    if !(1..=MAX_QUEUES).contains(&wanted.len()) {
        return Err(Error::invalid(format!("queue_names must name 1 to {MAX_QUEUES} queues"))
            .detail(format!("It names {}.", wanted.len())));
    }
    run(call, &wanted)
}

/// The other arguments of both have the same places.
fn run(call: &Call, wanted: &[Wanted]) -> Result<Option<Datum>> {
    api::on_primary("claim")?;
    let max_jobs = max_jobs(call)?;
    let wait = wait(call)?;
    let linger = linger(call, wait)?;
    let request = ClaimRequest {
        max_jobs,
        lease: call.get(args::claim::LEASE).map(lease_us).transpose()?,
        worker: call.get(args::claim::WORKER).map(checked_worker).transpose()?,
        disconnect: call.get(args::claim::DISCONNECT).map(disconnect).transpose()?.unwrap_or_default(),
        accepts: None,
    };
    let rows = call.rows()?;
    let known = ClaimScope::now(wanted, wait > 0)?;
    if linger > 0 {
        collects_from_one_lane(&known)?;
    }
    let completes = complete_first(call, &rows)?;
    notice::wait_is_cut(wait);
    // A claim that does not wait need not read the clock.
    let (linger, deadline) = if wait > 0 {
        absence::warn();
        let longest = wait::longest_wait(wait);
        (linger.min(longest), time::monotonic_us().saturating_add(longest))
    } else {
        (0, 0)
    };
    Claim { wanted, request, rows, waits: wait > 0, linger, deadline, completes }.run(known)?;
    Ok(None)
}

/// Completes the jobs that the call names, and adds a row for each attempt that could not be completed. Returns whether
/// the call names any.
fn complete_first(call: &Call, rows: &Rows) -> Result<bool> {
    let Some(mut completed) = call.get(args::claim::COMPLETED) else {
        return match call.has(args::claim::RESULTS) {
            true => Err(Error::invalid("results needs completed").hint("Name the attempts that have them.")),
            false => Ok(false),
        };
    };
    restore::refuse()?;
    let mut refused = Vec::new();
    let results = results(call, &mut completed, &mut refused)?;
    complete_all(&completed, &results, &mut refused)?;
    refused.into_iter().try_for_each(|(id, refusal)| add_refusal(rows, id, refusal))?;
    Ok(!completed.is_empty())
}

/// Returns the results of the attempts that the call completes, if it has any. An attempt whose result cannot be stored
/// goes from `completed` to `refused`.
///
/// Errors: 22023 when `results` is not an array with one element for each attempt.
fn results(
    call: &Call,
    completed: &mut [Option<i64>],
    refused: &mut Vec<(i64, Refusal)>,
) -> Result<Vec<Option<Datum>>> {
    let Some(text) = call.get(args::claim::RESULTS) else { return Ok(Vec::new()) };
    let elements: Vec<Option<&RawValue>> = stored_json::elements(&text).ok_or_else(|| {
        Error::invalid("results must be a JSON array").hint("For instance: '[{\"sent\": true}, null]'.")
    })?;
    if elements.len() != completed.len() {
        return Err(Error::invalid("results must have as many elements as completed")
            .detail(format!("It has {}, and there are {} attempts.", elements.len(), completed.len()))
            .hint("null stands for an attempt without a result."));
    }
    let mut results = memory::list(elements.len());
    for (element, attempt) in elements.into_iter().zip(completed) {
        let result = match (element, &attempt) {
            (Some(element), Some(_)) => stored_json::parse(element.get(), "result").map(Some),
            _ => Ok(None),
        };
        results.push(result.unwrap_or_else(|error| {
            if let Some(id) = attempt.take() {
                memory::push(refused, (id, Refusal::Unfit(error)));
            }
            None
        }));
    }
    Ok(results)
}

/// A call that claims jobs.
struct Claim<'a> {
    wanted: &'a [Wanted],
    request: ClaimRequest<'a>,
    rows: Rows,
    /// True if the call sleeps when there is no job.
    waits: bool,
    /// In microseconds. 0: the call takes what is there.
    linger: i64,
    /// The monotonic time at which the call ends its sleep. 0 if it does not wait.
    deadline: i64,
    /// True if the call has completed jobs.
    completes: bool,
}

impl Claim<'_> {
    /// Claims jobs, or sleeps until there are jobs or the deadline has passed.
    fn run(&self, mut known: ClaimScope) -> Result<()> {
        let mut waiter: Option<Waiter> = None;
        let mut stale_since = None;
        loop {
            if let Some(looks) = self.collect(&known, &mut waiter)? {
                if !looks {
                    return Ok(());
                }
                known = ClaimScope::now(self.wanted, true)?;
                continue;
            }
            let claimed = match claim::claim_first(&known, &self.request, &|claimed| add_row(&self.rows, claimed))? {
                Claimed::To(claimed) => claimed,
                Claimed::NoPlace if self.takes_nothing() => 0,
                Claimed::NoPlace => return Err(held::running_full()),
                Claimed::Stale if claim::is_in_vain(&mut stale_since) => return Ok(()),
                Claimed::Stale => {
                    known = ClaimScope::now(self.wanted, self.waits)?;
                    continue;
                }
            };
            // A woken session passes the wake-up on only after it has looked: one job wakes one session.
            drop(waiter.take());
            if claimed > 0 {
                return known.check_again();
            }
            if !self.may_sleep() {
                return Ok(());
            }
            if let Some(mut waiting) = Waiter::begin(&known, self.linger)? {
                // A job claimed for a client that has gone would not be done: the session passes the wake-up on, and
                // ends.
                if !waiting.sleep(self.deadline) || process::is_client_gone() {
                    return Ok(());
                }
                waiter = Some(waiting);
            }
            // A queue may have been altered, resumed or dropped meanwhile.
            known = ClaimScope::now(self.wanted, true)?;
        }
    }

    /// Sleeps beside jobs until there are enough of them or the call has lingered. `None`: the session has not slept.
    /// Otherwise returns whether the session must look again: see [`Waiter::collect`].
    fn collect(&self, known: &ClaimScope, waiter: &mut Option<Waiter>) -> Result<Option<bool>> {
        if self.linger == 0 || !wait::may_sleep(self.deadline) {
            return Ok(None);
        }
        Waiter::collect(known, self.request.max_jobs as u32, self.linger, self.deadline, waiter)
    }

    /// Returns whether the call may sleep now. Tells the client if only its transaction keeps the call from that.
    fn may_sleep(&self) -> bool {
        let may_sleep = wait::may_sleep(self.deadline);
        // A call that completes has written by itself.
        if !may_sleep && self.waits && !self.completes && wait::is_before(self.deadline) {
            notice::cannot_sleep();
        }
        may_sleep
    }

    /// True if the call gets no job, and no error, when shared memory has no place for another running attempt. A call
    /// that waits sleeps then, as if there were no job. In a call that completes, an error would undo the completions,
    /// which free places.
    fn takes_nothing(&self) -> bool {
        self.waits || self.completes
    }
}

/// Returns how many jobs the call wants.
///
/// Errors: 22023 when it is less than 1.
fn max_jobs(call: &Call) -> Result<usize> {
    let max_jobs = call.get(args::claim::MAX_JOBS).unwrap_or(1);
    if max_jobs < 1 {
        return Err(Error::invalid("max_jobs must be at least 1").detail(format!("It is {max_jobs}.")));
    }
    Ok(max_jobs as usize)
}

/// Returns how long the call waits for a job, in microseconds. 0: it does not wait.
///
/// Errors: 22023 when it is negative.
fn wait(call: &Call) -> Result<i64> {
    let Some(given) = call.get(args::claim::WAIT) else { return Ok(0) };
    let wait = given.us();
    if wait < 0 {
        return Err(Error::invalid("wait cannot be negative").detail(format!("It is {}.", given.text())));
    }
    Ok(wait)
}

/// Returns how long the call lingers, in microseconds. 0: it takes what is there.
///
/// Errors: 22023 when it is negative, or the call does not wait.
fn linger(call: &Call, wait: i64) -> Result<i64> {
    let Some(given) = call.get(args::claim::LINGER) else { return Ok(0) };
    let linger = given.us();
    if linger < 0 {
        return Err(Error::invalid("linger cannot be negative").detail(format!("It is {}.", given.text())));
    }
    if linger > 0 && wait == 0 {
        return Err(Error::invalid("linger needs wait")
            .detail("A call that does not wait takes the jobs that are ready.")
            .hint("Add wait, the longest time that the call may take: wait => '30 seconds'."));
    }
    Ok(linger)
}

/// Checks that a call that lingers claims from one lane.
///
/// Errors: 22023.
fn collects_from_one_lane(known: &ClaimScope) -> Result<()> {
    let lanes: usize = known.each().map(|(_, lanes)| lanes.len()).sum();
    if lanes == 1 {
        return Ok(());
    }
    Err(Error::invalid("linger needs one queue or stage to collect from")
        .detail(format!("A batch is collected from one lane, and the call claims from {lanes}."))
        .hint("Name one queue, and if it has stages, one of them, too."))
}

/// Checks the length of a worker's name, which others are shown.
///
/// Errors: 22023 when it is too long.
fn checked_worker(name: String) -> Result<String> {
    if name.len() > MAX_WORKER_CHARACTERS && name.chars().count() > MAX_WORKER_CHARACTERS {
        return Err(Error::invalid(format!("worker must have at most {MAX_WORKER_CHARACTERS} characters"))
            .detail(format!("It has {}.", name.chars().count()))
            .hint("Name it by its host and process, for instance worker => 'mailer 1'."));
    }
    Ok(name)
}

/// Adds a row for an attempt that could not be completed. The row has no job, and its headers have the outcome.
fn add_refusal(rows: &Rows, id: i64, refusal: Refusal) -> Result<()> {
    let (outcome, error) = answers::of_attempt(refusal)?;
    let answer = jsonb::of(&serde_json::json!({ "outcome": outcome, "reason": answers::reason(&error) }));
    rows.add_options(&ClaimedJob { id: Some(id.into()), headers: answer, ..ClaimedJob::default() }.columns())
}

/// Adds a row of type `queue.claimed_job`.
pub fn add_row(rows: &Rows, claimed: ClaimedAttempt<'_>) -> Result<()> {
    let ClaimedAttempt { queue, queue_name, reader, attempt, expires_at } = claimed;
    let stage = queue.stage_of(attempt.lane()).map(text_datum);
    reader.payload(attempt, |payload| {
        let row = ClaimedJob {
            id: Some(attempt.id().into()),
            job_id: Some(attempt.job_id().into()),
            queue_name: Some(queue_name),
            stage,
            payload,
            headers: attempt.headers(),
            attempt: Some(attempt.attempt().into()),
            max_attempts: Some(attempt.max_attempts().unwrap_or(queue.max_attempts).into()),
            priority: Some(attempt.priority().into()),
            unique_key: attempt.unique_key(),
            group_key: attempt.group_key(),
            progress: attempt.progress(),
            last_error: attempt.last_error(),
            enqueued_at: Some(attempt.enqueued_at().into()),
            lease_expires_at: Some(expires_at.into()),
        };
        rows.add_options(&row.columns())
    })
}
