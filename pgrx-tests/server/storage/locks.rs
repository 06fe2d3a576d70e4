//! An administrator rebuilds indexes while the storage duty runs. Neither ends the other by a deadlock.

use crate::shared::*;
use crate::storage::segments::cluster;

/// The extension's tables that a process has locked, directly or through an index.
const LOCKED: &str = "SELECT DISTINCT coalesce(i.indrelid, l.relation)::regclass::text
    FROM pg_locks AS l LEFT JOIN pg_index AS i ON i.indexrelid = l.relation
    JOIN pg_class AS c ON c.oid = coalesce(i.indrelid, l.relation)
    WHERE l.pid = $1 AND c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r'";

#[test]
fn no_step_of_the_storage_duty_deadlocks_with_a_reindex() {
    let cluster = cluster(&["pg_queue.worker = off", "deadlock_timeout = '100ms'"]);
    let mut client = cluster.connect();
    for point in ["move.chosen", "move.marked", "move.written", "move.copied", "copy.read"] {
        // One job waits and one runs with a note. Both are moved.
        client.run("SELECT count(*) FROM queue.enqueue_many('q', '{1,2}'::jsonb[], priority => 5)");
        client.run("SELECT queue.progress(id, '1') FROM queue.claim('q')");
        client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{1000}'), priority => -5)");
        client.work_off("q", 1000);
        let fault = cluster.fault(point, "wait");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            let mut other = cluster.connect();
            let stop = &stop;
            let duty = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    other.run("SELECT queue.maintain()");
                }
            });
            let pid = fault.wait_reached();
            let tables: Vec<String> = client.query(LOCKED, &[&pid]).unwrap().iter().map(|row| row.get(0)).collect();
            for log in ["attempt_", "claim_", "outcome_", "segment_log"] {
                let begin = format!("queue_internal.{log}");
                assert!(tables.iter().any(|table| table.starts_with(&begin)), "{point}: {tables:?} are locked");
            }
            let administrators = tables.iter().map(|table| {
                let mut session = cluster.connect();
                let pid = session.pid();
                let table = table.clone();
                (
                    pid,
                    scope.spawn(move || {
                        session.batch_execute(&format!("REINDEX TABLE {table}")).map_err(|e| (table, e))
                    }),
                )
            });
            let administrators: Vec<_> = administrators.collect();
            for (pid, reindex) in &administrators {
                wait::until_true("the REINDEX waits or has ended", || {
                    let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
                    !client.query(sql, &[pid]).unwrap().is_empty() || reindex.is_finished()
                });
            }
            assert!(fault.release());
            for (_, reindex) in administrators {
                let done = reindex.join().unwrap();
                assert!(done.is_ok(), "{point}: {done:?}");
            }
            stop.store(true, Ordering::Relaxed);
            assert!(duty.join().is_ok(), "{point}: the duty failed");
        });
        client.run("SELECT queue.maintain()");
    }
    assert!(!cluster.log().contains("deadlock"), "{}", cluster.log());
    client.check();
}
