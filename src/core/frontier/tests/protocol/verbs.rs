//! What sessions do: the steps of a transaction, of a claim and of a refill. A step ends wherever another session may
//! come between.
//!
//! Each step is one hold of the frontier's lock, one read of rows, or one insert. A comment names the function in `src`
//! for which the step stands.

use super::data::{At, End, INSTANCE, Kind, LANE, Log, OLD, Pc, Phase, Probe, Refill, Row, Source, State, Step, Verb};
use super::scenario::{Fault, Promise, Scenario};
use super::world::World;
use crate::frontier::{Rank, Ready, Take};

impl World {
    /// Does one step of a session whose transaction is open or about to begin. False: it must wait for another session.
    pub fn step(&mut self, scenario: &Scenario, fault: Option<Fault>, session: usize) -> bool {
        let client = &mut self.clients[session];
        match client.phase {
            Phase::Committed => {
                self.settle(session, true, fault);
                return true;
            }
            Phase::Aborted => {
                self.settle(session, false, fault);
                return true;
            }
            Phase::Idle => {
                client.phase = Phase::Open;
                self.begin_verb(scenario, session);
            }
            Phase::Open => {}
        }
        match self.clients[session].pc.clone() {
            Pc::Next => unreachable!("a verb has begun"),
            Pc::Commit => {
                if fault == Some(Fault::ToldBeforeVisible) {
                    for step in self.clients[session].steps.clone() {
                        if let Step::Enqueued(at, _) = step
                            && !self.clients[session].told_early
                        {
                            self.push(at.ready());
                        }
                    }
                    if !std::mem::replace(&mut self.clients[session].told_early, true) {
                        return true;
                    }
                    self.clients[session].told_early = false;
                }
                self.appear(session);
            }
            Pc::Error => self.roll_back(session),
            Pc::Enqueue(job) => {
                let segment = self.young();
                self.lock(session, segment);
                self.segments[segment as usize].producers |= 1 << session;
                let at = At { segment, id: self.fresh_id(segment), job };
                self.insert(session, at, Kind::Attempt);
                self.record(session, Step::Enqueued(at, false));
                self.finish(scenario, session);
            }
            Pc::Take => return self.take(scenario, session),
            Pc::Fetch(at) => self.fetch_taken(session, at, fault),
            Pc::InsertClaim(at) => self.insert_claim(scenario, session, at),
            Pc::Follow(at) => return self.follow(session, at, false, fault),
            Pc::Refill(refill) => self.refill(scenario, session, refill, fault),
            pc @ (Pc::Hold(..)
            | Pc::Outcome(..)
            | Pc::Resolve(..)
            | Pc::FollowEnd(..)
            | Pc::NotEnded(..)
            | Pc::Notes(..)
            | Pc::Successor(..)
            | Pc::Last(..)
            | Pc::RecoverRead(..)
            | Pc::RecoverAdd { .. }
            | Pc::RecoverCheck { .. }) => return self.step_end(scenario, session, pc, false, fault),
            pc @ (Pc::Find(_)
            | Pc::CheckClaimed(..)
            | Pc::TakeOne(..)
            | Pc::ClaimSystem(..)
            | Pc::WaitForMove(..)
            | Pc::EndUnrun(..)
            | Pc::Note { .. }
            | Pc::NoteCheck { .. }
            | Pc::PurgeNext(..)) => return self.step_request(scenario, session, pc, false, fault),
            pc => self.step_duty(session, pc, fault),
        }
        true
    }

    /// Stops waiting for a move. False: the session does not wait for one.
    pub fn give_up(&mut self, scenario: &Scenario, fault: Option<Fault>, session: usize) -> bool {
        // In the server a move ends before a session gives up again and again.
        const MAX_GIVEN_UP: u8 = 1;
        if self.clients[session].phase != Phase::Open || self.clients[session].given_up == MAX_GIVEN_UP {
            return false;
        }
        self.clients[session].given_up += 1;
        match self.clients[session].pc.clone() {
            Pc::Follow(at) if self.probe(session, Log::Claims, at) == Probe::Moving => {
                self.follow(session, at, true, fault)
            }
            pc @ (Pc::FollowEnd(..) | Pc::Last(..)) => self.step_end(scenario, session, pc, true, fault),
            pc @ (Pc::WaitForMove(..) | Pc::NoteCheck { .. }) => self.step_request(scenario, session, pc, true, fault),
            _ => false,
        }
    }

    /// Rolls the session's transaction back. A refill's guard lowers the flag first.
    pub fn roll_back(&mut self, session: usize) {
        self.memory.with(|frontier, _| frontier.refill_end(INSTANCE, LANE, session as u32));
        self.clients[session].told_early = false;
        self.vanish(session);
    }

    /// True if the session has an open transaction, or more transactions in its script.
    pub fn is_busy(&self, scenario: &Scenario, session: usize) -> bool {
        let client = &self.clients[session];
        client.phase != Phase::Idle
            || session != self.worker() && (client.transaction as usize) < scenario.scripts[session].len()
    }

