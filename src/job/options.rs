//! The options of a job: priority, time, lease, group, key. Checks and converts them.

use std::rc::Rc;

use pg_queue_core::after::Upon;
use pg_queue_core::frontier::{Disconnect, MAX_DISCONNECT_US};
use pgrx::pg_sys::Datum;

use crate::catalog::ids;
use crate::catalog::noted::Noted;
use crate::catalog::queue::Queue;
use crate::catalog::run_as::RunAs;
use crate::error::{Error, Result};
use crate::job::notice;
use crate::job::start_by;
use crate::job::timing::{StartBy, Timing};
use crate::log::attempt;
use crate::pg::datum::{self, Interval, text_datum};
use crate::pg::jsonb;
use crate::pg::memory;
use crate::pg::time::LAST_TIME;

/// The most bytes of a key or of a task's name. Unique keys must fit into an index, and all are shown to other roles.
const MAX_KEY_BYTES: usize = 1024;

/// Checks the length of a key or a name. Returns it neither toasted nor compressed.
///
/// Errors: 22023 when it is too long.
fn checked_key(argument: &str, key: Datum) -> Result<Datum> {
    let key = datum::plain(key);
    let length = datum::bytes_of(&key).len();
    if length > MAX_KEY_BYTES {
        return Err(Error::invalid(format!("{argument} must have at most {MAX_KEY_BYTES} bytes"))
            .detail(format!("It has {length}."))
            .hint("Use a hash of it, for instance sha256(…)."));
    }
    Ok(key)
}

/// The options that a producer gives beside the payload.
#[derive(Clone, Default)]
pub struct Options {
    pub priority: i32,
    pub run_at: Option<i64>,
    pub max_attempts: Option<i32>,
    pub lease: Option<Interval>,
    pub headers: Option<Datum>,
    pub unique: Option<Unique>,
    pub group_key: Option<Datum>,
    /// The lane of a stage. `None`: the queue's first stage.
    pub lane: Option<i32>,
    /// The job's predecessors. `None`: the job has none.
    pub after: Option<Rc<After>>,
    /// The flow of which the job is a member.
    pub flow: Option<i64>,
    /// The job's name in that flow.
    pub task: Option<Datum>,
    /// The role that has written the payload as a command. `None`: the payload is data. The current user alone never
    /// decides, because it may be that of a background process.
    pub run_as: Option<RunAs>,
    /// The settings of the job's own flow. `None`: the job is no flow.
    pub own_flow: Option<OwnFlow>,
    /// The condition for a task with predecessors in its flow.
    pub upon_of_task: Upon,
    /// By when the job must start, and for how long calls under its key put it off. `None`: nothing was said.
    pub timing: Option<Rc<Timing>>,
    /// The id that another server has given to the job (`api::bridge`). Its node number is not this server's. `None`:
    /// the job gets an id here.
    pub job_id: Option<i64>,
}

/// The settings of a flow, which is a job that waits for its members.
#[derive(Clone, Copy)]
pub struct OwnFlow {
    pub upon: Upon,
    /// True if the flow waits for `queue.seal`.
    pub is_open: bool,
    /// True if the flow goes to its queue after its members. Otherwise it ends by itself.
    pub runs: bool,
    /// True if the first death among its members ends the flow.
    pub is_fail_fast: bool,
}

impl OwnFlow {
    /// Returns the stored form, with the role that has made the flow.
    pub fn datum(&self, author: &Noted) -> Option<Datum> {
        let text = |is_so: bool| is_so.then_some("true");
        jsonb::of(&serde_json::json!({
            "runs": text(self.runs),
            "fail_fast": text(self.is_fail_fast),
            "open": text(self.is_open),
            "author": author.name,
            "author_id": author.id.to_string(),
            "since": author.since.to_string(),
        }))
    }

    /// Returns the role that has made a flow. `None`: the row names none.
    pub fn author(stored: Datum) -> Option<Noted> {
        let number = |name: &str| jsonb::text_field(stored, name)?.parse().ok();
        Some(Noted { name: jsonb::text_field(stored, "author")?, id: number("author_id")?, since: number("since")? })
    }

