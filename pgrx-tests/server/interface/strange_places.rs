//! Calls in unusual places, and sessions with unusual settings. Each call works, or its error says why not.

use crate::shared::*;

#[test]
fn claims_work_wherever_a_query_can_stand() {
    let (mut client, q) = queue("");
    let running = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = 'running'");
    client.run(&format!("CREATE TABLE taken_{q} (id bigint)"));
    client.run(&format!(
        "CREATE FUNCTION next_{q}(n int) RETURNS SETOF queue.claimed_job LANGUAGE sql AS
            'SELECT * FROM queue.claim(''{q}'', n)';
         CREATE FUNCTION loop_{q}() RETURNS SETOF bigint LANGUAGE plpgsql AS
         'DECLARE job record;
          BEGIN
              FOR job IN SELECT * FROM queue.claim(''{q}'', 3) LOOP RETURN NEXT job.id; END LOOP;
          END'"
    ));
    let claim = format!("queue.claim('{q}', 3)");
    for (statement, rows) in [
        // In the target list the rows of the set come one by one.
        (format!("SELECT {claim}"), 3),
        (format!("SELECT (c).id FROM (SELECT {claim} AS c OFFSET 0) AS t"), 3),
        // All three jobs are claimed, however many rows the query reads.
        (format!("SELECT id FROM {claim} LIMIT 1"), 1),
        (format!("SELECT id FROM {claim} WHERE false IS NULL OR priority > 5"), 0),
        (format!("SELECT (SELECT count(*) FROM {claim})"), 1),
        (format!("SELECT 1 WHERE EXISTS (SELECT FROM {claim})"), 1),
        (format!("SELECT 1 WHERE 0 IN (SELECT id FROM {claim})"), 0),
        (format!("SELECT a.id FROM {claim} AS a JOIN generate_series(1, 2) AS g ON true ORDER BY 1"), 6),
        (format!("SELECT c.id FROM (VALUES ('{q}'), ('{q}'), ('{q}')) AS v(q), LATERAL queue.claim(v.q) AS c"), 3),
        (format!("WITH c AS (SELECT * FROM {claim}) SELECT id FROM c UNION ALL SELECT id FROM c"), 6),
        (format!("WITH c AS MATERIALIZED (SELECT * FROM {claim}) SELECT 1"), 1),
        (format!("INSERT INTO taken_{q} SELECT id FROM {claim} RETURNING id"), 3),
        (format!("SELECT * FROM next_{q}(3)"), 3),
        (format!("SELECT next_{q}(3)"), 3),
        (format!("SELECT * FROM loop_{q}()"), 3),
        (format!("SELECT * FROM ROWS FROM (queue.claim('{q}', 2), queue.claim('{q}', 1))"), 2),
        (format!("SELECT * FROM {claim} WITH ORDINALITY"), 3),
        (format!("EXPLAIN (ANALYZE, BUFFERS off, COSTS off, TIMING off, SUMMARY off) SELECT id FROM {claim}"), 1),
    ] {
        client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[4]))"));
        assert_eq!(client.count(&statement), rows, "{statement}");
        // A CTE that no query reads does not run. The other statements claim.
        let expected = if statement.contains("SELECT 1") && statement.contains("WITH") { 0 } else { 3 };
        assert_eq!(client.value::<i64>(&running), expected, "{statement}");
        client.run(&format!(
            "SELECT queue.complete(id) FROM queue_internal.running_now() \
            WHERE id IN (SELECT id FROM queue.attempts WHERE queue_name = '{q}')"
        ));
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
    let mut copied = String::new();
    client.enqueue(&q);
    let copy = format!("COPY (SELECT queue_name FROM {claim}) TO STDOUT");
    std::io::Read::read_to_string(&mut client.copy_out(&copy).unwrap(), &mut copied).unwrap();
    assert_eq!(copied, format!("{q}\n"));
}

