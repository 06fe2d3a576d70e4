//! Topics: which queues get a job of an event, the contents of that job, and that all queues get it or none.

use queue_tests::installation::output;

use crate::shared::*;

/// Returns a database with topic `t` and these queues.
fn database(queues: &[&str]) -> (Database, Client) {
    let database = Database::new();
    let mut client = database.connect();
    make(&mut client, queues);
    (database, client)
}

fn make(client: &mut Client, queues: &[&str]) {
    queues.iter().for_each(|queue| create(client, queue, "backoff_base => '0'"));
    client.run("SELECT queue.create_topic('t')");
}

/// Returns the queues that got a job from this call of `publish`, in order.
fn published(client: &mut Client, arguments: &str) -> String {
    client.value(&format!(
        "SELECT coalesce(string_agg(queue_name, ' ' ORDER BY queue_name), '') FROM queue.publish('t', {arguments})"
    ))
}

#[test]
fn a_queue_gets_one_job_of_each_event_that_matches_its_bindings() {
    let (_database, mut client) = database(&["all", "placed", "any", "deep", "none"]);
    client.run(
        "SELECT queue.bind('t', 'all'), queue.bind('t', 'all', 'order.*'), queue.bind('t', 'placed', 'order.placed'),
                queue.bind('t', 'any', 'order.*'), queue.bind('t', 'deep', '#.placed.#'), queue.bind('t', 'none', '')",
    );
    for (key, queues) in [
        ("order.placed", "all any deep placed"),
        ("order.gone", "all any"),
        ("order.placed.twice", "all deep"),
        ("order", "all"),
        ("placed", "all deep"),
        ("", "all none"),
        ("order.", "all any"),
        (".placed", "all deep"),
    ] {
        assert_eq!(published(&mut client, &format!("'{{}}', '{key}'")), queues, "{key}");
        let route = format!("SELECT string_agg(queue_name, ' ' ORDER BY queue_name) FROM queue.route('t', '{key}')");
        assert_eq!(client.value::<String>(&route), queues, "{key}");
    }
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'all'"), 8, "one each, though two match");
    // A queue with several matching bindings gets the options of the oldest one.
    assert_eq!(
        client.value::<String>("SELECT pattern FROM queue.route('t', 'order.placed') WHERE queue_name = 'all'"),
        "#"
    );
    let row = client.query_one("SELECT bindings, published, copies, unrouted FROM queue.topics", &[]).unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2), row.get(3)), (6_i64, 8_i64, 17_i64, 0_i64));
    assert_eq!(client.value::<i64>("SELECT queue.unbind('t', 'all', '#')"), 1);
    assert_eq!(published(&mut client, "'{}', 'order.x'"), "all any");
    assert_eq!(client.value::<i64>("SELECT queue.unbind('t', 'all')"), 1);
    assert_eq!(client.value::<i64>("SELECT queue.unbind('t', 'all')"), 0);
    assert_eq!(published(&mut client, "'{}', 'x'"), "");
    let refused = client.failure("SELECT * FROM queue.publish('t', key => 'x', mandatory => true)");
    assert_eq!(
        (refused.code.as_str(), refused.detail.as_str()),
        ("P0002", "No binding matches the key \"x\" and the contents.")
    );
    assert_eq!(client.value::<i64>("SELECT unrouted FROM queue.topics"), 1, "what was rolled back does not count");
    let many = "queue.publish_many('t', ARRAY['1', '2', '3']::jsonb[], ARRAY['order.placed', NULL, 'x']";
    client.run(&format!("CREATE TEMP TABLE made AS SELECT * FROM {many})"));
    let made = "SELECT concat_ws(' ', m.ordinal, m.queue_name, j.payload) FROM made AS m JOIN queue.jobs AS j
                USING (queue_name, job_id) ORDER BY m.ordinal, m.queue_name";
    assert_eq!(client.column::<String>(made), ["1 any 1", "1 deep 1", "1 placed 1", "2 none 2"]);
    let refused = client.failure(&format!("SELECT FROM {many}, mandatory => true)"));
    assert_eq!(
        (refused.code.as_str(), refused.detail.as_str()),
        ("P0002", "No binding matches the key \"x\" and the contents.")
    );
}

