//! The ledger: what each client asked for and what was answered, with times, outside of the database.
//!
//! A *deal* is a transaction of a client, or one statement without a transaction block. Its *facts* count if the deal
//! is committed and the fact was not undone by a savepoint. Whether a commit that was cut off has counted is not known
//! to the client; each deal therefore leaves its number in the table `witness`, which decides in the end. All times are
//! those of the machine's clock, which servers and clients share, in microseconds; but if it is set, the ledger's times
//! go on as before.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub type Micros = i64;

/// The time at which the ledger was begun, by both clocks.
static BEGIN: LazyLock<(Instant, SystemTime)> = LazyLock::new(|| (Instant::now(), SystemTime::now()));

pub fn now() -> Micros {
    let (began, wall) = *BEGIN;
    let elapsed = (wall + began.elapsed()).duration_since(UNIX_EPOCH).expect("a clock after 1970");
    elapsed.as_micros() as Micros
}

/// True if the machine's clock was set since the ledger was begun. Then times from the servers are not comparable with
/// the ledger's.
pub fn clock_was_set() -> bool {
    /// Two clocks are read one after the other. If the thread sleeps in between, they are read again.
    const TRIES: usize = 5;
    const GRACE: Duration = Duration::from_millis(1);
    let (began, wall) = *BEGIN;
    (0..TRIES).all(|_| {
        let (ours, theirs) = (wall + began.elapsed(), SystemTime::now());
        theirs.duration_since(ours).unwrap_or_else(|e| e.duration()) > GRACE
    })
}

/// How an attempt was ended by its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Completed,
    /// Requested by `completed =>` of a claim without an answer.
    CompletedPerhaps,
    Failed,
    Released,
    Advanced,
    /// `until`: the latest time at which the job goes on.
    Suspended {
        until: Option<Micros>,
    },
}

/// The options that make a job a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnFlow {
    pub runs: bool,
    pub is_fail_fast: bool,
    /// True if its first completed member ends it.
    pub is_any: bool,
}

/// A job as it was enqueued.
#[derive(Debug, Clone)]
pub struct Job {
    pub id: i64,
    pub queue: usize,
    /// The token in the payload. It identifies the job, the version of its contents, and the job's own lease.
    pub token: String,
    pub priority: i32,
    pub group: Option<String>,
    pub key: Option<String>,
    /// True if it has no delay.
    pub is_due: bool,
    pub renews: bool,
    pub version: Option<Micros>,
    /// The time for which the job's key stays taken.
    pub unique_for: Option<Micros>,
    /// The job's predecessors, and the outcomes for which it waits.
    pub after: Vec<i64>,
    pub upon: &'static str,
    /// The flow that has the job as a member, and the flow that the job is.
    pub flow: Option<i64>,
    pub own_flow: Option<OwnFlow>,
}

impl Job {
    /// Makes a job that has only a token.
    pub fn plain(id: i64, queue: usize, token: String) -> Self {
        Self {
            id,
            queue,
            token,
            priority: 0,
            group: None,
            key: None,
            is_due: false,
            renews: false,
            version: None,
            unique_for: None,
            after: Vec::new(),
            upon: "completed",
            flow: None,
            own_flow: None,
        }
    }
}

/// A claimed job.
#[derive(Debug, Clone)]
pub struct Claim {
    pub attempt: i64,
    pub job: i64,
    pub queue: usize,
    pub stage: Option<String>,
    pub token: String,
    pub priority: i32,
    pub group: Option<String>,
    pub number: i32,
    /// The longest lease after a lost connection. 0 ends it with the connection.
    pub disconnect: Option<Micros>,
    /// The requested lease. Without one: the job's own lease, or the shortest one of the queue.
    pub lease: Micros,
}

/// Makes the token of a job, with the job's own lease in it.
pub fn token(base: &str, n: usize, lease: Option<Micros>) -> String {
    match lease {
        Some(lease) => format!("{base}-{n} {lease}"),
        None => format!("{base}-{n}"),
    }
}

/// Returns the job's own lease, as its token says.
pub fn own_lease(token: &str) -> Option<Micros> {
    token.split_once(' ')?.1.parse().ok()
}

