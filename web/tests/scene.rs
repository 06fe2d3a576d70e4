//! A small shop: queues with jobs in all states, for the tests that click.

use postgres::Client;
use queue_tests::sql::Sql as _;

/// The jobs that tests look for.
pub struct Scene {
    pub dead: i64,
    pub running: i64,
    pub scheduled: i64,
    pub flow: i64,
    pub completed: i64,
}

/// Makes queues `mail`, `orders` (with stages) and `reports`, a schedule, a topic and a flow.
pub fn scene(client: &mut Client) -> Scene {
    client.run(
        "SELECT queue.create('mail', max_attempts => 3), \
        queue.create('orders', stages => '{check,pack,send}'), queue.create('reports', max_running => 4)",
    );
    client.run(
        "SELECT queue.schedule('nightly', 'reports', '{\"kind\": \"sales\"}', cron => '30 2 * * *', \
        timezone => 'Europe/Berlin')",
    );
    client.run("SELECT queue.create_topic('events'); SELECT queue.bind('events', 'mail', 'order.*')");
    client.run("SELECT queue.enqueue('orders', jsonb_build_object('order', n)) FROM generate_series(1, 40) AS n");
    client.run("SELECT queue.advance(id) FROM queue.claim('orders', 15, stage => 'check')");
    client.run("SELECT queue.advance(id) FROM queue.claim('orders', 6, stage => 'pack')");
    let ended = |client: &mut Client, how: &str| {
        let job: i64 = client.value(
            "SELECT queue.enqueue('mail', '{\"to\": \"ada@example.org\", \"big\": 9007199254740993}', priority => -1)",
        );
        let id: i64 = client.value("SELECT id FROM queue.claim('mail', worker => 'mailer-1')");
        client.run(&format!("SELECT {}", how.replace('$', &id.to_string())));
        job
    };
    let mut last = (0, 0);
    for n in 0..9 {
        last.0 = ended(client, "queue.complete($, '{\"message_id\": \"4711\"}')");
        last.1 = ended(
            client,
            &format!("queue.fail($, '{}', fatal => true)", ["550 mailbox full", "connection refused"][n % 2]),
        );
        ended(client, "queue.fail($, 'try again later', retry_in => '1 hour')");
    }
    let scheduled = client.value("SELECT queue.enqueue('mail', '{\"to\": \"bob@example.org\"}', delay => '2 hours')");
    client.run(
        "SELECT queue.enqueue('mail', jsonb_build_object('to', n || '@example.org')) FROM generate_series(1, 120) AS n",
    );
    let flow = client.value(
        "SELECT queue.enqueue_flow('reports', '[{\"task\": \"orders\"}, {\"task\": \"stock\"}, \
            {\"task\": \"send\", \"after\": [\"orders\", \"stock\"]}]')",
    );
    let running =
        client.value("SELECT queue.enqueue('reports', '{\"kind\": \"sales\", \"region\": \"north\"}', priority => -5)");
    client.run(
        "SELECT queue.step_done(id, 'extract', '{\"rows\": 1200}'), \
        queue.progress(id, '{\"done\": 700, \"total\": 1200}') FROM queue.claim('reports', worker => 'reporter-1')",
    );
    client.run("SELECT queue.complete(id) FROM queue.claim('reports', worker => 'reporter-2')");
    Scene { dead: last.1, completed: last.0, running, scheduled, flow }
}
