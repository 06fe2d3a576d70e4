//! The options of a queue, as `queue.create` and `queue.alter` take them.
//!
//! Responsible for the one table of options (name, type, default, check), and for reading the options of a call. Not
//! responsible for options that need the catalog: the dead letter and the executor (`queues`, `executors`).
//!
//! Invariant: each option is an argument of both verbs and a column of `queue_internal.queue`, all of one name.

use pg_queue_core::backoff::Curve;
use pg_queue_core::frontier::GATE_LANES;
use pgrx::pg_sys;

use crate::api::executors;
use crate::catalog::declared::argument;
use crate::error::{Error, Result};
use crate::job::options::{check_max_attempts, lease_us};
use crate::job::{notice, timing};
use crate::pg::datum::Interval;
use crate::pg::function::Call;
use crate::pg::parameter::Parameter;

/// The most stages that a queue may have: together with its own lane as many as a gate counts.
const MAX_STAGES: usize = GATE_LANES - 1;

/// Options whose values shared memory keeps for all claimers.
pub const LIMITS: [&str; 7] = [
    "max_running",
    "max_running_per_group",
    "strict_order",
    "rate_limit",
    "rate_limit_per_group",
    "rate_period",
    "stages",
];

/// A verb that takes them.
#[derive(Clone, Copy)]
pub enum Verb {
    Create,
    Alter,
}

/// An option.
pub struct QueueOption {
    pub name: &'static str,
    /// As SQL.
    pub default: &'static str,
    kind: pg_sys::Oid,
    /// The position of the option among each verb's arguments.
    at: [usize; 2],
    /// Checks an argument that is not NULL. Errors: 22023.
    check: fn(&Call, usize, &str) -> Result<()>,
}

/// Makes the table: name, type and default as SQL, check.
macro_rules! options {
    ($($name:ident: $kind:ident = $default:literal, $check:expr;)*) => {
        pub const ALL: &[QueueOption] = &[$(QueueOption {
            name: stringify!($name),
            default: $default,
            kind: pg_sys::$kind,
            at: [argument!(create, $name), argument!(alter, $name)],
            check: $check,
        },)*];
    };
}

options! {
    max_attempts: INT4OID = "20", |call, n, _| call.i32(n).map_or(Ok(()), check_max_attempts);
    lease: INTERVALOID = "'5 minutes'",
        lease;
    backoff: TEXTOID = "'exponential'", backoff;
    backoff_base: INTERVALOID = "'10 seconds'", not_negative;
    backoff_max: INTERVALOID = "'1 day'", not_negative;
    backoff_jitter: FLOAT8OID = "0.1", backoff_jitter;
    retention: INTERVALOID = "'1 day'", retention;
    dead_retention: INTERVALOID = "'90 days'", retention;
    dead_letter: TEXTOID = "NULL", any;
    max_running: INT4OID = "NULL", limit;
    max_running_per_group: INT4OID = "NULL", limit;
    strict_order: BOOLOID = "false", any;
    rate_limit: INT4OID = "NULL", limit;
    rate_limit_per_group: INT4OID = "NULL", limit;
    rate_period: INTERVALOID = "'1 second'", rate_period;
    max_waiting: INT8OID = "NULL", max_waiting;
    stages: TEXTARRAYOID = "NULL", |call, n, _| check_stages(&call.text_array(n).unwrap_or_default());
    notify: BOOLOID = "false", any;
    executor: TEXTOID = "NULL", |call, n, _| executors::check_kind(&call.text(n).unwrap_or_default());
    procedure: TEXTOID = "NULL", any;
    run_as: TEXTOID = "NULL", any;
    settings: JSONBOID = "NULL", any;
    start_within: INTERVALOID = "NULL",
        |call, n, name| call.interval(n).map_or(Ok(()), |span| timing::check_span(name, span));
}

/// Returns the option of this name. `None`: there is none.
pub fn by_name(name: &str) -> Option<&'static QueueOption> {
    ALL.iter().find(|option| option.name == name)
}

/// Returns the options that were given, checked: columns and values.
///
/// Errors: 22023 for values out of range.
pub fn given(call: &Call, verb: Verb) -> Result<Vec<(&'static str, Parameter)>> {
    let mut found = Vec::new();
    for option in ALL {
        let n = option.at[verb as usize];
        let Some(datum) = call.datum(n) else { continue };
        (option.check)(call, n, option.name)?;
        let text = || call.text(n).unwrap_or_default();
        match option.name {
            // These options set other columns, too.
            "procedure" => found.extend(executors::procedure(&text())?),
            "run_as" => found.extend(executors::run_as(&text())?),
            "settings" => found.extend(executors::settings(datum)?),
            name => found.push((name, Parameter::raw(Some(datum), option.kind))),
        }
    }
    Ok(found)
}

