//! The columns of the tables that are read and written directly: their names and types, by number. If a user adds,
//! drops or changes one, the library would read and write memory that it must not.
//!
//! Made by `make generate` from sql/schema: do not edit. Not responsible for comparing a table with its shape: see
//! `pg::shape`.
//!
//! Invariant: each table is checked when it is opened, with its lock, unless this session was told nothing of any table
//! since it was checked last. Columns that were added and dropped again, behind the extension's own, are tolerated:
//! they are NULL.

#![allow(dead_code, reason = "each column has its number, whether or not Rust reads it")]

use pgrx::pg_sys::{
    BOOLOID, BYTEAOID, CHAROID, FLOAT8OID, INT4OID, INT8ARRAYOID, INT8OID, INTERVALOID, JSONBOID, TEXTARRAYOID,
    TEXTOID, TIMESTAMPTZOID,
};

use crate::pg::shape::Shape;

/// `queue_internal.attempt_N`.
pub mod attempt {
    use super::*;

    pub const SHAPE: Shape = &[
        ("id", INT8OID, true),
        ("job_id", INT8OID, true),
        ("enqueued_at", TIMESTAMPTZOID, true),
        ("lane", INT4OID, true),
        ("priority", INT4OID, true),
        ("attempt", INT4OID, true),
        ("max_attempts", INT4OID, false),
        ("run_at", TIMESTAMPTZOID, false),
        ("group_hash", INT8OID, false),
        ("payload_of", INT8OID, false),
        ("payload", JSONBOID, false),
        ("lease", INTERVALOID, false),
        ("headers", JSONBOID, false),
        ("group_key", TEXTOID, false),
        ("unique_key", TEXTOID, false),
        ("version", TIMESTAMPTZOID, false),
        ("last_error", TEXTOID, false),
        ("progress", JSONBOID, false),
        ("asked", INT8OID, false),
        ("flow", INT8OID, false),
        ("task", TEXTOID, false),
        ("after", INT8ARRAYOID, false),
        ("upon", CHAROID, false),
        ("steps", JSONBOID, false),
        ("run_as", TEXTOID, false),
        ("run_as_id", INT8OID, false),
        ("own_flow", JSONBOID, false),
        ("start_by", TIMESTAMPTZOID, false),
        ("timing", JSONBOID, false),
    ];
    pub const ID: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const ENQUEUED_AT: usize = 2;
    pub const LANE: usize = 3;
    pub const PRIORITY: usize = 4;
    pub const ATTEMPT: usize = 5;
    pub const MAX_ATTEMPTS: usize = 6;
    pub const RUN_AT: usize = 7;
    pub const GROUP_HASH: usize = 8;
    pub const PAYLOAD_OF: usize = 9;
    pub const PAYLOAD: usize = 10;
    pub const LEASE: usize = 11;
    pub const HEADERS: usize = 12;
    pub const GROUP_KEY: usize = 13;
    pub const UNIQUE_KEY: usize = 14;
    pub const VERSION: usize = 15;
    pub const LAST_ERROR: usize = 16;
    pub const PROGRESS: usize = 17;
    pub const ASKED: usize = 18;
    pub const FLOW: usize = 19;
    pub const TASK: usize = 20;
    pub const AFTER: usize = 21;
    pub const UPON: usize = 22;
    pub const STEPS: usize = 23;
    pub const RUN_AS: usize = 24;
    pub const RUN_AS_ID: usize = 25;
    pub const OWN_FLOW: usize = 26;
    pub const START_BY: usize = 27;
    pub const TIMING: usize = 28;
    pub const COUNT: usize = 29;
}

/// `queue_internal.claim_N`.
pub mod claim {
    use super::*;

    pub const SHAPE: Shape = &[
        ("id", INT8OID, true),
        ("claimed_at", TIMESTAMPTZOID, true),
        ("lease_us", INT8OID, true),
        ("pid", INT4OID, true),
        ("kind", CHAROID, true),
        ("worker", TEXTOID, false),
    ];
    pub const ID: usize = 0;
    pub const CLAIMED_AT: usize = 1;
    pub const LEASE_US: usize = 2;
    pub const PID: usize = 3;
    pub const KIND: usize = 4;
    pub const WORKER: usize = 5;
    pub const COUNT: usize = 6;
}

/// `queue_internal.firing_N`.
pub mod firing {
    use super::*;

