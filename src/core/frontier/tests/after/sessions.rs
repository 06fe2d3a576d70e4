//! What sessions do: each verb is a transaction, and each of its steps one look at rows, one insert, or one hold of the
//! lock.

use super::rows::{Fact, How, Seen, Upon, Verdict};
use super::world::{Phase, Probe, Step, World};
use super::{After, Fault};

#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// Enqueues these jobs, as bits, when their predecessors exist.
    Enqueue(u8),
    /// Claims the job when the frontier hands it out.
    Claim(u8),
    /// Ends the running job.
    End(u8, How),
    /// Cancels the job if it waits or is held.
    Cancel(u8),
    /// Ends the job as expired, if it waits.
    Expire(u8),
    /// Makes another attempt of a dead job.
    Retry(u8),
    /// Moves the held job to another segment.
    Move(u8),
    /// The time of all jobs comes. The cursor over times passes it, and the jobs that are due are read and handed over.
    TimeComes,
}

impl After {
    fn verb(&self, world: &World, session: usize) -> Option<Verb> {
        let script = self.scenario.scripts[session];
        script.get(usize::from(world.sessions[session].transaction)).copied()
    }

    /// True if a session has something to do that need not wait.
    pub fn can_step(&self, world: &World, session: usize) -> bool {
        if world.sessions[session].phase != Phase::Idle {
            return true;
        }
        if self.is_duty(session) {
            return world.memory.has_work(self) || world.is_between(session);
        }
        let seen = world.committed();
        match self.verb(world, session) {
            None => false,
            Some(Verb::Enqueue(jobs)) => {
                let is_there = |job: u8| jobs & (1 << job) != 0 || seen.newest(job).is_some();
                (0..8).filter(|job| jobs & (1 << job) != 0).all(|job| self.predecessors(job).all(is_there))
            }
            Some(Verb::Claim(job)) => {
                let is_found = world.memory.is_behind && seen.is_claimable(job, self.scenario.jobs[usize::from(job)]);
                is_found || world.memory.ready & (1 << job) != 0
            }
            Some(Verb::End(job, _)) => seen.newest(job).is_some_and(|number| {
                seen.has(Fact::Claim(job, number))
                    && seen.outcome(job, number).is_none()
                    && !world.is_ending(job, number)
            }),
            Some(Verb::Cancel(job) | Verb::Expire(job)) => {
                seen.newest(job).is_some_and(|number| seen.outcome(job, number).is_none())
            }
            Some(Verb::Move(job)) => seen.is_held(job),
            Some(Verb::TimeComes) => true,
            Some(Verb::Retry(job)) => seen.end(job) == Some(How::Dead),
        }
    }

    pub fn step(&self, world: &mut World, session: usize) {
        if matches!(world.sessions[session].phase, Phase::Committed | Phase::Aborted) {
            return self.settle(world, session);
        }
        if self.is_duty(session) {
            return self.step_duty(world, session);
        }
        let Some(verb) = self.verb(world, session) else { return };
        let pc = world.sessions[session].pc;
        world.sessions[session].phase = Phase::Open;
        world.sessions[session].pc += 1;
        match (verb, pc) {
            (Verb::Enqueue(jobs), 0 | 1) => {
                if (pc == 0) == self.is(Fault::LookedBeforeAnnounced) {
                    self.look(world, session, jobs);
                } else {
                    world.memory.announce(self, session, self.awaited_by(jobs));
                }
            }
            (Verb::Enqueue(jobs), 2) => self.enqueue(world, session, jobs),
            (Verb::Claim(job), 0) => self.take(world, session, job),
            (Verb::Claim(job), 1) => Self::claim(world, session, job),
            (Verb::End(job, how), 0) => {
                let number = world.seen(session).newest(job).unwrap_or(0);
                world.insert(session, Fact::Outcome(job, number, how));
                world.sessions[session].steps.push(Step::Ended(job));
            }
            (Verb::End(..), 1) if self.scenario.ahead => self.count(world, session, false),
            (Verb::End(job, _), 2) if self.scenario.ahead => self.release_ahead(world, session, job),
            (Verb::End(..), 3) if self.is(Fault::CountedAfterLook) => self.count(world, session, true),
            (Verb::End(job, _), 1) if self.looks_before_commit() => self.look_before_commit(world, session, job),
            (Verb::Cancel(job), 0) => Self::end_unrun(world, session, job, How::Cancelled),
            (Verb::Expire(job), 0) => Self::end_unrun(world, session, job, How::Expired),
            (Verb::Move(job), 0) => self.move_held(world, session, job),
            (Verb::TimeComes, 0) => world.is_due = true,
            (Verb::TimeComes, 1) => self.hand_over_due(world),
            (Verb::Retry(job), 0) => {
                let number = world.seen(session).newest(job).unwrap_or(0) + 1;
                world.insert(session, Fact::Attempt(job, number));
                world.sessions[session].steps.push(Step::Pushed(job));
            }
            _ => self.settle(world, session),
        }
    }