#[test]
fn a_binding_has_a_filter_and_options_of_its_own() {
    let (_database, mut client) = database(&["big", "plain", "odd"]);
    client.run("SELECT queue.create('steps', stages => '{one,two}', strict_order => true)");
    client.run(
        "SELECT queue.bind('t', 'big', filter =>
            '$.payload.total > 1000 && ($.headers.land == \"de\" || $.key == \"at\")'),
                queue.bind('t', 'plain'), queue.bind('t', 'odd',
                filter => '$.payload.total.datetime() < \"2020-01-01\".datetime()'),
                queue.bind('t', 'steps', priority => 7, delay => '1 hour', group_key => '$.payload.customer',
                           max_attempts => 3, lease => '2 minutes', stage => 'two')",
    );
    let order = |total: &str, rest: &str| format!("'{{\"total\": {total}, \"customer\": \"c\"}}', priority => 2{rest}");
    assert_eq!(published(&mut client, &order("1001", ", headers => '{\"land\": \"de\"}'")), "big plain steps");
    assert_eq!(published(&mut client, &order("1001", "")), "plain steps");
    assert_eq!(published(&mut client, &order("1001", ", key => 'at'")), "big plain steps");
    assert_eq!(published(&mut client, &order("\"many\"", ", key => 'at'")), "plain steps");
    assert_eq!(published(&mut client, &order("\"2019-01-01\"", "")), "odd plain steps");
    // Three totals are not times, and one text is not a number.
    assert!(client.value::<i64>("SELECT filter_errors FROM queue.topics") >= 4);
    let job = client
        .query_one(
            "SELECT stage, priority, max_attempts, group_key, run_at > now() + interval '59 minutes', state,
                    (SELECT lease::text FROM queue_internal.attempt_0 WHERE lane <> 0 AND priority = 7 UNION ALL
                     SELECT lease::text FROM queue_internal.attempt_8 WHERE lane <> 0 AND priority = 7 LIMIT 1)
             FROM queue.jobs WHERE queue_name = 'steps' ORDER BY job_id LIMIT 1",
            &[],
        )
        .unwrap();
    assert_eq!((job.get(0), job.get(1), job.get(2), job.get(3)), ("two", 7, 3, "c"));
    assert_eq!((job.get(4), job.get(5), job.get(6)), (true, "scheduled", "00:02:00"));
    // Each copy has the origin in its headers, and keeps the publisher's own fields.
    let events: Vec<String> = client.column(
        "SELECT headers->'event'->>'id' FROM (SELECT * FROM queue.claim('big', 100) UNION ALL SELECT *
            FROM queue.claim('plain', 100)) AS j
         WHERE headers->>'land' = 'de' AND headers->'event'->>'topic' = 't' AND headers->'event'->>'key' = ''
             AND (headers->'event'->>'published_at')::timestamptz <= now() AND priority = 2",
    );
    assert_eq!(events.len(), 2);
    assert_eq!(events[0], events[1]);
    assert_eq!(events[0].parse::<i64>().unwrap() & 15, 14, "it is neither a job's id nor an attempt's");
    // A repeated call with the same pattern and filter changes only the options.
    let id: i64 = client.value("SELECT binding_id FROM queue.bindings WHERE queue_name = 'plain'");
    assert_eq!(client.value::<i64>("SELECT queue.bind('t', 'plain', priority => 9)"), id);
    published(&mut client, "'{\"n\": 1}'");
    assert_eq!(
        client.value::<i32>("SELECT priority FROM queue.jobs WHERE payload = '{\"n\": 1}' AND queue_name = 'plain'"),
        9
    );
    // A removed stage does not stop publishers.
    client.run("SELECT queue.purge('steps'), queue.alter('steps', stages => '{one}')");
    assert_eq!(published(&mut client, "'{\"n\": 2}'"), "plain steps");
}

