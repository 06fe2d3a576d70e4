//! The steps: each change of shared memory that a transaction makes at its end, what it does at a commit, and what
//! undoes it at a rollback.
//!
//! Responsible for the life of attempts, and for handing each other kind of step to its own file. Not responsible for
//! the list of a transaction's steps (`pending`), nor for the order in which they are applied (`settle`).
//!
//! Postgres makes a commit visible, then runs the callback that leads here, then releases locks; on abort the rows are
//! dead before the callback runs. So whatever the frontier learns here, the logs already say.
//!
//! Invariant: nothing here can fail: it allocates nothing and runs no SQL.

pub mod expiry;
pub mod extension;
pub mod flow;
pub mod queue;
pub mod schedule;
pub mod segment;
pub mod topic;

use pg_queue_core::frontier::{Disconnect, MISSED_CANCEL, MISSED_RERUN, Ready, Running};
use pg_queue_core::totals::End;

use crate::pg::{session, time};
use crate::transaction::entries;
use crate::transaction::target::{Target, Wake};

pub use expiry::ExpiryStep;
pub use extension::ExtensionStep;
pub use flow::FlowStep;
pub use queue::QueueStep;
pub use schedule::ScheduleStep;
pub use segment::SegmentStep;
pub use topic::TopicStep;

/// One step of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An attempt was inserted. It may run at `run_at`, in microseconds as `timestamptz` counts them; 0: immediately.
    /// If `has_moved`, the attempt existed before, in another segment, and is not counted as new. If `is_retry`, it has
    /// a number above 1, and in strict order the others of its group wait for it. If `is_first`, it makes the job.
    Enqueued {
        lane: i32,
        ready: Ready,
        run_at: i64,
        has_moved: bool,
        is_retry: bool,
        is_first: bool,
    },
    /// An attempt was taken for a worker, under a lease in microseconds. `started_at`: when, as `timestamptz`.
    /// `disconnect`: what the end of the connection does to the claim.
    Taken {
        id: i64,
        lane: i32,
        lease: i64,
        started_at: i64,
        disconnect: Disconnect,
    },
    /// An attempt could not be claimed because an open transaction seemed to have claimed it; that transaction may roll
    /// back. This transaction's own claim row, inserted without result, makes the attempt seem claimed to other
    /// sessions until this transaction ends. So the attempt goes back to the frontier after a commit and after a
    /// rollback.
    Missed {
        lane: i32,
        ready: Ready,
    },
    /// Rows of this lane were claimed without telling the frontier of each. If that is undone, the frontier must read
    /// the lane again.
    Unseen {
        lane: i32,
    },
    /// A running attempt is being ended. `end`: how, once that is decided (`pending::decide`). `is_known`: the frontier
    /// has the attempt in `running`, which may be full.
    Ending {
        id: i64,
        lane: i32,
        is_known: bool,
        end: Option<End>,
    },
    /// An attempt was taken by the system, which ends it unrun.
    EndedUnrun {
        id: i64,
        lane: i32,
    },
    /// `count` waiting attempts were ended unrun, and the frontier has forgotten them already.
    Purged {
        lane: i32,
        count: i64,
    },
    /// An attempt that was ended unrun has completed or died, and counts as such.
    EndCounted {
        lane: i32,
        end: End,
    },
    /// A longer lease than any before, in microseconds, was noted for a running attempt, and lasts until `deadline` at
    /// least. `i64::MIN`: memory had the attempt, and knows the deadline.
    Lengthened {
        id: i64,
        lease: i64,
        deadline: i64,
    },
    /// Another run was asked for, to follow the run of an attempt that is taken.
    RerunAsked {
        id: i64,
    },
    /// A running attempt is to be cancelled.
    CancelRequested {
        lane: i32,
        ready: Ready,
    },
    Queue(QueueStep),
    Schedule(ScheduleStep),
    Flow(FlowStep),
    Topic(TopicStep),
    Segment(SegmentStep),
    Extension(ExtensionStep),
    Expiry(ExpiryStep),
}

