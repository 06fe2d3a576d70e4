//! Tests against real servers: a folder for each subject, a file for each part of it. They are one binary, so it is
//! linked once and runs initdb once, and its tests run at the same time. File names are unique over all folders,
//! because docs/internals/promises.md names tests by their file.

mod shared;

/// A job's life: one enqueue, attempts, one end, changes in between.
mod jobs {
    pub mod after;
    mod after_any;
    mod after_lives;
    mod after_outages;
    mod awaits;
    mod dead_letters;
    mod debounce;
    pub mod ends;
    mod ends_races;
    mod events;
    pub mod fencing;
    mod flows;
    mod heartbeats;
    mod keys;
    mod keys_prepared;
    pub mod keys_races;
    mod life;
    mod many;
    mod queues;
    pub mod stages;
    mod stages_lives;
    mod suspend_until;
    mod timing;
    mod topics;
    mod topics_lives;
    mod transactions;
    mod vanished;
}

/// How jobs find workers: order, sleep, wake-ups. No session waits for another session's lock.
mod claims {
    mod collect;
    mod concurrent;
    mod disconnect;
    mod idle_workers;
    mod wait_call;
    mod waiting;
    mod waits;
}

/// Limits of a queue and of its groups.
mod limits {
    mod costs;
    mod fair_shares;
    pub mod gates;
    mod group_priorities;
    mod group_rates;
    pub mod groups;
    mod throttles;
}

/// Race conditions that only a fault point can produce, and each fault point once.
mod faults {
    mod counting;
    pub mod held;
    mod key_turns;
    mod leases;
    mod parked;
    mod raised;
    mod retrying;
    mod sweep;
    mod windows;
}

/// Delayed jobs and schedules.
mod clock {
    mod delayed;
    mod expiry;
    mod firings;
    pub mod schedules;
    mod schedules_once;
}

/// The tables and indexes: the ring of segments, history.
mod storage {
    pub mod history;
    mod history_copies;
    mod history_days;
    mod indexes;
    mod left_out;
    mod locks;
    mod rewrites;
    mod rows;
    pub mod segments;
    mod segments_crashes;
    mod segments_meetings;
    pub mod segments_races;
    mod shared_payloads;
}

/// Crashes, restarts, promotions, dumps. Databases, extensions and queues that are created again.
mod durability {
    mod databases;
    mod foreign_writes;
    pub mod recovery;
    mod reindex;
    pub mod restore;
    mod storm;
    mod unlogged;
}

/// Privileges.
mod security {
    mod flow_rights;
    mod noise;
    mod owners;
    pub mod permissions;
    mod privileges;
    mod rights;
    mod shared;
    mod stored_json;
    mod tables;
}

/// Jobs that are SQL and run in the server.
mod sql_jobs {
    mod administration;
    pub mod commands;
    mod data;
    mod ended;
    mod executors;
    mod sessions;
    mod writers;
}

/// The SQL surface as drivers and applications use it, and mistakes in its use.
mod interface {
    mod advice;
    pub mod bad_input;
    mod lengths;
    mod mistakes;
    mod protocol;
    mod queues;
    mod smoke;
    mod strange_places;
    pub mod stumbles;
    mod triggers;
}

/// A server in production: background processes, memory, statistics, diagnosis, upgrades.
mod operations {
    mod check;
    pub mod doctor;
    mod doctor_queues;
    pub mod listing;
    mod load;
    mod locked;
    mod memory;
    mod metrics;
    mod out_of_memory;
    mod standby;
    mod stats;
    mod throughput;
    mod upgrade;
    mod worker;
}
