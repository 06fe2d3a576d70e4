//! What `queue.check()` finds, and how each fault is mended.

/// A fault that the audit has found.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault, in a word.
    pub name: String,
    pub queue: Option<String>,
    pub job_id: Option<i64>,
    pub attempt_id: Option<i64>,
    /// The segment in which the faulty row lies.
    pub segment: Option<u8>,
    /// Describes the fault in a sentence.
    pub problem: String,
}

impl Fault {
    pub(super) fn new(name: &str, problem: &str) -> Self {
        Self {
            name: name.to_owned(),
            queue: None,
            job_id: None,
            attempt_id: None,
            segment: None,
            problem: problem.to_owned(),
        }
    }

    /// Returns how the fault is mended, in a sentence. `None`: the right state is not certain, or nothing can be done.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self.name.as_str() {
            "orphan_claim" | "orphan_outcome" | "orphan_note" | "orphan_successor" => "The row is deleted.",
            "two_places" => "The row outside of old is marked as moved, unless one of the two is claimed.",
            "lost_move" => "The mark is deleted. The attempt continues where it was.",
            "history_table" => "The table is made to depend on the extension.",
            "sequence" => "The sequence is set.",
            "unknown_claim" | "stranger" | "unreachable" | "counter" => "Memory is reloaded from the tables.",
            _ => return None,
        })
    }
}
