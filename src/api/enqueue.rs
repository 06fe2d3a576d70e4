//! `queue.enqueue`, `enqueue_many`, `enqueue_batch`: append attempts; the commit makes them known.
//!
//! Not here: options and their limits (`job::options`), and inserting (`job::enqueue`).

use std::rc::Rc;

use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::command::Command;
use crate::api::{self, sql_function};
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Queue};
use crate::catalog::{self, Catalog, run_as};
use crate::error::{self, Error, Result};
use crate::job::enqueue;
use crate::job::options::{After, OnDuplicate, Options, Unique};
use crate::pg::datum::{Interval, text_datum};
use crate::pg::function::Call;
use crate::pg::jsonb::{self, Value};
use crate::pg::time;

sql_function!(pg_queue_enqueue, pg_finfo_pg_queue_enqueue => enqueue);
sql_function!(pg_queue_enqueue_many, pg_finfo_pg_queue_enqueue_many => enqueue_many);
sql_function!(pg_queue_enqueue_batch, pg_finfo_pg_queue_enqueue_batch => enqueue_batch);

pub fn target(call: &Call) -> Result<(Rc<Catalog>, Rc<Queue>)> {
    api::writable("enqueue")?;
    let name = call.required("queue_name", call.str(0))?;
    let catalog = catalog::current()?;
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Produce)?;
    Ok((catalog, queue))
}

/// `queue.enqueue`: enqueues one job and returns its id.
fn enqueue(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    run_as::refuse_data(&queue)?;
    let now = time::now_us();
    let options = Options::of(call, 2, &queue, now, false)?;
    let payload = call.json(1, "payload")?.unwrap_or_else(jsonb::empty_object);
    if options.unique.is_some() {
        let job_ids = enqueue::produce(&catalog, &queue, &[(payload, options)], now)?;
        return Ok(job_ids.first().map(|&job_id| job_id.into()));
    }
    enqueue::insert_one(&catalog, &queue, payload, &options, now).map(|job_id| Some(job_id.into()))
}

