//! Moves a batch of attempts to another segment: leaves a mark for each, and copies its row, claim and notes.
//!
//! Not responsible for which attempts are moved (`move_batch`), nor for how a session follows a mark (`log::attempt`).
//!
//! Invariant: a waiting attempt leaves a claim of kind `m` behind, a running one an outcome of kind `m`. So the key
//! that decides between two workers, or two ends, also decides between them and the move. No session that acts on an
//! attempt needs to be kept out. A session that meets the mark follows it.

use crate::duty::serve_cancels;
use crate::duty::storage::move_batch::{self, Batch};
use crate::error::Result;
use crate::job::after;
use crate::log::attempt::{self, Attempt, New};
use crate::log::edge::Edges;
use crate::log::reader::Reader;
use crate::log::segment::Target;
use crate::log::{claim, note, outcome};
use crate::pg::fault::fault;
use crate::pg::memory;
use crate::pg::row::{Row, Tid};
use crate::transaction::{self, SegmentStep, Step};

/// After this many bytes of notes, the other running attempts are left for a later transaction.
const MAX_NOTE_BYTES: usize = 1 << 20;

/// Moves the attempts of a batch. Returns the first id that must be left for later.
pub fn move_all(batch: &Batch) -> Result<Option<i64>> {
    if batch.is_empty() {
        return Ok(None);
    }
    fault!("move.chosen");
    let (segment, target) = (batch.segment, Target::of(batch.target));
    let mut moving = Moving { segment, target, reader: Reader::new(), left: None };
    let waiting = moving.move_waiting(&batch.waiting)?;
    let places = moving.move_running(&batch.running)?;
    moving.keep_payloads(&batch.payloads);
    fault!("move.written");
    let running = places.len() as i64;
    transaction::record_all(places.into_iter());
    transaction::record(SegmentStep::Counted { segment: batch.target, attempts: running, ended: 0 });
    transaction::record(SegmentStep::Counted { segment, attempts: 0, ended: waiting as i64 + running });
    Ok(moving.left)
}

/// The log in which attempts of one state leave their marks.
trait MarkLog {
    /// Inserts the mark of an attempt. `None`: the attempt is not in this state any more, or an open transaction is
    /// changing it.
    fn mark(&self, id: i64) -> Option<Tid>;

    /// Takes a mark back that this transaction has made.
    fn take_back(&self, mark: Tid);

    /// Returns the notes that the attempt takes along. `None`: an open transaction is writing one, or one says that the
    /// attempt must stay.
    fn notes(&self, attempt: &Attempt) -> Result<Option<Vec<Row>>>;
}

/// The claims: waiting attempts leave their marks there.
struct Claims {
    log: claim::Writer,
    /// `None`: the segment has no edges.
    edges: Option<Edges>,
}

impl Claims {
    fn open(segment: u8) -> Self {
        Self { log: claim::Writer::open(segment), edges: Edges::open(segment) }
    }
}

impl MarkLog for Claims {
    fn mark(&self, id: i64) -> Option<Tid> {
        self.log.mark_moved(id)
    }

    fn take_back(&self, mark: Tid) {
        self.log.take_back(mark);
    }

    fn notes(&self, attempt: &Attempt) -> Result<Option<Vec<Row>>> {
        let edges = match &self.edges {
            Some(edges) if after::is_held(attempt.lane())? => edges.rows_settled(attempt.id()),
            _ => Some(Vec::new()),
        };
        let must_stay = move_batch::has_rerun(attempt) || serve_cancels::is_requested(attempt);
        Ok(edges.filter(|_| !must_stay))
    }
}

/// The outcomes of a segment: running attempts leave their marks there.
struct Outcomes {
    log: outcome::Writer,
    segment: u8,
}

impl MarkLog for Outcomes {
    fn mark(&self, id: i64) -> Option<Tid> {
        self.log.mark_moved(id)
    }

    fn take_back(&self, mark: Tid) {
        self.log.take_back(mark);
    }

    fn notes(&self, attempt: &Attempt) -> Result<Option<Vec<Row>>> {
        Ok(note::all_settled(self.segment, attempt.id()))
    }
}

/// The rows to insert for attempts that have left their marks.
struct Copies {
    attempts: Vec<New>,
    notes: Vec<Row>,
    /// The stored bytes of the notes.
    note_bytes: usize,
}

