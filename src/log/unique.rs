//! Finds the newest attempt under a unique key. The index has the attempts of a key in the order of their ids, and a
//! key has one producer at a time. So the newest attempt alone tells whether a job lives. Earlier ended attempts that
//! are not reclaimed yet are not read, even if they are many.

use pg_queue_core::id::{self, SEGMENTS};
use pgrx::pg_sys::Datum;

use crate::catalog::{self, ids, queue};
use crate::log::attempt::Attempt;
use crate::log::outcome::{self, has_moved_claim};
use crate::log::reader::Reader;
use crate::log::{claim, note, segment};
use crate::pg::process;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::segments::OLD;

/// The state of an attempt by the logs.
pub enum State {
    /// It is not claimed, or the claim is not committed.
    Waiting,
    /// A worker has claimed it.
    Running,
    /// It has ended, and there is no next attempt.
    Ended,
}

/// The newest attempt under a key.
pub struct Newest {
    pub attempt: Attempt,
    pub state: State,
}

impl Newest {
    /// Returns whether its job lives.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Ended)
    }
}

/// Looks keys up. Keeps the opened tables until it is dropped.
pub struct Lookup {
    reader: Reader,
    open: [Option<(Relation, Relation)>; SEGMENTS],
}

impl Lookup {
    /// Returns a value with nothing open.
    pub fn new() -> Self {
        Self { reader: Reader::new(), open: std::array::from_fn(|_| None) }
    }

    /// As `newest`, in the queue of this lane. `None` also if the queue was dropped.
    pub fn newest_beside(&mut self, lane: i32, key: Datum) -> Option<Newest> {
        let queue = queue::by_lane(lane).ok().flatten()?;
        self.newest(queue.living_lanes(), key)
    }

    /// Returns the newest attempt in the segments under a key, in a queue's lanes. If no job lives and the transaction
    /// holds the key, no job is being made.
    pub fn newest(&mut self, lanes: &[i32], key: Datum) -> Option<Newest> {
        /// How often to search: meanwhile the attempt may have moved, or another attempt may have followed.
        const MAX_SEARCHES: usize = 8;
        let old_words = || [OLD, OLD + 1].map(segment::word);
        for search in 1..=MAX_SEARCHES {
            process::check_for_interrupts();
            let words = old_words();
            let found = self.newest_id(lanes, key).and_then(|id| self.reader.by_id(id));
            let Some(attempt) = found else {
                if words == old_words() {
                    return None;
                }
                continue;
            };
            let (home, id) = (attempt.home, attempt.id());
            // The claim is read first, because an outcome comes after it.
            let claim = claim::find(home.segment, id);
            let outcome = outcome::find(home.segment, id);
            let is_here = !has_moved_claim(claim.as_ref(), outcome.as_ref()) && home.is_valid();
            let went_on = outcome.is_some_and(|outcome| outcome.next_id.is_some());
            // The next attempt may have ended and left the segments before this one.
            if is_here && (!went_on || search == MAX_SEARCHES) {
                let state = match (claim, outcome) {
                    (_, Some(_)) => State::Ended,
                    (Some(_), None) => State::Running,
                    (None, None) => State::Waiting,
                };
                return Some(Newest { attempt, state });
            }
        }
        None
    }

    /// Returns another open transaction that has made an attempt under a key, or has requested another run after one.
    /// It is for keys that memory may not know (`keys::may_miss_holders`), and reads all attempts of the key.
    pub fn open_producer(&mut self, lanes: &[i32], key: Datum) -> Option<u32> {
        for segment in segment::inhabited() {
            let (table, index) = self.opened(segment);
            for &lane in lanes {
                let mut scan = table.scan(index, &[Key::eq_text(1, key), Key::eq_i32(2, lane)], Snapshot::Dirty);
                while scan.next().is_some() {
                    let id = scan.columns(1).0[0].value() as i64;
                    let asker = || note::open_producer(segment, id);
                    if let Some(producer) = scan.inserter().or_else(asker) {
                        return Some(producer);
                    }
                    process::check_for_interrupts();
                }
            }
        }
        None
    }

    fn opened(&mut self, segment: u8) -> (&Relation, &Relation) {
        let oids = catalog::segment(segment);
        let (table, index) = self.open[segment as usize]
            .get_or_insert_with(|| (Relation::read(oids.attempt), Relation::read_index(oids.attempt_unique)));
        (table, index)
    }

    /// Old and young segments are read. An attempt that moves meanwhile is met at least once, see `segment::inhabited`.
    fn newest_id(&mut self, lanes: &[i32], key: Datum) -> Option<i64> {
        let node = ids::node();
        // Ids of another node say nothing about the order.
        let age = |id: &i64| (id::node(*id) == node, *id);
        let mut newest: Option<i64> = None;
        for segment in segment::inhabited() {
            let (table, index) = self.opened(segment);
            if table.blocks() == 0 {
                continue;
            }
            for &lane in lanes {
                let mut scan = table.scan(index, &[Key::eq_text(1, key), Key::eq_i32(2, lane)], Snapshot::Now);
                while scan.previous().is_some() {
                    let id = scan.columns(1).0[0].value() as i64;
                    newest = newest.into_iter().chain([id]).max_by_key(age);
                    if id::node(id) == node {
                        break;
                    }
                }
            }
        }
        newest
    }
}