    pub const SHAPE: Shape = &[
        ("schedule_id", INT4OID, true),
        ("turn", INT4OID, true),
        ("slot", TIMESTAMPTZOID, true),
        ("fired_at", TIMESTAMPTZOID, false),
        ("job_id", INT8OID, false),
        ("kind", CHAROID, true),
    ];
    pub const SCHEDULE_ID: usize = 0;
    pub const TURN: usize = 1;
    pub const SLOT: usize = 2;
    pub const FIRED_AT: usize = 3;
    pub const JOB_ID: usize = 4;
    pub const KIND: usize = 5;
    pub const COUNT: usize = 6;
}

/// `queue_internal.history`.
pub mod history {
    use super::*;

    pub const SHAPE: Shape = &[
        ("id", INT8OID, true),
        ("job_id", INT8OID, true),
        ("generation", INT8OID, true),
        ("enqueued_at", TIMESTAMPTZOID, true),
        ("claimed_at", TIMESTAMPTZOID, false),
        ("ended_at", TIMESTAMPTZOID, true),
        ("lane", INT4OID, true),
        ("priority", INT4OID, true),
        ("attempt", INT4OID, true),
        ("max_attempts", INT4OID, false),
        ("pid", INT4OID, false),
        ("outcome", CHAROID, true),
        ("claim_kind", CHAROID, false),
        ("run_at", TIMESTAMPTZOID, false),
        ("next_id", INT8OID, false),
        ("payload", JSONBOID, false),
        ("headers", JSONBOID, false),
        ("group_key", TEXTOID, false),
        ("unique_key", TEXTOID, false),
        ("worker", TEXTOID, false),
        ("error", TEXTOID, false),
        ("last_error", TEXTOID, false),
        ("result", JSONBOID, false),
        ("progress", JSONBOID, false),
        ("lease", INTERVALOID, false),
        ("version", TIMESTAMPTZOID, false),
        ("flow", INT8OID, false),
        ("task", TEXTOID, false),
        ("after", INT8ARRAYOID, false),
        ("upon", CHAROID, false),
        ("steps", JSONBOID, false),
        ("run_as", TEXTOID, false),
        ("run_as_id", INT8OID, false),
        ("own_flow", JSONBOID, false),
        ("timing", JSONBOID, false),
    ];
    pub const ID: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const GENERATION: usize = 2;
    pub const ENQUEUED_AT: usize = 3;
    pub const CLAIMED_AT: usize = 4;
    pub const ENDED_AT: usize = 5;
    pub const LANE: usize = 6;
    pub const PRIORITY: usize = 7;
    pub const ATTEMPT: usize = 8;
    pub const MAX_ATTEMPTS: usize = 9;
    pub const PID: usize = 10;
    pub const OUTCOME: usize = 11;
    pub const CLAIM_KIND: usize = 12;
    pub const RUN_AT: usize = 13;
    pub const NEXT_ID: usize = 14;
    pub const PAYLOAD: usize = 15;
    pub const HEADERS: usize = 16;
    pub const GROUP_KEY: usize = 17;
    pub const UNIQUE_KEY: usize = 18;
    pub const WORKER: usize = 19;
    pub const ERROR: usize = 20;
    pub const LAST_ERROR: usize = 21;
    pub const RESULT: usize = 22;
    pub const PROGRESS: usize = 23;
    pub const LEASE: usize = 24;
    pub const VERSION: usize = 25;
    pub const FLOW: usize = 26;
    pub const TASK: usize = 27;
    pub const AFTER: usize = 28;
    pub const UPON: usize = 29;
    pub const STEPS: usize = 30;
    pub const RUN_AS: usize = 31;
    pub const RUN_AS_ID: usize = 32;
    pub const OWN_FLOW: usize = 33;
    pub const TIMING: usize = 34;
    pub const COUNT: usize = 35;
}

/// `queue_internal.key_N`.
pub mod key {
    use super::*;

    pub const SHAPE: Shape = &[
        ("entry", INT8OID, true),
        ("job_id", INT8OID, true),
        ("expires_at", TIMESTAMPTZOID, true),
        ("queue_id", INT4OID, true),
        ("unique_key", TEXTOID, true),
        ("taken_until", TIMESTAMPTZOID, false),
        ("version", TIMESTAMPTZOID, false),
    ];
    pub const ENTRY: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const EXPIRES_AT: usize = 2;
    pub const QUEUE_ID: usize = 3;
    pub const UNIQUE_KEY: usize = 4;
    pub const TAKEN_UNTIL: usize = 5;
    pub const VERSION: usize = 6;
    pub const COUNT: usize = 7;
}

