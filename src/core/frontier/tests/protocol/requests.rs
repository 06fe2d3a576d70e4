//! Cancelling. A waiting attempt is taken and ended unrun. A running one is asked to stop, by a note that may come too
//! late for its end. `api::cancel`, `job::take`, `job::cancel`, `hold::write_note`.

use super::data::{At, INSTANCE, Kind, LANE, Log, Pc, Probe, Row, Step, Then, Why};
use super::scenario::{Fault, Scenario};
use super::world::World;
use crate::frontier::{Owner, State, TakeOne};

/// Why an attempt was not taken, like `take::TakeWaiting`.
#[derive(Clone, Copy)]
enum Not {
    Running,
    InUse,
    Stale,
}

impl World {
    /// Does one step of a request. `has_given_up`: the session has stopped waiting for a move.
    pub fn step_request(
        &mut self,
        scenario: &Scenario,
        session: usize,
        pc: Pc,
        has_given_up: bool,
        fault: Option<Fault>,
    ) -> bool {
        match pc {
            Pc::Find(job) => self.find_job(scenario, session, job),
            // `hold::check_claimed`
            Pc::CheckClaimed(at, generation) => {
                let next = if self.memory.entry(at.id).is_some() {
                    Pc::Note { at, generation, about: at, why: Why::Cancel }
                } else {
                    Pc::RecoverRead(at.id, Then::Note(at, generation))
                };
                self.go(session, next);
            }
            Pc::TakeOne(at, generation, why) => self.take_one(scenario, session, at, generation, why),
            // `take_waiting`, after the frontier has handed the attempt out
            Pc::ClaimSystem(at, generation, why) => {
                let is_taken = self.open_home(session, (at.segment, generation), fault)
                    && self.probe(session, Log::Claims, at) == Probe::Absent
                    && self.insert_unique(session, Log::Claims, at, Kind::System);
                let next = if is_taken { Pc::EndUnrun(at, why) } else { Pc::WaitForMove(at, why) };
                self.go(session, next);
            }
            Pc::WaitForMove(at, why) => {
                let seen = self.probe(session, Log::Claims, at);
                if (seen == Probe::Moving) != has_given_up {
                    return false;
                }
                let is_emptied = self.row_at(session, at.segment, at.id).is_none();
                let has_moved = is_emptied || matches!(seen, Probe::Moved | Probe::Moving);
                // `take::keep_waiting`
                if has_moved && fault != Some(Fault::MovedEntryForgotten) {
                    self.push(at.ready());
                }
                self.forget_taken(session, at.id, fault);
                self.not_taken(scenario, session, at, 0, why, Not::Stale);
            }
            // `outcomes::end_unrun`
            Pc::EndUnrun(at, why) => {
                if !self.insert_unique(session, Log::Outcomes, at, Kind::Cancelled) {
                    self.go(session, Pc::Error);
                    return true;
                }
                match why {
                    Why::Purge => {
                        self.forget_taken(session, at.id, fault);
                        self.go(session, Pc::PurgeNext(at.segment, at.id));
                    }
                    Why::Serve(about) => self.made(session, about, fault),
                    Why::Cancel | Why::Doomed => self.finish(scenario, session),
                }
            }
            // `cancel::ask`, `hold::write_note`
            Pc::Note { at, generation, about, why } => {
                if self.open_home(session, (at.segment, generation), fault) {
                    self.insert(session, at, Kind::CancelNote);
                    self.go(session, Pc::NoteCheck { at, about, why });
                } else {
                    self.note_elsewhere(session, about, at, why);
                }
            }
            Pc::NoteCheck { at, about, why } => {
                return self.check_note(scenario, session, (at, about, why), has_given_up, fault);
            }
            // `waiting::for_each_waiting`: segment by segment, old comes last
            Pc::PurgeNext(segment, id) => {
                let is_next = |row: &&Row| row.kind == Kind::Attempt && (row.at.segment, row.at.id) > (segment, id);
                let next = self.seen(session).filter(is_next).map(|row| row.at).min();
                match next {
                    Some(at) if self.is_claimed(session, at) => self.go(session, Pc::PurgeNext(at.segment, at.id)),
                    Some(at) => self.go(session, Pc::TakeOne(at, self.generation(at.segment), Why::Purge)),
                    None => self.finish(scenario, session),
                }
            }
            _ => unreachable!("no step of a request"),
        }
        true
    }

    /// True if an attempt is claimed or being claimed, in the view of a search for waiting attempts.
    fn is_claimed(&self, session: usize, at: At) -> bool {
        !matches!(self.probe(session, Log::Claims, at), Probe::Absent | Probe::Moving)
    }

