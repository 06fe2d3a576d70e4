//! A segment's logs, open to read.
//!
//! Responsible for opening them. Not responsible for reading: all attempts with their ends (`walk`), waiting attempts
//! (`waiting`), counts (`depth`).
//!
//! Invariant: the attempts' table is opened first, and as long as it is open the segment is not emptied. Everything
//! else is opened when it is first needed. But a reader of several of the attempts' indexes opens them together.

use std::cell::OnceCell;
use std::ops::Range;

use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Oid;

use crate::catalog::{self, Segment};
use crate::log::keyed::{Keyed, Log};
use crate::log::segment::Home;
use crate::pg::table::Relation;

/// The numbers of all segments.
pub const ALL: Range<u8> = 0..SEGMENTS as u8;

/// A segment's tables and indexes.
pub struct Tables {
    pub home: Home,
    pub attempt: Relation,
    oids: Segment,
    claims: OnceCell<Keyed>,
    outcomes: OnceCell<Keyed>,
    by_id: OnceCell<Relation>,
    by_lane: OnceCell<Relation>,
    by_run_at: OnceCell<Relation>,
    by_start_by: OnceCell<Relation>,
    /// With the table that it belongs to.
    by_group: OnceCell<(Relation, Relation)>,
    dead: OnceCell<Relation>,
}

impl Tables {
    /// Opens a segment's attempts.
    pub fn open(segment: u8) -> Self {
        let oids = catalog::segment(segment);
        let attempt = Relation::read(oids.attempt);
        Self {
            home: Home::now(segment),
            attempt,
            oids,
            claims: OnceCell::new(),
            outcomes: OnceCell::new(),
            by_id: OnceCell::new(),
            by_lane: OnceCell::new(),
            by_run_at: OnceCell::new(),
            by_start_by: OnceCell::new(),
            by_group: OnceCell::new(),
            dead: OnceCell::new(),
        }
    }

    /// Opens the attempts of these segments, all of them before any is read. To read one may take long, and the next
    /// one could be emptied meanwhile.
    pub fn open_all(segments: impl Iterator<Item = u8>) -> Vec<Self> {
        segments.map(Self::open).collect()
    }

    /// Opens the indexes of the attempts' table, for a reader that needs several of them, in the order of
    /// `Relation::read_indexes`. The segment must not be empty.
    pub fn open_indexes(&self) {
        let oids = [self.oids.attempt_pkey, self.oids.attempt_lane, self.oids.attempt_run_at];
        let cells = [&self.by_id, &self.by_lane, &self.by_run_at];
        for (cell, opened) in cells.into_iter().zip(Relation::read_indexes(oids)) {
            // An index that is open stays open.
            let _ = cell.set(opened);
        }
    }

    /// Returns whether there are no attempts. The indexes of an empty segment must not be read: a crash during its
    /// emptying may have left them without their first page.
    pub fn is_empty(&self) -> bool {
        self.attempt.blocks() == 0
    }

    /// The claims.
    pub fn claims(&self) -> &Keyed {
        self.claims.get_or_init(|| Keyed::read(self.oids, Log::Claim))
    }

    /// The outcomes.
    pub fn outcomes(&self) -> &Keyed {
        self.outcomes.get_or_init(|| Keyed::read(self.oids, Log::Outcome))
    }

    /// The attempts' index by id.
    pub fn by_id(&self) -> &Relation {
        index(&self.by_id, self.oids.attempt_pkey)
    }

    /// Their index by lane, priority and job.
    pub fn by_lane(&self) -> &Relation {
        index(&self.by_lane, self.oids.attempt_lane)
    }

    /// Their index by the time at which they are due.
    pub fn by_run_at(&self) -> &Relation {
        index(&self.by_run_at, self.oids.attempt_run_at)
    }

    /// Their index by the time by which they must start.
    pub fn by_start_by(&self) -> &Relation {
        index(&self.by_start_by, self.oids.attempt_start_by)
    }

    /// The outcomes' index of dead jobs.
    pub fn dead(&self) -> &Relation {
        index(&self.dead, self.oids.outcome_dead)
    }

    /// The index of groups, see `parked`.
    pub fn by_group(&self) -> &Relation {
        let open = || (Relation::read(self.oids.parked), Relation::read_index(self.oids.parked_index));
        &self.by_group.get_or_init(open).1
    }
}

fn index(cell: &OnceCell<Relation>, oid: Oid) -> &Relation {
    cell.get_or_init(|| Relation::read_index(oid))
}
