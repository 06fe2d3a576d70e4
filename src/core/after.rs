//! What follows for a job that is after others from what has become of those: whether it is released, skipped or still
//! held.
//!
//! Invariant: the answer depends on the ends of all predecessors, and not on the order in which they came.

/// For what a held job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Upon {
    /// All have completed.
    #[default]
    Completed,
    /// One has died.
    Failed,
    /// All have ended, however.
    Ended,
    /// Its own time, before all have ended without a death.
    Overdue,
}

impl Upon {
    const ALL: [(Self, &'static str, u8); 4] = [
        (Self::Completed, "completed", b'c'),
        (Self::Failed, "failed", b'f'),
        (Self::Ended, "ended", b'e'),
        (Self::Overdue, "overdue", b'o'),
    ];

    /// Returns the one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(upon, ..)| *upon)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, _)| name)
    }

    /// Returns the letter by which it is stored.
    pub fn char(self) -> u8 {
        Self::ALL.iter().find(|(known, ..)| *known == self).map_or(b'c', |(.., char)| *char)
    }

    /// Returns the one that is stored by this letter.
    pub fn of(char: u8) -> Self {
        Self::ALL.iter().find(|(.., known)| *known == char).map_or(Self::Completed, |(upon, ..)| *upon)
    }

    /// Whether an end of this kind is all that such a job asks of one predecessor, whatever comes later.
    pub fn is_met_by(self, fate: Fate) -> bool {
        match self {
            Self::Completed => fate == Fate::Completed,
            Self::Failed => fate == Fate::Dead,
            Self::Ended => fate != Fate::Living,
            Self::Overdue => false,
        }
    }
}

/// What has become of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits, runs or is held.
    Living,
    /// It has completed, now or once.
    Completed,
    /// It is dead, and may be retried.
    Dead,
    /// It was cancelled or skipped.
    Cancelled,
    /// It is known no more: its time in history is over, or its queue was dropped.
    Gone,
}

/// What follows for a held job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays held.
    Hold,
    /// It goes to its lane.
    Release,
    /// It ends unrun, for what it waits for cannot come.
    Skip,
}

/// Returns what follows for a job that is after predecessors with these fates. `is_due`: its own time has come.
pub fn verdict(upon: Upon, fates: &[Fate], is_due: bool) -> Verdict {
    let all = |is_it: fn(Fate) -> bool| fates.iter().all(|&fate| is_it(fate));
    match upon {
        Upon::Completed if all(|fate| fate == Fate::Completed) => Verdict::Release,
        Upon::Completed if fates.iter().any(|fate| matches!(fate, Fate::Cancelled | Fate::Gone)) => Verdict::Skip,
        Upon::Failed if fates.contains(&Fate::Dead) => Verdict::Release,
        Upon::Failed if all(|fate| fate != Fate::Living) => Verdict::Skip,
        Upon::Overdue if all(|fate| !matches!(fate, Fate::Living | Fate::Dead)) => Verdict::Skip,
        Upon::Overdue if is_due => Verdict::Release,
        Upon::Ended if all(|fate| fate != Fate::Living) => Verdict::Release,
        _ => Verdict::Hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_of_the_table() {
        use Fate::{Cancelled, Completed, Dead, Gone, Living};
        use Verdict::{Hold, Release, Skip};
        for (upon, of) in [
            (Upon::Completed, [Hold, Release, Hold, Skip, Skip]),
            (Upon::Failed, [Hold, Skip, Release, Skip, Skip]),
            (Upon::Ended, [Hold, Release, Release, Release, Release]),
            (Upon::Overdue, [Hold, Skip, Hold, Skip, Skip]),
        ] {
            let fates = [Living, Completed, Dead, Cancelled, Gone];
            assert_eq!(fates.map(|fate| verdict(upon, &[fate], false)), of, "{upon:?}");
        }
        let overdue = [Living, Completed, Dead, Cancelled, Gone].map(|fate| verdict(Upon::Overdue, &[fate], true));
        assert_eq!(overdue, [Release, Skip, Release, Skip, Skip]);
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
            (Upon::Failed, [Living, Dead], Verdict::Release),
            (Upon::Failed, [Completed, Living], Verdict::Hold),
            (Upon::Failed, [Completed, Cancelled], Verdict::Skip),
            (Upon::Ended, [Dead, Living], Verdict::Hold),
            (Upon::Ended, [Dead, Cancelled], Verdict::Release),
            (Upon::Overdue, [Completed, Living], Verdict::Hold),
            (Upon::Overdue, [Completed, Cancelled], Verdict::Skip),
            (Upon::Overdue, [Completed, Dead], Verdict::Hold),
        ] {
            assert_eq!(verdict(upon, &fates, false), wanted, "{upon:?} {fates:?}");
            assert_eq!(verdict(upon, &[fates[1], fates[0]], false), wanted, "{upon:?} {fates:?}, the other way round");
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