/// `queue_internal.lane`.
pub mod lane {
    use super::*;

    pub const SHAPE: Shape =
        &[("lane", INT4OID, true), ("queue_id", INT4OID, true), ("stage", TEXTOID, false), ("is_held", BOOLOID, true)];
    pub const LANE: usize = 0;
    pub const QUEUE_ID: usize = 1;
    pub const STAGE: usize = 2;
    pub const IS_HELD: usize = 3;
    pub const COUNT: usize = 4;
}

/// `queue_internal.note_N`.
pub mod note {
    use super::*;

    pub const SHAPE: Shape = &[
        ("id", INT8OID, true),
        ("noted_at", TIMESTAMPTZOID, true),
        ("kind", CHAROID, true),
        ("lease_us", INT8OID, false),
        ("body", JSONBOID, false),
        ("asked", INT8OID, false),
        ("priority", INT4OID, false),
        ("max_attempts", INT4OID, false),
        ("run_at", TIMESTAMPTZOID, false),
        ("version", TIMESTAMPTZOID, false),
        ("lease", INTERVALOID, false),
        ("headers", JSONBOID, false),
        ("job_id", INT8OID, false),
        ("lane", INT4OID, false),
        ("upon", CHAROID, false),
        ("run_as", TEXTOID, false),
        ("run_as_id", INT8OID, false),
        ("timing", JSONBOID, false),
    ];
    pub const ID: usize = 0;
    pub const NOTED_AT: usize = 1;
    pub const KIND: usize = 2;
    pub const LEASE_US: usize = 3;
    pub const BODY: usize = 4;
    pub const ASKED: usize = 5;
    pub const PRIORITY: usize = 6;
    pub const MAX_ATTEMPTS: usize = 7;
    pub const RUN_AT: usize = 8;
    pub const VERSION: usize = 9;
    pub const LEASE: usize = 10;
    pub const HEADERS: usize = 11;
    pub const JOB_ID: usize = 12;
    pub const LANE: usize = 13;
    pub const UPON: usize = 14;
    pub const RUN_AS: usize = 15;
    pub const RUN_AS_ID: usize = 16;
    pub const TIMING: usize = 17;
    pub const COUNT: usize = 18;
}

/// `queue_internal.outcome_N`.
pub mod outcome {
    use super::*;

    pub const SHAPE: Shape = &[
        ("id", INT8OID, true),
        ("ended_at", TIMESTAMPTZOID, true),
        ("outcome", CHAROID, true),
        ("next_id", INT8OID, false),
        ("result", JSONBOID, false),
        ("error", TEXTOID, false),
    ];
    pub const ID: usize = 0;
    pub const ENDED_AT: usize = 1;
    pub const OUTCOME: usize = 2;
    pub const NEXT_ID: usize = 3;
    pub const RESULT: usize = 4;
    pub const ERROR: usize = 5;
    pub const COUNT: usize = 6;
}

/// `queue_internal.parked_N`.
pub mod parked {
    use super::*;

    pub const SHAPE: Shape = &[
        ("lane", INT4OID, true),
        ("group_hash", INT8OID, true),
        ("priority", INT4OID, true),
        ("job_id", INT8OID, true),
    ];
    pub const LANE: usize = 0;
    pub const GROUP_HASH: usize = 1;
    pub const PRIORITY: usize = 2;
    pub const JOB_ID: usize = 3;
    pub const COUNT: usize = 4;
}

/// `queue_internal.queue`.
pub mod queue {
    use super::*;

