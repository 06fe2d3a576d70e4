//! Runs a workload with each fault point and kind of fault. No job is lost, done twice or stuck.
//!
//! The workload calls the verbs one after the other and goes on after any error that a fault may cause. The same
//! transactions write what was enqueued and done into tables without keys. So a double is counted and not prevented.

use queue_tests::fault::points;

use crate::shared::*;

/// Points that this workload does not reach, each with a workload that would.
const UNREACHED: &[&str] = &[
    "claim.rechecked",     // rights that change in the transaction that enqueues: `rights`
    "claim.in_vain",       // a queue with many stages that memory knows nothing of: `windows`
    "drop.seen",           // a drop between an insert and its commit: `windows`
    "duty.fire_schedules", // schedules: their own tests
    "duty.forget_history", // a day that is over
    "duty.dispatch",       // a queue with an executor: its own tests
    "executor.",
    "duty.notify",     // a queue with notify
    "duty.open_gates", // a rate limit
    "duty.prune_statistics",
    "duty.restore",
    "duty.rotate_firings",
    "duty.rotate_keys",
    "end.unknown",      // memory without room
    "expire.postponed", // an end that is open when the lease ends: `windows`
    "expire_waiting.",  // jobs that must start in time: `expiry`
    "keys.",
    "recover.stranger",
    "segment.count",  // the first looks after a start: `segments_races`
    "cancels.found",  // a cancel that meets an end: `windows`
    "worker.renewed", // ALTER DATABASE … SET: `noise`
    "duty.serve_cancels",
    "duty.serve_reruns", // a request that comes too late: `windows`
    "reruns.",
];

