//! What was published on topics since the start of the server.
//!
//! Responsible for adding up. Not responsible for when a transaction counts (`transaction::settle`).
//!
//! Invariant: the first topics that are published to have a place each, and keep it; those for which there is no place
//! left are not counted. The caller holds the frontier's lock.

/// How many topics of a database are counted.
const MOST: usize = 64;

/// What a transaction has published on a topic, or all have.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Events.
    pub events: i64,
    /// Jobs that were made of them.
    pub copies: i64,
    /// Events that no binding has matched.
    pub unrouted: i64,
    /// When the last of these was published, as a `timestamptz`.
    pub unrouted_at: i64,
    /// Jobs that were not made, since their queue was full.
    pub dropped: i64,
    /// Filters that had no answer.
    pub filter_errors: i64,
}

impl Published {
    /// Nothing.
    pub const NOTHING: Self =
        Self { events: 0, copies: 0, unrouted: 0, unrouted_at: i64::MIN, dropped: 0, filter_errors: 0 };
}

/// The counts of a database's topics, each with the topic's number; 0: a free place.
#[derive(Clone, Copy)]
pub struct Topics([(i32, Published); MOST]);

impl Topics {
    /// Nothing was published yet.
    pub const NOTHING: Self = Self([(0, Published::NOTHING); MOST]);

    /// Adds what was committed.
    pub fn add(&mut self, topic: i32, more: &Published) {
        let Some((number, sum)) = self.0.iter_mut().find(|(number, _)| [topic, 0].contains(number)) else { return };
        *number = topic;
        sum.events += more.events;
        sum.copies += more.copies;
        sum.unrouted += more.unrouted;
        sum.unrouted_at = sum.unrouted_at.max(more.unrouted_at);
        sum.dropped += more.dropped;
        sum.filter_errors += more.filter_errors;
    }

    /// Forgets a topic that was dropped.
    pub fn forget(&mut self, topic: i32) {
        // The free places stay behind the others.
        if let Some(at) = self.0.iter().position(|(number, _)| *number == topic) {
            self.0.copy_within(at + 1.., at);
            self.0[MOST - 1] = (0, Published::NOTHING);
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &(i32, Published)> {
        self.0.iter().filter(|(number, _)| *number != 0)
    }
}