    pub const SHAPE: Shape = &[
        ("queue_id", INT4OID, true),
        ("queue_name", TEXTOID, true),
        ("is_paused", BOOLOID, true),
        ("max_attempts", INT4OID, true),
        ("lease", INTERVALOID, true),
        ("backoff", TEXTOID, true),
        ("backoff_base", INTERVALOID, true),
        ("backoff_max", INTERVALOID, true),
        ("backoff_jitter", FLOAT8OID, true),
        ("notify", BOOLOID, true),
        ("retention", INTERVALOID, true),
        ("dead_retention", INTERVALOID, true),
        ("dead_letter", TEXTOID, false),
        ("max_running", INT4OID, false),
        ("max_running_per_group", INT4OID, false),
        ("strict_order", BOOLOID, true),
        ("rate_limit", INT4OID, false),
        ("rate_period", INTERVALOID, true),
        ("max_waiting", INT8OID, false),
        ("stages", TEXTARRAYOID, false),
        ("created_at", TIMESTAMPTZOID, true),
        ("executor", TEXTOID, false),
        ("procedure", TEXTOID, false),
        ("run_as", TEXTOID, false),
        ("run_as_id", INT8OID, false),
        ("settings", JSONBOID, false),
        ("rate_limit_per_group", INT4OID, false),
        ("procedure_id", INT8OID, false),
        ("procedure_owner", TEXTOID, false),
        ("procedure_owner_id", INT8OID, false),
        ("settings_by", TEXTOID, false),
        ("settings_by_id", INT8OID, false),
        ("start_within", INTERVALOID, false),
    ];
    pub const QUEUE_ID: usize = 0;
    pub const QUEUE_NAME: usize = 1;
    pub const IS_PAUSED: usize = 2;
    pub const MAX_ATTEMPTS: usize = 3;
    pub const LEASE: usize = 4;
    pub const BACKOFF: usize = 5;
    pub const BACKOFF_BASE: usize = 6;
    pub const BACKOFF_MAX: usize = 7;
    pub const BACKOFF_JITTER: usize = 8;
    pub const NOTIFY: usize = 9;
    pub const RETENTION: usize = 10;
    pub const DEAD_RETENTION: usize = 11;
    pub const DEAD_LETTER: usize = 12;
    pub const MAX_RUNNING: usize = 13;
    pub const MAX_RUNNING_PER_GROUP: usize = 14;
    pub const STRICT_ORDER: usize = 15;
    pub const RATE_LIMIT: usize = 16;
    pub const RATE_PERIOD: usize = 17;
    pub const MAX_WAITING: usize = 18;
    pub const STAGES: usize = 19;
    pub const CREATED_AT: usize = 20;
    pub const EXECUTOR: usize = 21;
    pub const PROCEDURE: usize = 22;
    pub const RUN_AS: usize = 23;
    pub const RUN_AS_ID: usize = 24;
    pub const SETTINGS: usize = 25;
    pub const RATE_LIMIT_PER_GROUP: usize = 26;
    pub const PROCEDURE_ID: usize = 27;
    pub const PROCEDURE_OWNER: usize = 28;
    pub const PROCEDURE_OWNER_ID: usize = 29;
    pub const SETTINGS_BY: usize = 30;
    pub const SETTINGS_BY_ID: usize = 31;
    pub const START_WITHIN: usize = 32;
    pub const COUNT: usize = 33;
}

/// `queue_internal.restoring`.
pub mod restoring {
    use super::*;

    pub const SHAPE: Shape = &[("written_at", TIMESTAMPTZOID, true), ("pid", INT4OID, true)];
    pub const WRITTEN_AT: usize = 0;
    pub const PID: usize = 1;
    pub const COUNT: usize = 2;
}

/// `queue_internal.rollup`.
pub mod rollup {
    use super::*;

    pub const SHAPE: Shape = &[
        ("minute", TIMESTAMPTZOID, true),
        ("segment_generation", INT8OID, true),
        ("enqueued", INT8OID, true),
        ("claimed", INT8OID, true),
        ("completed", INT8OID, true),
        ("failed", INT8OID, true),
        ("timed_out", INT8OID, true),
        ("died", INT8OID, true),
        ("lane", INT4OID, true),
        ("wait", BYTEAOID, false),
        ("run", BYTEAOID, false),
        ("expired", INT8OID, false),
    ];
    pub const MINUTE: usize = 0;
    pub const SEGMENT_GENERATION: usize = 1;
    pub const ENQUEUED: usize = 2;
    pub const CLAIMED: usize = 3;
    pub const COMPLETED: usize = 4;
    pub const FAILED: usize = 5;
    pub const TIMED_OUT: usize = 6;
    pub const DIED: usize = 7;
    pub const LANE: usize = 8;
    pub const WAIT: usize = 9;
    pub const RUN: usize = 10;
    pub const EXPIRED: usize = 11;
    pub const COUNT: usize = 12;
}

/// `queue_internal.schedule`.
pub mod schedule {
    use super::*;

