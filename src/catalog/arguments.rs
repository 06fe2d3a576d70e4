//! The arguments of the functions in C, by the names in their declarations.
//!
//! Made by `make generate` from the SQL of the extensions: do not edit. Not responsible for reading an argument
//! (`pg::argument`).
//!
//! Invariant: a name that the SQL does not declare does not compile.

// What a function does not read by its name has a constant nevertheless.
#![allow(dead_code)]

/// Makes a module with a constant for each argument of a function.
macro_rules! functions {
    ($($function:ident { $($constant:ident $name:literal $kind:ident),* })*) => {$(
        pub mod $function {
            use crate::pg::argument::{Argument, kind, position};
            pub const NAMES: &[&str] = &[$($name),*];
            $(pub const $constant: Argument<kind::$kind> = Argument::at(position(NAMES, $name), $name);)*
        }
    )*};
}

functions! {
    grant {
        QUEUE_NAME "queue_name" Text, ROLE_NAME "role_name" Text, PRIVILEGE "privilege" Text
    }
    revoke {
        QUEUE_NAME "queue_name" Text, ROLE_NAME "role_name" Text, PRIVILEGE "privilege" Text
    }
    may_observe {
        QUEUE_ID "queue_id" Integer
    }
    create {
        QUEUE_NAME "queue_name" Text, IF_NOT_EXISTS "if_not_exists" Boolean, MAX_ATTEMPTS "max_attempts" Integer,
        LEASE "lease" Interval, BACKOFF "backoff" Text, BACKOFF_BASE "backoff_base" Interval,
        BACKOFF_MAX "backoff_max" Interval, BACKOFF_JITTER "backoff_jitter" Float, RETENTION "retention" Interval,
        DEAD_RETENTION "dead_retention" Interval, DEAD_LETTER "dead_letter" Text, MAX_RUNNING "max_running" Integer,
        MAX_RUNNING_PER_GROUP "max_running_per_group" Integer, STRICT_ORDER "strict_order" Boolean,
        RATE_LIMIT "rate_limit" Integer, RATE_LIMIT_PER_GROUP "rate_limit_per_group" Integer,
        RATE_PERIOD "rate_period" Interval, MAX_WAITING "max_waiting" Bigint, STAGES "stages" Texts,
        NOTIFY "notify" Boolean, START_WITHIN "start_within" Interval, EXECUTOR "executor" Text,
        PROCEDURE "procedure" Text, RUN_AS "run_as" Text, SETTINGS "settings" Jsonb
    }
    alter {
        QUEUE_NAME "queue_name" Text, RESET "reset" Texts, MAX_ATTEMPTS "max_attempts" Integer,
        LEASE "lease" Interval, BACKOFF "backoff" Text, BACKOFF_BASE "backoff_base" Interval,
        BACKOFF_MAX "backoff_max" Interval, BACKOFF_JITTER "backoff_jitter" Float, RETENTION "retention" Interval,
        DEAD_RETENTION "dead_retention" Interval, DEAD_LETTER "dead_letter" Text, MAX_RUNNING "max_running" Integer,
        MAX_RUNNING_PER_GROUP "max_running_per_group" Integer, STRICT_ORDER "strict_order" Boolean,
        RATE_LIMIT "rate_limit" Integer, RATE_LIMIT_PER_GROUP "rate_limit_per_group" Integer,
        RATE_PERIOD "rate_period" Interval, MAX_WAITING "max_waiting" Bigint, STAGES "stages" Texts,
        NOTIFY "notify" Boolean, START_WITHIN "start_within" Interval, EXECUTOR "executor" Text,
        PROCEDURE "procedure" Text, RUN_AS "run_as" Text, SETTINGS "settings" Jsonb
    }
    drop {
        QUEUE_NAME "queue_name" Text, FORCE "force" Boolean, IF_EXISTS "if_exists" Boolean
    }
    pause {
        QUEUE_NAME "queue_name" Text
    }
    resume {
        QUEUE_NAME "queue_name" Text
    }
    purge {
        QUEUE_NAME "queue_name" Text
    }
    enqueue {
        QUEUE_NAME "queue_name" Text, PAYLOAD "payload" Jsonb, PRIORITY "priority" Integer, DELAY "delay" Interval,
        RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text, ON_DUPLICATE "on_duplicate" Text,
        VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval, GROUP_KEY "group_key" Text, STAGE "stage" Text,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, HEADERS "headers" Jsonb, AFTER "after" Bigints,
        UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp,
        START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_many {
        QUEUE_NAME "queue_name" Text, PAYLOADS "payloads" Jsonbs, PRIORITY "priority" Integer, DELAY "delay" Interval,
        RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text, ON_DUPLICATE "on_duplicate" Text,
        VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval, GROUP_KEY "group_key" Text, STAGE "stage" Text,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, HEADERS "headers" Jsonb, AFTER "after" Bigints,
        UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp,
        START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_batch {
        QUEUE_NAME "queue_name" Text, JOBS "jobs" Jsonb
    }
    enqueue_sql {
        QUEUE_NAME "queue_name" Text, COMMAND "command" Text, ARGUMENTS "arguments" Jsonb,
        AUTOCOMMIT "autocommit" Boolean, SETTINGS "settings" Jsonb, RESULT_ROWS "result_rows" Integer,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, STAGE "stage" Text, MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval,
        HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text,
        START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_flow {
        QUEUE_NAME "queue_name" Text, TASKS "tasks" Jsonb, PAYLOAD "payload" Jsonb, RUNS "runs" Boolean,
        OPEN "open" Boolean, FAIL_FAST "fail_fast" Boolean, COMMAND "command" Text, PRIORITY "priority" Integer,
        DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, STAGE "stage" Text, MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval,
        HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text,
        START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval
    }
    seal {
        JOB_ID "job_id" Bigint
    }
    resolve {
        JOB_ID "job_id" Bigint, RESULT "result" Jsonb
    }
    reject {
        JOB_ID "job_id" Bigint, ERROR "error" Text
    }
    claim {
        QUEUE_NAME "queue_name" Text, MAX_JOBS "max_jobs" Integer, WAIT "wait" Interval, LEASE "lease" Interval,
        STAGE "stage" Text, WORKER "worker" Text, DISCONNECT "disconnect" Interval, COMPLETED "completed" Bigints,
        LINGER "linger" Interval
    }
    claim_any {
        QUEUE_NAMES "queue_names" Texts, MAX_JOBS "max_jobs" Integer, WAIT "wait" Interval, LEASE "lease" Interval,
        STAGES "stages" Texts, WORKER "worker" Text, DISCONNECT "disconnect" Interval, COMPLETED "completed" Bigints,
        LINGER "linger" Interval
    }
    wait {
        QUEUE_NAME "queue_name" Text, TIMEOUT "timeout" Interval, HAS_JOBS "has_jobs" Boolean
    }
    complete {
        ID "id" Bigint, RESULT "result" Jsonb
    }
    complete_many {
        IDS "ids" Bigints
    }
    fail {
        ID "id" Bigint, ERROR "error" Text, RETRY_IN "retry_in" Interval, FATAL "fatal" Boolean
    }
    fail_many {
        IDS "ids" Bigints, ERROR "error" Text, RETRY_IN "retry_in" Interval, FATAL "fatal" Boolean
    }
    release {
        ID "id" Bigint, DELAY "delay" Interval, REASON "reason" Text
    }
    release_many {
        IDS "ids" Bigints, DELAY "delay" Interval, REASON "reason" Text
    }
    end_batch {
        ENDS "ends" Text
    }
    extend {
        ID "id" Bigint, LEASE "lease" Interval
    }
    extend_many {
        IDS "ids" Bigints, LEASE "lease" Interval
    }
    progress {
        ID "id" Bigint, PROGRESS "progress" Jsonb
    }
    advance {
        ID "id" Bigint, STAGE "stage" Text, PAYLOAD "payload" Jsonb, DELAY "delay" Interval
    }
    suspend {
        ID "id" Bigint, AFTER "after" Bigints, UPON "upon" Text, PROGRESS "progress" Jsonb, UNTIL "until" Timestamp
    }
    inputs {
        ID "id" Bigint
    }
    step {
        ID "id" Bigint, NAME "name" Text
    }
    step_done {
        ID "id" Bigint, NAME "name" Text, RESULT "result" Jsonb
    }
    cancel {
        JOB_ID "job_id" Bigint, REASON "reason" Text, FORCE "force" Boolean
    }
    retry {
        JOB_ID "job_id" Bigint, RUN_AT "run_at" Timestamp
    }
    retry_many {
        JOB_IDS "job_ids" Bigints, RUN_AT "run_at" Timestamp
    }
    cancel_many {
        JOB_IDS "job_ids" Bigints, REASON "reason" Text, FORCE "force" Boolean
    }
    reprioritize {
        JOB_ID "job_id" Bigint, PRIORITY "priority" Integer
    }
    reprioritize_many {
        JOB_IDS "job_ids" Bigints, PRIORITY "priority" Integer
    }
    reschedule {
        JOB_ID "job_id" Bigint, RUN_AT "run_at" Timestamp
    }
    reschedule_many {
        JOB_IDS "job_ids" Bigints, RUN_AT "run_at" Timestamp
    }
    forget {
        JOB_ID "job_id" Bigint
    }
    lease_expires_at {
        ID "id" Bigint
    }
    tallies {
        WALK "walk" Boolean
    }
    life_of {
        JOB_ID "job_id" Bigint
    }
    job_steps {
        JOB_ID "job_id" Bigint
    }
    text_length {
        VALUE "value" Jsonb
    }
    payload_of {
        ID "id" Bigint
    }
    times {
        HISTOGRAMS "histograms" Byteas
    }
    create_topic {
        TOPIC "topic" Text, IF_NOT_EXISTS "if_not_exists" Boolean
    }
    bind {
        TOPIC "topic" Text, QUEUE_NAME "queue_name" Text, PATTERN "pattern" Text, FILTER "filter" Other,
        PRIORITY "priority" Integer, DELAY "delay" Interval, GROUP_KEY "group_key" Other,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, STAGE "stage" Text, ON_FULL "on_full" Text
    }
    unbind {
        TOPIC "topic" Text, QUEUE_NAME "queue_name" Text, PATTERN "pattern" Text
    }
    publish {
        TOPIC "topic" Text, PAYLOAD "payload" Jsonb, KEY "key" Text, MANDATORY "mandatory" Boolean,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text,
        FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval,
        MAX_DELAY "max_delay" Interval
    }
    publish_many {
        TOPIC "topic" Text, PAYLOADS "payloads" Jsonbs, KEYS "keys" Texts, MANDATORY "mandatory" Boolean,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text,
        FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval,
        MAX_DELAY "max_delay" Interval
    }
    route {
        TOPIC "topic" Text, KEY "key" Text, PAYLOAD "payload" Jsonb, HEADERS "headers" Jsonb
    }
    schedule {
        NAME "name" Text, QUEUE_NAME "queue_name" Text, PAYLOAD "payload" Jsonb, CRON "cron" Text,
        EVERY "every" Interval, TIMEZONE "timezone" Text, MISSED "missed" Text, STARTS_AT "starts_at" Timestamp,
        ENDS_AT "ends_at" Timestamp, OVERLAP "overlap" Boolean, PRIORITY "priority" Integer,
        MAX_ATTEMPTS "max_attempts" Integer, GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb,
        COMMAND "command" Text, START_WITHIN "start_within" Interval
    }
    unschedule {
        NAME "name" Text
    }
    pause_schedule {
        NAME "name" Text
    }
    resume_schedule {
        NAME "name" Text
    }
    run_schedule {
        NAME "name" Text
    }
    upcoming {
        NAME "name" Text, RUNS "runs" Integer
    }
    job_state {
        OUTCOME "outcome" Other, IS_CLAIMED "is_claimed" Boolean, IS_HELD "is_held" Boolean,
        RUN_AT "run_at" Timestamp, HAS_FAILED "has_failed" Boolean
    }
    attempt_state {
        OUTCOME "outcome" Other, IS_CLAIMED "is_claimed" Boolean, IS_HELD "is_held" Boolean,
        RUN_AT "run_at" Timestamp, HAS_FAILED "has_failed" Boolean
    }
    job {
        JOB_ID "job_id" Bigint
    }
    job_attempts {
        JOB_ID "job_id" Bigint
    }
    r#await {
        JOB_ID "job_id" Bigint, TIMEOUT "timeout" Interval, STATE "state" Text, RESULT "result" Jsonb
    }
    members {
        JOB_ID "job_id" Bigint, STATE "state" Text, BEYOND "beyond" Bigint, MAX_JOBS "max_jobs" Integer
    }
    search {
        QUEUE_NAME "queue_name" Text, FILTER "filter" Other, STATES "states" Texts, STAGE "stage" Text,
        BEYOND "beyond" Jsonb, MAX_JOBS "max_jobs" Integer, MAX_ROWS "max_rows" Integer
    }
    error_groups {
        QUEUE_NAME "queue_name" Text, MAX_JOBS "max_jobs" Integer
    }
    load {
        QUEUE_NAME "queue_name" Text, TARGET_AGE "target_age" Interval
    }
    check {
        REPAIR "repair" Boolean
    }
    cluster_is_home {
        ID "id" Bigint
    }
    cluster_hold_slot {
        SLOT "slot" Integer
    }
    cluster_id_of_end {
        ONE "one" Text
    }
    cluster_take_slot {
        SLOT "slot" Integer
    }
    cluster_is_owed {
        ID "id" Bigint
    }
    cluster_remember {
        QUEUE_NAME "queue_name" Text, UNIQUE_KEY "unique_key" Text, JOB_ID "job_id" Bigint,
        EXPIRES_AT "expires_at" Timestamp, TAKEN_UNTIL "taken_until" Timestamp, VERSION "version" Timestamp
    }
    bridge_arrival {
        RELATION "relation" Oid, RING "ring" Integer
    }
    bridge_is_streamed {
        SUBSCRIPTION "subscription" Oid, RELATION "relation" Oid
    }
    bridge_enqueue {
        QUEUE_NAME "queue_name" Text, IDS "ids" Bigints, MADE_AT "made_at" Timestamp, BODY "body" Jsonb,
        OPTIONS "options" Jsonb, FORM "form" Text, PASSED "passed" Bigints
    }
    bridge_enqueue_new {
        QUEUE_NAME "queue_name" Text, ID "id" Bigint, MADE_AT "made_at" Timestamp, PAYLOAD "payload" Jsonb,
        OPTIONS "options" Jsonb, SOURCE "source" Text, LOOKS "looks" Boolean
    }
    bridge_publish {
        TOPIC "topic" Text, IDS "ids" Bigints, MADE_AT "made_at" Timestamp, BODY "body" Jsonb,
        OPTIONS "options" Jsonb
    }
    bridge_complete_waiting {
        ID "id" Bigint, RESULT "result" Jsonb
    }
    bridge_carry_out_as {
        SOURCE "source" Text, FUNCTION "function" Oid, CALL "call" Other, PASSED "passed" Bigints,
        LOOKS "looks" Boolean
    }
    bridge_within {
        PATIENCE "patience" Interval, COMMAND "command" Text, ARGUMENTS "arguments" Texts
    }
}
