//! While a session holds a lock on a table, monitoring answers without the parts that cannot be read.

use crate::shared::*;

/// The queries of monitoring. A role that may observe all queues runs each in a session from before the lock and in a
/// new one.
const READS: [&str; 6] = [
    "SELECT count(*) FROM queue.metrics()",
    "SELECT count(*) FROM queue.storage",
    "SELECT count(*) FROM queue.stats",
    "SELECT count(*) FROM queue.load()",
    "SELECT count(*) FROM queue.doctor()",
    "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_extension_info'",
];

/// Makes jobs in all states, topics and schedules.
fn fill(client: &mut Client) {
    create(client, "q", "max_attempts => 2, backoff_base => '1 hour'");
    client.run(
        "SELECT queue.create_topic('t'), queue.bind('t', 'q'), queue.enqueue('q'),
             queue.enqueue('q', delay => '1 hour'), queue.schedule('s', 'q', every => '1 day');
         SELECT count(*) FROM queue.publish_many('t', ARRAY['1'::jsonb]);
         SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q');
         SELECT id FROM queue.claim('q')",
    );
    client.run("CREATE ROLE locked_out LOGIN");
    client.run("SELECT queue.grant('*', 'locked_out', 'observe')");
}

/// Runs all reads. Returns those that fail or take longer than two seconds.
fn slow(client: &mut Client, what: &str) -> Vec<String> {
    client.run("SET ROLE locked_out; SET statement_timeout = '2s'");
    let failures = READS.iter().filter_map(|read| {
        let failure = client.simple_query(read).err()?;
        client.wait_rolled_back();
        Some(format!("{what}: {read}: {failure:?}"))
    });
    failures.collect()
}

#[test]
fn metrics_views_and_doctor_answer_while_any_table_is_locked() {
    let database = Database::new();
    let mut client = database.connect();
    fill(&mut client);
    let count = |client: &mut Client| {
        client
            .column::<String>("SELECT DISTINCT name FROM queue.metrics() WHERE name <> 'pg_queue_check_ok' ORDER BY 1")
    };
    let all = count(&mut client);
    let tables: Vec<String> = client.column(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace AND relkind
         IN ('r', 'p')
         ORDER BY relname",
    );
    assert!(tables.len() > 60, "{tables:?}");
    let indexes: Vec<String> = client.column(
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class AS c ON c.oid = indrelid
         WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r' ORDER BY 1",
    );
    let mut old = database.connect();
    slow(&mut old, "warm up");
    let mut wrong = Vec::new();
    for (n, locked) in tables.iter().chain(&indexes).enumerate() {
        // As REINDEX does, a change that is rolled back later locks an index.
        let lock = if n < tables.len() {
            format!("LOCK TABLE {locked}")
        } else {
            format!("ALTER INDEX {locked} SET (fillfactor = 90)")
        };
        let mut locker = database.connect();
        locker.run(&format!("SET client_min_messages = error; BEGIN; {lock}"));
        wrong.extend(slow(&mut old, locked));
        if n < tables.len() {
            wrong.extend(slow(&mut database.connect(), &format!("{locked}, a new session")));
        }
        // All parts that do not need the table are shown.
        let here = count(&mut old);
        let left: Vec<&String> = all.iter().filter(|name| !here.contains(name)).collect();
        if left.len() > all.len() * 2 / 3 {
            wrong.push(format!("{locked}: without {left:?}"));
        }
        locker.run("ROLLBACK");
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(count(&mut client), all);
}

#[test]
fn the_size_of_a_locked_table_is_null_and_no_sum_leaves_it_out() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let mut locker = database.connect();
    locker.run("BEGIN; LOCK TABLE queue_internal.outcome_3");
    let sizes = "SELECT concat_ws(' ', name, bytes IS NULL) FROM queue.storage WHERE bytes IS NULL ORDER BY name";
    assert_eq!(client.column::<String>(sizes), ["segment 3 t"]);
    let parts = "SELECT labels ->> 'part' FROM queue.metrics() WHERE name = 'pg_queue_storage_bytes' ORDER BY 1";
    assert_eq!(client.column::<String>(parts), ["history", "other"]);
    locker.run("ROLLBACK");
    assert_eq!(client.column::<String>(parts), ["history", "logs", "other"]);
}

#[test]
fn no_number_is_zero_because_a_table_is_locked() {
    let (database, mut client) = Database::new().with_queue("q", "");
    client.pass_through("q", 3);
    let read = |client: &mut Client| -> Vec<f64> {
        client.column("SELECT value FROM queue.metrics() WHERE name = 'pg_queue_completed_total'")
    };
    let rows = "SELECT FROM queue.stats";
    assert_eq!((read(&mut client), client.count(rows)), (vec![3.0], 1));
    let mut locker = database.connect();
    locker.run("BEGIN; LOCK TABLE queue_internal.attempt_0, queue_internal.attempt_8");
    assert_eq!((read(&mut client), client.count(rows)), (vec![], 0));
    locker.run("ROLLBACK");
    assert_eq!((read(&mut client), client.count(rows)), (vec![3.0], 1));
}

#[test]
fn figures_that_do_not_fit_into_memory_are_read_from_disk() {
    let (database, mut client) = Database::new().with_queue("q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('{}'::jsonb, ARRAY[5000]))");
    for _ in 0..5 {
        client.run("SELECT count(*) FROM queue.claim('q', 1000)");
    }
    client.run("CREATE ROLE observer LOGIN; SELECT queue.grant('*', 'observer', 'observe')");
    let mut observer = database.connect();
    observer.run("SET ROLE observer; SET work_mem = '64kB'");
    assert_eq!(observer.value::<i64>("SELECT sum(running)::bigint FROM queue.workers"), 5000);
    for read in READS {
        observer.run(read);
    }
}