#[test]
fn claims_work_in_cursors() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[9]))"));
    client.run(&format!("BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM queue.claim('{q}', 3)"));
    let forward: Vec<i64> = client.column("FETCH ALL FROM c");
    let mut backward: Vec<i64> = client.column("FETCH BACKWARD ALL FROM c");
    backward.reverse();
    assert_eq!((forward.len(), &forward), (3, &backward));
    client.run("CLOSE c; COMMIT");
    client.run(&format!("BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT id FROM queue.claim('{q}', 3); COMMIT"));
    let held: Vec<i64> = client.column("FETCH ALL FROM h");
    assert_eq!(held.len(), 3);
    client.run("CLOSE h");
    // A cursor that was closed early has claimed all jobs with its first row.
    client.run(&format!(
        "BEGIN; DECLARE c CURSOR FOR SELECT id FROM queue.claim('{q}', 3); FETCH 1 FROM c; CLOSE c; COMMIT"
    ));
    assert_eq!(client.value::<i64>(&format!("SELECT running FROM queue.stats WHERE queue_name = '{q}'")), 9);
    // A cursor that was never read has claimed nothing.
    client.enqueue(&q);
    client.run(&format!("BEGIN; DECLARE c CURSOR FOR SELECT id FROM queue.claim('{q}', 3); CLOSE c; COMMIT"));
    client.claim(&q);
}

#[test]
fn triggers_can_enqueue_and_claim_even_deferred_ones() {
    let (mut client, q) = queue("");
    client.run(&format!(
        "CREATE TABLE t_{q} (n int);
         CREATE FUNCTION f_{q}() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN PERFORM queue.enqueue(''{q}'', to_jsonb(NEW)); RETURN NULL; END';
         CREATE FUNCTION g_{q}() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN PERFORM queue.complete(id) FROM queue.claim(''{q}''); RETURN NULL; END';
         CREATE TRIGGER now AFTER INSERT ON t_{q} FOR EACH ROW EXECUTE FUNCTION f_{q}();
         CREATE CONSTRAINT TRIGGER later AFTER INSERT ON t_{q} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
             EXECUTE FUNCTION f_{q}();
         INSERT INTO t_{q} VALUES (1), (2)"
    ));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 2)")), 2);
    client.run(&format!(
        "CREATE CONSTRAINT TRIGGER last AFTER DELETE ON t_{q} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE
            FUNCTION g_{q}();
         DELETE FROM t_{q}"
    ));
    let states: Vec<String> =
        client.column(&format!("SELECT state FROM queue.jobs WHERE queue_name = '{q}' ORDER BY job_id"));
    assert_eq!(states, ["running", "running", "completed", "completed"]);
}

