//! The arguments of the functions in C, by the names in their declarations.
//!
//! Made by `make generate` from the SQL of the extensions: do not edit. Not responsible for reading an argument
//! (`pg::argument`).
//!
//! Invariant: a name that the SQL does not declare does not compile.

// What a function does not read by its name has a constant nevertheless.
#![allow(dead_code)]

/// `queue.grant`.
pub mod grant {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const ROLE_NAME: Argument<kind::Text> = Argument::at(1, "role_name");
    pub const PRIVILEGE: Argument<kind::Text> = Argument::at(2, "privilege");
    pub const NAMES: &[&str] = &["queue_name", "role_name", "privilege"];
}

/// `queue.revoke`.
pub mod revoke {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const ROLE_NAME: Argument<kind::Text> = Argument::at(1, "role_name");
    pub const PRIVILEGE: Argument<kind::Text> = Argument::at(2, "privilege");
    pub const NAMES: &[&str] = &["queue_name", "role_name", "privilege"];
}

/// `queue_internal.may_observe`.
pub mod may_observe {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_ID: Argument<kind::Integer> = Argument::at(0, "queue_id");
    pub const NAMES: &[&str] = &["queue_id"];
}

/// `queue.create`.
pub mod create {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const IF_NOT_EXISTS: Argument<kind::Boolean> = Argument::at(1, "if_not_exists");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(2, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(3, "lease");
    pub const BACKOFF: Argument<kind::Text> = Argument::at(4, "backoff");
    pub const BACKOFF_BASE: Argument<kind::Interval> = Argument::at(5, "backoff_base");
    pub const BACKOFF_MAX: Argument<kind::Interval> = Argument::at(6, "backoff_max");
    pub const BACKOFF_JITTER: Argument<kind::Float> = Argument::at(7, "backoff_jitter");
    pub const RETENTION: Argument<kind::Interval> = Argument::at(8, "retention");
    pub const DEAD_RETENTION: Argument<kind::Interval> = Argument::at(9, "dead_retention");
    pub const DEAD_LETTER: Argument<kind::Text> = Argument::at(10, "dead_letter");
    pub const MAX_RUNNING: Argument<kind::Integer> = Argument::at(11, "max_running");
    pub const MAX_RUNNING_PER_GROUP: Argument<kind::Integer> = Argument::at(12, "max_running_per_group");
    pub const STRICT_ORDER: Argument<kind::Boolean> = Argument::at(13, "strict_order");
    pub const RATE_LIMIT: Argument<kind::Integer> = Argument::at(14, "rate_limit");
    pub const RATE_LIMIT_PER_GROUP: Argument<kind::Integer> = Argument::at(15, "rate_limit_per_group");
    pub const RATE_PERIOD: Argument<kind::Interval> = Argument::at(16, "rate_period");
    pub const MAX_WAITING: Argument<kind::Bigint> = Argument::at(17, "max_waiting");
    pub const STAGES: Argument<kind::Texts> = Argument::at(18, "stages");
    pub const NOTIFY: Argument<kind::Boolean> = Argument::at(19, "notify");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(20, "start_within");
    pub const EXECUTOR: Argument<kind::Text> = Argument::at(21, "executor");
    pub const PROCEDURE: Argument<kind::Text> = Argument::at(22, "procedure");
    pub const RUN_AS: Argument<kind::Text> = Argument::at(23, "run_as");
    pub const SETTINGS: Argument<kind::Jsonb> = Argument::at(24, "settings");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "if_not_exists",
        "max_attempts",
        "lease",
        "backoff",
        "backoff_base",
        "backoff_max",
        "backoff_jitter",
        "retention",
        "dead_retention",
        "dead_letter",
        "max_running",
        "max_running_per_group",
        "strict_order",
        "rate_limit",
        "rate_limit_per_group",
        "rate_period",
        "max_waiting",
        "stages",
        "notify",
        "start_within",
        "executor",
        "procedure",
        "run_as",
        "settings",
    ];
}

