//! The settings of the session in which a job runs: those of its queue, then those of the job.
//!
//! Responsible for which of a queue's settings count. Not responsible for setting them (`executor::job`), nor for
//! checking that such settings exist (`api::executors`).
//!
//! Invariant: only the author of a command decides what it means. Some settings of a queue, such as `search_path`,
//! could change that. They count only if the role that set them may SET ROLE to the author, and so could have written
//! the command itself.

use std::ffi::CString;

use pgrx::pg_sys::Datum;

use crate::catalog::queue::{Queue, Settings};
use crate::error::{self, Error, Result};
use crate::pg::{jsonb, role};

/// Settings that change how a command runs, but never what it means: memory, time, plans.
const HARMLESS: [&str; 74] = [
    "application_name",
    "backend_flush_after",
    "client_min_messages",
    "constraint_exclusion",
    "cpu_index_tuple_cost",
    "cpu_operator_cost",
    "cpu_tuple_cost",
    "cursor_tuple_fraction",
    "default_statistics_target",
    "default_toast_compression",
    "effective_cache_size",
    "effective_io_concurrency",
    "enable_async_append",
    "enable_bitmapscan",
    "enable_distinct_reordering",
    "enable_eager_aggregate",
    "enable_gathermerge",
    "enable_group_by_reordering",
    "enable_hashagg",
    "enable_hashjoin",
    "enable_incremental_sort",
    "enable_indexonlyscan",
    "enable_indexscan",
    "enable_material",
    "enable_memoize",
    "enable_mergejoin",
    "enable_nestloop",
    "enable_parallel_append",
    "enable_parallel_hash",
    "enable_partition_pruning",
    "enable_partitionwise_aggregate",
    "enable_partitionwise_join",
    "enable_presorted_aggregate",
    "enable_self_join_elimination",
    "enable_seqscan",
    "enable_sort",
    "enable_tidscan",
    "from_collapse_limit",
    "geqo",
    "geqo_effort",
    "geqo_generations",
    "geqo_pool_size",
    "geqo_seed",
    "geqo_selection_bias",
    "geqo_threshold",
    "hash_mem_multiplier",
    "io_combine_limit",
    "jit",
    "jit_above_cost",
    "jit_inline_above_cost",
    "jit_optimize_above_cost",
    "join_collapse_limit",
    "lock_timeout",
    "logical_decoding_work_mem",
    "maintenance_io_concurrency",
    "maintenance_work_mem",
    "max_parallel_maintenance_workers",
    "max_parallel_workers",
    "max_parallel_workers_per_gather",
    "min_eager_agg_group_size",
    "min_parallel_index_scan_size",
    "min_parallel_table_scan_size",
    "parallel_leader_participation",
    "parallel_setup_cost",
    "parallel_tuple_cost",
    "plan_cache_mode",
    "random_page_cost",
    "recursive_worktable_factor",
    "seq_page_cost",
    "statement_timeout",
    "temp_buffers",
    "timing_clock_source",
    "vacuum_buffer_usage_limit",
    "work_mem",
];

/// Returns the settings for a job, in the order in which they are set. `own`: the job's settings, an object. Must run
/// as the role that runs the job.
///
/// Errors: 42501 for a setting of the queue that its role may not decide about; 22023 for a setting with a zero
/// character.
pub fn of_job(queue: &Queue, own: Option<Datum>) -> Result<Vec<(CString, CString)>> {
    let mut all = Vec::new();
    if let Some(settings) = &queue.settings {
        let given = jsonb::of_text(&settings.json).map(jsonb::fields).unwrap_or_default();
        if let Some((name, _)) = given.iter().find(|(name, _)| !HARMLESS.contains(&name.to_lowercase().as_str())) {
            check_may_decide(queue, settings, name)?;
        }
        all.extend(given);
    }
    all.extend(own.map(jsonb::fields).unwrap_or_default());
    let c_string = |text: &str| CString::new(text).map_err(|_| Error::invalid("a setting holds a zero character"));
    let text = |value: &jsonb::Value| value.as_str().unwrap_or_else(|| jsonb::text(value.datum()));
    all.iter().map(|(name, value)| Ok((c_string(name)?, c_string(&text(value))?))).collect()
}

fn check_may_decide(queue: &Queue, settings: &Settings, setting: &str) -> Result<()> {
    let author = role::user();
    if settings.by.role().is_some_and(|by| role::can_become(by, author)) {
        return Ok(());
    }
    let author = role::role_name(author).unwrap_or_default();
    Err(Error::new(
        error::DENIED,
        format!("setting \"{setting}\" of queue \"{}\" does not count for role \"{author}\"", queue.name),
    )
    .detail(format!(
        "It can change what a command means, and role \"{}\", which has set it, may not SET ROLE to \"{author}\".",
        settings.by.name
    ))
    .hint("Take it from the queue, and give it to the commands that need it: queue.enqueue_sql(…, settings => …)."))
}
