//! Finds living jobs in the lanes of a queue, for changes of the queue that living jobs forbid.
//!
//! Invariant: a job that an open transaction is adding, claiming or ending counts as living.

use crate::error::Result;
use crate::log::attempt::Attempt;
use crate::log::waiting::any_living;
use crate::shmem::{self, here};

/// Returns a sentence about a living job in one of these lanes. `None`: there is none.
pub fn any(lanes: &[i32]) -> Result<Option<String>> {
    first(lanes, &|_| true)
}

/// Returns a sentence about a job in one of these lanes that is data and no command. `None`: there is none.
pub fn any_data(lanes: &[i32]) -> Result<Option<String>> {
    first(lanes, &|attempt| attempt.writer().is_none())
}

fn first(lanes: &[i32], matters: &dyn Fn(&Attempt) -> bool) -> Result<Option<String>> {
    for &lane in lanes {
        if let Some(what) = any_living(lane, matters)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Returns a sentence with the number of living jobs in a lane, if memory knows of any.
pub fn count(lane: i32) -> Option<String> {
    let number = here::number();
    let counts = shmem::with_counters(|counters| counters.get(number, lane).map(|counter| counter.counts))??;
    let living = counts.waiting + counts.running;
    (living > 0).then(|| format!("Live jobs: {living}."))
}
