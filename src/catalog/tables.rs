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

use pgrx::pg_sys::{self, Datum};

use crate::pg::argument::position;
use crate::pg::datum::Interval;
use crate::pg::row::{Columns, Stored};
use crate::pg::shape::Shape;

/// Makes a module for each table: its shape, the numbers of its columns, and a row.
macro_rules! tables {
    ($($table:ident {
        $($constant:ident $field:ident: $kind:ty = $name:literal $oid:ident $is_not_null:literal),*
    })*) => {$(
        pub mod $table {
            use super::*;

            pub const SHAPE: Shape = &[$(($name, pg_sys::$oid, $is_not_null)),*];
            const NAMES: &[&str] = &[$($name),*];
            $(pub const $constant: usize = position(NAMES, $name);)*
            pub const COUNT: usize = NAMES.len();

            /// A row. Its datums are valid as long as what they were read from.
            #[derive(Clone, Copy)]
            pub struct Row {
                $(pub $field: $kind,)*
            }

            impl Row {
                /// A row without any values.
                pub const BLANK: Self = Self { $($field: <$kind as Stored>::BLANK,)* };

                /// Reads all columns.
                #[inline]
                pub fn read(row: &impl Columns) -> Self {
                    Self { $($field: Stored::read(row, $constant),)* }
                }

                /// Returns the values in the order of the columns, as they are written.
                #[inline]
                pub fn values(self) -> [Option<Datum>; COUNT] {
                    [$(Stored::datum(self.$field)),*]
                }
            }

            /// A row of which a column is read when it is asked for.
            pub struct Lazy<R>(pub R);

            impl<R: Columns> Lazy<R> {
                $(#[inline]
                pub fn $field(&self) -> $kind {
                    Stored::read(&self.0, $constant)
                })*
            }
        }
    )*};
}

