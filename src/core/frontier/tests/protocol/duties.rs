//! The background worker. It moves living attempts out of a closed segment and empties it. It serves late requests,
//! cancels attempts that no worker may run, and ends leases. After a crash it reads running attempts into memory.

use super::data::{At, Batch, Duty, End, INSTANCE, Kind, Log, OLD, Pc, Phase, Probe, Row, State, Step, Then, Why};
use super::scenario::{Fault, Scenario};
use super::world::World;
use crate::frontier;

impl World {
    /// The work that is due for the idle worker.
    pub fn duties(&self, scenario: &Scenario, fault: Option<Fault>) -> Vec<Duty> {
        let mut due = Vec::new();
        if scenario.moves {
            let Segment { state, producers, users } = Segment::of(self);
            match state {
                State::Open => due.push(Duty::Close),
                State::Closed if !producers || fault == Some(Fault::MovedBesideProducer) => due.push(Duty::Move),
                State::Drained if !users => due.push(Duty::Empty),
                _ => {}
            }
        }
        if self.memory.cancels.must_scan || !self.memory.cancels.ids.is_empty() {
            due.push(Duty::ServeCancels);
        }
        if !self.memory.is_recovered {
            due.push(Duty::Recover);
        }
        let mut ids: Vec<(i64, bool)> = self.memory.entries().map(|entry| (entry.id, entry.awaits_cancel())).collect();
        ids.sort_unstable();
        for (id, is_doomed) in ids {
            let is_running = self.memory.entry(id).is_some_and(|entry| entry.state == frontier::State::Running);
            if is_doomed {
                due.push(Duty::CancelUnclaimed(id));
            } else if is_running && self.expiries_left > 0 {
                due.push(Duty::Expire(id));
            }
        }
        due
    }

    /// Begins a duty. A duty that has only one step is done here.
    pub fn begin_duty(&mut self, duty: Duty) {
        let worker = self.worker();
        let pc = match duty {
            Duty::Close => {
                self.segments[0].state = State::Closed;
                self.segments[1].state = State::Open;
                return;
            }
            // `empty::step`
            Duty::Empty => {
                self.rows.retain(|row| row.at.segment != 0);
                self.segments[0].generation += 1;
                self.segments[0].state = State::Free;
                self.check_all();
                return;
            }
            Duty::Move => Pc::MoveWalk(Batch::default()),
            Duty::ServeCancels if self.memory.cancels.must_scan => Pc::ScanTake,
            Duty::ServeCancels => Pc::ServeLook(self.memory.cancels.ids[0]),
            Duty::CancelUnclaimed(id) | Duty::Expire(id) => {
                let Some(entry) = self.memory.entry(id) else { return };
                let at = At::of(&entry.ready());
                if duty == Duty::CancelUnclaimed(id) {
                    Pc::Doomed(at)
                } else {
                    self.expiries_left -= 1;
                    Pc::Hold(at, End::Fail, false)
                }
            }
            Duty::Recover => Pc::RecoverNext((0, 0)),
        };
        self.clients[worker].phase = Phase::Open;
        self.go(worker, pc);
    }

    /// Does one step of a duty.
    pub fn step_duty(&mut self, session: usize, pc: Pc, fault: Option<Fault>) {
        match pc {
            Pc::ScanTake => {
                self.memory.cancels.must_scan = false;
                self.go(session, Pc::ScanRead);
            }
            // `Kind::todo`
            Pc::ScanRead => {
                let noted =
                    self.seen(session).filter(|row| row.kind == Kind::CancelNote && self.is_inhabited(row.at.segment));
                let mut noted: Vec<i64> = noted.map(|row| row.at.id).collect();
                noted.dedup();
                for id in noted {
                    if self.by_id(session, id).is_some_and(|at| self.owed(session, at, fault).is_some()) {
                        self.memory.cancels.add(id, fault);
                    }
                }
                // Found requests are served immediately: there may be more than memory has room for.
                let first = self.memory.cancels.ids.first().copied();
                self.go(session, first.map_or(Pc::Commit, Pc::ServeLook));
            }
            // `serve_cancels::serve`
            Pc::ServeLook(id) => {
                let about = self.by_id(session, id).filter(|&at| self.is_noted(session, at));
                let next = match about.and_then(|at| self.owed(session, at, fault)) {
                    Some(newest) => Pc::TakeOne(newest, self.generation(newest.segment), Why::Serve(id)),
                    None => Pc::ServeForget(id),
                };
                self.go(session, next);
            }
            Pc::ServeForget(id) => {
                self.memory.cancels.ids.retain(|&known| known != id);
                self.go(session, Pc::Commit);
            }
            // `expire::cancel_unclaimed`
            Pc::Doomed(at) => match self.fetch(session, at) {
                Some(at) => self.go(session, Pc::TakeOne(at, self.generation(at.segment), Why::Doomed)),
                None => {
                    self.forget_entry(at.id, fault);
                    self.go(session, Pc::Commit);
                }
            },
            // `recover::recover_segment`
            Pc::RecoverNext(cursor) => {
                let is_next = |row: &&Row| {
                    row.kind == Kind::Claim
                        && (row.at.segment, row.at.id) > cursor
                        && self.find(session, Log::Outcomes, row.at).is_none()
                        && self.memory.entry(row.at.id).is_none()
                };
                let next = self.seen(session).filter(is_next).map(|row| row.at).min();
                match next {
                    Some(at) => self.go(session, Pc::RecoverRead(at.id, Then::Duty((at.segment, at.id)))),
                    None => {
                        self.memory.is_recovered = true;
                        self.go(session, Pc::Commit);
                    }
                }
            }
            pc => self.step_move(session, pc, fault),
        }
    }

