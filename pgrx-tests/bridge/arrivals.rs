//! A call on the primary has the same effect as the same call on the queue server.

use postgres::{Config, NoTls};
use queue_tests::pooler::Pooler;
use queue_tests::sql::Sql;
use queue_tests::{integrity, wait};

use crate::pair::{DATABASE, Pair};

/// What a call has made, without the ids, because the primary gives its own.
const CONTENTS: &str = "SELECT string_agg(to_jsonb(j)::text, E'\n' ORDER BY j) FROM (
    SELECT queue_name, stage, state, payload, priority, attempt, max_attempts, date_trunc('minute', run_at) AS run_at,
           unique_key, group_key, headers #- '{event,id}' #- '{event,published_at}' AS headers, task,
           flow IS NOT NULL AS has_flow, cardinality(after) AS after, upon, worker, error, result,
           start_by IS NOT NULL AS starts, timing - 'start_by' - 'delayed_since' AS timing,
           date_trunc('minute', (timing ->> 'start_by')::timestamptz) AS start_by
    FROM queue.jobs) AS j";

/// Runs statements on the primary and, in another database, on the queue server. `JOB` stands for an existing job.
#[track_caller]
fn same(pair: &Pair, name: &str, calls: &[&str]) {
    let setup = "SELECT queue.create('q', backoff => 'constant', backoff_base => '0', stages => '{one,two}');
        SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', 'a.*', group_key => '$.payload.g')";
    let mut direct = pair.server.create_database(name);
    direct.run(setup);
    let mut app = pair.app();
    for call in calls {
        for client in [&mut direct, &mut app] {
            let job = client.value::<i64>("SELECT queue.enqueue('q')");
            client.run(&call.replace("JOB", &job.to_string()));
        }
    }
    pair.wait_arrived();
    let [wanted, found] = [&mut direct, &mut pair.server()].map(|client| client.value::<Option<String>>(CONTENTS));
    assert_eq!(found, wanted, "{calls:?}");
}

#[test]
fn each_call_of_a_producer_does_what_it_does_on_the_queue_server() {
    each_call_is_the_same(&Pair::apart(""));
}