    /// Returns the settings of their stored form.
    pub fn of(stored: Datum, upon: Upon) -> Self {
        let has = |name: &str| jsonb::text_field(stored, name).is_some();
        Self { upon, is_open: has("open"), runs: has("runs"), is_fail_fast: has("fail_fast") }
    }

    /// Returns the stored form of a flow that has been sealed. So the job does not wait for the seal if it is retried.
    pub fn sealed(stored: Datum) -> Option<Datum> {
        let Some(author) = Self::author(stored) else { return Some(stored) };
        Self { is_open: false, ..Self::of(stored, Upon::Completed) }.datum(&author)
    }
}

impl Options {
    /// Tells, once in a session, that a group has no effect in this queue.
    pub fn note_group(&self, queue: &Queue) {
        if self.group_key.is_some() && !queue.has_groups() {
            notice::group_without_limits(queue);
        }
    }

    pub fn set_group_key(&mut self, key: Option<Datum>) -> Result<()> {
        self.group_key = key.map(|key| checked_key("group_key", key)).transpose()?;
        Ok(())
    }

    /// Returns the hash by which memory knows the group. `None`: there is no group.
    pub fn group_hash(&self) -> Option<i64> {
        self.group_key.map(attempt::group_hash)
    }

    /// Sets the group's key to the value that a binding has found in an event. A binding cannot refuse an event, so a
    /// key that is too long is cut.
    pub fn set_group_of_event(&mut self, key: Option<&str>) {
        self.group_key = key.map(|key| text_datum(&key[..key.floor_char_boundary(MAX_KEY_BYTES)]));
    }

    pub fn set_task(&mut self, name: Option<Datum>) -> Result<()> {
        self.task = name.map(|name| checked_key("task", name)).transpose()?;
        Ok(())
    }

    pub fn set_start(&mut self, delay: Option<Interval>, run_at: Option<i64>, now: i64) -> Result<()> {
        self.run_at = match (delay, run_at) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("delay and run_at cannot be given together").hint("Give one of the two."));
            }
            (Some(delay), None) => in_future("delay", delay, now)?,
            (None, Some(run_at)) => run_time(run_at, now)?,
            (None, None) => None,
        };
        Ok(())
    }

    /// Sets by when the job must start, and for how long calls under its key put it off. Called after `set_start` and
    /// with the key.
    ///
    /// Errors: as `StartBy::new` and `Timing::new`; 22023 when the job would expire before it may start.
    pub fn set_timing(
        &mut self,
        start_by: Option<i64>,
        start_within: Option<Interval>,
        max_delay: Option<Interval>,
    ) -> Result<()> {
        let start_by = StartBy::new(start_by, start_within)?;
        start_by::check_after(start_by::of_held(start_by), self.run_at)?;
        self.timing = Timing::new(start_by, max_delay, self.unique.is_some())?.map(Rc::new);
        Ok(())
    }

    /// Returns by when the job must start. `None`: as its queue says.
    pub fn start_by(&self) -> Option<StartBy> {
        self.timing.as_ref()?.start_by
    }

    pub fn set_max_attempts(&mut self, max_attempts: Option<i32>) -> Result<()> {
        max_attempts.map_or(Ok(()), check_max_attempts)?;
        self.max_attempts = max_attempts;
        Ok(())
    }

    pub fn set_lease(&mut self, lease: Option<Interval>) -> Result<()> {
        if let Some(lease) = lease {
            lease_us(lease)?;
        }
        self.lease = lease;
        Ok(())
    }
}

/// Checks the number of attempts after which a job is dead.
///
/// Errors: 22023 unless it is between 1 and a million.
pub fn check_max_attempts(n: i32) -> Result<()> {
    if (1..=1_000_000).contains(&n) {
        return Ok(());
    }
    Err(Error::invalid("max_attempts must be between 1 and 1000000").detail(format!("It is {n}.")))
}

