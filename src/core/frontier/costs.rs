//! Costs: jobs that count for a rate as more or less than one.
//!
//! What a job costs is known only when its row has been read. So a claim takes attempts as if each cost 1, and then
//! says what they cost ([`price`]), before it inserts its claims. What does not fit goes back, and the first such job
//! is *dear*: nothing else of its gate or group starts until as much is free as it costs, or as the whole rate allows.
//! When it is taken again, its whole cost is reserved, so other claims cannot keep it waiting.
//!
//! Invariant: no more than the rate starts within any period, but for a job that alone costs more, and for what a
//! worker says afterwards ([`used`]).

use super::dear::{Dear, fits};
use super::limits::Claimer;
use super::memory::{Backlog, Frontier};
use super::rates::{OF_GROUP, OF_QUEUE};
use super::ready::Ready;
use super::running::Running;
use super::slot::{GateSlot, RateSlot};

/// A taken attempt whose cost is known.
#[derive(Clone, Copy, Debug)]
pub struct Priced {
    /// The attempt.
    pub id: i64,
    /// What it costs.
    pub cost: u32,
    /// Whether it may start. If not, the caller gives it back.
    pub may_start: bool,
}

/// Counts an open start of an attempt for the rates that its queue and its group have. Returns these, as
/// [`Running::token`], and what it counts for them. The caller must have made sure that there is room for a record.
pub(super) fn open_start(backlog: &mut Backlog<'_>, gate: GateSlot, lane: i32, entry: &Ready) -> (u8, u32) {
    let limits = backlog.gates[gate].limits;
    let has_rate = entry.group != 0 && limits.group_rate > 0;
    let record = if has_rate { backlog.record_or_create(gate, lane, entry.group) } else { None };
    if limits.rate == 0 && record.is_none() {
        return (0, 0);
    }
    let cost = reserve(backlog, gate, record, entry.id);
    let mut token = 0;
    if limits.rate > 0 {
        token |= OF_QUEUE;
        backlog.gates[gate].window.open += u64::from(cost);
    }
    if let Some(record) = record {
        token |= OF_GROUP;
        backlog.starts[record].open += u64::from(cost);
    }
    (token, cost)
}

/// Returns what to count for an attempt whose cost may be known: its cost, if the rates have as much left, else 1. The
/// dear jobs have had their turn: what is free is enough for them.
fn reserve(backlog: &mut Backlog<'_>, gate: GateSlot, record: Option<RateSlot>, id: i64) -> u32 {
    let limits = backlog.gates[gate].limits;
    let of_gate = std::mem::take(&mut backlog.gates[gate].dear);
    let of_group = record.map(|record| std::mem::take(&mut backlog.starts[record].dear)).unwrap_or_default();
    let cost = of_gate.cost_of(id).max(of_group.cost_of(id));
    let fits_gate = limits.rate == 0 || fits(cost, limits.rate, backlog.gates[gate].window.sum());
    let used = record.map(|record| backlog.starts.used(record, limits.period, *backlog.now));
    if fits_gate && used.is_none_or(|used| fits(cost, limits.group_rate, used)) { cost } else { 1 }
}

/// Says what attempts cost that the open transaction of the caller has taken, in the order in which it took them, and
/// which of them may start. Attempts of queues without a rate may.
pub fn price(frontier: &mut Frontier<'_>, instance: u32, claimer: &Claimer<'_>, all: &mut [Priced]) {
    *frontier.backlog.now = claimer.now.max(*frontier.backlog.now);
    // An attempt does not wait for those that rank behind it.
    for one in all.iter() {
        if let Some(slot) = frontier.running.find(instance, one.id)
            && let entry = frontier.running[slot]
            && let Some(gate) = entry.gate.filter(|_| entry.cost == 1)
        {
            count(&mut frontier.backlog, gate, &entry, 0);
            frontier.running[slot].cost = 0;
        }
    }
    for one in all {
        let Some(slot) = frontier.running.find(instance, one.id) else { continue };
        let entry = frontier.running[slot];
        let Some(gate) = entry.gate.filter(|_| entry.token != 0) else { continue };
        one.may_start = admits(&mut frontier.backlog, gate, &entry, one.cost);
        if one.may_start {
            count(&mut frontier.backlog, gate, &entry, one.cost);
            frontier.running[slot].cost = one.cost;
        } else {
            refund(&mut frontier.backlog, &entry, claimer);
        }
    }
}

/// True if an attempt that costs this may start.
fn admits(backlog: &mut Backlog<'_>, slot: GateSlot, entry: &Running, cost: u32) -> bool {
    let limits = backlog.gates[slot].limits;
    let (dear, is_reserved) = (Dear::new(entry.id, cost), entry.cost > 1);
    let gate = &mut backlog.gates[slot];
    gate.window.expire(limits.period, *backlog.now);
    gate.learn(cost);
    let others = gate.window.sum().saturating_sub(entry.cost.into());
    if entry.token & OF_QUEUE != 0 && !gate.dear.admits(dear, is_reserved, limits.rate, others) {
        return false;
    }
    let Some(record) = record_of(backlog, slot, entry) else { return true };
    let others = backlog.starts.used(record, limits.period, *backlog.now).saturating_sub(entry.cost.into());
    backlog.starts[record].dear.admits(dear, is_reserved, limits.group_rate, others)
}

