//! What the servers have answered the clients, in a file that no server knows. A client writes a line before its next
//! call. So the ledger always has what a client relies on.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

/// An answer to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// This token is about to be enqueued.
    Asked { token: i64 },
    /// Its enqueue was acknowledged at this time, in milliseconds, by this node.
    Enqueued { token: i64, at_ms: i64, node: usize },
    /// A claim returned the attempt.
    Claimed { at_ms: i64, node: usize },
    /// The completion of the job was acknowledged.
    Completed { job_id: i64, at_ms: i64, node: usize },
}

/// The ledger of a run.
pub struct Ledger {
    inner: Mutex<(File, Vec<Fact>)>,
}

impl Ledger {
    /// Makes an empty ledger in this file.
    pub fn new(path: &Path) -> Self {
        let file = File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { inner: Mutex::new((file, Vec::new())) }
    }

    /// Notes a fact.
    pub fn note(&self, fact: Fact) {
        let mut inner = self.inner.lock().expect("no client panics while it writes");
        writeln!(inner.0, "{fact:?}").expect("room for the ledger");
        inner.1.push(fact);
    }

    /// Returns all facts in order.
    pub fn facts(&self) -> Vec<Fact> {
        self.inner.lock().expect("no client panics while it writes").1.clone()
    }

    /// Returns when this node returned the first claimed job at or after this time.
    pub fn first_claim(&self, node: usize, since_ms: i64) -> Option<i64> {
        let facts = self.inner.lock().expect("no client panics while it writes");
        let times = facts.1.iter().filter_map(|fact| match *fact {
            Fact::Claimed { at_ms, node: by } if by == node && at_ms >= since_ms => Some(at_ms),
            _ => None,
        });
        times.min()
    }
}
