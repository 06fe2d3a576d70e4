//! What a bridge must withstand: forged calls, traps in the search_path, a second queue server, objects dropped by
//! hand, a source that hangs.

use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::sql::{Sql, wait_blocked};
use queue_tests::{integrity, wait};

use crate::pair::{DATABASE, Pair};

/// Calls all functions for producers and workers that the primary has.
const CALLS: &str = "SELECT queue.enqueue('q', '1', 1, '1 day', headers => '{\"a\": 1}', unique_key => 'k');
    SELECT queue.enqueue('q');
    SELECT queue.enqueue_many('q', '{1,2}'); SELECT queue.enqueue_batch('q', '[{\"delay\": \"1 day\"}]');
    SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"after\": [\"a\"]}]');
    SELECT queue.seal(queue.enqueue_flow('q', open => true));
    SELECT queue.publish('t', '1', 'k'), queue.publish_many('t', '{1,2}');
    SELECT queue.once(queue.enqueue('q')); SELECT queue.once_many(ARRAY[queue.enqueue('q')]);
    SELECT queue.complete(16), queue.complete_many('{16}'), queue.fail(16, 'no'), queue.release(16), queue.cancel(31)";

#[test]
fn names_in_the_search_path_of_a_caller_are_not_used() {
    let pair = Pair::new();
    pair.server().run("SELECT queue.create_topic('t'); SELECT queue_bridge.allow('shop', 't')");
    assert_eq!(pair.contact(), None);
    pair.primary.connect_to(DATABASE).run("CREATE SCHEMA mine AUTHORIZATION app");
    let mut app = pair.app();
    // Without this right the owner of the functions would not look into the schema.
    app.run("GRANT USAGE ON SCHEMA mine TO PUBLIC");
    // Makes a namesake of each of PostgreSQL's types, operators and functions. Each raises an error if it is used.
    app.run(
        "CREATE FUNCTION mine.sprung() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE $$sprung$$; END';
         CREATE FUNCTION mine.trap(name text, arguments text, result oid) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             EXECUTE format('CREATE OR REPLACE FUNCTION mine.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', name, arguments,
                            result::regtype, 'BEGIN RAISE $s$sprung$s$; END');
         END $$;
         DO $$ DECLARE t record; BEGIN
             FOR t IN SELECT * FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b'
                      AND typcategory <> 'A' AND typname <> 'char' LOOP
                 EXECUTE format('CREATE DOMAIN mine.%1$I AS pg_catalog.%1$I CHECK (mine.sprung())', t.typname);
             END LOOP;
             FOR t IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult, 'op_' || o.oid AS name
                      FROM pg_operator AS o WHERE oprnamespace = 'pg_catalog'::regnamespace
                      AND (oprleft, oprright) IN (VALUES (20, 20), (23, 23), (21, 21), (25, 25), (20, 23), (3802, 25),
                                                         (16, 16), (1184, 1184), (701, 701), (1560, 23)) LOOP
                 PERFORM mine.trap(t.name, format('%s, %s', t.l, t.r), t.oprresult);
                 EXECUTE format('CREATE OPERATOR mine.%s (FUNCTION = mine.%I, LEFTARG = %s, RIGHTARG = %s)', t.oprname,
                                t.name, t.l, t.r);
             END LOOP;
             PERFORM mine.trap(p.proname, pg_get_function_identity_arguments(p.oid), p.prorettype) FROM pg_proc AS p
             WHERE pronamespace = 'pg_catalog'::regnamespace AND provariadic = 0 AND proname IN (
                 'clock_timestamp', 'nextval', 'date_part', 'floor', 'mod', 'substr', 'now', 'pg_walfile_name',
                 'pg_current_wal_insert_lsn', 'jsonb_build_object', 'jsonb_strip_nulls');
         END $$",
    );
    let mut caller = pair.app();
    caller.run("SET search_path = mine, pg_catalog");
    assert_eq!(caller.failure("SELECT 1::\"int8\"").message, "sprung");
    caller.run(CALLS);
}

