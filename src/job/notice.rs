//! NOTICEs by which a call says that one of its arguments has no effect, or another one than elsewhere. If workers make
//! the call all day, the NOTICE comes once in a session. Also the WARNING of a session that no background worker serves
//! its database.
//!
//! Not responsible for wrong arguments, which are errors.

use std::cell::RefCell;
use std::collections::HashSet;

use pg_queue_core::schedule::Ambiguity;

use crate::catalog::queue::Queue;
use crate::error::{Error, NOTICE, WARNING};
use crate::guc;
use crate::pg::{time, transaction};

thread_local! {
    /// The NOTICEs that this session has already raised.
    static TOLD: RefCell<HashSet<Told>> = RefCell::default();
}

#[derive(PartialEq, Eq, Hash)]
enum Told {
    GroupWithoutLimits { queue: i32 },
    WaitIsCut,
    CannotSleep,
    NoWorker,
    NoSuchStage { queue: i32 },
}

fn is_first(what: Told) -> bool {
    TOLD.with_borrow_mut(|told| told.insert(what))
}

/// The queue has neither limits of groups nor an order in them.
pub fn group_without_limits(queue: &Queue) {
    if is_first(Told::GroupWithoutLimits { queue: queue.id }) {
        Error::new(NOTICE, format!("queue \"{}\" does not limit groups, so group_key has no effect there", queue.name))
            .hint("Set max_running_per_group, rate_limit_per_group or strict_order with queue.alter.")
            .notice();
    }
}

/// No background worker serves the database. `why`: a clause.
pub fn no_worker(why: &str, hint: &str) {
    if is_first(Told::NoWorker) {
        Error::new(WARNING, format!("no background worker serves this database: {why}"))
            .detail("Without it no lease expires, no delayed job starts, no schedule fires, and nothing is reclaimed.")
            .hint(hint)
            .warn();
    }
}

/// A claim names a stage that the queue does not have, beside others. `error` says so.
pub fn no_such_stage(queue: &Queue, error: Error) {
    if is_first(Told::NoSuchStage { queue: queue.id }) {
        Error { code: WARNING, ..error }
            .hint("The claim takes jobs of the other stages, and of this one as soon as queue.alter adds it.")
            .warn();
    }
}

/// The call was asked to wait for a job, but cannot sleep and returns early without one. A loop of such calls does not
/// pause.
pub fn cannot_sleep() {
    if is_first(Told::CannotSleep) {
        let why = if transaction::has_xid() { "has written" } else { "reads by one snapshot" };
        Error::new(NOTICE, format!("the claim does not wait, because its transaction {why}"))
            .detail(
                "While it waited, other sessions would wait for its locks, or it would not see the jobs that they \
                commit.",
            )
            .hint("Commit before claims that wait, or claim in a transaction of its own at READ COMMITTED.")
            .notice();
    }
}

/// The call asks for a longer sleep than the setting permits. `wait`: microseconds.
pub fn wait_is_cut(wait: i64) {
    let most = i64::from(guc::MAX_WAIT.get());
    if wait > most * 1_000 && is_first(Told::WaitIsCut) {
        Error::new(NOTICE, format!("the call waits for {most} ms at most, not for {} ms", wait / 1_000))
            .detail("The setting pg_queue.max_wait bounds how long one call sleeps, as that holds back vacuum.")
            .hint("Call again when it returns without a job, as a worker does anyway, or raise the setting.")
            .notice();
    }
}

/// `queue.drop` with `if_exists`.
pub fn no_queue_to_drop(name: &str) {
    Error::new(NOTICE, format!("queue \"{name}\" does not exist, skipping")).notice();
}

/// A queue gets a lease of less than a second.
pub fn short_lease(lease: &str) {
    Error::new(NOTICE, format!("a lease of {lease} is very short"))
        .detail("A worker that does not extend it in time loses its job, and the job runs again.")
        .hint("Workers extend the lease while a job runs, so 30 seconds and more suit long jobs, too.")
        .notice();
}

/// `queue.alter` without any option.
pub fn nothing_to_alter(name: &str) {
    Error::new(NOTICE, format!("queue \"{name}\" was not changed, as no option was given"))
        .hint("Name an option, for instance max_attempts => 5, or reset => ARRAY['max_attempts'].")
        .notice();
}

/// `queue.unbind` that has found nothing.
pub fn nothing_to_unbind(topic: &str, queue: &str, pattern: Option<&str>) {
    let by = pattern.map_or_else(String::new, |pattern| format!(" by the pattern \"{pattern}\""));
    Error::new(NOTICE, format!("queue \"{queue}\" is not bound to topic \"{topic}\"{by}"))
        .hint("View queue.bindings has all bindings.")
        .notice();
}

/// A schedule gets a cron expression that other tools read in another way. `slots`: its next ones.
pub fn ambiguous_cron(cron: &str, ambiguities: &[Ambiguity], slots: &[i64]) {
    let readings: Vec<&str> = ambiguities.iter().map(|ambiguity| ambiguity.reading()).collect();
    let slots: Vec<String> = slots.iter().map(|&slot| time::timestamp_text(slot)).collect();
    let next = match &slots[..] {
        [] => "It has no further time.".to_owned(),
        [slot] => format!("The next time is {slot}."),
        slots => format!("The next times are {}.", slots.join(", ")),
    };
    Error::new(NOTICE, format!("other tools may read the cron expression \"{cron}\" in another way"))
        .detail(format!("{}\n{next}", readings.join("\n")))
        .hint("If other times are meant, see docs/coming-from/cron-dialects.md.")
        .notice();
}

/// A filter of jobs begins with a field that no job has.
pub fn filter_finds_no_field(field: &str, fields: &[&str]) {
    Error::new(NOTICE, format!("filter asks for $.{field}, which no job has"))
        .detail(format!("A filter sees the fields {}.", fields.join(", ")))
        .hint(format!("If it is a field of the payload, write $.payload.{field}."))
        .notice();
}

/// A path into events begins with a field that no event has.
pub fn path_leads_nowhere(argument: &str, field: &str) {
    Error::new(NOTICE, format!("{argument} asks for $.{field}, which no event has"))
        .detail("An event has the fields topic, key, headers and payload.")
        .hint(format!("If it is a field of the payload, write $.payload.{field}."))
        .notice();
}