impl Copies {
    /// Returns a value with room for this many attempts.
    fn of(attempts: usize) -> Self {
        Self { attempts: memory::list(attempts), notes: Vec::new(), note_bytes: 0 }
    }
}

/// The move of one batch.
struct Moving {
    segment: u8,
    target: Target,
    reader: Reader,
    /// The first id that is left for later.
    left: Option<i64>,
}

impl Moving {
    /// Moves waiting attempts. Returns how many have moved.
    fn move_waiting(&mut self, waiting: &[Attempt]) -> Result<usize> {
        // A session that claims one of them meanwhile may give up and drop the entry that it has taken. So after a
        // rollback the frontier must look again.
        let mut lanes: Vec<i32> = waiting.iter().map(|attempt| attempt.lane()).collect();
        lanes.sort_unstable();
        lanes.dedup();
        transaction::record_all(lanes.into_iter().map(|lane| Step::Unseen { lane }));
        let mut copies = Copies::of(waiting.len());
        if !waiting.is_empty() {
            let claims = Claims::open(self.segment);
            for attempt in waiting {
                self.mark(&claims, attempt, &mut copies)?;
            }
        }
        fault!("move.marked");
        attempt::append_moved(&self.target, &copies.attempts);
        note::copy(self.target.home.segment, &copies.notes);
        Ok(copies.attempts.len())
    }

    /// Moves running attempts with their claims. Returns the steps that tell memory their new places.
    fn move_running(&mut self, running: &[(Attempt, Row)]) -> Result<Vec<SegmentStep>> {
        if running.is_empty() {
            return Ok(Vec::new());
        }
        let segment = self.target.home.segment;
        let outcomes = Outcomes { log: outcome::Writer::open(self.segment), segment: self.segment };
        let (mut copies, mut claims) = (Copies::of(running.len()), Vec::new());
        for (attempt, claim) in running {
            if copies.note_bytes > MAX_NOTE_BYTES {
                self.leave(attempt.id());
            } else if self.mark(&outcomes, attempt, &mut copies)? {
                claims.push(claim);
            }
        }
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let tids = attempt::insert_quietly(&self.target, &copies.attempts);
        claim::Writer::open(segment).copy(&claims);
        note::copy(segment, &copies.notes);
        let relocated = |(new, tid): (&New, Tid)| SegmentStep::Relocated { id: new.id, place: tid.place(segment) };
        Ok(copies.attempts.iter().zip(tids).map(relocated).collect())
    }

    /// Copies the payloads that other attempts need. An earlier pass that was interrupted may have kept some already.
    fn keep_payloads(&mut self, payloads: &[Attempt]) {
        let segment = self.target.home.segment;
        let new = payloads.iter().filter(|attempt| !self.reader.has_row(segment, attempt.id()));
        let kept: Vec<New> = new.map(Attempt::payload_only).collect();
        attempt::insert_quietly(&self.target, &kept);
    }

    /// Leaves the mark of an attempt in `log`, and adds its row and notes to `copies`. Returns false if the attempt is
    /// left for later: it has changed meanwhile, or must stay where its notes are.
    fn mark(&mut self, log: &impl MarkLog, attempt: &Attempt, copies: &mut Copies) -> Result<bool> {
        let Some(mark) = log.mark(attempt.id()) else {
            self.leave(attempt.id());
            return Ok(false);
        };
        // The notes are read after the mark was left: a session that writes a note looks for the mark after it has
        // written. So one of the two sees the other. See `rerun::ask`, `hold::write_note` and `hold::note_held`.
        let Some(notes) = log.notes(attempt)? else {
            log.take_back(mark);
            self.leave(attempt.id());
            return Ok(false);
        };
        copies.attempts.push(self.with_payload(attempt));
        copies.note_bytes += notes.iter().map(note::size).sum::<usize>();
        copies.notes.extend(notes);
        Ok(true)
    }

    fn leave(&mut self, id: i64) {
        self.left = Some(self.left.map_or(id, |known| known.min(id)));
    }

    /// Returns a copy of the row. If its payload lies in another row, the copy gets the payload, because it may outlive
    /// that row.
    fn with_payload(&mut self, attempt: &Attempt) -> New {
        let own = attempt.copy();
        if own.payload_of.is_none() {
            return own;
        }
        let payload = self.reader.payload(attempt, |payload| payload.map(crate::pg::jsonb::copy));
        New { payload_of: None, payload, ..own }
    }
}
