//! `queue.search`: the jobs of a queue in some states, a page at a time.
//!
//! Not responsible for finding the jobs (`log::listing`), nor for their rows (`view::attempts`). `view::error_groups`
//! uses the same search.
//!
//! Invariant: a search reads a bounded number of rows, and only of queues that the current user may observe.

use std::rc::Rc;

use pgrx::pg_sys::Datum;
use serde_json::{Value, json};

use crate::api::sql_function;
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege, Rights};
use crate::catalog::queue::{self, Queue};
use crate::catalog::rows::ListedJob;
use crate::error::{self, Error, Result};
use crate::job::notice;
use crate::log::listing::{Found, JobState, Opened, Wanted};
use crate::pg::function::Call;
use crate::pg::{datum, jsonb, jsonpath, time};
use crate::view::attempts::Page;

sql_function!(pg_queue_search, pg_finfo_pg_queue_search => search);

/// A search takes at most this long, in microseconds, but reads at least one row.
const MAX_TIME_US: i64 = 500_000;
/// A page has at most this many jobs.
const MAX_PAGE_JOBS: i32 = 10_000;

/// A search for jobs.
pub struct Look<'a> {
    pub queue: &'a Queue,
    pub lane: Option<i32>,
    pub states: Vec<JobState>,
    pub filter: Option<Datum>,
    pub beyond: Option<Value>,
    pub max_rows: i64,
    /// The end of the search by the monotonic clock. `None`: no limit of time.
    pub until: Option<i64>,
}

/// The end of a search.
pub enum End {
    /// There are no more jobs.
    All,
    /// A bound was reached, or the caller has enough. A later search can continue at this position.
    More(Value),
}

/// The caller's answer to a found job.
pub enum Answer {
    GoOn,
    Enough,
}

/// A found job: the candidate, its row unless rows were not requested, and how many rows were read. `here` returns the
/// position behind the job, at which a later search can continue.
pub struct Hit<'a> {
    pub found: &'a Found,
    pub row: Option<&'a ListedJob>,
    pub rows_read: i64,
    pub here: &'a dyn Fn() -> Value,
}

impl Look<'_> {
    /// Calls `f` with each job, until it has enough or a bound is reached. Also returns how many rows were read.
    /// `with_rows`: only jobs that are in the state by the calling statement's snapshot. Otherwise also some that have
    /// left the state.
    pub fn run(&self, with_rows: bool, f: &mut dyn FnMut(Hit<'_>) -> Result<Answer>) -> Result<(End, i64)> {
        let opened = Opened::open();
        let rights = permission::rights();
        let mut page = Page::new(&opened, &rights);
        let mut scratch = datum::Scratch::new();
        let begun = self.beyond.as_ref().and_then(|beyond| JobState::parse(beyond.get("state")?.as_str()?));
        let first = self.states.iter().position(|state| Some(*state) == begun);
        let mut beyond = self.beyond.as_ref().filter(|_| first.is_some());
        let mut rows_read = 0;
        for &state in &self.states[first.unwrap_or(0)..] {
            let wanted = Wanted { queue: self.queue, lane: self.lane, state };
            let mut walk = wanted.walk(&opened, beyond.take().and_then(|beyond| beyond.get("at")));
            let with_state = |at: Value| json!({ "state": state.name(), "at": at });
            loop {
                let is_over = self.until.is_some_and(|until| time::monotonic_us() >= until);
                if rows_read >= self.max_rows || is_over && rows_read > 0 {
                    return Ok((End::More(with_state(walk.here())), rows_read));
                }
                let Some(found) = walk.next() else { break };
                rows_read += 1;
                let Some(found) = found else { continue };
                let here = || with_state(walk.here());
                let mut answer = Answer::GoOn;
                if with_rows || self.filter.is_some() {
                    scratch.lend(|| {
                        page.show(&found, &mut |row, is_flow| {
                            let is_in_state = row.state.is_some_and(|name| datum::text(name) == state.name());
                            if is_in_state && self.filter.is_none_or(|filter| matches(row, is_flow, filter)) {
                                answer = f(Hit { found: &found, row: Some(row), rows_read, here: &here })?;
                            }
                            Ok(())
                        })
                    })?;
                } else {
                    answer = f(Hit { found: &found, row: None, rows_read, here: &here })?;
                }
                if let Answer::Enough = answer {
                    return Ok((End::More(with_state(walk.here())), rows_read));
                }
            }
        }
        Ok((End::All, rows_read))
    }
}

/// True if a filter matches a job.
fn matches(row: &ListedJob, is_flow: bool, filter: Datum) -> bool {
    jsonb::of_text(&document(row, is_flow)).is_some_and(|document| jsonpath::matches(document, filter))
}

/// The fields that filters see of a job, in the order of `document`.
const FIELDS: [&str; 18] = [
    "job_id",
    "stage",
    "state",
    "payload",
    "priority",
    "attempt",
    "max_attempts",
    "worker",
    "error",
    "result",
    "progress",
    "unique_key",
    "group_key",
    "headers",
    "flow",
    "task",
    "is_flow",
    "timing",
];

/// Sends a notice to the user if a filter names a field that no job has.
fn look_at_filter(filter: Datum) {
    // A compiled path is at most some times as long as its text.
    let text =
        if datum::is_small(filter, 8 * jsonpath::MAX_PATH_BYTES) { jsonpath::text(filter) } else { String::new() };
    if let Some(field) = jsonpath::roots(&text).into_iter().find(|field| !FIELDS.contains(&field.as_str())) {
        notice::filter_finds_no_field(&field, &FIELDS);
    }
}

