//! The duty `release`: it takes a job from the list, looks at its successors in a new snapshot, and releases or skips
//! them.

use super::rows::{Fact, How, Seen, Verdict, verdict};
use super::world::{Phase, Probe, Step, World};
use super::{After, Fault};

impl After {
    pub fn step_duty(&self, world: &mut World, session: usize) {
        let pc = world.sessions[session].pc;
        world.sessions[session].phase = Phase::Open;
        world.sessions[session].pc += 1;
        match (pc, self.is(Fault::OldSnapshot)) {
            (0, false) | (1, true) => self.take_work(world, session),
            (1, false) | (0, true) => world.sessions[session].seen = Some(world.seen(session)),
            (2, _) => self.write(world, session),
            _ => self.settle(world, session),
        }
    }

    /// Takes the jobs that earlier transactions have left. If there are none, takes a job from memory.
    fn take_work(&self, world: &mut World, session: usize) {
        let taken = match world.sessions[session].left.pop() {
            Some((job, from)) => {
                world.sessions[session].from = from;
                Some(job)
            }
            None if world.memory.has_work(self) => world.memory.take(self),
            None => return,
        };
        world.sessions[session].steps.push(Step::Served(taken));
    }

    fn write(&self, world: &mut World, session: usize) {
        let seen = world.sessions[session].seen.take().unwrap_or_default();
        match world.sessions[session].steps.first() {
            Some(&Step::Served(Some(taken))) => self.serve(world, session, &seen, taken),
            Some(Step::Served(None)) => self.look_at_everything(world, session, &seen),
            _ => {}
        }
    }

    /// Releases or skips the successors of this job if it has ended, a bounded number of them in one transaction. A
    /// successor that is enqueued behind the position reached is handed over by its own callback.
    fn serve(&self, world: &mut World, session: usize, seen: &Seen, taken: u8) {
        if seen.is_timed(taken) {
            self.decide(world, session, seen, taken, taken);
        }
        if seen.end(taken).is_none() {
            return;
        }
        let from = world.sessions[session].from;
        let held = self.dependents(taken).filter(|job| *job >= from && seen.is_held(*job));
        for (count, job) in held.enumerate() {
            if count == self.scenario.batch {
                world.sessions[session].left.push((taken, job));
                break;
            }
            self.decide(world, session, seen, job, taken);
        }
    }

    /// Releases or skips a held job, or leaves it held.
    fn decide(&self, world: &mut World, session: usize, seen: &Seen, job: u8, taken: u8) {
        let is_over = world.is_due && seen.is_timed(job);
        let verdict = if is_over { Verdict::Release } else { self.judge(seen, job, taken) };
        match (verdict, world.probe(session, Fact::Met(job))) {
            (Verdict::Hold, _) | (Verdict::Release, Probe::Committed) => {}
            // The transaction that is releasing the job may be rolled back.
            (Verdict::Release, Probe::InProgress) => world.sessions[session].steps.push(Step::Again(taken)),
            (Verdict::Release, Probe::Absent) => {
                world.insert(session, Fact::Met(job));
                if !self.is(Fault::ReleaseNotPushed) {
                    world.sessions[session].steps.push(Step::Pushed(job));
                }
            }
            (Verdict::Skip, _) => self.skip(world, session, job, taken),
        }
    }

    /// Reads all held jobs. Puts their predecessors into the new filter, and notes those that have ended.
    fn look_at_everything(&self, world: &mut World, session: usize, seen: &Seen) {
        let jobs = 0..self.scenario.jobs.len() as u8;
        let held = jobs.filter(|job| seen.is_held(*job));
        let awaited = held.fold(0, |awaited, job| awaited | self.scenario.jobs[usize::from(job)].after);
        world.memory.add_fresh(awaited);
        let has_ended = |job: u8| awaited & (1 << job) != 0 && seen.end(job).is_some();
        let is_timed = |job: u8| seen.is_timed(job) && !self.is(Fault::TimeNotLookedAt);
        world.sessions[session].left =
            (0..8).filter(|job| has_ended(*job) || is_timed(*job)).map(|job| (job, 0)).collect();
    }

    fn judge(&self, seen: &Seen, job: u8, taken: u8) -> Verdict {
        match self.fault {
            Some(Fault::EachEdgeAlone) => verdict(self.scenario.jobs[usize::from(job)].upon, &[seen.end(taken)]),
            Some(Fault::DeathIsMet) => self.verdict(seen, job, |seen, before| match seen.end(before) {
                Some(How::Dead) => Some(How::Completed),
                end => end,
            }),
            Some(Fault::FirstOutcomeCounts) => self.verdict(seen, job, |seen, before| seen.outcome(before, 0)),
            _ => self.verdict(seen, job, Seen::end),
        }
    }

    /// Ends a held job unrun: inserts a claim of the system, under the same key as any claim, and an outcome.
    fn skip(&self, world: &mut World, session: usize, job: u8, taken: u8) {
        let probe = world.probe_claim(session, job, 0);
        if probe == Probe::Absent || self.is(Fault::SkippedWithoutKey) {
            if !self.is(Fault::SkippedWithoutKey) {
                world.insert(session, Fact::Claim(job, 0));
            }
            world.insert(session, Fact::Outcome(job, 0, How::Skipped));
            if !self.is(Fault::SkipNotTold) {
                world.sessions[session].steps.push(Step::Ended(job));
            }
        } else if probe == Probe::InProgress && !self.is(Fault::VainSkipForgotten) {
            // The transaction that holds the key may be rolled back. Then the job must still be skipped.
            world.sessions[session].steps.push(Step::Again(taken));
        }
    }
}
