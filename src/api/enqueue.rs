//! `queue.enqueue`, `enqueue_many`, `enqueue_batch`: append attempts; the commit makes them known.

use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::api::unique::{self, OnDuplicate, Unique};
use crate::api::{self, in_future, lease_us, run_time};
use crate::call::{Call, Interval, sql_function, text_datum};
use crate::error::{self, Error, Result};
use crate::instance::{self, Catalog};
use crate::jsonb::{self, Value};
use crate::log::attempt::{self, New};
use crate::permission::{self, Privilege};
use crate::queue::{self, Queue};
use crate::segment::{self, Target};
use crate::transaction::{self, Step};
use crate::{ids, limits, sys};

sql_function!(pg_queue_enqueue, pg_finfo_pg_queue_enqueue => enqueue);
sql_function!(pg_queue_enqueue_many, pg_finfo_pg_queue_enqueue_many => enqueue_many);
sql_function!(pg_queue_enqueue_batch, pg_finfo_pg_queue_enqueue_batch => enqueue_batch);

/// What a producer says beside the payload.
#[derive(Clone, Copy, Default)]
pub struct Options {
    pub priority: i32,
    pub run_at: Option<i64>,
    pub max_attempts: Option<i32>,
    pub lease: Option<Interval>,
    pub headers: Option<Datum>,
    pub unique: Option<Unique>,
    pub group_key: Option<Datum>,
    /// That of a stage; `None`: where jobs come in.
    pub lane: Option<i32>,
}

impl Options {
    /// From the arguments of `enqueue` and `enqueue_many`, which have them at the same places.
    fn of(call: &Call, queue: &Queue, now: i64) -> Result<Self> {
        let mut options = Self {
            priority: call.i32(2).unwrap_or(0),
            headers: call.datum(13),
            group_key: call.datum(9),
            lane: call.str(10).map(|stage| queue.stage(&stage)).transpose()?,
            ..Self::default()
        };
        options.set_start(call.interval(3), call.timestamp(4), now)?;
        options.set_max_attempts(call.i32(11))?;
        options.set_lease(call.interval(12))?;
        let on_duplicate = call.str(6).as_deref().map_or(Ok(OnDuplicate::Skip), OnDuplicate::parse)?;
        options.unique = Unique::new(call.datum(5), on_duplicate, call.timestamp(7), call.interval(8), now)?;
        Ok(options)
    }