/// Begins to empty the partition of a job's effect as `turn_generations` does. The caller commits.
fn empty_generation(owner: &mut Client, job: i64) {
    let partition: i16 = owner.value(&format!("SELECT queue_bridge.generation({job})"));
    owner.run(&format!(
        "BEGIN; LOCK TABLE queue_bridge.effect_{partition}; TRUNCATE queue_bridge.effect_{partition};
         UPDATE queue_bridge.turn SET newer = 1 - newer, ends = {job} + 16, begins = {job} + 16 WHERE place = 0;
         SELECT queue_bridge.make_generation()"
    ));
}

#[test]
fn the_effect_of_a_job_whose_generation_is_being_emptied_counts_as_done() {
    let pair = Pair::new();
    let (mut app, mut owner) = (pair.app(), pair.primary_as("owner"));
    for sql in ["SELECT queue.once(JOB)::integer", "SELECT count(*)::integer FROM queue.once_many('{JOB}')"] {
        let job = app.enqueue("q");
        let mut worker = pair.app();
        let pid = worker.pid();
        // The session now has a plan with the older generations.
        worker.run(&sql.replace("JOB", "31"));
        empty_generation(&mut owner, job);
        let sql = sql.replace("JOB", &job.to_string());
        let asked = std::thread::spawn(move || worker.value::<i32>(&sql));
        wait_blocked(&mut pair.primary.connect(), pid);
        owner.run("COMMIT");
        assert_eq!(asked.join().expect("an answer"), 0);
    }
}

#[test]
fn the_effect_of_a_refused_job_does_not_count_as_done() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    pair.drop_known_queue();
    let jobs = [app.enqueue("other"), app.value("SELECT max(j) FROM queue.enqueue_many('other', '{1,2}') AS j")];
    pair.wait_arrived();
    for _ in 0..12 {
        owner.run("SELECT setval('queue_bridge.id_seq', (SELECT last_value + 200000 FROM queue_bridge.id_seq))");
        owner.run("UPDATE queue_bridge.turn SET since = since - interval '2 days', asked_at = NULL");
        assert_eq!(pair.contact(), None);
        pair.wait_arrived();
    }
    server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 2);
    for job in jobs {
        assert_eq!(server.state(job), "ready");
        assert!(app.value::<bool>(&format!("SELECT queue.once({job})")));
    }
}

#[test]
fn ids_go_on_when_the_bits_of_the_sequence_are_used_up() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let mut made = vec![app.enqueue("q")];
    for used in [34, 41, 42] {
        let next = format!("SELECT setval('queue_bridge.id_seq', (1::bigint << {used}) - 2)");
        pair.primary_as("owner").run(&next);
        made.extend((0..3).map(|_| app.enqueue("q")));
        let by_hand: i64 = pair.primary_as("owner").value("SELECT queue_bridge.computed_id() - queue_bridge.new_id()");
        assert_eq!(by_hand, -16, "the sum of a timeline that has no constant");
        // A jump over half of the circle goes back. No database could make such a jump.
        let job = made[made.len() - 1];
        assert!(used > 34 || app.value::<bool>(&format!("SELECT queue.once({job})")));
        let node = "SELECT count(DISTINCT (i >> 46) & 127) FROM unnest($1::bigint[]) AS i";
        assert_eq!(app.query_one(node, &[&made]).expect("a count").get::<_, i64>(0), 1);
    }
    assert!(made[..7].is_sorted(), "up to where the circle is closed: {made:?}");
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 10);
    pair.wait_arrived();
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs ORDER BY 1"), made);
}