/// Statements of one round, each with its own transaction. `$` is the round's number.
const ROUND: &[&str] = &[
    "WITH j AS (SELECT queue.enqueue('q', priority => n) AS id FROM generate_series(1, 4) AS n)
     INSERT INTO made SELECT id FROM j",
    "WITH j AS (SELECT queue.enqueue('groups', group_key => 'g' || n % 2) AS id FROM generate_series(1, 4) AS n)
     INSERT INTO made SELECT id FROM j",
    "INSERT INTO made SELECT queue.enqueue('q', delay => '5 ms')",
    "WITH p AS (SELECT queue.enqueue('q', priority => -1) AS a, queue.enqueue('q', priority => 1) AS b),
          h AS (SELECT a, b, queue.enqueue('q', after => ARRAY[a]) AS c, queue.enqueue('q', after => ARRAY[a, b]) AS d
          FROM p)
     INSERT INTO made SELECT unnest(ARRAY[a, b, c, d]) FROM h",
    // A flow that runs after its members, a job that waits for its own member, and a flow that fails fast.
    "DO 'DECLARE f bigint;
     BEGIN
         f := queue.enqueue_flow(''q'', runs => true);
         INSERT INTO made VALUES (f);
         INSERT INTO made SELECT queue.enqueue(''q'', flow => f) FROM generate_series(1, 3);
     END'",
    "DO 'DECLARE c record;
     BEGIN
         FOR c IN SELECT id, job_id FROM queue.claim(''q'') LOOP
             INSERT INTO made SELECT queue.enqueue(''q'', flow => c.job_id);
             PERFORM queue.step_done(c.id, ''split'', ''1''), queue.suspend(c.id);
         END LOOP;
     END'",
    "SELECT queue.enqueue_flow('fast', '[{}, {}, {}]', fail_fast => true)",
    DIE,
    "SELECT queue.cancel(queue.enqueue_flow('fast', '[{}, {}]'), force => true)",
    "INSERT INTO made SELECT queue.enqueue('q', unique_key => 'k$', on_duplicate => 'rerun')",
    "BEGIN; SAVEPOINT s; SELECT queue.enqueue('q'), (SELECT count(*) FROM queue.claim('q', 2)); ROLLBACK TO s;
     INSERT INTO made SELECT queue.enqueue('q'); COMMIT",
    "BEGIN; INSERT INTO made SELECT queue.enqueue('q'); PREPARE TRANSACTION 'sweep'",
    "COMMIT PREPARED 'sweep'",
    "BEGIN; SELECT count(*) FROM queue.claim('q', 3); ROLLBACK",
    // One job completes in its own transaction, one with the next claim, one fails, one is released.
    "WITH c AS (SELECT id, job_id FROM queue.claim('q')), d AS (INSERT INTO done SELECT job_id FROM c)
     SELECT queue.complete(id) FROM c",
    "WITH c AS (SELECT id, job_id FROM queue.claim('groups', 2)), d AS (INSERT INTO done SELECT job_id FROM c)
     SELECT queue.complete(id) FROM c",
    // One call ends three jobs in different ways.
    "WITH c AS MATERIALIZED (SELECT id, job_id, row_number() OVER () AS n FROM queue.claim('q', 3)),
          e AS MATERIALIZED (SELECT id, outcome FROM queue.end_batch((SELECT coalesce(json_agg(CASE n
              WHEN 1 THEN json_build_object('complete', json_build_object('id', id))
              WHEN 2 THEN json_build_object('fail', json_build_object('id', id, 'error', 'no'))
              ELSE json_build_object('release', json_build_object('id', id)) END), '[]') FROM c)))
     INSERT INTO done SELECT c.job_id FROM c JOIN e USING (id) WHERE e.outcome = 'completed'",
    "WITH c AS MATERIALIZED (SELECT id, job_id FROM queue.claim('q')),
          e AS MATERIALIZED (SELECT id, outcome FROM queue.complete_many(ARRAY(SELECT id FROM c)))
     INSERT INTO done SELECT c.job_id FROM c JOIN e USING (id) WHERE e.outcome = 'completed'",
    "SELECT queue.extend(id), queue.progress(id, '1') FROM queue.claim('q', lease => '1 minute')",
    "SELECT queue.fail(id, 'no') FROM queue.claim('q')",
    "SELECT queue.release(id) FROM queue.claim('q')",
    "SELECT count(*) FROM queue.claim('q', 2, lease => '1 ms')",
    "SELECT count(*) FROM queue.claim('groups', 1, lease => '1 ms')",
    "WITH j AS (SELECT queue.enqueue('q') AS id), m AS (INSERT INTO made SELECT id FROM j) SELECT id FROM j",
    "WITH j AS (SELECT job_id FROM queue.jobs WHERE queue_name = 'q' AND state = 'ready' AND priority = 0
        ORDER BY job_id DESC LIMIT 1),
          d AS (INSERT INTO done SELECT job_id FROM j) SELECT queue.cancel(job_id) FROM j",
    "WITH j AS (SELECT job_id FROM queue.jobs WHERE queue_name = 'q' AND state = 'ready' AND priority = 0
        ORDER BY job_id DESC LIMIT 2),
          a AS MATERIALIZED (SELECT id, outcome FROM queue.cancel_many(ARRAY(SELECT job_id FROM j))),
          r AS (INSERT INTO asked SELECT id FROM a WHERE outcome = 'cancelling')
     INSERT INTO done SELECT id FROM a WHERE outcome = 'cancelled'",
    "SELECT queue.reprioritize_many(ARRAY(SELECT job_id FROM queue.search('q', states => '{ready}', max_jobs => 3)), \
        2)",
    "SELECT queue.reprioritize(job_id, 3) FROM (SELECT job_id FROM queue.jobs WHERE queue_name = 'q' AND state = 'ready'
     ORDER BY job_id DESC LIMIT 1) AS j",
    "SELECT count(*) FROM queue.claim('nothing', wait => '1 ms')",
    // A call that lingers beside one job.
    "WITH j AS (SELECT queue.enqueue('batches') AS id) INSERT INTO made SELECT id FROM j",
    "WITH c AS (SELECT id, job_id FROM queue.claim('batches', 50, wait => '10 ms', linger => '5 ms')),
          d AS (INSERT INTO done SELECT job_id FROM c) SELECT queue.complete(id) FROM c",
    "DO 'DECLARE j bigint; s text; r jsonb;
     BEGIN
         j := min(job_id) FROM queue.jobs WHERE state IN (''ready'', ''running'');
         IF j IS NOT NULL THEN CALL queue.await(j, ''5 ms'', s, r); END IF;
     END'",
    "SELECT queue.create('passing', rate_limit => 1, rate_period => '1 day'); SELECT FROM queue.claim('passing');
     SELECT queue.drop('passing')",
    "SELECT queue.maintain()",
];

/// Kills the members of flows that fail fast.
const DIE: &str = "SELECT count(queue.fail(id, 'no', fatal => true)) FROM queue.claim('fast', 10)";

/// True if the storage duty reaches the point.
fn is_of_storage(point: &str) -> bool {
    let parts =
        ["duty.storage", "move.", "walk.", "truncate.", "row.history", "row.rollup", "row.segment_log", "row.total"];
    parts.iter().any(|part| point.starts_with(part))
}