    pub fn go(&mut self, session: usize, pc: Pc) {
        self.clients[session].pc = pc;
    }

    fn begin_verb(&mut self, scenario: &Scenario, session: usize) {
        // The worker's transaction begins with its duty.
        if session == self.worker() {
            return;
        }
        let (transaction, verb) = (self.clients[session].transaction as usize, self.clients[session].verb as usize);
        let held = self.clients[session].held.first().copied();
        let script: &[Verb] = scenario.scripts[session].get(transaction).copied().unwrap_or(&[]);
        let pc = match (script.get(verb).copied(), held) {
            (None, _) => Pc::Commit,
            (Some(Verb::Enqueue(job)), _) => Pc::Enqueue(job),
            (Some(Verb::Claim), _) => Pc::Take,
            (Some(Verb::Complete), Some(at)) => Pc::Hold(at, End::Complete, false),
            (Some(Verb::Fail), Some(at)) => Pc::Hold(at, End::Fail, false),
            (Some(Verb::Complete | Verb::Fail), None) => Pc::Commit,
            (Some(Verb::Cancel(job)), _) => Pc::Find(job),
            (Some(Verb::Purge), _) => {
                self.record(session, Step::Unseen);
                Pc::PurgeNext(0, 0)
            }
        };
        self.go(session, pc);
    }

    /// Ends a verb. The next verb begins, or the commit.
    pub fn finish(&mut self, scenario: &Scenario, session: usize) {
        if session == self.worker() {
            self.go(session, Pc::Commit);
            return;
        }
        self.clients[session].verb += 1;
        self.begin_verb(scenario, session);
    }

    // ---- `job::taker`, `job::claims` ----

    /// `Taker::take`.
    fn take(&mut self, scenario: &Scenario, session: usize) -> bool {
        let mut out = [Ready::default(); 1];
        let answer = self
            .memory
            .with(|frontier, _| frontier.take(INSTANCE, LANE, session as u32, session as i32, None, &mut out));
        match answer {
            Take::Some { refill, .. } => {
                let at = At::of(&out[0]);
                if scenario.is_order_checked {
                    self.check_order(at);
                }
                self.record(session, Step::Taken(at.id));
                self.clients[session].to_refill = refill;
                self.go(session, Pc::Fetch(at));
            }
            Take::Refill => self.go(session, Pc::Refill(Refill { is_for_claim: true, ..Refill::default() })),
            Take::Refilling => return false,
            _ => self.finish(scenario, session),
        }
        true
    }

    /// Checks that no attempt that ranks before the handed-out attempt was free: committed, reported and not claimed.
    fn check_order(&mut self, taken: At) {
        let is_told = |job: u8| self.told.settled & !self.told.ended & (1 << job) != 0;
        let is_taken = |job: u8| self.memory.entries().any(|entry| entry.rank.job_id == i64::from(job));
        let is_claimed = |job: u8| {
            let living = self.living(usize::from(u8::MAX)).into_iter().find(|at| at.job == job);
            living.is_none_or(|at| {
                self.rows
                    .iter()
                    .any(|row| row.at.id == at.id && matches!(row.kind, Kind::Claim | Kind::System | Kind::Vain))
            })
        };
        // A callback that has not run yet will tell memory of the attempt.
        let is_untold = |job: u8| {
            self.clients.iter().any(|client| {
                client.steps.iter().any(|step| match step {
                    Step::Missed(at) => at.job == job,
                    Step::Enqueued(at, has_moved) => at.job == job && !has_moved && client.phase == Phase::Committed,
                    _ => false,
                })
            })
        };
        let mut before = 1..taken.job;
        if before.any(|job| is_told(job) && !is_taken(job) && !is_claimed(job) && !is_untold(job)) {
            self.break_promise(Promise::InOrder);
        }
    }

    /// `Claims::read`.
    fn fetch_taken(&mut self, session: usize, at: At, fault: Option<Fault>) {
        let Some(found) = self.fetch_now(session, at) else {
            self.forget_taken(session, at.id, fault);
            self.go(session, Pc::Take);
            return;
        };
        self.lock(session, found.segment);
        if found.segment != at.segment {
            self.memory.with(|frontier, _| frontier.running.relocate(INSTANCE, at.id, found.place()));
        }
        self.go(session, Pc::InsertClaim(found));
    }

    /// `Claims::insert_found`.
    fn insert_claim(&mut self, scenario: &Scenario, session: usize, at: At) {
        self.lock(session, at.segment);
        if !self.insert_unique(session, Log::Claims, at, Kind::Claim) {
            self.go(session, Pc::Follow(at));
            return;
        }
        self.clients[session].claimed.push(at);
        if std::mem::take(&mut self.clients[session].to_refill) {
            self.go(session, Pc::Refill(Refill::default()));
        } else {
            self.finish(scenario, session);
        }
    }

