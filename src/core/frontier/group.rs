//! The slot of a group.
//!
//! Responsible for what a slot holds. Not responsible for the order of groups (`turns`) nor for what is done with them
//! (`groups`, `serving`).

use super::rank::Rank;

/// The list of its lane in which a group stands.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum List {
    /// In none.
    #[default]
    None,
    /// The turns: it may start something.
    Turns,
    /// Those in the way: a session serves it, and what it may leave comes before larger priorities.
    Served,
    /// It has nothing. It is remembered for a while, so that others come first.
    Idle,
    /// Those of all lanes that are at their rate and have something that waits for its end.
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
    /// The slot of its gate, plus one. 0: the slot is free.
    pub(super) gate: u32,
    pub(super) running: u32,
    /// Its parked attempts rank behind this.
    pub(super) position: Rank,
    /// The smallest position to which parking would have moved it since a session began to serve it.
    pub(super) spill: Rank,
    /// The number of the session that serves it, plus one. 0: none does.
    pub(super) server: u32,
    /// The slot of its parent in a tree, plus one.
    pub(super) up: u32,
    /// How many hand-outs its lane had counted when it was last served.
    pub(super) served_at: u64,
    pub(super) list: List,
    /// 1: it is *held*, as the attempt that has to run first is not due.
    pub(super) held: u8,
    /// 1: something has come or gone since a session began to serve it.
    pub(super) has_news: u8,
    /// How many attempts the session that serves it asks for. 255: that many or more.
    pub(super) wanted: u8,
    /// No attempt of it that may start has a smaller priority. It does not change while the group has a turn.
    pub(super) urgency: i32,
    /// Its place in a tree: the urgency, or the time up to which it rests. It does not change while it is there.
    pub(super) order: i64,
    /// Links (slots plus one) to its neighbours in a list, or to its right and left child in a tree.
    pub(super) next: u32,
    pub(super) prev: u32,
}

impl Group {
    /// The rank behind which its parked attempts are, also while a session serves it.
    pub(super) fn from(&self) -> Rank {
        self.position.min(self.spill)
    }
}

/// The key by which a group is found at its gate. A group of a queue with stages is another one in each lane.
pub(super) fn key_of(lane: i32, hash: i64) -> i64 {
    hash ^ i64::from(lane).wrapping_mul(0x2545_f491_4f6c_dd1d)
}