    /// Does the loop of `api::cancel`.
    fn find_job(&mut self, scenario: &Scenario, session: usize, job: u8) {
        let Some(at) = self.living(session).into_iter().filter(|at| at.job == job).max_by_key(|at| at.id) else {
            return self.finish(scenario, session);
        };
        let generation = self.generation(at.segment);
        let is_claimed = self.find(session, Log::Claims, at).is_some();
        let next = if is_claimed { Pc::CheckClaimed(at, generation) } else { Pc::TakeOne(at, generation, Why::Cancel) };
        self.go(session, next);
    }

    /// `take::take_waiting`, in the frontier.
    pub fn take_one(&mut self, scenario: &Scenario, session: usize, at: At, generation: u8, why: Why) {
        let answer = self.memory.with(|frontier, root| {
            let owner = Owner { session: session as u32, pid: session as i32 };
            frontier.take_one(root, INSTANCE, LANE, owner, at.ready(), true)
        });
        if answer == TakeOne::Taken {
            self.record(session, Step::Ended(at.id));
            return self.go(session, Pc::ClaimSystem(at, generation, why));
        }
        let not = match self.memory.entry(at.id) {
            Some(entry) if entry.state == State::Running => Not::Running,
            Some(_) => Not::InUse,
            None => Not::Stale,
        };
        self.not_taken(scenario, session, at, generation, why, not);
    }

    fn not_taken(&mut self, scenario: &Scenario, session: usize, at: At, generation: u8, why: Why, not: Not) {
        let note = Pc::Note { at, generation, about: at, why };
        let next = match (why, not) {
            (Why::Cancel | Why::Serve(_), Not::Running) => note,
            // `claim::kind_even_open`
            (Why::Cancel, Not::InUse) => {
                let is_it = |row: &&Row| (row.at.segment, row.at.id) == (at.segment, at.id);
                let kind = self
                    .rows
                    .iter()
                    .filter(is_it)
                    .map(|row| row.kind)
                    .find(|kind| matches!(kind, Kind::Claim | Kind::System | Kind::MovedWaiting | Kind::Vain));
                match kind {
                    Some(Kind::System) => Pc::Error,
                    Some(_) => note,
                    None => Pc::Find(at.job),
                }
            }
            (Why::Cancel, Not::Stale) => Pc::Find(at.job),
            (Why::Purge, _) => Pc::PurgeNext(at.segment, at.id),
            // The attempt is busy. The duty tries again later.
            (Why::Serve(_), Not::InUse | Not::Stale) => Pc::Commit,
            (Why::Doomed, _) => return self.finish(scenario, session),
        };
        self.go(session, next);
    }

    /// `hold::write_note`, after the note.
    fn check_note(
        &mut self,
        scenario: &Scenario,
        session: usize,
        (at, about, why): (At, At, Why),
        has_given_up: bool,
        fault: Option<Fault>,
    ) -> bool {
        let logs = match fault {
            Some(Fault::NoLookForMarkAfterNote) => &[][..],
            Some(Fault::MarkOfWaitingNotSeen) => &[Log::Outcomes][..],
            _ => &[Log::Outcomes, Log::Claims][..],
        };
        let seen: Vec<Probe> = logs.iter().map(|&log| self.probe(session, log, at)).collect();
        if has_given_up != seen.contains(&Probe::Moving) {
            return false;
        }
        if has_given_up {
            self.go(session, Pc::Error);
        } else if seen.contains(&Probe::Moved)
            || seen.first() == Some(&Probe::Committed) && fault != Some(Fault::NoteAboutEnded)
        {
            self.note_elsewhere(session, about, at, why);
        } else {
            self.record(session, Step::CancelRequested(about));
            match why {
                Why::Serve(request) => self.made(session, request, fault),
                _ => {
                    self.clients[session].asked |= 1 << about.job;
                    self.finish(scenario, session);
                }
            }
        }
        true
    }

    /// Looks for the attempt again, because it is not where the note should be written.
    fn note_elsewhere(&mut self, session: usize, about: At, at: At, why: Why) {
        // The attempt is found only if it has moved.
        let now = self.by_id(session, about.id).filter(|now| *now != at);
        let next = match (now, why) {
            (Some(at), _) => Pc::Note { at, generation: self.generation(at.segment), about, why },
            (None, Why::Serve(_)) => Pc::Commit,
            (None, _) => Pc::Find(about.job),
        };
        self.go(session, next);
    }

    /// `Done::Made`: the request stays in memory until a transaction without writes sees it served.
    fn made(&mut self, session: usize, about: i64, fault: Option<Fault>) {
        if fault == Some(Fault::RemovedBeforeCommit) {
            self.memory.cancels.ids.retain(|&id| id != about);
        }
        self.go(session, Pc::Commit);
    }
}
