//! Publishes events: each event becomes a job in each queue that is bound to the topic and whose binding matches, all
//! or none.
//!
//! Responsible for which bindings match, for the options that they change, and for writing the jobs together. Not
//! responsible for the words of keys (`core::topic`), nor for what a session knows of topics (`catalog::topic`).
//!
//! Invariant: the owner of a bound queue can neither refuse an event nor delay its publisher. A removed stage, a filter
//! that fails or is slow, an infinite delay, and a queue that is being dropped affect the copy, but not the publisher's
//! call. The only exception is `on_full => 'error'`, which needs a right on the topic. Only first attempts in the same
//! segment refer to a payload in a row of its own: a next attempt, and one that moves, take the payload along.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::topic::{Binding, FILTER_BUDGET_US, OnFull, Routes, Topic};
use crate::catalog::{drops, ids};
use crate::error::{self, Error, Result};
use crate::job::enqueue::{self, By};
use crate::job::options::{self, Options};
use crate::job::{flow, keys, limits};
use crate::log::attempt::{self, New};
use crate::log::segment::Target;
use crate::pg::datum;
use crate::pg::jsonpath::{Budget, Path};
use crate::pg::{jsonb, memory, process, role, time};
use crate::shmem;
use crate::shmem::topics::Published;
use crate::shmem::troubles::Kind;
use crate::transaction::{self, SegmentStep, TopicStep};

/// An event to publish.
pub struct Event {
    /// A key that `core::topic::check_key` has accepted.
    pub key: String,
    pub payload: Datum,
    /// An object.
    pub headers: Option<Datum>,
    /// The id that another server has given to the event. `None`: it gets one here.
    pub id: Option<i64>,
}

/// A job that was made of an event.
pub struct Copy {
    pub binding: usize,
    pub job_id: i64,
}

/// The copies of an event.
pub struct Outcome {
    pub copies: Vec<Copy>,
}

/// A binding that matches an event.
pub struct Match {
    pub binding: usize,
    /// The value at the binding's path to the group's key.
    group_key: Option<String>,
}

/// Returns the bindings of a topic that match an event, one for each queue, and how many filters had no answer.
pub fn route(topic: &Topic, routes: &Routes, event: &Event) -> (Vec<Match>, i64) {
    let mut matched = Vec::new();
    routes.patterns.each_match(&event.key, |n| matched.push(n as usize));
    // If several bindings of a queue match, the oldest one counts.
    matched.sort_unstable();
    matched.dedup();
    let envelope = LazyCell::new(|| envelope_of(topic, event));
    let (mut found, mut errors): (Vec<Match>, i64) = (memory::list(matched.len()), 0);
    let mut queues = memory::set(matched.len());
    let mut budgets = HashMap::new();
    for n in matched {
        let bound = &routes.bindings[n];
        if queues.contains(&bound.queue.id) {
            continue;
        }
        let mut free = Budget::none();
        let paths = [bound.filter.as_ref(), bound.options.group_path.as_ref()];
        let is_costly = paths.into_iter().flatten().any(Path::is_costly);
        let budget = if is_costly { budget_of(&mut budgets, bound.queue.id) } else { &mut free };
        let is_wanted = bound.filter.as_ref().is_none_or(|filter| {
            let answer = envelope.and_then(|envelope| filter.is_true(envelope, budget));
            errors += i64::from(answer.is_none());
            answer == Some(true)
        });
        if is_wanted {
            queues.insert(bound.queue.id);
            let group_key = bound.options.group_path.as_ref().and_then(|path| path.first_text((*envelope)?, budget));
            found.push(Match { binding: n, group_key });
        }
        if std::mem::take(&mut budget.is_overdrawn) {
            note(Kind::Filter, bound.queue.id, bound.id);
        }
    }
    (found, errors)
}

/// Returns the budget of a queue for an event. It is empty if the queue's filters have taken too long recently.
fn budget_of(budgets: &mut HashMap<i32, Budget>, queue: i32) -> &mut Budget {
    budgets.entry(queue).or_insert_with(|| {
        let now = time::now_us();
        let are_off = shmem::with_instance(|_, instance| instance.troubles.are_filters_off(queue, now));
        if are_off == Some(true) { Budget::none() } else { Budget::of(FILTER_BUDGET_US) }
    })
}

/// Notes trouble for the doctor immediately, whether or not the transaction commits.
pub fn note(kind: Kind, queue: i32, other: i32) {
    let now = time::now_us();
    shmem::with_instance(|_, instance| instance.troubles.note(kind, queue, other, now));
}