    /// `Claims::follow`, and `Claims::drop_claimed`.
    fn follow(&mut self, session: usize, at: At, has_given_up: bool, fault: Option<Fault>) -> bool {
        match self.probe(session, Log::Claims, at) {
            Probe::Absent => {
                self.go(session, Pc::InsertClaim(at));
                return true;
            }
            Probe::Moving if !has_given_up => return false,
            Probe::Moved => {
                if let Some(now) = self.by_id(session, at.id) {
                    self.memory.with(|frontier, _| frontier.running.relocate(INSTANCE, at.id, now.place()));
                    self.go(session, Pc::InsertClaim(now));
                    return true;
                }
            }
            Probe::Moving | Probe::Committed | Probe::InProgress => {}
        }
        if self.probe(session, Log::Claims, at) != Probe::Committed && fault != Some(Fault::VainClaimForgotten) {
            self.record(session, Step::Missed(at));
        }
        self.forget_taken(session, at.id, fault);
        self.go(session, Pc::Take);
        true
    }

    // ---- `job::refill` ----

    fn refill(&mut self, scenario: &Scenario, session: usize, mut refill: Refill, fault: Option<Fault>) {
        let flag_first = fault != Some(Fault::ReadBeforeFlag);
        if !refill.has_begun && (flag_first || refill.is_read) {
            let begun = self.memory.with(|frontier, _| frontier.refill_begin(INSTANCE, LANE, session as u32));
            let Some(after) = begun else {
                return self.end_refill(scenario, session, &refill);
            };
            refill.has_begun = true;
            refill.after = after.job_id.clamp(0, 255) as u8;
        } else if (refill.opened as usize) < self.segments.len() {
            self.open_source(session, &mut refill);
        } else if !refill.is_read {
            self.read_candidate(session, &mut refill, fault);
        } else if !refill.is_pushed {
            let mut found: Vec<Ready> = refill.found.drain(..).map(At::ready).collect();
            self.memory.with(|frontier, _| {
                frontier.refill_push(INSTANCE, LANE, session as u32, &mut found, Rank::MAX);
            });
            refill.is_pushed = true;
        } else {
            if fault == Some(Fault::SpillForgotten) {
                self.memory.lane().spill = Rank::MAX;
            }
            self.memory.with(|frontier, _| frontier.refill_end(INSTANCE, LANE, session as u32));
            return self.end_refill(scenario, session, &refill);
        }
        self.go(session, Pc::Refill(refill));
    }

    fn end_refill(&mut self, scenario: &Scenario, session: usize, refill: &Refill) {
        if refill.is_for_claim {
            self.go(session, Pc::Take);
        } else {
            self.finish(scenario, session);
        }
    }

    /// `waiting::open_tables` and `Source::new`, of one segment.
    fn open_source(&mut self, session: usize, refill: &mut Refill) {
        let segment = refill.opened;
        refill.opened += 1;
        let is_inhabited = matches!(self.segments[segment as usize].state, State::Open | State::Closed);
        let has_rows = self.rows.iter().any(|row| row.at.segment == segment);
        if segment != OLD && !is_inhabited || !has_rows {
            return;
        }
        self.lock(session, segment);
        let mut source = Source { segment, read: (refill.after, i64::MAX), head: None };
        self.advance(session, &mut source);
        refill.sources.push(source);
    }

    /// `Source::advance`: finds the next row in the order of rank that is committed by now.
    fn advance(&self, session: usize, source: &mut Source) {
        let is_ahead = |row: &&Row| {
            row.kind == Kind::Attempt
                && row.at.segment == source.segment
                && (row.at.job, row.at.id) > source.read
                && !Self::is_own(row, session)
        };
        let next = self.seen(session).filter(is_ahead).min_by_key(|row| (row.at.job, row.at.id));
        source.head = next.map(|row| row.at);
        source.read = source.head.map_or(source.read, |at| (at.job, at.id));
    }

    /// `Waiting::next`.
    fn read_candidate(&mut self, session: usize, refill: &mut Refill, fault: Option<Fault>) {
        let sources = refill.sources.iter_mut().filter(|source| source.head.is_some());
        let Some(source) = sources.min_by_key(|source| source.head.map_or(u8::MAX, |at| at.job)) else {
            refill.is_read = true;
            return;
        };
        let Some(at) = source.head else { return };
        let is_claim = |row: &Row| {
            let is_open = self.open_rows(session).any(|open| open == row);
            let is_moving = row.kind == Kind::MovedWaiting && is_open;
            matches!(row.kind, Kind::Claim | Kind::System | Kind::MovedWaiting | Kind::Vain)
                && (row.at.segment, row.at.id) == (at.segment, at.id)
                && (!is_moving || fault == Some(Fault::OpenMarkIsClaim))
        };
        if !self.rows.iter().any(is_claim) {
            refill.found.push(at);
        }
        self.advance(session, source);
    }
}
