//! `queue.cancel_many`, `queue.retry_many`, `queue.reprioritize_many`: a verb for all jobs of a queue that a filter finds.
//!
//! Not here: the verbs, which are those for one job, and the look for the jobs (`api::list`).
//!
//! Invariant: the jobs are listed before the first is changed, since a change moves them in what is read.

use std::rc::Rc;

use pgrx::pg_sys::Datum;
use serde_json::Value;

use crate::api::list::{Answer, End, Look, at_most, look_at_filter, position, states};
use crate::api::{self, cancel, retry, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::catalog::{self, Catalog, queue};
use crate::error::{self, Error, Result};
use crate::job::options::run_time;
use crate::job::{fail, successor};
use crate::log::listing::State;
use crate::pg::function::Call;
use crate::pg::{jsonb, process, time};

sql_function!(pg_queue_cancel_many, pg_finfo_pg_queue_cancel_many => cancel_many);
sql_function!(pg_queue_retry_many, pg_finfo_pg_queue_retry_many => retry_many);
sql_function!(pg_queue_reprioritize_many, pg_finfo_pg_queue_reprioritize_many => reprioritize_many);

/// What is done to a job, and with which attempt it was found.
type Verb<'a> = dyn FnMut(&Rc<Catalog>, i64, i64) -> Result<()> + 'a;

/// What all of them have in common: their arguments from the one at `from` on are filter, states, then one of the verb's
/// own, then max_jobs, max_rows, beyond.
struct Bulk {
    name: String,
    filter: Option<Datum>,
    states: Vec<State>,
    max_jobs: i32,
    max_rows: i64,
    beyond: Option<Value>,
}

impl Bulk {
    fn read(call: &Call, first: usize, max_jobs: usize, default: &[State]) -> Result<Self> {
        Ok(Self {
            name: call.required("queue_name", call.text(0))?,
            filter: call.datum(first),
            states: call.text_array(first + 1).map_or_else(|| Ok(default.to_vec()), states)?,
            max_jobs: at_most("max_jobs", call.i32(max_jobs), 10_000, 1_000_000)?,
            max_rows: at_most("max_rows", call.i32(max_jobs + 1), 100_000, 100_000_000)?.into(),
            beyond: position(call.datum(max_jobs + 2))?,
        })
    }

    /// Runs the verb for each job that is found. Jobs that it does not concern any more, or that another transaction has, are
    /// passed over. When shared memory is full, those behind are left for a further transaction.
    fn run(self, call: &Call, verb: &mut Verb<'_>) -> Result<Option<Datum>> {
        let rows = call.rows()?;
        self.filter.inspect(|filter| look_at_filter(*filter));
        let catalog = catalog::current()?;
        let queue = queue::by_name(&catalog, &self.name)?;
        permission::check(&catalog, &queue, Privilege::Manage)?;
        let look = Look {
            catalog: &catalog,
            queue: &queue,
            lane: None,
            states: self.states,
            filter: self.filter,
            beyond: self.beyond,
            max_rows: self.max_rows,
            until: None,
        };
        let mut jobs: Vec<(i64, i64)> = Vec::new();
        let most = usize::try_from(self.max_jobs).unwrap_or(usize::MAX);
        let (end, _) = look.run(false, &mut |hit| {
            jobs.push((hit.found.job_id, hit.found.id));
            Ok(if jobs.len() == most { Answer::Enough } else { Answer::GoOn })
        })?;
        let mut changed = 0;
        let mut is_full = false;
        for (job_id, attempt_id) in jobs {
            process::check_for_interrupts();
            match verb(&catalog, job_id, attempt_id) {
                Ok(()) => {
                    changed += 1;
                    rows.add_options(&[Some(job_id.into()), None])?;
                }
                Err(e) if matches!(e.code, error::IN_USE | error::WRONG_STATE | error::UNIQUE | error::NO_DATA) => {}
                Err(e) if e.code == error::LIMIT && changed > 0 => {
                    is_full = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        // The same look finds the others that are left.
        let again = is_full.then(|| look.beyond.clone().unwrap_or_else(|| serde_json::json!({"state": "", "at": {}})));
        let here = match end {
            End::More(here) if !is_full => Some(here),
            _ => again,
        };
        if let Some(here) = here {
            rows.add_options(&[None, jsonb::of(&here)])?;
        }
        Ok(None)
    }
}

const WAITING: [State; 4] = [State::Held, State::Scheduled, State::Retrying, State::Ready];

const ENDED: [State; 4] = [State::Dead, State::Completed, State::Cancelled, State::Skipped];

/// `queue.cancel_many(queue_name, filter, states, reason, max_jobs, max_rows, beyond)`.
///
/// Errors: 42704, 42501, 22023, 53400.
fn cancel_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("cancel")?;
    let bulk = Bulk::read(call, 1, 4, &WAITING)?;
    let reason = call.text(3);
    let reason = reason.as_deref().map(fail::cut);
    bulk.run(call, &mut |catalog, job_id, _| cancel::cancel_job(catalog, job_id, reason, false).map(|_| ()))
}

/// `queue.retry_many(queue_name, filter, states, run_at, max_jobs, max_rows, beyond)`.
///
/// Errors: 42704, 42501, 22023.
fn retry_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("retry")?;
    let bulk = Bulk::read(call, 1, 4, &[State::Dead])?;
    if bulk.states.contains(&State::Running) {
        return Err(Error::invalid("a running job cannot be retried").hint("Leave \"running\" out of states."));
    }
    let run_at = call.timestamp(3).map(|at| run_time(at, time::now_us())).transpose()?.flatten();
    let have_ended = bulk.states.iter().all(|state| ENDED.contains(state));
    bulk.run(call, &mut |catalog, job_id, attempt_id| {
        retry::retry_job(catalog, job_id, run_at, have_ended.then_some(attempt_id))
    })
}

/// `queue.reprioritize_many(queue_name, priority, filter, states, max_jobs, max_rows, beyond)`.
///
/// Errors: 42704, 42501, 22023, 53400.
fn reprioritize_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("reprioritize")?;
    let priority = call.required("priority", call.i32(1))?;
    let bulk = Bulk::read(call, 2, 4, &WAITING)?;
    if let Some(state) = bulk.states.iter().find(|state| !WAITING.contains(state)) {
        return Err(Error::invalid(format!("a job that is {} has no place to change", state.name()))
            .hint("Only jobs that are held, scheduled, retrying or ready can be given another priority."));
    }
    let now = time::now_us();
    bulk.run(call, &mut |catalog, job_id, _| {
        successor::supersede(catalog, job_id, false, |next| {
            next.priority = priority;
            next.run_at = next.run_at.filter(|&at| at > now);
        })
    })
}
