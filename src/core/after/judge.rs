//! Decides what is done about a held job, from its rows and the fates of its predecessors.
//!
//! Responsible for the decision alone. Not responsible for reading rows and fates, nor for writing what follows
//! (`duty::release`).
//!
//! Invariant: a commit releases a job only if no end, retry or rollback of another transaction can change the verdict.
//!
//! Read next: the table of verdicts (`after`).

use super::{Fate, Time, Upon, Verdict, verdict_of};

/// What an edge of a held job names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Another job.
    Job,
    /// The members of the job's own flow.
    Members,
    /// The seal of the job's own flow. Until it is met, members may be added.
    Seal,
}

/// One wait of a held job: what an edge says, and the fate of what it names.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// What the edge names.
    pub is_for: WaitsFor,
    /// True if a note says that the edge was met.
    pub is_met: bool,
    /// The fate of what the edge names. `Living` if it was not read.
    pub fate: Fate,
}

/// The transaction that looks at a held job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// A transaction that is about to commit, and completes a predecessor.
    Commit,
    /// The duty.
    Duty,
}

/// A held job.
#[derive(Clone, Debug)]
pub struct Held {
    /// The transaction that looks at the job.
    pub decider: Decider,
    /// The condition under which the job is released.
    pub upon: Upon,
    /// What the job's own time says.
    pub time: Time,
    /// True if the job is a flow that goes to no worker.
    pub ends_by_itself: bool,
    /// One for each edge, without a seal that is met.
    pub waits: Vec<Wait>,
}

/// What is done about a held job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It stays held. A note about each edge of `Held::newly_met` is due.
    Hold,
    /// It goes to its lane.
    Release,
    /// It completes without a run: a flow that goes to no worker.
    Complete,
    /// It ends without a run, because of the wait of this position and its fate.
    Skip(usize, Fate),
    /// A commit does nothing about it. The duty looks at it.
    Leave,
}

impl Held {
    /// True if the job is a flow, so it waits for its members.
    pub fn is_flow(&self) -> bool {
        self.waits.iter().any(|wait| wait.is_for == WaitsFor::Members)
    }

    /// True if the job is left to the duty, whatever the fates are.
    pub fn is_left(&self) -> bool {
        self.decider == Decider::Commit && self.is_flow()
    }

    /// Returns the fate that counts for a wait without a look at what it names. `None`: the fate must be read.
    fn known_fate(&self, wait: &Wait) -> Option<Fate> {
        let is_open = || self.waits.iter().any(|wait| wait.is_for == WaitsFor::Seal);
        if wait.is_met || self.time == Time::Over {
            Some(Fate::Completed)
        } else if wait.is_for != WaitsFor::Job && is_open() {
            Some(Fate::Living)
        } else {
            None
        }
    }

    /// True if the fate of the wait of this position must be read.
    pub fn needs_fate(&self, position: usize) -> bool {
        self.known_fate(&self.waits[position]).is_none()
    }

    /// Returns the fates that count, in the order of the waits.
    fn fates(&self) -> impl Iterator<Item = Fate> + Clone {
        self.waits.iter().map(|wait| self.known_fate(wait).unwrap_or(wait.fate))
    }

    /// Returns what is done about the job.
    pub fn judge(&self) -> Act {
        let verdict = verdict_of(self.upon, self.fates(), self.time);
        if self.decider == Decider::Commit && (self.is_flow() || verdict != Verdict::Release || !self.is_final()) {
            return Act::Leave;
        }
        match verdict {
            Verdict::Hold => Act::Hold,
            Verdict::Release if self.ends_by_itself => Act::Complete,
            Verdict::Release => Act::Release,
            Verdict::Skip => {
                let mut lost = self.fates().enumerate().filter(|(_, fate)| fate.is_lost());
                let (position, fate) =
                    lost.next().or_else(|| self.fates().enumerate().next()).unwrap_or((0, Fate::Gone));
                Act::Skip(position, fate)
            }
        }
    }

    /// True if nothing can take a release back. If the ending transaction rolls back, any other verdict may become
    /// wrong, above all one that follows from a death. And while another predecessor lives, its end may be in progress
    /// and not see the end of this one.
    fn is_final(&self) -> bool {
        match self.upon {
            Upon::Any => self.fates().any(|fate| fate == Fate::Completed),
            _ => self.fates().all(|fate| fate == Fate::Completed),
        }
    }