#[test]
fn topics_and_queues_share_names_and_grants_but_not_verbs() {
    let (_database, mut client) = database(&["q"]);
    for (call, code) in [
        ("create_topic('t')", "42710"),
        ("create_topic('q')", "42710"),
        ("create('t')", "42710"),
        ("create_topic('')", "22023"),
        ("create_topic('*')", "22023"),
        ("enqueue('t')", "0A000"),
        ("claim('t')", "0A000"),
        ("pause('t')", "0A000"),
        ("publish('q')", "42704"),
        ("publish('nope')", "42704"),
        ("bind('nope', 'q')", "42704"),
        ("bind('t', 'nope')", "42704"),
        ("bind('t', 't')", "0A000"),
        ("bind('t', 'q', 'a*')", "22023"),
        ("bind('t', 'q', on_full => 'explode')", "22023"),
        ("bind('t', 'q', stage => 'nope')", "22023"),
        ("bind('t', 'q', delay => '-1 s')", "22023"),
        ("bind('t', 'q', max_attempts => 0)", "22023"),
        ("publish('t', key => repeat('a.', 32))", "22023"),
        ("publish('t', key => repeat('a', 1025))", "22023"),
        ("publish('t', headers => '[]')", "22023"),
        ("publish(NULL)", "22004"),
        ("publish_many('t', ARRAY['1', NULL]::jsonb[])", "22004"),
        ("publish_many('t', ARRAY['1']::jsonb[], '{a,b}')", "22023"),
        ("route('q')", "42704"),
    ] {
        client.refused(&format!("SELECT queue.{call}"), code);
    }
    client.run("SELECT queue.create_topic('t', if_not_exists => true)");
    client.run("SELECT queue.create('sql', executor => 'sql')");
    client.refused("SELECT queue.bind('t', 'sql')", "0A000");
    // A topic with bindings or schedules cannot be dropped by mistake. A queue's bindings are dropped with it.
    client.run("SELECT queue.bind('t', 'q'), queue.create('other'), queue.bind('t', 'other')");
    client.refused("SELECT queue.drop('t')", "55000");
    client.run("SELECT queue.drop('other')");
    assert_eq!(client.count("SELECT FROM queue.bindings"), 1);
    client.run("SELECT queue.unbind('t', 'q'), queue.schedule('s', 't', every => '1 year')");
    client.refused("SELECT queue.drop('t')", "55000");
    client.run("SELECT queue.drop('t', force => true)");
    assert_eq!(client.count("SELECT FROM queue.topics"), 0);
    assert_eq!(client.count("SELECT FROM queue.schedules"), 0);
    client.run("SELECT queue.create('t'), queue.enqueue('t')");
}

#[test]
fn privileges_on_a_topic_are_granted_on_it() {
    let (database, mut client) = database(&["mine", "other"]);
    let role = format!("r{}", database.name);
    client.run(&format!("CREATE ROLE {role}; SELECT queue.grant('mine', '{role}', 'manage')"));
    client.run("SELECT queue.bind('t', 'other', 'secret.#', filter => '$.payload.password == \"x\"')");
    client.run(&format!("SET ROLE {role}"));
    let refused = client.failure("SELECT queue.bind('t', 'mine')");
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("42501", "permission denied for topic \"t\""));
    assert_eq!(refused.detail, "This needs the privilege observe.");
    client.refused("SELECT queue.publish('t')", "42501");
    client.refused("SELECT queue.route('t')", "42501");
    client.refused("SELECT queue.drop('t')", "42501");
    client.refused("SELECT queue.unbind('t', 'other')", "42501");
    client.refused("SELECT queue.alter('mine', dead_letter => 't')", "42501");
    client.refused("SELECT queue.schedule('s', 't', every => '1 h')", "42501");
    assert_eq!(client.count("SELECT FROM queue.topics") + client.count("SELECT FROM queue.bindings"), 0);
    client.refused("SELECT queue.create_topic('another')", "42501");
    client.run(&format!("RESET ROLE; SELECT queue.grant('t', '{role}', 'observe'); SET ROLE {role}"));
    assert_eq!(client.failure("SELECT queue.bind('t', 'other')").code, "42501", "that queue is not the role's");
    client.run("SELECT queue.bind('t', 'mine')");
    client.refused("SELECT queue.publish('t')", "42501");
    assert_eq!(client.value::<String>("SELECT bound_by FROM queue.bindings WHERE queue_name = 'mine'"), role);
    client.run(&format!(
        "RESET ROLE; SELECT queue.revoke('t', '{role}', 'observe'), queue.grant('t', '{role}', 'produce'); \
            SET ROLE {role}"
    ));
    // The publisher needs no privilege on bound queues, and does not see queues that it cannot observe.
    assert_eq!(published(&mut client, "'{\"password\": \"x\"}', 'secret.a'"), "mine other");
    assert_eq!(client.count("SELECT FROM queue.topics") + client.count("SELECT FROM queue.bindings"), 0);
    client.run("SELECT queue.unbind('t', 'mine')");
    client.run(&format!("RESET ROLE; SELECT queue.drop('t', true); DROP OWNED BY {role}; DROP ROLE {role}"));
    assert_eq!(
        client.count(
            "SELECT FROM queue_internal.permission WHERE queue_id NOT IN (SELECT queue_id FROM queue_internal.queue)"
        ),
        0
    );
}