tables! {
    // `queue_internal.attempt_N`
    attempt {
        ID id: i64 = "id" INT8OID true,
        JOB_ID job_id: i64 = "job_id" INT8OID true,
        ENQUEUED_AT enqueued_at: i64 = "enqueued_at" TIMESTAMPTZOID true,
        LANE lane: i32 = "lane" INT4OID true,
        PRIORITY priority: i32 = "priority" INT4OID true,
        ATTEMPT attempt: i32 = "attempt" INT4OID true,
        MAX_ATTEMPTS max_attempts: Option<i32> = "max_attempts" INT4OID false,
        RUN_AT run_at: Option<i64> = "run_at" TIMESTAMPTZOID false,
        GROUP_HASH group_hash: Option<i64> = "group_hash" INT8OID false,
        PAYLOAD_OF payload_of: Option<i64> = "payload_of" INT8OID false,
        PAYLOAD payload: Option<Datum> = "payload" JSONBOID false,
        LEASE lease: Option<Interval> = "lease" INTERVALOID false,
        HEADERS headers: Option<Datum> = "headers" JSONBOID false,
        GROUP_KEY group_key: Option<Datum> = "group_key" TEXTOID false,
        UNIQUE_KEY unique_key: Option<Datum> = "unique_key" TEXTOID false,
        VERSION version: Option<i64> = "version" TIMESTAMPTZOID false,
        LAST_ERROR last_error: Option<Datum> = "last_error" TEXTOID false,
        PROGRESS progress: Option<Datum> = "progress" JSONBOID false,
        ASKED asked: Option<i64> = "asked" INT8OID false,
        FLOW flow: Option<i64> = "flow" INT8OID false,
        TASK task: Option<Datum> = "task" TEXTOID false,
        AFTER after: Option<Datum> = "after" INT8ARRAYOID false,
        UPON upon: Option<u8> = "upon" CHAROID false,
        STEPS steps: Option<Datum> = "steps" JSONBOID false,
        RUN_AS run_as: Option<Datum> = "run_as" TEXTOID false,
        RUN_AS_ID run_as_id: Option<i64> = "run_as_id" INT8OID false,
        OWN_FLOW own_flow: Option<Datum> = "own_flow" JSONBOID false,
        START_BY start_by: Option<i64> = "start_by" TIMESTAMPTZOID false,
        TIMING timing: Option<Datum> = "timing" JSONBOID false
    }
    // `queue_internal.claim_N`
    claim {
        ID id: i64 = "id" INT8OID true,
        CLAIMED_AT claimed_at: i64 = "claimed_at" TIMESTAMPTZOID true,
        LEASE_US lease_us: i64 = "lease_us" INT8OID true,
        PID pid: i32 = "pid" INT4OID true,
        KIND kind: u8 = "kind" CHAROID true,
        WORKER worker: Option<Datum> = "worker" TEXTOID false,
        COST cost: Option<i32> = "cost" INT4OID false
    }
    // `queue_internal.firing_N`
    firing {
        SCHEDULE_ID schedule_id: i32 = "schedule_id" INT4OID true,
        TURN turn: i32 = "turn" INT4OID true,
        SLOT slot: i64 = "slot" TIMESTAMPTZOID true,
        FIRED_AT fired_at: Option<i64> = "fired_at" TIMESTAMPTZOID false,
        JOB_ID job_id: Option<i64> = "job_id" INT8OID false,
        KIND kind: u8 = "kind" CHAROID true
    }
    // `queue_internal.history`
    history {
        ID id: i64 = "id" INT8OID true,
        JOB_ID job_id: i64 = "job_id" INT8OID true,
        GENERATION generation: i64 = "generation" INT8OID true,
        ENQUEUED_AT enqueued_at: i64 = "enqueued_at" TIMESTAMPTZOID true,
        CLAIMED_AT claimed_at: Option<i64> = "claimed_at" TIMESTAMPTZOID false,
        ENDED_AT ended_at: i64 = "ended_at" TIMESTAMPTZOID true,
        LANE lane: i32 = "lane" INT4OID true,
        PRIORITY priority: i32 = "priority" INT4OID true,
        ATTEMPT attempt: i32 = "attempt" INT4OID true,
        MAX_ATTEMPTS max_attempts: Option<i32> = "max_attempts" INT4OID false,
        PID pid: Option<i32> = "pid" INT4OID false,
        OUTCOME outcome: u8 = "outcome" CHAROID true,
        CLAIM_KIND claim_kind: Option<u8> = "claim_kind" CHAROID false,
        RUN_AT run_at: Option<i64> = "run_at" TIMESTAMPTZOID false,
        NEXT_ID next_id: Option<i64> = "next_id" INT8OID false,
        PAYLOAD payload: Option<Datum> = "payload" JSONBOID false,
        HEADERS headers: Option<Datum> = "headers" JSONBOID false,
        GROUP_KEY group_key: Option<Datum> = "group_key" TEXTOID false,
        UNIQUE_KEY unique_key: Option<Datum> = "unique_key" TEXTOID false,
        WORKER worker: Option<Datum> = "worker" TEXTOID false,
        ERROR error: Option<Datum> = "error" TEXTOID false,
        LAST_ERROR last_error: Option<Datum> = "last_error" TEXTOID false,
        RESULT result: Option<Datum> = "result" JSONBOID false,
        PROGRESS progress: Option<Datum> = "progress" JSONBOID false,
        LEASE lease: Option<Interval> = "lease" INTERVALOID false,
        VERSION version: Option<i64> = "version" TIMESTAMPTZOID false,
        FLOW flow: Option<i64> = "flow" INT8OID false,
        TASK task: Option<Datum> = "task" TEXTOID false,
        AFTER after: Option<Datum> = "after" INT8ARRAYOID false,
        UPON upon: Option<u8> = "upon" CHAROID false,
        STEPS steps: Option<Datum> = "steps" JSONBOID false,
        RUN_AS run_as: Option<Datum> = "run_as" TEXTOID false,
        RUN_AS_ID run_as_id: Option<i64> = "run_as_id" INT8OID false,
        OWN_FLOW own_flow: Option<Datum> = "own_flow" JSONBOID false,
        TIMING timing: Option<Datum> = "timing" JSONBOID false
    }
    // `queue_internal.key_N`
    key {
        ENTRY entry: i64 = "entry" INT8OID true,
        JOB_ID job_id: i64 = "job_id" INT8OID true,
        EXPIRES_AT expires_at: i64 = "expires_at" TIMESTAMPTZOID true,
        QUEUE_ID queue_id: i32 = "queue_id" INT4OID true,
        UNIQUE_KEY unique_key: Datum = "unique_key" TEXTOID true,
        TAKEN_UNTIL taken_until: Option<i64> = "taken_until" TIMESTAMPTZOID false,
        VERSION version: Option<i64> = "version" TIMESTAMPTZOID false
    }
    // `queue_internal.lane`
    lane {
        LANE lane: i32 = "lane" INT4OID true,
        QUEUE_ID queue_id: i32 = "queue_id" INT4OID true,
        STAGE stage: Option<Datum> = "stage" TEXTOID false,
        IS_HELD is_held: bool = "is_held" BOOLOID true
    }
    // `queue_internal.note_N`
    note {
        ID id: i64 = "id" INT8OID true,
        NOTED_AT noted_at: i64 = "noted_at" TIMESTAMPTZOID true,
        KIND kind: u8 = "kind" CHAROID true,
        LEASE_US lease_us: Option<i64> = "lease_us" INT8OID false,
        BODY body: Option<Datum> = "body" JSONBOID false,
        ASKED asked: Option<i64> = "asked" INT8OID false,
        PRIORITY priority: Option<i32> = "priority" INT4OID false,
        MAX_ATTEMPTS max_attempts: Option<i32> = "max_attempts" INT4OID false,
        RUN_AT run_at: Option<i64> = "run_at" TIMESTAMPTZOID false,
        VERSION version: Option<i64> = "version" TIMESTAMPTZOID false,
        LEASE lease: Option<Interval> = "lease" INTERVALOID false,
        HEADERS headers: Option<Datum> = "headers" JSONBOID false,
        JOB_ID job_id: Option<i64> = "job_id" INT8OID false,
        LANE lane: Option<i32> = "lane" INT4OID false,
        UPON upon: Option<u8> = "upon" CHAROID false,
        RUN_AS run_as: Option<Datum> = "run_as" TEXTOID false,
        RUN_AS_ID run_as_id: Option<i64> = "run_as_id" INT8OID false,
        TIMING timing: Option<Datum> = "timing" JSONBOID false
    }
    // `queue_internal.outcome_N`
    outcome {
        ID id: i64 = "id" INT8OID true,
        ENDED_AT ended_at: i64 = "ended_at" TIMESTAMPTZOID true,
        OUTCOME outcome: u8 = "outcome" CHAROID true,
        NEXT_ID next_id: Option<i64> = "next_id" INT8OID false,
        RESULT result: Option<Datum> = "result" JSONBOID false,
        ERROR error: Option<Datum> = "error" TEXTOID false
    }
    // `queue_internal.parked_N`
    parked {
        LANE lane: i32 = "lane" INT4OID true,
        GROUP_HASH group_hash: i64 = "group_hash" INT8OID true,
        PRIORITY priority: i32 = "priority" INT4OID true,
        JOB_ID job_id: i64 = "job_id" INT8OID true
    }
    // `queue_internal.queue`
    queue {
        QUEUE_ID queue_id: i32 = "queue_id" INT4OID true,
        QUEUE_NAME queue_name: Datum = "queue_name" TEXTOID true,
        IS_PAUSED is_paused: bool = "is_paused" BOOLOID true,
        MAX_ATTEMPTS max_attempts: i32 = "max_attempts" INT4OID true,
        LEASE lease: Interval = "lease" INTERVALOID true,
        BACKOFF backoff: Datum = "backoff" TEXTOID true,
        BACKOFF_BASE backoff_base: Interval = "backoff_base" INTERVALOID true,
        BACKOFF_MAX backoff_max: Interval = "backoff_max" INTERVALOID true,
        BACKOFF_JITTER backoff_jitter: f64 = "backoff_jitter" FLOAT8OID true,
        NOTIFY notify: bool = "notify" BOOLOID true,
        RETENTION retention: Interval = "retention" INTERVALOID true,
        DEAD_RETENTION dead_retention: Interval = "dead_retention" INTERVALOID true,
        DEAD_LETTER dead_letter: Option<Datum> = "dead_letter" TEXTOID false,
        MAX_RUNNING max_running: Option<i32> = "max_running" INT4OID false,
        MAX_RUNNING_PER_GROUP max_running_per_group: Option<i32> = "max_running_per_group" INT4OID false,
        STRICT_ORDER strict_order: bool = "strict_order" BOOLOID true,
        RATE_LIMIT rate_limit: Option<i32> = "rate_limit" INT4OID false,
        RATE_PERIOD rate_period: Interval = "rate_period" INTERVALOID true,
        MAX_WAITING max_waiting: Option<i64> = "max_waiting" INT8OID false,
        STAGES stages: Option<Datum> = "stages" TEXTARRAYOID false,
        CREATED_AT created_at: i64 = "created_at" TIMESTAMPTZOID true,
        EXECUTOR executor: Option<Datum> = "executor" TEXTOID false,
        PROCEDURE procedure: Option<Datum> = "procedure" TEXTOID false,
        RUN_AS run_as: Option<Datum> = "run_as" TEXTOID false,
        RUN_AS_ID run_as_id: Option<i64> = "run_as_id" INT8OID false,
        SETTINGS settings: Option<Datum> = "settings" JSONBOID false,
        RATE_LIMIT_PER_GROUP rate_limit_per_group: Option<i32> = "rate_limit_per_group" INT4OID false,
        PROCEDURE_ID procedure_id: Option<i64> = "procedure_id" INT8OID false,
        PROCEDURE_OWNER procedure_owner: Option<Datum> = "procedure_owner" TEXTOID false,
        PROCEDURE_OWNER_ID procedure_owner_id: Option<i64> = "procedure_owner_id" INT8OID false,
        SETTINGS_BY settings_by: Option<Datum> = "settings_by" TEXTOID false,
        SETTINGS_BY_ID settings_by_id: Option<i64> = "settings_by_id" INT8OID false,
        START_WITHIN start_within: Option<Interval> = "start_within" INTERVALOID false,
        FAIR_SHARE fair_share: Option<Datum> = "fair_share" TEXTOID false,
        RATE_COST rate_cost: Option<Datum> = "rate_cost" TEXTOID false
    }
    // `queue_internal.restoring`
    restoring {
        WRITTEN_AT written_at: i64 = "written_at" TIMESTAMPTZOID true,
        PID pid: i32 = "pid" INT4OID true
    }
    // `queue_internal.rollup`
    rollup {
        MINUTE minute: i64 = "minute" TIMESTAMPTZOID true,
        SEGMENT_GENERATION segment_generation: i64 = "segment_generation" INT8OID true,
        ENQUEUED enqueued: i64 = "enqueued" INT8OID true,
        CLAIMED claimed: i64 = "claimed" INT8OID true,
        COMPLETED completed: i64 = "completed" INT8OID true,
        FAILED failed: i64 = "failed" INT8OID true,
        TIMED_OUT timed_out: i64 = "timed_out" INT8OID true,
        DIED died: i64 = "died" INT8OID true,
        LANE lane: i32 = "lane" INT4OID true,
        WAIT wait: Option<Datum> = "wait" BYTEAOID false,
        RUN run: Option<Datum> = "run" BYTEAOID false,
        EXPIRED expired: Option<i64> = "expired" INT8OID false
    }
    // `queue_internal.schedule`
    schedule {
        SCHEDULE_ID schedule_id: i32 = "schedule_id" INT4OID true,
        SCHEDULE_NAME schedule_name: Datum = "schedule_name" TEXTOID true,
        QUEUE_ID queue_id: i32 = "queue_id" INT4OID true,
        PAYLOAD payload: Datum = "payload" JSONBOID true,
        CRON cron: Option<Datum> = "cron" TEXTOID false,
        EVERY every: Option<Interval> = "every" INTERVALOID false,
        TIMEZONE timezone: Datum = "timezone" TEXTOID true,
        MISSED missed: Datum = "missed" TEXTOID true,
        STARTS_AT starts_at: Option<i64> = "starts_at" TIMESTAMPTZOID false,
        ENDS_AT ends_at: Option<i64> = "ends_at" TIMESTAMPTZOID false,
        OVERLAP overlap: bool = "overlap" BOOLOID true,
        PRIORITY priority: i32 = "priority" INT4OID true,
        MAX_ATTEMPTS max_attempts: Option<i32> = "max_attempts" INT4OID false,
        GROUP_KEY group_key: Option<Datum> = "group_key" TEXTOID false,
        HEADERS headers: Option<Datum> = "headers" JSONBOID false,
        IS_PAUSED is_paused: bool = "is_paused" BOOLOID true,
        ANCHOR anchor: i64 = "anchor" TIMESTAMPTZOID true,
        PLANNED_FROM planned_from: i64 = "planned_from" TIMESTAMPTZOID true,
        VERSION version: i32 = "version" INT4OID true,
        CREATED_AT created_at: i64 = "created_at" TIMESTAMPTZOID true,
        RUN_AS run_as: Option<Datum> = "run_as" TEXTOID false,
        RUN_AS_ID run_as_id: Option<i64> = "run_as_id" INT8OID false,
        START_WITHIN start_within: Option<Interval> = "start_within" INTERVALOID false
    }
    // `queue_internal.segment_log`
    segment_log {
        ENTRY entry: i64 = "entry" INT8OID true,
        SEGMENT segment: i32 = "segment" INT4OID true,
        GENERATION generation: i64 = "generation" INT8OID true,
        STATE state: u8 = "state" CHAROID true,
        AT at: i64 = "at" TIMESTAMPTZOID true,
        COPIED_TO copied_to: Option<i64> = "copied_to" INT8OID false
    }
    // `queue_internal.successor`
    successor {
        ID id: i64 = "id" INT8OID true,
        NEXT_ID next_id: i64 = "next_id" INT8OID true,
        RETRIED_AT retried_at: i64 = "retried_at" TIMESTAMPTZOID true
    }
    // `queue_internal.timeline`
    timeline {
        TIMELINE timeline: i32 = "timeline" INT4OID true,
        SYSTEM system: i64 = "system" INT8OID true,
        SEEN_AT seen_at: i64 = "seen_at" TIMESTAMPTZOID true
    }
    // `queue_internal.total`
    total {
        SEGMENT_GENERATION segment_generation: i64 = "segment_generation" INT8OID true,
        ENQUEUED enqueued: i64 = "enqueued" INT8OID true,
        CLAIMED claimed: i64 = "claimed" INT8OID true,
        COMPLETED completed: i64 = "completed" INT8OID true,
        FAILED failed: i64 = "failed" INT8OID true,
        TIMED_OUT timed_out: i64 = "timed_out" INT8OID true,
        DIED died: i64 = "died" INT8OID true,
        LANE lane: i32 = "lane" INT4OID true,
        EXPIRED expired: Option<i64> = "expired" INT8OID false
    }
    // `queue_internal.weight`
    weight {
        QUEUE_ID queue_id: i32 = "queue_id" INT4OID true,
        GROUP_HASH group_hash: i64 = "group_hash" INT8OID true,
        WEIGHT weight: f64 = "weight" FLOAT8OID true,
        GROUP_KEY group_key: Datum = "group_key" TEXTOID true
    }
}