/// True if this workload is known not to reach the point.
fn is_unreached(point: &str) -> bool {
    UNREACHED.iter().any(|known| point.starts_with(known))
}

/// True if the point is reached after a crash.
fn is_of_recovery(point: &str) -> bool {
    point.starts_with("recover.") || point.starts_with("duty.recover")
}

/// One round of a worker.
const WORK: &str = "
    WITH c AS (SELECT id, job_id FROM queue.claim_any('{q,groups,batches}', 100)),
         d AS (INSERT INTO done SELECT job_id FROM c)
    SELECT count(queue.complete(id)) FROM c";

struct Sweep {
    cluster: Cluster,
    client: Option<Client>,
    round: u32,
}

impl Sweep {
    fn new() -> Self {
        let (cluster, mut client) = Cluster::new()
            .conf("pg_queue.segment_age = 1")
            // If a segment is emptied before a query over the views locks it, the query misses jobs that moved since
            // its snapshot.
            .conf("pg_queue.reclaim_delay = '500ms'")
            .conf("max_prepared_transactions = 5")
            .conf("max_connections = 30")
            .start_with_database("app");
        client.run(
            "CREATE TABLE made (job_id bigint);
             CREATE TABLE done (job_id bigint);
             -- While the storage duty moves a job, its cancelling is a request.
             CREATE TABLE asked (job_id bigint);
             SELECT queue.create('q', max_attempts => 1000, backoff_base => '0', max_running => 1000);
             SELECT queue.create('groups', max_attempts => 1000, backoff_base => '0', max_running_per_group => 1,
                                 strict_order => true);
             SELECT queue.create('fast', retention => '0', dead_retention => '0');
             SELECT queue.create('batches', max_attempts => 1000, backoff_base => '0');
             SELECT queue.create('nothing')",
        );
        Self { cluster, client: Some(client), round: 0 }
    }

    /// Returns the connection, or a new one if the last one has ended.
    fn client(&mut self) -> &mut Client {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let client = wait::within("the server takes connections", Duration::from_secs(60), || {
                let mut config = self.cluster.config();
                let mut client = config.dbname("app").connect(NoTls).ok()?;
                client.simple_query("SELECT 1").ok().map(|_| client)
            });
            self.client = Some(client);
        }
        self.client.as_mut().expect("the connection just made")
    }

    /// Runs a statement. Its error must be one that a fault explains.
    fn attempt(&mut self, point: &str, sql: &str) {
        let result = self.client().batch_execute(sql);
        if let Err(e) = result {
            let code = error::code(&e).to_owned();
            let is_expected = e.is_closed()
                || matches!(code.as_str(), "" | "58000" | "57P01" | "57P02" | "57P03" | "QJ001" | "55006" | "55000")
                // 42704: the transaction of the last round was not prepared. 42710: it still exists, or the queue was
                // created before the fault.
                || matches!(code.as_str(), "42704" | "42710");
            assert!(is_expected, "{point}: {sql}: {e:?}");
            if !self.client().is_closed() {
                let _ = self.client().batch_execute("ROLLBACK");
            }
        }
    }

    fn round(&mut self, point: &str) {
        self.round += 1;
        for sql in ROUND {
            self.attempt(point, &sql.replace('$', &self.round.to_string()));
        }
    }

    /// Runs the workload until the fault has struck. Returns whether it did. If `must` is true, waits longer.
    fn strike(&mut self, point: &str, action: &str, must: bool) -> bool {
        let fault: Fault = self.cluster.fault(point, action);
        if is_of_recovery(point) {
            // The claims of these rounds are released again.
            self.round(point);
            let mut victim = self.cluster.connect_to("app");
            let pid = victim.pid();
            let _ = self.client().batch_execute("SELECT count(*) FROM queue.claim('q', 3)");
            self.cluster.crash(pid);
        }
        // The ring turns every second. Other duties run at other times.
        let comes = !is_unreached(point) && !point.starts_with("exit.");
        let patience = Duration::from_secs(if must && comes { 60 } else { 0 });
        let until = Instant::now() + patience;
        for n in 0.. {
            self.round(point);
            if fault.reached_by().is_some() || n >= 3 && Instant::now() > until {
                break;
            }
            // Works off jobs, so that a long wait leaves no more jobs than a short one.
            if n >= 3 {
                (0..3).for_each(|_| self.attempt(point, WORK));
            }
        }
        if point.starts_with("exit.") {
            self.client = None;
            wait::until(&format!("{point} is reached"), || fault.reached_by());
        }
        if action == "crash"
            && let Some(pid) = fault.reached_by()
        {
            // The process is killed a moment after it has reached the point.
            self.cluster.wait_crashed(pid);
            self.client = None;
        }
        fault.release()
    }

    /// Works off the remaining jobs and compares.
    fn check(&mut self, point: &str) {
        let _ = self.client().batch_execute("ROLLBACK PREPARED 'sweep'");
        let living =
            "SELECT count(*) FROM queue.jobs WHERE state IN ('held', 'ready', 'scheduled', 'retrying', 'running')";
        // Releases attempts with leases of a minute, as if their workers returned.
        let release = "SELECT count(queue.release(id)) FROM queue.attempts WHERE state = 'running'";
        wait::within(&format!("{point}: all jobs are done"), Duration::from_secs(60), || {
            self.attempt(point, WORK);
            self.attempt(point, release);
            self.attempt(point, DIE);
            (self.client().value::<i64>(living) == 0).then_some(())
        });
        self.client().run(
            "INSERT INTO done SELECT a.job_id FROM asked AS a, queue.job(a.job_id) AS j WHERE j.state = 'cancelled'
             EXCEPT SELECT job_id FROM done",
        );
        let wrong: Vec<String> = self.client().column(
            "SELECT pg_catalog.format('job %s: made %s, done %s', job_id, made, finished) FROM
                 (SELECT job_id, count(*) FILTER (WHERE made) AS made, count(*) FILTER (WHERE NOT made) AS finished
                  FROM (SELECT job_id, true AS made FROM made UNION ALL SELECT job_id, false FROM done) AS rows
                  GROUP BY job_id) AS jobs
             WHERE made <> 1 OR finished <> 1",
        );
        assert!(wrong.is_empty(), "{point}: {wrong:?}");
        // A commit is visible a moment before memory counts it.
        wait::until_empty(&format!("{point}: nothing is counted that is not there"), || {
            self.client().column(
                "SELECT format('%s: ready %s, running %s', queue_name, ready, running) FROM queue.stats
                 WHERE queue_name IN ('q', 'groups', 'batches') AND (ready <> 0 OR running <> 0)",
            )
        });
        self.client().run("TRUNCATE made, done, asked");
    }
}

