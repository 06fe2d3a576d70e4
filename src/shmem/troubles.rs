//! What an object of one role was kept from doing to others: filters that took too long, copies and dead letters that
//! were left out. The doctor tells of them, and a queue whose filters took too long is not asked for a while.
//!
//! Not responsible for when something is left out (`job::publish`, `job::dead_letter`).
//!
//! Invariant: it changes nothing but what is told, and for how long filters are not asked. A start of the server
//! forgets it.

/// How many troubles are kept; then the oldest one goes.
const MOST: usize = 64;
/// So many filters of a queue that took too long switch its costly filters off.
const STRIKES: u32 = 3;
/// For how long they are off, in microseconds.
const OFF_FOR: i64 = 60_000_000;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A filter, or a path to a group's key, took too long. `other` is its binding.
    Filter,
    /// A copy was left out, as its queue was being dropped. `other` is the topic.
    Copy,
    /// A copy was left out, as an open transaction held its unique key in its queue. `other` is the topic.
    Key,
    /// A dead letter was not written. `queue` is that of the dead job; `other` is 0.
    Letter,
}

/// Something that happened so many times.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    pub kind: Kind,
    /// The queue; 0: a free place.
    pub queue: i32,
    pub other: i32,
    pub count: u32,
    /// When it happened last, as a `timestamptz`.
    pub at: i64,
}

/// The troubles of a database.
#[derive(Clone, Copy)]
pub struct Troubles([Trouble; MOST]);

impl Troubles {
    /// There were none yet.
    pub const NOTHING: Self = Self([Trouble { kind: Kind::Copy, queue: 0, other: 0, count: 0, at: i64::MIN }; MOST]);

    /// Notes that something happened, now.
    pub fn note(&mut self, kind: Kind, queue: i32, other: i32, now: i64) {
        let is_it = |t: &&mut Trouble| (t.kind, t.queue, t.other) == (kind, queue, other);
        if let Some(known) = self.0.iter_mut().find(is_it) {
            // What was long ago is no reason to switch anything off.
            let before = if now.saturating_sub(known.at) > OFF_FOR { 0 } else { known.count };
            (known.count, known.at) = (before.saturating_add(1), now);
        } else if let Some(place) = self.0.iter_mut().min_by_key(|t| t.at) {
            *place = Trouble { kind, queue, other, count: 1, at: now };
        }
    }

    /// Whether the costly filters of a queue are switched off.
    pub fn are_filters_off(&self, queue: i32, now: i64) -> bool {
        let is_fresh = |t: &&Trouble| now.saturating_sub(t.at) <= OFF_FOR;
        let of_it = self.0.iter().filter(|t| t.queue == queue && t.kind == Kind::Filter).filter(is_fresh);
        of_it.map(|t| t.count).sum::<u32>() >= STRIKES
    }

    /// Forgets the filters of a queue, as its bindings have changed.
    pub fn forget_filters(&mut self, queue: i32) {
        let of_it = self.0.iter_mut().filter(|t| t.queue == queue && t.kind == Kind::Filter);
        of_it.for_each(|t| (t.queue, t.at) = (0, i64::MIN));
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Trouble> {
        self.0.iter().filter(|t| t.queue != 0)
    }
}