/// Connects a pair and makes each producer call on both servers.
pub fn each_call_is_the_same(pair: &Pair) {
    let mut server = pair.server();
    server.run(
        "SELECT queue.create('q', backoff => 'constant', backoff_base => '0', stages => '{one,two}');
         SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', 'a.*', group_key => '$.payload.g')",
    );
    pair.connect();
    server.run("SELECT queue_bridge.allow('shop', 'q', '{produce,consume,manage}'), queue_bridge.allow('shop', 't')");
    assert_eq!(pair.contact(), None);
    same(
        pair,
        "direct",
        &[
            "SELECT queue.enqueue('q', '{\"a\": 1}', 7)",
            "SELECT queue.enqueue('q', delay => '1 day')",
            "SELECT queue.enqueue('q', run_at => '2100-01-01')",
            "SELECT queue.enqueue('q', group_key => 'g', stage => 'two', max_attempts => 3, lease => '1 hour')",
            "SELECT queue.enqueue('q', headers => '{\"a\": null}', start_within => '1 day')",
            "SELECT queue.enqueue('q', unique_key => 'd', on_duplicate => 'replace', delay => '2 h',
                max_delay => '1 h')",
            "SET TimeZone = 'Asia/Tokyo'; SET IntervalStyle = 'sql_standard';
             SELECT queue.enqueue_many('q', '{1}', start_by => '2100-01-01', delay => '1 h');
             SELECT queue.enqueue_batch('q', '[{\"start_by\": \"2100-01-01\"}, {\"start_within\": \"1 day 2 hours\"}]');
             RESET TimeZone; RESET IntervalStyle",
            "SELECT queue.publish('t', key => 'a.d', start_within => '1 month -1 day');
             SELECT queue.publish_many('t', '{1,2}', '{a.x,a.y}', start_by => '2100-01-01')",
            "SELECT queue.enqueue_flow('q', '[{\"start_within\": \"1 h\"}]', start_within => '3 h')",
            "SELECT queue.enqueue('q', unique_key => 'k'); SELECT queue.enqueue('q', '2', unique_key => 'k')",
            "SELECT queue.enqueue('q', '3', unique_key => 'k', on_duplicate => 'replace', version => '2000-01-01')",
            "SELECT queue.enqueue('q', unique_key => 'l', unique_for => '1 day')",
            "SELECT queue.enqueue('q', after => ARRAY[JOB])",
            "SELECT queue.enqueue('q', after => ARRAY[JOB], upon => 'any')",
            "SELECT queue.enqueue_many('q', ARRAY['1', '{}', 'null']::jsonb[], priority => 3)",
            "SELECT queue.enqueue_many('q', '{}')",
            "SELECT queue.enqueue_batch('q', '[{\"payload\": 1, \"delay\": \"1 day\"}, {}, {\"unique_key\": \"m\"}, \
             {\"unique_key\": \"m\", \"on_duplicate\": \"replace\", \"payload\": 5}]')",
            "SELECT queue.publish('t', '{\"g\": \"x\"}', 'a.b'); SELECT queue.publish('t', key => 'b')",
            "SELECT queue.publish('t', key => 'a.c', delay => '1 day', priority => 2, headers => '{\"h\": 1}')",
            "SELECT queue.publish_many('t', '{1,2}', '{a.x,a.y}')",
            "SELECT queue.cancel(JOB, 'not needed')",
            "SELECT queue.enqueue_flow('q', '[
                {\"task\": \"b\", \"after\": [\"a\"], \"upon\": \"any\", \"priority\": 4},
                {\"task\": \"a\", \"payload\": [1, null], \"delay\": \"1 day\"},
                {\"queue\": \"q\", \"stage\": \"two\"}]',
                '{\"x\": null}', runs => true, upon => 'any', priority => 3)",
            "SELECT queue.enqueue_flow('q', '[{}]', fail_fast => true, after => ARRAY[JOB], unique_key => 'f')",
            "SELECT queue.enqueue_flow('q', '[{}, {}]', unique_key => 'f')",
            "SELECT queue.enqueue_flow('q')",
            "BEGIN; SELECT queue.enqueue('q', '7', flow => f), queue.enqueue('q', '8', flow => f, after => ARRAY[JOB]),
                queue.seal(f) FROM queue.enqueue_flow('q', open => true) AS f; COMMIT",
            "BEGIN; SELECT queue.enqueue('q', '\"gone\"'); ROLLBACK",
            "BEGIN; SELECT queue.enqueue('q', '\"kept\"'); SAVEPOINT s; SELECT queue.enqueue('q', '\"gone\"'); \
             ROLLBACK TO s; COMMIT",
        ],
    );
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    assert_eq!(server.count("SELECT FROM queue_bridge.outbox"), 0);
    integrity::check(&mut server);
}

#[test]
fn the_id_of_a_call_is_the_id_of_its_job() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let mut made = app.column::<i64>("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[2500]))");
    assert_eq!(app.count("SELECT FROM pg_tables WHERE schemaname = 'queue_bridge'"), 16);
    made.push(app.enqueue("q"));
    made.extend(app.column::<i64>("SELECT queue.enqueue_batch('q', '[{}, {\"after\": null}]')"));
    pair.wait_arrived();
    let found = server.column::<i64>("SELECT job_id FROM queue.jobs ORDER BY job_id");
    assert_eq!(found, made);
    // Each job is counted as enqueued once, even after a retry.
    let id = server.claim("q");
    server.run(&format!("SELECT queue.fail({id}, 'no', fatal => true)"));
    let job: i64 = server.value("SELECT job_id FROM queue.jobs WHERE state = 'dead'");
    server.run(&format!("SELECT queue.retry({job})"));
    assert_eq!(server.state(job), "ready");
    server.wait_counted();
    assert_eq!(server.value::<i64>("SELECT enqueued FROM queue.stats WHERE queue_name = 'q'"), made.len() as i64);
    assert_eq!(server.value::<i64>(&format!("SELECT count(*) FROM queue.job({job})")), 1);
    integrity::check(&mut server);
}

