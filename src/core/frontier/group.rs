//! The slot of a group of jobs.
//!
//! Responsible for the fields of a slot. Not responsible for the order of groups (`turns`) nor for their changes
//! (`managed`, `serving`).

use super::rank::Rank;
use super::slot::{AheadSlot, GateSlot, GroupSlot, SessionSlot, of};
use super::slots::{Entry, Listed};

/// Whether a group may start jobs now, and why not. It says in which list the group stands. Its transitions are in
/// docs/internals/limits.md.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// No job of it may start before one of its running jobs ends, or before the time of its open starts is known. It
    /// stands in no list. Also the standing of a free slot.
    #[default]
    Blocked,
    /// A job of it may start: it stands among the turns of its lane.
    Turn,
    /// Nothing of it waits and nothing of it runs: it stands among the idle groups of its lane. It is remembered for a
    /// while, so that other groups come first.
    Idle,
    /// It has waiting jobs and is at its rate until the time in `order`, or it is throttled until then: it stands among
    /// the resting groups of all lanes.
    Resting,
    /// The attempt that must run first is not due. It stands in no list.
    Held,
    /// A session serves it: the session reads the group's index and then takes what may start.
    Served {
        /// True if it stands among the groups in the way of its lane: jobs that the session leaves come before larger
        /// priorities.
        is_in_way: bool,
        /// True if an attempt has come or gone since the session began.
        has_news: bool,
        /// How many attempts the session asks for. 255: that many or more.
        wanted: u8,
        /// The session.
        by: SessionSlot,
        /// The smallest position to which parking would have moved the group's position since the session began.
        spill: Rank,
    },
}

impl Standing {
    /// Returns what is left of it in a group that has been taken off its list.
    pub(super) fn unlisted(self) -> Self {
        match self {
            Self::Served { has_news, wanted, by, spill, .. } => {
                Self::Served { is_in_way: false, has_news, wanted, by, spill }
            }
            Self::Held => Self::Held,
            _ => Self::Blocked,
        }
    }
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
    pub(super) gate: Option<GateSlot>,
    pub(super) running: u32,
    /// All its parked attempts rank behind this.
    pub(super) position: Rank,
    pub(super) standing: Standing,
    /// The attempts that were read ahead of it. While a session serves it, there are none.
    pub(super) ahead: Option<AheadSlot>,
    /// Its parent in a tree.
    pub(super) up: Option<GroupSlot>,
    /// The lane's count of hand-outs when the group was last served.
    pub(super) served_at: u64,
    /// The sort key in a tree: the urgency, or the time until which the group rests. It does not change while the group
    /// is in the tree.
    pub(super) order: i64,
    /// What the group was charged for the jobs that it has started: see `passes`. It does not change while the group is
    /// in a tree.
    pub(super) pass: u64,
    /// No attempt of the group that may start has a smaller priority. The value does not change while the group has a
    /// turn.
    pub(super) urgency: i32,
    /// True if it was charged for a job since it has this slot.
    pub(super) was_charged: bool,
    /// The monotonic time until which no job of it starts: a worker has throttled it. 0, or in the past: it is not
    /// throttled.
    pub(super) closed_until: i64,
    /// Its neighbours in a list, or its right and left child in a tree.
    pub(super) next: Option<GroupSlot>,
    pub(super) prev: Option<GroupSlot>,
}

impl Entry for Group {
    type Of = of::Group;
}

impl Listed for Group {
    #[inline]
    fn next_free(&self) -> Option<GroupSlot> {
        self.next
    }

    #[inline]
    fn set_next_free(&mut self, next: Option<GroupSlot>) {
        self.next = next;
    }
}

impl Group {
    /// Returns the key by which trees sort it.
    #[inline]
    pub(super) fn key_in_tree(&self) -> (i64, u64) {
        (self.order, self.pass)
    }

    /// Returns the gate of a slot that is in use.
    #[inline]
    pub(super) fn gate(&self) -> GateSlot {
        self.gate.unwrap_or(GateSlot::BEYOND)
    }

    /// Returns the session that serves it.
    #[inline]
    pub(super) fn served_by(&self) -> Option<SessionSlot> {
        if let Standing::Served { by, .. } = self.standing { Some(by) } else { None }
    }

    #[inline]
    pub(super) fn is_served(&self) -> bool {
        self.served_by().is_some()
    }

    /// True if it may be forgotten to make room for another group. Groups at their rate never are: there is a slot for
    /// each group with a record of its starts.
    pub(super) fn may_be_evicted(&self) -> bool {
        let rests = self.standing == Standing::Resting && self.closed_until == 0;
        self.gate.is_some() && self.running == 0 && !self.is_served() && !rests
    }

    /// Returns the smallest position to which parking has moved it since a session began to serve it.
    pub(super) fn spill(&self) -> Rank {
        if let Standing::Served { spill, .. } = self.standing { spill } else { Rank::MAX }
    }

    /// Returns the rank behind which all parked attempts lie, also while a session serves the group.
    pub(super) fn from(&self) -> Rank {
        self.position.min(self.spill())
    }

    /// Moves its position before an attempt that is parked. While a session serves the group, that is the spill mark.
    pub(super) fn go_back(&mut self, position: Rank) {
        let mark = match &mut self.standing {
            Standing::Served { spill, .. } => spill,
            _ => &mut self.position,
        };
        *mark = (*mark).min(position);
    }

    /// Notes that nothing of it is parked any more.
    pub(super) fn unpark(&mut self) {
        self.position = Rank::MAX;
        if let Standing::Served { spill, .. } = &mut self.standing {
            *spill = Rank::MAX;
        }
    }

    /// Notes that one of its attempts has come or gone: another one may have to run first now.
    pub(super) fn note_news(&mut self) {
        match &mut self.standing {
            Standing::Served { has_news, .. } => *has_news = true,
            Standing::Held => self.standing = Standing::Blocked,
            _ => {}
        }
    }
}

const _: () = assert!(size_of::<Group>() == 128 && size_of::<Option<GroupSlot>>() == 4);

/// Returns the key under which a gate finds a group. In a queue with stages each lane has a group of its own.
pub(super) fn key_of(lane: i32, hash: i64) -> i64 {
    hash ^ i64::from(lane).wrapping_mul(0x2545_f491_4f6c_dd1d)
}
