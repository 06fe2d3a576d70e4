//! Finds attempts: by the place that the frontier has, by id, and by job.
//!
//! Responsible for following a row that has moved to another segment meanwhile. Not responsible for the row
//! (`attempt`).
//!
//! Invariant: a segment is opened before its generation is read. So as long as the reader lives, an attempt is still
//! where it was found, or a mark there says that it has moved.

use pg_queue_core::frontier::Ready;
use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog;
use crate::catalog::tables::attempt as columns;
use crate::log::attempt::Attempt;
use crate::log::segment::{self, Home};
use crate::log::{claim, outcome};
use crate::pg::datum;
use crate::pg::row::Tid;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::segments::{OLD, State, Word};

/// How often to search for a row that may have moved during the search.
const MAX_SEARCHES: usize = 4;

/// Reads attempts. Keeps the opened tables until it is dropped.
pub struct Reader {
    tables: [Option<Relation>; id::SEGMENTS],
    pkeys: [Option<Relation>; id::SEGMENTS],
}

impl Reader {
    /// Returns a reader with nothing open.
    pub fn new() -> Self {
        Self { tables: std::array::from_fn(|_| None), pkeys: std::array::from_fn(|_| None) }
    }

    /// Opens a segment and then reads its generation. Unless the segment was free, the generation stays the same as
    /// long as it is open.
    fn table(&mut self, segment: u8) -> (&Relation, Home) {
        let table =
            self.tables[segment as usize].get_or_insert_with(|| Relation::read(catalog::segment(segment).attempt));
        (table, Home::now(segment))
    }

    /// The table with its key, which most calls do not need.
    fn keyed(&mut self, segment: u8) -> (&Relation, &Relation, Home) {
        let (_, home) = self.table(segment);
        let open = || Relation::read_index(catalog::segment(segment).attempt_pkey);
        self.pkeys[segment as usize].get_or_insert_with(open);
        match (&self.tables[segment as usize], &self.pkeys[segment as usize]) {
            (Some(table), Some(pkey)) => (table, pkey, home),
            _ => unreachable!("both were opened above"),
        }
    }

    /// The table with its key and its index by job, opened in the order that `Relation::read_indexes` keeps.
    fn keyed_by_job(&mut self, segment: u8) -> (&Relation, &Relation, Relation, Home) {
        let oids = catalog::segment(segment);
        self.pkeys[segment as usize] = None;
        let (_, home) = self.table(segment);
        let [pkey, by_job] = Relation::read_indexes([oids.attempt_pkey, oids.attempt_job]);
        let pkey = self.pkeys[segment as usize].insert(pkey);
        match &self.tables[segment as usize] {
            Some(table) => (table, pkey, by_job, home),
            None => unreachable!("it was opened above"),
        }
    }

    /// Returns the attempt of a `Ready`: at its place, or by its id if the row has moved. It may move at any moment: an
    /// insert about it finds that by its key.
    pub fn fetch(&mut self, ready: &Ready) -> Option<Attempt> {
        if !self.is_of_interest(ready.place.segment) {
            return self.by_id(ready.id);
        }
        let (table, home) = self.table(ready.place.segment);
        match table.fetch(Tid::of(ready.place), home.generation) {
            Some(row) if row.i64(columns::ID) == ready.id && row.i32(columns::LANE) != 0 => {
                Some(Attempt::new(row, home))
            }
            _ => self.by_id(ready.id),
        }
    }

    /// As `fetch`, but returns an attempt that has moved from its new place. A claim in its old place would fail and
    /// leave a dead row.
    pub fn fetch_now(&mut self, ready: &Ready) -> Option<Attempt> {
        let found = self.fetch(ready)?;
        if self.has_moved(&found) { self.by_id(ready.id) } else { Some(found) }
    }

    /// Returns whether a segment has rows, and indexes that a crash has not left half emptied.
    fn is_whole(&mut self, segment: u8) -> bool {
        // The order matters: opening takes a lock under which no emptying begins.
        self.table(segment).0.blocks() > 0 && segment::word(segment).state() != State::Emptying
    }