/// `queue.enqueue_many`: enqueues a job per payload, all with the same options.
fn enqueue_many(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    run_as::refuse_data(&queue)?;
    let now = time::now_us();
    let options = Options::of(call, 2, &queue, now, false)?;
    let rows = call.rows()?;
    let payloads = call.required("payloads", call.jsonb_array(1))?;
    let mut jobs = Vec::with_capacity(payloads.len());
    for (n, payload) in payloads.into_iter().enumerate() {
        let payload = payload.ok_or_else(|| Error::null(&format!("payloads[{}]", n + 1)))?;
        jsonb::check_depth(payload, "a payload")?;
        jobs.push((payload, options.clone()));
    }
    for job_id in enqueue::produce(&catalog, &queue, &jobs, now)? {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// `queue.enqueue_batch`: enqueues a job per object of a JSON array.
fn enqueue_batch(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    let now = time::now_us();
    let rows = call.rows()?;
    let jobs = call.required("jobs", call.json(1, "jobs")?)?;
    let Some(elements) = jsonb::elements(jobs) else {
        return Err(Error::invalid("jobs must be a JSON array of objects")
            .hint("For instance: '[{\"payload\": {\"to\": 7}, \"priority\": 1}]'."));
    };
    let mut parsed = Vec::with_capacity(elements.len());
    for (n, element) in elements.iter().enumerate() {
        let job = Job { index: n, ..Job::default() };
        parsed.push(job.parse(element, &queue, now)?);
    }
    for job_id in enqueue::produce(&catalog, &queue, &parsed, now)? {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// The payload and the options in the fields of a task.
pub fn parse_fields(fields: &[(String, Value)], queue: &Queue, now: i64) -> Result<(Datum, Options)> {
    let mut job = Job { is_task: true, ..Job::default() };
    fields.iter().try_for_each(|(name, value)| job.field(name, value, queue))?;
    let upon = job.upon.take().unwrap_or_default();
    let named = Upon::parse(&upon).filter(|_| job.after.is_none() && job.options.flow.is_none());
    let (payload, options) = job.finish(queue, now)?;
    let has_time = options.run_at.is_some();
    match named {
        Some(Upon::Overdue) if !has_time => Err(Error::invalid("upon => 'overdue' needs delay or run_at")),
        None if !upon.is_empty() => Err(Error::invalid(format!("invalid value for upon: \"{upon}\""))
            .hint("Use 'completed', 'failed', 'ended' or 'overdue'.")),
        named => Ok((payload, Options { upon_of_task: named.unwrap_or_default(), ..options })),
    }
}

/// How much of a wrong value is shown.
const MAX_SHOWN_BYTES: usize = 100;

/// One object of a batch while it is read. Errors name its index, counted from 0 as in JSON, and the field.
#[derive(Default)]
struct Job {
    index: usize,
    options: Options,
    payload: Option<Datum>,
    /// Makes the job a command; the payload holds what belongs to it.
    command: Option<String>,
    delay: Option<Interval>,
    run_at: Option<i64>,
    unique_key: Option<Datum>,
    on_duplicate: OnDuplicate,
    version: Option<i64>,
    unique_for: Option<Interval>,
    after: Option<Vec<Option<i64>>>,
    upon: Option<String>,
    /// Whether it is a task of a flow.
    is_task: bool,
}

impl Job {
    fn parse(mut self, element: &Value, queue: &Queue, now: i64) -> Result<(Datum, Options)> {
        let Some(fields) = element.fields() else {
            return Err(Error::invalid(format!("jobs[{}] must be an object", self.index)));
        };
        for (name, value) in &fields {
            self.field(name, value, queue)
                .map_err(|e| Error { message: format!("jobs[{}]: {}", self.index, e.message), ..e })?;
        }
        let at = self.index;
        self.finish(queue, now).map_err(|e: Error| Error { message: format!("jobs[{at}]: {}", e.message), ..e })
    }

    fn finish(mut self, queue: &Queue, now: i64) -> Result<(Datum, Options)> {
        self.options.set_start(self.delay, self.run_at, now)?;
        self.options.unique = Unique::new(self.unique_key, self.on_duplicate, self.version, self.unique_for, now)?;
        let has_time = self.delay.is_some() || self.run_at.is_some();
        self.options.note_group(queue);
        self.options.after = After::new(self.after, self.upon.as_deref(), has_time)?;
        let payload = match self.command {
            Some(text) => {
                self.options.run_as = run_as::of_command(queue)?;
                Command::beside(text, self.payload)?.payload()?
            }
            None => {
                run_as::refuse_data(queue)?;
                self.payload.unwrap_or_else(jsonb::empty_object)
            }
        };
        Ok((payload, self.options))
    }

    fn field(&mut self, name: &str, value: &Value, queue: &Queue) -> Result<()> {
        let wrong = |wanted: &str| {
            Error::invalid(format!("field \"{name}\" must be {wanted}"))
                .detail(format!("It is {}.", value.brief(MAX_SHOWN_BYTES)))
        };
        if name == "payload" {
            self.payload = Some(value.datum());
            return Ok(());
        }
        if value.is_null() {
            return match name {
                "priority" | "delay" | "run_at" | "unique_key" | "on_duplicate" | "version" | "unique_for"
                | "group_key" | "stage" | "max_attempts" | "lease" | "headers" | "after" | "upon" | "flow" | "task"
                | "command" => Ok(()),
                _ => Err(self.unknown_field(name)),
            };
        }
        let int = || value.as_i32().ok_or_else(|| wrong("an integer"));
        let interval = || {
            let read = value.as_str().and_then(|text| jsonb::interval(&text));
            read.ok_or_else(|| {
                wrong("an interval, as a string").hint(format!("For instance: \"{name}\": \"30 seconds\"."))
            })
        };
        let timestamp = || {
            let read = value.as_str().and_then(|text| jsonb::timestamp(&text));
            read.ok_or_else(|| {
                wrong("a timestamp, as a string").hint(format!("For instance: \"{name}\": \"2030-01-31 12:00:00+00\"."))
            })
        };
        let text = || value.as_str().ok_or_else(|| wrong("a string"));
        match name {
            "command" => self.command = Some(text()?),
            "priority" => self.options.priority = int()?,
            "delay" => self.delay = Some(interval()?),
            "run_at" => self.run_at = Some(timestamp()?),
            "max_attempts" => self.options.set_max_attempts(Some(int()?))?,
            "lease" => self.options.set_lease(Some(interval()?))?,
            "headers" => self.options.headers = Some(value.datum()),
            "unique_key" => self.unique_key = Some(text_datum(&text()?)),
            "on_duplicate" => self.on_duplicate = OnDuplicate::parse(&text()?)?,
            "version" => self.version = Some(timestamp()?),
            "unique_for" => self.unique_for = Some(interval()?),
            "group_key" => self.options.set_group_key(Some(text_datum(&text()?)))?,
            "stage" => self.options.lane = Some(queue.stage(&text()?)?),
            "after" => {
                let of = |value: &Value| if value.is_null() { Some(None) } else { value.as_i64().map(Some) };
                let ids = jsonb::elements(value.datum()).and_then(|ids| ids.iter().map(of).collect());
                self.after = Some(ids.ok_or_else(|| wrong("an array of job ids"))?);
            }
            "upon" => self.upon = Some(text()?),
            "flow" => self.options.flow = Some(value.as_i64().ok_or_else(|| wrong("a job id"))?),
            "task" => self.options.set_task(Some(text_datum(&text()?)))?,
            _ => return Err(self.unknown_field(name)),
        }
        Ok(())
    }

    fn unknown_field(&self, name: &str) -> Error {
        let (what, more) = if self.is_task { ("task", "queue, ") } else { ("job", "") };
        Error::new(error::INVALID, format!("unknown field \"{name}\"")).hint(format!(
            "A {what} may have: {more}payload, priority, delay, run_at, unique_key, on_duplicate, version, unique_for, group_key, \
             stage, max_attempts, lease, headers, after, upon, flow, task, command."
        ))
    }
}