#[derive(Debug, Clone)]
pub enum What {
    Enqueued(Job),
    /// An enqueue without an answer. With a key it may have made a job or renewed one.
    EnqueueLost {
        queue: usize,
        key: Option<String>,
        tokens: Vec<String>,
    },
    /// A publish without an answer.
    PublishLost {
        key: &'static str,
        token: String,
    },
    Claimed(Claim),
    /// A claim without an answer: the claimed jobs are unknown.
    ClaimLost {
        queues: Vec<usize>,
    },
    Ended {
        attempt: i64,
        job: i64,
        end: End,
    },
    /// A verb for many answered that the attempt ended in this state.
    Answered {
        attempt: i64,
        outcome: String,
    },
    /// The fence refused the attempt.
    Refused {
        attempt: i64,
    },
    Extended {
        attempt: i64,
        until: Micros,
        length: Micros,
    },
    /// A heartbeat without an answer: the lease may have this length since then.
    ExtendLost {
        attempt: i64,
        length: Micros,
    },
    Cancelled {
        job: i64,
        is_forced: bool,
    },
    Retried {
        job: i64,
    },
    /// The dead jobs of a queue were retried, as a search found them.
    RetriedDead {
        queue: usize,
    },
    /// The job got another priority or time.
    Moved {
        job: i64,
    },
    /// A change of the job failed. It may have locked the job for a moment.
    Tried {
        job: i64,
    },
    Forgotten {
        job: i64,
    },
    StepDone {
        job: i64,
        name: &'static str,
    },
    /// The call about a step was answered.
    StepSeen {
        job: i64,
        name: &'static str,
        is_done: bool,
    },
    /// A whole queue was purged, paused, altered or dropped.
    Queue {
        queue: usize,
        verb: &'static str,
    },
}

#[derive(Debug, Clone)]
pub struct Fact {
    pub what: What,
    /// The time at which the call began, and the time at which its answer had come.
    pub from: Micros,
    pub to: Micros,
    /// The time before which a savepoint rolled it back.
    pub undone: Option<Micros>,
}

impl Fact {
    /// Returns the time of the server's last answer. For a call without an answer this is before the call.
    pub fn last_sign(&self) -> Micros {
        match self.what {
            What::EnqueueLost { .. } | What::PublishLost { .. } | What::ClaimLost { .. } | What::ExtendLost { .. } => {
                self.from
            }
            _ => self.to,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Committed,
    RolledBack,
    /// The commit has no answer. The witness shows its fate.
    Unknown,
}

#[derive(Debug, Clone)]
pub struct Deal {
    pub number: i64,
    pub begun: Micros,
    /// The times of the call that ended the deal and of its answer. If the connection was lost: the time at which the
    /// client noticed it.
    pub end_from: Micros,
    pub end_to: Micros,
    pub fate: Fate,
    /// The connection was lost. It is unknown when the server ended it.
    pub is_cut: bool,
    pub prepared: bool,
    pub facts: Vec<Fact>,
}

impl Deal {
    pub fn new(number: i64) -> Self {
        let begun = now();
        Self {
            number,
            begun,
            end_from: 0,
            end_to: 0,
            fate: Fate::Unknown,
            is_cut: false,
            prepared: false,
            facts: Vec::new(),
        }
    }

    /// Returns the facts that were not undone by a savepoint.
    pub fn kept(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter().filter(|fact| fact.undone.is_none())
    }
}

/// All deals of a run, when it is over.
#[derive(Debug, Default)]
pub struct Ledger {
    pub deals: Vec<Deal>,
}

impl Ledger {
    /// Decides the deals of unknown fate. Reports contradictions about the others.
    pub fn settle(&mut self, witnesses: &[i64]) -> Vec<String> {
        let mut wrong = Vec::new();
        let known: BTreeSet<i64> = witnesses.iter().copied().collect();
        if known.len() != witnesses.len() {
            wrong.push("a witness is there twice".to_owned());
        }
        for deal in &mut self.deals {
            let is_there = known.contains(&deal.number);
            match deal.fate {
                Fate::Unknown => deal.fate = if is_there { Fate::Committed } else { Fate::RolledBack },
                Fate::Committed if !is_there => {
                    wrong.push(format!("the server has lost a committed transaction: {deal:?}"));
                }
                Fate::RolledBack if is_there => wrong.push(format!("a rolled back transaction counts: {deal:?}")),
                _ => {}
            }
        }
        wrong
    }

    /// Returns all committed facts, each with its deal.
    pub fn committed(&self) -> impl Iterator<Item = (&Deal, &Fact)> {
        self.deals
            .iter()
            .filter(|deal| deal.fate == Fate::Committed)
            .flat_map(|deal| deal.kept().map(move |fact| (deal, fact)))
    }

    /// Returns all answered facts, whatever happened to their deals.
    pub fn all(&self) -> impl Iterator<Item = (&Deal, &Fact)> {
        self.deals.iter().flat_map(|deal| deal.facts.iter().map(move |fact| (deal, fact)))
    }
}