    fn is_inhabited(&self, segment: u8) -> bool {
        matches!(self.segments[segment as usize].state, State::Open | State::Closed)
    }

    /// `serve_cancels::owed`.
    fn owed(&mut self, session: usize, about: At, fault: Option<Fault>) -> Option<At> {
        let mut newest = self.by_id(session, about.id)?;
        while let Some(outcome) = self.find(session, Log::Outcomes, newest) {
            let Kind::Failed(Some(next)) = outcome else { return None };
            newest = self.by_id(session, next)?;
        }
        let is_told = self.find(session, Log::Claims, newest).is_some() && self.is_noted(session, newest);
        if is_told && fault != Some(Fault::NoteTakenForTold) {
            self.memory.with(|frontier, _| frontier.running.request_cancel(INSTANCE, newest.id));
        }
        (!is_told).then_some(newest)
    }

    /// `serve_cancels::is_requested`.
    fn is_requested(&mut self, session: usize, about: At, fault: Option<Fault>) -> bool {
        let request = self.settled_notes(session, about);
        if request == Some(true) {
            self.memory.cancels.add(about.id, fault);
        }
        request != Some(false)
    }

    /// `serve_cancels::may_be_owed`.
    fn may_be_owed(&mut self, session: usize, about: At, fault: Option<Fault>) -> bool {
        match self.settled_notes(session, about) {
            None => true,
            Some(false) => false,
            Some(true) => {
                let is_owed = self.owed(session, about, fault).is_some();
                if is_owed {
                    self.memory.cancels.add(about.id, fault);
                }
                is_owed
            }
        }
    }

    // ---- `duty::storage::move_living` ----

