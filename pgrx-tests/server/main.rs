//! Tests against real servers, one file per subject. One binary for all of them: it is linked once, runs initdb
//! once, and its tests run side by side.

mod bad_input;
mod concurrent;
mod databases;
mod dead_letters;
mod delayed;
mod doctor;
mod fencing;
mod gates;
mod groups;
mod history;
mod indexes;
mod keys;
mod keys_races;
mod life;
mod limits;
mod metrics;
mod protocol;
mod random;
mod recovery;
mod restore;
mod schedules;
mod schedules_once;
mod segments;
mod segments_races;
mod shared;
mod smoke;
mod stages;
mod stats;
mod storm;
mod throughput;
mod transactions;
mod upgrade;
mod waiting;
mod waits;
mod worker;