#[test]
fn an_event_has_all_copies_or_none() {
    let (database, mut client) = database(&["a", "b"]);
    client.run("SELECT queue.create('full', max_waiting => 1), queue.enqueue('full')");
    client.run("SELECT queue.bind('t', 'a'), queue.bind('t', 'b'), queue.bind('t', 'full')");
    let jobs = "SELECT FROM queue.jobs WHERE queue_name IN ('a', 'b', 'full')";
    // max_waiting limits the queue's own producers. It limits publishers only if the binding says so.
    assert_eq!(published(&mut client, "'1'"), "a b full");
    client.run("SELECT queue.bind('t', 'full', on_full => 'drop')");
    assert_eq!(published(&mut client, "'2'"), "a b");
    assert_eq!(client.value::<i64>("SELECT dropped FROM queue.topics"), 1);
    client.run("SELECT queue.bind('t', 'full', on_full => 'error')");
    let before = client.count(jobs);
    client.refused("SELECT queue.publish('t', '3')", "53400");
    client.refused("SELECT queue.publish_many('t', ARRAY['3']::jsonb[])", "53400");
    assert_eq!(client.count(jobs), before);
    client.run("SELECT queue.unbind('t', 'full')");
    // A unique key counts in each queue separately.
    client.run("SELECT queue.enqueue('b', unique_key => 'k')");
    let before = client.count(jobs);
    client.refused("SELECT queue.publish('t', unique_key => 'k', on_duplicate => 'error')", "23505");
    assert_eq!(client.count(jobs), before);
    assert_eq!(published(&mut client, "'{\"n\": 4}', unique_key => 'k'"), "a b");
    assert_eq!(client.count(jobs), before + 1, "new in one, left alone in the other");
    assert_eq!(published(&mut client, "'{\"n\": 5}', unique_key => 'k', on_duplicate => 'replace'"), "a b");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE payload = '{\"n\": 5}' AND unique_key = 'k'"), 2);
    // A queue that another transaction is dropping gets no copy. The other queues do.
    let mut dropper = database.connect();
    dropper.run("BEGIN; SELECT queue.drop('b', force => true)");
    assert_eq!(published(&mut client, "'{}'"), "a");
    assert_eq!(client.value::<i64>("SELECT dropped FROM queue.topics"), 2);
    dropper.run("COMMIT");
    assert_eq!(published(&mut client, "'{}'"), "a");
    // A flow waits for all copies, and copies can have predecessors.
    client.run("SELECT queue.create('c'), queue.bind('t', 'c'), queue.create('f')");
    client.run("BEGIN");
    let flow: i64 = client.value("SELECT queue.enqueue_flow('f', open => true)");
    let first: i64 = client.value("SELECT queue.enqueue('f')");
    assert_eq!(published(&mut client, &format!("'{{\"n\": 6}}', flow => {flow}, after => '{{{first}}}'")), "a c");
    client.run("COMMIT");
    assert_eq!(client.count(&format!("SELECT FROM queue.members({flow})")), 2);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'held' AND payload = '{\"n\": 6}'"), 2);
    client.refused(&format!("SELECT queue.publish('t', flow => {first})"), "55000");
}