#[test]
fn jobs_are_ended_in_the_transaction_of_their_effects() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    app.run("SELECT queue.enqueue_many('q', '{1,2,3,4,5}')");
    pair.wait_arrived();
    let ids = server.column::<i64>("SELECT id FROM queue.claim('q', 5)");
    app.run(&format!("BEGIN; SELECT queue.complete({}); ROLLBACK", ids[0]));
    app.run(&format!("SELECT queue.complete({}, '{{\"done\": true}}')", ids[0]));
    app.run(&format!("SELECT queue.complete_many(ARRAY[{}, {}])", ids[1], ids[2]));
    app.run(&format!("SELECT queue.fail({}, 'broken', fatal => true)", ids[3]));
    app.run(&format!("SELECT queue.release({}, '1 day')", ids[4]));
    pair.wait_arrived();
    let states = server.column::<String>("SELECT concat_ws(' ', state, result, error) FROM queue.jobs ORDER BY job_id");
    assert_eq!(states, ["completed {\"done\": true}", "completed", "completed", "dead broken", "scheduled"]);
    // A completion with a lost lease is listed and has no other effect.
    app.run(&format!("SELECT queue.complete({})", ids[3]));
    pair.wait_arrived();
    assert_eq!(server.value::<i64>("SELECT late FROM queue_bridge.sources"), 1);
    app.refused("SELECT queue.complete(15)", "22023");
    app.refused("SELECT queue.cancel(16)", "22023");
}

#[test]
fn a_completion_that_comes_late_completes_a_job_that_waits() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    // How an attempt ends before its completion arrives, the completion, the job's state, and the number of late calls.
    let late = "SELECT queue.complete(ID, '{\"done\": true}')";
    let cases = [
        ("SELECT queue.fail(ID, 'lost', retry_in => '1 hour')", late, "completed", 0),
        ("SELECT queue.fail(ID, 'lost', retry_in => '1 hour')", "SELECT queue.complete_many('{ID}')", "completed", 0),
        ("SELECT queue.release(ID)", late, "completed", 0),
        (
            "SELECT queue.fail(ID, 'lost', retry_in => '0'); SELECT id FROM queue.claim('q', wait => '10s')",
            late,
            "running",
            1,
        ),
        ("SELECT queue.fail(ID, 'lost', fatal => true)", late, "dead", 1),
        ("SELECT queue.fail(ID, 'lost', fatal => true); SELECT queue.retry(JOB, '2100-01-01')", late, "completed", 0),
        ("SELECT queue.complete(ID); SELECT queue.retry(JOB, '2100-01-01')", late, "scheduled", 1),
        ("SELECT queue.suspend(ID, until => 'epoch')", late, "ready", 1),
        ("SELECT queue.suspend(ID, until => 'epoch')", "SELECT queue.complete_many('{ID}')", "ready", 0),
    ];
    for (ends, late, state, listed) in cases {
        let job = app.enqueue("q");
        let after = app.value::<i64>(&format!("SELECT queue.enqueue('q', after => ARRAY[{job}], priority => -1)"));
        pair.wait_arrived();
        let id: i64 = server.value("SELECT id FROM queue.claim('q')");
        let named = |sql: &str| sql.replace("ID", &id.to_string()).replace("JOB", &job.to_string());
        named(ends).split("; ").for_each(|sql| server.run(sql));
        let before: i64 = server.value("SELECT late FROM queue_bridge.sources");
        app.run(&named(late));
        pair.wait_arrived();
        assert_eq!(server.state(job), state, "{ends}");
        assert_eq!(server.value::<i64>("SELECT late FROM queue_bridge.sources") - before, listed, "{ends}");
        if state == "completed" {
            wait::until("its successor", || (server.state(after) == "ready").then_some(()));
        }
        server.run("SELECT queue.purge('q')");
        integrity::check(&mut server);
    }
    let result = "SELECT count(*) FROM queue.jobs WHERE result = '{\"done\": true}'";
    assert_eq!(server.value::<i64>(result), 3);
    // The source may no longer consume from the queue.
    let job = app.enqueue("q");
    pair.wait_arrived();
    let id = server.claim("q");
    server.run(&format!("SELECT queue.release({id}, '1 hour'); SELECT queue_bridge.deny('shop', 'q')"));
    app.run(&format!("SELECT queue.complete({id})"));
    pair.wait_arrived();
    assert_eq!(server.state(job), "scheduled");
}

