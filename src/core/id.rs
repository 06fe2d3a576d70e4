//! Ids of jobs and attempts.
//!
//! An id is a `bigint` below 2^53, so that JSON and JavaScript hold it exactly. [`Kind`] shows its bits.
//!
//! Invariant: a job's id and an attempt's id are never equal, so that code that mixes them up fails at the first try
//! and not at the first retry in production.

/// The low four bits of every job's id.
pub const JOB_NIBBLE: i64 = 15;
/// The low four bits of every event's id.
pub const EVENT_NIBBLE: i64 = 14;
/// The number of segments. Segments 0..8 are the young ones, 8 and 9 are the two halves of old.
pub const SEGMENTS: usize = 10;
/// The largest count, 42 bits.
pub const MAX_COUNT: i64 = (1 << 42) - 1;
/// The largest node number, 7 bits.
pub const MAX_NODE: i64 = 127;

/// The kind of thing that an id names. The bits of an id:
///
/// ```text
/// bits 52..46   node number (setting pg_queue.node_id)
/// bits 45..4    count, never handed out twice
/// bits  3..0    0..9: an attempt, born in that segment; 14: an event that was published; 15: a job
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An attempt. Its row was born in this segment.
    Attempt(u8),
    /// A job.
    Job,
    /// Nothing: no id of this extension has such bits.
    Neither,
}

/// Returns the id of the job with this count on this node.
pub const fn job(node: i64, count: i64) -> i64 {
    (node << 46) | (count << 4) | JOB_NIBBLE
}

/// Returns the id of the attempt with this count on this node, born in this segment.
pub const fn attempt(node: i64, count: i64, segment: u8) -> i64 {
    (node << 46) | (count << 4) | segment as i64
}

/// Returns the id of a job's first attempt, born in `segment`. It has the same count as the job.
pub const fn first_attempt(job_id: i64, segment: u8) -> i64 {
    (job_id & !15) | segment as i64
}

/// Returns the id of the event with this count on this node.
pub const fn event(node: i64, count: i64) -> i64 {
    (node << 46) | (count << 4) | EVENT_NIBBLE
}

/// Returns the count in an id. Of two attempts of one job the newer one has the larger count.
pub const fn count(id: i64) -> i64 {
    (id >> 4) & MAX_COUNT
}

/// Returns the number of the node that made the id.
pub const fn node(id: i64) -> i64 {
    (id >> 46) & MAX_NODE
}

/// Returns the kind of thing that `id` names, judged by its bits alone.
pub const fn kind(id: i64) -> Kind {
    // The counts begin at one.
    if id <= 0 || id >= 1 << 53 || count(id) == 0 {
        return Kind::Neither;
    }
    match id & 15 {
        JOB_NIBBLE => Kind::Job,
        segment if (segment as usize) < SEGMENTS => Kind::Attempt(segment as u8),
        _ => Kind::Neither,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_and_its_attempts_never_share_an_id() {
        for segment in 0..SEGMENTS as u8 {
            let job_id = job(3, 77);
            assert_ne!(job_id, first_attempt(job_id, segment));
            assert_eq!(first_attempt(job_id, segment), attempt(3, 77, segment));
            assert_eq!(kind(attempt(3, 77, segment)), Kind::Attempt(segment));
        }
        assert_eq!(kind(job(3, 77)), Kind::Job);
    }

    #[test]
    fn the_largest_id_is_exact_in_json_and_javascript() {
        assert_eq!(job(MAX_NODE, MAX_COUNT), (1 << 53) - 1);
        assert_eq!(kind(job(MAX_NODE, MAX_COUNT)), Kind::Job);
        assert_eq!(kind(1 << 53), Kind::Neither);
        assert_eq!(kind(0), Kind::Neither);
        assert_eq!(kind(-1), Kind::Neither);
        assert_eq!(kind(0x1c), Kind::Neither);
        // Small numbers that a newcomer might try.
        assert!((1..=15).all(|id| kind(id) == Kind::Neither));
    }
}
