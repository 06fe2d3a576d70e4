//! Shows the groups that have waiting jobs.
//!
//! Responsible for reading. Nothing here changes memory.

use super::group::Standing;
use super::memory::Backlog;
use super::rank::Rank;
use super::ready::Ready;

/// How many slots of groups one call reads.
pub const SLOTS_PER_CALL: usize = 1024;

/// A group with waiting jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitingGroup {
    /// The hash of its key.
    pub hash: i64,
    /// How many of its jobs run.
    pub running: u32,
    /// Whether it may start a job now. Those that may have turns in the order of `urgency` and `pass`.
    pub has_turn: bool,
    /// The priority of its next job, or a smaller one.
    pub urgency: i32,
    /// See `passes`.
    pub pass: u64,
    /// Its next attempt, if that was read ahead.
    pub next: Option<Ready>,
    /// The monotonic time until which a worker has throttled it. 0, or in the past: it is not throttled.
    pub closed_until: i64,
    /// Its waiting attempts rank behind this.
    pub after: Rank,
}

impl Backlog<'_> {
    /// Reads slots of groups from number `from` on, and writes those of this lane that have waiting jobs to `out`.
    /// Returns how many it has written, and where the next call goes on. `None`: there is no further slot.
    pub fn waiting_groups(
        &self,
        instance: u32,
        lane: i32,
        from: usize,
        out: &mut [WaitingGroup; SLOTS_PER_CALL],
    ) -> (usize, Option<usize>) {
        let groups = &self.groups;
        let mut found = 0;
        for slot in groups.slots().skip(from).take(SLOTS_PER_CALL) {
            let group = &groups[slot];
            if group.gate.is_none() || group.instance != instance || group.lane != lane || group.from() == Rank::MAX {
                continue;
            }
            out[found] = WaitingGroup {
                hash: group.hash,
                running: group.running,
                has_turn: group.standing == Standing::Turn || group.is_served(),
                urgency: group.urgency,
                pass: group.pass,
                next: groups.read_ahead(slot).first().copied(),
                closed_until: group.closed_until,
                after: group.from(),
            };
            found += 1;
        }
        let next = from + SLOTS_PER_CALL;
        (found, (next < groups.size()).then_some(next))
    }
}