#[test]
fn effects_happen_once_however_often_a_job_runs() {
    let pair = Pair::new();
    let (mut app, mut other, mut server) = (pair.app(), pair.app(), pair.server());
    let job = app.enqueue("q");
    let once = format!("SELECT queue.once({job})");
    app.run("BEGIN");
    assert!(app.value::<bool>(&once));
    app.run("ROLLBACK; BEGIN");
    assert!(app.value::<bool>(&once));
    // The second session waits for the first transaction and then returns false.
    let pid = other.pid();
    let waiting = std::thread::spawn(move || other.value::<bool>(&once));
    queue_tests::sql::wait_blocked(&mut pair.primary.connect(), pid);
    app.run("COMMIT");
    assert!(!waiting.join().expect("its answer"));
    let more = app.column::<i64>("SELECT queue.enqueue_many('q', '{1,2}')");
    let many = format!("SELECT queue.once_many(ARRAY[{}, {job}, {}])", more[1], more[0]);
    assert_eq!(app.column::<i64>(&many).len(), 2);
    assert_eq!(app.column::<i64>(&many).len(), 0);
    // Jobs of the queue server have ids that the primary does not give.
    let local = server.enqueue("q");
    assert!(app.value::<bool>(&format!("SELECT queue.once({local})")));
    app.refused("SELECT queue.once(16)", "22023");
}

/// Makes the turns of both generations look a day older, so that the older generation may be emptied.
fn let_a_day_go_by(pair: &Pair) {
    let mut owner = pair.primary_as("owner");
    owner.run("UPDATE queue_bridge.turn SET since = since - interval '2 days', asked_at = NULL");
    assert_eq!(pair.contact(), None);
    pair.wait_arrived();
}

/// Lets days go by until a query on the primary returns this answer.
fn days_until(pair: &Pair, sql: &str, wanted: &str) {
    let mut owner = pair.primary_as("owner");
    wait::until(wanted, || {
        let_a_day_go_by(pair);
        (owner.value::<String>(sql) == wanted).then_some(())
    });
}

#[test]
fn effects_are_forgotten_once_none_of_their_jobs_can_run() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    let turn = "SELECT format('%s %s %s', since IS NOT NULL, lsn IS NOT NULL, is_arrived) FROM queue_bridge.turn
                WHERE place = ";
    let kept = "SELECT job_id FROM queue_bridge.effect ORDER BY 1";
    let once = |client: &mut postgres::Client, job: i64| client.value::<bool>(&format!("SELECT queue.once({job})"));
    let early = [app.enqueue("q"), server.enqueue("q")];
    pair.wait_arrived();
    for job in early {
        assert!(once(&mut app, job));
    }
    // In the first turn there is nothing to empty.
    let turned = "SELECT count(*)::text FROM queue_bridge.turn WHERE ends <> begins";
    days_until(&pair, turned, "2");
    assert_eq!(owner.column::<i64>(kept).len(), 2);
    for job in early {
        assert!(!once(&mut app, job), "it is known in the older generation");
    }
    // New ids belong to the older generation until its headroom is used.
    let mut open = pair.app();
    open.run("BEGIN; SELECT queue.enqueue('q', '\"late\"')");
    owner.run("SELECT setval('queue_bridge.id_seq', (SELECT last_value + 200000 FROM queue_bridge.id_seq))");
    server.run("SELECT setval('queue_internal.id_seq', (SELECT last_value + 8192 * 40 FROM queue_internal.id_seq))");
    let more = [app.enqueue("q"), server.enqueue("q")];
    pair.wait_arrived();
    assert!(once(&mut app, more[0]) && !once(&mut app, more[0]));
    for _ in 0..3 {
        let_a_day_go_by(&pair);
    }
    assert_eq!(owner.value::<String>(&format!("{turn} 0")), "t f f", "a transaction that has made an id is open");
    open.run("COMMIT");
    days_until(&pair, &format!("{turn} 0"), "t t t");
    for _ in 0..3 {
        let_a_day_go_by(&pair);
    }
    assert_eq!(owner.value::<String>(&format!("{turn} 0")), "t t t", "jobs of the older generation live");
    assert_eq!(owner.column::<i64>(kept).len(), 3);
    // A dead job keeps the effects of its generation, because it can be retried. Completed jobs do not.
    let claimed = server.column::<i64>("SELECT id FROM queue.claim('q', 4)");
    server.run(&format!("SELECT queue.fail({}, 'no', fatal => true)", claimed[0]));
    for id in &claimed[1..] {
        server.run(&format!("SELECT queue.complete({id})"));
    }
    let kept = "SELECT string_agg(job_id::text, ' ' ORDER BY job_id) FROM queue_bridge.effect";
    days_until(&pair, kept, &format!("{} {}", early[1], more[0]));
    assert_eq!(server.state(early[1]), "dead");
    server.run(&format!("SELECT queue.retry({})", early[1]));
    let id = server.claim("q");
    server.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(server.state(early[1]), "completed");
    days_until(&pair, kept, &more[0].to_string());
    for job in early {
        assert!(!once(&mut app, job), "its effect is not known any more, and not done again");
        assert_eq!(app.count(&format!("SELECT FROM queue.once_many('{{{job}}}')")), 0);
    }
    assert!(!once(&mut app, more[0]), "the newer generation is kept");
    let dead_rows = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'effect%'";
    assert_eq!(owner.value::<i64>(dead_rows), 0);
}