/// `queue.alter`.
pub mod alter {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const RESET: Argument<kind::Texts> = Argument::at(1, "reset");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(2, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(3, "lease");
    pub const BACKOFF: Argument<kind::Text> = Argument::at(4, "backoff");
    pub const BACKOFF_BASE: Argument<kind::Interval> = Argument::at(5, "backoff_base");
    pub const BACKOFF_MAX: Argument<kind::Interval> = Argument::at(6, "backoff_max");
    pub const BACKOFF_JITTER: Argument<kind::Float> = Argument::at(7, "backoff_jitter");
    pub const RETENTION: Argument<kind::Interval> = Argument::at(8, "retention");
    pub const DEAD_RETENTION: Argument<kind::Interval> = Argument::at(9, "dead_retention");
    pub const DEAD_LETTER: Argument<kind::Text> = Argument::at(10, "dead_letter");
    pub const MAX_RUNNING: Argument<kind::Integer> = Argument::at(11, "max_running");
    pub const MAX_RUNNING_PER_GROUP: Argument<kind::Integer> = Argument::at(12, "max_running_per_group");
    pub const STRICT_ORDER: Argument<kind::Boolean> = Argument::at(13, "strict_order");
    pub const RATE_LIMIT: Argument<kind::Integer> = Argument::at(14, "rate_limit");
    pub const RATE_LIMIT_PER_GROUP: Argument<kind::Integer> = Argument::at(15, "rate_limit_per_group");
    pub const RATE_PERIOD: Argument<kind::Interval> = Argument::at(16, "rate_period");
    pub const MAX_WAITING: Argument<kind::Bigint> = Argument::at(17, "max_waiting");
    pub const STAGES: Argument<kind::Texts> = Argument::at(18, "stages");
    pub const NOTIFY: Argument<kind::Boolean> = Argument::at(19, "notify");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(20, "start_within");
    pub const EXECUTOR: Argument<kind::Text> = Argument::at(21, "executor");
    pub const PROCEDURE: Argument<kind::Text> = Argument::at(22, "procedure");
    pub const RUN_AS: Argument<kind::Text> = Argument::at(23, "run_as");
    pub const SETTINGS: Argument<kind::Jsonb> = Argument::at(24, "settings");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "reset",
        "max_attempts",
        "lease",
        "backoff",
        "backoff_base",
        "backoff_max",
        "backoff_jitter",
        "retention",
        "dead_retention",
        "dead_letter",
        "max_running",
        "max_running_per_group",
        "strict_order",
        "rate_limit",
        "rate_limit_per_group",
        "rate_period",
        "max_waiting",
        "stages",
        "notify",
        "start_within",
        "executor",
        "procedure",
        "run_as",
        "settings",
    ];
}

/// `queue.drop`.
pub mod drop {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const FORCE: Argument<kind::Boolean> = Argument::at(1, "force");
    pub const IF_EXISTS: Argument<kind::Boolean> = Argument::at(2, "if_exists");
    pub const NAMES: &[&str] = &["queue_name", "force", "if_exists"];
}

/// `queue.pause`.
pub mod pause {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const NAMES: &[&str] = &["queue_name"];
}

/// `queue.resume`.
pub mod resume {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const NAMES: &[&str] = &["queue_name"];
}

/// `queue.purge`.
pub mod purge {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const NAMES: &[&str] = &["queue_name"];
}

