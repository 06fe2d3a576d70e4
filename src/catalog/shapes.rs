//! The columns of the tables that are read and written directly: their names and types, by number. If a user adds,
//! drops or changes one, the library would read and write memory that it must not.
//!
//! Responsible for what each table should be. Not responsible for comparing it with what the table is: see `pg::shape`.
//!
//! Invariant: each table is checked when it is opened, with its lock, unless this session was told nothing of any table
//! since it was checked last. Columns that were added and dropped again, behind the extension's own, are tolerated:
//! they are NULL.

use pgrx::pg_sys::{
    BOOLOID, BYTEAOID, CHAROID, FLOAT8OID, INT4OID, INT8ARRAYOID, INT8OID, INTERVALOID, JSONBOID, TEXTARRAYOID,
    TEXTOID, TIMESTAMPTZOID,
};

use crate::pg::shape::Shape;

/// `queue.attempt_N`.
pub const ATTEMPT: Shape = &[
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
];

/// `queue.claim_N`.
pub const CLAIM: Shape = &[
    ("id", INT8OID, true),
    ("claimed_at", TIMESTAMPTZOID, true),
    ("lease_us", INT8OID, true),
    ("pid", INT4OID, true),
    ("kind", CHAROID, true),
    ("worker", TEXTOID, false),
];

/// `queue.firing_N`.
pub const FIRING: Shape = &[
    ("schedule_id", INT4OID, true),
    ("turn", INT4OID, true),
    ("slot", TIMESTAMPTZOID, true),
    ("fired_at", TIMESTAMPTZOID, false),
    ("job_id", INT8OID, false),
    ("kind", CHAROID, true),
];

/// `queue.history`.
pub const HISTORY: Shape = &[
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
];

/// `queue.key_N`.
pub const KEY: Shape = &[
    ("entry", INT8OID, true),
    ("job_id", INT8OID, true),
    ("expires_at", TIMESTAMPTZOID, true),
    ("queue_id", INT4OID, true),
    ("unique_key", TEXTOID, true),
    ("taken_until", TIMESTAMPTZOID, false),
    ("version", TIMESTAMPTZOID, false),
];

/// `queue.lane`.
pub const LANE: Shape =
    &[("lane", INT4OID, true), ("queue_id", INT4OID, true), ("stage", TEXTOID, false), ("is_held", BOOLOID, true)];

/// `queue.note_N`.
pub const NOTE: Shape = &[
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
];

/// `queue.outcome_N`.
pub const OUTCOME: Shape = &[
    ("id", INT8OID, true),
    ("ended_at", TIMESTAMPTZOID, true),
    ("outcome", CHAROID, true),
    ("next_id", INT8OID, false),
    ("result", JSONBOID, false),
    ("error", TEXTOID, false),
];

/// `queue.parked_N`.
pub const PARKED: Shape =
    &[("lane", INT4OID, true), ("group_hash", INT8OID, true), ("priority", INT4OID, true), ("job_id", INT8OID, true)];

/// `queue.queue`.
pub const QUEUE: Shape = &[
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
];

/// `queue.restoring`.
pub const RESTORING: Shape = &[("written_at", TIMESTAMPTZOID, true), ("pid", INT4OID, true)];

/// `queue.rollup`.
pub const ROLLUP: Shape = &[
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
];

/// `queue.schedule`.
pub const SCHEDULE: Shape = &[
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
];

/// `queue.segment_log`.
pub const SEGMENT_LOG: Shape = &[
    ("entry", INT8OID, true),
    ("segment", INT4OID, true),
    ("generation", INT8OID, true),
    ("state", CHAROID, true),
    ("at", TIMESTAMPTZOID, true),
    ("copied_to", INT8OID, false),
];

/// `queue.successor`.
pub const SUCCESSOR: Shape = &[("id", INT8OID, true), ("next_id", INT8OID, true), ("retried_at", TIMESTAMPTZOID, true)];

/// `queue.timeline`.
pub const TIMELINE: Shape =
    &[("timeline", INT4OID, true), ("system", INT8OID, true), ("seen_at", TIMESTAMPTZOID, true)];

/// `queue.total`.
pub const TOTAL: Shape = &[
    ("segment_generation", INT8OID, true),
    ("enqueued", INT8OID, true),
    ("claimed", INT8OID, true),
    ("completed", INT8OID, true),
    ("failed", INT8OID, true),
    ("timed_out", INT8OID, true),
    ("died", INT8OID, true),
    ("lane", INT4OID, true),
];