    fn set_start(&mut self, delay: Option<Interval>, run_at: Option<i64>, now: i64) -> Result<()> {
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

    pub fn set_max_attempts(&mut self, max_attempts: Option<i32>) -> Result<()> {
        if let Some(n) = max_attempts
            && !(1..=1_000_000).contains(&n)
        {
            return Err(Error::invalid("max_attempts must be between 1 and 1000000").detail(format!("It is {n}.")));
        }
        self.max_attempts = max_attempts;
        Ok(())
    }

    fn set_lease(&mut self, lease: Option<Interval>) -> Result<()> {
        if let Some(lease) = lease {
            lease_us(lease)?;
        }
        self.lease = lease;
        Ok(())
    }
}

/// Does what calls come to; tells the jobs' ids in order.
fn produce(catalog: &Rc<Catalog>, queue: &Queue, jobs: &[(Datum, Options)], now: i64) -> Result<Vec<i64>> {
    let insert = |jobs: &[(Datum, Options)]| insert(catalog, queue, jobs, now);
    if jobs.iter().all(|(_, options)| options.unique.is_none()) {
        return insert(jobs);
    }
    unique::produce(catalog, queue, jobs, now, insert)
}

/// Whether a job is due much later than others, and so goes elsewhere: then when.
fn far(catalog: &Catalog, options: &Options) -> Option<i64> {
    options.run_at.filter(|&at| segment::is_far(catalog, at))
}

/// The first attempt of a job.
fn first_attempt(queue: &Queue, target: &Target, count: i64, payload: Datum, options: &Options, now: i64) -> New {
    let node = ids::node();
    New {
        id: id::attempt(node, count, target.home.segment),
        job_id: id::job(node, count),
        enqueued_at: now,
        lane: options.lane.unwrap_or_else(|| queue.entry()),
        priority: options.priority,
        attempt: 1,
        max_attempts: options.max_attempts,
        run_at: options.run_at,
        payload_of: None,
        payload: Some(payload),
        lease: options.lease,
        headers: options.headers,
        group_hash: options.group_key.map_or(0, attempt::group_hash),
        group_key: options.group_key,
        is_parked: queue.limits.is_some_and(|limits| limits.is_strict),
        unique_key: options.unique.map(|unique| unique.key()),
        version: options.unique.and_then(|unique| unique.version()),
        last_error: None,
        progress: None,
        asked: None,
    }
}

/// Tells who wants to be told of the queue's new jobs.
fn announce(catalog: &Catalog, queue: &Queue) {
    if queue.notify {
        transaction::remember(catalog.number, Step::Notify { lane: queue.lane });
    }
}

/// Inserts one job; tells its id. As `insert`, without its lists.
fn insert_one(catalog: &Catalog, queue: &Queue, payload: Datum, options: &Options, now: i64) -> Result<i64> {
    if let Some(most) = queue.max_waiting {
        limits::has_room(catalog, queue, most, 1)?;
    }
    let mut count = 0;
    ids::take(catalog, 1, |taken| count = taken)?;
    let target = Target::open(catalog, far(catalog, options));
    let new = first_attempt(queue, &target, count, payload, options, now);
    attempt::insert(catalog, &target, &[new])?;
    announce(catalog, queue);
    Ok(new.job_id)
}

/// Inserts one attempt per payload and options; tells the jobs' ids in order.
pub fn insert(catalog: &Catalog, queue: &Queue, jobs: &[(Datum, Options)], now: i64) -> Result<Vec<i64>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(most) = queue.max_waiting {
        limits::has_room(catalog, queue, most, jobs.len())?;
    }
    let mut counts = Vec::with_capacity(jobs.len());
    ids::take(catalog, jobs.len(), |count| counts.push(count))?;
    let far = |job: &(Datum, Options)| far(catalog, &job.1);
    for wants_far in [false, true] {
        let mut chosen = jobs.iter().zip(&counts).filter(|(job, _)| far(job).is_some() == wants_far).peekable();
        let Some((first, _)) = chosen.peek() else { continue };
        let target = Target::open(catalog, far(first));
        let attempts: Vec<New> = chosen
            .map(|((payload, options), &count)| first_attempt(queue, &target, count, *payload, options, now))
            .collect();
        attempt::insert(catalog, &target, &attempts)?;
    }
    announce(catalog, queue);
    let node = ids::node();
    Ok(counts.into_iter().map(|count| id::job(node, count)).collect())
}

fn target(call: &Call) -> Result<(Rc<Catalog>, Rc<Queue>)> {
    api::writable("enqueue")?;
    let name = call.required("queue_name", call.str(0))?;
    let catalog = instance::current()?;
    let queue = queue::by_name(&catalog, &name)?;
    permission::check(&catalog, &queue, Privilege::Produce)?;
    Ok((catalog, queue))
}

/// `queue.enqueue`: one job, its id.
fn enqueue(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    let now = sys::now_us();
    let options = Options::of(call, &queue, now)?;
    let payload = call.datum(1).unwrap_or_else(jsonb::empty_object);
    if options.unique.is_some() {
        let job_ids = produce(&catalog, &queue, &[(payload, options)], now)?;
        return Ok(job_ids.first().map(|&job_id| job_id.into()));
    }
    insert_one(&catalog, &queue, payload, &options, now).map(|job_id| Some(job_id.into()))
}

