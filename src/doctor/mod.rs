//! The checks of `queue.doctor()`, one function each. `docs/doctor.md` says what each reports, and when.
//!
//! Responsible for the list of checks and its order. Not responsible for showing the findings as rows and metrics
//! (`view::doctor`), nor for `queue.check()`, which reads everything (`audit`).
//!
//! Invariant: a check only reads. It waits for no lock, and takes milliseconds however many jobs there are. If a check
//! fails, its error is its finding, and the other checks still run.

use crate::doctor::check::Check;

pub mod audit;
pub mod bridge;
pub mod check;
pub mod cluster;
pub mod jobs;
pub mod schedules;
pub mod server;
pub mod storage;
pub mod topics;
pub mod transactions;

/// All checks. A fault that stops everything comes first.
pub const ALL: &[Check] = &[
    Check { name: "library", look: server::library },
    Check { name: "launcher", look: server::launcher },
    Check { name: "worker", look: server::worker },
    Check { name: "worker_slots", look: server::worker_slots },
    Check { name: "executors", look: server::executors },
    Check { name: "restore", look: transactions::restore },
    Check { name: "triggers", look: storage::triggers },
    Check { name: "tables", look: storage::tables },
    Check { name: "memory", look: storage::memory },
    Check { name: "segments", look: storage::segments },
    Check { name: "consistency", look: storage::consistency },
    Check { name: "leases", look: jobs::leases },
    Check { name: "schedules", look: schedules::schedules },
    Check { name: "time_zones", look: schedules::time_zones },
    Check { name: "unclaimed", look: jobs::unclaimed },
    Check { name: "expiring", look: jobs::expiring },
    Check { name: "dead", look: jobs::dead },
    Check { name: "held", look: jobs::held },
    Check { name: "topics", look: topics::topics },
    Check { name: "copies", look: topics::copies },
    Check { name: "prepared", look: transactions::prepared },
    Check { name: "xmin_horizon", look: transactions::xmin_horizon },
    Check { name: "autovacuum", look: storage::autovacuum },
    Check { name: "wraparound", look: storage::wraparound },
    Check { name: "jit", look: server::jit },
    Check { name: "roles", look: server::roles },
    Check { name: "cluster", look: cluster::cluster },
    Check { name: "bridge", look: bridge::bridge },
];
