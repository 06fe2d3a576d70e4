//! Jobs and events of databases that have no pg_queue. They arrive by logical replication (`bridge/sql/arrive.sql`),
//! each with the id and the time that its own database has given it.
//!
//! Not responsible for what else arrives, nor for what becomes of a refused row (`bridge/sql`).
//!
//! Invariant: an id of another server is that of at most one job here, unless its source has given it twice by hand.
//! Its node number is never this server's. See docs/decisions/bridge-ids.md.

use pg_queue_core::id::{self, Kind};
use pgrx::pg_sys::Datum;

use crate::api::flow::{Flow, Task};
use crate::api::{self, enqueue, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::Queue;
use crate::catalog::{ids, run_as, topic};
use crate::error::{self, Error, Result};
use crate::job::enqueue::{By, produce};
use crate::job::given::{self, Given};
use crate::job::options::Options;
use crate::job::publish::{self, Event};
use crate::job::{complete, find};
use crate::pg::function::{Call, VOID};
use crate::pg::jsonb::{self, Value};
use crate::pg::{memory, role, routine, session, stored_json};

sql_function!(pg_queue_bridge_is_streamed, pg_finfo_pg_queue_bridge_is_streamed => is_streamed);
sql_function!(pg_queue_bridge_enqueue, pg_finfo_pg_queue_bridge_enqueue => enqueue);
sql_function!(pg_queue_bridge_enqueue_new, pg_finfo_pg_queue_bridge_enqueue_new => enqueue_new);
sql_function!(pg_queue_bridge_carry_out, pg_finfo_pg_queue_bridge_carry_out => carry_out);
sql_function!(pg_queue_bridge_publish, pg_finfo_pg_queue_bridge_publish => publish);
sql_function!(pg_queue_bridge_complete_waiting, pg_finfo_pg_queue_bridge_complete_waiting => complete_waiting);

/// `queue_bridge.is_streamed(subscription, relation)`: true if the subscription has copied this table and streams its
/// changes.
fn is_streamed(call: &Call) -> Result<Option<Datum>> {
    let subscription = call.need(args::bridge_is_streamed::SUBSCRIPTION)?;
    let table = call.need(args::bridge_is_streamed::RELATION)?;
    Ok(Some(session::is_streamed(subscription, table).into()))
}

/// `queue_bridge.enqueue(queue_name, ids, made_at, body, options, form, passed)`: returns the job of each id. NULL: the
/// same job, with the same time, has arrived before. `passed`: ids that have arrived before and may have made no job.
/// NULL: nothing can have arrived before.
fn enqueue(call: &Call) -> Result<Option<Datum>> {
    let queue = enqueue::target(call)?;
    let rows = call.rows()?;
    let made_at = call.need(args::bridge_enqueue::MADE_AT)?;
    let ids = call.need(args::bridge_enqueue::IDS)?;
    let form = call.need(args::bridge_enqueue::FORM)?;
    let passed = call.get(args::bridge_enqueue::PASSED);
    let known = |id| Known::of(id, made_at, passed.as_deref());
    let made = if form == "w" {
        flow(call, &queue, ids, made_at, known)?
    } else {
        let jobs = jobs(call, &form, &queue, made_at)?;
        check_count(&ids, jobs.len())?;
        let mut new = memory::list(jobs.len());
        let mut is_known = memory::list(jobs.len());
        for (id, (payload, options)) in ids.into_iter().zip(jobs) {
            let id = foreign(id)?;
            let known = known(id)?;
            is_known.push(matches!(known, Known::Same));
            if let Some(options) = known.identify(id, options) {
                new.push((payload, options));
            }
        }
        let mut made = produce(&queue, &new, made_at, By::Bridge)?.ids.into_iter();
        memory::collect(is_known.into_iter().map(|is_known| if is_known { None } else { made.next() }))
    };
    for job_id in made {
        rows.add(&mut [job_id.map_or(VOID, Datum::from)], &mut [job_id.is_none()])?;
    }
    Ok(None)
}

/// `queue_bridge.enqueue_new(queue_name, id, made_at, payload, options, source, looks)`: enqueues one job as the role
/// of the source. `looks`: the job may have arrived before. Returns its id, or with a unique key that of the job that
/// has the key. NULL: the same job, with the same time, has arrived before.
fn enqueue_new(call: &Call) -> Result<Option<Datum>> {
    let role = role_of(&call.need(args::bridge_enqueue_new::SOURCE)?)?;
    let looks = call.need(args::bridge_enqueue_new::LOOKS)?;
    role::as_role(role, || {
        let queue = enqueue::target(call)?;
        let made_at = call.need(args::bridge_enqueue_new::MADE_AT)?;
        let id = foreign(call.get(args::bridge_enqueue_new::ID))?;
        match Known::of(id, made_at, looks.then_some(&[]))? {
            Known::New => {}
            Known::Same => return Ok(None),
            Known::Taken => return Err(Error::new(error::UNIQUE, format!("another job has the id {id}"))),
        }
        let jobs = jobs(call, "e", &queue, made_at)?;
        let identify = |(payload, options)| (payload, Options { job_id: Some(id), ..options });
        let made = produce(&queue, &Vec::from_iter(jobs.into_iter().map(identify)), made_at, By::Bridge)?;
        Ok(made.ids.first().map(|&job_id| job_id.into()))
    })
}

/// Returns the role of a source, which the user may become.
///
/// Errors: 42704 there is none, 42501 the user is no member of it.
fn role_of(source: &str) -> Result<pgrx::pg_sys::Oid> {
    let name = format!("queue_bridge_{source}");
    let role = role::role(&name).ok_or_else(|| permission::no_role(&name))?;
    if role::may_become(role) {
        return Ok(role);
    }
    Err(Error::new(error::DENIED, format!("permission denied to set role \"{name}\"")))
}

/// `queue_bridge.carry_out_as(source, function, call, passed, looks)`: calls the function with the last three arguments
/// as the role of the source, and returns its answer. A contact may not SET ROLE, because it runs as its own role's
/// procedure with the rights of the owner.
fn carry_out(call: &Call) -> Result<Option<Datum>> {
    let role = role_of(&call.need_str(args::bridge_carry_out_as::SOURCE)?)?;
    let function = call.need(args::bridge_carry_out_as::FUNCTION)?;
    let row = call.need_datum(args::bridge_carry_out_as::CALL)?;
    let passed = call.need_datum(args::bridge_carry_out_as::PASSED)?;
    let looks = call.need_datum(args::bridge_carry_out_as::LOOKS)?;
    Ok(Some(role::as_role(role, || routine::call(function, [row, passed, looks]))))
}

/// What is known of a job that arrives.
enum Known {
    /// The job has not arrived before.
    New,
    /// The job has arrived before.
    Same,
    /// Another job has its id.
    Taken,
}

impl Known {
    /// `passed`: as for `queue_bridge.enqueue`.
    fn of(id: i64, made_at: i64, passed: Option<&[Option<i64>]>) -> Result<Self> {
        let known = match passed {
            None => None,
            Some(passed) if passed.contains(&Some(id)) => Some(made_at),
            Some(_) => time_of(id)?,
        };
        Ok(match known {
            None => Self::New,
            Some(at) if at == made_at => Self::Same,
            Some(_) => Self::Taken,
        })
    }

    /// Returns the options of the job, with its id if that is free. `None`: the job is there already.
    fn identify(&self, id: i64, options: Options) -> Option<Options> {
        match self {
            Self::New => Some(Options { job_id: Some(id), ..options }),
            Self::Same => None,
            Self::Taken => Some(renumbered(id, options)),
        }
    }
}

/// Enqueues a flow with its members, and returns the job of each id, as `enqueue` does.
fn flow(
    call: &Call,
    queue: &Queue,
    ids: Vec<Option<i64>>,
    made_at: i64,
    known: impl Fn(i64) -> Result<Known>,
) -> Result<Vec<Option<i64>>> {
    let ids = ids.into_iter().map(foreign).collect::<Result<Vec<_>>>()?;
    let mut flow = Flow { payload: call.json(args::bridge_enqueue::BODY)?, ..Flow::default() };
    let given = given(call, |name, value| {
        let mut flag = |place: fn(&mut Flow) -> &mut bool| *place(&mut flow) = value.as_bool().unwrap_or(false);
        match name {
            "runs" => flag(|flow| &mut flow.runs),
            "open" => flag(|flow| &mut flow.is_open),
            "fail_fast" => flag(|flow| &mut flow.is_fail_fast),
            "tasks" => flow.tasks = Task::all(Some(value.datum()))?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    check_count(&ids, 1 + flow.tasks.len())?;
    // The flow and its members arrive together, so the flow speaks for all.
    if matches!(known(ids[0])?, Known::Same) {
        return Ok(memory::filled(None, ids.len()));
    }
    let made = flow.enqueue(queue, given, made_at, By::Bridge, |n, options| {
        let id = ids[n];
        Ok(known(id)?.identify(id, options.clone()).unwrap_or_else(|| renumbered(id, options)))
    })?;
    Ok(made.into_iter().map(Some).collect())
}

/// Checks that a row has as many ids as jobs.
///
/// Errors: 22023.
fn check_count<T>(ids: &[T], jobs: usize) -> Result<()> {
    if ids.len() == jobs {
        return Ok(());
    }
    Err(Error::invalid("ids must have as many elements as there are jobs")
        .detail(format!("Ids: {}, jobs: {jobs}.", ids.len())))
}

/// Returns the jobs of a row, by its form: `b` an array of jobs, `m` an array of payloads, `e` a payload.
fn jobs(call: &Call, form: &str, queue: &Queue, made_at: i64) -> Result<Vec<(Datum, Options)>> {
    let body = call.required(args::bridge_enqueue::BODY, call.json_list(args::bridge_enqueue::BODY)?)?;
    if form == "b" {
        return enqueue::parse_batch(body, queue, made_at);
    }
    run_as::refuse_data(queue)?;
    let options = given(call, |_, _| Ok(false))?.check(Some(queue), made_at)?;
    if form == "e" {
        stored_json::check(body, "payload")?;
        return Ok(vec![(body, options)]);
    }
    let payloads = jsonb::elements(body).ok_or_else(|| Error::invalid("payloads must be a JSON array"))?;
    let mut jobs = memory::list(payloads.len());
    for payload in payloads {
        let payload = payload.datum();
        stored_json::check(payload, "a payload")?;
        jobs.push((payload, options.clone()));
    }
    Ok(jobs)
}

/// Returns the options. `other` takes what is none of them, and returns false for what it does not know either.
///
/// Errors: 22023 an unknown option, or a value of another type.
fn given(call: &Call, mut other: impl FnMut(&str, &Value) -> Result<bool>) -> Result<Given<'static>> {
    let mut given = Given::default();
    let fields = call.json_list(args::bridge_enqueue::OPTIONS)?.map(jsonb::fields).unwrap_or_default();
    for (name, value) in &fields {
        if !given.set(name, value)? && !other(name, value)? {
            return Err(Error::invalid(format!("unknown option \"{name}\""))
                .hint("Update pg_queue on the queue server: it is older than the SQL on the primary."));
        }
    }
    Ok(given)
}

/// Checks that an id is that of a job of another server, and returns it.
///
/// Errors: 22023 for anything else, 22004 for NULL.
fn foreign(id: Option<i64>) -> Result<i64> {
    let id = id.ok_or_else(|| Error::null("ids"))?;
    if id::kind(id) == Kind::Job && id::node(id) != ids::node() {
        return Ok(id);
    }
    Err(Error::invalid(format!("{id} is not the id of a job of another server"))
        .hint("The number of the primary and pg_queue.node_id must differ."))
}

/// Returns the time of the job with this id. `None`: there is none.
fn time_of(job_id: i64) -> Result<Option<i64>> {
    match find::find_settled(job_id) {
        Ok(found) => Ok(Some(found.enqueued_at())),
        Err(error) if error.code == error::NO_DATA => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns options without the id, which another job has. The header `primary_id` has it.
fn renumbered(id: i64, options: Options) -> Options {
    let told = jsonb::of(&serde_json::json!({ "primary_id": id }));
    let headers = match (options.headers, told) {
        (Some(own), Some(told)) => Some(jsonb::merged(own, told)),
        (own, told) => told.or(own),
    };
    Options { headers, job_id: None, ..options }
}

/// `queue_bridge.publish(topic, ids, made_at, body, options)`: publishes one event, with the first of the ids.
fn publish(call: &Call) -> Result<Option<Datum>> {
    api::writable("publish")?;
    let name = call.need(args::bridge_publish::TOPIC)?;
    let made_at = call.need(args::bridge_publish::MADE_AT)?;
    let id = call.need(args::bridge_publish::IDS)?.into_iter().next().flatten();
    let mut key = String::new();
    let mut given = given(call, |name, value| {
        if name == "key" {
            key = given::text_of_field(value, name)?;
        }
        Ok(name == "key")
    })?;
    publish::check_key(&key)?;
    let headers = given.headers.take().map(|given::Json(headers)| headers);
    if headers.is_some_and(|headers| !jsonb::is_object(headers)) {
        return Err(Error::invalid("headers must be a JSON object"));
    }
    let payload = call.json(args::bridge_publish::BODY)?.unwrap_or_else(jsonb::empty_object);
    let options = given.check(None, made_at)?;
    permission::rights();
    let topic = topic::by_name(&name)?;
    permission::check_topic(&topic, Privilege::Produce)?;
    publish::publish(&topic, &[Event { key, payload, headers, id }], &options, made_at)?;
    Ok(Some(VOID))
}

/// `queue_bridge.complete_waiting(id, result)`: completes the job of an attempt that came too late, because the effects
/// of the attempt are committed at its source. Returns false if the job does not wait for a worker.
fn complete_waiting(call: &Call) -> Result<Option<Datum>> {
    api::writable("complete")?;
    let Some(id) = call.get(args::bridge_complete_waiting::ID) else { return Ok(Some(false.into())) };
    let result = call.json(args::bridge_complete_waiting::RESULT)?;
    Ok(Some(complete::complete_waiting(id, result)?.into()))
}
