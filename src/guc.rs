//! Every setting of the extension. `docs/settings.md` documents them for users.
//!
//! Responsible for names, ranges and defaults. Not responsible for the effect of a setting: that is in the code that
//! reads its static.
//!
//! Invariant: a setting that sizes shared memory can be set only when the server starts.

use std::ffi::{CStr, CString};

use pg_queue_core::schedule::Zone;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

/// The version of this library.
pub const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// How many ready attempts of each lane are kept in memory.
pub static MAX_READY: GucSetting<i32> = GucSetting::<i32>::new(2048);
/// How many attempts can be claimed at the same time, over all databases.
pub static MAX_RUNNING: GucSetting<i32> = GucSetting::<i32>::new(65536);
/// How many lanes are kept in memory, over all databases.
pub static MAX_LANES: GucSetting<i32> = GucSetting::<i32>::new(256);
/// How many groups can have started jobs within the `rate_period` of their queue, over all databases.
pub static MAX_RATED_GROUPS: GucSetting<i32> = GucSetting::<i32>::new(30_000);
/// How many unique keys open transactions can hold, over all databases.
pub static MAX_KEYS: GucSetting<i32> = GucSetting::<i32>::new(262_144);
/// How many databases can use the extension.
pub static MAX_DATABASES: GucSetting<i32> = GucSetting::<i32>::new(16);
/// After how many rows a young segment is closed.
pub static SEGMENT_ROWS: GucSetting<i32> = GucSetting::<i32>::new(1_000_000);
/// After how many seconds a young segment is closed.
pub static SEGMENT_AGE: GucSetting<i32> = GucSetting::<i32>::new(600);
/// For how many seconds the minutes of `queue.throughput` are kept. A negative value keeps them for ever.
pub static STATISTICS_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(90 * 86_400);
/// The longest sleep of one call, in milliseconds.
pub static MAX_WAIT: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// The longest error text that is kept, in bytes.
pub static MAX_ERROR_LENGTH: GucSetting<i32> = GucSetting::<i32>::new(8192);
/// The longest JSON that is stored, in bytes of its text.
pub static MAX_PAYLOAD: GucSetting<i32> = GucSetting::<i32>::new(64 << 20);
/// The number of this node in the ids that it makes.
pub static NODE_ID: GucSetting<i32> = GucSetting::<i32>::new(0);
/// How many milliseconds a segment that was copied to history is kept for its last readers before it is emptied.
pub static RECLAIM_DELAY: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// After how many seconds without a write by foreign SQL a restore counts as finished.
pub static RESTORE_QUIET: GucSetting<i32> = GucSetting::<i32>::new(10);
/// Whether segments are reclaimed.
pub static RECLAIM: GucSetting<bool> = GucSetting::<bool>::new(true);
/// `queue.doctor()` reports anything that is stuck for longer than this, in seconds.
pub static PATIENCE: GucSetting<i32> = GucSetting::<i32>::new(300);
/// By how many seconds the clock of schedules is ahead of the server's clock.
pub static CLOCK_OFFSET: GucSetting<f64> = GucSetting::<f64>::new(0.0);
/// The value of `pg_queue.library_version`.
static LIBRARY_VERSION: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(VERSION));
/// How many executor processes can exist, over all databases.
pub static MAX_EXECUTORS: GucSetting<i32> = GucSetting::<i32>::new(8);
/// Whether jobs may run as superusers.
pub static SUPERUSER_JOBS: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Whether the background worker does its duties in this database.
pub static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);