#[test]
fn a_key_holds_over_jobs_of_both_servers_and_their_retries() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let keyed = "SELECT queue.enqueue('q', unique_key => 'k')";
    for round in 0..3 {
        // In round 1 the queue server makes the first job. Its id is larger than the ids that the primary gives.
        let first: i64 = if round == 1 { server.value(keyed) } else { app.value(keyed) };
        pair.wait_arrived();
        let id = server.claim("q");
        server.run(&format!("SELECT queue.fail({id}, 'once more')"));
        wait::until("the retry is there", || (server.state(first) == "ready").then_some(()));
        let id = server.claim("q");
        server.run(&format!("SELECT queue.complete({id})"));
        let next: i64 = app.value(keyed);
        app.value::<i64>(keyed);
        pair.wait_arrived();
        assert_eq!(server.value::<i64>(keyed), next);
        assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs WHERE state = 'ready'"), [next]);
        let id = server.claim("q");
        server.run(&format!("SELECT queue.complete({id})"));
    }
    integrity::check(&mut server);
}

#[test]
fn calls_that_can_never_succeed_are_listed_on_both_sides_and_hold_up_nothing() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    pair.drop_known_queue();
    let refused = app.enqueue("other");
    let wrong: i64 = app.value("SELECT queue.enqueue('q', stage => 'none')");
    let good = app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs"), [good]);
    assert_eq!(server.value::<i64>("SELECT refused FROM queue_bridge.sources"), 2);
    let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge'";
    assert_eq!(server.value::<String>(doctor), "Source \"shop\" has 2 refused calls.");
    assert_eq!(pair.contact(), None);
    let mut primary = pair.primary_as("owner");
    let told = primary.column::<String>("SELECT format('%s %s', id, sqlstate) FROM queue_bridge.refused ORDER BY id");
    assert_eq!(told, [format!("{refused} 42704"), format!("{wrong} 22023")]);
    let failure = app.failure("SELECT queue.enqueue('other')");
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("42704", "queue \"other\" does not exist"));
    // Once the cause is gone, the job keeps its id.
    server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 1);
    assert_eq!(server.state(refused), "ready");
    assert_eq!(server.column::<i64>("SELECT id FROM queue_bridge.refused"), [wrong]);
}

#[test]
fn calls_that_are_refused_again_stay_listed() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let cancelled = app.enqueue("q");
    let flow: i64 = app.value("SELECT queue.enqueue_flow('q', open => true)");
    app.run("SELECT queue.enqueue('q', priority => -1) FROM generate_series(1, 6)");
    pair.wait_arrived();
    let [completed, first, second, failed, released, late] =
        server.column::<i64>("SELECT id FROM queue.claim('q', 6)").try_into().expect("six attempts");
    server.run("SELECT queue_bridge.deny('shop', 'q')");
    app.run(&format!(
        "SELECT queue.complete({completed}), queue.complete_many('{{{first},{second}}}'), queue.fail({failed}, 'no'),
                queue.release({released}, '1 hour'), queue.complete({late}), queue.cancel({cancelled}),
                queue.seal({flow})"
    ));
    pair.wait_arrived();
    let listed = "SELECT string_agg(concat_ws(' ', verb, code), ', ' ORDER BY refused_id) FROM queue_bridge.refused";
    let all = "c 42501, c 42501, f 42501, r 42501, c 42501, x 42501, s 42501";
    assert_eq!(server.value::<String>(listed), all);
    for _ in 0..2 {
        assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 0);
        assert_eq!(server.value::<String>(listed), all);
    }
    server.run("SELECT queue_bridge.allow('shop', 'q', '{produce}'), queue_bridge.repair('shop')");
    pair.wait_arrived();
    assert_eq!(server.value::<String>(listed), all, "a repair passes them over");
    // One of the calls is now too late.
    server.run(&format!("SELECT queue.fail({late}, 'no', fatal => true)"));
    server.run("SELECT queue_bridge.allow('shop', 'q', '{produce,consume,manage}')");
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 6);
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    let states = format!("SELECT string_agg(state, ' ' ORDER BY job_id) FROM queue.jobs WHERE job_id <> {flow}");
    assert_eq!(server.value::<String>(&states), "cancelled completed completed completed ready scheduled dead");
    wait::until("the flow ends", || (server.state(flow) == "completed").then_some(()));
    integrity::check(&mut server);
}

