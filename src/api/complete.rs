//! `queue.complete`, `complete_many`: the worker's success, at most once per attempt.

use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api;
use crate::call::{Call, Rows, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::hold::{self, Held, Outcomes, Refusal};
use crate::instance::{self, Catalog};
use crate::log::outcome::{Kind, New};
use crate::{queue, rerun};

sql_function!(pg_queue_complete, pg_finfo_pg_queue_complete => complete);
sql_function!(pg_queue_complete_many, pg_finfo_pg_queue_complete_many => complete_many);

/// `queue.complete(id, result)`.
fn complete(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let id = call.required("id", call.i64(0))?;
    let catalog = instance::current()?;
    let mut held = hold::grasp(&catalog, id)?;
    may_end(&catalog, held.entry.lane)?;
    let mut outcomes = Outcomes::new(&catalog);
    if held.entry.rerun != 0 {
        complete_and_rerun(&catalog, held, call.datum(1))?;
        return Ok(Some(VOID));
    }
    loop {
        outcomes.add(held.home, New { result: call.datum(1), ..New::of(id, Kind::Completed) });
        if outcomes.try_insert().is_empty() {
            return Ok(Some(VOID));
        }
        held = hold::beaten(&mut outcomes, held)?;
    }
}

/// Checks that a job has no stages before it.
///
/// Errors: 55000 when it has.
fn may_end(catalog: &Catalog, lane: i32) -> Result<()> {
    match queue::by_lane(catalog, lane)? {
        Some(queue) if queue.goes_on_after(lane) => {
            let stage = queue.stage_of(lane).unwrap_or_default();
            Err(Error::new(
                error::WRONG_STATE,
                format!("stage \"{stage}\" is not the last of queue \"{}\"", queue.name),
            )
            .hint("Use queue.advance to go on; to end the job here, queue.cancel with force => true."))
        }
        _ => Ok(()),
    }
}

/// Completes an attempt after which another run was asked for, perhaps.
fn complete_and_rerun(catalog: &Rc<Catalog>, held: Held, result: Option<Datum>) -> std::result::Result<(), Refusal> {
    let mut outcomes = Outcomes::new(catalog);
    let held = hold::sure(&mut outcomes, held)?;
    let next = rerun::follow(catalog, &held).map_err(Refusal::Wrong)?;
    let next_id = next.map(|(id, _)| id);
    outcomes.add(held.home, New { result, next_id, ..New::of(held.id, Kind::Completed) });
    outcomes.insert().map_err(Refusal::Wrong)
}

/// Completes what is still the caller's. Returns those ids, in the order given.
pub fn complete_all(catalog: &Rc<Catalog>, ids: &[Option<i64>]) -> Result<Vec<i64>> {
    let ids: Vec<i64> = ids.iter().flatten().copied().collect();
    let held = hold::grasp_many(catalog, &ids)?;
    for one in &held {
        may_end(catalog, one.entry.lane)?;
    }
    let mut outcomes = Outcomes::new(catalog);
    for one in held.iter().filter(|one| one.entry.rerun == 0) {
        outcomes.add(one.home, New::of(one.id, Kind::Completed));
    }
    let lost = outcomes.try_insert();
    let mut completed = Vec::with_capacity(held.len());
    for mut one in held {
        let id = one.id;
        if one.entry.rerun != 0 {
            match complete_and_rerun(catalog, one, None) {
                Ok(()) => completed.push(id),
                Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
                Err(Refusal::Wrong(e)) => return Err(e),
            }
            continue;
        }
        let mut is_lost = !lost.is_empty() && lost.contains(&id);
        while is_lost {
            match hold::beaten(&mut outcomes, one) {
                Ok(again) => one = again,
                Err(_) => break,
            }
            outcomes.add(one.home, New::of(id, Kind::Completed));
            is_lost = !outcomes.try_insert().is_empty();
        }
        if !is_lost {
            completed.push(id);
        }
    }
    Ok(completed)
}

/// `queue.complete_many(ids)`.
fn complete_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let catalog = instance::current()?;
    for id in complete_all(&catalog, &ids)? {
        add_id(&rows, id)?;
    }
    Ok(None)
}

/// Adds a row of one id.
pub fn add_id(rows: &Rows, id: i64) -> Result<()> {
    rows.add(&mut [id.into()], &mut [false])
}
