//! Steps about queues: their settings, their end, and the NOTIFY that they ask for.
//!
//! Responsible for what memory keeps of a queue. Not responsible for waking the sessions that wait for the queue, which
//! happens when they can know of the change (`tell`).
//!
//! Invariant: a NOTIFY that a rolled-back transaction had sent is sent again.

use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum QueueStep {
    /// The queue was resumed, altered or paused: the sessions that wait for this lane must look again.
    Changed { lane: i32, paused: bool },
    /// The limits of the queue with this lane were altered.
    LimitsAltered { lane: i32 },
    /// The stage was removed from its queue. The rows of attempts that have ended there stay.
    StageRemoved { lane: i32 },
    /// The queue was dropped.
    Dropped { lane: i32 },
    /// The queue asks for NOTIFY and got jobs.
    NotifyDue { lane: i32 },
    /// The NOTIFY was sent.
    Notified { lane: i32 },
}

impl QueueStep {
    pub(super) fn is_told_later(self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Dropped { .. } | Self::StageRemoved { .. })
    }

    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Changed { lane, paused } => {
                to.instance.drops.forget(lane);
                to.frontier.set_paused(to.number, lane, paused);
            }
            Self::Dropped { lane } | Self::StageRemoved { lane } => to.instance.drops.end(lane, true),
            Self::NotifyDue { lane } => ask_for_notify(to, lane),
            Self::LimitsAltered { .. } | Self::Notified { .. } => {}
        }
    }

    pub(super) fn roll_back(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Dropped { lane } | Self::StageRemoved { lane } => to.instance.drops.end(lane, false),
            Self::Notified { lane } => ask_for_notify(to, lane),
            Self::Changed { .. } | Self::LimitsAltered { .. } | Self::NotifyDue { .. } => {}
        }
    }
}

/// Asks the worker to send a NOTIFY for this lane.
fn ask_for_notify(to: &mut Target<'_, '_>, lane: i32) {
    let lanes = &mut to.instance.notify;
    if !lanes.contains(&lane) {
        // If the list is full, this lane takes the first place from another one. With so many busy queues, both will
        // soon ask again.
        let free = lanes.iter().position(|&other| other == 0).unwrap_or(0);
        lanes[free] = lane;
        to.wake_worker();
    }
}
