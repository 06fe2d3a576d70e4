//! How a session ends an attempt that it has claimed, or the worker one whose lease has expired: `job::hold`,
//! `job::complete`, `job::fail`. If memory does not know the attempt, also `job::recover`.

use super::data::{At, End, Held, INSTANCE, Kind, LANE, Log, Pc, Probe, Row, Step, Then, Why};
use super::scenario::{Fault, Scenario};
use super::world::World;
use crate::frontier::{self, Running};

impl World {
    /// Refuses the call: the session no longer has the attempt.
    fn refuse(&mut self, scenario: &Scenario, session: usize, id: i64) {
        self.clients[session].held.retain(|at| at.id != id);
        self.finish(scenario, session);
    }

    /// Does one step of an end. `has_given_up`: the session has stopped waiting for a move.
    pub fn step_end(
        &mut self,
        scenario: &Scenario,
        session: usize,
        pc: Pc,
        has_given_up: bool,
        fault: Option<Fault>,
    ) -> bool {
        match pc {
            Pc::Hold(at, end, has_asked) => self.hold(scenario, session, at, end, has_asked),
            Pc::Outcome(held, end) => {
                let home = (held.at.segment, held.generation);
                let is_there = self.open_home(session, home, fault)
                    && self.insert_unique(session, Log::Outcomes, held.at, Kind::Completed);
                if is_there {
                    self.clients[session].held.retain(|at| at.id != held.at.id);
                    self.finish(scenario, session);
                } else {
                    self.go(session, Pc::Resolve(held, end));
                }
            }
            // `hold::check_not_ended`
            Pc::NotEnded(held, end) => {
                let next = if self.probe_held(session, &held, fault) == Probe::Absent {
                    Pc::Notes(held)
                } else {
                    Pc::Resolve(held, end)
                };
                self.go(session, next);
            }
            Pc::Resolve(held, end) => self.resolve(scenario, session, held, end, fault),
            Pc::FollowEnd(held, end) => {
                if self.probe_held(session, &held, fault) == Probe::Moving {
                    if !has_given_up {
                        return false;
                    }
                    self.release_hold(session, held.at.id);
                    self.refuse(scenario, session, held.at.id);
                    return true;
                }
                if has_given_up {
                    return false;
                }
                self.follow_end(scenario, session, held, end, fault);
            }
            // `fail::end_badly`
            Pc::Notes(held) => {
                if self.fetch(session, held.at).is_none() {
                    self.unrecord(session, held.at.id);
                    self.forget_entry(held.at.id, fault);
                    self.refuse(scenario, session, held.at.id);
                } else if held.is_cancelled || self.is_noted(session, held.at) {
                    self.go(session, Pc::Last(held, Kind::Cancelled));
                } else {
                    self.go(session, Pc::Successor(held));
                }
            }
            Pc::Successor(held) => {
                let segment = self.young();
                self.lock(session, segment);
                self.segments[segment as usize].producers |= 1 << session;
                let next = At { segment, id: self.fresh_id(segment), job: held.at.job };
                self.insert(session, next, Kind::Attempt);
                self.record(session, Step::Enqueued(next, false));
                self.go(session, Pc::Last(held, Kind::Failed(Some(next.id))));
            }
            Pc::Last(held, kind) => return self.insert_last(scenario, session, held, kind, has_given_up, fault),
            pc => self.recover_step(scenario, session, pc, fault),
        }
        true
    }

