//! `queue.fail`, `fail_many`: end failed attempts. Another attempt follows later, or the job is dead.
//!
//! Not responsible for how a failed attempt ends, which timeouts share (`job::fail`), nor for timeouts
//! (`duty::expire`).

use pgrx::pg_sys::Datum;

use crate::api::answers::Answers;
use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::fail::{self, Failure};
use crate::job::hold;
use crate::job::options::in_future;
use crate::job::outcomes::Outcomes;
use crate::pg::function::Call;
use crate::pg::time;

sql_function!(pg_queue_fail, pg_finfo_pg_queue_fail => fail);
sql_function!(pg_queue_fail_many, pg_finfo_pg_queue_fail_many => fail_many);

/// `queue.fail(id, error, retry_in, fatal)`: returns when the next attempt runs, or NULL if there is none.
fn fail(call: &Call) -> Result<Option<Datum>> {
    api::writable("fail")?;
    let id = call.need(args::fail::ID)?;
    let error = call.need(args::fail::ERROR)?;
    let failure = reported(call, &error)?;
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    let (_, run_at) = fail::end_badly(&mut outcomes, &held, &failure)?;
    outcomes.insert()?;
    Ok(run_at.map(Datum::from))
}

/// `queue.fail_many(ids, error, retry_in, fatal)`.
fn fail_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("fail")?;
    let answers = Answers::begin(call)?;
    let ids = call.need(args::fail_many::IDS)?;
    let error = call.need(args::fail_many::ERROR)?;
    let failure = reported(call, &error)?;
    let mut outcomes = Outcomes::new();
    for id in ids.into_iter().flatten() {
        let ended =
            hold::hold_for_end(&mut outcomes, id).and_then(|held| fail::end_badly(&mut outcomes, &held, &failure));
        answers.ended(id, ended.map(|(kind, _)| kind.name()))?;
    }
    outcomes.insert()?;
    Ok(None)
}

fn reported<'a>(call: &Call, error: &'a str) -> Result<Failure<'a>> {
    let retry_in = call.get(args::fail::RETRY_IN);
    // This is checked before anything is held, so that the error does not depend on the job's state.
    if let Some(delay) = retry_in {
        in_future("retry_in", delay, time::now_us())?;
    }
    Ok(Failure::Reported { error, retry_in, is_fatal: call.get(args::fail::FATAL).unwrap_or(false) })
}