#[test]
fn a_full_queue_accepts_committed_jobs_and_the_primary_learns_that_it_is_full() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run("SELECT queue.alter('q', max_waiting => 2)");
    app.run("SELECT queue.enqueue_many('q', '{1,2,3}')");
    pair.wait_arrived();
    server.wait_counted();
    assert_eq!(server.count("SELECT FROM queue.jobs"), 3);
    assert_eq!(pair.contact(), None);
    app.refused("SELECT queue.enqueue('q')", "53400");
    server.run("SELECT queue.purge('q')");
    assert_eq!(pair.contact(), None);
    app.enqueue("q");
}

#[test]
fn wrong_arguments_are_found_on_the_primary() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    for call in [
        "queue.enqueue('q', delay => '1 s', run_at => now())",
        "queue.enqueue('q', delay => '-1 s')",
        "queue.enqueue('q', run_at => 'infinity')",
        "queue.enqueue('q', unique_key => repeat('k', 1025))",
        "queue.enqueue('q', headers => '[1]')",
        "queue.enqueue('q', start_within => '0')",
        "queue.enqueue('q', start_within => '1 s', start_by => now())",
        "queue.enqueue('q', start_by => 'infinity')",
        "queue.enqueue('q', start_by => now() + '1 h', delay => '2 h')",
        "queue.enqueue('q', max_delay => '1 h')",
        "queue.enqueue('q', unique_key => 'k', max_delay => '-1 h')",
        "queue.enqueue('q', group_key => repeat('k', 1025))",
        "queue.enqueue('q', unique_key => 'k', on_duplicate => 'no')",
        "queue.enqueue('q', version => now())",
        "queue.enqueue('q', unique_for => '1 s')",
        "queue.enqueue('q', max_attempts => 0)",
        "queue.enqueue('q', lease => '0')",
        "queue.enqueue('q', upon => 'any')",
        "queue.enqueue('q', after => '{}', upon => 'no')",
        "queue.enqueue_many('q', '{1,null}')",
        "queue.enqueue_many('q', NULL)",
        "queue.enqueue_batch('q', '{}')",
        "queue.enqueue_batch('q', '[1]')",
        "queue.enqueue_flow('q', '{}')",
        "queue.enqueue_flow('q', '[{}, 1]')",
        "queue.enqueue_flow('q', '[{\"unique_key\": \"k\"}]')",
        "queue.enqueue_flow('q', '[{\"after\": [1]}]')",
        "queue.enqueue_flow('q', '[{\"after\": \"a\"}]')",
        "queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"task\": \"a\"}]')",
        "queue.enqueue_flow('q', '[{\"task\": \"a\", \"after\": [\"b\"]}]')",
        "queue.enqueue_flow('q', '[{\"task\": \"a\", \"after\": [\"b\"]}, {\"task\": \"b\", \"after\": [\"a\"]}]')",
        "queue.enqueue_flow('q', upon => 'any', fail_fast => true)",
        "queue.enqueue_flow('q', upon => 'overdue')",
        "queue.enqueue_flow('q', unique_key => 'k', on_duplicate => 'replace')",
        "queue.enqueue(NULL)",
        "queue.enqueue('nowhere')",
    ] {
        let [here, there] = [&mut app, &mut server].map(|client| client.failure(&format!("SELECT {call}")));
        assert_eq!((here.code, here.message), (there.code, there.message), "{call}");
    }
    app.refused("SELECT queue.enqueue('q', unique_key => 'k', on_duplicate => 'error')", "0A000");
    app.refused("SELECT queue.enqueue_flow('q', runs => true, command => 'SELECT 1')", "0A000");
    app.refused("SELECT queue.enqueue_flow('q', '[{\"command\": \"SELECT 1\"}]')", "0A000");
}