    /// Returns the positions of jobs that have ended as the condition asks and have no note about it. Such a job may
    /// have been deleted before the other predecessors have ended, so a note must record that its edge is met.
    pub fn newly_met(&self) -> impl Iterator<Item = usize> {
        let waits = self.waits.iter().zip(self.fates()).enumerate();
        let is_new = |wait: &Wait, fate| !wait.is_met && wait.is_for != WaitsFor::Members && self.upon.is_met_by(fate);
        waits.filter(move |(_, (wait, fate))| is_new(wait, *fate)).map(|(position, _)| position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FATES: [Fate; 6] = [Fate::Living, Fate::Completed, Fate::Dead, Fate::Buried, Fate::Cancelled, Fate::Gone];

    fn fate() -> impl Strategy<Value = Fate> {
        prop::sample::select(&FATES[..])
    }

    fn time() -> impl Strategy<Value = Time> {
        prop::sample::select(&[Time::Ahead, Time::Due, Time::Over][..])
    }

    fn decider() -> impl Strategy<Value = Decider> {
        prop::sample::select(&[Decider::Commit, Decider::Duty][..])
    }

    /// A job with at least one edge. A flow has one edge to its members, and one to its seal if it is open.
    fn held() -> impl Strategy<Value = Held> {
        let upon = prop::sample::select(&[Upon::Completed, Upon::Any, Upon::Failed, Upon::Ended, Upon::Overdue][..]);
        let jobs = prop::collection::vec((fate(), prop::bool::weighted(0.2)), 0..5);
        let flow = prop::option::weighted(0.4, (fate(), any::<bool>(), any::<bool>()));
        (decider(), upon, time(), jobs, flow).prop_filter_map("no edge", |(decider, upon, time, jobs, flow)| {
            let mut waits = Vec::new();
            if let Some((fate, is_open, _)) = flow {
                waits.push(Wait { is_for: WaitsFor::Members, is_met: false, fate });
                waits.extend(is_open.then_some(Wait { is_for: WaitsFor::Seal, is_met: false, fate: Fate::Living }));
            }
            waits.extend(jobs.iter().map(|&(fate, is_met)| Wait { is_for: WaitsFor::Job, is_met, fate }));
            let ends_by_itself = flow.is_some_and(|(.., ends_by_itself)| ends_by_itself);
            (!waits.is_empty()).then_some(Held { decider, upon, time, ends_by_itself, waits })
        })
    }

    fn is_release(act: Act) -> bool {
        matches!(act, Act::Release | Act::Complete)
    }

    /// Says in the words of the manual whether the job may be released.
    fn may_be_released(held: &Held) -> bool {
        let is_open = held.waits.iter().any(|wait| wait.is_for == WaitsFor::Seal);
        let fate = |wait: &Wait| match wait {
            Wait { is_met: true, .. } => Fate::Completed,
            Wait { is_for: WaitsFor::Members | WaitsFor::Seal, .. } if is_open => Fate::Living,
            wait => wait.fate,
        };
        let fates: Vec<Fate> = held.waits.iter().map(fate).collect();
        let is_dead = |fate: &Fate| matches!(fate, Fate::Dead | Fate::Buried);
        held.time == Time::Over
            || match held.upon {
                Upon::Completed => fates.iter().all(|fate| *fate == Fate::Completed),
                Upon::Any => fates.contains(&Fate::Completed),
                Upon::Failed => fates.iter().any(is_dead),
                Upon::Ended => !fates.contains(&Fate::Living),
                Upon::Overdue => held.time == Time::Due,
            }
    }

    proptest! {
        #![proptest_config(crate::cases(2000))]

        #[test]
        fn nothing_is_released_before_its_condition_holds(held in held()) {
            if is_release(held.judge()) {
                prop_assert!(may_be_released(&held));
            }
        }

        #[test]
        fn the_duty_releases_all_whose_condition_holds(held in held()) {
            let held = Held { decider: Decider::Duty, ..held };
            // An overdue job ends unrun if all predecessors have ended without a death that a retry can take back.
            if held.upon != Upon::Overdue || held.time == Time::Over {
                prop_assert_eq!(is_release(held.judge()), may_be_released(&held));
            }
        }

        #[test]
        fn a_commit_only_makes_plain_releases_that_the_duty_makes_too(held in held()) {
            let held = Held { decider: Decider::Commit, ..held };
            let by_duty = Held { decider: Decider::Duty, ..held.clone() }.judge();
            match held.judge() {
                Act::Release => prop_assert!(!held.is_flow() && by_duty == Act::Release),
                act => prop_assert_eq!(act, Act::Leave),
            }
            prop_assert!(!held.is_left() || held.judge() == Act::Leave);
        }

        #[test]
        fn a_release_by_a_commit_is_right_whatever_becomes_of_the_other_predecessors(
            held in held(), others in prop::collection::vec(fate(), 8),
        ) {
            let held = Held { decider: Decider::Commit, ..held };
            if held.judge() == Act::Release {
                let mut later = Held { decider: Decider::Duty, ..held };
                let open = later.waits.iter_mut().zip(others).filter(|(wait, _)| wait.fate != Fate::Completed);
                open.for_each(|(wait, fate)| wait.fate = fate);
                prop_assert_eq!(later.judge(), Act::Release);
            }
        }

        #[test]
        fn a_flow_that_takes_members_does_not_end_by_them(held in held()) {
            let is_open = held.waits.iter().any(|wait| wait.is_for == WaitsFor::Seal);
            let has_other_jobs = held.waits.iter().any(|wait| wait.is_for == WaitsFor::Job);
            let is_of_time = held.time == Time::Over || held.upon == Upon::Overdue;
            if is_open && !has_other_jobs && !is_of_time {
                prop_assert!(matches!(held.judge(), Act::Hold | Act::Leave));
            }
        }

        #[test]
        fn a_time_releases_only_jobs_that_heed_it(held in held()) {
            let at = |time| Held { time, decider: Decider::Duty, ..held.clone() }.judge();
            prop_assert!(is_release(at(Time::Over)), "a job does not wait beyond its time");
            if held.upon == Upon::Overdue {
                prop_assert!(!is_release(at(Time::Ahead)), "an overdue job is released before its time");
                prop_assert!(at(Time::Due) != Act::Hold, "an overdue job is held beyond its time");
            } else {
                prop_assert_eq!(at(Time::Ahead), at(Time::Due));
            }
        }

        #[test]
        fn jobs_of_dropped_queues_hold_nothing_up_and_complete_nothing(
            held in held(), lost in prop::collection::vec(any::<bool>(), 8),
        ) {
            let mut held = Held { decider: Decider::Duty, time: Time::Ahead, ends_by_itself: false, ..held };
            held.waits.retain(|wait| wait.is_for == WaitsFor::Job && !wait.is_met);
            let dropped = |buried| if buried { Fate::Buried } else { Fate::Gone };
            held.waits.iter_mut().zip(lost).for_each(|(wait, buried)| wait.fate = dropped(buried));
            if !held.waits.is_empty() {
                let has_dead = held.waits.iter().any(|wait| wait.fate == Fate::Buried);
                let is_met = held.upon == Upon::Ended || held.upon == Upon::Failed && has_dead;
                prop_assert_eq!(held.judge() == Act::Release, is_met);
                prop_assert_eq!(matches!(held.judge(), Act::Skip(..)), !is_met);
            }
        }

        #[test]
        fn a_job_is_held_only_while_a_fate_can_change(held in held()) {
            if held.judge() == Act::Hold {
                prop_assert!(held.fates().any(|fate| matches!(fate, Fate::Living | Fate::Dead)));
            }
        }

        #[test]
        fn a_skip_names_a_predecessor_that_counts_against_the_job(held in held()) {
            if let Act::Skip(position, fate) = held.judge() {
                prop_assert_eq!(held.fates().nth(position), Some(fate));
                prop_assert!(fate != Fate::Living);
                prop_assert!(fate.is_lost() || held.fates().all(|fate| !fate.is_lost()));
            }
        }

        #[test]
        fn a_noted_edge_stays_met_whatever_becomes_of_its_job(
            held in held(), later in prop::collection::vec(fate(), 8),
        ) {
            let before = held.judge();
            if before == Act::Hold {
                let mut noted = held.clone();
                for position in held.newly_met() {
                    noted.waits[position].is_met = true;
                    noted.waits[position].fate = later[position];
                    prop_assert!(!noted.needs_fate(position));
                }
                prop_assert_eq!(noted.judge(), Act::Hold);
                prop_assert_eq!(noted.newly_met().count(), 0);
            }
        }

        #[test]
        fn a_fate_that_need_not_be_read_changes_nothing(held in held(), others in prop::collection::vec(fate(), 8)) {
            let mut other = held.clone();
            for (position, fate) in others.into_iter().enumerate().take(held.waits.len()) {
                if !held.needs_fate(position) {
                    other.waits[position].fate = fate;
                }
            }
            prop_assert_eq!(other.judge(), held.judge());
        }

        #[test]
        fn the_order_of_the_edges_changes_nothing(held in held()) {
            let mut other = held.clone();
            other.waits.reverse();
            let kind = |act| if let Act::Skip(..) = act { Act::Skip(0, Fate::Gone) } else { act };
            prop_assert_eq!(kind(other.judge()), kind(held.judge()));
        }
    }
}