/// Lets `pending::record` take the step of a kind as it is.
macro_rules! kinds {
    ($($kind:ident($step:ident))*) => {$(
        impl From<$step> for Step {
            fn from(step: $step) -> Self {
                Self::$kind(step)
            }
        }
    )*};
}

kinds! {
    Queue(QueueStep) Schedule(ScheduleStep) Flow(FlowStep)
    Topic(TopicStep) Segment(SegmentStep) Extension(ExtensionStep)
    Expiry(ExpiryStep)
}

impl Step {
    /// True if other sessions must not be told of the step before they can know of the change: see
    /// `callbacks::on_resource_release`.
    pub fn is_told_later(self) -> bool {
        match self {
            Self::Queue(step) => step.is_told_later(),
            Self::Extension(step) => step.is_told_later(),
            _ => false,
        }
    }

    /// True if a step that ends an attempt may end its job, too. If the attempt was ended unrun, the step cannot tell.
    fn may_end_job(self) -> bool {
        match self {
            Self::Ending { end, .. } => end.is_none_or(|end| !end.has_next),
            _ => true,
        }
    }

    /// Applies the step, because its transaction was committed.
    pub fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Enqueued { lane, ready, run_at, .. } => enqueued(to, lane, ready, run_at),
            Self::Taken { id, lease, started_at, disconnect, .. } => {
                let deadline = (**to.now).saturating_add(lease);
                let root = &mut to.instance.deadlines;
                if let Some(entry) = to.frontier.claimed(root, to.number, id, lease, deadline, disconnect) {
                    entry.started_at = started_at;
                }
                to.wake_worker_by(deadline);
            }
            Self::Missed { lane, ready } => to.wake.session(to.frontier.push(to.number, lane, ready)),
            // Attempts that held up their group may be among the rows.
            Self::Unseen { lane } => {
                to.frontier.release_held(to.number);
                to.wake.session(to.frontier.pass_on(to.number, lane));
            }
            Self::Ending { is_known: false, .. } => {
                if self.may_end_job() {
                    to.job_ended(0);
                }
            }
            Self::Ending { id, .. } | Self::EndedUnrun { id, .. } => {
                let entry = to.frontier.ended(&mut to.instance.deadlines, to.number, id).map(|(entry, woken)| {
                    to.count_rows(entry.place.segment, 0, 1);
                    to.wake.session(woken);
                    hand_requests_on(to, &entry, matches!(self, Self::EndedUnrun { .. }));
                    if entry.started_at != 0 {
                        to.busy_us = time::transaction_end_us().saturating_sub(entry.started_at).max(0);
                    }
                    entry
                });
                if self.may_end_job() {
                    to.job_ended(entry.map_or(0, |entry| entry.rank.job_id));
                }
            }
            // These only count: see `commit_counts`.
            Self::Purged { .. } | Self::EndCounted { .. } => {}
            Self::Lengthened { id, lease, deadline } => {
                to.frontier.running.lengthen(&mut to.instance.deadlines, to.number, id, lease, deadline);
            }
            Self::RerunAsked { id } => {
                if let Some(latch) = to.instance.rerun_asked(to.frontier, id) {
                    to.wake.worker = Some(latch);
                }
            }
            Self::CancelRequested { lane, ready } => cancel_requested(to, lane, ready),
            Self::Queue(step) => step.commit(to),
            Self::Schedule(step) => step.commit(to),
            Self::Flow(step) => step.commit(to),
            Self::Topic(step) => step.commit(to),
            Self::Segment(step) => step.commit(to),
            Self::Extension(step) => step.commit(to),
            Self::Expiry(step) => step.commit(to),
        }
    }

    /// Undoes the step, because its transaction or subtransaction was rolled back.
    pub fn roll_back(self, to: &mut Target<'_, '_>) {
        match self {
            // The dead row takes up space until the segment is emptied.
            Self::Enqueued { lane, ready, is_retry, .. } => {
                to.frontier.withdraw(to.number, lane, ready);
                if is_retry {
                    to.frontier.retry_undone(to.number, lane, ready.group, ready.id);
                }
                to.count_rows(ready.place.segment, 1, 1);
            }
            Self::Taken { id, .. } | Self::EndedUnrun { id, .. } => {
                if let Some(latch) = to.instance.entry_leaves(to.frontier, id) {
                    to.wake.worker = Some(latch);
                }
                to.wake.session(to.frontier.give_back(&mut to.instance.deadlines, to.number, id, **to.now));
                if to.frontier.running.next_deadline(to.instance.deadlines) == Some(i64::MIN) {
                    to.wake_worker();
                }
            }
            Self::Missed { lane, ready } => to.wake.session(to.frontier.push(to.number, lane, ready)),
            Self::Unseen { lane } => {
                to.frontier.invalidate(to.number);
                to.wake.session(to.frontier.pass_on(to.number, lane));
            }
            Self::Ending { id, is_known: true, .. } => {
                to.frontier.running.undo_end(&mut to.instance.deadlines, to.number, id);
                if let Some(deadline) = to.frontier.running.next_deadline(to.instance.deadlines) {
                    to.wake_worker_by(deadline);
                }
            }
            Self::Queue(step) => step.roll_back(to),
            Self::Schedule(step) => step.roll_back(to),
            Self::Extension(step) => step.roll_back(to),
            Self::Expiry(step) => step.roll_back(to),
            Self::Ending { .. }
            | Self::Purged { .. }
            | Self::EndCounted { .. }
            | Self::Lengthened { .. }
            | Self::RerunAsked { .. }
            | Self::CancelRequested { .. }
            | Self::Flow(_)
            | Self::Topic(_)
            | Self::Segment(_) => {}
        }
    }
}