#[test]
fn a_flow_has_the_ids_of_the_primary_and_arrives_whole_or_not_at_all() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    let tasks = "[{\"task\": \"b\", \"after\": [\"a\"]}, {\"task\": \"a\"}]";
    let flow: i64 = app.value(&format!("SELECT queue.enqueue_flow('q', '{tasks}', runs => true)"));
    app.run(&format!("SELECT queue.enqueue_flow('q', '{tasks}', unique_key => 'k') FROM generate_series(1, 2)"));
    // A wrong task refuses the whole flow.
    app.run("SELECT queue.enqueue_flow('q', '[{}, {\"stage\": \"none\"}]')");
    pair.wait_arrived();
    let outbox = "SELECT unnest(ids) FROM queue_bridge.outbox WHERE verb = 'w' ORDER BY 1";
    let made = pair.primary_as("owner").column::<i64>(outbox);
    let jobs = "SELECT job_id FROM queue.jobs ORDER BY 1";
    assert_eq!(server.column::<i64>(jobs), made[..6]);
    assert_eq!(made[0], flow);
    assert_eq!(server.value::<String>("SELECT code FROM queue_bridge.refused"), "22023");
    // A call that arrives again makes no second flow, even after the flow has ended.
    for _ in 0..2 {
        server.run("SELECT queue_bridge.repair('shop')");
        pair.wait_arrived();
        assert_eq!(server.column::<i64>(jobs), made[..6]);
        for _ in 0..3 {
            server.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
            wait::until("successors are released", || {
                server.run("SELECT queue.maintain()");
                (server.count("SELECT FROM queue.jobs WHERE state IN ('ready', 'completed')") > 1).then_some(())
            });
        }
    }
    integrity::check(&mut server);
}

#[test]
fn a_refused_flow_is_reported_and_becomes_whole_once_it_is_delivered_again() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    pair.drop_known_queue();
    // With these rows the list is not stored in the order of the calls.
    app.run("SELECT queue.enqueue('other') FROM generate_series(1, 3)");
    pair.wait_arrived();
    let flow: i64 =
        app.value("SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"queue\": \"other\"}]', open => true)");
    let gone: i64 = app.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{flow}])"));
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    server.run("DELETE FROM queue_bridge.refused WHERE target = 'other'");
    server.run("VACUUM queue_bridge.refused");
    app.run(&format!(
        "BEGIN; SELECT queue.enqueue('q', flow => {flow}, task => 'b'); SELECT queue.seal({flow});
         SELECT queue.cancel({gone}); COMMIT"
    ));
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    let list = "SELECT string_agg(concat_ws(' ', verb, SQLSTATE), ', ' ORDER BY made_at) FROM queue_bridge.refused";
    let wanted = "w 42704, e P0002, e P0002, s P0002, x P0002";
    assert_eq!(server.value::<String>(&list.replace("SQLSTATE", "code")), wanted);
    let told = format!("{list} WHERE target IS DISTINCT FROM 'other'").replace("SQLSTATE", "sqlstate");
    assert_eq!(pair.primary_as("owner").value::<String>(&told), wanted);
    // The cause still exists, so all calls stay listed.
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 0);
    assert_eq!(server.value::<String>(&list.replace("SQLSTATE", "code")), wanted);
    server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 5);
    assert_eq!(server.state(gone), "cancelled");
    assert_eq!(server.count(&format!("SELECT FROM queue.members({flow})")), 3);
    for queue in ["q", "other"] {
        server.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}', 10)"));
    }
    server.maintain_until(&format!("(SELECT state = 'completed' FROM queue.job({flow}))"));
    integrity::check(&mut server);
}

#[test]
fn producers_may_come_through_a_pooler() {
    let pair = Pair::new();
    let _pooler = Pooler::start(&pair.primary);
    let mut config = Config::new();
    config.host_path(pair.primary.dir()).port(Pooler::PORT).user("postgres").dbname(DATABASE);
    let mut clients = [(); 3].map(|()| config.connect(NoTls).expect("a connection"));
    for n in 0..30 {
        clients[n % 3].run(&format!("BEGIN; SELECT queue.enqueue('q', '{n}', priority => 1); SELECT 1; COMMIT"));
    }
    pair.wait_arrived();
    let found = pair.server().column::<i64>("SELECT payload::bigint FROM queue.jobs ORDER BY payload::bigint");
    assert_eq!(found, (0..30).collect::<Vec<_>>());
}
