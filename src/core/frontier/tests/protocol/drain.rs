//! Finishes the remaining work when all sessions are done, one session at a time. The worker does what is due, a
//! session claims jobs and completes them, and leases end.
//!
//! Invariant: an attempt is taken only if memory hands it out. So an attempt that memory has lost stays lost.

use super::data::{At, Duty, End, Kind, Log, Pc, Phase, Verb};
use super::scenario::{Fault, Promise, Scenario};
use super::world::World;
use crate::frontier;

const CLAIM: &[&[Verb]] = &[&[Verb::Claim]];
const COMPLETE: &[&[Verb]] = &[&[Verb::Complete]];

/// Runs the world to its end. The error is the broken promise.
pub fn drain(scenario: &Scenario, fault: Option<Fault>, world: &World) -> Result<(), Promise> {
    let mut drain = Drain { world: world.clone(), scenario: scenario.clone(), fault };
    // The ring no longer turns, and nothing else happens from outside.
    drain.scenario.moves = false;
    drain.world.expiries_left = 0;
    // 20 rounds are more than there are attempts.
    for _ in 0..20 {
        drain.serve()?;
        if let Some(claimed) = drain.claim()? {
            if drain.is_asked(claimed) {
                return Err(Promise::Cancelled);
            }
            drain.complete(claimed)?;
        } else if !drain.end_a_lease()? {
            let has_ended = drain.world.told.enqueued & !drain.world.told.ended == 0;
            return if has_ended { Ok(()) } else { Err(Promise::Served) };
        }
    }
    Err(Promise::Served)
}

struct Drain {
    world: World,
    scenario: Scenario,
    fault: Option<Fault>,
}

impl Drain {
    fn is_asked(&self, at: At) -> bool {
        self.world.told.asked & !self.world.told.ended & (1 << at.job) != 0
    }

    /// Runs a session's transaction to its end. No other session blocks it.
    fn run(&mut self, session: usize) -> Result<(), Promise> {
        for _ in 0..200 {
            if !self.world.step(&self.scenario, self.fault, session) {
                return Err(Promise::Served);
            }
            if self.world.told.broken != 0 {
                return Err(Promise::LivesOnce);
            }
            if self.world.clients[session].phase == Phase::Idle {
                return Ok(());
            }
        }
        Err(Promise::Served)
    }

    /// Lets the worker do all duties that are due.
    fn serve(&mut self) -> Result<(), Promise> {
        for _ in 0..20 {
            let Some(&duty) = self.world.duties(&self.scenario, self.fault).last() else { return Ok(()) };
            self.duty(duty)?;
        }
        Err(Promise::Served)
    }

    fn duty(&mut self, duty: Duty) -> Result<(), Promise> {
        self.world.begin_duty(duty);
        let worker = self.world.worker();
        if self.world.clients[worker].phase == Phase::Idle { Ok(()) } else { self.run(worker) }
    }

    /// Runs one more transaction of the first session.
    fn call(&mut self, script: &'static [&'static [Verb]]) -> Result<(), Promise> {
        let scripts: &'static [&'static [&'static [Verb]]] = if script == CLAIM { &[CLAIM] } else { &[COMPLETE] };
        self.scenario.scripts = scripts;
        self.world.clients[0].transaction = 0;
        self.run(0)
    }

    fn claim(&mut self) -> Result<Option<At>, Promise> {
        self.world.clients[0].held.clear();
        self.call(CLAIM)?;
        Ok(self.world.clients[0].held.first().copied())
    }

    fn complete(&mut self, at: At) -> Result<(), Promise> {
        self.call(COMPLETE)?;
        let is_done = self.world.told.ended & (1 << at.job) != 0;
        if is_done { Ok(()) } else { Err(Promise::Served) }
    }

    /// Ends a lease that memory knows. If a cancel was requested, memory must have told the worker. False: there is no
    /// lease.
    fn end_a_lease(&mut self) -> Result<bool, Promise> {
        let running = self.world.memory.entries().find(|entry| entry.state == frontier::State::Running);
        let Some(entry) = running else { return Ok(false) };
        let at = At::of(&entry.ready());
        let is_known =
            self.world.by_id(0, at.id).is_some_and(|at| self.world.find(0, Log::Claims, at) == Some(Kind::Claim));
        if is_known && self.is_asked(at) && entry.cancel == 0 {
            return Err(Promise::Cancelled);
        }
        let worker = self.world.worker();
        self.world.clients[worker].phase = Phase::Open;
        self.world.go(worker, Pc::Hold(at, End::Fail, false));
        self.run(worker)?;
        Ok(true)
    }
}
