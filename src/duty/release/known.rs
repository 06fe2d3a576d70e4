//! What a process knows of flows: how far it has looked at their members.
//!
//! Responsible for remembering. Not responsible for looking (`members`).
//!
//! Invariant: all of it may be forgotten at any time, and then costs a look at all members.

use std::cell::RefCell;
use std::collections::HashMap;

use pg_queue_core::after::Fate;

use crate::duty::release::work::look_later;

/// Microseconds after which a flow is looked at again because its first member has ended, while the newest one lives.
const PACE: i64 = 20_000;
/// Flows of which a process remembers how far it has looked.
const KNOWN: usize = 10_000;

/// What is known of the deaths among the members of a flow.
#[derive(Clone, Copy, Default)]
pub enum Deaths {
    #[default]
    Unknown,
    None,
    /// This member has died; it may have been retried since.
    One(i64),
}

/// What this process knows of a flow. A process that knows nothing looks at all members.
#[derive(Clone, Copy)]
pub struct Known {
    /// No attempt up to this id holds the flow up.
    pub passed: i64,
    /// The newest member that lived.
    pub newest: Option<i64>,
    pub looked_at: i64,
    pub deaths: Deaths,
}

impl Default for Known {
    fn default() -> Self {
        Self { passed: i64::MIN, newest: None, looked_at: i64::MIN, deaths: Deaths::Unknown }
    }
}

thread_local! {
    static FLOWS: RefCell<HashMap<i64, Known>> = RefCell::default();
}

/// Forgets a flow that is held up no more.
pub fn forget_flow(flow: i64) {
    FLOWS.with_borrow_mut(|flows| flows.remove(&flow));
}

/// Forgets everything, for another database.
pub fn forget() {
    FLOWS.take();
}

/// Forgets which flows have no dead member: while a look at everything is ordered, deaths are not handed over.
pub fn forget_deaths() {
    FLOWS.with_borrow_mut(|flows| flows.values_mut().for_each(|known| known.deaths = Deaths::Unknown));
}

/// What is known of a flow.
pub fn of(flow: i64) -> Known {
    FLOWS.with_borrow(|flows| flows.get(&flow).copied().unwrap_or_default())
}

/// Changes what is known of a flow.
pub fn remember(flow: i64, change: impl FnOnce(&mut Known)) {
    FLOWS.with_borrow_mut(|flows| {
        if flows.len() >= KNOWN && !flows.contains_key(&flow) {
            flows.clear();
        }
        change(flows.entry(flow).or_default());
    });
}

/// Is called when a member that was handed over has ended: its flow is looked at, now or a little later.
pub fn ended(flow: i64, job_id: i64, fate: Fate) {
    let known = of(flow);
    let at = match fate {
        Fate::Dead => {
            remember(flow, |known| known.deaths = Deaths::One(job_id));
            i64::MIN
        }
        _ if known.newest.is_none_or(|newest| newest == job_id) => i64::MIN,
        _ => known.looked_at.saturating_add(PACE),
    };
    look_later(flow, at);
}
