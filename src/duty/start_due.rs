//! Starts attempts whose time has come: a cursor over `run_at` moves with the clock.
//!
//! Not here: where the cursor goes when the clock is set (`core::due`), and the frontier it pushes to.
//!
//! Invariant: no due attempt falls between cursor and commit. The protocol is that of a lane's position: the cursor
//! moves first, under the lock, and only then the logs are read. A commit whose time the cursor has passed pushes its
//! attempt by itself; the read sees one that committed before. On an error the cursor goes back.

use std::cell::Cell;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::due;
use pg_queue_core::frontier::{Rank, Ready};
use pgrx::pg_sys::Latch;

use crate::catalog::{self, Catalog};
use crate::duty::{Duty, Memory};
use crate::job::after;
use crate::log::segment;
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{process, session, time};
use crate::shmem::{self, Instance};
use crate::transaction::hooks;

/// The duty.
pub const DUTY: Duty = Duty { name: "start_due", is_due: None, next_at, run };

/// A session that commits a job which is due earlier wakes the worker.
fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.at_wall(memory.instance.due.next, memory.wall)
}

thread_local! {
    /// The instance whose cursor this session is moving, and where the cursor was before.
    static MOVING: Cell<Option<(u32, i64)>> = const { Cell::new(None) };
}

/// Moves the cursor back. It is called if this process ends by an error that runs no destructors.
/// Returns the worker's latch.
fn abandon(instances: &mut [Instance], _: &mut [Awaited]) -> Option<*mut Latch> {
    let (number, from) = MOVING.take()?;
    let slot = instances.iter_mut().find(|i| i.number == number)?;
    slot.due.to = slot.due.to.min(from);
    slot.due.next = i64::MIN;
    Some(slot.worker.latch)
}

struct Cursor {
    instance: u32,
    from: i64,
    /// The next time at which something falls due; `None` while the logs are being read.
    next: Option<i64>,
}

impl Cursor {
    /// Moves the cursor to now. Returns it with the end of the span to read, which is empty if the clock was set back.
    fn advance(instance: u32) -> Option<(Self, i64)> {
        let now = time::now_us();
        shmem::with_instance(instance, |_, slot| {
            let from = slot.due.to;
            slot.due.to = due::cursor(from, now);
            slot.due.next = i64::MAX;
            hooks::at_exit(abandon);
            MOVING.set(Some((instance, from)));
            (Self { instance, from, next: None }, slot.due.to)
        })
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        MOVING.set(None);
        let worker = shmem::with_instance(self.instance, |_, slot| {
            match self.next {
                Some(next) => slot.due.next = slot.due.next.min(next),
                None => {
                    slot.due.to = slot.due.to.min(self.from);
                    slot.due.next = i64::MIN;
                }
            }
            // The worker may have gone to sleep while another session did this for it, and nothing seemed to be due.
            (slot.due.next < i64::MAX && slot.worker.pid != session::pid()).then_some(slot.worker.latch)
        });
        if let Some(latch) = worker.flatten() {
            shmem::wake_latch(latch);
        }
    }
}

/// Runs the duty from within another one that takes long. It only reads the logs.
pub fn catch_up(number: u32) {
    if DUTY.has_come(number) {
        run(number);
    }
}

fn run(number: u32) -> i64 {
    let Some(catalog) = catalog::of_duty(number) else { return 0 };
    let Some((mut cursor, to)) = Cursor::advance(number) else { return 0 };
    let mut next = i64::MAX;
    let mut started = 0;
    for segment in segment::inhabited(&catalog) {
        next = next.min(start_segment(&catalog, segment, cursor.from, to, &mut started));
    }
    cursor.next = Some(next);
    started
}

/// Attempts handed over in one hold of the lock.
const CHUNK: usize = 128;
/// Claimed attempts that are stepped over in search of the first time after the span. If all of these are claimed, as
/// after a purge of many, a time at which nothing is to be done is returned: that wakes the worker once in vain, while
/// a longer search would cost each time.
const STEPS: usize = 64;

