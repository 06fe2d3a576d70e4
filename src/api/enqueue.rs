//! `queue.enqueue`, `enqueue_many`, `enqueue_batch`: insert attempts. The commit makes them visible to workers.
//!
//! Not responsible for options and their limits (`job::options`), nor for inserting (`job::enqueue`).

use std::rc::Rc;

use pg_queue_core::advice;
use pg_queue_core::after::Upon;
use pgrx::pg_sys::Datum;

use crate::api::command::Command;
use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::{self, Queue};
use crate::catalog::run_as;
use crate::error::{self, Error, Result};
use crate::job::enqueue::{self, By};
use crate::job::given::{self, Given, Positions};
use crate::job::options::Options;
use crate::pg::function::Call;
use crate::pg::jsonb::{self, Value};
use crate::pg::{memory, stored_json, time};
use crate::worker::absence;

sql_function!(pg_queue_enqueue, pg_finfo_pg_queue_enqueue => enqueue);
sql_function!(pg_queue_enqueue_many, pg_finfo_pg_queue_enqueue_many => enqueue_many);
sql_function!(pg_queue_enqueue_batch, pg_finfo_pg_queue_enqueue_batch => enqueue_batch);

pub fn target(call: &Call) -> Result<Rc<Queue>> {
    api::writable("enqueue")?;
    let name = call.need_str(args::enqueue::QUEUE_NAME)?;
    let queue = queue::by_name(&name)?;
    permission::check(&queue, Privilege::Produce)?;
    Ok(queue)
}

/// `queue.enqueue`: enqueues one job and returns its id.
fn enqueue(call: &Call) -> Result<Option<Datum>> {
    let queue = target(call)?;
    run_as::refuse_data(&queue)?;
    let now = time::now_us();
    let options = Given::of_call(call, &const { Positions::of(args::enqueue::NAMES) })?.check(Some(&queue), now)?;
    let payload = call.json(args::enqueue::PAYLOAD)?.unwrap_or_else(jsonb::empty_object);
    warn_without_worker([&options]);
    let made = enqueue::produce(&queue, &[(payload, options)], now, By::Producer)?;
    Ok(made.ids.first().map(|&job_id| job_id.into()))
}

