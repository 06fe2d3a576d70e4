//! Topics and their bindings, as this session knows them. A session reads a topic when it uses it, and keeps it until
//! Postgres reports a change of queues or bindings. Every such change sends an invalidation message with its commit.
//!
//! Not responsible for changing them (`api::topics`), for the words of keys and patterns (`core::topic`), nor for the
//! effect of a binding that matches (`job::publish`).
//!
//! Invariant: a session reads the routes of a topic under one snapshot, so it knows all or nothing of what a
//! transaction has bound and unbound. After the message of a change, a session uses nothing that it read before.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::topic::Patterns;

use crate::catalog::queue::{self, Queue};
use crate::catalog::rights::{self, Privilege};
use crate::catalog::spi;
use crate::error::{self, Error, Result};
use crate::pg::datum::Interval;
use crate::pg::jsonpath::{Budget, Path};
use crate::pg::parameter::Parameter;
use crate::pg::relcache;
use crate::pg::snapshot::ActiveSnapshot;

/// A topic.
pub struct Topic {
    /// Topics and queues share their numbers.
    pub id: i32,
    pub name: String,
    routes: OnceCell<Routes>,
}

impl Topic {
    fn new(id: i32, name: String) -> Self {
        Self { id, name, routes: OnceCell::new() }
    }

    /// Returns where its events go. The first call reads that, so a session that only binds one more queue does not
    /// read all the other bindings.
    pub fn routes(&self) -> Result<&Routes> {
        if let Some(routes) = self.routes.get() {
            return Ok(routes);
        }
        let routes = Routes::read(self.id)?;
        Ok(self.routes.get_or_init(|| routes))
    }
}

/// Where a topic's events go.
#[derive(Default)]
pub struct Routes {
    /// Ordered by number.
    pub bindings: Vec<Binding>,
    /// The patterns, by index in `bindings`.
    pub patterns: Patterns,
}

/// A binding: a queue, and which events add a job to it.
pub struct Binding {
    pub id: i32,
    pub queue: Rc<Queue>,
    pub pattern: String,
    pub filter: Option<Path>,
    pub options: Overrides,
    pub on_full: OnFull,
    /// The name of the role that bound the queue.
    pub bound_by: String,
}

/// Options of a binding that replace those of the publisher.
pub struct Overrides {
    pub priority: Option<i32>,
    pub delay: Option<Interval>,
    pub group_path: Option<Path>,
    pub max_attempts: Option<i32>,
    pub lease: Option<Interval>,
    pub stage: Option<String>,
}

/// What happens to an event when a bound queue has reached its `max_waiting`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    /// The queue gets its job nevertheless.
    Keep,
    /// The queue gets no job.
    Drop,
    /// The publisher gets an error.
    Error,
}

impl OnFull {
    /// Returns the value of this name.
    ///
    /// Errors: 22023 if there is none.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "keep" => Ok(Self::Keep),
            "drop" => Ok(Self::Drop),
            "error" => Ok(Self::Error),
            other => Err(Error::invalid(format!("invalid value for on_full: \"{other}\""))
                .hint("Use 'keep', 'drop' or 'error'.")),
        }
    }
}