/// Pushes what falls due in a segment in this span. Returns a time after the span before which nothing else falls due.
fn start_segment(catalog: &Catalog, segment: u8, from: i64, to: i64, started: &mut i64) -> i64 {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.attempt);
    if table.blocks() == 0 {
        return i64::MAX;
    }
    let index = Relation::read_index(oids.attempt_run_at);
    let mut batch = Batch {
        catalog,
        instance: catalog.number,
        claims: Relation::read(oids.claim),
        claims_pkey: Relation::read_index(oids.claim_pkey),
        due: Vec::with_capacity(CHUNK),
        woken: Vec::with_capacity(CHUNK),
    };
    let mut next = i64::MAX;
    let mut claimed_after = 0;
    let mut scan = table.scan(&index, &[Key::after(1, from)], Snapshot::Now);
    while let Some(tid) = scan.next() {
        // This very transaction has inserted it: its commit pushes it, since the cursor has passed.
        if scan.is_own() {
            continue;
        }
        // id, job_id, enqueued_at, lane, priority, attempt, max_attempts, run_at, group_hash
        let (values, nulls) = scan.columns(9);
        let (id, lane, run_at) = (values[0].value() as i64, values[3].value() as i32, values[7].value() as i64);
        if run_at > to {
            if claimed_after < STEPS && batch.is_claimed(id) {
                claimed_after += 1;
                continue;
            }
            next = run_at;
            break;
        }
        let rank = Rank { priority: values[4].value() as i32, job_id: values[1].value() as i64 };
        let group = if nulls[8] { 0 } else { values[8].value() as i64 };
        batch.due.push((lane, Ready { rank, id, place: tid.place(segment), group }));
        if batch.due.len() == CHUNK {
            *started += batch.push();
            process::check_for_interrupts();
        }
    }
    *started += batch.push();
    next
}

/// Attempts that are due, and the tables that tell whether they are claimed.
struct Batch<'a> {
    catalog: &'a Catalog,
    instance: u32,
    claims: Relation,
    claims_pkey: Relation,
    due: Vec<(i32, Ready)>,
    woken: Vec<u32>,
}

impl Batch<'_> {
    /// Leaves held attempts to the duty that releases them.
    ///
    /// While nothing is awaited there are none but those of commits whose callbacks are still to come, and these hand
    /// them over; a push to a lane of held attempts does nothing.
    fn hand_over_held(&self, due: &mut Vec<(i32, Ready)>) {
        if shmem::with_awaited(self.instance, |awaited, _| awaited.is_quiet()) == Some(true) {
            return;
        }
        let mut held: Vec<i64> = Vec::new();
        due.retain(|(lane, entry)| {
            let is_held = after::is_held(self.catalog, *lane).unwrap_or(false);
            held.extend(is_held.then_some(entry.rank.job_id));
            !is_held
        });
        if !held.is_empty() {
            shmem::with_awaited(self.instance, |awaited, _| held.iter().for_each(|job| _ = awaited.hand_over(*job)));
        }
    }

    fn is_claimed(&self, id: i64) -> bool {
        self.claims.scan(&self.claims_pkey, &[Key::eq_i64(1, id)], Snapshot::Now).next().is_some()
    }

    /// Pushes the attempts to the frontier. Returns how many there were, without the claimed ones among those that the
    /// frontier wants.
    ///
    /// If very many fall due at once, nearly all rank behind the lane's position and are found in the index when their
    /// turn comes: the claims of these are not looked up.
    fn push(&mut self) -> i64 {
        let (instance, mut due) = (self.instance, std::mem::take(&mut self.due));
        self.hand_over_held(&mut due);
        let all = due.len();
        fault!("due.read");
        let woken = &mut self.woken;
        shmem::with(|shared| {
            due.retain(|&(lane, entry)| {
                let is_wanted = shared.frontier.wants(instance, lane, entry);
                if !is_wanted {
                    woken.extend(shared.frontier.push(instance, lane, entry));
                }
                is_wanted
            });
        });
        let wanted = due.len();
        due.retain(|(_, entry)| !self.is_claimed(entry.id));
        let started = all - (wanted - due.len());
        fault!("due.sifted");
        let woken = &mut self.woken;
        shmem::with(|shared| {
            woken.extend(due.iter().filter_map(|&(lane, entry)| shared.frontier.push(instance, lane, entry)));
        });
        woken.drain(..).for_each(shmem::wake);
        due.clear();
        self.due = due;
        started as i64
    }
}