    fn step_move(&mut self, session: usize, pc: Pc, fault: Option<Fault>) {
        match pc {
            Pc::MoveWalk(batch) => self.look_at_next(session, batch, fault),
            // `Batch::go`: the marks of waiting attempts, then of running ones, one by one
            Pc::MoveMark(mut batch) => {
                if !batch.waiting.is_empty() {
                    let at = batch.waiting.remove(0);
                    let is_marked = self.probe(session, Log::Claims, at) == Probe::Absent
                        && self.insert_unique(session, Log::Claims, at, Kind::MovedWaiting);
                    if is_marked {
                        return self.go(session, Pc::MoveLook(batch, at));
                    }
                    batch.has_left = true;
                } else if !batch.running.is_empty() {
                    let at = batch.running.remove(0);
                    // With the fault, the notes are read before the mark.
                    let notes_first = fault == Some(Fault::NotesReadBeforeMark);
                    let had = notes_first.then(|| self.settled_notes(session, at));
                    if had == Some(None) {
                        batch.has_left = true;
                    } else if notes_first {
                        let note = had.flatten().unwrap_or(false);
                        return self.go(session, Pc::MoveNotes(Batch { has_note: Some(note), ..batch }, at));
                    } else if self.mark_running(session, at) {
                        return self.go(session, Pc::MoveNotes(batch, at));
                    } else {
                        batch.has_left = true;
                    }
                } else {
                    return self.go(session, Pc::MoveCopy(batch));
                }
                self.go(session, Pc::MoveMark(batch));
            }
            // `serve_cancels::is_requested`, after the mark
            Pc::MoveLook(mut batch, at) => {
                if fault != Some(Fault::NoteOfWaitingLeftBehind) && self.is_requested(session, at, fault) {
                    self.take_back(session, at, Kind::MovedWaiting);
                    batch.has_left = true;
                } else {
                    batch.marked.push(at);
                }
                self.go(session, Pc::MoveMark(batch));
            }
            // `note::all_settled`, after the mark; and the copies
            Pc::MoveNotes(mut batch, at) => {
                let (is_marked, found) = match batch.has_note.take() {
                    Some(note) => (self.mark_running(session, at), Some(note)),
                    None => (true, self.settled_notes(session, at)),
                };
                match found.filter(|_| is_marked) {
                    Some(is_noted) => {
                        let there = At { segment: OLD, ..at };
                        self.lock(session, OLD);
                        self.insert(session, there, Kind::Attempt);
                        self.insert(session, there, Kind::Claim);
                        if is_noted {
                            self.insert(session, there, Kind::CancelNote);
                        }
                        self.record(session, Step::Relocated(there));
                    }
                    None => {
                        if is_marked {
                            self.take_back(session, at, Kind::MovedRunning);
                        }
                        batch.has_left = true;
                    }
                }
                self.go(session, Pc::MoveMark(batch));
            }
            // `attempt::append_moved`
            Pc::MoveCopy(batch) => {
                for &at in &batch.marked {
                    let there = At { segment: OLD, ..at };
                    self.lock(session, OLD);
                    self.insert(session, there, Kind::Attempt);
                    self.record(session, Step::Enqueued(there, true));
                }
                if !batch.has_left {
                    self.record(session, Step::Drained);
                }
                self.go(session, Pc::Commit);
            }
            _ => unreachable!("no step of the worker"),
        }
    }

    fn mark_running(&mut self, session: usize, at: At) -> bool {
        self.probe(session, Log::Outcomes, at) == Probe::Absent
            && self.insert_unique(session, Log::Outcomes, at, Kind::MovedRunning)
    }

    /// `note::all_settled`: true if there is a note. `None`: an open transaction is writing one.
    fn settled_notes(&self, session: usize, at: At) -> Option<bool> {
        let is_it = |row: &&Row| row.kind == Kind::CancelNote && (row.at.segment, row.at.id) == (at.segment, at.id);
        if self.open_rows(session).any(|row| is_it(&row)) {
            return None;
        }
        Some(self.is_noted(session, at))
    }

    /// `Batch::take`: the next attempt of the segment.
    fn look_at_next(&mut self, session: usize, mut batch: Batch, fault: Option<Fault>) {
        let is_next = |row: &&Row| row.kind == Kind::Attempt && row.at.segment == 0 && row.at.id > batch.looked_to;
        let Some(at) = self.seen(session).filter(is_next).map(|row| row.at).min_by_key(|at| at.id) else {
            self.lock(session, 0);
            if !batch.waiting.is_empty() {
                self.record(session, Step::Unseen);
            }
            return self.go(session, Pc::MoveMark(batch));
        };
        batch.looked_to = at.id;
        let claim = self.probe(session, Log::Claims, at);
        let outcome = self.probe(session, Log::Outcomes, at);
        match (claim, outcome) {
            (Probe::InProgress | Probe::Moving, _) | (_, Probe::InProgress | Probe::Moving) => {
                batch.has_left |= fault != Some(Fault::OpenClaimTakenForSettled);
            }
            (_, Probe::Committed) => {
                let goes_on = matches!(self.find(session, Log::Outcomes, at), Some(Kind::Failed(Some(_))));
                if goes_on && fault != Some(Fault::NoteOfEndedLeftBehind) {
                    batch.has_left |= self.may_be_owed(session, at, fault);
                }
            }
            (_, Probe::Moved) | (Probe::Moved, Probe::Absent) => {}
            (Probe::Committed, Probe::Absent) => {
                if self.find(session, Log::Claims, at) == Some(Kind::Claim) {
                    batch.running.push(at);
                }
            }
            (Probe::Absent, Probe::Absent) => batch.waiting.push(at),
        }
        self.go(session, Pc::MoveWalk(batch));
    }
}

/// The state of the segment that is reclaimed, as the duties need it.
struct Segment {
    state: State,
    producers: bool,
    users: bool,
}

impl Segment {
    fn of(world: &World) -> Self {
        let segment = &world.segments[0];
        Self { state: segment.state, producers: segment.producers != 0, users: segment.users != 0 }
    }
}
