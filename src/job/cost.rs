//! What a job counts for the rates of its queue: the number to which the queue's `rate_cost` leads, and what its worker
//! says that it has used.
//!
//! Not responsible for the rates themselves (`pg_queue_core::frontier`).
//!
//! Invariant: a path only reads fields, so it takes no longer than its text and its value are long.

use pg_queue_core::frontier::{Priced, price, used};
use pgrx::pg_sys::Datum;

use crate::catalog::permission;
use crate::catalog::queue::{self, Queue};
use crate::error::{self, Error, Result};
use crate::job::held::Refusal;
use crate::job::hold;
use crate::job::limits::{LimitCheck, rated_groups_full};
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::pg::datum::Scratch;
use crate::pg::jsonpath::FieldPath;
use crate::pg::{memory, time};
use crate::shmem::{self, here};

/// The largest cost.
const MAX_COST: u32 = i32::MAX as u32;

/// Checks a path for `rate_cost`.
///
/// Errors: 22023 unless it is a jsonpath that only reads below `payload` or `headers`.
pub fn check(path: &str) -> Result<()> {
    let wrong = |detail: &str| {
        Err(Error::invalid("rate_cost must be the jsonpath of one field")
            .detail(detail)
            .hint("For instance rate_cost => '$.headers.tokens'."))
    };
    match FieldPath::parse(path) {
        Err(detail) => wrong(detail),
        Ok(FieldPath { field, .. }) if field != "payload" && field != "headers" => {
            wrong("It begins neither with $.headers nor with $.payload.")
        }
        Ok(_) => Ok(()),
    }
}

/// Returns what an attempt costs.
fn of(path: &FieldPath, reader: &mut Reader, attempt: &Attempt) -> u32 {
    let number = |value: Option<Datum>| value.and_then(|value| path.first_number(value));
    let found = if path.field == "payload" { reader.payload(attempt, number) } else { number(attempt.headers()) };
    // A number that is too large for f64 is infinite, one that is negative is taken for 0.
    found.map_or(1, |number| number.ceil().clamp(0.0, f64::from(MAX_COST)) as u32)
}

/// Taken attempts, each with something of the caller's.
type Taken<T> = Vec<(Attempt, T)>;

/// Says what taken attempts cost, in the order in which they were taken. Returns the costs of those that may start, and
/// the others, which it removes. If the queue has no costs, both lists are empty.
pub fn price_all<T>(
    queue: &Queue,
    check: Option<&LimitCheck<'_>>,
    reader: &mut Reader,
    taken: &mut Taken<T>,
) -> (Vec<i32>, Taken<T>) {
    let (Some(path), Some(check)) = (queue.cost(), check) else { return (Vec::new(), Vec::new()) };
    let mut scratch = Scratch::new();
    let mut all = memory::list(taken.len());
    for (attempt, _) in taken.iter() {
        let cost = scratch.lend(|| of(path, reader, attempt));
        all.push(Priced { id: attempt.id(), cost, may_start: true });
    }
    let claimer = check.claimer();
    shmem::with(|shared| price(&mut shared.frontier, here::number(), &claimer, &mut all));
    let (mut costs, mut refused) = (memory::list(taken.len()), memory::list(taken.len()));
    let mut starting = memory::list(taken.len());
    for (one, Priced { cost, may_start, .. }) in std::mem::take(taken).into_iter().zip(all) {
        if may_start {
            costs.push(cost.cast_signed());
            starting.push(one);
        } else {
            refused.push(one);
        }
    }
    *taken = starting;
    (costs, refused)
}

/// Says how much of its queue's rates a claimed attempt has used so far.
///
/// Errors: 22023 not the id of an attempt, 42501, 53400 memory has no room, 55000 its queue has no costs, QJ001 the
/// attempt is lost, 55006 it is in use.
pub fn charge(id: i64, amount: u32) -> std::result::Result<(), Refusal> {
    let claimed = hold::check_claimed(id, &permission::rights())?;
    let Some(queue) = queue::by_lane(claimed.entry.lane)? else { return Ok(()) };
    if queue.cost().is_none() {
        return Err(Error::new(error::WRONG_STATE, format!("queue \"{}\" has no rate that counts costs", queue.name))
            .hint("Set rate_cost, and rate_limit or rate_limit_per_group, with queue.alter.")
            .into());
    }
    let now = time::monotonic_us();
    match shmem::with(|shared| used(&mut shared.frontier, here::number(), id, amount, now)) {
        Some(woken) => woken.into_iter().for_each(shmem::wake),
        None => return Err(rated_groups_full(&queue.name).into()),
    }
    Ok(())
}
