//! `queue.create_topic`, `bind`, `unbind`: the life of a topic, and which queues get which of its events. Also
//! `queue.publish`, `publish_many`, `route`.
//!
//! Not responsible for which bindings match and what is written (`job::publish`), nor for how sessions know topics
//! (`catalog::topic`).
//!
//! Invariant: topics and bindings are rows. The commit of every change of them tells all sessions.

use pgrx::pg_sys::{self, Datum};

use crate::api::{self, names, permissions, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue::Executor;
use crate::catalog::topic::{self, OnFull, Topic};
use crate::catalog::{drops, queue, schedule, spi};
use crate::error::{self, Error, Result};
use crate::job::given::{Given, Json, Positions};
use crate::job::options::{self, Options};
use crate::job::publish::{self, Event};
use crate::job::{headers, notice};
use crate::pg::argument::{Argument, kind};
use crate::pg::datum::{self, text_datum};
use crate::pg::function::{Call, VOID};
use crate::pg::jsonpath::{Budget, Path};
use crate::pg::parameter::Parameter;
use crate::pg::{jsonb, jsonpath, memory, role, stored_json, time};
use crate::shmem;
use crate::transaction::{self, ScheduleStep, TopicStep};

sql_function!(pg_queue_create_topic, pg_finfo_pg_queue_create_topic => create_topic);
sql_function!(pg_queue_bind, pg_finfo_pg_queue_bind => bind);
sql_function!(pg_queue_unbind, pg_finfo_pg_queue_unbind => unbind);
sql_function!(pg_queue_publish, pg_finfo_pg_queue_publish => publish);
sql_function!(pg_queue_publish_many, pg_finfo_pg_queue_publish_many => publish_many);
sql_function!(pg_queue_route, pg_finfo_pg_queue_route => route);
sql_function!(pg_queue_topic_counts, pg_finfo_pg_queue_topic_counts => topic_counts);

/// `queue.create_topic(topic, if_not_exists)`.
fn create_topic(call: &Call) -> Result<Option<Datum>> {
    api::writable("create a topic")?;
    let name = names::checked(call, args::create_topic::TOPIC)?;
    names::check_new(&name)?;
    names::lock(&name);
    if topic::find(&name)?.is_some() {
        return if call.get(args::create_topic::IF_NOT_EXISTS).unwrap_or(false) {
            Ok(Some(VOID))
        } else {
            Err(names::taken_by_topic(&name))
        };
    }
    if queue::exists_by_name(&name) {
        return Err(Error::new(error::DUPLICATE, format!("queue \"{name}\" already exists"))
            .hint("Topics and queues share their names."));
    }
    let insert = "INSERT INTO queue_internal.topic (topic_id, topic_name)
        VALUES (pg_catalog.nextval('queue_internal.queue_id_seq'), $1)
         ON CONFLICT (topic_name) DO NOTHING RETURNING topic_id::pg_catalog.int8";
    let made = spi::own_write(|| spi::i64_column(insert, &[name.clone().into()]))?;
    let &[id] = &made[..] else { return Err(names::taken_by_topic(&name)) };
    queue::changed();
    permissions::created(id as i32)?;
    Ok(Some(VOID))
}

/// Drops a topic, for `queue.drop`.
///
/// Errors: 55000 if queues are bound to it or schedules publish on it, unless `force` is true.
pub fn drop_topic(topic: &Topic, force: bool) -> Result<Option<Datum>> {
    permission::check_topic(topic, Privilege::Manage)?;
    let (id, name) = (topic.id, &topic.name);
    // Waits for transactions that are binding queues to it, and prevents further bindings.
    let gone = spi::run("DELETE FROM queue_internal.topic WHERE topic_id OPERATOR(pg_catalog.=) $1", &[id.into()])?;
    if gone == 0 {
        return Err(Error::new(error::UNDEFINED, format!("topic \"{name}\" does not exist")));
    }
    let refused = |what: &str, detail: String, hint: &str| {
        Err(Error::new(error::WRONG_STATE, format!("topic \"{name}\" has {what}")).detail(detail).hint(hint))
    };
    let unbound =
        spi::run("DELETE FROM queue_internal.binding WHERE topic_id OPERATOR(pg_catalog.=) $1", &[id.into()])?;
    if unbound > 0 && !force {
        let detail = format!("Bindings: {unbound}. View queue.bindings has them.");
        return refused("bindings", detail, "Use queue.unbind, or force => true to end them with the topic.");
    }
    if let Some(schedule) = schedule::of_queue(id, |_| true) {
        if !force {
            let detail = format!("Schedule \"{schedule}\" publishes on it.");
            return refused("schedules", detail, "Use queue.unschedule, or force => true to drop them with the topic.");
        }
        spi::run("DELETE FROM queue_internal.schedule WHERE queue_id OPERATOR(pg_catalog.=) $1", &[id.into()])?;
        transaction::record(ScheduleStep::Changed { lane: 0 });
    }
    transaction::record(TopicStep::Dropped { topic: id });
    permissions::dropped(id)?;
    queue::changed();
    Ok(Some(VOID))
}

/// Ends the bindings of a queue that is dropped.
pub fn queue_dropped(id: i32) -> Result<()> {
    spi::run("DELETE FROM queue_internal.binding WHERE queue_id OPERATOR(pg_catalog.=) $1", &[id.into()]).map(|_| ())
}

/// `queue.bind(topic, queue_name, pattern, filter, …)`: returns the binding's id.
fn bind(call: &Call) -> Result<Option<Datum>> {
    api::writable("bind a queue")?;
    let topic_name = call.need(args::bind::TOPIC)?;
    let queue_name = call.need(args::bind::QUEUE_NAME)?;
    let pattern = call.get(args::bind::PATTERN).unwrap_or_else(|| "#".to_owned());
    pg_queue_core::topic::check_pattern(&pattern).map_err(|fault| publish::refused("pattern", fault))?;
    let mut checked = Options::default();
    checked.set_max_attempts(call.get(args::bind::MAX_ATTEMPTS))?;
    checked.set_lease(call.get(args::bind::LEASE))?;
    if let Some(delay) = call.get(args::bind::DELAY) {
        options::in_future("delay", delay, time::now_us())?;
        if delay.us() > options::TEN_YEARS {
            return Err(Error::invalid("delay must be at most 10 years").detail(format!("It is {}.", delay.text())));
        }
    }
    let on_full = call.get(args::bind::ON_FULL).unwrap_or_else(|| "keep".to_owned());
    let on_full_is = OnFull::parse(&on_full)?;

    let topic = topic::by_name(&topic_name)?;
    // A binding that refuses events concerns all publishers of the topic, not only its subscriber.
    let wanted = if on_full_is == OnFull::Error { Privilege::Manage } else { Privilege::Observe };
    permission::check_topic(&topic, wanted)?;
    let queue = queue::by_name(&queue_name)?;
    permission::check(&queue, Privilege::Manage)?;
    call.get(args::bind::STAGE).map(|stage| queue.stage(&stage)).transpose()?;
    drops::watch(queue.lane)?;
    names::lock_dead_letters();
    // Another transaction may have changed the queue before this one got the lock.
    let queue = queue::by_name(&queue_name)?;
    if matches!(queue.executor, Some(Executor::Sql)) {
        return Err(Error::new(
            error::NOT_SUPPORTED,
            format!("queue \"{queue_name}\" runs commands, and cannot be bound"),
        )
        .detail("Its jobs are run as the role that wrote them, and a publisher does not know of them.")
        .hint("Bind a queue with executor 'call', or one without."));
    }
    topic::lock(&topic)?;
    names::check_no_circle(&topic.name, &queue.name)?;
    let [filter, group_path] = [path(call, args::bind::FILTER)?, path(call, args::bind::GROUP_KEY)?];
    let bound_by = role::role_name(role::user()).unwrap_or_default();
    let insert = "INSERT INTO queue_internal.binding
            (topic_id, queue_id, pattern, filter, priority, delay, group_path, max_attempts,
            lease,
             stage, on_full, bound_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (topic_id, queue_id, pattern, (coalesce(filter, ''))) DO UPDATE SET
             (priority, delay, group_path, max_attempts, lease, stage, on_full, bound_by) = ROW (EXCLUDED.priority,
              EXCLUDED.delay, EXCLUDED.group_path, EXCLUDED.max_attempts, EXCLUDED.lease, EXCLUDED.stage,
              EXCLUDED.on_full,
              EXCLUDED.bound_by)
         RETURNING binding_id::pg_catalog.int8";
    let parameters = [
        topic.id.into(),
        queue.id.into(),
        pattern.into(),
        filter.into(),
        Parameter::raw(call.datum(args::bind::PRIORITY), pg_sys::INT4OID),
        Parameter::raw(call.datum(args::bind::DELAY), pg_sys::INTERVALOID),
        group_path.into(),
        Parameter::raw(call.datum(args::bind::MAX_ATTEMPTS), pg_sys::INT4OID),
        Parameter::raw(call.datum(args::bind::LEASE), pg_sys::INTERVALOID),
        Parameter::raw(call.datum(args::bind::STAGE), pg_sys::TEXTOID),
        on_full.into(),
        bound_by.into(),
    ];
    let bound = spi::own_write(|| spi::i64_column(insert, &parameters))?;
    shmem::with_instance(|_, instance| instance.troubles.forget_filters(queue.id));
    queue::changed();
    Ok(bound.first().map(|&id| id.into()))
}

/// Returns the text of a jsonpath that will be stored.
///
/// Errors: 22023 if it is too long, or if it cannot be read again within the budget of a filter.
fn path(call: &Call, argument: Argument<kind::Other>) -> Result<Option<String>> {
    let name = argument.name;
    let Some(path) = call.datum(argument) else { return Ok(None) };
    // A binary jsonpath is at most a few times as long as its text.
    let text = if datum::is_small(path, 8 * jsonpath::MAX_PATH_BYTES) { jsonpath::text(path) } else { String::new() };
    if text.is_empty() || text.len() > jsonpath::MAX_PATH_BYTES {
        return Err(Error::invalid(format!("{name} must have at most {} bytes", jsonpath::MAX_PATH_BYTES))
            .hint("Send events of several kinds under several keys, and bind by a pattern."));
    }
    if Path::parse(&text, &mut Budget::of(topic::FILTER_BUDGET_US)).is_broken() {
        return Err(Error::invalid(format!("{name} cannot be read within {} ms", topic::FILTER_BUDGET_US / 1_000))
            .detail("A regular expression is compiled when it is read, in each session that publishes.")
            .hint("Use a simpler one."));
    }
    if let Some(field) = jsonpath::roots(&text).into_iter().find(|field| !publish::FIELDS.contains(&field.as_str())) {
        notice::path_leads_nowhere(name, &field);
    }
    Ok(Some(text))
}

/// `queue.unbind(topic, queue_name, pattern)`: returns how many bindings there were.
fn unbind(call: &Call) -> Result<Option<Datum>> {
    api::writable("unbind a queue")?;
    let topic_name = call.need(args::unbind::TOPIC)?;
    let queue_name = call.need(args::unbind::QUEUE_NAME)?;
    let topic = topic::by_name(&topic_name)?;
    let queue = queue::by_name(&queue_name)?;
    if permission::check_topic(&topic, Privilege::Manage).is_err() {
        permission::check(&queue, Privilege::Manage)?;
    }
    let gone = spi::run(
        "DELETE FROM queue_internal.binding WHERE topic_id OPERATOR(pg_catalog.=) $1
         AND queue_id OPERATOR(pg_catalog.=) $2
         AND ($3 IS NULL OR pattern OPERATOR(pg_catalog.=) $3)",
        &[topic.id.into(), queue.id.into(), call.get(args::unbind::PATTERN).into()],
    )?;
    if gone > 0 {
        queue::changed();
    } else {
        notice::nothing_to_unbind(&topic_name, &queue_name, call.str(args::unbind::PATTERN).as_deref());
    }
    Ok(Some((gone as i64).into()))
}

/// Returns the headers of an event.
fn headers_of(call: &Call, argument: Argument<kind::Jsonb>) -> Result<Option<Datum>> {
    let headers = call.json(argument)?;
    headers::check(headers)?;
    Ok(headers)
}

fn key(call: &Call, argument: Argument<kind::Text>) -> Result<String> {
    let key = call.get(argument).unwrap_or_default();
    publish::check_key(&key)?;
    Ok(key)
}

/// `queue.publish(topic, payload, key, …)`: returns a row for each job.
fn publish(call: &Call) -> Result<Option<Datum>> {
    api::writable("publish")?;
    let rows = call.rows()?;
    let name = call.need(args::publish::TOPIC)?;
    let payload = call.json(args::publish::PAYLOAD)?.unwrap_or_else(jsonb::empty_object);
    let given = Given::of_call(call, &const { Positions::of(args::publish::NAMES) })?;
    let event = Event { key: key(call, args::publish::KEY)?, payload, headers: None, id: None };
    let is_mandatory = call.get(args::publish::MANDATORY).unwrap_or(false);
    publish_all(&name, vec![event], given, is_mandatory, |_, queue, job| {
        rows.add(&mut [text_datum(queue), job.into()], &mut [false; 2])
    })
}

/// `queue.publish_many(topic, payloads, keys, …)`: returns a row for each job.
fn publish_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("publish")?;
    let rows = call.rows()?;
    let name = call.need(args::publish_many::TOPIC)?;
    let payloads = call.need(args::publish_many::PAYLOADS)?;
    let keys = call.get(args::publish_many::KEYS);
    if let Some(keys) = keys.as_ref().filter(|keys| keys.len() != payloads.len()) {
        return Err(Error::invalid("keys must have as many elements as payloads").detail(format!(
            "Keys: {}, payloads: {}.",
            keys.len(),
            payloads.len()
        )));
    }
    let mut keys = keys.unwrap_or_default().into_iter();
    let mut events = memory::list(payloads.len());
    for (n, payload) in payloads.into_iter().enumerate() {
        let payload = payload.ok_or_else(|| Error::null(&format!("payloads[{}]", n + 1)))?;
        stored_json::check(payload, "a payload")?;
        let key = keys.next().flatten().unwrap_or_default();
        publish::check_key(&key).map_err(|e| Error { message: format!("keys[{}]: {}", n + 1, e.message), ..e })?;
        events.push(Event { key, payload, headers: None, id: None });
    }
    let given = Given::of_call(call, &const { Positions::of(args::publish_many::NAMES) })?;
    let is_mandatory = call.get(args::publish_many::MANDATORY).unwrap_or(false);
    publish_all(&name, events, given, is_mandatory, |n, queue, job| {
        rows.add(&mut [(n as i32 + 1).into(), text_datum(queue), job.into()], &mut [false; 3])
    })
}

/// Publishes events with the same options. `add` gets the place of the event, the queue and the id of each job.
///
/// Errors: P0002 when `is_mandatory` is true and no queue gets one of the events; those of `publish::publish`.
fn publish_all(
    name: &str,
    mut events: Vec<Event>,
    mut given: Given<'_>,
    is_mandatory: bool,
    mut add: impl FnMut(usize, &str, i64) -> Result<()>,
) -> Result<Option<Datum>> {
    let now = time::now_us();
    // The headers belong to the events, and each copy gets them from its event.
    let headers = given.headers.take().map(|Json(headers)| headers);
    headers::check(headers)?;
    events.iter_mut().for_each(|event| event.headers = headers);
    let options = given.check(None, now)?;
    permission::rights();
    let topic = topic::by_name(name)?;
    permission::check_topic(&topic, Privilege::Produce)?;
    let outcomes = publish::publish(&topic, &events, &options, now)?;
    let unrouted = outcomes.iter().position(|outcome| outcome.copies.is_empty());
    if let Some(n) = unrouted.filter(|_| is_mandatory) {
        return Err(Error::new(error::NO_DATA, format!("no queue gets what is published on topic \"{name}\""))
            .detail(format!("No binding matches the key \"{}\" and the contents.", events[n].key))
            .hint("See view queue.bindings, and queue.route for what would match."));
    }
    let routes = topic.routes()?;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        for copy in outcome.copies {
            add(n, &routes.bindings[copy.binding].queue.name, copy.job_id)?;
        }
    }
    Ok(None)
}