#[test]
fn ids_go_on_when_the_lives_of_a_database_are_used_up() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    let mut made = Vec::new();
    for life in [126, 254] {
        server.run(&format!("UPDATE queue_bridge.source SET life = {life}; SELECT queue_bridge.repair('shop')"));
        pair.wait_streaming();
        made.push(app.enqueue("q"));
        // Forgets all effects of earlier ids.
        owner.run(
            "UPDATE queue_bridge.turn SET begins = queue_bridge.new_id() WHERE place = 0;
             UPDATE queue_bridge.turn SET ends = begins WHERE place = 0; SELECT queue_bridge.make_generation()",
        );
        server.run("SELECT queue_bridge.repair('shop')");
        pair.wait_streaming();
        made.push(app.enqueue("q"));
        let last = made[made.len() - 2..].iter().map(|job| app.value::<bool>(&format!("SELECT queue.once({job})")));
        assert_eq!(last.collect::<Vec<_>>(), [false, true], "{life}");
    }
    pair.wait_arrived();
    made.sort_unstable();
    made.dedup();
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs ORDER BY 1"), made);
    assert_eq!(made.len(), 4);
}

#[test]
fn a_database_has_one_queue_server() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let mut second = pair.server.create_database("second");
    second.run("CREATE EXTENSION pg_queue_bridge CASCADE");
    let connect = |source| format!("SELECT queue_bridge.connect('{source}', '{}')", pair.conninfo());
    let others = [("shop", true), ("other", true), ("other", false)];
    for (source, is_elsewhere) in others {
        let client = if is_elsewhere { &mut second } else { &mut server };
        let failure = client.failure(&connect(source));
        let wanted = ("55000", "another queue server takes the jobs of this database");
        assert_eq!((failure.code.as_str(), failure.message.as_str()), wanted, "{source}");
        assert!(failure.detail.contains("database \"shop\""), "{failure:?}");
    }
    app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    assert_eq!(server.value::<i32>("SELECT repairs FROM queue_bridge.sources"), 0);
    assert_eq!(pair.primary.connect().count("SELECT FROM pg_replication_slots"), 1);
    // If the first queue server is silent, the second may take over, and the first leaves it alone.
    pair.primary_as("owner").run("UPDATE queue_bridge.bridge SET seen_at = seen_at - interval '2 minutes'");
    second.run(&connect("other"));
    second.run("SELECT queue.pause_schedule('queue_bridge_other')");
    for _ in 0..2 {
        let said = pair.contact().expect("a problem");
        assert!(said.starts_with("another queue server takes its jobs: ") && said.contains("\"second\""), "{said}");
    }
    assert_eq!(second.value::<Option<String>>("SELECT queue_bridge.contact('other')"), None);
    second.run("SELECT queue_bridge.disconnect('other')");
    // The first queue server takes over again by itself.
    assert_eq!(pair.contact().as_deref(), Some("it has gone back in time"));
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 1);
    assert_eq!(pair.contact(), None);
}

#[test]
fn a_source_that_does_not_answer_holds_up_nothing() {
    let pair = Pair::new();
    let mut server = pair.server();
    // The contact waits for a row that another session has locked. So would it wait for a server that hangs.
    let mut owner = pair.primary_as("owner");
    owner.run("BEGIN; SELECT FROM queue_bridge.bridge FOR UPDATE");
    let mut contact = pair.server();
    let pid = contact.pid();
    let asked = std::thread::spawn(move || contact.failure("SELECT queue_bridge.contact('shop')"));
    let waits = format!("SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'");
    wait::until("the contact is under way", || (server.count(&waits) > 0).then_some(()));
    server.run("SET statement_timeout = '5s'");
    assert!(server.count("SELECT FROM queue.metrics()") > 0);
    assert_eq!(server.count("SELECT FROM queue_bridge.sources"), 1);
    assert_eq!(server.count("SELECT FROM queue.doctor() WHERE name = 'bridge'"), 1);
    server.run("SELECT queue_bridge.allow('shop', 'q', '{produce,consume,manage}')");
    pair.app().enqueue("q");
    pair.wait_arrived();
    let since = Instant::now();
    server.run(&format!("SELECT pg_cancel_backend({pid})"));
    assert_eq!(asked.join().expect("an error").code, "57014");
    assert!(since.elapsed() < Duration::from_secs(5), "it looks for interrupts");
    owner.run("ROLLBACK");
    assert_eq!(pair.contact(), None);
    // `ask` gives up after its limit, and the session can ask again.
    let slow = format!("SELECT queue_bridge.ask('{}', 'SELECT to_jsonb(pg_sleep(30)::text)', '1s')", pair.conninfo());
    server.refused(&slow, "08006");
    assert_eq!(server.value::<Option<String>>("SELECT queue_bridge.contact('shop')"), None);
    // The stopped server takes connections and does not answer.
    pair.primary.signal("STOP", pair.primary.postmaster_pid());
    let since = Instant::now();
    let failure = pair.server().failure("SELECT queue_bridge.contact('shop')");
    pair.primary.signal("CONT", pair.primary.postmaster_pid());
    assert_eq!(failure.code, "08001");
    assert!(since.elapsed() < Duration::from_secs(60), "a connection is given up");
}

