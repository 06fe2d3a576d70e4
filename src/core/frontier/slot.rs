//! Numbers of slots, one type for each array of the frontier.
//!
//! Responsible for which numbers there are. Not responsible for the arrays (`slots`).
//!
//! Invariant: `Option<Slot<A>>` has four bytes, and all zero is `None`.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// Names the arrays. No value of these types exists.
pub mod of {
    /// The lanes in memory.
    pub enum Lane {}
    /// The taken attempts.
    pub enum Running {}
    /// The managed groups.
    pub enum Group {}
    /// What was read ahead of groups.
    pub enum Ahead {}
    /// The gates.
    pub enum Gate {}
    /// The retrying groups.
    pub enum Retrying {}
    /// The records of starts.
    pub enum Rate {}
    /// The pool of older starts.
    pub enum Start {}
    /// The sessions.
    pub enum Session {}
    /// The places of sessions in the lists of lanes.
    pub enum Node {}
}

/// The number of a lane's slot.
pub type LaneSlot = Slot<of::Lane>;
/// The number of an entry of `running`.
pub type RunningSlot = Slot<of::Running>;
/// The number of a group's slot.
pub type GroupSlot = Slot<of::Group>;
/// The number of a slot for what was read ahead of a group.
pub type AheadSlot = Slot<of::Ahead>;
/// The number of a gate's slot.
pub type GateSlot = Slot<of::Gate>;
/// The number of a retrying group's slot.
pub type RetryingSlot = Slot<of::Retrying>;
/// The number of a record of starts.
pub type RateSlot = Slot<of::Rate>;
/// The number of a node of the pool of starts.
pub type StartSlot = Slot<of::Start>;
/// The number of a session.
pub type SessionSlot = Slot<of::Session>;
/// The number of a node: [`super::session::WAIT_LANES`] for each session.
pub type NodeSlot = Slot<of::Node>;

const _: () = assert!(size_of::<Option<LaneSlot>>() == 4);

/// The number of a slot in the array `A`. It is kept plus one.
#[repr(transparent)]
pub struct Slot<A> {
    plus_one: NonZeroU32,
    of: PhantomData<fn() -> A>,
}

impl<A> Slot<A> {
    /// A slot behind every array. An index with it panics, as with any other slot that is not there.
    pub(super) const BEYOND: Self = Self { plus_one: NonZeroU32::MAX, of: PhantomData };

    /// Returns the slot with this number, counted from 0.
    #[inline]
    pub(super) fn new(number: u32) -> Self {
        Self { plus_one: NonZeroU32::MIN.saturating_add(number), of: PhantomData }
    }

    /// Returns its number, counted from 0.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.plus_one.get() - 1
    }

    #[inline]
    pub(super) fn at(self) -> usize {
        self.number() as usize
    }
}

impl<A> Clone for Slot<A> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Slot<A> {}

impl<A> PartialEq for Slot<A> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.plus_one == other.plus_one
    }
}

impl<A> Eq for Slot<A> {}

impl<A> PartialOrd for Slot<A> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<A> Ord for Slot<A> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.plus_one.cmp(&other.plus_one)
    }
}

impl<A> fmt::Debug for Slot<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.number())
    }
}