#[test]
fn dead_jobs_and_schedules_can_go_to_a_topic() {
    let (_database, mut client) = database(&["alerts", "grave", "back"]);
    create(&mut client, "pay.eu", "max_attempts => 1, dead_letter => 't'");
    client.run("SELECT queue.bind('t', 'alerts', 'pay.*'), queue.bind('t', 'grave', 'x'), queue.bind('t', 'back', '')");
    // The call that closes a cycle is refused, whichever part it adds.
    let circle = client.failure("SELECT queue.bind('t', 'pay.eu')");
    assert_eq!(
        (circle.code.as_str(), circle.detail.as_str()),
        ("22023", "The dead letters would go \"t\" to \"pay.eu\" to \"t\".")
    );
    client.refused("SELECT queue.alter('alerts', dead_letter => 't')", "22023");
    client.run("SELECT queue.alter('alerts', dead_letter => 'back')");
    client.refused("SELECT queue.alter('back', dead_letter => 'pay.eu')", "22023");
    let dead: i64 = client.value("SELECT queue.enqueue('pay.eu', '{\"n\": 1}', priority => 3)");
    let id = client.claim("pay.eu");
    client.run(&format!("SELECT queue.fail({id}, 'refused')"));
    assert_eq!(client.state(dead), "dead");
    let copy = client
        .query_one(
            "SELECT headers->'event'->>'key', headers->'dead_letter'->>'error', payload->>'n', priority \
                FROM queue.claim('alerts')",
            &[],
        )
        .unwrap();
    assert_eq!((copy.get(0), copy.get(1), copy.get(2), copy.get(3)), ("pay.eu", "refused", "1", 3));
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'grave'"), 0);
    // A full subscriber does not block a job from dying.
    client.run(
        "SELECT queue.alter('grave', max_waiting => 1), queue.enqueue('grave'), \
        queue.bind('t', 'grave', '#', on_full => 'error')",
    );
    client.run("SELECT queue.enqueue('pay.eu')");
    let id = client.claim("pay.eu");
    client.run(&format!("SELECT queue.fail({id}, 'refused')"));
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'grave'"), 1);
    client.run("SELECT queue.unbind('t', 'grave')");
    // A slot is published once, to the bindings that match the empty key.
    client.run("SELECT queue.schedule('tick', 't', '{\"tick\": true}', every => '1 year')");
    assert_eq!(client.value::<String>("SELECT queue_name FROM queue.schedules"), "t");
    let job: i64 = client.value("SELECT queue.run_schedule('tick')");
    let row = client.query_one("SELECT queue_name, payload::text, headers->>'schedule' FROM queue.job($1)", &[&job]);
    let row = row.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("back", "{\"tick\": true}", "tick"));
    client.run("SELECT queue.schedule('tick', 't', every => '200 ms')");
    wait::until_true("slots are published", || {
        client.count("SELECT FROM queue.jobs WHERE queue_name = 'back' AND payload = '{}'") >= 3
    });
    client.run("SELECT queue.unbind('t', 'back')");
    let unrouted: i64 = client.value("SELECT unrouted FROM queue.topics");
    wait::until_true("slots go on with nobody bound", || {
        client.value::<i64>("SELECT unrouted FROM queue.topics") > unrouted + 1
    });
    client.check();
}

#[test]
fn a_publish_has_the_copies_of_one_committed_state() {
    let (database, mut client) = database(&["one", "other", "both"]);
    client.run("SELECT queue.bind('t', 'one'), queue.bind('t', 'both')");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for publisher in 0..16 {
            let (database, is_over) = (&database, &is_over);
            scope.spawn(move || {
                let mut client = database.connect();
                let isolation = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][publisher % 3];
                client.run(&format!("SET default_transaction_isolation = '{isolation}'"));
                let mut n = 0;
                while !is_over.load(Ordering::Relaxed) || n < 20 {
                    let queues = published(&mut client, &format!("'{n}', 'a.b'"));
                    assert!(["both one", "both other"].contains(&queues.as_str()), "{queues}");
                    n += 1;
                }
            });
        }
        for n in 0..200 {
            let (bind, unbind) = if n % 2 == 0 { ("other", "one") } else { ("one", "other") };
            client
                .run(&format!("BEGIN; SELECT queue.bind('t', '{bind}', 'a.#'), queue.unbind('t', '{unbind}'); COMMIT"));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // With an older snapshot, `publish` uses the bindings at the time of the call.
    let mut old = database.connect();
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.topics");
    client.run("SELECT queue.unbind('t', 'both')");
    assert_eq!(published(&mut old, "'{}', 'a.b'"), "one");
    old.run("ROLLBACK");
    // A transaction uses its own bindings, even in the same statement.
    client.run("BEGIN");
    let queues: String = client.value(
        "SELECT string_agg(p.queue_name, ' ') FROM queue.bind('t', 'both', 'z') AS b,
             LATERAL (SELECT * FROM queue.publish('t', key => 'z') WHERE b > 0) AS p",
    );
    assert_eq!(queues, "both");
    client.run("ROLLBACK");
    assert_eq!(published(&mut client, "'{}', 'z'"), "");
    client.check();
}

