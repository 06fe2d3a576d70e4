//! Gathers the outcomes of a call, and inserts them together.
//!
//! Invariant: an outcome is written only for an attempt that this transaction holds.

use pg_queue_core::id;
use pg_queue_core::totals::End as Ended;

use crate::error::Result;
use crate::job::held::{self, Held};
use crate::log::attempt::Attempt;
use crate::log::outcome;
pub use crate::log::outcome::Kind;
use crate::log::reader::Reader;
use crate::log::segment::{self, BoundedWait, Home};
use crate::pg::memory;
use crate::pg::scan::Probe;
use crate::shmem::segments;
use crate::transaction;

/// The outcomes of a call: the logs that were opened so far, and the rows to insert.
pub struct Outcomes {
    writers: [Option<(outcome::Writer, i64)>; id::SEGMENTS],
    pending: [Vec<outcome::New>; id::SEGMENTS],
    generations: [i64; id::SEGMENTS],
}

impl Outcomes {
    /// Returns a value without rows.
    pub fn new() -> Self {
        Self {
            writers: std::array::from_fn(|_| None),
            pending: std::array::from_fn(|_| Vec::new()),
            generations: [0; id::SEGMENTS],
        }
    }

    /// Opens the outcomes of a home. `None`: its segment has another generation now.
    pub fn writer(&mut self, home: Home) -> Option<&outcome::Writer> {
        let slot = &mut self.writers[home.segment as usize];
        if slot.is_none() {
            *slot = outcome::Writer::open_home(home).map(|writer| (writer, home.generation));
        }
        slot.as_ref().filter(|(_, generation)| *generation == home.generation).map(|(writer, _)| writer)
    }

    /// Returns whether a held attempt has an outcome. If its home has another generation now, the attempt has moved.
    pub fn probe(&mut self, held: &Held) -> Probe {
        self.writer(held.home).map_or(Probe::Moved, |writer| writer.probe(held.id))
    }

    /// Adds the outcome of a held attempt. This decides how the attempt ends.
    pub fn add(&mut self, held: &Held, outcome: outcome::New) {
        let end = Ended { outcome: outcome.kind.char(), has_next: outcome.next_id.is_some() };
        transaction::decide(held.step, held.id, end);
        self.add_unrun(held.home, outcome);
    }

    /// Adds the outcome of an attempt that this transaction has taken unrun.
    pub fn add_unrun(&mut self, home: Home, outcome: outcome::New) {
        memory::push(&mut self.pending[home.segment as usize], outcome);
        self.generations[home.segment as usize] = home.generation;
    }

    /// Inserts the outcomes, those of one segment together. Returns the ids of attempts whose outcome's key is taken.
    /// They get no row.
    #[must_use]
    pub fn try_insert(&mut self) -> Vec<i64> {
        let mut lost = Vec::new();
        for segment in 0..id::SEGMENTS {
            let mut outcomes = std::mem::take(&mut self.pending[segment]);
            if !outcomes.is_empty() {
                let home = Home { segment: segment as u8, generation: self.generations[segment] };
                let is_moving = segment::word(home.segment).state() >= segments::State::Moving;
                match self.writer(home) {
                    // The probe avoids a dead row for each attempt that has moved.
                    Some(writer) if is_moving => {
                        outcomes.retain(|new| {
                            let is_free = writer.probe(new.id) == Probe::Absent;
                            lost.extend((!is_free).then_some(new.id));
                            is_free
                        });
                        lost.extend(writer.insert(&outcomes).into_iter().map(|n| outcomes[n].id));
                    }
                    Some(writer) => lost.extend(writer.insert(&outcomes).into_iter().map(|n| outcomes[n].id)),
                    None => lost.extend(outcomes.iter().map(|new| new.id)),
                }
            }
        }
        lost
    }

    /// Inserts the outcomes after their keys were probed. Follows attempts that have moved since.
    ///
    /// Errors: 55006 when a key was taken since.
    pub fn insert(mut self) -> Result<()> {
        let all = memory::collect(self.pending.iter().flatten().copied());
        let mut bounded_wait = BoundedWait::default();
        let mut lost = self.try_insert();
        while let Some(&id) = lost.first() {
            let Some(attempt) = Reader::new().by_id(id) else { return Err(held::removed(id).into()) };
            let home = attempt.home;
            match bounded_wait.settled(|| self.writer(home).map_or(Probe::Moved, |writer| writer.probe(id))) {
                Probe::Committed | Probe::InProgress | Probe::Moving => return Err(held::busy(id, None).into()),
                Probe::Absent | Probe::Moved => {}
            }
            lost.remove(0);
            if let Some(new) = all.iter().find(|new| new.id == id) {
                self.add_unrun(home, *new);
                lost.extend(self.try_insert());
            }
        }
        Ok(())
    }
}

/// Inserts the claim and the outcome that end an attempt which this transaction has taken unrun.
///
/// Errors: 55006 if an open transaction has inserted one of them meanwhile.
pub fn end_unrun(attempt: &Attempt, outcome: outcome::New) -> Result<()> {
    let mut outcomes = Outcomes::new();
    outcomes.add_unrun(attempt.home, outcome);
    outcomes.insert()
}