#[test]
fn objects_dropped_by_hand_block_nothing() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    app.enqueue("q");
    pair.wait_arrived();
    let drop = "ALTER SUBSCRIPTION queue_bridge_shop DISABLE";
    server.run(&format!("{drop}; ALTER SUBSCRIPTION queue_bridge_shop SET (slot_name = NONE)"));
    server.run("DROP SUBSCRIPTION queue_bridge_shop");
    assert_eq!(server.value::<String>("SELECT state FROM queue_bridge.sources"), "disabled");
    app.enqueue("q");
    server.run("SELECT queue_bridge.repair('shop')");
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs"), 2);
    // Drops a queue and a topic that the source was allowed to use.
    server.run(
        "SELECT queue.create('other'); SELECT queue.create_topic('t');
         SELECT queue_bridge.allow('shop', 'other'), queue_bridge.allow('shop', 't');
         SELECT queue.drop('other'); SELECT queue.drop('t'); SELECT queue_bridge.deny('shop', 'other')",
    );
    assert_eq!(server.column::<String>("SELECT target FROM queue_bridge.allowed ORDER BY 1"), ["q", "t"]);
    server.run("SELECT queue_bridge.disconnect('shop')");
    // A rollback on the queue server does not remove what the primary has made.
    server.run("BEGIN");
    server.run(&format!("SELECT queue_bridge.connect('shop', '{}')", pair.conninfo()));
    server.run("ROLLBACK");
    pair.connect();
    assert_eq!(pair.contact(), None);
    // The copy of the outbox uses its own slot until it ends.
    pair.wait_arrived();
    assert_eq!(pair.primary.connect().count("SELECT FROM pg_replication_slots"), 1);
}

#[test]
fn dropping_a_queue_while_calls_arrive_holds_up_no_call_for_another_queue() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    for round in 0..5 {
        server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
        assert_eq!(pair.contact(), None);
        for _ in 0..50 {
            app.run("SELECT queue.enqueue('other'), queue.enqueue('q')");
        }
        server.run("SELECT queue.drop('other', force => true)");
        pair.wait_arrived();
        assert_eq!(server.count("SELECT FROM queue.jobs"), (round + 1) * 50);
    }
    let codes = "SELECT DISTINCT code FROM queue_bridge.refused";
    assert!(server.column::<String>(codes).iter().all(|code| ["42501", "42704"].contains(&code.as_str())));
    integrity::check(&mut server);
}

