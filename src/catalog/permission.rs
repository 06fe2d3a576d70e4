//! Checks whether the current user may do something with a queue or topic, and makes the error if not. Not responsible
//! for the rights themselves (`rights`), nor for GRANTs on functions and views (`grants`).
//!
//! Invariant: each error names the missing privilege and the statement that grants it.

use crate::catalog::queue::{self, Queue};
pub use crate::catalog::rights::{
    EVERY_QUEUE, PUBLIC, Privilege, Rights, each_row, has_news, known_rights, news, of_role, rights, wait_for_news,
};
use crate::catalog::topic::Topic;
use crate::error::{self, Error, Result};
use crate::pg::role;

/// Checks that the current user may do this with the queue.
///
/// Errors: 42501 otherwise.
pub fn check(queue: &Queue, wanted: Privilege) -> Result<()> {
    if rights().on_lane(queue.lane, wanted) { Ok(()) } else { Err(denied("queue", &queue.name, wanted)) }
}

/// Checks that the current user may do this with a topic.
///
/// Errors: 42501 otherwise.
pub fn check_topic(topic: &Topic, wanted: Privilege) -> Result<()> {
    if rights().on_queue(topic.id, wanted) { Ok(()) } else { Err(denied("topic", &topic.name, wanted)) }
}

/// Returns the error for an unknown role, 42704.
pub fn no_role(name: &str) -> Error {
    Error::new(error::UNDEFINED, format!("role \"{name}\" does not exist"))
        .hint("View pg_roles lists the roles; CREATE ROLE makes one. Names are compared byte by byte.")
}

/// Checks that the current user may do this with every queue.
///
/// Errors: 42501 otherwise.
pub fn check_everywhere(wanted: Privilege) -> Result<()> {
    if rights().everywhere(wanted) { Ok(()) } else { Err(denied("queue", "*", wanted)) }
}

/// Checks that the current user may do this with the queue that the lane belongs to.
///
/// Errors: 42501 otherwise.
pub fn check_lane(lane: i32, wanted: Privilege) -> Result<()> {
    if rights().on_lane(lane, wanted) { Ok(()) } else { Err(denied_lane(lane, wanted)?) }
}

/// Returns the error for a user that may not do this with the queue that the lane belongs to.
pub fn denied_lane(lane: i32, wanted: Privilege) -> Result<Error> {
    Ok(match queue::by_lane(lane)? {
        Some(queue) => denied("queue", &queue.name, wanted),
        None => Error::new(error::DENIED, "permission denied for a queue that was dropped"),
    })
}

fn denied(kind: &str, name: &str, wanted: Privilege) -> Error {
    Error::new(error::DENIED, format!("permission denied for {kind} \"{name}\""))
        .detail(format!("This needs the privilege {}.", wanted.name()))
        .hint(format!("A role that manages it can run {}.", grant_of(name, wanted)))
}

/// Returns the statement that grants this to the current user.
pub fn grant_of(name: &str, wanted: Privilege) -> String {
    let user = role::role_name(role::user()).unwrap_or_default();
    let quoted = |text: &str| text.replace('\'', "''");
    format!("SELECT queue.grant('{}', '{}', '{}')", quoted(name), quoted(&user), wanted.name())
}