/// Hands a committed attempt to the frontier, or to the worker's clock if it is not due.
fn enqueued(to: &mut Target<'_, '_>, lane: i32, mut ready: Ready, run_at: i64) {
    if ready.place.is_indexed && entries::may_be_lost(to.instance.storage.parked_version) {
        ready.place.is_indexed = false;
    }
    to.count_rows(ready.place.segment, 1, 0);
    let due_to = to.instance.due.to;
    let is_due = run_at == 0 || to.instance.due.is_passed(run_at);
    if to.instance.due.to != due_to {
        // The clock was set back: the worker has to find out what falls due behind the cursor.
        to.wake_worker();
    }
    if is_due {
        if to.wake.lane.0 != lane {
            to.wake.lane = (lane, 0);
        }
        if to.wake.lane.1 < Wake::SESSIONS_PER_LANE {
            let woken = to.frontier.push(to.number, lane, ready);
            to.wake.lane.1 += usize::from(woken.is_some());
            to.wake.session(woken);
        } else {
            to.frontier.push_quietly(to.number, lane, ready);
        }
    } else if run_at < to.instance.due.next {
        to.instance.due.next = run_at;
        to.wake_worker();
    }
}

/// Hands the requests about an attempt that has ended to the worker, as far as the session that has ended it could not
/// know of them.
fn hand_requests_on(to: &mut Target<'_, '_>, entry: &Running, is_unrun: bool) {
    // The attempt's command may still run in the server, where the worker can stop it.
    if entry.disconnect.expires() && entry.session != session::session() + 1 {
        to.wake_worker();
    }
    // The session that has ended the attempt has made the next run, unless it could not know that one was asked for.
    if entry.missed & MISSED_RERUN != 0 || entry.rerun != 0 && is_unrun {
        to.wake.worker = Some(to.instance.miss_rerun(entry.id));
    }
    if entry.missed & MISSED_CANCEL != 0 {
        to.wake.worker = Some(to.instance.miss_cancel(entry.id));
    }
}

fn cancel_requested(to: &mut Target<'_, '_>, lane: i32, ready: Ready) {
    if to.frontier.running.request_cancel(to.number, ready.id)
        // The attempt is not running any more: its claim was rolled back before this commit, or it has ended and its
        // job goes on.
        || to.frontier.expire_now(&mut to.instance.deadlines, to.number, lane, ready)
    {
        // The attempt's command may run in the server, where the worker can stop it.
        to.wake_worker();
    } else {
        to.wake.worker = Some(to.instance.miss_cancel(ready.id));
    }
}