#[test]
fn calls_behind_garbage_calls_arrive() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    server.run(
        "SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#'); SELECT queue_bridge.allow('shop', 't')",
    );
    server.run("SELECT queue.create('sql', executor => 'sql')");
    let verbs =
        ["'e'", "'m'", "'b'", "'w'", "'s'", "'p'", "'c'", "'f'", "'r'", "'x'", "'\\377'::\"char\"", "''::\"char\""];
    let ids = [
        "NULL",
        "'{}'",
        "'{NULL}'",
        "'{0}'",
        "'{-1}'",
        "'{{31,47},{63,79}}'",
        "'{9223372036854775807,-9223372036854775808}'",
        "ARRAY[queue_bridge.new_id()]",
        "ARRAY[queue_bridge.new_id(), queue_bridge.new_id()]",
        "ARRAY[queue_bridge.new_id() - 1]",
        "'[7:8]={31,47}'",
    ];
    let bodies =
        ["NULL", "'null'", "'1'", "'[]'", "'[1]'", "'{}'", "'[{}]'", "'[null]'", "'[{\"command\": \"SELECT 1\"}]'"];
    let options = [
        "NULL",
        "'null'",
        "'[]'",
        "'1'",
        "'\"x\"'",
        "'{\"priority\": \"NaN\"}'",
        "'{\"priority\": 1e400}'",
        "'{\"run_at\": \"infinity\"}'",
        "'{\"lease\": \"-1 day\"}'",
        "'{\"headers\": 1}'",
        "'{\"tasks\": [{\"queue\": \"sql\"}]}'",
        "'{\"tasks\": [{\"command\": \"SELECT 1\", \"queue\": \"sql\"}]}'",
        "'{\"tasks\": {}}'",
        "'{\"after\": [[1]]}'",
        "'{\"after\": [31], \"upon\": 7}'",
        "'{\"flow\": -1}'",
        "'{\"key\": {}}'",
        "'{\"unique_for\": \"1000000 years\"}'",
        "'{\"retry_in\": \"x\"}'",
        "'{\"delay\": {}, \"reason\": [], \"error\": {}}'",
        "'{\"fatal\": \"perhaps\"}'",
    ];
    let times = ["clock_timestamp()", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'294276-01-01'"];
    let made = |list: &[&str], name| {
        let rows: Vec<_> = list.iter().map(|value| format!("({value})")).collect();
        format!("(VALUES {}) AS {name} ({name})", rows.join(", "))
    };
    let targets = ["'t'", "NULL", "'sql'", "'queue_bridge_shop'", "repeat('x', 100000)", "''"];
    for verb in verbs {
        for (from, made_at, ids, body, options, target) in [
            (format!("{}, {}", made(&ids, "ids"), made(&bodies, "body")), "now()", "ids", "body", "NULL", "'q'"),
            (made(&options, "options"), "now()", "NULL", "'{}'", "options", "'q'"),
            (made(&options, "options"), "now()", "NULL", "'[{}]'", "options", "'q'"),
            (made(&targets, "target"), "now()", "NULL", "'1'", "NULL", "target"),
            (made(&times, "at"), "at", "NULL", "'{}'", "NULL", "'q'"),
        ] {
            owner.run(&format!(
                "INSERT INTO queue_bridge.outbox SELECT queue_bridge.new_id(), {made_at}::timestamptz, 0,
                 {verb}::\"char\", {target}, {ids}::bigint[], {body}::jsonb, {options}::jsonb FROM {from}"
            ));
        }
    }
    let good = app.enqueue("q");
    wait::within("all of it has arrived", Duration::from_secs(120), || {
        (server.count(&format!("SELECT FROM queue.jobs WHERE job_id = {good}")) > 0).then_some(())
    });
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name NOT IN ('q', 'queue_bridge_shop')"), 0);
    while server.count("SELECT FROM queue_bridge.refused WHERE NOT is_told LIMIT 1") > 0 {
        assert_eq!(pair.contact(), None);
    }
    integrity::check(&mut server);
    for view in ["queue.jobs", "queue.metrics()", "queue.doctor()", "queue_bridge.sources"] {
        server.run(&format!("SELECT * FROM {view}"));
    }
    server.run("SELECT queue_bridge.retry_refused('shop'); SELECT queue_bridge.repair('shop')");
    pair.wait_streaming();
    // Some of the lost jobs have an id that was given twice.
    owner.run("TRUNCATE queue_bridge.outbox");
    for phantoms in ["keep", "cancel"] {
        server.run(&format!("SELECT queue_bridge.repair('shop', phantoms => '{phantoms}')"));
        pair.wait_streaming();
    }
    let waiting = format!("SELECT FROM queue.jobs WHERE job_id = {good} AND state = 'ready'");
    assert_eq!(server.count(&waiting), 0);
    assert_eq!(pair.contact(), None);
}

