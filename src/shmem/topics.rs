//! Counts events that were published on topics since the start of the server.
//!
//! Responsible for the sums. Not responsible for when a transaction counts (`transaction::settle`).
//!
//! Invariant: the first topics with events get a place each, and keep it. Further topics are not counted. The caller
//! holds the frontier's lock.

/// At most this many topics of a database are counted.
const MAX_TOPICS: usize = 64;

/// The counts of one transaction on a topic, or of all.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Published events.
    pub events: i64,
    /// Jobs that were made from them.
    pub copies: i64,
    /// Events that no binding matched.
    pub unrouted: i64,
    /// When the last unrouted event was published, as a `timestamptz`.
    pub unrouted_at: i64,
    /// Jobs that were not made because their queue was full.
    pub dropped: i64,
    /// Filters that had no answer.
    pub filter_errors: i64,
}

impl Published {
    /// No events.
    pub const NOTHING: Self =
        Self { events: 0, copies: 0, unrouted: 0, unrouted_at: i64::MIN, dropped: 0, filter_errors: 0 };
}

/// The counts of a database's topics, each with the topic's number. 0: a free place.
#[derive(Clone, Copy)]
pub struct Topics([(i32, Published); MAX_TOPICS]);

impl Topics {
    /// Nothing was published yet.
    pub const NOTHING: Self = Self([(0, Published::NOTHING); MAX_TOPICS]);

    /// Adds the counts of a committed transaction.
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

    /// Removes the counts of a dropped topic.
    pub fn forget(&mut self, topic: i32) {
        // The free places stay behind the others.
        if let Some(at) = self.0.iter().position(|(number, _)| *number == topic) {
            self.0.copy_within(at + 1.., at);
            self.0[MAX_TOPICS - 1] = (0, Published::NOTHING);
        }
    }

    /// Returns the counts of all topics.
    pub fn all(&self) -> impl Iterator<Item = &(i32, Published)> {
        self.0.iter().filter(|(number, _)| *number != 0)
    }
}