    /// Returns the row with this id in a segment: an attempt, only its payload, or the trace of an attempt that has
    /// moved.
    fn at(&mut self, segment: u8, attempt: i64) -> Option<Attempt> {
        let is_whole = self.is_whole(segment);
        let (table, pkey, home) = self.keyed(segment);
        if !is_whole {
            return None;
        }
        let mut scan = table.scan(pkey, &[Key::eq_i64(1, attempt)], Snapshot::Now);
        scan.next()?;
        Some(Attempt::new(scan.row(), home))
    }

    /// Returns the first attempt of a job, if its row is still in the segment in which it was inserted.
    pub fn first(&mut self, job_id: i64) -> Option<Attempt> {
        let mut segments: [u8; OLD as usize] = std::array::from_fn(|segment| segment as u8);
        // The open segment comes first, because the row is most probably there.
        segments.sort_unstable_by_key(|&segment| segment::word(segment).state() != State::Open);
        segments.into_iter().find_map(|segment| {
            let found =
                if self.is_of_interest(segment) { self.at(segment, id::first_attempt(job_id, segment)) } else { None };
            found.filter(|attempt| !attempt.is_payload_only())
        })
    }

    /// Returns whether a segment has a row with this id, of any kind.
    pub fn has_row(&mut self, segment: u8, attempt: i64) -> bool {
        self.at(segment, attempt).is_some()
    }

    /// Returns the row that holds the payload of an attempt, even of one that has ended or moved.
    pub fn payload_in(&mut self, holder: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(holder) else { return None };
        let mut segments = [born, OLD, OLD + 1];
        // Segments that history has come last, because they may be emptied at any moment.
        segments.sort_by_key(|&segment| !self.is_of_interest(segment));
        // The trace of a moved attempt may refer to a payload that the attempt has taken along.
        let holds = |attempt: &Attempt| attempt.payload_of().is_none();
        segments.into_iter().find_map(|segment| self.at(segment, holder).filter(holds))
    }

    /// Returns any row of an attempt that says where its payload is. Rows that only hold a payload do not.
    pub fn trace(&mut self, attempt: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(attempt) else { return None };
        let mut segments = [born, OLD, OLD + 1];
        segments.sort_by_key(|&segment| !self.is_of_interest(segment));
        segments.into_iter().find_map(|segment| self.at(segment, attempt).filter(|found| !found.is_payload_only()))
    }

    /// Returns whether a segment may have attempts that are not in history yet. Searches skip the other segments or
    /// read them last, because a session could wait for their emptying, or see what a crash during that has left.
    fn is_of_interest(&self, segment: u8) -> bool {
        !matches!(segment::word(segment).state(), State::Free | State::Copied | State::Emptying)
    }

    /// Returns the halves of old. If they change during a search, the search may have missed an attempt.
    fn old_words(&self) -> [Word; 2] {
        [OLD, OLD + 1].map(segment::word)
    }

    /// Returns whether an attempt has moved since it was found.
    fn has_moved(&self, attempt: &Attempt) -> bool {
        let segment = attempt.home.segment;
        segment::word(segment).state() >= State::Moving
            && (claim::has_moved(segment, attempt.id()) || outcome::has_moved(segment, attempt.id()))
    }

    /// Returns the attempt with this id: from the segment in which it was inserted, else from one of the halves of old.
    pub fn by_id(&mut self, attempt: i64) -> Option<Attempt> {
        let id::Kind::Attempt(born) = id::kind(attempt) else { return None };
        for _ in 0..MAX_SEARCHES {
            let (mut moved, words) = (false, self.old_words());
            for segment in [born, OLD, OLD + 1] {
                if !self.is_of_interest(segment) {
                    continue;
                }
                match self.at(segment, attempt) {
                    Some(found) if found.is_payload_only() => {}
                    Some(found) if self.has_moved(&found) => moved = true,
                    Some(found) => return Some(found),
                    None => {}
                }
            }
            if !moved && words == self.old_words() {
                break;
            }
        }
        None
    }

