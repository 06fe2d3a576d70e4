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
pub const VERSION: &CStr = c_text(concat!(env!("CARGO_PKG_VERSION"), "\0"));

/// Returns a text with a zero at its end as C has it.
const fn c_text(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

/// Makes the settings that are integers: static and default, name, context, range and unit; what it does; details.
macro_rules! integers {
    ($(
        $setting:ident = $default:expr, $name:literal, $context:ident, $range:expr, $unit:expr,
            $what:literal, $more:literal;
    )*) => {
        $(
            #[doc = $what]
            #[doc = $more]
            pub static $setting: GucSetting<i32> = GucSetting::<i32>::new($default);
        )*

        /// Defines the integers. Those that size shared memory only while the server preloads libraries.
        fn define_integers(preloading: bool) {
            $(
                if preloading || !matches!(GucContext::$context, GucContext::Postmaster) {
                    let name = c_text(concat!("pg_queue.", $name, "\0"));
                    let (what, more) = (c_text(concat!($what, "\0")), c_text(concat!($more, "\0")));
                    let (min, max) = $range.into_inner();
                    GucRegistry::define_int_guc(name, what, more, &$setting, min, max, GucContext::$context, $unit);
                }
            )*
        }
    };
}

const NONE: GucFlags = GucFlags::empty();

integers! {
    MAX_READY = 2048, "max_ready", Postmaster, 2..=65_536, NONE,
        "Sets how many ready attempts of each lane are kept in memory.",
        "Attempts, 2 to 65536; 40 bytes each for each of max_lanes. More waiting jobs than this are read from \
            their index when needed.";
    MAX_RUNNING = 65536, "max_running", Postmaster, 1..=16_777_216, NONE,
        "Sets how many attempts can be claimed at the same time.",
        "Attempts over all databases, 1 to 16777216; about 300 bytes each.";
    MAX_LANES = 256, "max_lanes", Postmaster, 1..=65_536, NONE,
        "Sets how many lanes (queues and their stages) are kept in memory.",
        "Lanes over all databases, 1 to 65536. With more in use, the one used longest ago is read again when it is \
            needed.";
    MAX_RATED_GROUPS = 30_000, "max_rated_groups", Postmaster, 16..=16_777_216, NONE,
        "Sets how many groups can have started jobs within the rate_period of their queue, where that has a \
            rate_limit_per_group.",
        "Groups over all databases, 16 to 16777216; about 530 bytes each. A group beyond them waits until another \
            one's period is over.";
    MAX_KEYS = 262_144, "max_keys", Postmaster, 1..=16_777_216, NONE,
        "Sets how many unique keys can be held at the same time by transactions that have enqueued under them.",
        "Keys over all databases, 1 to 16777216; 32 bytes each.";
    MAX_DATABASES = 16, "max_databases", Postmaster, 1..=1024, NONE,
        "Sets how many databases can use the extension at the same time.",
        "Databases, 1 to 1024; each has a background worker, which takes a slot of max_worker_processes.";
    MAX_EXECUTORS = 8, "max_executors", Postmaster, 0..=1024, NONE,
        "Sets how many jobs that are SQL can run at the same time.",
        "Background processes over all databases, 0 to 1024, started when they are needed; each takes a slot of \
            max_worker_processes.";
    SEGMENT_ROWS = 1_000_000, "segment_rows", Sighup, 1000..=1_000_000_000, NONE,
        "Sets after how many attempts a young segment is closed.",
        "Rows, 1000 to 1000000000.";
    SEGMENT_AGE = 600, "segment_age", Sighup, 1..=604_800, GucFlags::UNIT_S,
        "Sets after what time a young segment is closed.",
        "Seconds, 1 to 604800; an empty segment is never closed.";
    STATISTICS_RETENTION = 90 * 86_400, "statistics_retention", Sighup, -1..=i32::MAX, GucFlags::UNIT_S,
        "Sets how long the minutes of queue.throughput are kept.",
        "Seconds, 0 to 2147483647; -1 keeps them for ever.";
    MAX_WAIT = 15_000, "max_wait", Userset, 0..=3_600_000, GucFlags::UNIT_MS,
        "Sets the longest time that one call of claim or wait sleeps.",
        "Milliseconds, 0 to 3600000. A sleeping claim holds back vacuum's horizon for as long; CALL queue.wait \
            does not.";
    MAX_ERROR_LENGTH = 8192, "max_error_length", Suset, 64..=1_048_576, GucFlags::UNIT_BYTE,
        "Sets where error texts of failed attempts are cut.",
        "Bytes, 64 to 1048576.";
    MAX_PAYLOAD = 64 << 20, "max_payload", Suset, 1024..=80 << 20, GucFlags::UNIT_BYTE,
        "Sets how long JSON that is stored may be as text: payload, headers, result, progress, arguments.",
        "Bytes, 1024 to 83886080. Postgres cannot write a row of more than 1 GB as text.";
    NODE_ID = 0, "node_id", Sighup, 0..=127, NONE,
        "Sets the number of this node in the ids of jobs and attempts.",
        "0 to 127; servers whose jobs may ever meet need different numbers.";
    RECLAIM_DELAY = 10_000, "reclaim_delay", Sighup, 0..=86_400_000, GucFlags::UNIT_MS,
        "Sets how long a segment that has been copied to history is kept.",
        "Milliseconds, 0 to 86400000. Longer than it takes a dump from its snapshot to its first lock, and any \
            query over the views.";
    RESTORE_QUIET = 10, "restore_quiet", Sighup, 1..=86_400, GucFlags::UNIT_S,
        "Sets how long the tables must not have been written by SQL before jobs run again after a restore.",
        "Seconds, 1 to 86400; queue.adopt() ends it earlier.";
    PATIENCE = 300, "patience", Userset, 1..=604_800, GucFlags::UNIT_S,
        "Sets after what time queue.doctor() finds that something has stood still for too long.",
        "Seconds, 1 to 604800.";
}

/// Whether segments are reclaimed.
pub static RECLAIM: GucSetting<bool> = GucSetting::<bool>::new(true);
/// By how many seconds the clock of schedules is ahead of the server's clock.
pub static CLOCK_OFFSET: GucSetting<f64> = GucSetting::<f64>::new(0.0);
/// The value of `pg_queue.library_version`.
static LIBRARY_VERSION: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(VERSION));
/// Whether jobs may run as superusers.
pub static SUPERUSER_JOBS: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Whether the background worker does its duties in this database.
pub static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);

