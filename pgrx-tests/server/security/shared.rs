//! Objects, payloads and errors of one role cannot make shared work fail or wait.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// Returns a condition whose evaluation on a small value takes time exponential in `depth`.
fn costly(depth: usize) -> String {
    format!("{}@ == \"never\"{}", "exists($.** ? (".repeat(depth), "))".repeat(depth))
}

/// A topic `t` on which `shop` publishes, a bound queue `theirs`, and a queue `mine` of `mallory`, which may observe
/// the topic.
struct Bed {
    client: Client,
    shop: String,
    mallory: String,
}

fn bed(database: &Database, roles: &Roles<'_>) -> Bed {
    let mut client = database.connect();
    let (shop, mallory) = (roles.make("shop", ""), roles.make("mallory", ""));
    client
        .run("SELECT queue.create('theirs'), queue.create('mine'), queue.create_topic('t'), queue.bind('t', 'theirs')");
    grant(&mut client, "t", &shop, "produce");
    grant(&mut client, "t", &mallory, "observe");
    grant(&mut client, "mine", &mallory, "manage");
    Bed { client, shop, mallory }
}

impl Bed {
    fn as_role(&mut self, role: &str, sql: &str) {
        self.client.run(&format!("SET ROLE {role}; {sql}; RESET ROLE"));
    }

    /// Publishes as `shop`. Returns the queues that got a copy.
    fn publish(&mut self, payload: &str) -> Vec<String> {
        self.client.run(&format!("SET ROLE {}", self.shop));
        let queues = self.client.column(&format!("SELECT queue_name FROM queue.publish('t', '{payload}') ORDER BY 1"));
        self.client.run("RESET ROLE");
        queues
    }

    /// Returns the detail of a check that is not ok.
    fn finding(&mut self, check: &str) -> String {
        let sql = format!("SELECT detail FROM queue.doctor() WHERE name = '{check}' AND NOT ok");
        self.client.column::<String>(&sql).pop().unwrap_or_default()
    }
}

/// True if a filter was refused because its compilation takes too long.
fn is_slow_to_read(failure: &postgres::Error) -> bool {
    failure
        .as_db_error()
        .is_some_and(|error| error.code().code() == "22023" && error.message().contains("cannot be read within"))
}

