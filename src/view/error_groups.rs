//! `queue.error_groups`: the newest jobs that are dead or wait for a retry, grouped by the text of their error.
//!
//! Not responsible for `queue.errors`, a view of all these jobs.

use std::collections::BTreeMap;

use pgrx::pg_sys::Datum;

use crate::api::sql_function;
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::log::listing::JobState;
use crate::pg::datum::{self, text_datum};
use crate::pg::function::Call;
use crate::view::list::{Answer, End, Look, at_most, observed};

sql_function!(pg_queue_error_groups, pg_finfo_pg_queue_error_groups => error_groups);

#[derive(Default)]
struct Group {
    dead: i64,
    retrying: i64,
    first_died_at: Option<i64>,
    last_died_at: Option<i64>,
    example: i64,
}

/// `queue.error_groups(queue_name, max_jobs)`: reads at most `max_jobs` jobs of both states in each queue. If
/// `queue_name` is NULL, it reads all queues that the user may observe.
///
/// Errors: 42704, 22023.
fn error_groups(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let name = call.get(args::error_groups::QUEUE_NAME);
    let max_jobs = i64::from(at_most("max_jobs", call.get(args::error_groups::MAX_JOBS), 10_000, 1_000_000)?);
    let rights = permission::rights();
    let mut queues = BTreeMap::new();
    match name {
        Some(name) => {
            if let Some(queue) = observed(&rights, &name)? {
                queues.insert(queue.name.clone(), queue);
            }
        }
        None => {
            for lane in queue::lanes().into_iter().filter(|&lane| rights.on_lane(lane, Privilege::Observe)) {
                if let Some(queue) = queue::by_lane(lane)? {
                    queues.insert(queue.name.clone(), queue);
                }
            }
        }
    }
    for (name, queue) in &queues {
        let mut groups: BTreeMap<Option<String>, Group> = BTreeMap::new();
        let mut is_complete = true;
        for state in [JobState::Retrying, JobState::Dead] {
            let mut left = max_jobs;
            let look = Look {
                queue,
                lane: None,
                states: vec![state],
                filter: None,
                beyond: None,
                max_rows: max_jobs.saturating_mul(2),
                until: None,
            };
            let (end, _) = look.run(true, &mut |hit| {
                let error = hit.row.and_then(|row| row.error).map(datum::text);
                let ended_at = hit.row.and_then(|row| row.finished_at).map(|at| at.value() as i64);
                let group = groups.entry(error).or_default();
                match state {
                    JobState::Dead => group.dead += 1,
                    _ => group.retrying += 1,
                }
                group.first_died_at = group.first_died_at.into_iter().chain(ended_at).min();
                group.last_died_at = group.last_died_at.max(ended_at);
                group.example = group.example.max(hit.found.job_id);
                left -= 1;
                Ok(if left == 0 { Answer::Enough } else { Answer::GoOn })
            })?;
            is_complete &= matches!(end, End::All);
        }
        for (error, group) in groups {
            rows.add_options(&[
                Some(text_datum(name)),
                error.as_deref().map(text_datum),
                Some((group.dead + group.retrying).into()),
                Some(group.dead.into()),
                Some(group.retrying.into()),
                group.first_died_at.map(Datum::from),
                group.last_died_at.map(Datum::from),
                Some(group.example.into()),
                Some(is_complete.into()),
            ])?;
        }
    }
    Ok(None)
}
