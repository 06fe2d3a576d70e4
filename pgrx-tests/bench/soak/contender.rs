//! What can be soaked, and what its clients can do. How often and with what the clients do it is the same for all.

use std::time::Duration;

use crate::Result;
use crate::server::Server;
use crate::soak::load::{Job, Lot};
use crate::soak::storage::Tables;

/// Jobs in one claim, at most.
pub const BATCH: usize = 10;

/// A queue with its server.
pub trait Contender {
    /// The server that does the work.
    fn server(&self) -> &Server;

    /// Where its jobs are.
    fn tables(&self) -> Tables;

    /// How many workers it has.
    fn workers(&self) -> usize {
        4
    }

    /// Whether all it knows are events: no priorities, no delays, no failures.
    fn is_plain(&self) -> bool {
        false
    }

    /// Connects a client that sends jobs.
    fn producer(&self) -> Result<Box<dyn Producer>>;

    /// Connects a client that takes the jobs of a lot.
    fn worker(&self, lot: Lot) -> Result<Box<dyn Worker>>;

    /// What somebody outside of the server has to do ten times a second.
    fn ticker(&self) -> Result<Option<Ticker>> {
        Ok(None)
    }
}

/// A connection that sends jobs.
pub trait Producer: Send {
    /// Sends a job in a transaction of its own.
    fn send(&mut self, job: &Job) -> Result<()>;
}

/// A connection that takes jobs.
pub trait Worker: Send {
    /// Finishes these and takes the next, in as few calls as the contender needs. When there is nothing, it waits
    /// for a while, if it is of the usual lot.
    fn claim(&mut self, done: &[i64]) -> Result<Claimed>;

    /// Finishes these.
    fn complete(&mut self, done: &[i64]) -> Result<()>;

    /// These have failed: once more after [`RETRY`](crate::soak::load::RETRY), or never.
    fn fail(&mut self, failed: &[i64], is_fatal: bool) -> Result<()>;
}

/// What a claim brought.
pub struct Claimed {
    /// The jobs.
    pub runs: Vec<Run>,
    /// How long the call took, if it is known not to have slept.
    pub took: Option<Duration>,
}

/// A job in a worker's hands.
pub struct Run {
    /// What `complete` and `fail` want.
    pub id: i64,
    /// Which attempt it is, from 1.
    pub attempt: i32,
    /// The job's number.
    pub number: u32,
}

impl Run {
    /// Reads the number in the payload, as a worker would.
    pub fn new(id: i64, attempt: i32, payload: &serde_json::Value) -> Result<Self> {
        let number = payload["job"].as_u64().ok_or("a payload without the job's number")?;
        Ok(Self { id, attempt, number: u32::try_from(number)? })
    }
}

/// Does what is due.
pub type Ticker = Box<dyn FnMut() -> Result<()> + Send>;
