//! Topics and their bindings, as this session knows them: read when a topic is used, and kept until Postgres says that queues or
//! bindings have changed (every change of either sends that message with its commit).
//!
//! Not responsible for changing them (`api::topics`), for the words of keys and patterns (`core::topic`), nor for what a binding
//! that matches does (`job::publish`).
//!
//! Invariant: what a session knows of a topic is what one snapshot has shown: all that a transaction has bound and unbound, or
//! nothing of it; and a session that was told of a change uses nothing that it read before.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::topic::Patterns;
use pgrx::pg_sys::Oid;

use crate::catalog::queue::{self, Queue};
use crate::catalog::{Catalog, spi};
use crate::error::{self, Error, Result};
use crate::pg::datum::Interval;
use crate::pg::jsonpath::Path;
use crate::pg::parameter::Parameter;
use crate::pg::relcache;
use crate::pg::snapshot::ActiveSnapshot;

/// A topic.
pub struct Topic {
    /// From the numbers of queues.
    pub id: i32,
    pub name: String,
    /// In the order of their numbers.
    pub bindings: Vec<Binding>,
    /// The patterns of the bindings, by their places.
    pub patterns: Patterns,
}

/// A queue that gets jobs, and which.
pub struct Binding {
    pub id: i32,
    pub queue: Rc<Queue>,
    pub pattern: String,
    pub filter: Option<Path>,
    pub options: Overrides,
    pub on_full: OnFull,
}

/// What counts in place of what the publisher says.
pub struct Overrides {
    pub priority: Option<i32>,
    pub delay: Option<Interval>,
    pub group_path: Option<Path>,
    pub max_attempts: Option<i32>,
    pub lease: Option<Interval>,
    pub stage: Option<String>,
}

/// What `max_waiting` of a bound queue means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    /// Nothing: the queue gets its job.
    Keep,
    /// The queue gets no job.
    Drop,
    /// The publisher gets an error.
    Error,
}

impl OnFull {
    /// By its name.
    ///
    /// Errors: 22023 when there is no such.
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

/// Whether the extension's SQL has topics: not before version 0.3.0.
fn are_known(catalog: &Catalog) -> bool {
    catalog.topic != Oid::INVALID
}

/// Returns the topic of this name; `None`: there is none.
pub fn find(catalog: &Catalog, name: &str) -> Result<Option<Rc<Topic>>> {
    let known = cached(|cache| cache.by_id.values().find(|topic| topic.name == name).cloned());
    if known.is_some() || !are_known(catalog) {
        return Ok(known);
    }
    read(catalog, "t.topic_name OPERATOR(pg_catalog.=) $1", name.to_owned().into())
}

/// Returns the topic of this name.
///
/// Errors: 42704 when there is none, with what else has the name.
pub fn by_name(catalog: &Catalog, name: &str) -> Result<Rc<Topic>> {
    if let Some(topic) = find(catalog, name)? {
        return Ok(topic);
    }
    let error = Error::new(error::UNDEFINED, format!("topic \"{name}\" does not exist"));
    Err(match queue::exists_by_name(catalog, name) {
        true => error.detail("There is a queue of that name.").hint("Use queue.enqueue for a queue."),
        false => error.hint(format!("Create it with SELECT queue.create_topic('{}').", name.replace('\'', "''"))),
    })
}

/// Returns the topic of this number; `None`: there is none.
pub fn by_id(catalog: &Catalog, id: i32) -> Result<Option<Rc<Topic>>> {
    let known = cached(|cache| cache.by_id.get(&id).cloned());
    if known.is_some() || !are_known(catalog) {
        return Ok(known);
    }
    read(catalog, "t.topic_id OPERATOR(pg_catalog.=) $1", id.into())
}

/// Reads a topic and its bindings, and keeps them.
fn read(catalog: &Catalog, condition: &str, which: Parameter) -> Result<Option<Rc<Topic>>> {
    let _snapshot = ActiveSnapshot::with_own();
    let mut found: Option<Topic> = None;
    let mut rows = spi::read_rows(
        &format!(
            "SELECT t.topic_id, t.topic_name, b.binding_id, b.queue_id, b.pattern, b.filter, b.priority, b.delay, b.group_path,
                    b.max_attempts, b.lease, b.stage, b.on_full
             FROM queue.topic AS t LEFT JOIN queue.binding AS b ON b.topic_id OPERATOR(pg_catalog.=) t.topic_id
             WHERE {condition} ORDER BY b.binding_id"
        ),
        &[which],
        |row| {
            let interval = |n: usize| -> std::result::Result<Option<Interval>, pgrx::spi::Error> {
                let read = row.get::<pgrx::datum::Interval>(n)?;
                Ok(read.map(|i| Interval { months: i.months(), days: i.days(), time: i.micros() }))
            };
            found.get_or_insert(Topic {
                id: row.get(1)?.unwrap_or_default(),
                name: row.get(2)?.unwrap_or_default(),
                bindings: Vec::new(),
                patterns: Patterns::default(),
            });
            let Some(id) = row.get::<i32>(3)? else { return Ok(None) };
            let options = Overrides {
                priority: row.get(7)?,
                delay: interval(8)?,
                group_path: row.get::<String>(9)?.as_deref().and_then(Path::parse),
                max_attempts: row.get(10)?,
                lease: interval(11)?,
                stage: row.get(12)?,
            };
            let filter = row.get::<String>(6)?.as_deref().and_then(Path::parse);
            let on_full = row.get::<String>(13)?.as_deref().and_then(|name| OnFull::parse(name).ok());
            let (queue_id, pattern): (Option<i32>, Option<String>) = (row.get(4)?, row.get(5)?);
            let on_full = on_full.unwrap_or(OnFull::Keep);
            Ok(Some((id, queue_id.unwrap_or_default(), pattern.unwrap_or_default(), filter, options, on_full)))
        },
    )?;
    let Some(mut topic) = found else { return Ok(None) };
    let mut queues: HashMap<i32, Option<Rc<Queue>>> = HashMap::new();
    for (id, queue_id, pattern, filter, options, on_full) in rows.drain(..).flatten() {
        let queue = match queues.get(&queue_id) {
            Some(known) => known.clone(),
            None => queues.entry(queue_id).or_insert(queue::by_id(catalog, queue_id)?).clone(),
        };
        // A queue that was dropped since has no bindings.
        let Some(queue) = queue else { continue };
        topic.patterns.add(&pattern, topic.bindings.len() as u32);
        topic.bindings.push(Binding { id, queue, pattern, filter, options, on_full });
    }
    let topic = Rc::new(topic);
    cached(|cache| cache.by_id.insert(topic.id, Rc::clone(&topic)));
    Ok(Some(topic))
}

/// Locks a topic against being dropped until the transaction ends.
///
/// Errors: 42704 when it was dropped.
pub fn lock(topic: &Topic) -> Result<()> {
    let sql =
        "SELECT topic_id::pg_catalog.int8 FROM queue.topic WHERE topic_id OPERATOR(pg_catalog.=) $1 FOR KEY SHARE";
    if spi::i64_column(sql, &[topic.id.into()])?.is_empty() {
        return Err(Error::new(error::UNDEFINED, format!("topic \"{}\" does not exist", topic.name))
            .detail("It was dropped a moment ago."));
    }
    Ok(())
}