/// `queue.enqueue_many`: a job per payload, all with the same options.
fn enqueue_many(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    let now = sys::now_us();
    let options = Options::of(call, &queue, now)?;
    let rows = call.rows()?;
    let payloads = call.required("payloads", call.jsonb_array(1))?;
    let jobs = payloads
        .into_iter()
        .enumerate()
        .map(|(n, payload)| Ok((payload.ok_or_else(|| Error::null(&format!("payloads[{}]", n + 1)))?, options)))
        .collect::<Result<Vec<_>>>()?;
    for job_id in produce(&catalog, &queue, &jobs, now)? {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// `queue.enqueue_batch`: a job per object of a JSON array.
fn enqueue_batch(call: &Call) -> Result<Option<Datum>> {
    let (catalog, queue) = target(call)?;
    let now = sys::now_us();
    let rows = call.rows()?;
    let jobs = call.required("jobs", call.datum(1))?;
    let Some(elements) = jsonb::elements(jobs) else {
        return Err(Error::invalid("jobs must be a JSON array of objects")
            .hint("For instance: '[{\"payload\": {\"to\": 7}, \"priority\": 1}]'."));
    };
    let mut parsed = Vec::with_capacity(elements.len());
    for (n, element) in elements.iter().enumerate() {
        let job = Job { index: n, ..Job::default() };
        parsed.push(job.parse(element, &queue, now)?);
    }
    for job_id in produce(&catalog, &queue, &parsed, now)? {
        rows.add(&mut [job_id.into()], &mut [false])?;
    }
    Ok(None)
}

/// One object of a batch while it is read; errors name its index, from 0 as in JSON, and the field.
#[derive(Default)]
struct Job {
    index: usize,
    options: Options,
    payload: Option<Datum>,
    delay: Option<Interval>,
    run_at: Option<i64>,
    unique_key: Option<Datum>,
    on_duplicate: OnDuplicate,
    version: Option<i64>,
    unique_for: Option<Interval>,
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
        let wrap = |e: Error| Error { message: format!("jobs[{at}]: {}", e.message), ..e };
        self.options.set_start(self.delay, self.run_at, now).map_err(wrap)?;
        let unique = Unique::new(self.unique_key, self.on_duplicate, self.version, self.unique_for, now);
        self.options.unique = unique.map_err(wrap)?;
        Ok((self.payload.unwrap_or_else(jsonb::empty_object), self.options))
    }

    fn field(&mut self, name: &str, value: &Value, queue: &Queue) -> Result<()> {
        let wrong = |wanted: &str| Error::invalid(format!("field \"{name}\" must be {wanted}"));
        if name == "payload" {
            self.payload = Some(value.datum());
            return Ok(());
        }
        if value.is_null() {
            return match name {
                "priority" | "delay" | "run_at" | "unique_key" | "on_duplicate" | "version" | "unique_for"
                | "group_key" | "stage" | "max_attempts" | "lease" | "headers" => Ok(()),
                _ => Err(unknown_field(name)),
            };
        }
        let int = || value.as_i32().ok_or_else(|| wrong("an integer"));
        let interval = || {
            let text = value.as_str().ok_or_else(|| wrong("an interval, as a string"))?;
            jsonb::interval(&text).ok_or_else(|| wrong("an interval").detail(format!("It is \"{text}\".")))
        };
        let timestamp = || {
            let text = value.as_str().ok_or_else(|| wrong("a timestamp, as a string"))?;
            jsonb::timestamp(&text).ok_or_else(|| wrong("a timestamp").detail(format!("It is \"{text}\".")))
        };
        let text = || value.as_str().ok_or_else(|| wrong("a string"));
        match name {
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
            "group_key" => self.options.group_key = Some(text_datum(&text()?)),
            "stage" => self.options.lane = Some(queue.stage(&text()?)?),
            _ => return Err(unknown_field(name)),
        }
        Ok(())
    }
}

fn unknown_field(name: &str) -> Error {
    Error::new(error::INVALID, format!("unknown field \"{name}\"")).hint(
        "A job may have: payload, priority, delay, run_at, unique_key, on_duplicate, version, unique_for, group_key, \
         stage, max_attempts, lease, headers.",
    )
}
