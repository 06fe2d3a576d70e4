//! What sessions do: each verb is a transaction, and each of its steps one look at rows, one insert, or one hold of the
//! lock.

use super::rows::{Fact, How, Seen, Verdict};
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
    /// Makes another attempt of a dead job.
    Retry(u8),
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
            Some(Verb::Cancel(job)) => seen.newest(job).is_some_and(|number| seen.outcome(job, number).is_none()),
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
            (Verb::Cancel(job), 0) => Self::cancel(world, session, job),
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

    /// Checks whether all predecessors of the jobs live. Those that the same transaction enqueues do.
    fn look(&self, world: &mut World, session: usize, jobs: u8) {
        let seen = world.seen(session);
        let awaited = self.awaited_by(jobs) & !jobs;
        world.sessions[session].lives =
            (0..8).filter(|job| awaited & (1 << job) != 0).all(|job| seen.end(job).is_none());
    }

    fn enqueue(&self, world: &mut World, session: usize, jobs: u8) {
        for job in (0..8).filter(|job| jobs & (1 << job) != 0) {
            world.insert(session, Fact::Attempt(job, 0));
            let steps = &mut world.sessions[session].steps;
            if self.scenario.jobs[usize::from(job)].after == 0 {
                steps.push(Step::Pushed(job));
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

    fn cancel(world: &mut World, session: usize, job: u8) {
        let number = world.seen(session).newest(job).unwrap_or(0);
        if world.probe_claim(session, job, number) == Probe::Absent {
            world.insert(session, Fact::Claim(job, number));
            world.insert(session, Fact::Outcome(job, number, How::Cancelled));
            world.sessions[session].steps.extend([Step::Ended(job), Step::Unseen(job)]);
        }
    }

    fn looks_before_commit(&self) -> bool {
        self.is(Fault::CountedInTransaction) || self.is(Fault::FilterAskedBeforeCommit)
    }

    /// Reads how often jobs became known to have successors: before the look, or after it by a fault.
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
            // A retry before this commit may undo another end, above all a death.
            let is_final = self.predecessors(after).all(|before| seen.end(before) == Some(How::Completed));
            let is_final = is_final || self.is(Fault::ReleasedOnDeath);
            if is_final && self.verdict(&seen, after, Seen::end) == Verdict::Release {
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

    /// What an ending transaction reads before its commit, by a fault.
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
