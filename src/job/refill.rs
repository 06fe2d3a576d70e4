//! Refills a lane's `ready` from its index when less than half of it is left. One claimer does so, in order, over all
//! segments. It leaves out attempts that are claimed or not yet due.
//!
//! The protocol is the frontier's (`src/core/frontier`). The session raises the flag first. Then it takes its snapshots
//! and reads the logs. Then it sets P and lowers the flag in one step. The guard lowers the flag on every way out.

use pg_queue_core::frontier::{Rank, Ready};

use crate::error::{self, Error, Result};
use crate::log::parked::{self, Filled};
use crate::log::waiting::{self, Order, Waiting};
use crate::pg::fault::fault;
use crate::pg::{memory, session, time};
use crate::shmem::{self, here};

/// Candidates handed over in one hold of the lock.
const CANDIDATES_PER_HOLD: usize = 128;
/// The most rows that one refill reads, so that a walk over ended or future jobs does not keep other sessions waiting.
/// It is small in debug builds, so that tests reach it.
const MAX_EXAMINED: usize = if cfg!(debug_assertions) { 2_000 } else { 100_000 };

struct Flag {
    lane: i32,
    session: u32,
}

impl Flag {
    fn push(&self, found: &mut Vec<Ready>, read_to: Rank) -> bool {
        let (number, lane) = (here::number(), self.lane);
        let filled = self.index(found);
        let more = shmem::with_instance(|frontier, instance| {
            if filled.is_some_and(|filled| !filled.is_current(frontier, instance)) {
                found.iter_mut().for_each(|entry| entry.place.is_indexed = false);
            }
            frontier.refill_push(number, lane, self.session, found, read_to)
        });
        found.clear();
        more.unwrap_or(false)
    }

    /// Makes and marks the index entries of attempts that must be parked.
    fn index(&self, found: &mut [Ready]) -> Option<Filled> {
        if found.iter().all(|entry| entry.group == 0) {
            return None;
        }
        let (number, lane) = (here::number(), self.lane);
        shmem::with(|shared| {
            for entry in found.iter_mut() {
                entry.place.is_indexed = shared.frontier.needs_index(number, lane, entry);
            }
        });
        let marked = found.iter().filter(|entry| entry.place.is_indexed);
        marked.clone().next().is_some().then(|| parked::fill(lane, marked))
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        let (number, lane) = (here::number(), self.lane);
        shmem::with(|shared| shared.frontier.refill_end(number, lane, self.session));
        while let Some(waiter) = shmem::with(|shared| shared.frontier.refill_wake(number, lane)) {
            shmem::wake(waiter);
        }
        if let Some(next) = shmem::with(|shared| shared.frontier.pass_on(number, lane)) {
            shmem::wake(next);
        }
    }
}

/// Refills the lane if no other session is doing so and its index may have more. It only reads, and takes no lock for
/// which another session waits.
///
/// Errors: 42704 when the extension was dropped since the session last heard of it.
pub fn refill(lane: i32) -> Result<()> {
    let session = session::session();
    let now = time::now_us();
    let begun = shmem::with_instance(|frontier, instance| {
        let begun = frontier.refill_begin(here::number(), lane, session).map(|after| (after, instance.due.to));
        if begun.is_some() {
            instance.expiry.drops(now);
        }
        begun
    });
    let Some(begun) = begun else {
        return Err(Error::new(error::UNDEFINED, "extension \"pg_queue\" was dropped"));
    };
    let Some((after, due_to)) = begun else { return Ok(()) };
    let flag = Flag { lane, session };
    fault!("refill.begun");

    let order = Order::Lane(lane);
    let tables = waiting::open_tables();
    let mut waiting = Waiting::new(&tables, order, after, due_to, now);
    let mut found = memory::list(CANDIDATES_PER_HOLD);
    loop {
        let Some(next) = waiting.next() else {
            flag.push(&mut found, Rank::MAX);
            break;
        };
        found.extend(next);
        fault!("refill.read");
        // All attempts of a job have the same rank. P has to pass all of them. Otherwise the next refill would begin
        // with the same attempts.
        let is_over = waiting.examined >= MAX_EXAMINED && waiting.read_to() > after;
        if found.len() == CANDIDATES_PER_HOLD || is_over {
            let has_room = flag.push(&mut found, waiting.read_to());
            if is_over || !has_room {
                break;
            }
        }
    }
    Ok(())
}

/// Puts the first entries of `ready` that must wait for their groups into the index of groups, so that they can be
/// parked. It holds the lane's flag, as a refill does.
pub fn index_ready(lane: i32) {
    /// Entries at a time. Those of a group go into the index together.
    const ENTRIES_PER_TURN: usize = 128;
    let (number, session) = (here::number(), session::session());
    let mut found = [Ready::default(); ENTRIES_PER_TURN];
    let count = shmem::with(|shared| shared.frontier.index_begin(number, lane, session, &mut found));
    let found = &found[..count];
    if found.is_empty() {
        return;
    }
    let _flag = Flag { lane, session };
    fault!("index.begun");
    let filled = parked::fill(lane, found.iter());
    fault!("index.filled");
    shmem::with_instance(|frontier, instance| {
        if filled.is_current(frontier, instance) {
            frontier.indexed(number, lane, found);
        }
    });
}