/// The fields of the object that filters and paths read.
pub const FIELDS: [&str; 4] = ["topic", "key", "headers", "payload"];

/// Returns the object that filters and paths read. `None`: the payload has the largest possible size, so the object
/// around it would be too large.
fn envelope_of(topic: &Topic, event: &Event) -> Option<Datum> {
    jsonb::if_possible(|| {
        let headers = jsonb::object_of("headers", Some(event.headers.unwrap_or_else(jsonb::empty_object)))?;
        let words = jsonb::of(&serde_json::json!({ "topic": topic.name, "key": event.key }))?;
        Some(jsonb::merged(jsonb::merged(jsonb::object_of("payload", Some(event.payload))?, headers), words))
    })
}

/// A job to make.
struct Wanted<'a> {
    event: usize,
    binding: usize,
    bound: &'a Binding,
    options: Options,
    job_id: i64,
}

/// The decisions of a publish.
struct Plan<'a> {
    topic: &'a Topic,
    /// The number of events.
    events: usize,
    wanted: Vec<Wanted<'a>>,
    counts: Published,
}

/// Publishes events with the options of their publisher. Returns the copies of each.
///
/// Errors: 53400 when a queue is full whose binding says so; those of `enqueue::produce`.
pub fn publish(topic: &Topic, events: &[Event], options: &Options, now: i64) -> Result<Vec<Outcome>> {
    if options.unique.is_none() && options.after.is_none() {
        return publish_plainly(topic, events, options, now, Full::AsBound);
    }
    let mut plan = Plan::new(topic, events, options, now, Full::AsBound)?;
    plan.hold_keys();
    produce(events, &mut plan.wanted, now)?;
    Ok(plan.finish())
}

/// What happens to the copy for a full queue whose binding says `error`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The call fails.
    AsBound,
    /// No copy is made, because no publisher could be told.
    Dropped,
}

/// As `publish`, for options without a key and without predecessors.
pub fn publish_plainly(
    topic: &Topic,
    events: &[Event],
    options: &Options,
    now: i64,
    full: Full,
) -> Result<Vec<Outcome>> {
    let mut plan = Plan::new(topic, events, options, now, full)?;
    if let Some(flow) = options.flow.filter(|_| !plan.wanted.is_empty()) {
        flow::join(flow)?;
    }
    insert(events, &mut plan.wanted, now)?;
    Ok(plan.finish())
}

impl<'a> Plan<'a> {
    fn new(topic: &'a Topic, events: &[Event], options: &Options, now: i64, full: Full) -> Result<Self> {
        let routes = topic.routes()?;
        let mut counts = Published { events: events.len() as i64, ..Published::NOTHING };
        let mut numbers = memory::list(events.len());
        ids::take(events.len(), |count| numbers.push(count))?;
        let mut wanted: Vec<Wanted<'_>> = Vec::new();
        let (mut given, mut scratch) = (HashMap::new(), datum::Scratch::new());
        for (n, event) in events.iter().enumerate() {
            // The memory is freed after each event, so that filters do not keep copies of many large payloads.
            let (found, errors) = scratch.lend(|| route(topic, routes, event));
            counts.filter_errors += errors;
            if found.is_empty() {
                counts.unrouted += 1;
                counts.unrouted_at = now;
                continue;
            }
            let headers = headers_of(topic, event, event.id.unwrap_or_else(|| id::event(ids::node(), numbers[n])), now);
            for found in found {
                let bound = &routes.bindings[found.binding];
                let mut options = options_of(bound, &found, &Options { headers, ..options.clone() }, now);
                if options.flow.is_some() && !gives_members(topic, bound) {
                    (options.flow, options.task) = (None, None);
                }
                let lane = options.lane.unwrap_or_else(|| bound.queue.entry());
                if !drops::admits(lane) {
                    note(Kind::Copy, bound.queue.id, topic.id);
                    counts.dropped += 1;
                } else if has_room(bound, &mut given, full)? {
                    memory::push(&mut wanted, Wanted { event: n, binding: found.binding, bound, options, job_id: 0 });
                } else {
                    counts.dropped += 1;
                }
            }
            process::check_for_interrupts();
        }
        counts.copies = wanted.len() as i64;
        Ok(Self { topic, events: events.len(), wanted, counts })
    }