/// The longest lease, and the longest delay of a binding, in microseconds.
pub const TEN_YEARS: i64 = 3653 * 86_400_000_000;

/// Returns the length of a lease in microseconds.
///
/// Errors: 22023 unless it is between a millisecond and ten years.
pub fn lease_us(lease: Interval) -> Result<i64> {
    let us = lease.us();
    if (1_000..=TEN_YEARS).contains(&us) {
        return Ok(us);
    }
    Err(Error::invalid("lease must be between 1 millisecond and 10 years").detail(format!("It is {}.", lease.text())))
}

/// Returns what the end of the connection does to a claim.
///
/// Errors: 22023 unless the span is between 0 and 30 days.
pub fn disconnect(span: Interval) -> Result<Disconnect> {
    let us = span.us();
    if (0..=MAX_DISCONNECT_US).contains(&us) {
        return Ok(Disconnect::after(us));
    }
    Err(Error::invalid("disconnect must be between 0 and 30 days")
        .detail(format!("It is {}.", span.text()))
        .hint("NULL, the default, lets the jobs keep their leases when the connection ends."))
}

/// Returns the time at which a span that begins now ends; `None` if that is not in the future.
///
/// Errors: 22023 when it is negative or infinite.
pub fn in_future(name: &str, delay: Interval, now: i64) -> Result<Option<i64>> {
    let at = delay.after(now);
    let error = match at {
        _ if at < now => Error::invalid(format!("{name} cannot be negative")),
        _ if at > LAST_TIME => Error::invalid(format!("{name} must be finite")),
        _ => return Ok((at > now).then_some(at)),
    };
    Err(error.detail(format!("It is {}.", delay.text())).hint(format!("For instance {name} => '30 minutes'.")))
}

/// As `in_future`, for a delay that another role has given. A delay out of range is set to the nearest limit.
pub fn in_some_future(delay: Interval, now: i64) -> Option<i64> {
    let at = delay.after_or(now, LAST_TIME).min(LAST_TIME);
    (at > now).then_some(at)
}

/// Returns the time at which a job is to run; `None` if it is not in the future.
///
/// Errors: 22023 when it is infinite.
pub fn run_time(run_at: i64, now: i64) -> Result<Option<i64>> {
    if run_at == i64::MAX || run_at == i64::MIN {
        return Err(Error::invalid("run_at must be finite").hint("Leave run_at out to run the job immediately."));
    }
    Ok((run_at > now).then_some(run_at))
}

/// The predecessors of a job.
pub struct After {
    pub upon: Upon,
    /// The predecessors, each once.
    pub jobs: Vec<i64>,
    /// All predecessors that were named, as `bigint[]`.
    pub named: Datum,
    /// The mark of the announcement of `jobs`, if all of them lived when they were looked at afterwards.
    pub mark: Option<u64>,
}

impl After {
    /// Returns these jobs as predecessors, each once. `None`: there are none.
    ///
    /// Errors: 22023 when there are too many.
    pub fn of_jobs(mut jobs: Vec<i64>, upon: Upon) -> Result<Option<Rc<Self>>> {
        jobs.sort_unstable();
        jobs.dedup();
        if jobs.len() > Self::MAX_PREDECESSORS {
            return Err(Self::too_many(jobs.len()));
        }
        let named = datum::bigint_array(&jobs);
        Ok((!jobs.is_empty()).then(|| Rc::new(Self { upon, jobs, named, mark: None })))
    }

    /// Returns the error for `upon` without `after`.
    pub fn missing() -> Error {
        Error::invalid("upon needs after")
            .detail("It says which end of other jobs this one waits for, and this one waits for none.")
            .hint("Name the jobs, for instance after => ARRAY[4711], or leave upon out.")
    }

    fn too_many(count: usize) -> Error {
        Error::invalid(format!("after must name at most {} jobs", Self::MAX_PREDECESSORS))
            .detail(format!("It names {count}."))
            .hint("Make them members of a flow, and be after that.")
    }

