//! Names of queues and topics, which share one set of names, and the cycles that dead letters and bindings could make.
//!
//! Not responsible for how sessions know queues and topics (`catalog::queue`, `catalog::topic`).
//!
//! Invariant: a name has one queue or one topic. No dead job comes back to the queue in which it died.

use crate::catalog::{self, queue, topic};
use crate::error::{self, Error, Result};
use crate::job::keys;
use crate::pg::argument::{Argument, kind};
use crate::pg::function::Call;
use crate::pg::{lock, session};

/// The number of tokens by which names are locked while their queues are being made: two names seldom share a token,
/// and a transaction that makes any number of queues leaves room in Postgres's table of locks.
const NAME_TOKENS: u32 = 4096;

/// Returns an argument that is the name of a queue or a topic.
///
/// Errors: 22023 when it is too long, or empty.
pub fn checked(call: &Call, argument: Argument<kind::Text>) -> Result<String> {
    let name = call.need(argument)?;
    let argument = argument.name;
    if name.is_empty() || name.chars().count() > 200 {
        return Err(Error::invalid(format!("{argument} must have 1 to 200 characters"))
            .detail(format!("It has {}.", name.chars().count())));
    }
    Ok(name)
}

/// Checks the name of a new queue.
///
/// Errors: 22023 for a name that has a meaning in privileges.
pub fn check_new(name: &str) -> Result<()> {
    if name != "*" {
        return Ok(());
    }
    Err(Error::invalid("a queue cannot be called \"*\"")
        .detail("In queue.grant and queue.revoke that means all queues."))
}

/// Returns the error for a new queue or topic whose name a topic has.
pub fn taken_by_topic(name: &str) -> Error {
    Error::new(error::DUPLICATE, format!("topic \"{name}\" already exists"))
        .hint("Topics and queues share their names.")
}

/// Waits until no other transaction makes a queue or a topic of this name, and keeps others from it.
///
/// ON CONFLICT alone would not do: while an index is built anew there are two, and a duplicate in the newer one is an
/// error.
pub fn lock(name: &str) {
    lock_in(0, name);
}

/// As `lock`, for schedules, which have names of their own.
pub fn lock_schedule(name: &str) {
    lock_in(1, name);
}

fn lock_in(namespace: i32, name: &str) {
    let hash = keys::hash(namespace, name.as_bytes()) as u32;
    lock::lock_token(catalog::pinned().queue, hash % NAME_TOKENS);
    session::accept_invalidations();
}

/// Serialises changes of `dead_letter` and bindings: two at the same time could make a cycle that neither sees.
pub fn lock_dead_letters() {
    lock::lock_token(catalog::pinned().queue, NAME_TOKENS);
    session::accept_invalidations();
}

/// Checks that jobs that go from `name` to `target`, both queues or topics, do not come back. A queue's dead jobs go to
/// its `dead_letter`, and a topic's events go to all queues that are bound to it.
///
/// Errors: 22023 when it does.
pub fn check_no_circle(name: &str, target: &str) -> Result<()> {
    // The paths that were not followed yet. No name is visited twice, because SQL may have made a cycle in the
    // tables.
    let mut ways = vec![vec![name.to_owned(), target.to_owned()]];
    let mut met = vec![target.to_owned()];
    while let Some(way) = ways.pop() {
        let Some(last) = way.last() else { continue };
        let next: Vec<String> = match topic::find(last)? {
            Some(topic) => topic::bound_queues(&topic)?,
            // A missing queue ends the path: the call that creates it with a dead_letter checks again.
            None => queue::by_name(last).ok().and_then(|queue| queue.dead_letter.clone()).into_iter().collect(),
        };
        for next in next {
            let way: Vec<String> = way.iter().cloned().chain([next.clone()]).collect();
            if next == name {
                let names: Vec<String> = way.iter().map(|name| format!("\"{name}\"")).collect();
                return Err(Error::invalid(format!("dead jobs of queue \"{name}\" would come back to it"))
                    .detail(format!("The dead letters would go {}.", names.join(" to ")))
                    .hint("Let the last queue of the way have no dead_letter."));
            }
            if !met.contains(&next) {
                met.push(next);
                ways.push(way);
            }
        }
    }
    Ok(())
}
