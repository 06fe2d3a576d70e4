//! What a process remembers of flows: how far it has looked at their members.
//!
//! Responsible for remembering. Not responsible for looking (`members`).
//!
//! Invariant: all of it may be forgotten at any time. Then a look at all members is needed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use pg_queue_core::after::Fate;

use crate::duty::release::work::look_later;

/// If a flow's first member ends while the newest one lives, the flow is looked at after this long, in microseconds.
const MIN_LOOK_INTERVAL_US: i64 = 20_000;
/// A process remembers at most this many flows.
const MAX_FLOWS: usize = 10_000;

/// The known deaths among the members of a flow.
#[derive(Clone, Copy, Default)]
pub enum Deaths {
    #[default]
    Unknown,
    None,
    /// This member has died. It may have been retried since.
    One(i64),
}

/// The known completions among the members of a flow.
#[derive(Clone, Copy)]
pub enum Completions {
    /// None, up to this attempt. The members up to there are watched.
    NoneTo(i64),
    /// A member has completed.
    Some,
}

/// What this process knows of a flow. A process that knows nothing looks at all members.
#[derive(Clone, Copy)]
pub struct Known {
    /// No attempt up to this id holds up the flow.
    pub passed: i64,
    /// The newest member that was living.
    pub newest: Option<i64>,
    pub looked_at: i64,
    pub deaths: Deaths,
    pub completions: Completions,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            passed: i64::MIN,
            newest: None,
            looked_at: i64::MIN,
            deaths: Deaths::Unknown,
            completions: Completions::NoneTo(i64::MIN),
        }
    }
}

thread_local! {
    static FLOWS: RefCell<HashMap<i64, Known>> = RefCell::default();
    /// The value of `Awaited::epoch` to which `FLOWS` belongs.
    static EPOCH: Cell<u64> = const { Cell::new(0) };
}

/// Forgets a flow that is no longer held up.
pub fn forget_flow(flow: i64) {
    FLOWS.with_borrow_mut(|flows| flows.remove(&flow));
}

/// Forgets everything, for another database.
pub fn forget() {
    FLOWS.take();
}

/// Forgets which flows have no dead and no completed member, if the value of `Awaited::epoch` has changed. Another
/// process may have been told of such a member. And while a look at everything is ordered, deaths are not handed over.
pub fn catch_up(epoch: u64) {
    if EPOCH.replace(epoch) != epoch {
        FLOWS.with_borrow_mut(|flows| {
            for known in flows.values_mut() {
                known.deaths = Deaths::Unknown;
                if let Completions::NoneTo(_) = known.completions {
                    known.completions = Completions::NoneTo(i64::MIN);
                }
            }
        });
    }
}

/// Returns what is known of a flow.
pub fn of(flow: i64) -> Known {
    FLOWS.with_borrow(|flows| flows.get(&flow).copied().unwrap_or_default())
}

/// Changes what is known of a flow.
pub fn remember(flow: i64, change: impl FnOnce(&mut Known)) {
    FLOWS.with_borrow_mut(|flows| {
        if flows.len() >= MAX_FLOWS && !flows.contains_key(&flow) {
            flows.clear();
        }
        change(flows.entry(flow).or_default());
    });
}

/// Called when a member that was handed over has ended. Its flow is looked at immediately or a little later.
pub fn ended(flow: i64, job_id: i64, fate: Fate) {
    if fate == Fate::Completed {
        remember(flow, |known| known.completions = Completions::Some);
    }
    let known = of(flow);
    let at = match fate {
        Fate::Dead | Fate::Buried => {
            remember(flow, |known| known.deaths = Deaths::One(job_id));
            i64::MIN
        }
        _ if known.newest.is_none_or(|newest| newest == job_id) => i64::MIN,
        _ => known.looked_at.saturating_add(MIN_LOOK_INTERVAL_US),
    };
    look_later(flow, at);
}
