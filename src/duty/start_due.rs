//! Starts attempts whose time has come: a cursor over `run_at` moves with the clock.
//!
//! Not responsible for the cursor when the clock is set (`core::due`), nor for the frontier to which it pushes.
//!
//! Invariant: no due attempt falls between cursor and commit. The protocol is that of a lane's position: the cursor
//! moves first, under the lock, and only then the logs are read. If the cursor has passed the time of a commit's
//! attempt, the commit pushes the attempt itself. The read sees attempts that were committed before. On an error the
//! cursor goes back.

use pg_queue_core::due;
use pg_queue_core::frontier::{Rank, Ready};

use crate::catalog;
use crate::duty::cursor::{self, Cursor};
use crate::duty::{Duty, Memory, Work};
use crate::job::after;
use crate::log::segment;
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{memory, process, time};
use crate::shmem::{self, here};

/// The duty.
pub const DUTY: Duty = Duty { name: "start_due", is_due: None, next_at, work: Work::Own(|| Ok(run())) };

/// Returns the time of the next due attempt. A session that commits a job that is due earlier wakes the worker.
fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.at_wall(memory.instance.due.next, memory.wall)
}

/// The cursor over `run_at`. It has no ids.
static CURSOR: cursor::Kind = cursor::Kind {
    go_back: |slot, (from, _)| {
        slot.due.to = slot.due.to.min(from);
        slot.due.next = i64::MIN;
    },
    ends: |slot, next| {
        slot.due.next = slot.due.next.min(next);
        slot.due.next < i64::MAX
    },
};

/// Moves the cursor to now. Returns it with the end of the span to read, which is empty if the clock was set back.
fn advance() -> Option<(Cursor, i64)> {
    let now = time::now_us();
    Cursor::advance(&CURSOR, |_, slot| {
        let from = slot.due.to;
        slot.due.to = due::cursor(from, now);
        slot.due.next = i64::MAX;
        ((from, 0), slot.due.to)
    })
}

/// Runs this duty within another one that takes long. It only reads the logs.
pub fn catch_up() {
    if DUTY.has_come() {
        run();
    }
}

fn run() -> i64 {
    let Some((mut cursor, to)) = advance() else { return 0 };
    let mut next = i64::MAX;
    let mut started = 0;
    for segment in segment::inhabited() {
        next = next.min(start_segment(segment, cursor.from.0, to, &mut started));
    }
    cursor.next = Some(next);
    started
}

/// At most this many attempts are pushed in one hold of the lock.
const ATTEMPTS_PER_HOLD: usize = 128;
/// The search for the first time after the span skips at most this many claimed attempts. If all these are claimed, as
/// after a large purge, it returns the time of a claimed attempt. That wakes the worker once without need, while a
/// longer search would cost each time.
const MAX_SKIPPED: usize = 64;

/// Pushes the attempts of a segment that fall due in this span. Returns a time after the span before which nothing else
/// falls due.
fn start_segment(segment: u8, from: i64, to: i64, started: &mut i64) -> i64 {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.attempt);
    if table.blocks() == 0 {
        return i64::MAX;
    }
    let index = Relation::read_index(oids.attempt_run_at);
    let mut batch = Batch {
        instance: here::number(),
        claims: Relation::read(oids.claim),
        claims_pkey: Relation::read_index(oids.claim_pkey),
        due: memory::list(ATTEMPTS_PER_HOLD),
        woken: memory::list(ATTEMPTS_PER_HOLD),
    };
    let mut next = i64::MAX;
    let mut claimed_after = 0;
    let mut scan = table.scan(&index, &[Key::after(1, from)], Snapshot::Now);
    while let Some(tid) = scan.next() {
        // This transaction has inserted the attempt. Its commit pushes the attempt, because the cursor has passed.
        if scan.is_own() {
            continue;
        }
        // id, job_id, enqueued_at, lane, priority, attempt, max_attempts, run_at, group_hash
        let (values, nulls) = scan.columns(9);
        let (id, lane, run_at) = (values[0].value() as i64, values[3].value() as i32, values[7].value() as i64);
        if run_at > to {
            if claimed_after < MAX_SKIPPED && batch.is_claimed(id) {
                claimed_after += 1;
                continue;
            }
            next = run_at;
            break;
        }
        let rank = Rank { priority: values[4].value() as i32, job_id: values[1].value() as i64 };
        let group = if nulls[8] { 0 } else { values[8].value() as i64 };
        batch.due.push((lane, Ready { rank, id, place: tid.place(segment), group }));
        if batch.due.len() == ATTEMPTS_PER_HOLD {
            *started += batch.push();
            process::check_for_interrupts();
        }
    }
    *started += batch.push();
    next
}

/// Due attempts, and the tables that say whether they are claimed.
struct Batch {
    instance: u32,
    claims: Relation,
    claims_pkey: Relation,
    due: Vec<(i32, Ready)>,
    woken: Vec<u32>,
}

impl Batch {
    /// Leaves held attempts to the duty that releases them.
    ///
    /// If no job has successors, the only held attempts are those of commits whose callbacks are still to come. Their
    /// callbacks hand them over. A push to a lane of held attempts does nothing.
    fn hand_over_held(&self, due: &mut Vec<(i32, Ready)>) {
        if shmem::with_awaited(|awaited, _| awaited.is_quiet()) == Some(true) {
            return;
        }
        let mut held: Vec<i64> = Vec::new();
        due.retain(|(lane, entry)| {
            let is_held = after::is_held(*lane).unwrap_or(false);
            held.extend(is_held.then_some(entry.rank.job_id));
            !is_held
        });
        if !held.is_empty() {
            shmem::with_awaited(|awaited, _| held.iter().for_each(|job| _ = awaited.hand_over(*job)));
        }
    }

    fn is_claimed(&self, id: i64) -> bool {
        self.claims.scan(&self.claims_pkey, &[Key::eq_i64(1, id)], Snapshot::Now).next().is_some()
    }

    /// Pushes the attempts to the frontier. Returns how many there were. Claimed attempts do not count if the frontier
    /// wanted them.
    ///
    /// If very many attempts fall due together, nearly all rank behind the lane's position, and are found in the index
    /// when their turn comes. Their claims are not looked up.
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
