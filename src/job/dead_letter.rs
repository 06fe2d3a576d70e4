//! Copies each job that dies into its queue's `dead_letter`, a queue or a topic, in the transaction in which it dies.
//!
//! The copy is a job of its own, with the payload, priority and group of the dead one, and without its times. Its
//! headers are those of the dead one. Under `dead_letter` they say where the dead job came from and why it died.
//!
//! Invariant: nothing here keeps a job from dying. A copy that cannot be written is left out with a warning, and the
//! doctor reports it, because the target queue and the bindings of a topic may belong to another role.

use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::queue::{self, Queue};
use crate::catalog::topic::{self, Topic};
use crate::catalog::{drops, ids};
use crate::error::{self, Error, Result};
use crate::job::options::Options;
use crate::job::publish::{self, Event, Full};
use crate::job::{next_attempt, start_by};
use crate::log::attempt::{self, Attempt, New};
use crate::log::reader::Reader;
use crate::pg::transaction::in_subtransaction;
use crate::pg::{datum, jsonb, time};
use crate::shmem::troubles::Kind;
use crate::transaction::{self, QueueStep};

/// Stored headers of at most this many bytes are not nested deeply enough for a merge to fail.
const MAX_SHALLOW_BYTES: usize = 8_000;

/// Copies a job that dies with its last attempt.
pub fn copy(from: &Queue, attempt: &Attempt, error: &str) {
    let Some(name) = &from.dead_letter else { return };
    let written = target(name).and_then(|to| match &to {
        // Nothing in this can raise because of what the job contains, so many jobs may die in one transaction.
        To::Queue(queue) if attempt.headers().is_none_or(|own| datum::stored_size(own) <= MAX_SHALLOW_BYTES) => {
            write(from, attempt, error, &To::Queue(Rc::clone(queue)))
        }
        to => in_subtransaction(|| write(from, attempt, error, to)),
    });
    if let Err(why) = written {
        publish::note(Kind::Letter, from.id, 0);
        let detail =
            format!("It is for \"{name}\", the dead_letter of queue \"{}\". {}: {}", from.name, why.code, why.message);
        Error::new(error::WRONG_STATE, format!("the copy of dead job {} is left out", attempt.job_id()))
            .detail(detail)
            .hint(why.hint.unwrap_or_else(|| "queue.doctor() tells how often this has happened.".to_owned()))
            .warn();
    }
}

/// Returns the target for the dead jobs of a queue.
///
/// Errors: 42704 when the target does not exist.
fn target(name: &str) -> Result<To> {
    match queue::by_name(name) {
        Ok(to) => Ok(To::Queue(to)),
        Err(e) if [error::NOT_SUPPORTED, error::UNDEFINED].contains(&e.code) => match topic::find(name)? {
            Some(topic) => Ok(To::Topic(topic)),
            None => Err(Error::new(error::UNDEFINED, format!("queue \"{name}\" does not exist"))
                .hint("Create it, or set another with queue.alter.")),
        },
        Err(e) => Err(e),
    }
}

/// Writes the copy.
///
/// Errors: 55006 when the queue is being dropped, and any error of the write.
fn write(from: &Queue, attempt: &Attempt, error: &str, to: &To) -> Result<()> {
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
        To::Topic(topic) => return publish(from, attempt, topic, headers, now),
    };
    if !drops::admits(to.entry()) {
        return Err(Error::new(error::IN_USE, format!("queue \"{}\" is being dropped", to.name)));
    }
    let (target, id) = next_attempt::fresh(None)?;
    Reader::new().payload(attempt, |payload| {
        // In the copy a command is data, because no role has written it for this queue.
        let copy = New {
            lane: to.entry(),
            priority: attempt.priority(),
            attempt: 1,
            payload,
            headers,
            group_hash: attempt.group_hash(),
            group_key: attempt.group_key(),
            start_by: start_by::of_new(to, None, None, now),
            ..New::blank(id, id::job(ids::node(), id::count(id)), now)
        };
        attempt::insert_admitted(&target, &[copy]);
    });
    if to.notify {
        transaction::record(QueueStep::NotifyDue { lane: to.lane });
    }
    Ok(())
}

/// The target for dead jobs.
enum To {
    Queue(Rc<Queue>),
    Topic(Rc<Topic>),
}

/// Publishes a dead job on a topic, under the name of its queue as the key. If nothing is bound to the topic, no copy
/// is made.
fn publish(from: &Queue, attempt: &Attempt, topic: &Topic, headers: Option<Datum>, now: i64) -> Result<()> {
    let key = Some(from.name.clone()).filter(|key| publish::check_key(key).is_ok()).unwrap_or_default();
    let options = Options { priority: attempt.priority(), group_key: attempt.group_key(), ..Options::default() };
    Reader::new().payload(attempt, |payload| {
        let event = Event { key, payload: payload.unwrap_or_else(jsonb::empty_object), headers, id: None };
        publish::publish_plainly(topic, &[event], &options, now, Full::Dropped).map(|_| ())
    })
}