    /// The most predecessors of a job.
    const MAX_PREDECESSORS: usize = 100;

    /// Reads the arguments of a call. `None`: the call names no job. `has_time`: the call says when the job is to run.
    ///
    /// Errors: 22023 when there are too many, one is not the id of a job, `upon` is unknown or lacks a time or `jobs`;
    /// 22004 when one is null.
    pub fn new(jobs: Option<Vec<Option<i64>>>, upon: Option<&str>, has_time: bool) -> Result<Option<Rc<Self>>> {
        let upon = upon.unwrap_or(Upon::Completed.name());
        let Some(upon) = Upon::parse(upon) else {
            return Err(
                Error::invalid(format!("invalid value for upon: \"{upon}\"")).hint(format!("Use {}.", Upon::NAMES))
            );
        };
        if jobs.is_none() && upon != Upon::Completed {
            return Err(Self::missing());
        }
        let Some(named) = jobs.filter(|jobs| !jobs.is_empty()) else { return Ok(None) };
        if upon == Upon::Overdue && !has_time {
            return Err(Error::invalid("upon => 'overdue' needs delay or run_at")
                .hint("Say by when the jobs must have ended so that this one does not run."));
        }
        if named.len() > Self::MAX_PREDECESSORS {
            return Err(Self::too_many(named.len()));
        }
        let mut jobs = memory::list(named.len());
        for (n, job_id) in named.into_iter().enumerate() {
            let job_id = ids::job_id(job_id.ok_or_else(|| Error::null(&format!("after[{}]", n + 1)))?)?;
            if !jobs.contains(&job_id) {
                jobs.push(job_id);
            }
        }
        let named = datum::bigint_array(&jobs);
        Ok(Some(Rc::new(Self { upon, jobs, named, mark: None })))
    }
}

/// What to do about a live job with the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDuplicate {
    /// Do nothing.
    #[default]
    Skip,
    /// Give new contents to a waiting job. A running job runs once more afterwards.
    Renew,
    /// Raise an error.
    Error,
}

impl OnDuplicate {
    /// Returns the value of this name.
    ///
    /// Errors: 22023 when there is none.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "skip" => Ok(Self::Skip),
            "replace" | "rerun" => Ok(Self::Renew),
            "error" => Ok(Self::Error),
            other => Err(Error::invalid(format!("invalid value for on_duplicate: \"{other}\""))
                .hint("Use 'skip', 'replace', 'rerun' or 'error'.")),
        }
    }
}

/// The options about a job's key.
#[derive(Clone, Copy)]
pub struct Unique {
    pub key: Datum,
    pub on_duplicate: OnDuplicate,
    pub version: Option<i64>,
    /// The earliest time at which the key is free again.
    pub taken_until: Option<i64>,
}

impl Unique {
    /// Reads the arguments of a call. `None`: the call has no key.
    ///
    /// Errors: 22023 when the key is too long, unique_for negative, or one of the others is given without a key.
    pub fn new(
        key: Option<Datum>,
        on_duplicate: OnDuplicate,
        version: Option<i64>,
        unique_for: Option<Interval>,
        now: i64,
    ) -> Result<Option<Self>> {
        let Some(key) = key else {
            let given = [
                ("version", version.is_some()),
                ("unique_for", unique_for.is_some()),
                ("on_duplicate", on_duplicate != OnDuplicate::Skip),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => Err(Error::invalid(format!("{name} needs a unique_key"))
                    .detail(
                        "It says what becomes of a job that meets another one under its key, and this one has none.",
                    )
                    .hint("Give the job a unique_key.")),
                None => Ok(None),
            };
        };
        let key = checked_key("unique_key", key)?;
        let taken_until = match unique_for {
            Some(span) => in_future("unique_for", span, now)?,
            None => None,
        };
        Ok(Some(Self { key, on_duplicate, version, taken_until }))
    }

    /// The key.
    pub fn key(&self) -> Datum {
        self.key
    }

    /// The version.
    pub fn version(&self) -> Option<i64> {
        self.version
    }
}
