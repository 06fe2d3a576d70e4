//! Starts attempts whose time has come: a cursor over `run_at` that moves with the clock.
//!
//! The same protocol as a lane's position: the cursor moves first, under the lock, and only then the logs
//! are read. A commit whose time the cursor has passed pushes by itself; one that committed before is seen
//! by the read. So nothing falls between. On an error the cursor goes back.

use std::cell::Cell;

use pg_queue_core::due;
use pg_queue_core::frontier::{Rank, Ready};

use crate::duty::Duty;
use crate::instance::{self, Catalog};
use crate::log::table::{Key, Relation, Snapshot};
use crate::segment;
use crate::shmem::Instance;
use crate::{shmem, sys};
use pgrx::pg_sys::Latch;

/// The duty.
pub const DUTY: Duty = Duty { name: "start_due", is_due, run };

fn is_due(number: u32) -> bool {
    let now = sys::now_us();
    shmem::with_instance(number, |_, instance| instance.next_due <= now).unwrap_or(false)
}

thread_local! {
    /// The instance whose cursor this session is moving, and where that was.
    static MOVING: Cell<Option<(u32, i64)>> = const { Cell::new(None) };
}

/// This process ends, by an error that runs no destructors: the cursor goes back.
/// Returns the worker's latch.
pub fn abandon(instances: &mut [Instance]) -> Option<*mut Latch> {
    let (number, from) = MOVING.take()?;
    let slot = instances.iter_mut().find(|i| i.number == number)?;
    slot.due_to = slot.due_to.min(from);
    slot.next_due = i64::MIN;
    Some(slot.worker_latch)
}

/// A transaction that has added an attempt for this time was committed: whether it is due. Should the clock have been set back
/// nobody has moved the cursor since, and it is moved here. Under the frontier's lock.
pub fn is_passed(instance: &mut Instance, run_at: i64) -> bool {
    if run_at > instance.due_to {
        return false;
    }
    let due_to = due::cursor(instance.due_to, sys::now_us());
    if due_to < instance.due_to {
        (instance.due_to, instance.next_due) = (due_to, i64::MIN);
    }
    run_at <= due_to
}

struct Cursor {
    instance: u32,
    from: i64,
    /// What is known to fall due next; `None` while that is being found out.
    next: Option<i64>,
}

impl Cursor {
    /// Moves the cursor to now. Returns it with the span to read, which is empty when the clock was set back.
    fn advance(instance: u32) -> Option<(Self, i64)> {
        let now = sys::now_us();
        shmem::with_instance(instance, |_, slot| {
            let from = slot.due_to;
            slot.due_to = due::cursor(from, now);
            slot.next_due = i64::MAX;
            MOVING.set(Some((instance, from)));
            (Self { instance, from, next: None }, slot.due_to)
        })
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        MOVING.set(None);
        let worker = shmem::with_instance(self.instance, |_, slot| {
            match self.next {
                Some(next) => slot.next_due = slot.next_due.min(next),
                None => {
                    slot.due_to = slot.due_to.min(self.from);
                    slot.next_due = i64::MIN;
                }
            }
            // The worker may have gone to sleep while another session did this for it, and nothing seemed to be due.
            (slot.next_due < i64::MAX && slot.worker_pid != sys::pid()).then_some(slot.worker_latch)
        });
        if let Some(latch) = worker.flatten() {
            shmem::wake_latch(latch);
        }
    }
}

/// The duty from within another one that takes long: it only reads.
pub fn catch_up(number: u32) {
    if is_due(number) {
        run(number);
    }
}

fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
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
/// Claimed attempts to step over in search of the first time after the span. Should all be claimed, as after a purge
/// of many, a time at which nothing is to be done will do: it comes once, and the search would come each time.
const STEPS: usize = 64;

/// Pushes what falls due in a segment in this span. Returns a time after it before which nothing falls due.
fn start_segment(catalog: &Catalog, segment: u8, from: i64, to: i64, started: &mut i64) -> i64 {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.attempt);
    if table.blocks() == 0 {
        return i64::MAX;
    }
    let index = Relation::read_index(oids.attempt_run_at);
    let mut batch = Batch {
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
        // Inserted by this very transaction: its commit pushes it, since the cursor has passed.
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
            sys::check_for_interrupts();
        }
    }
    *started += batch.push();
    next
}

/// Attempts that are due, and what tells whether they are claimed.
struct Batch {
    instance: u32,
    claims: Relation,
    claims_pkey: Relation,
    due: Vec<(i32, Ready)>,
    woken: Vec<u32>,
}

impl Batch {
    fn is_claimed(&self, id: i64) -> bool {
        self.claims.scan(&self.claims_pkey, &[Key::eq_i64(1, id)], Snapshot::Now).next().is_some()
    }

    /// Tells the frontier of them. Returns how many there were, but for claimed ones where that mattered.
    ///
    /// When very many fall due at once nearly all rank behind P, and are found in the index when their turn comes: of
    /// these the claim is not looked up.
    fn push(&mut self) -> i64 {
        let (instance, mut due) = (self.instance, std::mem::take(&mut self.due));
        let all = due.len();
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