#[test]
fn no_option_of_a_subscriber_refuses_or_delays_an_event() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    // An option that is out of range, or that needs a privilege on the topic, is refused at the call.
    bed.client.run(&format!("SET ROLE {mallory}"));
    for (options, code) in [
        ("delay => timestamptz '294276-12-31 23:59:59.999999+00' - clock_timestamp() - interval '1 s'", "22023"),
        ("delay => '11 years'", "22023"),
        ("delay => '-1 s'", "22023"),
        ("on_full => 'error'", "42501"),
        ("filter => (repeat('1==1||', 11000) || '1==2')::jsonpath", "22023"),
        ("filter => ('$.payload.\"' || repeat('a', 3000) || '\"')::jsonpath", "22023"),
        ("group_key => ('$.payload.\"' || repeat('a', 1000000) || '\"')::jsonpath", "22023"),
    ] {
        bed.client.refused(&format!("SELECT queue.bind('t', 'mine', {options})"), code);
    }
    bed.client.run("RESET ROLE");
    // Other options affect only the copy.
    for options in [
        "delay => '10 years'".to_owned(),
        format!("filter => '{}'", costly(9)),
        format!("filter => '{}'", costly(3)),
        format!("group_key => '$.** ? ({})'", costly(8)),
        "filter => '$.payload like_regex \"(x+x+)+y\"'".to_owned(),
        // Compiling this filter takes seconds in each session.
        "filter => '$.payload.a like_regex \"(^|a|b|$){1,15}\"'".to_owned(),
        "filter => '$.payload / 0 == 1'".to_owned(),
        format!("filter => '$.payload{} == 7'", "[0,0]".repeat(26)),
        format!("group_key => '$.payload{}'", "[0,0]".repeat(26)),
        format!("filter => '$.payload.n / $.payload.n == 1{}'", " || $.payload.n / $.payload.n == 2".repeat(30)),
        format!("filter => '{} == 1'", "-(".repeat(100) + "$.payload.n" + &")".repeat(100)),
        "filter => '$.payload.x starts with \"x\"'".to_owned(),
        "stage => NULL, priority => 2147483647, max_attempts => 1000000, lease => '10 years'".to_owned(),
    ] {
        let bind = format!("SET ROLE {mallory}; SELECT queue.bind('t', 'mine', pattern => '#', {options})");
        let bound = bed.client.batch_execute(&bind);
        bed.client.run("RESET ROLE");
        if let Err(failure) = bound {
            // A slow machine cannot compile it in the given time.
            assert!(is_slow_to_read(&failure), "{options}: {failure:?}");
            continue;
        }
        bed.client.run("SET statement_timeout = '20s'");
        let got = bed.publish(r#"{"a": [1, 2, 3], "b": {"c": 4}, "x": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#);
        bed.client.run("RESET statement_timeout");
        assert!(got.contains(&"theirs".to_owned()), "{options}: {got:?}");
        let mut other = database.connect();
        other.run(&format!("SET statement_timeout = '2s'; SET ROLE {}", bed.shop));
        let got: Vec<String> = other.column("SELECT queue_name FROM queue.publish('t', '{\"a\": \"x\", \"n\": 7}')");
        assert!(got.contains(&"theirs".to_owned()), "{options}, another session: {got:?}");
        bed.as_role(&mallory, "SELECT queue.unbind('t', 'mine')");
    }
    // A restored row may have any delay.
    bed.as_role(&mallory, "SELECT queue.bind('t', 'mine')");
    bed.client.run("UPDATE queue_internal.binding SET delay = '290000 years'; SELECT queue.adopt()");
    assert_eq!(bed.publish("{}"), ["mine", "theirs"]);
    bed.client.run("UPDATE queue_internal.binding SET delay = '2147483647 months'; SELECT queue.adopt()");
    assert_eq!(bed.publish("{}"), ["mine", "theirs"]);
}