    pub const SHAPE: Shape = &[
        ("schedule_id", INT4OID, true),
        ("schedule_name", TEXTOID, true),
        ("queue_id", INT4OID, true),
        ("payload", JSONBOID, true),
        ("cron", TEXTOID, false),
        ("every", INTERVALOID, false),
        ("timezone", TEXTOID, true),
        ("missed", TEXTOID, true),
        ("starts_at", TIMESTAMPTZOID, false),
        ("ends_at", TIMESTAMPTZOID, false),
        ("overlap", BOOLOID, true),
        ("priority", INT4OID, true),
        ("max_attempts", INT4OID, false),
        ("group_key", TEXTOID, false),
        ("headers", JSONBOID, false),
        ("is_paused", BOOLOID, true),
        ("anchor", TIMESTAMPTZOID, true),
        ("planned_from", TIMESTAMPTZOID, true),
        ("version", INT4OID, true),
        ("created_at", TIMESTAMPTZOID, true),
        ("run_as", TEXTOID, false),
        ("run_as_id", INT8OID, false),
        ("start_within", INTERVALOID, false),
    ];
    pub const SCHEDULE_ID: usize = 0;
    pub const SCHEDULE_NAME: usize = 1;
    pub const QUEUE_ID: usize = 2;
    pub const PAYLOAD: usize = 3;
    pub const CRON: usize = 4;
    pub const EVERY: usize = 5;
    pub const TIMEZONE: usize = 6;
    pub const MISSED: usize = 7;
    pub const STARTS_AT: usize = 8;
    pub const ENDS_AT: usize = 9;
    pub const OVERLAP: usize = 10;
    pub const PRIORITY: usize = 11;
    pub const MAX_ATTEMPTS: usize = 12;
    pub const GROUP_KEY: usize = 13;
    pub const HEADERS: usize = 14;
    pub const IS_PAUSED: usize = 15;
    pub const ANCHOR: usize = 16;
    pub const PLANNED_FROM: usize = 17;
    pub const VERSION: usize = 18;
    pub const CREATED_AT: usize = 19;
    pub const RUN_AS: usize = 20;
    pub const RUN_AS_ID: usize = 21;
    pub const START_WITHIN: usize = 22;
    pub const COUNT: usize = 23;
}

/// `queue_internal.segment_log`.
pub mod segment_log {
    use super::*;

    pub const SHAPE: Shape = &[
        ("entry", INT8OID, true),
        ("segment", INT4OID, true),
        ("generation", INT8OID, true),
        ("state", CHAROID, true),
        ("at", TIMESTAMPTZOID, true),
        ("copied_to", INT8OID, false),
    ];
    pub const ENTRY: usize = 0;
    pub const SEGMENT: usize = 1;
    pub const GENERATION: usize = 2;
    pub const STATE: usize = 3;
    pub const AT: usize = 4;
    pub const COPIED_TO: usize = 5;
    pub const COUNT: usize = 6;
}

/// `queue_internal.successor`.
pub mod successor {
    use super::*;

    pub const SHAPE: Shape = &[("id", INT8OID, true), ("next_id", INT8OID, true), ("retried_at", TIMESTAMPTZOID, true)];
    pub const ID: usize = 0;
    pub const NEXT_ID: usize = 1;
    pub const RETRIED_AT: usize = 2;
    pub const COUNT: usize = 3;
}

/// `queue_internal.timeline`.
pub mod timeline {
    use super::*;

    pub const SHAPE: Shape =
        &[("timeline", INT4OID, true), ("system", INT8OID, true), ("seen_at", TIMESTAMPTZOID, true)];
    pub const TIMELINE: usize = 0;
    pub const SYSTEM: usize = 1;
    pub const SEEN_AT: usize = 2;
    pub const COUNT: usize = 3;
}

/// `queue_internal.total`.
pub mod total {
    use super::*;

    pub const SHAPE: Shape = &[
        ("segment_generation", INT8OID, true),
        ("enqueued", INT8OID, true),
        ("claimed", INT8OID, true),
        ("completed", INT8OID, true),
        ("failed", INT8OID, true),
        ("timed_out", INT8OID, true),
        ("died", INT8OID, true),
        ("lane", INT4OID, true),
        ("expired", INT8OID, false),
    ];
    pub const SEGMENT_GENERATION: usize = 0;
    pub const ENQUEUED: usize = 1;
    pub const CLAIMED: usize = 2;
    pub const COMPLETED: usize = 3;
    pub const FAILED: usize = 4;
    pub const TIMED_OUT: usize = 5;
    pub const DIED: usize = 6;
    pub const LANE: usize = 7;
    pub const EXPIRED: usize = 8;
    pub const COUNT: usize = 9;
}
