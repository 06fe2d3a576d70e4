//! Shared memory: the filter of jobs with successors, the list of the duty, and the order to look at everything. Of the
//! frontier it has only the jobs that are handed out. Each method is one hold of the lock.

use super::{After, Fault};

/// Sets of jobs, as bits.
type Jobs = u8;

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub struct Memory {
    /// Jobs that may have successors. Jobs leave it only when a look at everything replaces the filter.
    filter: Jobs,
    /// True if the filter has all such jobs. If not, every job is treated as one.
    is_known: bool,
    /// The filter that a look at everything builds.
    fresh: Option<Jobs>,
    /// The jobs that were handed over to the duty.
    list: Vec<u8>,
    /// The order to look at everything.
    pub everything: bool,
    /// A fault: the job at which the duty is looking.
    serving: Option<u8>,
    /// The jobs that the frontier hands out, and whether it must read the logs before it says that there is none.
    pub ready: Jobs,
    pub is_behind: bool,
    /// How often a job became known to have successors. Ending sessions read it if they look before their commit.
    pub adds: u8,
    /// For each session that has announced jobs: the jobs that have ended since. The code uses a clock for this.
    told: Vec<(u8, Jobs)>,
}

impl Memory {
    /// Makes memory that knows that no job has successors.
    pub fn settled(model: &After) -> Self {
        Self { is_known: true, is_behind: model.scenario.is_behind, ..Self::default() }
    }

    /// Makes memory as it is after a crash.
    pub fn empty(model: &After) -> Self {
        Self { everything: !model.is(Fault::NoLookAfterCrash), is_behind: true, ..Self::default() }
    }

    /// Tells the duty to look at the successors of the job.
    pub fn hand_over(&mut self, model: &After, job: u8) {
        // The look that is ordered after a start sees everything that is visible now. Any other look may
        // have to wait, so the job also goes into the list.
        if self.everything && !self.is_known || self.list.contains(&job) || self.serving == Some(job) {
            return;
        }
        if self.list.len() < model.scenario.room {
            self.list.push(job);
        } else if !model.is(Fault::OverflowForgotten) {
            self.everything = true;
        }
    }

    /// Notes that a session will look at jobs that will be predecessors.
    pub fn announce(&mut self, model: &After, session: usize, jobs: Jobs) {
        self.put(model, jobs);
        self.told.push((session as u8, 0));
        self.told.sort_unstable();
    }

    /// True if the end of a job may have been reported since the session announced it.
    pub fn is_told(&self, session: usize, job: u8) -> bool {
        let mut of_session = self.told.iter().filter(|told| usize::from(told.0) == session);
        of_session.any(|(_, jobs)| jobs & (1 << job) != 0)
    }

    /// Forgets what the session has announced, because its transaction has ended.
    pub fn forget(&mut self, session: usize) {
        self.told.retain(|told| usize::from(told.0) != session);
    }

    /// Notes that the job now has successors.
    pub fn add(&mut self, model: &After, job: u8) {
        self.adds += u8::from(model.scenario.ahead);
        self.put(model, 1 << job);
    }

    fn put(&mut self, model: &After, jobs: Jobs) {
        self.filter |= jobs;
        if !model.is(Fault::RebuildMissesNew) {
            self.fresh = self.fresh.map(|fresh| fresh | jobs);
        }
    }

    /// True if the job may have successors.
    pub fn is_awaited(&self, model: &After, job: u8) -> bool {
        let is_unknown = !self.is_known && !model.is(Fault::UnknownTakenForEmpty);
        is_unknown || self.filter & (1 << job) != 0 || model.scenario.one_cell && self.filter != 0
    }

    /// Does what the callback of an end does.
    pub fn ended(&mut self, model: &After, job: u8) {
        if self.is_awaited(model, job) {
            self.tell(model, job);
            self.hand_over(model, job);
        }
    }

    fn tell(&mut self, model: &After, job: u8) {
        let jobs = if model.scenario.one_cell { Jobs::MAX } else { 1 << job };
        self.told.iter_mut().for_each(|told| told.1 |= jobs);
    }

    /// Does what `ended` does, for a job whose successors were all released when the count had this value.
    pub fn spared(&mut self, model: &After, job: u8, adds: u8) {
        if self.adds != adds && !model.is(Fault::SparedBlindly) {
            self.ended(model, job);
        } else if self.is_awaited(model, job) && !model.is(Fault::SparedNotTold) {
            self.tell(model, job);
        }
    }

    /// True if a look at everything is ordered and no process is doing it.
    fn is_look_due(&self, model: &After) -> bool {
        self.everything && (self.fresh.is_none() || model.is(Fault::TwoLooksAtOnce))
    }

    pub fn has_work(&self, model: &After) -> bool {
        self.is_look_due(model) || !self.list.is_empty()
    }

    /// Gives the duty its next job. `None`: the duty must look at everything, and a new filter begins.
    pub fn take(&mut self, model: &After) -> Option<u8> {
        if self.list.is_empty() {
            self.everything = model.is(Fault::OrderTakenBackLate);
            self.fresh = Some(0);
            if !model.is(Fault::LookNotTold) {
                self.told.iter_mut().for_each(|told| told.1 = Jobs::MAX);
            }
            return None;
        }
        let job = self.list.remove(0);
        if model.is(Fault::NotAddedWhileServed) {
            self.serving = Some(job);
        }
        Some(job)
    }

    /// Adds the predecessors of a held job that the look at everything has found.
    pub fn add_fresh(&mut self, jobs: Jobs) {
        self.fresh = self.fresh.map(|fresh| fresh | jobs);
    }

    /// Does what the duty's callback does: the jobs that it has taken are served.
    pub fn served(&mut self, model: &After, taken: Option<u8>) {
        self.serving = None;
        match taken {
            Some(job) if model.is(Fault::ServedLeavesFilter) => self.filter &= !(1 << job),
            Some(_) => {}
            None => {
                if model.is(Fault::OrderTakenBackLate) {
                    self.everything = false;
                }
                self.filter = self.fresh.take().unwrap_or_default();
                self.is_known = true;
            }
        }
    }

    /// Does what the rollback of the duty does.
    pub fn put_back(&mut self, model: &After, taken: Option<u8>) {
        self.serving = None;
        match taken {
            _ if model.is(Fault::TakenForgottenByRollback) => self.fresh = None,
            Some(job) => self.hand_over(model, job),
            None => {
                self.fresh = None;
                self.everything = true;
            }
        }
    }
}
