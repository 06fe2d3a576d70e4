//! Copies each job that dies into its queue's `dead_letter`, a queue or a topic, in the transaction in which it dies.
//!
//! The copy is a job of its own, with the payload, priority and group of the dead one. Its headers are those of the
//! dead one and, under `dead_letter`, where it came from and what it died of. Nothing here keeps a job from dying: if
//! there is no such queue any more, it dies with a warning.

use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::queue::{self, Queue};
use crate::catalog::topic::{self, Topic};
use crate::catalog::{Catalog, ids};
use crate::error::{self, Error, Result};
use crate::job::options::Options;
use crate::job::publish::{self, Event, Full};
use crate::job::successor;
use crate::log::attempt::{self, Attempt, New};
use crate::log::reader::Reader;
use crate::pg::{jsonb, time};
use crate::transaction::{self, Step};

/// Copies a job that dies with its last attempt.
///
/// Errors: 55006 when the queue is being dropped.
pub fn copy(catalog: &Catalog, from: &Queue, attempt: &Attempt, error: &str) -> Result<()> {
    let Some(name) = &from.dead_letter else { return Ok(()) };
    let to = match queue::by_name(catalog, name) {
        Ok(to) => To::Queue(to),
        Err(e) if [error::NOT_SUPPORTED, error::UNDEFINED].contains(&e.code) => match topic::find(catalog, name)? {
            Some(topic) => To::Topic(topic),
            None => {
                warn(from, attempt, name);
                return Ok(());
            }
        },
        Err(e) => return Err(e),
    };
    let now = time::now_us();
    let death = jsonb::of(&serde_json::json!({ "dead_letter": {
        "queue": from.name,
        "job_id": attempt.job_id(),
        "stage": from.stage_of(attempt.lane()),
        "attempt": attempt.attempt(),
        "error": error,
        "died_at": time::iso_time(now),
    }}));
    let headers = match (attempt.headers().filter(|&own| jsonb::is_object(own)), death) {
        (Some(own), Some(death)) => Some(jsonb::merged(own, death)),
        (_, death) => death,
    };
    let to = match to {
        To::Queue(queue) => queue,
        To::Topic(topic) => return publish(catalog, from, attempt, &topic, headers, now),
    };
    let (target, id) = successor::fresh(catalog, None)?;
    Reader::new(catalog).payload(attempt, |payload| {
        let copy = New {
            id,
            job_id: id::job(ids::node(), id::count(id)),
            enqueued_at: now,
            lane: to.entry(),
            attempt: 1,
            max_attempts: None,
            run_at: None,
            payload_of: None,
            payload,
            lease: None,
            headers,
            unique_key: None,
            version: None,
            last_error: None,
            progress: None,
            asked: None,
            flow: None,
            task: None,
            after: None,
            upon: None,
            steps: None,
            // A command there is data here: nobody wrote it for this queue.
            run_as: None,
            own_flow: None,
            ..attempt.copy()
        };
        attempt::insert(catalog, &target, &[copy])
    })?;
    if to.notify {
        transaction::record(catalog.number, Step::Notify { lane: to.lane });
    }
    Ok(())
}

/// Where a dead job goes.
enum To {
    Queue(Rc<Queue>),
    Topic(Rc<Topic>),
}

/// Publishes a dead job on a topic, under the name of its queue as the key. Where nothing is bound, it only dies.
fn publish(
    catalog: &Catalog,
    from: &Queue,
    attempt: &Attempt,
    topic: &Topic,
    headers: Option<Datum>,
    now: i64,
) -> Result<()> {
    let key = Some(from.name.clone()).filter(|key| publish::check_key(key).is_ok()).unwrap_or_default();
    let options = Options { priority: attempt.priority(), group_key: attempt.group_key(), ..Options::default() };
    Reader::new(catalog).payload(attempt, |payload| {
        let event = Event { key, payload: payload.unwrap_or_else(jsonb::empty_object), headers };
        publish::publish_plainly(catalog, topic, &[event], &options, now, Full::Dropped).map(|_| ())
    })
}

fn warn(from: &Queue, attempt: &Attempt, name: &str) {
    Error::new(error::UNDEFINED, format!("queue \"{name}\" does not exist"))
        .detail(format!("It is the dead_letter of queue \"{}\", whose job {} has died.", from.name, attempt.job_id()))
        .hint("Create it, or set another with queue.alter.")
        .warn();
}