/// Defines the settings. Those that size shared memory can be defined only while the server preloads libraries.
pub fn define(preloading: bool) {
    define_integers(preloading);
    GucRegistry::define_bool_guc(
        c"pg_queue.reclaim",
        c"Enables the reclaiming of segments.",
        c"Turn it off for the time of a dump that is taken on a standby.",
        &RECLAIM,
        GucContext::Sighup,
        NONE,
    );
    GucRegistry::define_bool_guc(
        c"pg_queue.worker",
        c"Enables the background worker's duties.",
        c"Per database by ALTER DATABASE … SET; queue.maintain() does the same duties in the foreground.",
        &WORKER,
        GucContext::Suset,
        NONE,
    );
    GucRegistry::define_bool_guc(
        c"pg_queue.superuser_jobs",
        c"Allows jobs that are SQL to run as superusers.",
        c"Otherwise a superuser's command is refused when it is enqueued, and when it is to run.",
        &SUPERUSER_JOBS,
        GucContext::Suset,
        NONE,
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
        NONE,
    );
    let version = CString::new(Zone::data_version().unwrap_or("unknown")).unwrap_or_default();
    let version: &CStr = Box::leak(version.into_boxed_c_str());
    GucRegistry::define_string_guc(
        c"pg_queue.timezone_version",
        c"Shows the version of the time zone data that schedules use.",
        c"It is part of the library.",
        Box::leak(Box::new(GucSetting::<Option<CString>>::new(Some(version)))),
        GucContext::Internal,
        NONE,
    );
}
