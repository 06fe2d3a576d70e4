//! The options of a queue, as `queue.create` and `queue.alter` take them.
//!
//! Responsible for the one table of options (name, type, default, check), and for reading the options of a call. Not
//! responsible for options that need the catalog: the dead letter and the executor (`queues`, `executors`).
//!
//! Invariant: each option is an argument of both verbs and a column of `queue_internal.queue`, all of one name.

use pg_queue_core::backoff::Curve;
use pg_queue_core::frontier::GATE_LANES;
use pgrx::pg_sys::{self, Datum};

use crate::api::executors;
use crate::catalog::arguments as args;
use crate::error::{Error, Result};
use crate::job::options::{check_max_attempts, lease_us};
use crate::job::{cost, notice, timing};
use crate::pg::argument::{Kind, kind, position};
use crate::pg::datum::Interval;
use crate::pg::function::Call;
use crate::pg::parameter::Parameter;

/// The most stages that a queue may have: together with its own lane as many as a gate counts.
pub const MAX_STAGES: usize = GATE_LANES - 1;

/// Options whose values shared memory keeps for all claimers.
pub const LIMITS: [&str; 9] = [
    "max_running",
    "max_running_per_group",
    "strict_order",
    "rate_limit",
    "rate_limit_per_group",
    "rate_period",
    "rate_cost",
    "fair_share",
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
    /// Errors: 22023.
    check: fn(&Value) -> Result<()>,
}

/// A value that is not NULL.
struct Value {
    name: &'static str,
    datum: Datum,
}

impl Value {
    fn read<K: Kind>(&self) -> K::Value {
        K::read(self.datum)
    }
}

/// Makes the table: name, type and default as SQL, check.
macro_rules! options {
    ($($name:ident: $kind:ident = $default:literal, $check:expr;)*) => {
        pub const ALL: &[QueueOption] = &[$(QueueOption {
            name: stringify!($name),
            default: $default,
            kind: pg_sys::$kind,
            at: [position(args::create::NAMES, stringify!($name)), position(args::alter::NAMES, stringify!($name))],
            check: $check,
        },)*];
    };
}

options! {
    // options of queues: made by `make generate`
    max_attempts: INT4OID = "20", max_attempts;
    lease: INTERVALOID = "'5 minutes'", lease;
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
    rate_cost: TEXTOID = "NULL", rate_cost;
    fair_share: TEXTOID = "NULL", fair_share;
    max_waiting: INT8OID = "NULL", max_waiting;
    stages: TEXTARRAYOID = "NULL", stages;
    notify: BOOLOID = "false", any;
    start_within: INTERVALOID = "NULL", start_within;
    executor: TEXTOID = "NULL", executor;
    procedure: TEXTOID = "NULL", any;
    run_as: TEXTOID = "NULL", any;
    settings: JSONBOID = "NULL", any;
    // end of options of queues
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
        let Some(datum) = call.raw(n) else { continue };
        let value = Value { name: option.name, datum };
        (option.check)(&value)?;
        let text = || value.read::<kind::Text>();
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
fn any(_: &Value) -> Result<()> {
    Ok(())
}

/// A detail that says which span was given.
fn shown(value: &Value) -> String {
    format!("It is {}.", value.read::<kind::Interval>().text())
}

fn lease(value: &Value) -> Result<()> {
    /// A worker extends the lease of a job several times while it runs, so a shorter one is hardly ever kept.
    const SHORT_US: i64 = 1_000_000;
    let lease = value.read::<kind::Interval>();
    if lease_us(lease)? < SHORT_US {
        notice::short_lease(&lease.text());
    }
    Ok(())
}

fn backoff(value: &Value) -> Result<()> {
    let value = value.read::<kind::Text>();
    if Curve::parse(&value).is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!("invalid value for backoff: \"{value}\""))
        .hint("Use 'constant', 'linear' or 'exponential'."))
}

fn backoff_jitter(value: &Value) -> Result<()> {
    let jitter = value.read::<kind::Float>();
    if (0.0..=1.0).contains(&jitter) {
        return Ok(());
    }
    Err(Error::invalid("backoff_jitter must be between 0 and 1").detail(format!("It is {jitter}.")))
}

fn not_negative(value: &Value) -> Result<()> {
    let name = value.name;
    if value.read::<kind::Interval>().us() >= 0 {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} cannot be negative")).detail(shown(value)))
}

/// '-1' means for ever. As an interval it is minus one second.
fn retention(value: &Value) -> Result<()> {
    if value.read::<kind::Interval>() == (Interval { months: 0, days: 0, time: -1_000_000 }) {
        return Ok(());
    }
    not_negative(value).map_err(|error| error.hint("Use '0' to keep nothing, '-1' to keep all for ever."))
}

fn limit(value: &Value) -> Result<()> {
    let (name, limit) = (value.name, value.read::<kind::Integer>());
    if limit >= 1 {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} must be at least 1"))
        .detail(format!("It is {limit}."))
        .hint("To stop a queue use queue.pause; to lift the limit, queue.alter with reset."))
}

fn max_attempts(value: &Value) -> Result<()> {
    check_max_attempts(value.read::<kind::Integer>())
}

fn stages(value: &Value) -> Result<()> {
    check_stages(&value.read::<kind::Texts>())
}

fn executor(value: &Value) -> Result<()> {
    executors::check_kind(&value.read::<kind::Text>())
}

fn fair_share(value: &Value) -> Result<()> {
    match value.read::<kind::Text>().as_str() {
        "jobs" => Ok(()),
        other => Err(Error::invalid(format!("invalid value for fair_share: \"{other}\"")).hint("Use 'jobs'.")),
    }
}

fn rate_cost(value: &Value) -> Result<()> {
    cost::check(&value.read::<kind::Text>())
}

fn start_within(value: &Value) -> Result<()> {
    timing::check_span(value.name, value.read::<kind::Interval>())
}

fn max_waiting(value: &Value) -> Result<()> {
    let limit = value.read::<kind::Bigint>();
    if limit >= 1 {
        return Ok(());
    }
    Err(Error::invalid("max_waiting must be at least 1").detail(format!("It is {limit}.")))
}

fn rate_period(value: &Value) -> Result<()> {
    if value.read::<kind::Interval>().us() > 0 {
        return Ok(());
    }
    Err(Error::invalid("rate_period must be positive")
        .detail(shown(value))
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