    /// Holds the keys of the copies in all queues, or leaves copies out. Another publisher of the same key ends soon. A
    /// role that holds a key in its own queue for longer loses only its own copy.
    fn hold_keys(&mut self) {
        /// How long a publish waits for keys that open transactions hold.
        const MAX_KEY_WAIT_US: i64 = 1_000_000;
        let deadline = time::monotonic_us().saturating_add(MAX_KEY_WAIT_US);
        // The keys are acquired in the order of the queues, so that two publishers of the same keys do not wait for
        // each other.
        let mut order = memory::collect(0..self.wanted.len());
        order.sort_by_key(|&n| self.wanted[n].bound.queue.id);
        let mut left_out = HashSet::new();
        for n in order {
            let one = &self.wanted[n];
            let Some(unique) = one.options.unique else { continue };
            let hash = keys::hash(one.bound.queue.id, datum::bytes_of(&unique.key()));
            while !keys::try_acquire(hash) {
                if time::monotonic_us() >= deadline {
                    note(Kind::Key, one.bound.queue.id, self.topic.id);
                    left_out.insert(n);
                    break;
                }
                process::sleep(10);
            }
        }
        let mut n = 0;
        self.wanted.retain(|_| {
            n += 1;
            !left_out.contains(&(n - 1))
        });
        let left_out = left_out.len() as i64;
        self.counts.copies -= left_out;
        self.counts.dropped += left_out;
    }

    /// Records the steps by which the commit counts the events. Returns the copies.
    fn finish(self) -> Vec<Outcome> {
        transaction::record(TopicStep::Published { topic: self.topic.id, counts: self.counts });
        let mut outcomes = memory::collect((0..self.events).map(|_| Outcome { copies: Vec::new() }));
        for Wanted { event, binding, job_id, .. } in self.wanted {
            outcomes[event].copies.push(Copy { binding, job_id });
        }
        outcomes
    }
}

/// Returns the headers of all copies of an event.
fn headers_of(topic: &Topic, event: &Event, id: i64, now: i64) -> Option<Datum> {
    let told = jsonb::of(&serde_json::json!({ "event": {
        "topic": topic.name,
        "key": event.key,
        "id": id,
        "published_at": time::iso_time(now),
    }}));
    match (event.headers, told) {
        (Some(own), Some(told)) => Some(jsonb::merged(own, told)),
        (own, told) => told.or(own),
    }
}