/// `queue.enqueue_many`: enqueues one job for each payload, all with the same options.
fn enqueue_many(call: &Call) -> Result<Option<Datum>> {
    let queue = target(call)?;
    run_as::refuse_data(&queue)?;
    let now = time::now_us();
    let options =
        Given::of_call(call, &const { Positions::of(args::enqueue_many::NAMES) })?.check(Some(&queue), now)?;
    warn_without_worker([&options]);
    let rows = call.rows()?;
    let payloads = call.need(args::enqueue_many::PAYLOADS)?;
    let mut jobs = memory::list(payloads.len());
    for (n, payload) in payloads.into_iter().enumerate() {
        let payload = payload.ok_or_else(|| Error::null(&format!("payloads[{}]", n + 1)))?;
        stored_json::check(payload, "a payload")?;
        jobs.push((payload, options.clone()));
    }
    for job_id in enqueue::produce(&queue, &jobs, now, By::Producer)?.ids {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// `queue.enqueue_batch`: enqueues one job for each object of a JSON array.
fn enqueue_batch(call: &Call) -> Result<Option<Datum>> {
    let queue = target(call)?;
    let now = time::now_us();
    let rows = call.rows()?;
    let jobs = parse_batch(
        call.required(args::enqueue_batch::JOBS, call.json_list(args::enqueue_batch::JOBS)?)?,
        &queue,
        now,
    )?;
    warn_without_worker(jobs.iter().map(|(_, options)| options));
    for job_id in enqueue::produce(&queue, &jobs, now, By::Producer)?.ids {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// Warns, once in a session, if the jobs need the background worker and none serves this database.
pub fn warn_without_worker<'a>(options: impl IntoIterator<Item = &'a Options>) {
    if options.into_iter().any(|options| options.run_at.is_some() || options.after.is_some()) {
        absence::warn();
    }
}

/// Returns the payload and the options of each job of a batch.
///
/// Errors: 22023 names the job and the field.
pub fn parse_batch(jobs: Datum, queue: &Queue, now: i64) -> Result<Vec<(Datum, Options)>> {
    let Some(elements) = jsonb::elements(jobs) else {
        return Err(Error::invalid("jobs must be a JSON array of objects")
            .hint("For instance: '[{\"payload\": {\"to\": 7}, \"priority\": 1}]'."));
    };
    let parse = |(index, element)| Job { index, ..Job::default() }.parse(element, queue, now);
    memory::try_collect(elements.iter().enumerate().map(parse))
}

/// Returns the payload and the options that the fields of a flow's task give.
pub fn parse_fields(fields: &[(String, Value)], queue: &Queue, now: i64) -> Result<(Datum, Options)> {
    let mut job = Job { is_task: true, ..Job::default() };
    fields.iter().try_for_each(|(name, value)| job.field(name, value))?;
    let upon = job.given.upon.take();
    let named = match upon.as_deref() {
        None => Some(Upon::default()),
        Some(name) => Upon::parse(name).filter(|_| job.given.after.is_none() && job.given.flow.is_none()),
    };
    let (payload, options) = job.finish(queue, now)?;
    let has_time = options.run_at.is_some();
    match named {
        Some(Upon::Overdue) if !has_time => Err(Error::invalid("upon => 'overdue' needs delay or run_at")),
        Some(upon_of_task) => Ok((payload, Options { upon_of_task, ..options })),
        None => Err(Error::invalid(format!("invalid value for upon: \"{}\"", upon.unwrap_or_default()))
            .hint(format!("Use {}.", Upon::NAMES))),
    }
}

/// One object of a batch, or one task of a flow, while it is read. Errors name the field and the object's index,
/// counted from 0 as in JSON.
#[derive(Default)]
struct Job {
    index: usize,
    given: Given<'static>,
    payload: Option<Datum>,
    /// The text of a command. If it is there, the job is a command, and `payload` holds the command's other parts.
    command: Option<String>,
    /// True for a task of a flow, false for a job of a batch.
    is_task: bool,
}

impl Job {
    fn parse(mut self, element: &Value, queue: &Queue, now: i64) -> Result<(Datum, Options)> {
        let at = self.index;
        let Some(fields) = element.fields() else {
            return Err(Error::invalid(format!("jobs[{at}] must be an object"))
                .hint("For instance: '[{\"payload\": {\"to\": 7}, \"priority\": 1}]'."));
        };
        let read = fields.iter().try_for_each(|(name, value)| self.field(name, value));
        read.and_then(|()| self.finish(queue, now))
            .map_err(|e| Error { message: format!("jobs[{at}]: {}", e.message), ..e })
    }

    fn finish(self, queue: &Queue, now: i64) -> Result<(Datum, Options)> {
        let mut options = self.given.check(Some(queue), now)?;
        let payload = match self.command {
            Some(text) => {
                options.run_as = run_as::of_command(queue)?;
                Command::beside(text, self.payload)?.payload()?
            }
            None => {
                run_as::refuse_data(queue)?;
                self.payload.unwrap_or_else(jsonb::empty_object)
            }
        };
        Ok((payload, options))
    }

    fn field(&mut self, name: &str, value: &Value) -> Result<()> {
        match name {
            "payload" => {
                let payload = value.datum();
                stored_json::check(payload, name)?;
                self.payload = Some(payload);
            }
            "command" if value.is_null() => {}
            "command" => self.command = Some(given::text_of_field(value, name)?),
            _ if self.given.set(name, value)? => {}
            _ => return Err(self.unknown_field(name)),
        }
        Ok(())
    }

    fn unknown_field(&self, name: &str) -> Error {
        let (what, more) = if self.is_task { ("task", "queue, ") } else { ("job", "") };
        /// The most bytes of a name that the message shows.
        const MAX_SHOWN: usize = 100;
        let name = &name[..name.floor_char_boundary(MAX_SHOWN.min(name.len()))];
        let error = Error::new(error::INVALID, format!("unknown field \"{name}\""));
        let known = Given::NAMES.iter().chain(&["payload", "command"]).copied();
        let meant = advice::nearest(name, known);
        let meant = meant.map_or_else(String::new, |meant| format!("If you mean \"{meant}\", write it so. "));
        error.hint(format!("{meant}A {what} may have: {more}payload, {}, command.", Given::NAMES.join(", ")))
    }
}
