//! Failures that an object of one role has caused for others: filters that took too long, and copies and dead letters
//! that were left out. The doctor reports them. A queue whose filters took too long gets no filters evaluated for a
//! while.
//!
//! Not responsible for when something is left out (`job::publish`, `job::dead_letter`).
//!
//! Invariant: the troubles affect only reports and the time for which filters are off. A start of the server clears
//! them.

/// At most this many troubles are kept. A new one replaces the oldest.
const MAX_TROUBLES: usize = 64;
/// After this many filters of a queue took too long, its costly filters are switched off.
const MAX_SLOW_FILTERS: u32 = 3;
/// Costly filters are off for this long, in microseconds.
const FILTERS_OFF_US: i64 = 60_000_000;

/// The kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A filter, or a path to a group's key, took too long. `other` is its binding.
    Filter,
    /// A copy was left out because its queue was being dropped. `other` is the topic.
    Copy,
    /// A copy was left out because an open transaction held its unique key in its queue. `other` is the topic.
    Key,
    /// A dead letter was not written. `queue` is the dead job's queue. `other` is 0.
    Letter,
}

/// A failure and how often it happened.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub kind: Kind,
    /// The queue. 0: a free place.
    pub queue: i32,
    pub other: i32,
    pub count: u32,
    /// When it last happened, as a `timestamptz`.
    pub at: i64,
}

/// The troubles of a database.
#[derive(Clone, Copy)]
pub struct Troubles([Trouble; MAX_TROUBLES]);

impl Troubles {
    /// No troubles.
    pub const NOTHING: Self =
        Self([Trouble { kind: Kind::Copy, queue: 0, other: 0, count: 0, at: i64::MIN }; MAX_TROUBLES]);

    /// Notes a failure at the time `now`.
    pub fn note(&mut self, kind: Kind, queue: i32, other: i32, now: i64) {
        let is_it = |t: &&mut Trouble| (t.kind, t.queue, t.other) == (kind, queue, other);
        if let Some(known) = self.0.iter_mut().find(is_it) {
            // Failures long ago are no reason to switch filters off.
            let before = if now.saturating_sub(known.at) > FILTERS_OFF_US { 0 } else { known.count };
            (known.count, known.at) = (before.saturating_add(1), now);
        } else if let Some(place) = self.0.iter_mut().min_by_key(|t| t.at) {
            *place = Trouble { kind, queue, other, count: 1, at: now };
        }
    }

    /// True if the costly filters of a queue are switched off.
    pub fn are_filters_off(&self, queue: i32, now: i64) -> bool {
        let is_fresh = |t: &&Trouble| now.saturating_sub(t.at) <= FILTERS_OFF_US;
        let of_it = self.0.iter().filter(|t| t.queue == queue && t.kind == Kind::Filter).filter(is_fresh);
        of_it.map(|t| t.count).sum::<u32>() >= MAX_SLOW_FILTERS
    }

    /// Clears the filter troubles of a queue, because its bindings have changed.
    pub fn forget_filters(&mut self, queue: i32) {
        let of_it = self.0.iter_mut().filter(|t| t.queue == queue && t.kind == Kind::Filter);
        of_it.for_each(|t| (t.queue, t.at) = (0, i64::MIN));
    }

    /// Returns all troubles.
    pub fn all(&self) -> impl Iterator<Item = &Trouble> {
        self.0.iter().filter(|t| t.queue != 0)
    }
}