/// `queue.route(topic, key, payload, headers)`: returns the bindings that match an event.
fn route(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let name = call.need(args::route::TOPIC)?;
    let payload = call.json(args::route::PAYLOAD)?.unwrap_or_else(jsonb::empty_object);
    let event = Event {
        key: key(call, args::route::KEY)?,
        payload,
        headers: headers_of(call, args::route::HEADERS)?,
        id: None,
    };
    permission::rights();
    let topic = topic::by_name(&name)?;
    permission::check_topic(&topic, Privilege::Observe)?;
    let routes = topic.routes()?;
    for found in publish::route(&topic, routes, &event).0 {
        let binding = &routes.bindings[found.binding];
        let queue = text_datum(&binding.queue.name);
        rows.add(&mut [queue, i64::from(binding.id).into(), text_datum(&binding.pattern)], &mut [false; 3])?;
    }
    Ok(None)
}

/// `queue_internal.topic_counts()`: returns the counts of each topic that the current user may observe.
fn topic_counts(call: &Call) -> Result<Option<Datum>> {
    let rows = call.rows()?;
    let rights = permission::rights();
    let counts = shmem::with_instance(|_, instance| instance.topics);
    let is_seen = |(id, _): &&(i32, _)| rights.on_queue(*id, Privilege::Observe);
    for (id, sum) in counts.iter().flat_map(|topics| topics.all()).filter(is_seen) {
        let numbers = [sum.events, sum.copies, sum.unrouted, sum.dropped, sum.filter_errors].map(Datum::from);
        let [events, copies, unrouted, dropped, errors] = numbers;
        rows.add(&mut [(*id).into(), events, copies, unrouted, dropped, errors], &mut [false; 6])?;
    }
    Ok(None)
}