    /// `hold::hold_claimed`.
    fn hold(&mut self, scenario: &Scenario, session: usize, at: At, end: End, has_asked: bool) {
        let answer = self
            .memory
            .with(|frontier, root| frontier.running.end(root, INSTANCE, at.id, session as u32, i64::MAX, |_| true));
        let held = match answer {
            frontier::Hold::Yours(entry) => {
                self.record(session, Step::Ending(at.id));
                let at = At { segment: entry.place.segment, ..at };
                Held { at, generation: self.generation(at.segment), is_cancelled: entry.cancel != 0 }
            }
            frontier::Hold::Taken(_) | frontier::Hold::Busy(_) | frontier::Hold::Mine => {
                return self.refuse(scenario, session, at.id);
            }
            frontier::Hold::Denied(_) | frontier::Hold::Later => unreachable!("every session may end every attempt"),
            frontier::Hold::Unknown if !has_asked => {
                return self.go(session, Pc::RecoverRead(at.id, Then::Hold(at, end)));
            }
            frontier::Hold::Unknown => match self.by_id(session, at.id) {
                Some(at) => {
                    let is_cancelled = self.is_noted(session, at);
                    Held { at, generation: self.generation(at.segment), is_cancelled }
                }
                None => return self.refuse(scenario, session, at.id),
            },
        };
        let next = if end == End::Complete { Pc::Outcome(held, end) } else { Pc::NotEnded(held, end) };
        self.go(session, next);
    }

    /// `Outcomes::probe`.
    fn probe_held(&mut self, session: usize, held: &Held, fault: Option<Fault>) -> Probe {
        if !self.open_home(session, (held.at.segment, held.generation), fault) {
            return Probe::Moved;
        }
        self.probe(session, Log::Outcomes, held.at)
    }

    /// `hold::resolve_conflict`.
    fn resolve(&mut self, scenario: &Scenario, session: usize, held: Held, end: End, fault: Option<Fault>) {
        match self.probe_held(session, &held, fault) {
            Probe::Absent => {
                let next = if end == End::Complete { Pc::Outcome(held, end) } else { Pc::NotEnded(held, end) };
                self.go(session, next);
            }
            Probe::Moved | Probe::Moving => self.go(session, Pc::FollowEnd(held, end)),
            Probe::InProgress => {
                self.release_hold(session, held.at.id);
                self.refuse(scenario, session, held.at.id);
            }
            Probe::Committed => {
                self.unrecord(session, held.at.id);
                self.forget_entry(held.at.id, fault);
                self.refuse(scenario, session, held.at.id);
            }
        }
    }

    /// `hold::follow`, when the move has ended.
    fn follow_end(&mut self, scenario: &Scenario, session: usize, held: Held, end: End, fault: Option<Fault>) {
        let Some(at) = self.by_id(session, held.at.id) else {
            self.unrecord(session, held.at.id);
            self.forget_entry(held.at.id, fault);
            return self.refuse(scenario, session, held.at.id);
        };
        self.memory.with(|frontier, _| frontier.running.relocate(INSTANCE, at.id, at.place()));
        let held = Held { at, generation: self.generation(at.segment), ..held };
        let next = if end == End::Complete { Pc::Outcome(held, end) } else { Pc::NotEnded(held, end) };
        self.go(session, next);
    }

    /// `hold::release_hold`.
    fn release_hold(&mut self, session: usize, id: i64) {
        self.unrecord(session, id);
        self.memory.with(|frontier, root| frontier.running.undo_end(root, INSTANCE, id));
    }

    /// True if a session sees a note, where the attempt is, that a cancel was requested.
    pub fn is_noted(&self, session: usize, at: At) -> bool {
        let is_it = |row: &Row| row.kind == Kind::CancelNote && (row.at.segment, row.at.id) == (at.segment, at.id);
        self.seen(session).any(is_it)
    }

