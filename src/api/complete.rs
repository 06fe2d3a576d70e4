//! `queue.complete`, `complete_many`: the worker's success, at most once per attempt.

use pgrx::pg_sys::Datum;

use crate::api;
use crate::call::{Call, Rows, sql_function};
use crate::error::Result;
use crate::hold::{self, Outcomes, Refusal};
use crate::instance::{self, Catalog};
use crate::log::outcome::{Kind, New};

sql_function!(pg_queue_complete, pg_finfo_pg_queue_complete => complete);
sql_function!(pg_queue_complete_many, pg_finfo_pg_queue_complete_many => complete_many);

/// `queue.complete(id, result)`.
fn complete(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let id = call.required("id", call.i64(0))?;
    let catalog = instance::current()?;
    let mut outcomes = Outcomes::new(&catalog);
    let held = hold::running(&mut outcomes, id)?;
    outcomes.add(held.segment, New { result: call.datum(1), ..New::of(id, Kind::Completed) });
    outcomes.insert();
    Ok(None)
}

/// Completes what is still the caller's; calls `each` with those ids, in the order given.
pub fn complete_all(
    catalog: &std::rc::Rc<Catalog>,
    ids: &[Option<i64>],
    mut each: impl FnMut(i64) -> Result<()>,
) -> Result<()> {
    let mut outcomes = Outcomes::new(catalog);
    for id in ids.iter().flatten().copied() {
        match hold::running(&mut outcomes, id) {
            Ok(held) => {
                outcomes.add(held.segment, New::of(id, Kind::Completed));
                each(id)?;
            }
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
            Err(Refusal::Wrong(e)) => return Err(e),
        }
    }
    outcomes.insert();
    Ok(())
}

/// `queue.complete_many(ids)`.
fn complete_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let rows = call.rows()?;
    let ids = call.required("ids", call.i64_array(0))?;
    let catalog = instance::current()?;
    complete_all(&catalog, &ids, |id| add_id(&rows, id))?;
    Ok(None)
}

/// Adds a row of one id.
pub fn add_id(rows: &Rows, id: i64) -> Result<()> {
    rows.add(&mut [id.into()], &mut [false])
}
