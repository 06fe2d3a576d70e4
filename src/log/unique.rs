//! Finds the newest attempt under a unique key. Its index has the attempts of a key in the order of their ids, and
//! a key has one producer at a time, so the newest alone tells whether a job lives: however many have ended before
//! it and have not been reclaimed yet, they are not looked at.

use pg_queue_core::id::{self, SEGMENTS};
use pgrx::pg_sys::Datum;

use crate::ids;
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::table::{Key, Relation, Snapshot};
use crate::log::{claim, has_moved, outcome};
use crate::queue;
use crate::segment::{self, OLD};
use crate::sys;

/// What the logs say of an attempt.
pub enum State {
    /// Nobody has claimed it, or not committed that.
    Waiting,
    /// A worker has claimed it.
    Running,
    /// It has ended, and nothing goes on.
    Ended,
}

/// The newest attempt under a key.
pub struct Newest {
    pub attempt: Attempt,
    pub state: State,
}

impl Newest {
    /// Whether its job lives.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Ended)
    }
}

/// Looks keys up; keeps what it has opened until it is dropped.
pub struct Lookup<'a> {
    catalog: &'a Catalog,
    reader: Reader<'a>,
    open: [Option<(Relation, Relation)>; SEGMENTS],
}

impl<'a> Lookup<'a> {
    /// One with nothing open.
    pub fn new(catalog: &'a Catalog) -> Self {
        Self { catalog, reader: Reader::new(catalog), open: std::array::from_fn(|_| None) }
    }

    /// As `newest`, in the queue of this lane; `None` also when that was dropped.
    pub fn newest_beside(&mut self, lane: i32, key: Datum) -> Option<Newest> {
        let queue = queue::by_lane(self.catalog, lane).ok().flatten()?;
        self.newest(queue.lanes(), key)
    }

    /// The newest attempt of a queue's lanes under a key that is in the segments. When none lives and the transaction holds
    /// the key, nobody makes one.
    pub fn newest(&mut self, lanes: &[i32], key: Datum) -> Option<Newest> {
        /// So often to look again: it may have moved, or gone on as another one, while it was looked for.
        const LOOKS: usize = 8;
        let old_words = |catalog| [OLD, OLD + 1].map(|segment| segment::word(catalog, segment));
        for look in 1..=LOOKS {
            sys::check_for_interrupts();
            let words = old_words(self.catalog);
            let found = self.newest_id(lanes, key).and_then(|id| self.reader.by_id(id));
            let Some(attempt) = found else {
                if words == old_words(self.catalog) {
                    return None;
                }
                continue;
            };
            let (home, id) = (attempt.home, attempt.id());
            // The claim first: an outcome comes after it.
            let claim = claim::find(self.catalog, home.segment, id);
            let outcome = outcome::find(self.catalog, home.segment, id);
            let is_here = !has_moved(claim.as_ref(), outcome.as_ref()) && home.is_valid(self.catalog);
            let went_on = outcome.is_some_and(|outcome| outcome.next_id.is_some());
            // What it went on as may have ended and left the segments before it.
            if is_here && (!went_on || look == LOOKS) {
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

    /// An open transaction of somebody else that has made an attempt of a queue's lanes under a key. To be asked where memory
    /// may not know him, see `key::may_miss_holders`: all attempts of the key are looked at.
    pub fn open_producer(&mut self, lanes: &[i32], key: Datum) -> Option<u32> {
        for segment in segment::inhabited(self.catalog) {
            let (table, index) = self.opened(segment);
            for &lane in lanes {
                let mut scan = table.scan(index, &[Key::eq_text(1, key), Key::eq_i32(2, lane)], Snapshot::Dirty);
                while scan.next().is_some() {
                    if let Some(producer) = scan.inserter() {
                        return Some(producer);
                    }
                    sys::check_for_interrupts();
                }
            }
        }
        None
    }

    fn opened(&mut self, segment: u8) -> (&Relation, &Relation) {
        let oids = &self.catalog.segments[segment as usize];
        let (table, index) = self.open[segment as usize]
            .get_or_insert_with(|| (Relation::read(oids.attempt), Relation::read_index(oids.attempt_unique)));
        (table, index)
    }

    /// Old and young alike: one that moves meanwhile is met at least once, see `segment::inhabited`.
    fn newest_id(&mut self, lanes: &[i32], key: Datum) -> Option<i64> {
        let node = ids::node();
        // Ids of another node say nothing about what was before what.
        let age = |id: &i64| (id::node(*id) == node, *id);
        let mut newest: Option<i64> = None;
        for segment in segment::inhabited(self.catalog) {
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
