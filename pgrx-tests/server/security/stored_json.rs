//! A worker, a view, a page and a dump can read all stored JSON, however small it was to write.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// A value with this many levels.
fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// Each stored argument of type jsonb.
const KEPT: &[&str] = &[
    "queue.enqueue('q', {})",
    "queue.enqueue('q', headers => {})",
    "queue.enqueue_many('q', ARRAY[{}])",
    "queue.enqueue_many('q', ARRAY['1'::jsonb], headers => {})",
    "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('payload', {})))",
    "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('headers', {})))",
    "queue.enqueue_flow('q', payload => {})",
    "queue.enqueue_flow('q', jsonb_build_array(jsonb_build_object('payload', {})))",
    "queue.enqueue_sql('sql', 'SELECT 1', jsonb_build_array({}))",
    "queue.publish('t', {})",
    "queue.publish('t', headers => jsonb_build_object('h', {}))",
    "queue.publish_many('t', ARRAY[{}])",
    "queue.publish_many('t', ARRAY['1'::jsonb], headers => jsonb_build_object('h', {}))",
    "queue.schedule('s', 'q', {}, every => '1 year')",
    "queue.schedule('s', 'q', headers => jsonb_build_object('h', {}), every => '1 year')",
    "queue.advance(<id>, payload => {})",
    "queue.complete(<id>, {})",
    "queue.progress(<id>, {})",
    "queue.step_done(<id>, 's', {})",
    "queue.suspend(<id>, progress => {}, until => 'epoch')",
    "queue.resolve(<flow>, {})",
];

/// A session of a role that may manage a queue, a topic, a claimed attempt and an open flow.
struct Bed<'a> {
    client: postgres::Client,
    attempt: i64,
    flow: i64,
    _roles: Roles<'a>,
}

impl<'a> Bed<'a> {
    /// Makes all of these. `set`: settings that a superuser makes for the session.
    fn new(database: &'a Database, set: &str) -> Self {
        let roles = Roles::new(database);
        let writer = roles.make("writer", "");
        let mut client = database.connect();
        client.run(
            "SELECT queue.create('q', stages => '{a, b}'), queue.create_topic('t'),
                    queue.create('sql', executor => 'sql')",
        );
        client.enqueue("q");
        let attempt = client.claim("q");
        let flow = client.value("SELECT queue.enqueue_flow('q', open => true)");
        grant(&mut client, "*", &writer, "manage");
        client.run(set);
        client.run(&format!("SET ROLE {writer}"));
        Self { client, attempt, flow, _roles: roles }
    }

    /// Calls a verb of `KEPT` with this value and asserts that it is refused. Returns the message.
    fn refused(&mut self, call: &str, value: &str) -> String {
        let call = call.replace("<id>", &self.attempt.to_string()).replace("<flow>", &self.flow.to_string());
        self.client.refused(&format!("SELECT {}", call.replace("{}", value)), "22023").message
    }
}

#[test]
fn stored_json_is_not_nested_deeper_than_can_be_read() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    for call in KEPT {
        for depth in [1_001, 14_000] {
            let message = bed.refused(call, &format!("'{}'::jsonb", nested(depth)));
            assert!(message.contains("is nested deeper than 1000 levels"), "{call}: {message}");
        }
    }
    let client = &mut bed.client;
    client.run("RESET ROLE");
    // A value of the greatest depth can be used everywhere: in a dead letter, a topic with a filter, a search.
    let deep = nested(1_000);
    client.run(&format!(
        "SELECT queue.create('orders', max_attempts => 1, dead_letter => 't'), queue.create('alerts'),
                queue.bind('t', 'alerts', filter => '!exists($.payload.x)');
         SELECT queue.enqueue('orders', '{deep}', headers => '{{\"h\": {}}}')",
        nested(998)
    ));
    client.run("SELECT queue.fail(id, 'x') FROM queue.claim('orders')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'alerts'"), 1);
    assert_eq!(client.count("SELECT FROM queue.search('alerts', '$.payload.** == 1')"), 0);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'orders' AND state = 'dead'"), 1);
}

#[test]
fn stored_json_is_not_longer_as_text_than_can_be_read() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "SET pg_queue.max_payload = '1MB'");
    // These values are small when stored (numbers, escaped characters), or they are long in any form.
    let long = [
        "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9))",
        "(SELECT jsonb_object_agg(n, '-1e-16383'::jsonb) FROM generate_series(1, 70) AS n)",
        "to_jsonb(repeat(chr(7), 180000))",
        "to_jsonb(repeat('\"', 530000))",
        "to_jsonb(repeat('ä', 530000))",
        "(SELECT jsonb_agg(n) FROM generate_series(1, 200000) AS n)",
        "(SELECT jsonb_object_agg(n, true) FROM generate_series(1, 100000) AS n)",
    ];
    for (n, call) in KEPT.iter().enumerate() {
        for value in [long[n % long.len()], long[(n + 1) % long.len()]] {
            let message = bed.refused(call, value);
            assert!(message.contains("bytes as text, more than 1048576"), "{call}: {message}");
        }
    }
    let long_command = "queue.enqueue_sql('sql', 'SELECT ' || quote_literal(repeat(chr(7), 180000)))";
    assert!(bed.refused(long_command, "").contains("the command has"), "{long_command}");
    // A value just below the limit is stored and read.
    let client = &mut bed.client;
    client.run("SELECT queue.enqueue('q', to_jsonb(repeat(chr(7), 174762)))");
    assert_eq!(client.value::<i32>("SELECT max(octet_length(payload::text)) FROM queue.jobs"), 1_048_574);
    // By default a payload is refused only if PostgreSQL could not write it as text.
    client.run("RESET ROLE; RESET pg_queue.max_payload");
    let numbers = |count: u32| {
        format!("SELECT queue.enqueue('q', jsonb_agg('1e131071'::jsonb)) FROM generate_series(1, {count})")
    };
    let failure = client.refused(&numbers(8300), "22023");
    assert_eq!(failure.message, "payload has 1087914200 bytes as text, more than 67108864");
    client.run(&numbers(500));
    assert_eq!(client.value::<i64>("SELECT max(queue.text_length(payload)) FROM queue.jobs"), 500 * 131_074);
}

#[test]
fn the_length_as_text_is_that_of_the_text() {
    let database = Database::new();
    let mut client = database.connect();
    let wrong: Vec<String> = client.column(
        r#"SELECT left(v::text, 100) FROM (
            SELECT v FROM unnest(ARRAY['0', '-1', '1.50', '-0.0001', '0.00', '9999', '10000', '10001', '-123456.789',
                '1e20', '1e-20', '99999999999999999999.5', '1e131071', '-1e-16383', '1e64', '1e260', '12e255',
                '"a"', '""', '"\"\\/\b\f\n\r\t\u0001\u001f\u007fäß€😀"', 'null', 'true', 'false', '{}', '[]', '[[]]',
                '[{}, []]', '{"": ""}', '{"a": {"b\n": [1, "x", null]}, "c": [true, false]}', '[1, [2, [3]]]'
            ]::jsonb[]) AS v
            UNION ALL SELECT to_jsonb(power(10::numeric, e) * s) FROM generate_series(-300, 300, 7) AS e,
                unnest('{1, -1, 0.1, 9.999, 1234567}'::numeric[]) AS s
            UNION ALL SELECT jsonb_build_object(chr(n), chr(n), 'x', ARRAY[chr(n), n::text])
            FROM generate_series(1, 300) AS n
        ) AS v (v) WHERE queue.text_length(v) <> octet_length(v::text)"#,
    );
    assert_eq!(wrong, Vec::<String>::new());
}
