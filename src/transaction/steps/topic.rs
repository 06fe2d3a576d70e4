//! Steps about topics.
//!
//! Responsible for the counts that memory keeps of topics. Not responsible for publishing (`job::publish`).
//!
//! Invariant: a rollback undoes nothing, because memory changes at the commit only.

use crate::shmem::topics::Published;
use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum TopicStep {
    /// Events were published on a topic.
    Published { topic: i32, counts: Published },
    /// A topic was dropped.
    Dropped { topic: i32 },
}

impl TopicStep {
    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Published { topic, counts } => to.instance.topics.add(topic, &counts),
            Self::Dropped { topic } => to.instance.topics.forget(topic),
        }
    }
}
