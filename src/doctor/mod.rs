//! Looks whether all is well: the checks of `queue.doctor()`, one function each. What they say to users, and from when
//! on, is in `docs/doctor.md`.
//!
//! Responsible for which checks there are, and for their order. Not responsible for showing them as rows and metrics:
//! see `view::doctor`. Nor for `queue.check()`, which reads everything: see `audit`.
//!
//! Invariant: a check only looks. It waits for no lock, and is over in milliseconds at any depth. If it fails, that is
//! its finding, and the other checks go on.

use crate::doctor::check::Check;

pub mod audit;
pub mod check;
pub mod cluster;
pub mod jobs;
pub mod schedules;
pub mod server;
pub mod storage;
pub mod topics;
pub mod transactions;

/// All checks, in the order in which they are of use: a fault that stops everything comes first.
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
];