#[derive(Default)]
struct Cache {
    changes: u64,
    by_id: HashMap<i32, Rc<Topic>>,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

fn cached<T>(get: impl FnOnce(&mut Cache) -> T) -> T {
    CACHE.with_borrow_mut(|cache| {
        let changes = relcache::queue_changes();
        if cache.changes != changes {
            *cache = Cache { changes, ..Cache::default() };
        }
        get(cache)
    })
}

/// Returns the topic of this name; `None` if it does not exist.
pub fn find(name: &str) -> Result<Option<Rc<Topic>>> {
    let known = cached(|cache| cache.by_id.values().find(|topic| topic.name == name).cloned());
    if known.is_some() {
        return Ok(known);
    }
    read("topic_name OPERATOR(pg_catalog.=) $1", name.to_owned().into())
}

/// Returns the topic of this name.
///
/// Errors: 42704 if it does not exist. The error says if a queue has the name, or which topic has a similar one.
pub fn by_name(name: &str) -> Result<Rc<Topic>> {
    if let Some(topic) = find(name)? {
        return Ok(topic);
    }
    let error = Error::new(error::UNDEFINED, format!("topic \"{name}\" does not exist"));
    Err(match queue::exists_by_name(name) {
        true => error
            .detail("There is a queue of that name.")
            .hint("Use queue.enqueue for a queue. Where a call takes both, give the topic first, then the queue."),
        false => match nearest(name)? {
            Some(other) => error.hint(format!("There is a topic \"{other}\". Names are compared byte by byte.")),
            None => error.hint(format!(
                "View queue.topics lists the topics. To make this one, run SELECT queue.create_topic('{}').",
                name.replace('\'', "''")
            )),
        },
    })
}

/// Returns the topic with the most similar name, among the first 1000 topics and only if the current user has a
/// privilege on it. `None` if no name is similar.
fn nearest(name: &str) -> Result<Option<String>> {
    let rights = rights::rights();
    let is_known = |id: i32| Privilege::ALL.into_iter().any(|(privilege, _)| rights.on_queue(id, privilege));
    let _snapshot = ActiveSnapshot::with_own();
    let sql = "SELECT topic_id, topic_name FROM queue_internal.topic LIMIT 1000";
    let topics: Vec<(i32, String)> =
        spi::read_rows(sql, &[], |row| Ok((row.get(1)?.unwrap_or_default(), row.get(2)?.unwrap_or_default())))?;
    let names = topics.iter().filter(|(id, _)| is_known(*id)).map(|(_, name)| name.as_str());
    Ok(pg_queue_core::advice::nearest(name, names).map(str::to_owned))
}

/// Returns the topic of this number; `None` if it does not exist.
pub fn by_id(id: i32) -> Result<Option<Rc<Topic>>> {
    let known = cached(|cache| cache.by_id.get(&id).cloned());
    if known.is_some() {
        return Ok(known);
    }
    read("topic_id OPERATOR(pg_catalog.=) $1", id.into())
}

/// Reads a topic and keeps it in the cache.
fn read(condition: &str, which: Parameter) -> Result<Option<Rc<Topic>>> {
    let _snapshot = ActiveSnapshot::with_own();
    let sql = format!("SELECT topic_id, topic_name FROM queue_internal.topic WHERE {condition}");
    let found = spi::read_rows(&sql, &[which], |row| {
        Ok(Topic::new(row.get(1)?.unwrap_or_default(), row.get(2)?.unwrap_or_default()))
    })?;
    let found = found.into_iter().next().map(Rc::new);
    if let Some(topic) = &found {
        cached(|cache| cache.by_id.insert(topic.id, Rc::clone(topic)));
    }
    Ok(found)
}

/// How much processor time the filters and paths of one queue may take to be read, and again for each event.
pub const FILTER_BUDGET_US: i64 = 50_000;

impl Routes {
    fn read(topic: i32) -> Result<Self> {
        let _snapshot = ActiveSnapshot::with_own();
        let sql = "SELECT binding_id, queue_id, pattern, filter, priority, delay, group_path, max_attempts, lease,
            stage, on_full,
                       bound_by
                   FROM queue_internal.binding WHERE topic_id OPERATOR(pg_catalog.=) $1 ORDER BY binding_id";
        let mut budgets: HashMap<i32, Budget> = HashMap::new();
        let rows = spi::read_rows(sql, &[topic.into()], |row| {
            let queue_id: i32 = row.get(2)?.unwrap_or_default();
            // The paths of one queue's bindings take at most this much time of each session.
            let budget = budgets.entry(queue_id).or_insert_with(|| Budget::of(FILTER_BUDGET_US));
            let mut path = |text: Option<String>| text.map(|text| Path::parse(&text, budget));
            let interval = |n: usize| -> std::result::Result<Option<Interval>, pgrx::spi::Error> {
                let read = row.get::<pgrx::datum::Interval>(n)?;
                Ok(read.map(|i| Interval { months: i.months(), days: i.days(), time: i.micros() }))
            };
            let options = Overrides {
                priority: row.get(5)?,
                delay: interval(6)?,
                group_path: path(row.get::<String>(7)?),
                max_attempts: row.get(8)?,
                lease: interval(9)?,
                stage: row.get(10)?,
            };
            let (id, queue): (Option<i32>, Option<i32>) = (row.get(1)?, row.get(2)?);
            let (pattern, filter): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
            let bound_by: Option<String> = row.get(12)?;
            let on_full = row.get::<String>(11)?.as_deref().and_then(|name| OnFull::parse(name).ok());
            let filter = path(filter);
            let on_full = on_full.unwrap_or(OnFull::Keep);
            Ok((
                id.unwrap_or_default(),
                queue.unwrap_or_default(),
                pattern.unwrap_or_default(),
                filter,
                options,
                on_full,
                bound_by.unwrap_or_default(),
            ))
        })?;
        let mut queues: HashMap<i32, Option<Rc<Queue>>> = HashMap::new();
        let mut routes = Self::default();
        for (id, queue_id, pattern, filter, options, on_full, bound_by) in rows {
            let queue = match queues.get(&queue_id) {
                Some(known) => known.clone(),
                None => queues.entry(queue_id).or_insert(queue::by_id(queue_id)?).clone(),
            };
            // The queue was dropped meanwhile, and its bindings with it.
            let Some(queue) = queue else { continue };
            routes.patterns.add(&pattern, routes.bindings.len() as u32);
            routes.bindings.push(Binding { id, queue, pattern, filter, options, on_full, bound_by });
        }
        Ok(routes)
    }
}

/// Returns the names of the queues that are bound to a topic.
pub fn bound_queues(topic: &Topic) -> Result<Vec<String>> {
    let _snapshot = ActiveSnapshot::with_own();
    let sql = "SELECT queue_name FROM queue_internal.queue
               WHERE queue_id IN (SELECT queue_id FROM queue_internal.binding
               WHERE topic_id OPERATOR(pg_catalog.=) $1)";
    spi::read_rows(sql, &[topic.id.into()], |row| Ok(row.get::<String>(1)?.unwrap_or_default()))
}

/// A topic and the queues that are bound to it.
pub struct Listed {
    /// Its number.
    pub id: i32,
    pub name: String,
    /// The numbers of the queues.
    pub queues: Vec<i32>,
}

/// Returns all topics, ordered by name. It does not cache them.
pub fn all() -> Result<Vec<Listed>> {
    let _snapshot = ActiveSnapshot::with_own();
    let sql = "SELECT t.topic_id, t.topic_name,
                   ARRAY(SELECT DISTINCT b.queue_id FROM queue_internal.binding AS b
                   WHERE b.topic_id OPERATOR(pg_catalog.=) t.topic_id)
               FROM queue_internal.topic AS t ORDER BY t.topic_name";
    spi::read_rows(sql, &[], |row| {
        Ok(Listed {
            id: row.get(1)?.unwrap_or_default(),
            name: row.get(2)?.unwrap_or_default(),
            queues: row.get(3)?.unwrap_or_default(),
        })
    })
}

/// Prevents that a topic is dropped before this transaction ends.
///
/// Errors: 42704 if it was dropped.
pub fn lock(topic: &Topic) -> Result<()> {
    let sql = "SELECT topic_id::pg_catalog.int8 FROM queue_internal.topic
        WHERE topic_id OPERATOR(pg_catalog.=) $1 FOR KEY SHARE";
    if spi::i64_column(sql, &[topic.id.into()])?.is_empty() {
        return Err(Error::new(error::UNDEFINED, format!("topic \"{}\" does not exist", topic.name))
            .detail("It was dropped a moment ago."));
    }
    Ok(())
}

/// Returns the name of a topic to which a queue is bound. `None` if there is none.
pub fn bound_to(queue: i32) -> Result<Option<String>> {
    let _snapshot = ActiveSnapshot::with_own();
    let sql = "SELECT t.topic_name FROM queue_internal.binding AS b
               JOIN queue_internal.topic AS t ON t.topic_id OPERATOR(pg_catalog.=) b.topic_id
               WHERE b.queue_id OPERATOR(pg_catalog.=) $1 LIMIT 1";
    spi::text(sql, &[queue.into()])
}

/// Returns the topic's name, the pattern and the maker of a binding. `None` if the binding is gone.
pub fn binding(id: i32) -> Result<Option<(String, String, String)>> {
    let _snapshot = ActiveSnapshot::with_own();
    let sql = "SELECT t.topic_name, b.pattern, b.bound_by FROM queue_internal.binding AS b
               JOIN queue_internal.topic AS t ON t.topic_id OPERATOR(pg_catalog.=) b.topic_id
               WHERE b.binding_id OPERATOR(pg_catalog.=) $1";
    let text = |value: Option<String>| value.unwrap_or_default();
    let rows = spi::read_rows(sql, &[id.into()], |row| Ok((text(row.get(1)?), text(row.get(2)?), text(row.get(3)?))))?;
    Ok(rows.into_iter().next())
}