#[test]
fn a_filter_that_takes_too_long_is_switched_off_and_reported() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    bed.as_role(&mallory, &format!("SELECT queue.bind('t', 'mine', filter => '{}')", costly(9)));
    for _ in 0..3 {
        assert_eq!(bed.publish(r#"{"a": [1, 2, 3], "b": {"c": 4}}"#), ["theirs"]);
    }
    let told = bed.finding("copies");
    for name in ["\"mine\"", "\"t\"", &format!("\"{mallory}\"")] {
        assert!(told.contains(name), "{told}");
    }
    let errors: i64 = bed.client.value("SELECT filter_errors FROM queue.topics WHERE topic_name = 't'");
    assert_eq!(errors, 3);
    // Other filters are not affected, and a corrected filter counts immediately.
    bed.client.run(
        "SELECT queue.bind('t', 'theirs', filter => 'exists($.payload.a[*] ? (@ > 2))'), \
        queue.unbind('t', 'theirs', '#')",
    );
    bed.client.run("SELECT queue.bind('t', 'theirs', filter => 'exists($.payload.a[*] ? (@ > 2))')");
    assert_eq!(bed.publish(r#"{"a": [1, 2, 3]}"#), ["theirs"]);
    bed.as_role(
        &mallory,
        "SELECT queue.unbind('t', 'mine'), queue.bind('t', 'mine', filter => 'exists($.payload.a[*] ? (@ > 2))')",
    );
    assert_eq!(bed.publish(r#"{"a": [1, 2, 3]}"#), ["mine", "theirs"]);
}

#[test]
fn an_open_drop_of_a_role_s_own_queue_refuses_no_call_of_others() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    bed.as_role(&mallory, "SELECT queue.bind('t', 'mine')");
    bed.client.run("SELECT queue.create('orders', max_attempts => 1, dead_letter => 'mine')");
    let mut other = database.connect();
    other.run(&format!("SET ROLE {mallory}; BEGIN; SELECT queue.drop('mine', force => true)"));
    assert_eq!(bed.publish("{}"), ["theirs"]);
    let job: i64 = bed.client.value("SELECT queue.enqueue('orders')");
    bed.client.run("SELECT queue.fail(id, 'x') FROM queue.claim('orders')");
    assert_eq!(bed.client.state(job), "dead");
    let told = bed.finding("copies");
    assert!(told.contains("\"mine\"") && told.contains("\"orders\""), "{told}");
    // Only a producer of the queue itself is refused.
    bed.client.refused("SELECT queue.enqueue('mine')", "55006");
    other.run("ROLLBACK");
    assert_eq!(bed.publish("{}"), ["mine", "theirs"]);
    // If a drop begins between a publish and its commit, the publish does not fail either.
    for end in ["ROLLBACK", "COMMIT"] {
        bed.client.run("BEGIN");
        assert_eq!(bed.publish("{}"), ["mine", "theirs"]);
        other.run(&format!("SET ROLE {mallory}; BEGIN; SELECT queue.drop('mine', force => true)"));
        if end == "COMMIT" {
            other.run("COMMIT");
        }
        bed.client.run("COMMIT");
        if end == "ROLLBACK" {
            other.run("ROLLBACK");
        }
        other.run("RESET ROLE");
    }
    assert_eq!(bed.publish("{}"), ["theirs"]);
    assert_eq!(bed.client.count("SELECT FROM queue.check()"), 0);
}

#[test]
fn an_open_transaction_leaves_room_for_the_drops_of_others() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let (mallory, shop) = (bed.mallory.clone(), bed.shop.clone());
    let stages = |prefix: &str| format!("ARRAY(SELECT '{prefix}' || n FROM generate_series(1, 32) AS n)");
    let mut other = database.connect();
    other.run(&format!("SET ROLE {mallory}"));
    for (case, rounds, name, may_fail) in
        [("one stage again and again", 300, "'a'", false), ("stages of other names", 12, "'a' || n || '_'", true)]
    {
        bed.client.run(&format!("SELECT queue.create('ours', stages => {})", stages("s")));
        bed.client.run("SELECT queue.create('staged', stages => '{a, b}')");
        for queue in ["ours", "staged"] {
            grant(&mut bed.client, queue, &shop, "manage");
        }
        let count = if may_fail { 32 } else { 1 };
        let handler = if may_fail { "EXCEPTION WHEN configuration_limit_exceeded THEN EXIT;" } else { "" };
        // A rolled-back part takes no room, and leaves earlier marks alone.
        other.run(&format!(
            "BEGIN;
             DO $$ BEGIN
                 FOR n IN 1..{rounds} LOOP
                     BEGIN
                         PERFORM queue.alter('mine', stages => ARRAY(SELECT {name} || m
                         FROM generate_series(1, {count}) AS m));
                         PERFORM queue.alter('mine', reset => '{{stages}}');
                     {handler} END;
                 END LOOP;
             END $$"
        ));
        bed.as_role(&shop, "SELECT queue.alter('staged', reset => '{stages}')");
        bed.as_role(&shop, "SELECT queue.drop('ours'), queue.drop('staged')");
        assert_eq!(bed.client.count("SELECT FROM queue.queues WHERE queue_name IN ('ours', 'staged')"), 0, "{case}");
        other.run("ROLLBACK");
    }
    other.run("RESET ROLE");
}

#[test]
fn a_stage_that_one_transaction_removes_twice_is_removed_and_can_come_back() {
    let database = Database::new();
    let mut client = database.connect();
    let mut other = database.connect();
    client.run("SELECT queue.create('q', stages => '{a, b}')");
    for (end, of_inner) in
        [("COMMIT", "RELEASE s"), ("ROLLBACK", "RELEASE s"), ("COMMIT", "ROLLBACK TO s"), ("ROLLBACK", "ROLLBACK TO s")]
    {
        client.run(
            "BEGIN; SELECT queue.alter('q', stages => '{b}');
             SAVEPOINT s; SELECT queue.alter('q', stages => '{a, b}'); SELECT queue.alter('q', stages => '{b}')",
        );
        client.run(of_inner);
        let enqueue = "SELECT queue.enqueue('q', stage => 'a')";
        assert_eq!(other.failure(enqueue).code, "55006", "{end}, {of_inner}");
        client.run(end);
        if end == "COMMIT" {
            let failure = other.failure(enqueue);
            assert!(failure.message.contains("stage"), "{end}, {of_inner}: {failure:?}");
        } else {
            other.run(&format!("BEGIN; {enqueue}; ROLLBACK"));
        }
        client.run("SELECT queue.alter('q', stages => '{a, b}')");
        other.run(&format!("BEGIN; {enqueue}; ROLLBACK"));
    }
}

#[test]
fn a_release_by_a_commit_is_not_refused_by_a_drop_of_the_queue_that_it_releases_into() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    bed.client.run("SELECT queue.create('orders')");
    grant(&mut bed.client, "orders", &mallory, "observe");
    let first: i64 = bed.client.value("SELECT queue.enqueue('orders')");
    bed.as_role(&mallory, &format!("SELECT queue.enqueue('mine', after => ARRAY[{first}])"));
    let mut other = database.connect();
    other.run(&format!("SET ROLE {mallory}; BEGIN; SELECT queue.drop('mine', force => true)"));
    bed.client.run("SELECT queue.complete(id) FROM queue.claim('orders')");
    assert_eq!(bed.client.state(first), "completed");
    other.run("ROLLBACK");
    wait::until_true("the held job is ready", || {
        bed.client.count("SELECT FROM queue.jobs WHERE queue_name = 'mine' AND state = 'ready'") == 1
    });
}

#[test]
fn one_role_cannot_take_all_processes() {
    // For each number of processes and of slots: how many processes one role gets, and how many are left for others.
    // The launchers and the worker have three slots.
    for (executors, slots, own, others) in [(3, 16, 2, 1), (8, 16, 6, 2), (8, 8, 3, 2), (16, 9, 4, 2)] {
        let (_cluster, mut client) = Cluster::with(&[
            &format!("pg_queue.max_executors = {executors}"),
            &format!("max_worker_processes = {slots}"),
        ])
        .start_with_database("app");
        for role in ["hog", "hog2", "victim"] {
            client.run(&format!("CREATE ROLE {role} LOGIN"));
        }
        for (queue, role) in [("h", "hog"), ("h2", "hog"), ("h3", "hog2"), ("h4", "hog2"), ("v", "victim")] {
            create(&mut client, queue, "executor => 'sql', lease => '1 hour'");
            grant(&mut client, queue, role, "produce");
        }
        let mut take = |role: &str, queues: &str, count: usize| {
            client.run(&format!(
                "SET ROLE {role};
                 SELECT queue.enqueue_batch(q, (SELECT jsonb_agg('{{\"command\": \"SELECT pg_sleep(600)\"}}'::jsonb)
                 FROM generate_series(1, 20)))
                 FROM unnest('{queues}'::text[]) AS q;
                 RESET ROLE"
            ));
            let running = format!(
                "SELECT FROM queue.executors WHERE role_name = '{role}' AND state = 'running' AND job_id IS NOT NULL"
            );
            wait::until_true("the hog has all that it gets", || client.count(&running) == count);
            for _ in 0..5 {
                if others == 1 && role == "hog2" {
                    break;
                }
                client.run("SET ROLE victim");
                let job: i64 = client.value("SELECT queue.enqueue_sql('v', 'SELECT 1')");
                client.run("RESET ROLE");
                wait::until_true("the victim's has run", || client.state(job) == "completed");
            }
            assert_eq!(client.count(&running), count, "{role} of {executors}, {slots}");
        };
        take("hog", "{h,h2}", own);
        if others > 1 {
            // After some idle time the victim's process ends. Then a second role gets as many processes as one role may
            // have.
            take("hog2", "{h3,h4}", 1);
        }
    }
}

#[test]
fn a_role_without_a_process_gets_the_next_free_one() {
    // The workers of two databases take the slots that were left for others.
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.max_executors = 8", "max_worker_processes = 8"]).start_with_database("app");
    client.run("CREATE ROLE hog LOGIN; CREATE ROLE victim LOGIN");
    for (queue, role) in [("h", "hog"), ("v", "victim")] {
        create(&mut client, queue, "executor => 'sql', lease => '1 hour'");
        grant(&mut client, queue, role, "produce");
    }
    client.run(
        "SET ROLE hog; SELECT queue.enqueue_sql('h', 'SELECT pg_sleep(0.05)') \
        FROM generate_series(1, 4000) AS n; RESET ROLE",
    );
    wait::until_true("the hog has all that it gets", || {
        client.count("SELECT FROM queue.executors WHERE role_name = 'hog'") == 3
    });
    let _others = ["a", "b"].map(|name| cluster.create_database(name));
    wait::until_true("all slots are taken", || {
        client.count("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_queue worker'") == 3
    });
    for _ in 0..3 {
        client.run("SET ROLE victim");
        let job: i64 = client.value("SELECT queue.enqueue_sql('v', 'SELECT 1')");
        client.run("RESET ROLE");
        wait::until_true("the victim's has run", || client.state(job) == "completed");
    }
    assert!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'h' AND state = 'ready'") > 0, "the hog has work");
}

#[test]
fn an_unreadable_filter_matches_nothing_and_refuses_nothing() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    bed.as_role(&mallory, "SELECT queue.bind('t', 'mine', filter => '$.payload.a == 1')");
    // A dump from another major version or a write by hand could leave such a filter.
    for filter in ["'$.. no path'", "repeat('(', 20000)", "repeat('$.a == 1 && ', 2000) || '1 == 1'"] {
        bed.client.run(&format!("UPDATE queue_internal.binding SET filter = {filter} WHERE filter IS NOT NULL"));
        bed.client.run("SELECT queue.adopt()");
        assert_eq!(bed.publish(r#"{"a": 1}"#), ["theirs"], "{filter}");
        let mut other = database.connect();
        other.run(&format!("SET ROLE {}", bed.shop));
        let found = other.column::<String>("SELECT queue_name FROM queue.publish('t', '{\"a\": 1}')");
        assert_eq!(found, ["theirs"], "{filter}");
    }
    assert!(bed.finding("copies").contains("\"mine\""));
}

#[test]
fn a_key_that_a_subscriber_holds_delays_only_its_own_copy() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut bed = bed(&database, &roles);
    let mallory = bed.mallory.clone();
    bed.as_role(&mallory, "SELECT queue.bind('t', 'mine')");
    let mut other = database.connect();
    other.run(&format!("SET ROLE {mallory}; BEGIN; SELECT queue.enqueue('mine', unique_key => 'order 17')"));
    bed.client.run(&format!("SET statement_timeout = '20s'; SET ROLE {}", bed.shop));
    let publish = "SELECT queue_name FROM queue.publish('t', unique_key => 'order 17') ORDER BY 1";
    assert_eq!(bed.client.column::<String>(publish), ["theirs"]);
    bed.client.run("RESET ROLE");
    assert!(bed.finding("copies").contains("held their unique key"));
    other.run("ROLLBACK");
    bed.client.run(&format!("SET ROLE {}", bed.shop));
    assert_eq!(bed.client.column::<String>(&publish.replace("17", "18")), ["mine", "theirs"]);
}