    /// `Outcomes::insert`.
    fn insert_last(
        &mut self,
        scenario: &Scenario,
        session: usize,
        held: Held,
        kind: Kind,
        has_given_up: bool,
        fault: Option<Fault>,
    ) -> bool {
        let is_valid = self.open_home(session, (held.at.segment, held.generation), fault);
        let seen = if is_valid { self.probe(session, Log::Outcomes, held.at) } else { Probe::Moved };
        if has_given_up && seen != Probe::Moving {
            return false;
        }
        match seen {
            Probe::Absent => {
                let is_new = self.insert_unique(session, Log::Outcomes, held.at, kind);
                assert!(is_new, "the key was free");
                let kind_held = &mut self.clients[session].held;
                kind_held.retain(|at| at.id != held.at.id);
                self.finish(scenario, session);
            }
            Probe::Moving if !has_given_up => return false,
            Probe::Moved => match self.by_id(session, held.at.id) {
                Some(at) => {
                    let held = Held { at, generation: self.generation(at.segment), ..held };
                    self.go(session, Pc::Last(held, kind));
                }
                None => self.go(session, Pc::Error),
            },
            Probe::Committed | Probe::InProgress | Probe::Moving => self.go(session, Pc::Error),
        }
        true
    }

    // ---- `job::recover` ----

    fn recover_step(&mut self, scenario: &Scenario, session: usize, pc: Pc, fault: Option<Fault>) {
        match pc {
            // `recover::recover`, or `recover_segment` for the duty; and the notes of `remember_claim`
            Pc::RecoverRead(id, then) => {
                let found = self.by_id(session, id).filter(|&at| {
                    self.find(session, Log::Outcomes, at).is_none()
                        && self.find(session, Log::Claims, at) == Some(Kind::Claim)
                });
                match found {
                    Some(at) => {
                        let is_cancelled = self.is_noted(session, at);
                        let generation = self.generation(at.segment);
                        self.go(session, Pc::RecoverAdd { at, generation, is_cancelled, then });
                    }
                    None => self.after_recover(scenario, session, id, false, then),
                }
            }
            Pc::RecoverAdd { at, generation, is_cancelled, then } => {
                if fault == Some(Fault::RecoveredWithoutLock) {
                    // With the fault, the entry is made without a lock.
                } else if !self.open_home(session, (at.segment, generation), fault) {
                    return self.go(session, Pc::RecoverRead(at.id, then));
                }
                self.remember(at, is_cancelled);
                if fault == Some(Fault::RecoveredWithStalePlace) {
                    self.after_recover(scenario, session, at.id, true, then);
                } else {
                    self.go(session, Pc::RecoverCheck { at, generation, then });
                }
            }
            // `remember_claim`, after the entry was added
            Pc::RecoverCheck { at, generation, then } => {
                let is_valid = self.generation(at.segment) == generation;
                match self.find(session, Log::Outcomes, at).filter(|_| is_valid) {
                    None if is_valid => {}
                    Some(outcome) if !outcome.is_mark() => self.forget_ended(at.id, fault),
                    _ => match self.by_id(session, at.id) {
                        Some(now) => {
                            self.memory.with(|frontier, _| frontier.running.relocate(INSTANCE, at.id, now.place()))
                        }
                        None => self.forget_entry(at.id, fault),
                    },
                }
                self.after_recover(scenario, session, at.id, true, then);
            }
            _ => unreachable!("no step of an end"),
        }
    }

    /// `Frontier::recover`.
    pub fn remember(&mut self, at: At, is_cancelled: bool) {
        let mut entry = Running::of(at.id);
        (entry.instance, entry.lane, entry.rank, entry.place) = (INSTANCE, LANE, at.rank(), at.place());
        (entry.lease, entry.longest, entry.deadline) = (1, 1, 100);
        (entry.state, entry.cancel) = (frontier::State::Running, u8::from(is_cancelled));
        self.memory.with(|frontier, root| frontier.recover(root, entry));
    }

    fn after_recover(&mut self, scenario: &Scenario, session: usize, id: i64, is_known: bool, then: Then) {
        match then {
            Then::Hold(at, end) if is_known => self.go(session, Pc::Hold(at, end, true)),
            Then::Hold(..) => self.refuse(scenario, session, id),
            // `cancel` does not use the result.
            Then::Note(at, generation) => {
                let why = Why::Cancel;
                self.go(session, Pc::Note { at, generation, about: at, why });
            }
            Then::Duty(cursor) => self.go(session, Pc::RecoverNext(cursor)),
        }
    }
}
