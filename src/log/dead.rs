//! Finds dead jobs that were not revived, in the segments and in history, by indexes that have only dead jobs.
//!
//! Invariant: each dead job that the calling statement sees is found once.

use crate::catalog;
use crate::log::history::{self, Counting, Dead};
use crate::log::retried;
use crate::pg::process;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::shmem::ledger::Ledger;

const SNAPSHOT: Snapshot = Snapshot::Statement;

/// Calls `f` with each of them. Can raise a cancel.
pub fn each(ledger: &Ledger, mut f: impl FnMut(Dead)) {
    let retried = retried::Reader::open(SNAPSHOT);
    for segment in ledger.read_here() {
        let oids = catalog::segment(segment);
        let outcomes = Relation::read(oids.outcome);
        if outcomes.blocks() == 0 {
            continue;
        }
        let dead = Relation::read_index(oids.outcome_dead);
        let (attempts, attempts_pkey) = (Relation::read(oids.attempt), Relation::read_index(oids.attempt_pkey));
        let mut scan = outcomes.scan(&dead, &[], SNAPSHOT);
        for n in 1_u32.. {
            if scan.next().is_none() {
                break;
            }
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
            let [id, ended_at] = {
                let (values, _) = scan.columns(2);
                [values[0].value() as i64, values[1].value() as i64]
            };
            if retried.has(id) {
                continue;
            }
            let mut attempt = attempts.scan(&attempts_pkey, &[Key::eq_i64(1, id)], SNAPSHOT);
            if attempt.next().is_some() {
                let (values, _) = attempt.columns(4);
                f(Dead { id, job_id: values[1].value() as i64, lane: values[3].value() as i32, ended_at });
            }
        }
    }
    // Attempts that are still being copied were found in their segment.
    history::each_dead(SNAPSHOT, &Counting::of(ledger), |dead| {
        if !retried.has(dead.id) {
            f(dead);
        }
    });
}