/// Defines the settings. Settings that size shared memory can be defined only while the server preloads libraries.
pub fn define(preloading: bool) {
    let none = GucFlags::default();
    if preloading {
        let at_start = |name, setting, what, why, min, max| {
            GucRegistry::define_int_guc(name, what, why, setting, min, max, GucContext::Postmaster, none);
        };
        at_start(
            c"pg_queue.max_ready",
            &MAX_READY,
            c"Sets how many ready attempts of each lane are kept in memory.",
            c"Attempts, 2 to 65536; 40 bytes each for each of max_lanes. More waiting jobs than this are read from \
                their index when needed.",
            2,
            65_536,
        );
        at_start(
            c"pg_queue.max_running",
            &MAX_RUNNING,
            c"Sets how many attempts can be claimed at the same time.",
            c"Attempts over all databases, 1 to 16777216; about 300 bytes each.",
            1,
            16_777_216,
        );
        at_start(
            c"pg_queue.max_lanes",
            &MAX_LANES,
            c"Sets how many lanes (queues and their stages) are kept in memory.",
            c"Lanes over all databases, 1 to 65536. With more in use, the one used longest ago is read again when it \
                is needed.",
            1,
            65_536,
        );
        at_start(
            c"pg_queue.max_rated_groups",
            &MAX_RATED_GROUPS,
            c"Sets how many groups can have started jobs within the rate_period of their queue, \
                where that has a rate_limit_per_group.",
            c"Groups over all databases, 16 to 16777216; about 530 bytes each. A group beyond them waits until \
                another one's period is over.",
            16,
            16_777_216,
        );
        at_start(
            c"pg_queue.max_keys",
            &MAX_KEYS,
            c"Sets how many unique keys can be held at the same time by transactions that have enqueued under them.",
            c"Keys over all databases, 1 to 16777216; 32 bytes each.",
            1,
            16_777_216,
        );
        at_start(
            c"pg_queue.max_databases",
            &MAX_DATABASES,
            c"Sets how many databases can use the extension at the same time.",
            c"Databases, 1 to 1024; each has a background worker, which takes a slot of max_worker_processes.",
            1,
            1024,
        );
        at_start(
            c"pg_queue.max_executors",
            &MAX_EXECUTORS,
            c"Sets how many jobs that are SQL can run at the same time.",
            c"Background processes over all databases, 0 to 1024, started when they are needed; \
                each takes a slot of max_worker_processes.",
            0,
            1024,
        );
    }
    let int = |name, setting, what, why, min, max, context, flags| {
        GucRegistry::define_int_guc(name, what, why, setting, min, max, context, flags);
    };
    int(
        c"pg_queue.segment_rows",
        &SEGMENT_ROWS,
        c"Sets after how many attempts a young segment is closed.",
        c"Rows, 1000 to 1000000000.",
        1000,
        1_000_000_000,
        GucContext::Sighup,
        none,
    );
    int(
        c"pg_queue.segment_age",
        &SEGMENT_AGE,
        c"Sets after what time a young segment is closed.",
        c"Seconds, 1 to 604800; an empty segment is never closed.",
        1,
        604_800,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    int(
        c"pg_queue.statistics_retention",
        &STATISTICS_RETENTION,
        c"Sets how long the minutes of queue.throughput are kept.",
        c"Seconds, 0 to 2147483647; -1 keeps them for ever.",
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    int(
        c"pg_queue.max_wait",
        &MAX_WAIT,
        c"Sets the longest time that one call of claim or wait sleeps.",
        c"Milliseconds, 0 to 3600000. A sleeping claim holds back vacuum's horizon for as long; \
            CALL queue.wait does not.",
        0,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    int(
        c"pg_queue.max_error_length",
        &MAX_ERROR_LENGTH,
        c"Sets where error texts of failed attempts are cut.",
        c"Bytes, 64 to 1048576.",
        64,
        1_048_576,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    int(
        c"pg_queue.max_payload",
        &MAX_PAYLOAD,
        c"Sets how long JSON that is stored may be as text: payload, headers, result, progress, arguments.",
        c"Bytes, 1024 to 83886080. Postgres cannot write a row of more than 1 GB as text.",
        1024,
        80 << 20,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    int(
        c"pg_queue.node_id",
        &NODE_ID,
        c"Sets the number of this node in the ids of jobs and attempts.",
        c"0 to 127; servers whose jobs may ever meet need different numbers.",
        0,
        127,
        GucContext::Sighup,
        none,
    );
    int(
        c"pg_queue.reclaim_delay",
        &RECLAIM_DELAY,
        c"Sets how long a segment that has been copied to history is kept.",
        c"Milliseconds, 0 to 86400000. Longer than it takes a dump from its snapshot to its first lock, \
            and any query over the views.",
        0,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"pg_queue.restore_quiet",
        &RESTORE_QUIET,
        c"Sets how long the tables must not have been written by SQL before jobs run again after a restore.",
        c"Seconds, 1 to 86400; queue.adopt() ends it earlier.",
        1,
        86_400,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    int(
        c"pg_queue.patience",
        &PATIENCE,
        c"Sets after what time queue.doctor() finds that something has stood still for too long.",
        c"Seconds, 1 to 604800.",
        1,
        604_800,
        GucContext::Userset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_bool_guc(
        c"pg_queue.reclaim",
        c"Enables the reclaiming of segments.",
        c"Turn it off for the time of a dump that is taken on a standby.",
        &RECLAIM,
        GucContext::Sighup,
        none,
    );
    GucRegistry::define_bool_guc(
        c"pg_queue.worker",
        c"Enables the background worker's duties.",
        c"Per database by ALTER DATABASE … SET; queue.maintain() does the same duties in the foreground.",
        &WORKER,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_bool_guc(
        c"pg_queue.superuser_jobs",
        c"Allows jobs that are SQL to run as superusers.",
        c"Otherwise a superuser's command is refused when it is enqueued, and when it is to run.",
        &SUPERUSER_JOBS,
        GucContext::Suset,
        none,
    );
    GucRegistry::define_float_guc(
        c"pg_queue.clock_offset",
        c"Sets by how much the clock of schedules is ahead, for tests.",
        c"Seconds, -10000000000 to 10000000000.",
        &CLOCK_OFFSET,
        -1e10,
        1e10,
        GucContext::Suset,
        GucFlags::NO_SHOW_ALL,
    );
    // Upgrade scripts read it: the server may still run an older library than the one that was installed with the
    // scripts.
    GucRegistry::define_string_guc(
        c"pg_queue.library_version",
        c"Shows the version of the library that the server has loaded.",
        c"It changes with a restart only; that of the SQL is in pg_extension.",
        &LIBRARY_VERSION,
        GucContext::Internal,
        none,
    );
    let version = CString::new(Zone::data_version().unwrap_or("unknown")).unwrap_or_default();
    let version: &CStr = Box::leak(version.into_boxed_c_str());
    GucRegistry::define_string_guc(
        c"pg_queue.timezone_version",
        c"Shows the version of the time zone data that schedules use.",
        c"It is part of the library.",
        Box::leak(Box::new(GucSetting::<Option<CString>>::new(Some(version)))),
        GucContext::Internal,
        none,
    );
}
