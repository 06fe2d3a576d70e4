//! The input of a checker: the ledger, and the database's final state.

use std::collections::BTreeMap;

use postgres::Client;

use crate::ledger::{Ledger, Micros};

/// The input of a checker.
pub struct Case<'a> {
    pub ledger: &'a Ledger,
    pub world: &'a World,
    /// The times without a server: each lasts from before the server lost its memory until after its next start.
    pub crashes: &'a [(Micros, Micros)],
    /// The crashes after which another server took over. A commit that no longer waited for the standby, such as that
    /// of a worker whose process ended while it waited, was seen before the promotion and is gone after it.
    pub promotions: &'a [(Micros, Micros)],
    /// True if the servers' times are not comparable with the ledger's.
    pub clock_was_set: bool,
}

/// A row of `queue.jobs`.
#[derive(Debug, Clone)]
pub struct SeenJob {
    pub queue: String,
    pub state: String,
    pub token: String,
    pub flow: Option<i64>,
}

/// A row of `queue.attempts`.
#[derive(Debug, Clone)]
pub struct SeenAttempt {
    pub job: i64,
    pub state: String,
    pub number: i32,
    pub claimed_at: Option<Micros>,
    pub finished_at: Option<Micros>,
}

/// The database's state when everything is over.
#[derive(Debug, Default)]
pub struct World {
    pub jobs: BTreeMap<i64, SeenJob>,
    pub attempts: BTreeMap<i64, SeenAttempt>,
    /// Each effect: its attempt and its job.
    pub effects: Vec<(i64, i64)>,
}

impl Case<'_> {
    /// True if the server lost its memory between these times.
    pub fn has_crashed(&self, from: Micros, to: Micros) -> bool {
        is_among(self.crashes, from, to)
    }

    /// True if another server took over between these times.
    pub fn was_promoted(&self, from: Micros, to: Micros) -> bool {
        is_among(self.promotions, from, to)
    }
}

fn is_among(spans: &[(Micros, Micros)], from: Micros, to: Micros) -> bool {
    spans.iter().any(|(begin, end)| *begin <= to && *end >= from)
}

impl World {
    pub fn read(client: &mut Client, found: &mut Vec<String>) -> Result<Self, postgres::Error> {
        let mut world = Self::default();
        let sql = "SELECT job_id, queue_name, state, coalesce(payload ->> 'token', ''), flow FROM queue.jobs";
        for row in client.query(sql, &[])? {
            let job = SeenJob { queue: row.get(1), state: row.get(2), token: row.get(3), flow: row.get(4) };
            if let Some(other) = world.jobs.insert(row.get(0), job) {
                found.push(format!("queue.jobs has job {} twice: {other:?}", row.get::<_, i64>(0)));
            }
        }
        let sql = "SELECT id, job_id, state, attempt, (extract(epoch FROM claimed_at) * 1000000)::bigint,
                       (extract(epoch FROM finished_at) * 1000000)::bigint FROM queue.attempts";
        for row in client.query(sql, &[])? {
            let attempt = SeenAttempt {
                job: row.get(1),
                state: row.get(2),
                number: row.get(3),
                claimed_at: row.get(4),
                finished_at: row.get(5),
            };
            if let Some(other) = world.attempts.insert(row.get(0), attempt) {
                found.push(format!("queue.attempts has attempt {} twice: {other:?}", row.get::<_, i64>(0)));
            }
        }
        for row in client.query("SELECT attempt, job_id FROM effect", &[])? {
            world.effects.push((row.get(0), row.get(1)));
        }
        Ok(world)
    }
}
