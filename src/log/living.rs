//! Finds out which of many jobs certainly live.
//!
//! Not responsible for the fates of the others (`job::after`): a job may live although it is not found here.
//!
//! Invariant: a job that is found had an attempt without an end at some moment of the search. So its end comes later
//! than the begin of the search.

use std::collections::HashMap;

use pg_queue_core::id;

use crate::catalog::tables::attempt as columns;
use crate::catalog::{self, queue};
use crate::log::claim;
use crate::log::keyed::{Keyed, Log};
use crate::log::segment;
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::table::Relation;

/// Removes the jobs that are found to live from a sorted list. Calls `pause` from time to time.
pub fn retain_others(jobs: &mut Vec<i64>, mut pause: impl FnMut()) {
    let mut lanes: HashMap<i32, bool> = HashMap::new();
    for segment in segment::inhabited() {
        let oids = catalog::segment(segment);
        let attempts = Relation::read(oids.attempt);
        // This is asked after the segment was opened, because it cannot be emptied since.
        if attempts.blocks() == 0 || !segment::word(segment).state().is_inhabited() {
            continue;
        }
        let [by_id, by_job] = Relation::read_indexes([oids.attempt_pkey, oids.attempt_job]);
        let (claims, outcomes) = (Keyed::of(segment, Log::Claim), Keyed::of(segment, Log::Outcome));
        let mut lives = |scan: &mut Scan<'_>| {
            let (id, lane) = {
                let (values, _) = scan.columns(columns::LANE + 1);
                (values[columns::ID].value() as i64, values[columns::LANE].value() as i32)
            };
            // The row is of a dropped queue, or only holds a payload.
            let is_there =
                *lanes.entry(lane).or_insert_with(|| queue::by_lane(lane).is_ok_and(|queue| queue.is_some()));
            // The mark is asked for first: if there is none, the end would be in this segment.
            let has_moved =
                || claims.find(id, Snapshot::Now).is_some_and(|row| claim::read(&row).kind == claim::Kind::Moved);
            is_there && !has_moved() && outcomes.find(id, Snapshot::Now).is_none()
        };
        let mut n = 0_u32;
        jobs.retain(|&job_id| {
            n += 1;
            if n.is_multiple_of(1024) {
                pause();
            }
            // A first attempt has its job's count, in whichever segment it was made.
            let mut first = attempts.scan(&by_id, &[Key::gt_i64(1, job_id - id::JOB_NIBBLE - 1)], Snapshot::Now);
            let is_first = first.next().is_some() && first.columns(1).0[0].value() as i64 | id::JOB_NIBBLE == job_id;
            if is_first && lives(&mut first) {
                return false;
            }
            drop(first);
            let mut later = attempts.scan(&by_job, &[Key::eq_i64(1, job_id)], Snapshot::Now);
            while later.next().is_some() {
                if lives(&mut later) {
                    return false;
                }
            }
            true
        });
    }
}
