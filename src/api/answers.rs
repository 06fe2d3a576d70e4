//! The results of verbs for many: a row of type `queue.answer` for each id, with its outcome.
//!
//! Not responsible for the rows of `queue.extend_many` and of `queue.claim`, which have more columns and use the words
//! of this file.
//!
//! Invariant: a failure for one id never ends the call. A returned error is about the call as a whole.

use std::cell::Cell;

use pgrx::pg_sys::Datum;

use crate::catalog::arguments as args;
use crate::error::{self, Error, Result};
use crate::job::held::Refusal;
use crate::pg::datum::{Scratch, text_datum};
use crate::pg::function::{Call, Rows};
use crate::pg::{process, transaction};

/// The answers of one call.
pub struct Answers {
    rows: Rows,
    /// The last outcome and its datum: most answers of a call are alike.
    last: Cell<(&'static str, Datum)>,
}

impl Answers {
    /// Begins to return answers.
    pub fn begin(call: &Call) -> Result<Self> {
        Ok(Self { rows: call.rows()?, last: Cell::new(("", Datum::null())) })
    }

    /// Adds the answer for an id for which the verb has succeeded: `outcome`.
    pub fn done(&self, id: i64, outcome: &'static str) -> Result<()> {
        let (last, mut datum) = self.last.get();
        if last != outcome {
            datum = text_datum(outcome);
            self.last.set((outcome, datum));
        }
        self.rows.add(&mut [id.into(), datum, Datum::null()], &mut [false, false, true])
    }

    /// Adds the answer for an id for which the verb has failed.
    pub fn refused(&self, id: i64, outcome: &'static str, error: &Error) -> Result<()> {
        self.rows.add_options(&[Some(id.into()), Some(text_datum(outcome)), Some(text_datum(&reason(error)))])
    }

    /// Adds the answer for an attempt.
    ///
    /// Errors: that of a refusal that is about the call as a whole.
    pub fn ended(&self, id: i64, end: std::result::Result<&'static str, Refusal>) -> Result<()> {
        match end {
            Ok(outcome) => self.done(id, outcome),
            Err(refusal) => {
                let (outcome, error) = of_attempt(refusal)?;
                self.refused(id, outcome, &error)
            }
        }
    }

    /// Adds the answer for a job.
    ///
    /// Errors: that of a verb if it is about the call as a whole.
    pub fn changed(&self, id: i64, change: Result<&'static str>) -> Result<()> {
        match change {
            Ok(outcome) => self.done(id, outcome),
            Err(error) => match of_job(&error) {
                Some(outcome) => self.refused(id, outcome, &error),
                None => Err(error),
            },
        }
    }
}

/// Runs a verb for each job of the call's first argument, `job_ids`, and answers for each. When shared memory is full,
/// the remaining jobs are left as they are.
///
/// A verb that fails may have written before. So the jobs of a chunk are changed in one subtransaction, and if one
/// cannot be, that is rolled back and each has a subtransaction of its own.
///
/// Errors: those of the verb that are about the call as a whole.
pub fn for_each_job(call: &Call, verb: impl Fn(i64) -> Result<&'static str>) -> Result<Option<Datum>> {
    /// Jobs in one subtransaction.
    const JOBS_PER_SUBTRANSACTION: usize = 100;
    let answers = Answers::begin(call)?;
    let ids: Vec<i64> = call.need(args::cancel_many::JOB_IDS)?.into_iter().flatten().collect();
    let mut full: Option<Error> = None;
    let change = |job_id: i64| {
        process::check_for_interrupts();
        verb(job_id)
    };
    let mut scratch = Scratch::new();
    for chunk in ids.chunks(JOBS_PER_SUBTRANSACTION) {
        let together = || chunk.iter().map(|&job_id| change(job_id)).collect::<Result<Vec<_>>>();
        let changed =
            if full.is_none() { scratch.lend(|| transaction::in_subtransaction(together).ok()) } else { None };
        for (n, &job_id) in chunk.iter().enumerate() {
            match (&changed, &full) {
                (Some(outcomes), _) => answers.done(job_id, outcomes[n])?,
                (None, Some(error)) => answers.refused(job_id, "full", error)?,
                (None, None) => {
                    let changed = scratch.lend(|| transaction::in_subtransaction(|| change(job_id)));
                    full = changed.as_ref().err().filter(|error| error.code == error::LIMIT).cloned();
                    answers.changed(job_id, changed)?;
                }
            }
        }
    }
    Ok(None)
}

/// Returns the outcome for an attempt that a verb was refused, and the reason.
///
/// Errors: that of the refusal if it is about the call as a whole.
pub fn of_attempt(refusal: Refusal) -> Result<(&'static str, Error)> {
    match refusal {
        Refusal::Lost(error) => Ok(("lost", error)),
        Refusal::Busy(error) => Ok(("busy", error)),
        Refusal::Unfit(error) => Ok(("refused", error)),
        Refusal::Wrong(error) => Err(error),
    }
}

/// Returns the outcome for a job that a verb could not change. `None`: the error is about the call as a whole.
fn of_job(error: &Error) -> Option<&'static str> {
    match error.code {
        error::NO_DATA => Some("missing"),
        error::IN_USE => Some("busy"),
        error::WRONG_STATE | error::UNIQUE => Some("refused"),
        error::LIMIT => Some("full"),
        _ => None,
    }
}

/// Returns an error in one line.
pub fn reason(error: &Error) -> String {
    match &error.detail {
        Some(detail) => format!("{}: {detail}", error.message),
        None => error.message.clone(),
    }
}