#[allow(clippy::unnecessary_wraps, reason = "a check, as the others")]
fn any(_: &Call, _: usize, _: &str) -> Result<()> {
    Ok(())
}

fn span(call: &Call, n: usize) -> i64 {
    call.interval(n).map_or(0, Interval::us)
}

fn given_interval(call: &Call, n: usize) -> String {
    format!("It is {}.", call.interval(n).map_or_else(String::new, Interval::text))
}

fn lease(call: &Call, n: usize, _: &str) -> Result<()> {
    /// A worker extends the lease of a job several times while it runs, so a shorter one is hardly ever kept.
    const SHORT_US: i64 = 1_000_000;
    let Some(lease) = call.interval(n) else { return Ok(()) };
    if lease_us(lease)? < SHORT_US {
        notice::short_lease(&lease.text());
    }
    Ok(())
}

fn backoff(call: &Call, n: usize, _: &str) -> Result<()> {
    let value = call.text(n).unwrap_or_default();
    if Curve::parse(&value).is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid value for backoff: \"{value}\""))
        .hint("Use 'constant', 'linear' or 'exponential'."))
}

fn backoff_jitter(call: &Call, n: usize, _: &str) -> Result<()> {
    let jitter = call.f64(n).unwrap_or(-1.0);
    if (0.0..=1.0).contains(&jitter) {
        return Ok(());
    }
    Err(Error::invalid("backoff_jitter must be between 0 and 1").detail(format!("It is {jitter}.")))
}

fn not_negative(call: &Call, n: usize, name: &str) -> Result<()> {
    if span(call, n) >= 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} cannot be negative")).detail(given_interval(call, n)))
}

/// '-1' means for ever. As an interval it is minus one second.
fn retention(call: &Call, n: usize, name: &str) -> Result<()> {
    if call.interval(n) == Some(Interval { months: 0, days: 0, time: -1_000_000 }) {
        return Ok(());
    }
    not_negative(call, n, name).map_err(|error| error.hint("Use '0' to keep nothing, '-1' to keep all for ever."))
}

fn limit(call: &Call, n: usize, name: &str) -> Result<()> {
    let limit = call.i32(n).unwrap_or(0);
    if limit >= 1 {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must be at least 1"))
        .detail(format!("It is {limit}."))
        .hint("To stop a queue use queue.pause; to lift the limit, queue.alter with reset."))
}

fn max_waiting(call: &Call, n: usize, _: &str) -> Result<()> {
    let limit = call.i64(n).unwrap_or(0);
    if limit >= 1 {
        return Ok(());
    }
    Err(Error::invalid("max_waiting must be at least 1").detail(format!("It is {limit}.")))
}

fn rate_period(call: &Call, n: usize, _: &str) -> Result<()> {
    if span(call, n) > 0 {
        return Ok(());
    }
    Err(Error::invalid("rate_period must be positive")
        .detail(given_interval(call, n))
        .hint("For instance rate_period => '1 second'."))
}

/// Checks the names of stages.
///
/// Errors: 22023 unless there are 1 to `MAX_STAGES` different names of 1 to 200 characters.
fn check_stages(stages: &[Option<String>]) -> Result<()> {
    if stages.is_empty() || stages.len() > MAX_STAGES {
        return Err(Error::invalid(format!("stages must name 1 to {MAX_STAGES} stages"))
            .detail(format!("It names {}.", stages.len()))
            .hint("For a queue without stages leave them out, or use reset => '{stages}'."));
    }
    for (n, stage) in stages.iter().enumerate() {
        let Some(name) = stage else { return Err(Error::null(&format!("stages[{}]", n + 1))) };
        let length = name.chars().count();
        if !(1..=200).contains(&length) {
            return Err(Error::invalid(format!("stages[{}] must have 1 to 200 characters", n + 1))
                .detail(format!("It has {length}.")));
        }
        if stages[..n].contains(stage) {
            return Err(Error::invalid(format!("stage \"{name}\" is named twice")));
        }
    }
    Ok(())
}
