//! Starts attempts whose time has come: a cursor over `run_at` that moves with the clock.
//!
//! The same protocol as a lane's position: the cursor moves first, under the lock, and only then the logs
//! are read. A commit whose time the cursor has passed pushes by itself; one that committed before is seen
//! by the read. So nothing falls between. On an error the cursor goes back.

use std::cell::Cell;

use crate::duty::Duty;
use crate::instance::{self, Catalog};
use crate::log::attempt::Attempt;
use crate::log::table::{Key, Relation, Snapshot};
use crate::segment::{self, Home};
use crate::shmem::Instance;
use crate::{shmem, sys};

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
pub fn abandon(instances: &mut [Instance]) {
    if let Some((number, from)) = MOVING.take()
        && let Some(slot) = instances.iter_mut().find(|i| i.number == number)
    {
        slot.due_to = slot.due_to.min(from);
        slot.next_due = i64::MIN;
    }
}

struct Cursor {
    instance: u32,
    from: i64,
    /// What is known to fall due next; `None` while that is being found out.
    next: Option<i64>,
}

impl Cursor {
    /// Moves the cursor to now. Returns it with the span to read.
    fn advance(instance: u32) -> Option<(Self, i64)> {
        let now = sys::now_us();
        shmem::with_instance(instance, |_, slot| {
            let from = slot.due_to;
            slot.due_to = now.max(from);
            slot.next_due = i64::MAX;
            MOVING.set(Some((instance, from)));
            (Self { instance, from, next: None }, slot.due_to)
        })
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        MOVING.set(None);
        shmem::with_instance(self.instance, |_, slot| match self.next {
            Some(next) => slot.next_due = slot.next_due.min(next),
            None => {
                slot.due_to = slot.due_to.min(self.from);
                slot.next_due = i64::MIN;
            }
        });
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

/// Pushes what falls due in a segment in this span. Returns the first time after it.
fn start_segment(catalog: &Catalog, segment: u8, from: i64, to: i64, started: &mut i64) -> i64 {
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.attempt);
    if table.blocks() == 0 {
        return i64::MAX;
    }
    let home = Home::now(catalog, segment);
    let index = Relation::read_index(oids.attempt_run_at);
    let claims = Relation::read(oids.claim);
    let claims_pkey = Relation::read_index(oids.claim_pkey);
    let mut scan = table.scan(&index, &[Key::after(1, from)], Snapshot::Now);
    while scan.next().is_some() {
        // Inserted by this very transaction: its commit pushes it, since the cursor has passed.
        if scan.is_own() {
            continue;
        }
        let attempt = Attempt::new(scan.row(), home);
        let run_at = attempt.run_at().unwrap_or(0);
        let is_claimed = claims.scan(&claims_pkey, &[Key::eq_i64(1, attempt.id())], Snapshot::Now).next().is_some();
        if is_claimed {
            continue;
        }
        if run_at > to {
            return run_at;
        }
        let woken = shmem::with(|shared| shared.frontier.push(catalog.number, attempt.lane(), attempt.ready()));
        if let Some(session) = woken {
            shmem::wake(session);
        }
        *started += 1;
        if *started % 1024 == 0 {
            sys::check_for_interrupts();
        }
    }
    i64::MAX
}