/// Returns the record that counts an entry's open start.
fn record_of(backlog: &Backlog<'_>, gate: GateSlot, entry: &Running) -> Option<RateSlot> {
    if entry.token & OF_GROUP == 0 { None } else { backlog.starts.find(gate, entry.lane, entry.group) }
}

/// Lets an open start count as this much.
fn count(backlog: &mut Backlog<'_>, gate: GateSlot, entry: &Running, cost: u32) {
    if entry.token & OF_QUEUE != 0 {
        let open = &mut backlog.gates[gate].window.open;
        *open = changed(*open, entry.cost, cost);
    }
    if let Some(record) = record_of(backlog, gate, entry) {
        let open = &mut backlog.starts[record].open;
        *open = changed(*open, entry.cost, cost);
        relist(backlog, entry);
    }
}

/// Returns a sum in which one part is another now.
fn changed(sum: u64, from: u32, to: u32) -> u64 {
    (sum + u64::from(to)).saturating_sub(from.into())
}

/// Takes back what a group with fair shares was charged for a job that does not start.
fn refund(backlog: &mut Backlog<'_>, entry: &Running, claimer: &Claimer<'_>) {
    let Some(group) = backlog.group_slot(entry.instance, entry.lane, entry.group) else { return };
    if backlog.limits_of(&backlog.groups[group]).is_fair {
        backlog.unlist(group);
        let pass = &mut backlog.groups[group].pass;
        *pass = pass.saturating_sub(claimer.charge(entry.group));
        backlog.relist(group);
    }
}

/// Forgets a taken attempt that was dear, because the logs say that it does not wait any more.
pub fn gone(frontier: &mut Frontier<'_>, instance: u32, id: i64) {
    if let Some(entry) = frontier.running.entry(instance, id) {
        leaves(&mut frontier.backlog, instance, entry.lane, &entry.ready());
    }
}

/// Forgets that a job which is taken to be ended, or to get another place, was dear: nothing waits for it any more.
pub(super) fn leaves(backlog: &mut Backlog<'_>, instance: u32, lane: i32, entry: &Ready) {
    let Some(gate) = backlog.gates.of_lane(instance, lane).filter(|&gate| backlog.gates[gate].limits.costs != 0) else {
        return;
    };
    if backlog.gates[gate].dear.forget(entry.id) {
        backlog.gates[gate].opens_at = 0;
    }
    if let Some(record) = backlog.starts.find(gate, lane, entry.group)
        && backlog.starts[record].dear.forget(entry.id)
        && let Some(group) = backlog.group_slot(instance, lane, entry.group)
    {
        backlog.relist(group);
    }
}

/// Says how much of the rates a started attempt has really used. Less than was counted is taken from the time of its
/// start, more counts as a start now, and is not taken back. Returns a session to wake. `None`: memory has no room for
/// another group's starts.
pub fn used(frontier: &mut Frontier<'_>, instance: u32, id: i64, used: u32, now: i64) -> Option<Option<u32>> {
    *frontier.backlog.now = now.max(*frontier.backlog.now);
    let Some(slot) = frontier.running.find(instance, id) else { return Some(None) };
    let entry = frontier.running[slot];
    let Some(gate) = entry.gate else { return Some(None) };
    let backlog = &mut frontier.backlog;
    let is_open = entry.token != 0;
    if is_open {
        count(backlog, gate, &entry, used);
        frontier.running[slot].cost = used;
    } else {
        let known = u64::from(entry.cost) + u64::from(entry.more);
        let more = u64::from(used).saturating_sub(known) as u32;
        // What was reported on top of the start's cost stays, and so does a start that only the logs know.
        let has_start = entry.counted_at != 0;
        let less = if has_start { known.saturating_sub(used.into()).min(entry.cost.into()) as u32 } else { 0 };
        if !correct_group(backlog, gate, &entry, less, more) {
            return None;
        }
        let gate_of = &mut backlog.gates[gate];
        if gate_of.limits.rate > 0 {
            gate_of.window.take_back(entry.counted_at, less.into());
            gate_of.window.add(gate_of.limits.period, now, more.into());
        }
        let entry = &mut frontier.running[slot];
        (entry.cost, entry.more) = (entry.cost - less, entry.more + more);
    }
    if u64::from(used) >= u64::from(entry.cost) + u64::from(entry.more) {
        return Some(None);
    }
    // A session that is woken looks, and closes the gate again if nothing may start.
    frontier.backlog.gates[gate].opens_at = 0;
    Some(frontier.wake_at_gate(gate))
}

/// Corrects what a group's start counts. Returns false if there is no room for a record of the group.
fn correct_group(backlog: &mut Backlog<'_>, gate: GateSlot, entry: &Running, less: u32, more: u32) -> bool {
    let (limits, now) = (backlog.gates[gate].limits, *backlog.now);
    if entry.group == 0 || limits.group_rate == 0 {
        return true;
    }
    let known = backlog.starts.find(gate, entry.lane, entry.group);
    // If there is no record, what was counted has expired.
    let record = if more > 0 { backlog.record_or_create(gate, entry.lane, entry.group) } else { known };
    let Some(record) = record else { return more == 0 };
    backlog.starts.take_back(record, entry.counted_at, less.into());
    backlog.starts.add_starts(record, now, more.into(), limits.period, now);
    relist(backlog, entry);
    true
}

/// Lists an entry's group anew: it may rest until another time now.
fn relist(backlog: &mut Backlog<'_>, entry: &Running) {
    if let Some(group) = backlog.group_slot(entry.instance, entry.lane, entry.group) {
        backlog.relist(group);
    }
}