/// `queue.enqueue`.
pub mod enqueue {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(1, "payload");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(2, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(3, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(4, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(5, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(6, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(7, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(8, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(9, "group_key");
    pub const STAGE: Argument<kind::Text> = Argument::at(10, "stage");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(11, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(12, "lease");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(13, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(14, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(15, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(16, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(17, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(18, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(19, "start_within");
    pub const MAX_DELAY: Argument<kind::Interval> = Argument::at(20, "max_delay");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "payload",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "stage",
        "max_attempts",
        "lease",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
        "max_delay",
    ];
}

/// `queue.enqueue_many`.
pub mod enqueue_many {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const PAYLOADS: Argument<kind::Jsonbs> = Argument::at(1, "payloads");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(2, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(3, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(4, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(5, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(6, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(7, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(8, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(9, "group_key");
    pub const STAGE: Argument<kind::Text> = Argument::at(10, "stage");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(11, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(12, "lease");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(13, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(14, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(15, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(16, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(17, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(18, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(19, "start_within");
    pub const MAX_DELAY: Argument<kind::Interval> = Argument::at(20, "max_delay");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "payloads",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "stage",
        "max_attempts",
        "lease",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
        "max_delay",
    ];
}

/// `queue.enqueue_batch`.
pub mod enqueue_batch {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const JOBS: Argument<kind::Jsonb> = Argument::at(1, "jobs");
    pub const NAMES: &[&str] = &["queue_name", "jobs"];
}

/// `queue.enqueue_sql`.
pub mod enqueue_sql {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const COMMAND: Argument<kind::Text> = Argument::at(1, "command");
    pub const ARGUMENTS: Argument<kind::Jsonb> = Argument::at(2, "arguments");
    pub const AUTOCOMMIT: Argument<kind::Boolean> = Argument::at(3, "autocommit");
    pub const SETTINGS: Argument<kind::Jsonb> = Argument::at(4, "settings");
    pub const RESULT_ROWS: Argument<kind::Integer> = Argument::at(5, "result_rows");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(6, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(7, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(8, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(9, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(10, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(11, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(12, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(13, "group_key");
    pub const STAGE: Argument<kind::Text> = Argument::at(14, "stage");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(15, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(16, "lease");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(17, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(18, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(19, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(20, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(21, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(22, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(23, "start_within");
    pub const MAX_DELAY: Argument<kind::Interval> = Argument::at(24, "max_delay");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "command",
        "arguments",
        "autocommit",
        "settings",
        "result_rows",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "stage",
        "max_attempts",
        "lease",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
        "max_delay",
    ];
}

/// `queue.enqueue_flow`.
pub mod enqueue_flow {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const TASKS: Argument<kind::Jsonb> = Argument::at(1, "tasks");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(2, "payload");
    pub const RUNS: Argument<kind::Boolean> = Argument::at(3, "runs");
    pub const OPEN: Argument<kind::Boolean> = Argument::at(4, "open");
    pub const FAIL_FAST: Argument<kind::Boolean> = Argument::at(5, "fail_fast");
    pub const COMMAND: Argument<kind::Text> = Argument::at(6, "command");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(7, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(8, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(9, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(10, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(11, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(12, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(13, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(14, "group_key");
    pub const STAGE: Argument<kind::Text> = Argument::at(15, "stage");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(16, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(17, "lease");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(18, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(19, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(20, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(21, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(22, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(23, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(24, "start_within");
    pub const NAMES: &[&str] = &[
        "queue_name",
        "tasks",
        "payload",
        "runs",
        "open",
        "fail_fast",
        "command",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "stage",
        "max_attempts",
        "lease",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
    ];
}

/// `queue.seal`.
pub mod seal {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue.resolve`.
pub mod resolve {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const RESULT: Argument<kind::Jsonb> = Argument::at(1, "result");
    pub const NAMES: &[&str] = &["job_id", "result"];
}

/// `queue.reject`.
pub mod reject {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const ERROR: Argument<kind::Text> = Argument::at(1, "error");
    pub const NAMES: &[&str] = &["job_id", "error"];
}

/// `queue.claim`.
pub mod claim {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const MAX_JOBS: Argument<kind::Integer> = Argument::at(1, "max_jobs");
    pub const WAIT: Argument<kind::Interval> = Argument::at(2, "wait");
    pub const LEASE: Argument<kind::Interval> = Argument::at(3, "lease");
    pub const STAGE: Argument<kind::Text> = Argument::at(4, "stage");
    pub const WORKER: Argument<kind::Text> = Argument::at(5, "worker");
    pub const DISCONNECT: Argument<kind::Interval> = Argument::at(6, "disconnect");
    pub const COMPLETED: Argument<kind::Bigints> = Argument::at(7, "completed");
    pub const LINGER: Argument<kind::Interval> = Argument::at(8, "linger");
    pub const NAMES: &[&str] =
        &["queue_name", "max_jobs", "wait", "lease", "stage", "worker", "disconnect", "completed", "linger"];
}

/// `queue.claim_any`.
pub mod claim_any {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAMES: Argument<kind::Texts> = Argument::at(0, "queue_names");
    pub const MAX_JOBS: Argument<kind::Integer> = Argument::at(1, "max_jobs");
    pub const WAIT: Argument<kind::Interval> = Argument::at(2, "wait");
    pub const LEASE: Argument<kind::Interval> = Argument::at(3, "lease");
    pub const STAGE: Argument<kind::Text> = Argument::at(4, "stage");
    pub const WORKER: Argument<kind::Text> = Argument::at(5, "worker");
    pub const DISCONNECT: Argument<kind::Interval> = Argument::at(6, "disconnect");
    pub const COMPLETED: Argument<kind::Bigints> = Argument::at(7, "completed");
    pub const LINGER: Argument<kind::Interval> = Argument::at(8, "linger");
    pub const NAMES: &[&str] =
        &["queue_names", "max_jobs", "wait", "lease", "stage", "worker", "disconnect", "completed", "linger"];
}

/// `queue.wait`.
pub mod wait {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const TIMEOUT: Argument<kind::Interval> = Argument::at(1, "timeout");
    pub const HAS_JOBS: Argument<kind::Boolean> = Argument::at(2, "has_jobs");
    pub const NAMES: &[&str] = &["queue_name", "timeout", "has_jobs"];
}

/// `queue.complete`.
pub mod complete {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const RESULT: Argument<kind::Jsonb> = Argument::at(1, "result");
    pub const NAMES: &[&str] = &["id", "result"];
}

/// `queue.complete_many`.
pub mod complete_many {
    use crate::pg::argument::{Argument, kind};

    pub const IDS: Argument<kind::Bigints> = Argument::at(0, "ids");
    pub const NAMES: &[&str] = &["ids"];
}

/// `queue.fail`.
pub mod fail {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const ERROR: Argument<kind::Text> = Argument::at(1, "error");
    pub const RETRY_IN: Argument<kind::Interval> = Argument::at(2, "retry_in");
    pub const FATAL: Argument<kind::Boolean> = Argument::at(3, "fatal");
    pub const NAMES: &[&str] = &["id", "error", "retry_in", "fatal"];
}

/// `queue.fail_many`.
pub mod fail_many {
    use crate::pg::argument::{Argument, kind};

    pub const IDS: Argument<kind::Bigints> = Argument::at(0, "ids");
    pub const ERROR: Argument<kind::Text> = Argument::at(1, "error");
    pub const RETRY_IN: Argument<kind::Interval> = Argument::at(2, "retry_in");
    pub const FATAL: Argument<kind::Boolean> = Argument::at(3, "fatal");
    pub const NAMES: &[&str] = &["ids", "error", "retry_in", "fatal"];
}

/// `queue.release`.
pub mod release {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const DELAY: Argument<kind::Interval> = Argument::at(1, "delay");
    pub const REASON: Argument<kind::Text> = Argument::at(2, "reason");
    pub const NAMES: &[&str] = &["id", "delay", "reason"];
}

/// `queue.release_many`.
pub mod release_many {
    use crate::pg::argument::{Argument, kind};

    pub const IDS: Argument<kind::Bigints> = Argument::at(0, "ids");
    pub const DELAY: Argument<kind::Interval> = Argument::at(1, "delay");
    pub const REASON: Argument<kind::Text> = Argument::at(2, "reason");
    pub const NAMES: &[&str] = &["ids", "delay", "reason"];
}

/// `queue.end_batch`.
pub mod end_batch {
    use crate::pg::argument::{Argument, kind};

    pub const ENDS: Argument<kind::Text> = Argument::at(0, "ends");
    pub const NAMES: &[&str] = &["ends"];
}

/// `queue.extend`.
pub mod extend {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const LEASE: Argument<kind::Interval> = Argument::at(1, "lease");
    pub const NAMES: &[&str] = &["id", "lease"];
}

/// `queue.extend_many`.
pub mod extend_many {
    use crate::pg::argument::{Argument, kind};

    pub const IDS: Argument<kind::Bigints> = Argument::at(0, "ids");
    pub const LEASE: Argument<kind::Interval> = Argument::at(1, "lease");
    pub const NAMES: &[&str] = &["ids", "lease"];
}

/// `queue.progress`.
pub mod progress {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const PROGRESS: Argument<kind::Jsonb> = Argument::at(1, "progress");
    pub const NAMES: &[&str] = &["id", "progress"];
}

/// `queue.advance`.
pub mod advance {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const STAGE: Argument<kind::Text> = Argument::at(1, "stage");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(2, "payload");
    pub const DELAY: Argument<kind::Interval> = Argument::at(3, "delay");
    pub const NAMES: &[&str] = &["id", "stage", "payload", "delay"];
}

/// `queue.suspend`.
pub mod suspend {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(1, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(2, "upon");
    pub const PROGRESS: Argument<kind::Jsonb> = Argument::at(3, "progress");
    pub const UNTIL: Argument<kind::Timestamp> = Argument::at(4, "until");
    pub const NAMES: &[&str] = &["id", "after", "upon", "progress", "until"];
}

/// `queue.inputs`.
pub mod inputs {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAMES: &[&str] = &["id"];
}

/// `queue.step`.
pub mod step {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAME: Argument<kind::Text> = Argument::at(1, "name");
    pub const NAMES: &[&str] = &["id", "name"];
}

/// `queue.step_done`.
pub mod step_done {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAME: Argument<kind::Text> = Argument::at(1, "name");
    pub const RESULT: Argument<kind::Jsonb> = Argument::at(2, "result");
    pub const NAMES: &[&str] = &["id", "name", "result"];
}

/// `queue.cancel`.
pub mod cancel {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const REASON: Argument<kind::Text> = Argument::at(1, "reason");
    pub const FORCE: Argument<kind::Boolean> = Argument::at(2, "force");
    pub const NAMES: &[&str] = &["job_id", "reason", "force"];
}

/// `queue.retry`.
pub mod retry {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(1, "run_at");
    pub const NAMES: &[&str] = &["job_id", "run_at"];
}

/// `queue.retry_many`.
pub mod retry_many {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_IDS: Argument<kind::Bigints> = Argument::at(0, "job_ids");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(1, "run_at");
    pub const NAMES: &[&str] = &["job_ids", "run_at"];
}

/// `queue.cancel_many`.
pub mod cancel_many {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_IDS: Argument<kind::Bigints> = Argument::at(0, "job_ids");
    pub const REASON: Argument<kind::Text> = Argument::at(1, "reason");
    pub const FORCE: Argument<kind::Boolean> = Argument::at(2, "force");
    pub const NAMES: &[&str] = &["job_ids", "reason", "force"];
}

/// `queue.reprioritize`.
pub mod reprioritize {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(1, "priority");
    pub const NAMES: &[&str] = &["job_id", "priority"];
}

/// `queue.reprioritize_many`.
pub mod reprioritize_many {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_IDS: Argument<kind::Bigints> = Argument::at(0, "job_ids");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(1, "priority");
    pub const NAMES: &[&str] = &["job_ids", "priority"];
}

/// `queue.reschedule`.
pub mod reschedule {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(1, "run_at");
    pub const NAMES: &[&str] = &["job_id", "run_at"];
}

/// `queue.reschedule_many`.
pub mod reschedule_many {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_IDS: Argument<kind::Bigints> = Argument::at(0, "job_ids");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(1, "run_at");
    pub const NAMES: &[&str] = &["job_ids", "run_at"];
}

/// `queue.forget`.
pub mod forget {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue_internal.lease_expires_at`.
pub mod lease_expires_at {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAMES: &[&str] = &["id"];
}

/// `queue_internal.tallies`.
pub mod tallies {
    use crate::pg::argument::{Argument, kind};

    pub const WALK: Argument<kind::Boolean> = Argument::at(0, "walk");
    pub const NAMES: &[&str] = &["walk"];
}

/// `queue_internal.life_of`.
pub mod life_of {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue.job_steps`.
pub mod job_steps {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue.text_length`.
pub mod text_length {
    use crate::pg::argument::{Argument, kind};

    pub const VALUE: Argument<kind::Jsonb> = Argument::at(0, "value");
    pub const NAMES: &[&str] = &["value"];
}

/// `queue_internal.payload_of`.
pub mod payload_of {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAMES: &[&str] = &["id"];
}

/// `queue_internal.times`.
pub mod times {
    use crate::pg::argument::{Argument, kind};

    pub const HISTOGRAMS: Argument<kind::Byteas> = Argument::at(0, "histograms");
    pub const NAMES: &[&str] = &["histograms"];
}

/// `queue.create_topic`.
pub mod create_topic {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const IF_NOT_EXISTS: Argument<kind::Boolean> = Argument::at(1, "if_not_exists");
    pub const NAMES: &[&str] = &["topic", "if_not_exists"];
}

/// `queue.bind`.
pub mod bind {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(1, "queue_name");
    pub const PATTERN: Argument<kind::Text> = Argument::at(2, "pattern");
    pub const FILTER: Argument<kind::Other> = Argument::at(3, "filter");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(4, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(5, "delay");
    pub const GROUP_KEY: Argument<kind::Other> = Argument::at(6, "group_key");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(7, "max_attempts");
    pub const LEASE: Argument<kind::Interval> = Argument::at(8, "lease");
    pub const STAGE: Argument<kind::Text> = Argument::at(9, "stage");
    pub const ON_FULL: Argument<kind::Text> = Argument::at(10, "on_full");
    pub const NAMES: &[&str] = &[
        "topic",
        "queue_name",
        "pattern",
        "filter",
        "priority",
        "delay",
        "group_key",
        "max_attempts",
        "lease",
        "stage",
        "on_full",
    ];
}

/// `queue.unbind`.
pub mod unbind {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(1, "queue_name");
    pub const PATTERN: Argument<kind::Text> = Argument::at(2, "pattern");
    pub const NAMES: &[&str] = &["topic", "queue_name", "pattern"];
}

/// `queue.publish`.
pub mod publish {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(1, "payload");
    pub const KEY: Argument<kind::Text> = Argument::at(2, "key");
    pub const MANDATORY: Argument<kind::Boolean> = Argument::at(3, "mandatory");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(4, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(5, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(6, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(7, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(8, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(9, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(10, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(11, "group_key");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(12, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(13, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(14, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(15, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(16, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(17, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(18, "start_within");
    pub const MAX_DELAY: Argument<kind::Interval> = Argument::at(19, "max_delay");
    pub const NAMES: &[&str] = &[
        "topic",
        "payload",
        "key",
        "mandatory",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
        "max_delay",
    ];
}

/// `queue.publish_many`.
pub mod publish_many {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const PAYLOADS: Argument<kind::Jsonbs> = Argument::at(1, "payloads");
    pub const KEYS: Argument<kind::Texts> = Argument::at(2, "keys");
    pub const MANDATORY: Argument<kind::Boolean> = Argument::at(3, "mandatory");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(4, "priority");
    pub const DELAY: Argument<kind::Interval> = Argument::at(5, "delay");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(6, "run_at");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(7, "unique_key");
    pub const ON_DUPLICATE: Argument<kind::Text> = Argument::at(8, "on_duplicate");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(9, "version");
    pub const UNIQUE_FOR: Argument<kind::Interval> = Argument::at(10, "unique_for");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(11, "group_key");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(12, "headers");
    pub const AFTER: Argument<kind::Bigints> = Argument::at(13, "after");
    pub const UPON: Argument<kind::Text> = Argument::at(14, "upon");
    pub const FLOW: Argument<kind::Bigint> = Argument::at(15, "flow");
    pub const TASK: Argument<kind::Text> = Argument::at(16, "task");
    pub const START_BY: Argument<kind::Timestamp> = Argument::at(17, "start_by");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(18, "start_within");
    pub const MAX_DELAY: Argument<kind::Interval> = Argument::at(19, "max_delay");
    pub const NAMES: &[&str] = &[
        "topic",
        "payloads",
        "keys",
        "mandatory",
        "priority",
        "delay",
        "run_at",
        "unique_key",
        "on_duplicate",
        "version",
        "unique_for",
        "group_key",
        "headers",
        "after",
        "upon",
        "flow",
        "task",
        "start_by",
        "start_within",
        "max_delay",
    ];
}

/// `queue.route`.
pub mod route {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const KEY: Argument<kind::Text> = Argument::at(1, "key");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(2, "payload");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(3, "headers");
    pub const NAMES: &[&str] = &["topic", "key", "payload", "headers"];
}

/// `queue.schedule`.
pub mod schedule {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(1, "queue_name");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(2, "payload");
    pub const CRON: Argument<kind::Text> = Argument::at(3, "cron");
    pub const EVERY: Argument<kind::Interval> = Argument::at(4, "every");
    pub const TIMEZONE: Argument<kind::Text> = Argument::at(5, "timezone");
    pub const MISSED: Argument<kind::Text> = Argument::at(6, "missed");
    pub const STARTS_AT: Argument<kind::Timestamp> = Argument::at(7, "starts_at");
    pub const ENDS_AT: Argument<kind::Timestamp> = Argument::at(8, "ends_at");
    pub const OVERLAP: Argument<kind::Boolean> = Argument::at(9, "overlap");
    pub const PRIORITY: Argument<kind::Integer> = Argument::at(10, "priority");
    pub const MAX_ATTEMPTS: Argument<kind::Integer> = Argument::at(11, "max_attempts");
    pub const GROUP_KEY: Argument<kind::Text> = Argument::at(12, "group_key");
    pub const HEADERS: Argument<kind::Jsonb> = Argument::at(13, "headers");
    pub const COMMAND: Argument<kind::Text> = Argument::at(14, "command");
    pub const START_WITHIN: Argument<kind::Interval> = Argument::at(15, "start_within");
    pub const NAMES: &[&str] = &[
        "name",
        "queue_name",
        "payload",
        "cron",
        "every",
        "timezone",
        "missed",
        "starts_at",
        "ends_at",
        "overlap",
        "priority",
        "max_attempts",
        "group_key",
        "headers",
        "command",
        "start_within",
    ];
}

/// `queue.unschedule`.
pub mod unschedule {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const NAMES: &[&str] = &["name"];
}

/// `queue.pause_schedule`.
pub mod pause_schedule {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const NAMES: &[&str] = &["name"];
}

/// `queue.resume_schedule`.
pub mod resume_schedule {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const NAMES: &[&str] = &["name"];
}

/// `queue.run_schedule`.
pub mod run_schedule {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const NAMES: &[&str] = &["name"];
}

/// `queue.upcoming`.
pub mod upcoming {
    use crate::pg::argument::{Argument, kind};

    pub const NAME: Argument<kind::Text> = Argument::at(0, "name");
    pub const RUNS: Argument<kind::Integer> = Argument::at(1, "runs");
    pub const NAMES: &[&str] = &["name", "runs"];
}

/// `queue_internal.job_state`.
pub mod job_state {
    use crate::pg::argument::{Argument, kind};

    pub const OUTCOME: Argument<kind::Other> = Argument::at(0, "outcome");
    pub const IS_CLAIMED: Argument<kind::Boolean> = Argument::at(1, "is_claimed");
    pub const IS_HELD: Argument<kind::Boolean> = Argument::at(2, "is_held");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(3, "run_at");
    pub const HAS_FAILED: Argument<kind::Boolean> = Argument::at(4, "has_failed");
    pub const NAMES: &[&str] = &["outcome", "is_claimed", "is_held", "run_at", "has_failed"];
}

/// `queue_internal.attempt_state`.
pub mod attempt_state {
    use crate::pg::argument::{Argument, kind};

    pub const OUTCOME: Argument<kind::Other> = Argument::at(0, "outcome");
    pub const IS_CLAIMED: Argument<kind::Boolean> = Argument::at(1, "is_claimed");
    pub const IS_HELD: Argument<kind::Boolean> = Argument::at(2, "is_held");
    pub const RUN_AT: Argument<kind::Timestamp> = Argument::at(3, "run_at");
    pub const HAS_FAILED: Argument<kind::Boolean> = Argument::at(4, "has_failed");
    pub const NAMES: &[&str] = &["outcome", "is_claimed", "is_held", "run_at", "has_failed"];
}

/// `queue.job`.
pub mod job {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue.job_attempts`.
pub mod job_attempts {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const NAMES: &[&str] = &["job_id"];
}

/// `queue.await`.
pub mod r#await {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const TIMEOUT: Argument<kind::Interval> = Argument::at(1, "timeout");
    pub const STATE: Argument<kind::Text> = Argument::at(2, "state");
    pub const RESULT: Argument<kind::Jsonb> = Argument::at(3, "result");
    pub const NAMES: &[&str] = &["job_id", "timeout", "state", "result"];
}

/// `queue.members`.
pub mod members {
    use crate::pg::argument::{Argument, kind};

    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(0, "job_id");
    pub const STATE: Argument<kind::Text> = Argument::at(1, "state");
    pub const BEYOND: Argument<kind::Bigint> = Argument::at(2, "beyond");
    pub const MAX_JOBS: Argument<kind::Integer> = Argument::at(3, "max_jobs");
    pub const NAMES: &[&str] = &["job_id", "state", "beyond", "max_jobs"];
}

/// `queue.search`.
pub mod search {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const FILTER: Argument<kind::Other> = Argument::at(1, "filter");
    pub const STATES: Argument<kind::Texts> = Argument::at(2, "states");
    pub const STAGE: Argument<kind::Text> = Argument::at(3, "stage");
    pub const BEYOND: Argument<kind::Jsonb> = Argument::at(4, "beyond");
    pub const MAX_JOBS: Argument<kind::Integer> = Argument::at(5, "max_jobs");
    pub const MAX_ROWS: Argument<kind::Integer> = Argument::at(6, "max_rows");
    pub const NAMES: &[&str] = &["queue_name", "filter", "states", "stage", "beyond", "max_jobs", "max_rows"];
}

/// `queue.error_groups`.
pub mod error_groups {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const MAX_JOBS: Argument<kind::Integer> = Argument::at(1, "max_jobs");
    pub const NAMES: &[&str] = &["queue_name", "max_jobs"];
}

/// `queue.load`.
pub mod load {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const TARGET_AGE: Argument<kind::Interval> = Argument::at(1, "target_age");
    pub const NAMES: &[&str] = &["queue_name", "target_age"];
}

/// `queue.check`.
pub mod check {
    use crate::pg::argument::{Argument, kind};

    pub const REPAIR: Argument<kind::Boolean> = Argument::at(0, "repair");
    pub const NAMES: &[&str] = &["repair"];
}

/// `queue_cluster.is_home`.
pub mod cluster_is_home {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAMES: &[&str] = &["id"];
}

/// `queue_cluster.hold_slot`.
pub mod cluster_hold_slot {
    use crate::pg::argument::{Argument, kind};

    pub const SLOT: Argument<kind::Integer> = Argument::at(0, "slot");
    pub const NAMES: &[&str] = &["slot"];
}

/// `queue_cluster.id_of_end`.
pub mod cluster_id_of_end {
    use crate::pg::argument::{Argument, kind};

    pub const ONE: Argument<kind::Text> = Argument::at(0, "one");
    pub const NAMES: &[&str] = &["one"];
}

/// `queue_cluster.take_slot`.
pub mod cluster_take_slot {
    use crate::pg::argument::{Argument, kind};

    pub const SLOT: Argument<kind::Integer> = Argument::at(0, "slot");
    pub const NAMES: &[&str] = &["slot"];
}

/// `queue_cluster.is_owed`.
pub mod cluster_is_owed {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const NAMES: &[&str] = &["id"];
}

/// `queue_cluster.remember`.
pub mod cluster_remember {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const UNIQUE_KEY: Argument<kind::Text> = Argument::at(1, "unique_key");
    pub const JOB_ID: Argument<kind::Bigint> = Argument::at(2, "job_id");
    pub const EXPIRES_AT: Argument<kind::Timestamp> = Argument::at(3, "expires_at");
    pub const TAKEN_UNTIL: Argument<kind::Timestamp> = Argument::at(4, "taken_until");
    pub const VERSION: Argument<kind::Timestamp> = Argument::at(5, "version");
    pub const NAMES: &[&str] = &["queue_name", "unique_key", "job_id", "expires_at", "taken_until", "version"];
}

/// `queue_bridge.arrival`.
pub mod bridge_arrival {
    use crate::pg::argument::{Argument, kind};

    pub const RELATION: Argument<kind::Oid> = Argument::at(0, "relation");
    pub const RING: Argument<kind::Integer> = Argument::at(1, "ring");
    pub const NAMES: &[&str] = &["relation", "ring"];
}

/// `queue_bridge.is_streamed`.
pub mod bridge_is_streamed {
    use crate::pg::argument::{Argument, kind};

    pub const SUBSCRIPTION: Argument<kind::Oid> = Argument::at(0, "subscription");
    pub const RELATION: Argument<kind::Oid> = Argument::at(1, "relation");
    pub const NAMES: &[&str] = &["subscription", "relation"];
}

/// `queue_bridge.enqueue`.
pub mod bridge_enqueue {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const IDS: Argument<kind::Bigints> = Argument::at(1, "ids");
    pub const MADE_AT: Argument<kind::Timestamp> = Argument::at(2, "made_at");
    pub const BODY: Argument<kind::Jsonb> = Argument::at(3, "body");
    pub const OPTIONS: Argument<kind::Jsonb> = Argument::at(4, "options");
    pub const FORM: Argument<kind::Text> = Argument::at(5, "form");
    pub const PASSED: Argument<kind::Bigints> = Argument::at(6, "passed");
    pub const NAMES: &[&str] = &["queue_name", "ids", "made_at", "body", "options", "form", "passed"];
}

/// `queue_bridge.enqueue_new`.
pub mod bridge_enqueue_new {
    use crate::pg::argument::{Argument, kind};

    pub const QUEUE_NAME: Argument<kind::Text> = Argument::at(0, "queue_name");
    pub const ID: Argument<kind::Bigint> = Argument::at(1, "id");
    pub const MADE_AT: Argument<kind::Timestamp> = Argument::at(2, "made_at");
    pub const PAYLOAD: Argument<kind::Jsonb> = Argument::at(3, "payload");
    pub const OPTIONS: Argument<kind::Jsonb> = Argument::at(4, "options");
    pub const SOURCE: Argument<kind::Text> = Argument::at(5, "source");
    pub const LOOKS: Argument<kind::Boolean> = Argument::at(6, "looks");
    pub const NAMES: &[&str] = &["queue_name", "id", "made_at", "payload", "options", "source", "looks"];
}

/// `queue_bridge.publish`.
pub mod bridge_publish {
    use crate::pg::argument::{Argument, kind};

    pub const TOPIC: Argument<kind::Text> = Argument::at(0, "topic");
    pub const IDS: Argument<kind::Bigints> = Argument::at(1, "ids");
    pub const MADE_AT: Argument<kind::Timestamp> = Argument::at(2, "made_at");
    pub const BODY: Argument<kind::Jsonb> = Argument::at(3, "body");
    pub const OPTIONS: Argument<kind::Jsonb> = Argument::at(4, "options");
    pub const NAMES: &[&str] = &["topic", "ids", "made_at", "body", "options"];
}

/// `queue_bridge.complete_waiting`.
pub mod bridge_complete_waiting {
    use crate::pg::argument::{Argument, kind};

    pub const ID: Argument<kind::Bigint> = Argument::at(0, "id");
    pub const RESULT: Argument<kind::Jsonb> = Argument::at(1, "result");
    pub const NAMES: &[&str] = &["id", "result"];
}

/// `queue_bridge.carry_out_as`.
pub mod bridge_carry_out_as {
    use crate::pg::argument::{Argument, kind};

    pub const SOURCE: Argument<kind::Text> = Argument::at(0, "source");
    pub const FUNCTION: Argument<kind::Oid> = Argument::at(1, "function");
    pub const CALL: Argument<kind::Other> = Argument::at(2, "call");
    pub const PASSED: Argument<kind::Bigints> = Argument::at(3, "passed");
    pub const LOOKS: Argument<kind::Boolean> = Argument::at(4, "looks");
    pub const NAMES: &[&str] = &["source", "function", "call", "passed", "looks"];
}

/// `queue_bridge.within`.
pub mod bridge_within {
    use crate::pg::argument::{Argument, kind};

    pub const PATIENCE: Argument<kind::Interval> = Argument::at(0, "patience");
    pub const COMMAND: Argument<kind::Text> = Argument::at(1, "command");
    pub const ARGUMENTS: Argument<kind::Texts> = Argument::at(2, "arguments");
    pub const NAMES: &[&str] = &["patience", "command", "arguments"];
}
