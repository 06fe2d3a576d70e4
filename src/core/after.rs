//! Decides from the fates of a job's predecessors whether the job is released, skipped or still held.
//!
//! Responsible for the table of verdicts. Not responsible for what one transaction does about a held job (`judge`).
//!
//! Invariant: the answer depends on the fates of all predecessors, and not on the order in which they ended.

pub mod judge;

/// The condition under which a held job is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Upon {
    /// All predecessors have completed.
    #[default]
    Completed,
    /// One predecessor has completed.
    Any,
    /// One predecessor has died.
    Failed,
    /// All predecessors have ended, in any way.
    Ended,
    /// The job's own time has come, and not all predecessors have ended without a death before.
    Overdue,
}

impl Upon {
    const ALL: [(Self, &'static str, u8); 5] = [
        (Self::Completed, "completed", b'c'),
        (Self::Any, "any", b'y'),
        (Self::Failed, "failed", b'f'),
        (Self::Ended, "ended", b'e'),
        (Self::Overdue, "overdue", b'o'),
    ];

    /// Returns the condition with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(upon, ..)| *upon)
    }

    /// The names of all conditions, for a hint.
    pub const NAMES: &'static str = "'completed', 'any', 'failed', 'ended' or 'overdue'";

    /// Returns the condition's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, _)| name)
    }

    /// Returns the letter that stands for the condition in tables.
    pub fn char(self) -> u8 {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or(b'c', |(.., char)| *char)
    }

    /// Returns the condition for which this letter stands in tables.
    pub fn of(char: u8) -> Self {
        Self::ALL.iter().find(|(.., known)| *known == char).map_or(Self::Completed, |(upon, ..)| *upon)
    }

    /// True if this fate is all that the condition asks of one predecessor, whatever happens later.
    pub fn is_met_by(self, fate: Fate) -> bool {
        match self {
            Self::Completed | Self::Any => fate == Fate::Completed,
            Self::Failed => matches!(fate, Fate::Dead | Fate::Buried),
            Self::Ended => fate != Fate::Living,
            Self::Overdue => false,
        }
    }
}

/// The fate of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits, runs or is held.
    Living,
    /// It has completed, now or once.
    Completed,
    /// It is dead, and may be retried.
    Dead,
    /// It is dead, and its queue was dropped, so it cannot be retried.
    Buried,
    /// It was cancelled, was skipped or has expired.
    Cancelled,
    /// It is no longer known: it has expired from history, or its queue was dropped.
    Gone,
}

impl Fate {
    /// True if the job has not completed and never will.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Buried | Self::Cancelled | Self::Gone)
    }
}

/// What happens to a held job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays held.
    Hold,
    /// It goes to its lane.
    Release,
    /// It ends without a run, because its condition can no longer be met.
    Skip,
}

/// What the job's own time says about its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// It has not come.
    Ahead,
    /// It has come. It counts for `Upon::Overdue`.
    Due,
    /// It has come, and the job waits no longer than that.
    Over,
}

impl Time {
    /// Returns what a job's time says if jobs are due up to `due_to`. `is_until`: the job waits no longer than that.
    pub fn of(run_at: Option<i64>, is_until: bool, due_to: i64) -> Self {
        match run_at {
            Some(at) if at > due_to => Self::Ahead,
            _ if is_until => Self::Over,
            _ => Self::Due,
        }
    }
}

/// Returns what happens to a held job whose predecessors have these fates.
pub fn verdict(upon: Upon, fates: &[Fate], time: Time) -> Verdict {
    verdict_of(upon, fates.iter().copied(), time)
}