/// Returns whether a queue that may be full gets a job. `given`: how many jobs this call has given to each such queue.
///
/// Errors: 53400 when the queue is full and its binding says `error`.
fn has_room(bound: &Binding, given: &mut HashMap<i32, usize>, full: Full) -> Result<bool> {
    let Some(most) = bound.queue.max_waiting.filter(|_| bound.on_full != OnFull::Keep) else { return Ok(true) };
    let given = given.entry(bound.queue.id).or_default();
    match limits::has_room(&bound.queue, most, *given + 1) {
        Ok(()) => {
            *given += 1;
            Ok(true)
        }
        Err(error) if error.code == error::LIMIT && (bound.on_full == OnFull::Drop || full == Full::Dropped) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the copies of a binding are members of a flow that the publisher names. A member can end or block
/// its flow, so the subscriber alone cannot decide. The publisher must have bound the queue itself, or a role that
/// manages the topic must have.
fn gives_members(topic: &Topic, bound: &Binding) -> bool {
    let Some(by) = role::role(&bound.bound_by) else { return false };
    by == role::user() || permission::of_role(by, topic.id, Privilege::Manage)
}

/// Returns the options of a copy.
fn options_of(bound: &Binding, found: &Match, publisher: &Options, now: i64) -> Options {
    let own = &bound.options;
    let mut options = publisher.clone();
    options.priority = own.priority.unwrap_or(options.priority);
    if let Some(delay) = own.delay {
        options.run_at = options::in_some_future(delay, now);
    }
    options.max_attempts = own.max_attempts.or(options.max_attempts);
    options.lease = own.lease.or(options.lease);
    if own.group_path.is_some() {
        options.set_group_of_event(found.group_key.as_deref());
    }
    // A stage that the queue does not have, or no longer has, is ignored.
    options.lane = own.stage.as_ref().and_then(|stage| bound.queue.stage(stage).ok());
    options
}

/// Inserts the jobs with keys or predecessors, queue by queue. The queues come in the order of their numbers, so that
/// two publishers of the same keys do not wait for each other.
fn produce(events: &[Event], wanted: &mut [Wanted<'_>], now: i64) -> Result<()> {
    let mut order = memory::collect(0..wanted.len());
    order.sort_by_key(|&n| wanted[n].bound.queue.id);
    for n in order {
        let one = &mut wanted[n];
        let job = (events[one.event].payload, one.options.clone());
        let made = enqueue::produce(&one.bound.queue, &[job], now, By::Topic)?;
        one.job_id = made.ids.first().copied().unwrap_or_default();
    }
    Ok(())
}

/// Inserts the jobs of all queues together. A large payload that several jobs share is written once, in a row of its
/// own.
fn insert(events: &[Event], wanted: &mut [Wanted<'_>], now: i64) -> Result<()> {
    let node = ids::node();
    for wants_far in [false, true] {
        let is_here = |one: &Wanted<'_>| enqueue::far(&one.options).is_some() == wants_far;
        let mut chosen = memory::collect((0..wanted.len()).filter(|&n| is_here(&wanted[n])));
        let Some(&first) = chosen.first() else { continue };
        // The rows of a queue lie side by side, and so do their index entries. The jobs of a queue stay in the order of
        // the events.
        chosen.sort_by_key(|&n| wanted[n].bound.queue.lane);
        let mut counts = memory::list(chosen.len());
        ids::take(chosen.len(), |count| counts.push(count))?;
        let target = Target::open(enqueue::far(&wanted[first].options));
        let mut of_event = memory::filled(0_usize, events.len());
        chosen.iter().for_each(|&n| of_event[wanted[n].event] += 1);
        let (holders, mut attempts) = shared_payloads(&target, events, &of_event, now)?;
        let shared = attempts.len() as i64;
        for (&n, count) in chosen.iter().zip(counts) {
            let Wanted { event, bound, options, job_id, .. } = &mut wanted[n];
            *job_id = id::job(node, count);
            let own = enqueue::first_attempt(&bound.queue, &target, count, events[*event].payload, options, now);
            let new = match holders[*event] {
                0 => own,
                holder => New { payload: None, payload_of: Some(holder), ..own },
            };
            memory::push(&mut attempts, new);
        }
        attempt::insert_admitted(&target, &attempts);
        if shared > 0 {
            let segment = target.home.segment;
            transaction::record(SegmentStep::Counted { segment, attempts: shared, ended: shared });
        }
        let mut last = None;
        for &n in &chosen {
            let queue = &wanted[n].bound.queue;
            if last.replace(queue.id) != Some(queue.id) {
                enqueue::announce(queue);
            }
        }
    }
    Ok(())
}

/// Makes rows of payloads that several jobs share, if that takes less room. Returns the row with the payload of each
/// event, or 0 if each job has the payload, and the rows.
fn shared_payloads(target: &Target, events: &[Event], copies: &[usize], now: i64) -> Result<(Vec<i64>, Vec<New>)> {
    let mut holders = memory::filled(0, events.len());
    let is_shared = |n: &usize| copies[*n] > 1 && datum::stored_size(events[*n].payload) > attempt::REFER_ABOVE;
    let shared = memory::collect((0..events.len()).filter(is_shared));
    let mut counts = memory::list(shared.len());
    if !shared.is_empty() {
        ids::take(shared.len(), |count| counts.push(count))?;
    }
    let node = ids::node();
    let row = |(&n, count): (&usize, i64)| {
        holders[n] = id::attempt(node, count, target.home.segment);
        New::payload_alone(holders[n], id::job(node, count), now, events[n].payload)
    };
    let rows = memory::collect(shared.iter().zip(counts).map(row));
    Ok((holders, rows))
}

/// Checks a key.
///
/// Errors: 22023 when it is too long, or has too many words.
pub fn check_key(key: &str) -> Result<()> {
    pg_queue_core::topic::check_key(key).map_err(|fault| refused("key", fault))
}

/// Returns the error for a wrong key or pattern.
pub fn refused(what: &str, fault: pg_queue_core::topic::Fault) -> Error {
    use pg_queue_core::topic::{Fault, MAX_BYTES, MAX_WORDS};
    match fault {
        Fault::TooLong(bytes) => {
            Error::invalid(format!("{what} must have at most {MAX_BYTES} bytes")).detail(format!("It has {bytes}."))
        }
        Fault::TooManyWords(words) => Error::invalid(format!("{what} must have at most {MAX_WORDS} words"))
            .detail(format!("It has {words}, with dots between them.")),
        Fault::Wildcard => Error::invalid(format!("in a {what} * and # stand for whole words"))
            .hint("For instance 'order.*' or 'order.#'."),
    }
}
