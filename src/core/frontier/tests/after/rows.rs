//! The rows, and what they say about a held job: the table of `upon`.

use super::Plan;

/// The condition of a held job. `overdue` is left out: it is skipped as `Failed` is, and waits for its time instead of
/// a note. See `Plan::until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upon {
    /// All predecessors have completed.
    Completed,
    /// One predecessor has completed.
    Any,
    /// One predecessor is dead.
    Failed,
    /// All predecessors have ended.
    Ended,
}

/// How a job's last attempt ends.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Completed,
    Dead,
    Cancelled,
    Skipped,
    Expired,
}

impl How {
    /// True if the job has ended without a run, for good.
    fn is_unrun(self) -> bool {
        matches!(self, Self::Cancelled | Self::Skipped | Self::Expired)
    }
}

/// A row. An attempt is a job and a number that ascends. The edges of a job lie in its first attempt.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    Attempt(u8, u8),
    Claim(u8, u8),
    Outcome(u8, u8, How),
    /// The note `n`: the condition of an edge is met.
    Met(u8),
    /// The job has moved. The number says how often.
    Moved(u8, u8),
    /// The edges of the job have a time at which it is released at the latest. The number says how often it had moved.
    Timed(u8, u8),
}

/// What the rows say about a held job.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Verdict {
    Hold,
    Release,
    Skip,
}

/// The rows that a snapshot sees.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub struct Seen(pub Vec<Fact>);

impl Seen {
    pub fn has(&self, fact: Fact) -> bool {
        self.0.contains(&fact)
    }

    /// Returns the number of the job's newest attempt.
    pub fn newest(&self, job: u8) -> Option<u8> {
        let of_job =
            |fact: &Fact| if let Fact::Attempt(j, number) = *fact { (j == job).then_some(number) } else { None };
        self.0.iter().filter_map(of_job).max()
    }

    pub fn outcome(&self, job: u8, number: u8) -> Option<How> {
        self.0.iter().find_map(|fact| match *fact {
            Fact::Outcome(j, n, how) if (j, n) == (job, number) => Some(how),
            _ => None,
        })
    }

    /// Returns how the whole job has ended. `None`: its newest attempt lives.
    pub fn end(&self, job: u8) -> Option<How> {
        self.newest(job).and_then(|number| self.outcome(job, number))
    }

    /// True if the job's first attempt waits and nothing was decided about it.
    pub fn is_held(&self, job: u8) -> bool {
        let is_decided = self.has(Fact::Claim(job, 0)) || self.has(Fact::Met(job)) || self.outcome(job, 0).is_some();
        self.has(Fact::Attempt(job, 0)) && !is_decided
    }

    /// Returns how often the job has moved.
    pub fn moves(&self, job: u8) -> u8 {
        let of_job = |fact: &Fact| if let Fact::Moved(j, n) = *fact { (j == job).then_some(n) } else { None };
        self.0.iter().filter_map(of_job).max().unwrap_or(0)
    }

    /// True if the job is held, and has a time at which it is released at the latest.
    pub fn is_timed(&self, job: u8) -> bool {
        self.is_held(job) && self.has(Fact::Timed(job, self.moves(job)))
    }

    /// True if the job's newest attempt waits and is not held.
    pub fn is_claimable(&self, job: u8, plan: Plan) -> bool {
        self.newest(job).is_some_and(|number| {
            !self.has(Fact::Claim(job, number)) && (number > 0 || plan.after == 0 || self.has(Fact::Met(job)))
        })
    }
}

/// Returns what the table of `upon` says. `ends`: how the predecessors have ended, with `None` for one that lives.
pub fn verdict(upon: Upon, ends: &[Option<How>]) -> Verdict {
    let is_all = |how: How| ends.iter().all(|end| *end == Some(how));
    let has = |how: How| ends.contains(&Some(how));
    let have_ended = ends.iter().all(Option::is_some);
    match upon {
        Upon::Completed if is_all(How::Completed) => Verdict::Release,
        Upon::Completed if ends.iter().flatten().any(|how| how.is_unrun()) => Verdict::Skip,
        Upon::Any if has(How::Completed) => Verdict::Release,
        Upon::Any if ends.iter().all(|end| matches!(end, Some(how) if how.is_unrun())) => Verdict::Skip,
        Upon::Failed if has(How::Dead) => Verdict::Release,
        Upon::Failed if have_ended => Verdict::Skip,
        Upon::Ended if have_ended => Verdict::Release,
        _ => Verdict::Hold,
    }
}