fn verdict_of(upon: Upon, fates: impl Iterator<Item = Fate> + Clone, time: Time) -> Verdict {
    let all = |is_it: fn(Fate) -> bool| fates.clone().all(is_it);
    let any = |is_it: &dyn Fn(Fate) -> bool| fates.clone().any(is_it);
    match upon {
        _ if time == Time::Over => Verdict::Release,
        Upon::Completed if all(|fate| fate == Fate::Completed) => Verdict::Release,
        Upon::Completed if any(&Fate::is_lost) => Verdict::Skip,
        Upon::Any if any(&|fate| fate == Fate::Completed) => Verdict::Release,
        Upon::Any if all(Fate::is_lost) => Verdict::Skip,
        Upon::Failed if any(&|fate| upon.is_met_by(fate)) => Verdict::Release,
        Upon::Failed if all(|fate| fate != Fate::Living) => Verdict::Skip,
        Upon::Overdue if all(|fate| !matches!(fate, Fate::Living | Fate::Dead)) => Verdict::Skip,
        Upon::Overdue if time == Time::Due => Verdict::Release,
        Upon::Ended if all(|fate| fate != Fate::Living) => Verdict::Release,
        _ => Verdict::Hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_of_the_table() {
        use Fate::{Buried, Cancelled, Completed, Dead, Gone, Living};
        use Verdict::{Hold, Release, Skip};
        for (upon, of) in [
            (Upon::Completed, [Hold, Release, Hold, Skip, Skip, Skip]),
            (Upon::Any, [Hold, Release, Hold, Skip, Skip, Skip]),
            (Upon::Failed, [Hold, Skip, Release, Release, Skip, Skip]),
            (Upon::Ended, [Hold, Release, Release, Release, Release, Release]),
            (Upon::Overdue, [Hold, Skip, Hold, Skip, Skip, Skip]),
        ] {
            let fates = [Living, Completed, Dead, Buried, Cancelled, Gone];
            assert_eq!(fates.map(|fate| verdict(upon, &[fate], Time::Ahead)), of, "{upon:?}");
            assert_eq!(fates.map(|fate| verdict(upon, &[fate], Time::Over)), [Release; 6], "{upon:?}");
        }
        let fates = [Living, Completed, Dead, Buried, Cancelled, Gone];
        let overdue = fates.map(|fate| verdict(Upon::Overdue, &[fate], Time::Due));
        assert_eq!(overdue, [Release, Skip, Release, Skip, Skip, Skip]);
    }

    #[test]
    fn of_several_all_count() {
        use Fate::{Cancelled, Completed, Dead, Gone, Living};
        for (upon, fates, wanted) in [
            (Upon::Completed, [Completed, Completed], Verdict::Release),
            (Upon::Completed, [Completed, Living], Verdict::Hold),
            (Upon::Completed, [Completed, Dead], Verdict::Hold),
            (Upon::Completed, [Living, Cancelled], Verdict::Skip),
            (Upon::Completed, [Dead, Gone], Verdict::Skip),
            (Upon::Any, [Completed, Living], Verdict::Release),
            (Upon::Any, [Completed, Dead], Verdict::Release),
            (Upon::Any, [Completed, Gone], Verdict::Release),
            (Upon::Any, [Living, Cancelled], Verdict::Hold),
            (Upon::Any, [Dead, Cancelled], Verdict::Hold),
            (Upon::Any, [Dead, Living], Verdict::Hold),
            (Upon::Any, [Cancelled, Gone], Verdict::Skip),
            (Upon::Failed, [Living, Dead], Verdict::Release),
            (Upon::Failed, [Completed, Living], Verdict::Hold),
            (Upon::Failed, [Completed, Cancelled], Verdict::Skip),
            (Upon::Ended, [Dead, Living], Verdict::Hold),
            (Upon::Ended, [Dead, Cancelled], Verdict::Release),
            (Upon::Overdue, [Completed, Living], Verdict::Hold),
            (Upon::Overdue, [Completed, Cancelled], Verdict::Skip),
            (Upon::Overdue, [Completed, Dead], Verdict::Hold),
        ] {
            assert_eq!(verdict(upon, &fates, Time::Ahead), wanted, "{upon:?} {fates:?}");
            assert_eq!(
                verdict(upon, &[fates[1], fates[0]], Time::Ahead),
                wanted,
                "{upon:?} {fates:?}, the other way round"
            );
        }
    }

    #[test]
    fn names_and_letters_lead_back() {
        for (upon, name, char) in Upon::ALL {
            assert_eq!((Upon::parse(name), Upon::of(char)), (Some(upon), upon));
            assert_eq!((upon.name(), upon.char()), (name, char));
        }
        assert_eq!(Upon::parse("done"), None);
    }
}