#[test]
fn a_dump_contains_the_state_of_the_sources() {
    let pair = Pair::new();
    let missing = "SELECT c.relname FROM pg_class AS c JOIN pg_extension AS e ON e.extname = 'pg_queue_bridge'
        WHERE c.relnamespace = 'queue_bridge'::regnamespace AND c.relkind IN ('r', 'S') AND c.relname <> 'outbox'
          AND c.oid <> ALL (coalesce(e.extconfig, '{}'))";
    assert_eq!(pair.server().column::<String>(missing), Vec::<String>::new());
}

#[test]
fn the_primary_refuses_values_that_cannot_be_replicated() {
    let pair = Pair::new();
    pair.server().run("SELECT queue.create_topic('t'); SELECT queue_bridge.allow('shop', 't')");
    assert_eq!(pair.contact(), None);
    let mut app = pair.app();
    let nested = |levels: usize| format!("(repeat('[', {levels}) || repeat(']', {levels}))::jsonb");
    let swelling = "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 600))".to_owned();
    let huge = "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000))".to_owned();
    let escaped = "to_jsonb(repeat(chr(1), 20000000))".to_owned();
    // As a column of a table the value is compressed.
    app.run(&format!("CREATE TEMP TABLE stored AS SELECT {huge} AS v"));
    let stored = "(SELECT v FROM stored)".to_owned();
    assert!(app.value::<i32>("SELECT pg_column_size(v) FROM stored") < 3000);
    for bad in [nested(1001), nested(14_000), swelling, huge, escaped, stored] {
        let failure = app.refused(&format!("SELECT queue.enqueue('q', {bad})"), "22023");
        assert!(failure.message.contains("nested") || failure.detail.starts_with("It has "), "{failure:?}");
    }
    for call in [
        "queue.enqueue('q', headers => jsonb_build_object('a', BAD))",
        "queue.enqueue_many('q', ARRAY['1', BAD])",
        "queue.enqueue_batch('q', jsonb_build_array('{}'::jsonb, jsonb_build_object('payload', BAD)))",
        "queue.enqueue_flow('q', payload => BAD)",
        "queue.enqueue_flow('q', jsonb_build_array(jsonb_build_object('payload', BAD)))",
        "queue.publish('t', BAD)",
        "queue.publish_many('t', ARRAY[BAD])",
        "queue.complete(16, BAD)",
    ] {
        for bad in [nested(1001), "(SELECT v FROM stored)".to_owned()] {
            app.refused(&format!("SELECT {}", call.replace("BAD", &bad)), "22023");
        }
    }
    for call in ["fail(16, repeat(chr(1), 20000000))", "cancel(31, repeat(chr(1), 20000000))"] {
        app.refused(&format!("SELECT queue.{call}"), "22023");
    }
    app.run("SELECT queue.complete_many(ARRAY(SELECT 16 * n FROM generate_series(1, 30000) AS n))");
    // Values within the bounds arrive, even if one row of the outbox cannot hold all of them.
    app.run(&format!(
        "SELECT queue.enqueue('q', {}); SELECT queue.enqueue_many('q', array_fill({}, ARRAY[20]))",
        nested(1000),
        "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 100))"
    ));
    pair.wait_arrived();
    let mut server = pair.server();
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 21);
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
}
