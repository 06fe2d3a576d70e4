//! Tests against real servers: a folder per subject, a file per part of it. One binary for all of them: it is linked
//! once, runs initdb once, and its tests run side by side. File names are unique over all folders, for
//! docs/internals/promises.md names tests by their file.

mod shared;

use queue_tests::random;

/// What becomes of a job: made once, tried, ended once, moved on.
mod jobs {
    mod after;
    mod after_outages;
    mod after_races;
    mod awaits;
    mod dead_letters;
    mod ends;
    mod fencing;
    mod flows;
    mod keys;
    mod keys_races;
    mod life;
    mod many;
    mod stages;
    mod topics;
    mod topics_lives;
    mod transactions;
}

/// How jobs find workers: order, sleep, wake-up, and never another's lock.
mod claims {
    mod concurrent;
    mod waiting;
    mod waits;
}

/// Limits of a queue and of its groups.
mod limits {
    mod gates;
    mod group_rates;
    mod groups;
}

/// What only a fault point can bring about: windows held open, and every point once.
mod faults {
    pub mod held;
    mod key_turns;
    mod leases;
    mod sweep;
    mod windows;
}

/// What happens by the clock: delayed jobs and schedules.
mod clock {
    mod delayed;
    mod schedules;
    mod schedules_once;
}

/// The tables and indexes: the ring of segments, history.
mod storage {
    mod history;
    mod indexes;
    mod locks;
    mod rows;
    pub mod segments;
    mod segments_races;
}

/// What survives: crashes, restarts, promotions, dumps; a database, an extension or a queue made anew.
mod durability {
    mod databases;
    mod recovery;
    mod restore;
    mod storm;
}

/// Which role may do what.
mod security {
    mod flow_rights;
    mod noise;
    pub mod permissions;
    mod privileges;
    mod rights;
    mod shared;
    mod tables;
}

/// Jobs that are SQL and run in the server.
mod sql_jobs {
    mod administration;
    mod commands;
    mod data;
    mod ended;
    mod executors;
    mod sessions;
    mod writers;
}

/// The SQL surface as drivers and applications use it, and misuse it.
mod interface {
    mod advice;
    mod bad_input;
    mod lengths;
    mod protocol;
    mod queues;
    mod smoke;
    mod stumbles;
    mod triggers;
}

/// What runs a server in production: background processes, memory, statistics, diagnosis, upgrades.
mod operations {
    mod check;
    mod doctor;
    pub mod listing;
    mod memory;
    mod metrics;
    mod out_of_memory;
    mod standby;
    mod stats;
    mod throughput;
    mod upgrade;
    mod worker;
}
