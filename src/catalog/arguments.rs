//! The arguments of functions, by the names in their declarations.
//!
//! Made by `make generate` from the SQL of the extensions: do not edit. Not responsible for reading an argument, or for
//! what is made of the list (`pg::argument`).
//!
//! Invariant: a name that the SQL does not declare does not compile.

// What a function does not read by its name has a constant nevertheless.
#![allow(dead_code)]

use crate::pg::argument::functions;

functions! {
    grant "grant" 3 {
        QUEUE_NAME "queue_name" Text, ROLE_NAME "role_name" Text, PRIVILEGE "privilege" Text
    }
    revoke "revoke" 3 {
        QUEUE_NAME "queue_name" Text, ROLE_NAME "role_name" Text, PRIVILEGE "privilege" Text
    }
    may_observe "may_observe" 1 {
        QUEUE_ID "queue_id" Integer
    }
    create "create" 1 {
        QUEUE_NAME "queue_name" Text, IF_NOT_EXISTS "if_not_exists" Boolean, MAX_ATTEMPTS "max_attempts" Integer,
        LEASE "lease" Interval, BACKOFF "backoff" Text, BACKOFF_BASE "backoff_base" Interval,
        BACKOFF_MAX "backoff_max" Interval, BACKOFF_JITTER "backoff_jitter" Float, RETENTION "retention" Interval,
        DEAD_RETENTION "dead_retention" Interval, DEAD_LETTER "dead_letter" Text, MAX_RUNNING "max_running" Integer,
        MAX_RUNNING_PER_GROUP "max_running_per_group" Integer, STRICT_ORDER "strict_order" Boolean,
        RATE_LIMIT "rate_limit" Integer, RATE_LIMIT_PER_GROUP "rate_limit_per_group" Integer,
        RATE_PERIOD "rate_period" Interval, RATE_COST "rate_cost" Text, FAIR_SHARE "fair_share" Text,
        MAX_WAITING "max_waiting" Bigint, STAGES "stages" Texts, NOTIFY "notify" Boolean,
        START_WITHIN "start_within" Interval, EXECUTOR "executor" Text, PROCEDURE "procedure" Text,
        RUN_AS "run_as" Text, SETTINGS "settings" Jsonb
    }
    alter "alter" 1 {
        QUEUE_NAME "queue_name" Text, RESET "reset" Texts, MAX_ATTEMPTS "max_attempts" Integer,
        LEASE "lease" Interval, BACKOFF "backoff" Text, BACKOFF_BASE "backoff_base" Interval,
        BACKOFF_MAX "backoff_max" Interval, BACKOFF_JITTER "backoff_jitter" Float, RETENTION "retention" Interval,
        DEAD_RETENTION "dead_retention" Interval, DEAD_LETTER "dead_letter" Text, MAX_RUNNING "max_running" Integer,
        MAX_RUNNING_PER_GROUP "max_running_per_group" Integer, STRICT_ORDER "strict_order" Boolean,
        RATE_LIMIT "rate_limit" Integer, RATE_LIMIT_PER_GROUP "rate_limit_per_group" Integer,
        RATE_PERIOD "rate_period" Interval, RATE_COST "rate_cost" Text, FAIR_SHARE "fair_share" Text,
        MAX_WAITING "max_waiting" Bigint, STAGES "stages" Texts, NOTIFY "notify" Boolean,
        START_WITHIN "start_within" Interval, EXECUTOR "executor" Text, PROCEDURE "procedure" Text,
        RUN_AS "run_as" Text, SETTINGS "settings" Jsonb
    }
    drop "drop" 1 {
        QUEUE_NAME "queue_name" Text, FORCE "force" Boolean, IF_EXISTS "if_exists" Boolean
    }
    pause "pause" 1 {
        QUEUE_NAME "queue_name" Text
    }
    resume "resume" 1 {
        QUEUE_NAME "queue_name" Text
    }
    weigh "weigh" 2 {
        QUEUE_NAME "queue_name" Text, GROUP_KEY "group_key" Text, WEIGHT "weight" Float
    }
    throttle "throttle" 2 {
        QUEUE_NAME "queue_name" Text, PERIOD "period" Interval, GROUP_KEY "group_key" Text
    }
    groups "groups" 1 {
        QUEUE_NAME "queue_name" Text, MAX_GROUPS "max_groups" Integer
    }
    purge "purge" 1 {
        QUEUE_NAME "queue_name" Text
    }
    enqueue "enqueue" 1 {
        QUEUE_NAME "queue_name" Text, PAYLOAD "payload" Jsonb, PRIORITY "priority" Integer, DELAY "delay" Interval,
        RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text, ON_DUPLICATE "on_duplicate" Text,
        VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval, GROUP_KEY "group_key" Text, STAGE "stage" Text,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, HEADERS "headers" Jsonb, AFTER "after" Bigints,
        UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp,
        START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_many "enqueue_many" 2 {
        QUEUE_NAME "queue_name" Text, PAYLOADS "payloads" Jsonbs, PRIORITY "priority" Integer, DELAY "delay" Interval,
        RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text, ON_DUPLICATE "on_duplicate" Text,
        VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval, GROUP_KEY "group_key" Text, STAGE "stage" Text,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, HEADERS "headers" Jsonb, AFTER "after" Bigints,
        UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp,
        START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_batch "enqueue_batch" 2 {
        QUEUE_NAME "queue_name" Text, JOBS "jobs" Jsonb
    }
    enqueue_sql "enqueue_sql" 2 {
        QUEUE_NAME "queue_name" Text, COMMAND "command" Text, ARGUMENTS "arguments" Jsonb,
        AUTOCOMMIT "autocommit" Boolean, SETTINGS "settings" Jsonb, RESULT_ROWS "result_rows" Integer,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, STAGE "stage" Text, MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval,
        HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text,
        START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval, MAX_DELAY "max_delay" Interval
    }
    enqueue_flow "enqueue_flow" 1 {
        QUEUE_NAME "queue_name" Text, TASKS "tasks" Jsonb, PAYLOAD "payload" Jsonb, RUNS "runs" Boolean,
        OPEN "open" Boolean, FAIL_FAST "fail_fast" Boolean, COMMAND "command" Text, PRIORITY "priority" Integer,
        DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, STAGE "stage" Text, MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval,
        HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text, FLOW "flow" Bigint, TASK "task" Text,
        START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval
    }
    seal "seal" 1 {
        JOB_ID "job_id" Bigint
    }
    resolve "resolve" 1 {
        JOB_ID "job_id" Bigint, RESULT "result" Jsonb
    }
    reject "reject" 2 {
        JOB_ID "job_id" Bigint, ERROR "error" Text
    }
    claim "claim" 1 {
        QUEUE_NAME "queue_name" Text, MAX_JOBS "max_jobs" Integer, WAIT "wait" Interval, LEASE "lease" Interval,
        STAGE "stage" Text, WORKER "worker" Text, DISCONNECT "disconnect" Interval, COMPLETED "completed" Bigints,
        RESULTS "results" Text, LINGER "linger" Interval
    }
    claim_any "claim_any" 1 {
        QUEUE_NAMES "queue_names" Texts, MAX_JOBS "max_jobs" Integer, WAIT "wait" Interval, LEASE "lease" Interval,
        STAGES "stages" Texts, WORKER "worker" Text, DISCONNECT "disconnect" Interval, COMPLETED "completed" Bigints,
        RESULTS "results" Text, LINGER "linger" Interval
    }
    wait "wait" 1 {
        QUEUE_NAME "queue_name" Text, TIMEOUT "timeout" Interval, HAS_JOBS "has_jobs" Boolean
    }
    complete "complete" 1 {
        ID "id" Bigint, RESULT "result" Jsonb
    }
    complete_many "complete_many" 1 {
        IDS "ids" Bigints
    }
    fail "fail" 2 {
        ID "id" Bigint, ERROR "error" Text, RETRY_IN "retry_in" Interval, FATAL "fatal" Boolean
    }
    fail_many "fail_many" 2 {
        IDS "ids" Bigints, ERROR "error" Text, RETRY_IN "retry_in" Interval, FATAL "fatal" Boolean
    }
    release "release" 1 {
        ID "id" Bigint, DELAY "delay" Interval, REASON "reason" Text
    }
    release_many "release_many" 1 {
        IDS "ids" Bigints, DELAY "delay" Interval, REASON "reason" Text
    }
    end_batch "end_batch" 1 {
        ENDS "ends" Text
    }
    extend "extend" 1 {
        ID "id" Bigint, LEASE "lease" Interval
    }
    extend_many "extend_many" 1 {
        IDS "ids" Bigints, LEASE "lease" Interval
    }
    progress "progress" 2 {
        ID "id" Bigint, PROGRESS "progress" Jsonb
    }
    charge "charge" 2 {
        ID "id" Bigint, USED "used" Integer
    }
    advance "advance" 1 {
        ID "id" Bigint, STAGE "stage" Text, PAYLOAD "payload" Jsonb, DELAY "delay" Interval
    }
    suspend "suspend" 1 {
        ID "id" Bigint, AFTER "after" Bigints, UPON "upon" Text, PROGRESS "progress" Jsonb, UNTIL "until" Timestamp
    }
    inputs "inputs" 1 {
        ID "id" Bigint
    }
    step "step" 2 {
        ID "id" Bigint, NAME "name" Text
    }
    step_done "step_done" 2 {
        ID "id" Bigint, NAME "name" Text, RESULT "result" Jsonb
    }
    cancel "cancel" 1 {
        JOB_ID "job_id" Bigint, REASON "reason" Text, FORCE "force" Boolean
    }
    retry "retry" 1 {
        JOB_ID "job_id" Bigint, RUN_AT "run_at" Timestamp
    }
    retry_many "retry_many" 1 {
        JOB_IDS "job_ids" Bigints, RUN_AT "run_at" Timestamp
    }
    cancel_many "cancel_many" 1 {
        JOB_IDS "job_ids" Bigints, REASON "reason" Text, FORCE "force" Boolean
    }
    reprioritize "reprioritize" 2 {
        JOB_ID "job_id" Bigint, PRIORITY "priority" Integer
    }
    reprioritize_many "reprioritize_many" 2 {
        JOB_IDS "job_ids" Bigints, PRIORITY "priority" Integer
    }
    reschedule "reschedule" 2 {
        JOB_ID "job_id" Bigint, RUN_AT "run_at" Timestamp
    }
    reschedule_many "reschedule_many" 2 {
        JOB_IDS "job_ids" Bigints, RUN_AT "run_at" Timestamp
    }
    forget "forget" 1 {
        JOB_ID "job_id" Bigint
    }
    lease_expires_at "lease_expires_at" 1 {
        ID "id" Bigint
    }
    tallies "tallies" 0 {
        WALK "walk" Boolean
    }
    life_of "life_of" 1 {
        JOB_ID "job_id" Bigint
    }
    job_steps "job_steps" 1 {
        JOB_ID "job_id" Bigint
    }
    text_length "text_length" 1 {
        VALUE "value" Jsonb
    }
    payload_of "payload_of" 1 {
        ID "id" Bigint
    }
    times "times" 1 {
        HISTOGRAMS "histograms" Byteas
    }
    throughput_by "throughput_by" 0 {
        PERIOD "period" Interval, SINCE "since" Timestamp
    }
    activity "activity" 0 {
        QUEUE_NAME "queue_name" Text, SINCE "since" Timestamp, PERIOD "period" Interval
    }
    create_topic "create_topic" 1 {
        TOPIC "topic" Text, IF_NOT_EXISTS "if_not_exists" Boolean
    }
    bind "bind" 2 {
        TOPIC "topic" Text, QUEUE_NAME "queue_name" Text, PATTERN "pattern" Text, FILTER "filter" Other,
        PRIORITY "priority" Integer, DELAY "delay" Interval, GROUP_KEY "group_key" Other,
        MAX_ATTEMPTS "max_attempts" Integer, LEASE "lease" Interval, STAGE "stage" Text, ON_FULL "on_full" Text
    }
    unbind "unbind" 2 {
        TOPIC "topic" Text, QUEUE_NAME "queue_name" Text, PATTERN "pattern" Text
    }
    publish "publish" 1 {
        TOPIC "topic" Text, PAYLOAD "payload" Jsonb, KEY "key" Text, MANDATORY "mandatory" Boolean,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text,
        FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval,
        MAX_DELAY "max_delay" Interval
    }
    publish_many "publish_many" 2 {
        TOPIC "topic" Text, PAYLOADS "payloads" Jsonbs, KEYS "keys" Texts, MANDATORY "mandatory" Boolean,
        PRIORITY "priority" Integer, DELAY "delay" Interval, RUN_AT "run_at" Timestamp, UNIQUE_KEY "unique_key" Text,
        ON_DUPLICATE "on_duplicate" Text, VERSION "version" Timestamp, UNIQUE_FOR "unique_for" Interval,
        GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb, AFTER "after" Bigints, UPON "upon" Text,
        FLOW "flow" Bigint, TASK "task" Text, START_BY "start_by" Timestamp, START_WITHIN "start_within" Interval,
        MAX_DELAY "max_delay" Interval
    }
    route "route" 1 {
        TOPIC "topic" Text, KEY "key" Text, PAYLOAD "payload" Jsonb, HEADERS "headers" Jsonb
    }
    schedule "schedule" 2 {
        NAME "name" Text, QUEUE_NAME "queue_name" Text, PAYLOAD "payload" Jsonb, CRON "cron" Text,
        EVERY "every" Interval, TIMEZONE "timezone" Text, MISSED "missed" Text, STARTS_AT "starts_at" Timestamp,
        ENDS_AT "ends_at" Timestamp, OVERLAP "overlap" Boolean, PRIORITY "priority" Integer,
        MAX_ATTEMPTS "max_attempts" Integer, GROUP_KEY "group_key" Text, HEADERS "headers" Jsonb,
        COMMAND "command" Text, START_WITHIN "start_within" Interval
    }
    unschedule "unschedule" 1 {
        NAME "name" Text
    }
    pause_schedule "pause_schedule" 1 {
        NAME "name" Text
    }
    resume_schedule "resume_schedule" 1 {
        NAME "name" Text
    }
    run_schedule "run_schedule" 1 {
        NAME "name" Text
    }
    upcoming "upcoming" 1 {
        NAME "name" Text, RUNS "runs" Integer
    }
    job_state "job_state" 5 {
        OUTCOME "outcome" Other, IS_CLAIMED "is_claimed" Boolean, IS_HELD "is_held" Boolean,
        RUN_AT "run_at" Timestamp, HAS_FAILED "has_failed" Boolean
    }
    attempt_state "attempt_state" 5 {
        OUTCOME "outcome" Other, IS_CLAIMED "is_claimed" Boolean, IS_HELD "is_held" Boolean,
        RUN_AT "run_at" Timestamp, HAS_FAILED "has_failed" Boolean
    }
    job "job" 1 {
        JOB_ID "job_id" Bigint
    }
    job_attempts "job_attempts" 1 {
        JOB_ID "job_id" Bigint
    }
    r#await "await" 1 {
        JOB_ID "job_id" Bigint, TIMEOUT "timeout" Interval, STATE "state" Text, RESULT "result" Jsonb
    }
    members "members" 1 {
        JOB_ID "job_id" Bigint, STATE "state" Text, BEYOND "beyond" Bigint, MAX_JOBS "max_jobs" Integer
    }
    search "search" 1 {
        QUEUE_NAME "queue_name" Text, FILTER "filter" Other, STATES "states" Texts, STAGE "stage" Text,
        BEYOND "beyond" Jsonb, MAX_JOBS "max_jobs" Integer, MAX_ROWS "max_rows" Integer
    }
    error_groups "error_groups" 0 {
        QUEUE_NAME "queue_name" Text, MAX_JOBS "max_jobs" Integer
    }
    load "load" 0 {
        QUEUE_NAME "queue_name" Text, TARGET_AGE "target_age" Interval
    }
    check "check" 0 {
        REPAIR "repair" Boolean
    }
    cluster_is_home "is_home" 1 {
        ID "id" Bigint
    }
    cluster_hold_slot "hold_slot" 1 {
        SLOT "slot" Integer
    }
    cluster_id_of_end "id_of_end" 1 {
        ONE "one" Text
    }
    cluster_take_slot "take_slot" 1 {
        SLOT "slot" Integer
    }
    cluster_is_owed "is_owed" 1 {
        ID "id" Bigint
    }
    cluster_remember "remember" 6 {
        QUEUE_NAME "queue_name" Text, UNIQUE_KEY "unique_key" Text, JOB_ID "job_id" Bigint,
        EXPIRES_AT "expires_at" Timestamp, TAKEN_UNTIL "taken_until" Timestamp, VERSION "version" Timestamp
    }
    bridge_arrival "arrival" 2 {
        RELATION "relation" Oid, RING "ring" Integer
    }
    bridge_is_streamed "is_streamed" 2 {
        SUBSCRIPTION "subscription" Oid, RELATION "relation" Oid
    }
    bridge_enqueue "enqueue" 7 {
        QUEUE_NAME "queue_name" Text, IDS "ids" Bigints, MADE_AT "made_at" Timestamp, BODY "body" Jsonb,
        OPTIONS "options" Jsonb, FORM "form" Text, PASSED "passed" Bigints
    }
    bridge_enqueue_new "enqueue_new" 7 {
        QUEUE_NAME "queue_name" Text, ID "id" Bigint, MADE_AT "made_at" Timestamp, PAYLOAD "payload" Jsonb,
        OPTIONS "options" Jsonb, SOURCE "source" Text, LOOKS "looks" Boolean
    }
    bridge_publish "publish" 5 {
        TOPIC "topic" Text, IDS "ids" Bigints, MADE_AT "made_at" Timestamp, BODY "body" Jsonb,
        OPTIONS "options" Jsonb
    }
    bridge_complete_waiting "complete_waiting" 2 {
        ID "id" Bigint, RESULT "result" Jsonb
    }
    bridge_carry_out_as "carry_out_as" 5 {
        SOURCE "source" Text, FUNCTION "function" Oid, CALL "call" Other, PASSED "passed" Bigints,
        LOOKS "looks" Boolean
    }
    bridge_within "within" 2 {
        PATIENCE "patience" Interval, COMMAND "command" Text, ARGUMENTS "arguments" Texts
    }
}