/// The number of tests that share the points. Each has its own server and takes less than a few minutes.
const PARTS: usize = 4;

/// Strikes at every `PARTS`th point, starting with the point at `part`.
fn each_point_may_fail_in_each_way(part: usize) {
    let rows = ["attempt", "claim", "outcome", "note", "history", "segment_log", "total", "rollup"];
    let rows = rows.iter().flat_map(|table| [format!("row.{table}.before"), format!("row.{table}.after")]);
    let all: BTreeSet<String> = points().into_iter().chain(rows).collect();
    assert!(all.len() > 60, "the source names fault points: {all:?}");
    let mut sweep = Sweep::new();
    let mut unreached = BTreeSet::new();
    for point in all.iter().skip(part).step_by(PARTS) {
        // The restart after a crash takes most of the time.
        let mut is_reached = false;
        // The worker restarts after each fault and catches up.
        let actions = if is_of_storage(point) { &["crash"][..] } else { &["error", "terminate", "crash"] };
        for action in actions {
            is_reached |= sweep.strike(point, action, !is_reached);
            if !is_reached {
                break;
            }
        }
        if is_reached {
            sweep.check(point);
        } else if !is_unreached(point) {
            unreached.insert(point.clone());
        }
    }
    assert!(unreached.is_empty(), "the workload does not reach {unreached:?}");
    let log = sweep.cluster.log();
    let bad = log.lines().find(|line| line.contains("PANIC") || line.contains(" XX000 ") || line.contains(" XX001 "));
    assert_eq!(bad, None);
}

#[test]
fn each_point_may_fail_in_each_way_1() {
    each_point_may_fail_in_each_way(0);
}

#[test]
fn each_point_may_fail_in_each_way_2() {
    each_point_may_fail_in_each_way(1);
}

#[test]
fn each_point_may_fail_in_each_way_3() {
    each_point_may_fail_in_each_way(2);
}

#[test]
fn each_point_may_fail_in_each_way_4() {
    each_point_may_fail_in_each_way(3);
}
