//! `queue.groups`: the groups of a queue that have waiting jobs, in the order of their turns.
//!
//! Not responsible for the order itself (`pg_queue_core::frontier`). What this file reads is of the present moment.

use pg_queue_core::frontier::{SLOTS_PER_CALL, WaitingGroup};
use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::{Error, Result};
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::tables::Tables;
use crate::log::waiting::{Order, Waiting, open_tables};
use crate::pg::datum::text_datum;
use crate::pg::function::Call;
use crate::pg::{process, time};
use crate::shmem;
use crate::shmem::here;

sql_function!(pg_queue_groups, pg_finfo_pg_queue_groups => groups, api::run_briefly);

/// How many groups are shown, unless the call says otherwise.
const DEFAULT_GROUPS: i32 = 50;
/// The most groups that one call shows: each costs a look into the logs.
const MAX_GROUPS: usize = 1_000;

/// `queue.groups(queue_name, max_groups)`: returns a row for each group with waiting jobs, those first that are next.
///
/// Errors: 42704, 42501, 22023 unless `max_groups` is between 1 and 1000.
fn groups(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let queue = queue::by_name(&call.need(args::groups::QUEUE_NAME)?)?;
    permission::check(&queue, Privilege::Observe)?;
    let asked = call.get(args::groups::MAX_GROUPS).unwrap_or(DEFAULT_GROUPS);
    let most = usize::try_from(asked).ok().filter(|most| (1..=MAX_GROUPS).contains(most)).ok_or_else(|| {
        Error::invalid(format!("max_groups must be between 1 and {MAX_GROUPS}")).detail(format!("It is {asked}."))
    })?;
    let tables = open_tables();
    for &lane in queue.lanes() {
        for (ahead, group) in waiting(lane).into_iter().take(most).enumerate() {
            let Some(next) = next_attempt(&tables, lane, &group) else { continue };
            let weight = queue.weight_of(group.hash).unwrap_or(1.0);
            rows.add_options(&[
                queue.stage_of(lane).map(text_datum),
                next.group_key(),
                Some(weight.to_bits().into()),
                Some(i64::from(group.running).into()),
                Some(next.job_id().into()),
                Some(next.run_at().unwrap_or_else(|| next.enqueued_at()).into()),
                Some((ahead as i64).into()),
                wall_time(group.closed_until),
            ])?;
            process::check_for_interrupts();
        }
    }
    Ok(None)
}

/// Returns a monotonic time in the future as a `timestamptz`. `None`: it is over.
fn wall_time(monotonic: i64) -> Option<Datum> {
    let left = monotonic - time::monotonic_us();
    (left > 0).then(|| (time::now_us() + left).into())
}

/// Returns the groups of a lane that have waiting jobs, as far as memory knows: those that may start a job first, in
/// their order.
fn waiting(lane: i32) -> Vec<WaitingGroup> {
    let number = here::number();
    let (mut found, mut from) = (Vec::new(), Some(0));
    let mut some = Box::new([WaitingGroup::default(); SLOTS_PER_CALL]);
    while let Some(at) = from {
        let count;
        (count, from) = shmem::with(|shared| shared.frontier.backlog.waiting_groups(number, lane, at, &mut some));
        found.extend_from_slice(&some[..count]);
        process::check_for_interrupts();
    }
    found.sort_unstable_by_key(|group| (!group.has_turn, group.urgency, group.pass));
    found
}

/// Returns the next attempt of a group. `None`: it has been claimed meanwhile, or is not due.
fn next_attempt(tables: &[Tables], lane: i32, group: &WaitingGroup) -> Option<Attempt> {
    let mut reader = Reader::new();
    if let Some(attempt) = group.next.and_then(|next| reader.fetch_now(&next)) {
        return Some(attempt);
    }
    let now = time::now_us();
    let mut waiting = Waiting::new(tables, Order::Group(lane, group.hash), group.after, now, now);
    let next = std::iter::from_fn(|| waiting.next()).flatten().next()?;
    reader.fetch_now(&next)
}
