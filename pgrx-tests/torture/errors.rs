//! The errors that a verb may raise during the torture. Any other error is a finding.

use queue_tests::error;

/// The failure of a call.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The SQLSTATE. It is empty if the connection ended without an error.
    pub code: String,
    pub message: String,
    pub is_lost: bool,
}

impl Failure {
    pub fn of(client: &postgres::Client, e: &postgres::Error) -> Self {
        let code = error::code(e).to_owned();
        let is_lost = client.is_closed() || code.is_empty() || ["57P01", "57P02", "57P03"].contains(&code.as_str());
        let message = if code.is_empty() { format!("{e:?}") } else { error::message(e).to_owned() };
        Self { code, message, is_lost }
    }
}

/// Verbs that read tables by SQL, always or only right after a start. At SERIALIZABLE such reads count like those of
/// any SQL.
const SERIALIZED: [&str; 19] = [
    "enqueue",
    "publish",
    "bind",
    "unbind",
    "claim",
    "prepare",
    "cancel",
    "retry",
    "reprioritize",
    "reschedule",
    "forget",
    "purge",
    "alter",
    "pause",
    "resume",
    "drop",
    "create",
    "witness",
    "commit",
];

/// The allowed errors of verbs, by the verb's name, or by its first word if the name is not listed.
const EXPECTED: &[(&str, &[&str])] = &[
    // P0002: a predecessor was rolled back or is no longer kept. 55000: the job's flow has ended.
    ("enqueue", &["53400", "23505", "40P01", "55000", "55006", "P0002"]),
    // 55006: a bound queue is being dropped.
    ("publish", &["40P01", "53400", "55006"]),
    ("bind", &["40P01", "55006"]),
    ("unbind", &["40P01", "55006"]),
    ("claim", &["53400"]),
    ("complete", &["QJ001", "55006"]),
    ("fail", &["QJ001", "55006"]),
    ("release", &["QJ001", "55006"]),
    ("extend", &["QJ001", "55006"]),
    ("progress", &["QJ001", "55006"]),
    ("advance", &["QJ001", "55006"]),
    ("suspend", &["QJ001", "55006"]),
    ("step", &["QJ001", "55006"]),
    ("seal", &["P0002", "55000", "55006"]),
    ("resolve", &["P0002", "55000", "55006", "53400"]),
    ("reject", &["P0002", "55000", "55006", "53400"]),
    // 55000: the job's queue was dropped.
    ("await", &["P0002", "55000", "53400"]),
    ("cancel", &["P0002", "55000", "55006", "53400"]),
    ("retry", &["P0002", "55000", "55006", "23505", "53400"]),
    ("reprioritize", &["P0002", "55000", "55006", "53400"]),
    ("reschedule", &["P0002", "55000", "55006", "53400"]),
    ("forget", &["P0002", "55000", "55006", "25001"]),
    ("purge", &["53400"]),
    // Two managers change several queues in different orders.
    ("alter", &["40P01", "55000", "55006"]),
    ("drop", &["40P01", "42704", "55000", "55006", "53400"]),
    ("create", &["40P01", "42710"]),
    // Errors about one of the jobs are in the answer.
    ("complete_many", &[]),
    ("fail_many", &[]),
    ("release_many", &[]),
    ("extend_many", &[]),
    ("end_batch", &[]),
    ("cancel_many", &[]),
    ("retry_many", &[]),
    ("reprioritize_many", &[]),
    ("reschedule_many", &[]),
    ("pause", &["40P01", "42704"]),
    ("resume", &["40P01", "42704"]),
    // One session has an index's lock and waits for the table's, the other has the table's and waits for the index's.
    ("reindex", &["40P01"]),
    ("vacuum", &["40P01"]),
    // 0A000: the transaction has replaced the contents of a waiting job.
    ("prepare", &["0A000"]),
    // The process of a lost connection may still be running the command.
    ("end", &["42704", "55000"]),
    ("run", &["42704"]),
    ("unschedule", &["42704"]),
];

/// True if the verb reads tables by SQL, or may do so.
pub fn reads_by_sql(verb: &str) -> bool {
    SERIALIZED.contains(&first_word(verb))
}

fn first_word(verb: &str) -> &str {
    verb.split(['_', ' ']).next().unwrap_or_default()
}

/// True if the verb may raise this error. `is_coming`: the queue is dropped and created again now and then. `has_read`:
/// an earlier verb of the transaction has read tables by SQL, which can make a later one fail.
pub fn is_expected(verb: &str, failure: &Failure, is_coming: bool, has_read: bool) -> bool {
    let is_named = EXPECTED.iter().any(|(name, _)| *name == verb);
    let reads = reads_by_sql(verb);
    let verb = if is_named { verb } else { first_word(verb) };
    let has = |codes: &[&str]| codes.contains(&failure.code.as_str());
    // The saboteur cancels statements.
    failure.is_lost
        || has(&["57014"])
        || (has_read || reads) && has(&["40001"])
        || EXPECTED.iter().any(|(name, codes)| *name == verb && has(codes))
        || is_coming && has(&["42704", "55006", "55000"])
}