    /// Calls `use_it` with the payload of an attempt. `None` only if the row with it is gone.
    pub fn payload<T>(&mut self, attempt: &Attempt, use_it: impl FnOnce(Option<Datum>) -> T) -> T {
        let Some(holder) = attempt.payload_of() else { return use_it(attempt.payload()) };
        // The payload is fetched, because its segment may be emptied as soon as it is closed here.
        let found = self.payload_in(holder);
        use_it(found.as_ref().and_then(|holder| holder.payload()).map(datum::fetched))
    }

    /// Returns the ids of all attempts of a job that have rows in the segments.
    pub fn all_ids(&mut self, job_id: i64) -> Vec<i64> {
        let mut ids = Vec::new();
        for segment in 0..id::SEGMENTS as u8 {
            for attempt in self.of_job(segment, job_id, Snapshot::Now) {
                if !ids.contains(&attempt.id()) {
                    ids.push(attempt.id());
                }
            }
        }
        ids
    }

    /// Returns a segment's rows of a job's attempts, including rows with only a payload.
    pub fn of_job(&mut self, segment: u8, job_id: i64, snapshot: Snapshot) -> Vec<Attempt> {
        if !self.is_whole(segment) {
            return Vec::new();
        }
        let (table, pkey, by_job, home) = self.keyed_by_job(segment);
        let mut found = Vec::new();
        // First attempts share the job's count. If a first attempt was inserted in another segment, it has moved to
        // old.
        for born in (0..id::SEGMENTS as u8).filter(|&born| born == segment || segment >= OLD) {
            let mut scan = table.scan(pkey, &[Key::eq_i64(1, id::first_attempt(job_id, born))], snapshot);
            if scan.next().is_some() {
                found.push(Attempt::new(scan.row(), home));
            }
        }
        let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], snapshot);
        while scan.next().is_some() {
            found.push(Attempt::new(scan.row(), home));
        }
        drop(scan);
        found
    }

    /// Returns the newest attempt of a job that was not removed yet, and whether an open transaction is making a newer
    /// one.
    pub fn newest(&mut self, job_id: i64) -> (Option<Attempt>, bool) {
        let mut last = (None, false);
        for _ in 0..MAX_SEARCHES {
            let words = self.old_words();
            let (newest, in_progress, moved) = self.search_newest(job_id);
            let is_behind = moved > newest.as_ref().map_or(0, |found| id::count(found.id()));
            last = (newest, in_progress);
            if !is_behind && words == self.old_words() {
                break;
            }
        }
        last
    }

    /// Also returns the count of the newest attempt that has moved since it was seen.
    fn search_newest(&mut self, job_id: i64) -> (Option<Attempt>, bool, i64) {
        let (mut newest, mut moved): (Option<Attempt>, i64) = (None, 0);
        // Rows of open transactions, and all other rows. An attempt that has rows of both kinds is moving.
        let (mut open, mut known): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
        for segment in 0..id::SEGMENTS as u8 {
            if !self.is_of_interest(segment) {
                continue;
            }
            if self.table(segment).0.blocks() == 0 {
                continue;
            }
            let (table, _, by_job, home) = self.keyed_by_job(segment);
            let mut found = Vec::new();
            {
                let mut scan = table.scan(&by_job, &[Key::eq_i64(1, job_id)], Snapshot::Dirty);
                while scan.next().is_some() {
                    if scan.is_in_progress() {
                        open.push(scan.columns(1).0[columns::ID].value() as i64);
                    } else {
                        found.push(Attempt::new(scan.row(), home));
                    }
                }
            }
            found.extend(self.at(segment, id::first_attempt(job_id, segment)));
            // The first attempt may have been inserted in another segment and have moved to old.
            if segment >= OLD {
                let born = (0..id::SEGMENTS as u8).filter(|&born| born != segment);
                for born in born {
                    found.extend(self.at(segment, id::first_attempt(job_id, born)));
                }
            }
            known.extend(found.iter().map(|attempt| attempt.id()));
            for attempt in found.into_iter().filter(|attempt| !attempt.is_payload_only()) {
                let count = id::count(attempt.id());
                if self.has_moved(&attempt) {
                    moved = moved.max(count);
                } else if newest.as_ref().is_none_or(|known| id::count(known.id()) <= count) {
                    newest = Some(attempt);
                }
            }
        }
        (newest, open.iter().any(|id| !known.contains(id)), moved)
    }
}
