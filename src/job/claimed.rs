//! Finds a claimed attempt for the session that ends it or writes about it, and says why the session does not get it.
//!
//! Responsible for the question to memory, and to the logs if memory does not know the attempt. Not responsible for
//! what the session does with the attempt (`hold`), nor for the texts of the refusals (`held`).
//!
//! Invariant: the rights, the attempt's state and its home are read under one hold of the frontier's lock.

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::{Frontier, Hold, Running};

use crate::catalog::ids;
use crate::catalog::permission::{Privilege, Rights};
use crate::job::held::{self, Held, Refusal};
use crate::job::recover;
use crate::log::claim;
use crate::log::segment::Home;
use crate::pg::fault::fault;
use crate::shmem::{Instance, here};
use crate::transaction::{Step, awaited_ends};

/// The session that asks memory for claimed attempts.
pub struct Caller<'a> {
    pub session: u32,
    pub rights: &'a Rights,
}

/// A claimed attempt that this session may end, or write about.
pub struct Claimed {
    pub home: Home,
    pub entry: Running,
    /// False: memory has no room for it, and the entry is what the logs say. Only the outcome's key decides then.
    is_known: bool,
    /// True if jobs wait for its job.
    is_awaited: bool,
}

impl Claimed {
    /// Returns the step that ends it.
    pub fn step(&self) -> Step {
        Step::Ending { id: self.entry.id, lane: self.entry.lane, is_known: self.is_known, end: None }
    }

    /// Returns it as held. `step`: the place of the recorded step.
    pub fn hold(self, step: usize) -> Held {
        let Self { home, entry, is_awaited, .. } = self;
        if is_awaited {
            awaited_ends::add(here::number(), entry.id, entry.rank.job_id);
        }
        Held { id: entry.id, home, entry, step }
    }
}

/// The answer of memory.
pub enum Answer {
    Yours(Claimed),
    /// Any other answer.
    Other(Hold),
}

impl Answer {
    /// Returns the answer. Place and generation are read under one hold of the frontier's lock, so they belong
    /// together.
    fn new(hold: Hold, instance: &Instance, is_awaited: impl FnOnce(&Running) -> bool) -> Self {
        let Hold::Yours(entry) = hold else { return Self::Other(hold) };
        let home = Home::of(instance, entry.place.segment);
        Self::Yours(Claimed { home, entry, is_known: true, is_awaited: is_awaited(&entry) })
    }
}

impl Caller<'_> {
    /// Returns whether the caller may consume a lane. It is called under the frontier's lock.
    fn may_consume(&self, lane: i32) -> bool {
        self.rights.on_lane(lane, Privilege::Consume)
    }

    /// Asks memory for an attempt, to end it. It is called under the frontier's lock.
    pub fn take_to_end(
        &self,
        frontier: &mut Frontier<'_>,
        instance: &mut Instance,
        awaited: &Awaited,
        id: i64,
        deadline: i64,
    ) -> Answer {
        let may = |lane| self.may_consume(lane);
        let hold = frontier.running.end(&mut instance.deadlines, here::number(), id, self.session, deadline, may);
        Answer::new(hold, instance, |entry| awaited.is_awaited(entry.rank.job_id))
    }

    /// Asks memory whether the caller has an attempt, to write about it. It is called under the frontier's lock.
    pub fn look(&self, frontier: &Frontier<'_>, instance: &Instance, id: i64) -> Answer {
        let hold = frontier.running.ask(here::number(), id, self.session, |lane| self.may_consume(lane));
        Answer::new(hold, instance, |_| false)
    }
}

/// Finds a claimed attempt by `ask`, which asks memory under the frontier's lock. If memory does not know the attempt,
/// the logs are read. `ask` returns `None` if the instance was dropped.
pub fn find(id: i64, rights: &Rights, ask: impl Fn() -> Option<Answer>) -> std::result::Result<Claimed, Refusal> {
    ids::attempt_id(id).map_err(Refusal::Wrong)?;
    let mut asked_logs = false;
    loop {
        let other = match ask() {
            Some(Answer::Yours(claimed)) => return Ok(claimed),
            Some(Answer::Other(other)) => other,
            None => Hold::Unknown,
        };
        if let Some(refusal) = refusal(id, &other) {
            return Err(refusal);
        }
        if asked_logs {
            // Memory has no room for the attempt.
            let Some((entry, home)) = recover::locate(id) else { return Err(recover::gone(id, rights)) };
            return Ok(Claimed { home, entry, is_known: false, is_awaited: false });
        }
        fault!("end.unknown");
        recover::recover(id, rights)?;
        asked_logs = true;
    }
}

/// Returns why a session does not get an attempt. `None`: the session has it, or the logs decide.
fn refusal(id: i64, hold: &Hold) -> Option<Refusal> {
    Some(match hold {
        Hold::Yours(_) | Hold::Unknown => return None,
        Hold::Denied(lane) => held::denied(id, *lane),
        // It is in use if the other transaction was committed and has not told memory yet. Otherwise no worker has
        // claimed it.
        Hold::Taken(entry) => match claim::find(entry.place.segment, id) {
            Some(claim) if claim.kind != claim::Kind::Moved => held::claiming(id),
            _ => held::being_claimed(id),
        },
        Hold::Mine => held::lost_here(id),
        Hold::Busy(entry) => held::busy(id, Some(*entry)),
        Hold::Later => held::lost(id, "Its lease was extended."),
    })
}
