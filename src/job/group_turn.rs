//! A turn of a group with a limit: finds the jobs that may start next, in the index of groups.
//!
//! The protocol is the frontier's (`src/core/frontier/serving.rs`). The frontier lends the group to this session. After
//! that the session takes its snapshots and reads the logs. Then it takes the found attempts and sets the position, in
//! one step. The guard gives the group back on every way out.
//!
//! The session reads some attempts ahead of what the group may start: later claims take them without a turn.
//!
//! In strict order a failed job comes before all others of its group. Until it is due, none of them may start. The
//! session looks for it in the logs if the frontier cannot exclude that there is one.

use pg_queue_core::frontier::{Claimer, Owner, Rank, Ready, Served, Turn};

use crate::catalog;
use crate::log::attempt::Attempt;
use crate::log::parked::Files;
use crate::log::tables::Tables;
use crate::log::waiting::{Order, Waiting, open_tables};
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{session, time};
use crate::shmem::{self, here};

/// A group that this session serves.
pub struct GroupTurn<'a> {
    lane: i32,
    claimer: &'a Claimer<'a>,
    turn: Turn,
    /// The wall time up to which attempts were due when the group was lent.
    due_to: i64,
    is_open: bool,
}

/// The attempts that were found in the logs.
struct Found {
    ready: Vec<Ready>,
    read_to: Rank,
    is_held: bool,
    /// True if no failed job of the group must run first.
    is_free: bool,
    /// The indexes that were read.
    files: Files,
    /// The time up to which expired attempts were left out.
    expired_to: i64,
}

impl<'a> GroupTurn<'a> {
    /// Returns the turn that `take` has announced.
    pub fn new(lane: i32, claimer: &'a Claimer<'a>, turn: Turn, due_to: i64) -> Self {
        Self { lane, claimer, turn, due_to, is_open: true }
    }

    /// Takes the attempts that the group may start, as `take` does. Returns how many.
    pub fn serve(mut self, out: &mut [Ready]) -> usize {
        fault!("turn.begun");
        let found = self.find();
        fault!("turn.found");
        self.end(&found, out)
    }

    fn find(&self) -> Found {
        let order = Order::Group(self.lane, self.turn.group);
        let tables = open_tables();
        let mut files = Files::default();
        tables.iter().for_each(|tables| files.note(tables.home.segment, &tables.attempt, tables.by_group()));
        if self.turn.must_look
            && let Some(holder) = self.holder(&tables)
        {
            return holder;
        }
        let now = time::now_us();
        let mut waiting = Waiting::new(&tables, order, self.turn.after, self.due_to, now);
        let mut ready = Vec::new();
        while ready.len() < self.turn.wanted + self.turn.ahead {
            match waiting.next() {
                Some(next) => ready.extend(next),
                None => break,
            }
        }
        Found {
            ready,
            read_to: waiting.read_to(),
            is_held: false,
            is_free: self.turn.must_look,
            files,
            expired_to: now,
        }
    }

    /// Returns the job of the group that has failed and must run again first. `None`: there is none.
    fn holder(&self, tables: &[Tables]) -> Option<Found> {
        let held = Found { is_held: true, ..self.nothing() };
        let keys = [Key::eq_i32(1, self.lane), Key::eq_i64(2, self.turn.group)];
        for tables in tables {
            let index = Relation::read_index(catalog::segment(tables.home.segment).attempt_holder);
            let mut scan = tables.attempt.scan(&index, &keys, Snapshot::Now);
            while scan.next().is_some() {
                // This transaction has made the attempt, so no claim has it.
                if scan.is_own() {
                    return Some(held);
                }
                let attempt = Attempt::new(scan.row(), tables.home);
                match tables.claim_of(attempt.id()) {
                    Some(true) => continue,
                    // The attempt may be about to be cancelled or moved.
                    Some(false) => return Some(held),
                    None => {}
                }
                if attempt.run_at().is_some_and(|at| at > self.due_to) {
                    return Some(held);
                }
                // The other attempts of the group have not moved.
                return Some(Found { ready: vec![attempt.ready()], ..self.nothing() });
            }
        }
        None
    }

    /// Returns that nothing was read.
    fn nothing(&self) -> Found {
        let files = Files::default();
        let read_to = self.turn.after;
        Found { ready: Vec::new(), read_to, is_held: false, is_free: false, files, expired_to: i64::MIN }
    }

    fn end(&mut self, found: &Found, out: &mut [Ready]) -> usize {
        self.is_open = false;
        let (number, lane) = (here::number(), self.lane);
        let mut worker = None;
        let taken = shmem::with_instance(|frontier, instance| {
            let owner = Owner { session: session::session(), pid: session::pid() };
            let served = if found.files.are_current(frontier, instance) {
                let Found { read_to, is_held, is_free, .. } = *found;
                instance.expiry.drops(found.expired_to);
                Served { turn: self.turn, found: &found.ready, read_to, is_held, is_free }
            } else {
                Served { turn: self.turn, found: &[], read_to: self.turn.after, is_held: false, is_free: false }
            };
            let taken = frontier.turn_end(number, lane, owner, self.claimer, &served, out);
            // The group may have reached its rate.
            worker = frontier.next_opening().and_then(|at| instance.worker.wake_by(at));
            taken
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        while let Some(waiter) = shmem::with(|shared| shared.frontier.refill_wake(number, lane)) {
            shmem::wake(waiter);
        }
        if let Some(next) = shmem::with(|shared| shared.frontier.pass_on(number, lane)) {
            shmem::wake(next);
        }
        taken.unwrap_or(0)
    }
}

impl Drop for GroupTurn<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let nothing = self.nothing();
            self.end(&nothing, &mut []);
        }
    }
}
