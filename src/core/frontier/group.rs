//! The slot of a group of jobs.
//!
//! Responsible for the fields of a slot. Not responsible for the order of groups (`turns`) nor for their changes
//! (`groups`, `serving`).

use super::ahead::Ahead;
use super::limits::{Gate, GateSlot};
use super::rank::Rank;
use super::session::Session;
use super::slots::{Listed, Slot};

/// The number of a group's slot.
pub(super) type GroupSlot = Slot<Group>;

/// The list of its lane in which a group stands.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum List {
    /// The group stands in no list.
    #[default]
    None,
    /// The turns of its lane: the group may start a job.
    Turns,
    /// The served groups of its lane: a session serves it, and jobs that the session leaves come before larger
    /// priorities.
    Served,
    /// The idle groups of its lane: nothing of it waits. It is remembered for a while, so that other groups come first.
    Idle,
    /// The resting groups of all lanes: it has waiting jobs and is at its rate.
    Resting,
}

/// A group. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    pub(super) key: i64,
    pub(super) instance: u32,
    pub(super) lane: i32,
    pub(super) hash: i64,
    /// Its gate. `None`: the slot is free.
    pub(super) gate: Option<Slot<Gate>>,
    pub(super) running: u32,
    /// All its parked attempts rank behind this.
    pub(super) position: Rank,
    /// The smallest position to which parking would have moved `position` since a session began to serve the group.
    pub(super) spill: Rank,
    /// The session that serves it. `None`: no session serves it.
    pub(super) server: Option<Slot<Session>>,
    /// The attempts that were read ahead of it. While a session serves it, there are none.
    pub(super) ahead: Option<Slot<Ahead>>,
    /// Its parent in a tree.
    pub(super) up: Option<GroupSlot>,
    /// The lane's count of hand-outs when the group was last served.
    pub(super) served_at: u64,
    pub(super) list: List,
    /// 1: the group is *held*, because the attempt that must run first is not due.
    pub(super) held: u8,
    /// 1: an attempt has come or gone since a session began to serve the group.
    pub(super) has_news: u8,
    /// How many attempts the serving session asks for. 255: that many or more.
    pub(super) wanted: u8,
    /// No attempt of the group that may start has a smaller priority. The value does not change while the group has a
    /// turn.
    pub(super) urgency: i32,
    /// The sort key in a tree: the urgency, or the time until which the group rests. It does not change while the group
    /// is in the tree.
    pub(super) order: i64,
    /// Its neighbours in a list, or its right and left child in a tree.
    pub(super) next: Option<GroupSlot>,
    pub(super) prev: Option<GroupSlot>,
}

impl Listed for Group {
    #[inline]
    fn next_free(&self) -> Option<Slot<Self>> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<Slot<Self>>) {
        self.next = next;
    }
}

impl Group {
    /// Returns the gate of a slot that is in use.
    #[inline]
    pub(super) fn gate(&self) -> GateSlot {
        self.gate.unwrap_or(GateSlot::BEYOND)
    }

    /// Returns the rank behind which all parked attempts lie, also while a session serves the group.
    pub(super) fn from(&self) -> Rank {
        self.position.min(self.spill)
    }
}

/// Returns the key under which a gate finds a group. In a queue with stages each lane has a group of its own.
pub(super) fn key_of(lane: i32, hash: i64) -> i64 {
    hash ^ i64::from(lane).wrapping_mul(0x2545_f491_4f6c_dd1d)
}