    /// Returns the predecessors of these jobs, as bits.
    fn awaited_by(&self, jobs: u8) -> u8 {
        let all = (0..8_u8).filter(|job| jobs & (1 << job) != 0);
        all.fold(0, |awaited, job| awaited | self.scenario.jobs[usize::from(job)].after)
    }

    /// Checks whether all predecessors of the jobs live. A predecessor that the same transaction enqueues lives.
    fn look(&self, world: &mut World, session: usize, jobs: u8) {
        let seen = world.seen(session);
        let awaited = self.awaited_by(jobs) & !jobs;
        world.sessions[session].lives =
            (0..8).filter(|job| awaited & (1 << job) != 0).all(|job| seen.end(job).is_none());
    }

    fn enqueue(&self, world: &mut World, session: usize, jobs: u8) {
        for job in (0..8).filter(|job| jobs & (1 << job) != 0) {
            world.insert(session, Fact::Attempt(job, 0));
            let plan = self.scenario.jobs[usize::from(job)];
            if plan.until {
                world.insert(session, Fact::Timed(job, 0));
            }
            let steps = &mut world.sessions[session].steps;
            if plan.after == 0 {
                steps.push(Step::Pushed(job));
            }
            if plan.until && !self.is(Fault::TimeNotHandedOver) {
                // The job's time may have come before the commit.
                steps.push(Step::Again(job));
            }
            steps.extend(self.predecessors(job).map(Step::Awaits));
        }
    }

    /// Takes a job from the frontier. If the frontier is behind, it reads the logs first.
    fn take(&self, world: &mut World, session: usize, job: u8) {
        if world.memory.is_behind {
            let seen = world.committed();
            let jobs = 0..self.scenario.jobs.len() as u8;
            let found = jobs.filter(|job| seen.is_claimable(*job, self.scenario.jobs[usize::from(*job)]));
            world.memory.ready |= found.fold(0, |ready, job| ready | 1 << job);
            world.memory.is_behind = false;
        }
        world.memory.ready &= !(1 << job);
        world.sessions[session].steps.push(Step::Taken(job));
    }

    fn claim(world: &mut World, session: usize, job: u8) {
        let number = world.seen(session).newest(job).unwrap_or(0);
        let step = match world.probe_claim(session, job, number) {
            Probe::Absent => {
                world.insert(session, Fact::Claim(job, number));
                return;
            }
            Probe::Committed => None,
            Probe::InProgress => Some(Step::Missed(job)),
        };
        let steps = &mut world.sessions[session].steps;
        steps.clear();
        steps.extend(step);
    }

    fn end_unrun(world: &mut World, session: usize, job: u8, how: How) {
        let number = world.seen(session).newest(job).unwrap_or(0);
        if world.probe_claim(session, job, number) == Probe::Absent {
            world.insert(session, Fact::Claim(job, number));
            world.insert(session, Fact::Outcome(job, number, how));
            world.sessions[session].steps.extend([Step::Ended(job), Step::Unseen(job)]);
        }
    }