/// Returns the fields that filters see of a job, as JSON.
fn document(row: &ListedJob, is_flow: bool) -> String {
    type Column = Option<Datum>;
    let number = |column: Column, shown: fn(Datum) -> String| column.map_or_else(|| "null".to_owned(), shown);
    let int = |column: Column| number(column, |datum| (datum.value() as i64).to_string());
    let small = |column: Column| number(column, |datum| (datum.value() as i32).to_string());
    let text = |column: Column| Value::from(column.map(datum::text)).to_string();
    let json = |column: Column| number(column, jsonb::text);
    let values = [
        int(row.job_id),
        text(row.stage),
        text(row.state),
        json(row.payload),
        small(row.priority),
        small(row.attempt),
        small(row.max_attempts),
        text(row.worker),
        text(row.error),
        json(row.result),
        json(row.progress),
        text(row.unique_key),
        text(row.group_key),
        json(row.headers),
        int(row.flow),
        text(row.task),
        is_flow.to_string(),
        json(row.timing),
    ];
    let fields: Vec<String> = FIELDS.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

/// Returns a queue that the user may observe. `None`: the queue does not exist, or the user may not observe it.
///
/// Errors: 42704 if the queue does not exist and the user may observe every queue.
pub fn observed(rights: &Rights, name: &str) -> Result<Option<Rc<Queue>>> {
    match queue::by_name(name) {
        Ok(queue) => Ok(rights.on_lane(queue.lane, Privilege::Observe).then_some(queue)),
        // The call does not reveal which queues exist.
        Err(e) if e.code == error::UNDEFINED && !rights.everywhere(Privilege::Observe) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads the names of states.
///
/// Errors: 22023 for an unknown name, 22004 for a NULL.
pub fn states(names: Vec<Option<String>>) -> Result<Vec<JobState>> {
    let mut states = Vec::new();
    for name in names {
        let name = name.ok_or_else(|| Error::null("states"))?;
        let state = JobState::parse(&name).ok_or_else(|| {
            let known: Vec<&str> = JobState::ALL.iter().map(|(_, name)| *name).collect();
            Error::invalid(format!("unknown state \"{name}\"")).hint(format!("The states are {}.", known.join(", ")))
        })?;
        if !states.contains(&state) {
            states.push(state);
        }
    }
    Ok(states)
}

/// Reads a position that an earlier call returned.
///
/// Errors: 22023 if it is no position.
fn position(beyond: Option<Datum>) -> Result<Option<Value>> {
    let Some(beyond) = beyond else { return Ok(None) };
    let read = serde_json::from_str::<Value>(&jsonb::text(beyond)).ok();
    let position = read.filter(|value| value.get("state").is_some_and(Value::is_string) && value.get("at").is_some());
    position.map(Some).ok_or_else(|| {
        Error::invalid("beyond is no position").hint("Give the value of column \"here\" in the last row.")
    })
}

/// Reads an upper bound.
///
/// Errors: 22023 if it is out of range.
pub fn at_most(name: &str, value: Option<i32>, default: i32, most: i32) -> Result<i32> {
    match value.unwrap_or(default) {
        n if (1..=most).contains(&n) => Ok(n),
        _ => Err(Error::invalid(format!("{name} must be between 1 and {most}"))),
    }
}

/// Returns a row of `queue.listed_job`. Without the row of a job it has only the last columns.
fn with_more(job: Option<&ListedJob>, here: Option<Datum>, rows_read: i64) -> ListedJob {
    ListedJob { here, rows_read: Some(rows_read.into()), ..job.copied().unwrap_or_default() }
}

/// Runs a search, and adds the found jobs to the rows.
fn page(call: &Call, look: &Look<'_>, max_jobs: i32) -> Result<()> {
    let rows = call.rows()?;
    let mut left = max_jobs;
    let (end, rows_read) = look.run(true, &mut |hit| {
        left -= 1;
        let here = if left == 0 { jsonb::of(&(hit.here)()) } else { None };
        rows.add_options(&with_more(hit.row, here, hit.rows_read).columns())?;
        Ok(if left == 0 { Answer::Enough } else { Answer::GoOn })
    })?;
    if let End::More(here) = end
        && left > 0
    {
        rows.add_options(&with_more(None, jsonb::of(&here), rows_read).columns())?;
    }
    Ok(())
}

/// `queue.search(queue_name, filter, states, stage, beyond, max_jobs, max_rows)`.
///
/// Errors: 42704, 22023.
fn search(call: &Call) -> Result<Option<Datum>> {
    let name = call.need(args::search::QUEUE_NAME)?;
    let filter = call.datum(args::search::FILTER);
    let names = call.get(args::search::STATES);
    let stage = call.get(args::search::STAGE);
    let beyond = position(call.datum(args::search::BEYOND))?;
    let max_jobs = at_most("max_jobs", call.get(args::search::MAX_JOBS), 50, MAX_PAGE_JOBS)?;
    let max_rows = at_most("max_rows", call.get(args::search::MAX_ROWS), 20_000, 1_000_000)?.into();
    filter.inspect(|filter| look_at_filter(*filter));
    let states = names.map_or_else(|| Ok(JobState::ALL.iter().map(|(state, _)| *state).collect()), states)?;
    let rights = permission::rights();
    let Some(queue) = observed(&rights, &name)? else {
        return call.rows().map(|_| None);
    };
    let lane = stage.map(|stage| queue.stage(&stage)).transpose()?;
    let until = Some(time::monotonic_us().saturating_add(MAX_TIME_US));
    let look = Look { queue: &queue, lane, states, filter, beyond, max_rows, until };
    page(call, &look, max_jobs)?;
    Ok(None)
}