/// Returns for each event the number of queues that have a job of it.
fn copies(client: &mut Client) -> BTreeMap<String, i64> {
    let rows = client.query("SELECT payload->>'event', count(*) FROM queue.jobs GROUP BY 1", &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn a_crash_leaves_all_copies_of_an_event_or_none() {
    let cluster = Cluster::new().conf("pg_queue.segment_rows = 1000").start();
    cluster.psql("CREATE EXTENSION pg_queue");
    let mut client = cluster.connect();
    make(&mut client, &["a", "b", "c"]);
    client.run(
        "SELECT queue.bind('t', q, delay => CASE q WHEN 'c' THEN interval '1 day' END) \
        FROM unnest('{a,b,c}'::text[]) AS q",
    );
    let mut random = random::Random::new(random::seed("a_crash_leaves_all_copies_of_an_event_or_none"));
    let mut answered = Vec::new();
    for round in 0..6 {
        let mut n = 0;
        let point = ["row.attempt.before", "row.attempt.after", "commit.settled"][round % 3];
        let most = random.below(40) + 5;
        loop {
            if n == most {
                let _ = cluster.fault(point, "crash");
            }
            let event = format!("{round}-{n}");
            let large = "x".repeat(if random.percent(50) { 3000 } else { 10 });
            let payload = format!("'{{\"event\": \"{event}\", \"large\": \"{large}\"}}'");
            match client.query(&format!("SELECT * FROM queue.publish('t', {payload})"), &[]) {
                Ok(rows) => {
                    assert_eq!(rows.len(), 3);
                    answered.push(event);
                }
                Err(_) => break,
            }
            n += 1;
            if n > most + 20 {
                // If a publish does not pass this fault point, the test crashes the server itself.
                cluster.restart_immediate();
                break;
            }
        }
        client = wait::until("the server is back", || {
            let mut client = cluster.config().connect(postgres::NoTls).ok()?;
            client.batch_execute("SELECT FROM queue.stats").is_ok().then_some(client)
        });
    }
    let copies = copies(&mut client);
    assert!(copies.values().all(|&count| count == 3), "{copies:?}");
    for event in answered {
        assert!(copies.contains_key(&event), "{event} is lost");
    }
    client.check();
}

#[test]
fn topics_are_dumped_and_restored() {
    let (source, mut client) = Cluster::new().start_with_database("app");
    make(&mut client, &["a", "b"]);
    client.run("CREATE ROLE publisher; SELECT queue.grant('t', 'publisher', 'produce')");
    client.run(
        "SELECT queue.bind('t', 'a', 'x.#', filter => '$.payload.n == 1', lease => '1 minute'), \
        queue.bind('t', 'b', '*')",
    );
    let large = "x".repeat(5000);
    client.run(&format!("SELECT queue.publish('t', '{{\"n\": 1, \"large\": \"{large}\"}}', 'x')"));
    client.run("SELECT queue.schedule('s', 't', every => '1 year')");
    let file = source.dir().join("app.dump").display().to_string();
    output(source.command("pg_dump").args(["-Fc", "-f", &file, "app"]));
    let target = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start();
    let mut client = target.connect();
    client.run("CREATE ROLE publisher");
    client.run("CREATE DATABASE app");
    output(target.command("pg_restore").args(["-d", "app", &file]));
    let mut client = target.connect_to("app");
    client.run("SELECT queue.adopt()");
    for queue in ["a", "b"] {
        assert_eq!(client.value::<String>(&format!("SELECT payload->>'large' FROM queue.claim('{queue}')")), large);
    }
    client.run("SET ROLE publisher");
    assert_eq!(published(&mut client, "'{\"n\": 1}', 'x'"), "a b");
    client.run(
        "RESET ROLE; SELECT queue.create_topic('u'), queue.create('c'), queue.bind('u', 'c'), queue.run_schedule('s')",
    );
    assert_eq!(client.count("SELECT FROM queue.bindings"), 3, "the sequences go on behind what was restored");
    client.check();
}

#[test]
fn a_publisher_does_not_wait_for_a_session_that_binds() {
    let (database, mut client) = database(&["a", "b"]);
    client.run("SELECT queue.bind('t', 'a')");
    let mut binder = database.connect();
    binder.run("BEGIN; SELECT queue.bind('t', 'b'), queue.unbind('t', 'a')");
    client.run("SET lock_timeout = '2s'");
    assert_eq!(published(&mut client, "'{}'"), "a", "what is not committed does not count");
    // A drop waits for a transaction that binds, and then finds the binding.
    let dropped = blocked::<bool>(&mut client, database.connect(), "SELECT queue.drop('t')");
    binder.run("COMMIT");
    let failure = dropped.join().unwrap().unwrap_err();
    assert_eq!(failure.code, "55000", "{failure:?}");
    assert_eq!(published(&mut client, "'{}'"), "b");
}