#[test]
fn a_search_path_full_of_traps_does_not_matter() {
    let database = Database::new();
    let mut client = database.connect();
    client.run(
        "CREATE SCHEMA trap;
         CREATE FUNCTION trap.fall(anyelement, anyelement) RETURNS boolean LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''trapped''; END';
         CREATE OPERATOR trap.= (FUNCTION = trap.fall, LEFTARG = anyelement, RIGHTARG = anyelement);
         CREATE OPERATOR trap.<> (FUNCTION = trap.fall, LEFTARG = anyelement, RIGHTARG = anyelement);
         CREATE FUNCTION trap.eq(a int, b int) RETURNS boolean LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''trapped''; END';
         CREATE FUNCTION trap.eq(a bigint, b bigint) RETURNS boolean LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''trapped''; END';
         CREATE FUNCTION trap.eq(a text, b text) RETURNS boolean LANGUAGE plpgsql AS
         'BEGIN RAISE EXCEPTION ''trapped''; END';
         CREATE OPERATOR trap.= (FUNCTION = trap.eq, LEFTARG = int, RIGHTARG = int);
         CREATE OPERATOR trap.= (FUNCTION = trap.eq, LEFTARG = bigint, RIGHTARG = bigint);
         CREATE OPERATOR trap.= (FUNCTION = trap.eq, LEFTARG = text, RIGHTARG = text);
         CREATE OPERATOR trap.~~ (FUNCTION = trap.eq, LEFTARG = text, RIGHTARG = text);
         CREATE OPERATOR trap.> (FUNCTION = trap.eq, LEFTARG = bigint, RIGHTARG = bigint);
         CREATE TABLE trap.queue (n int);
         CREATE TABLE trap.lane (n int)",
    );
    for path in ["trap, pg_catalog", "''", "pg_temp, trap, queue, pg_catalog"] {
        client.run(&format!("SET search_path = {path}"));
        client.run("CREATE TEMP TABLE IF NOT EXISTS jobs (n int)");
        client.run("SELECT queue.create('q', lease => '1 min')");
        client.run("SELECT queue.create('q', max_attempts => 4, if_not_exists => true)");
        client.run("SELECT queue.alter('q', reset => ARRAY['lease'])");
        client.run("SELECT queue.pause('q'), queue.resume('q')");
        let job = client.enqueue("q");
        let id = client.claim("q");
        client.run(&format!("SELECT queue.fail({id}, 'boom', fatal => true)"));
        let retried = "SELECT outcome FROM queue.retry_many(ARRAY(
                           SELECT job_id FROM queue.search('q', '$.error like_regex \"oo\"', '{dead}')))";
        assert_eq!(client.value::<String>(retried), "retried");
        client.run(&format!("SELECT queue.reprioritize({job}, 1), queue.reschedule({job}, pg_catalog.now())"));
        client.run(&format!(
            "SELECT queue.reprioritize_many('{{{job}}}', 2), queue.reschedule_many('{{{job}}}', pg_catalog.now())"
        ));
        let id = client.claim("q");
        client.run(&format!("SELECT queue.end_batch('[{{\"release\": {{\"id\": {id}, \"delay\": \"0\"}}}}]')"));
        client.run(&format!("SELECT queue.cancel({job}), queue.forget({job})"));
        client.run("SELECT FROM queue.maintain()");
        for view in ["jobs", "attempts", "queues", "stats", "errors", "workers"] {
            client.run(&format!("SELECT * FROM queue.{view}"));
        }
        client.run("SELECT queue.purge('q'), queue.drop('q')");
    }
}

#[test]
fn settings_that_ask_for_parallel_plans_change_nothing() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let q = "q";
    client.run(
        "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 4",
    );
    client.run(&format!("CREATE TABLE rows_{q} AS SELECT i AS n FROM generate_series(1, 2000) AS i; ANALYZE rows_{q}"));
    let all: i64 = client.value(&format!("SELECT count(queue.enqueue('{q}', to_jsonb(n))) FROM rows_{q}"));
    assert_eq!(all, 2000);
    let ended: i64 = client.value(&format!(
        "SELECT count(queue.complete(c.id)::text) FROM rows_{q}, LATERAL queue.claim(left('{q}', 9 + n * 0)) AS c"
    ));
    assert_eq!(ended, 2000);
    let seen: i64 =
        client.value(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = 'completed'"));
    assert_eq!(seen, 2000);
    let newest: i64 = client.value(&format!(
        "SELECT count(l.id) FROM queue.jobs AS j, queue_internal.life_of(j.job_id) AS l \
            WHERE j.queue_name = '{q}' AND l.is_newest"
    ));
    assert_eq!(newest, 2000);
}

#[test]
fn settings_of_the_session_do_not_change_what_a_batch_means() {
    let (mut client, q) = queue("");
    for setting in
        ["SET datestyle = 'SQL, DMY'", "SET datestyle = 'Postgres, MDY'", "SET intervalstyle = 'sql_standard'"]
    {
        client.run(setting);
        let job: i64 = client.value(&format!(
            "SELECT queue.enqueue_batch('{q}', '[{{\"run_at\": \"2100-02-01T00:00:00Z\", \"lease\": \"PT90S\"}}]')"
        ));
        client.run("SET datestyle = 'ISO'");
        let at: String = client.value(&format!("SELECT run_at::text FROM queue.job({job})"));
        assert_eq!(at, "2100-02-01 00:00:00+00", "{setting}");
    }
}