    /// True if a session moves the cursor over times. The model leaves out that the cursor goes back if the process
    /// fails: another model shows it.
    pub fn moves_cursor(&self, world: &World, session: usize) -> bool {
        !self.is_duty(session) && matches!(self.verb(world, session), Some(Verb::TimeComes))
    }

    fn move_held(&self, world: &mut World, session: usize, job: u8) {
        let seen = world.seen(session);
        if seen.is_held(job) {
            let moves = seen.moves(job) + 1;
            world.insert(session, Fact::Moved(job, moves));
            if seen.is_timed(job) && !self.is(Fault::TimeLostByMove) {
                world.insert(session, Fact::Timed(job, moves));
            }
        }
    }

    fn hand_over_due(&self, world: &mut World) {
        let seen = world.committed();
        let jobs = 0..self.scenario.jobs.len() as u8;
        jobs.filter(|job| seen.is_timed(*job)).for_each(|job| world.memory.hand_over(self, job));
    }

    fn looks_before_commit(&self) -> bool {
        self.is(Fault::CountedInTransaction) || self.is(Fault::FilterAskedBeforeCommit)
    }

    /// Reads how often jobs became known to have successors. With a fault, it reads this after the look instead of
    /// before it.
    fn count(&self, world: &mut World, session: usize, is_late: bool) {
        if self.is(Fault::CountedAfterLook) != is_late {
            return;
        }
        let adds = world.memory.adds;
        for step in &mut world.sessions[session].steps {
            match step {
                Step::Spared(_, known) => *known = adds,
                Step::Ended(job) if !is_late => *step = Step::Spared(*job, adds),
                _ => {}
            }
        }
    }

    /// Releases the successors of a job before the commit of its end. If some stay held, the job must still be handed
    /// over, because another end may be under way that does not see this one. It must also be handed over if more have
    /// come since the count.
    fn release_ahead(&self, world: &mut World, session: usize, job: u8) {
        let seen = world.seen(session);
        let mut is_all = true;
        for after in self.dependents(job).filter(|after| seen.is_held(*after)) {
            // A retry before this commit may undo the death of another predecessor.
            let has_completed = |before: u8| seen.end(before) == Some(How::Completed);
            let is_final = match self.scenario.jobs[usize::from(after)].upon {
                Upon::Any => self.predecessors(after).any(has_completed),
                _ => self.predecessors(after).all(has_completed),
            };
            let is_final = is_final || self.is(Fault::ReleasedOnDeath);
            // Another session may be releasing the successor, and may be rolled back.
            let is_free = world.probe(session, Fact::Met(after)) == Probe::Absent || self.is(Fault::ReleasedWithoutKey);
            if is_final && is_free && self.verdict(&seen, after, Seen::end) == Verdict::Release {
                world.insert(session, Fact::Met(after));
                world.sessions[session].steps.push(Step::Pushed(after));
            } else {
                is_all = false;
            }
        }
        let is_spared = is_all || self.is(Fault::SparedThoughHeld);
        for step in &mut world.sessions[session].steps {
            match *step {
                Step::Spared(job, _) if !is_spared => *step = Step::Ended(job),
                Step::Ended(job) if is_spared && self.is(Fault::CountedAfterLook) => *step = Step::Spared(job, 0),
                _ => {}
            }
        }
    }

    /// Reads, with a fault, what an ending transaction must not read before its commit.
    fn look_before_commit(&self, world: &mut World, session: usize, job: u8) {
        let seen = world.seen(session);
        let verdict = |after: u8| self.verdict(&seen, after, Seen::end);
        let mut held = self.dependents(job).filter(|after| seen.is_held(*after));
        let is_told = if self.is(Fault::CountedInTransaction) {
            held.any(|after| verdict(after) != Verdict::Hold)
        } else {
            world.memory.is_awaited(self, job)
        };
        if !is_told {
            world.sessions[session].steps.clear();
        }
    }
}
