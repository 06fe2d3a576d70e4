//! Row triggers, rules and foreign keys on tables with direct inserts are refused, because they would miss the inserted
//! jobs.

use crate::shared::*;

const DIRECT: [&str; 15] = [
    "attempt_0",
    "claim_3",
    "outcome_9",
    "note_0",
    "parked_2",
    "key_0",
    "firing_1",
    "successor",
    "segment_log",
    "timeline",
    "rollup",
    "total",
    "restoring",
    "history",
    "history_0",
];

/// A trigger function that copies rows elsewhere, as tools do that move a table in use.
const CAPTURE: &str = "
    CREATE TABLE captured (row text);
    CREATE FUNCTION capture() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO public.captured VALUES (NEW::text); RETURN NULL; END'";

fn assert_refused(client: &mut Client, sql: &str) {
    let refused = client.failure(sql);
    assert_eq!(refused.code, "0A000", "{sql}: {refused:?}");
    assert!(refused.message.ends_with("cannot have triggers, rules or foreign keys"), "{sql}: {refused:?}");
    assert!(refused.hint.contains("--exclude-extension=pg_queue"), "{sql}: {refused:?}");
}

#[test]
fn triggers_and_rules_on_these_tables_are_refused() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run(CAPTURE);
    client
        .run("CREATE TABLE mine (id bigint PRIMARY KEY); CREATE TABLE history_0 () INHERITS (queue_internal.history)");
    client.run("ALTER TABLE history_0 SET SCHEMA queue_internal");
    for table in DIRECT {
        assert_refused(
            &mut client,
            &format!("CREATE TRIGGER t AFTER INSERT ON queue_internal.{table} FOR EACH ROW EXECUTE FUNCTION capture()"),
        );
        assert_refused(&mut client, &format!("CREATE RULE r AS ON INSERT TO queue_internal.{table} DO ALSO NOTHING"));
    }
    for sql in [
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON queue_internal.attempt_0 DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION capture()",
        "CREATE TRIGGER t AFTER INSERT ON queue_internal.attempt_0 REFERENCING NEW TABLE AS new
             FOR EACH STATEMENT EXECUTE FUNCTION capture()",
        "ALTER TABLE queue_internal.claim_0 ADD FOREIGN KEY (id) REFERENCES mine NOT VALID",
        "ALTER TABLE queue_internal.claim_0 ADD UNIQUE (id) DEFERRABLE",
        "CREATE TABLE yours (id bigint REFERENCES queue_internal.attempt_0)",
        "DO $$ BEGIN CREATE TRIGGER t BEFORE UPDATE ON queue_internal.note_0
         FOR EACH ROW EXECUTE FUNCTION capture(); END $$",
    ] {
        assert_refused(&mut client, sql);
    }
    // Makes the trigger as pg_repack does, in a session that has used jobs.
    client.run("BEGIN; SELECT queue.enqueue('q'); SAVEPOINT s");
    assert!(
        client
            .batch_execute(
                "CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON queue_internal.attempt_0
                 FOR EACH ROW EXECUTE FUNCTION capture()"
            )
            .is_err()
    );
    client.run("ROLLBACK TO s; COMMIT");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 1);
    // Tables that are written by SQL may have triggers and rules, and so may users' own tables.
    client.run("CREATE TRIGGER t AFTER UPDATE ON queue_internal.queue FOR EACH ROW EXECUTE FUNCTION capture()");
    client.run("CREATE TRIGGER t AFTER UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION capture()");
    client.run(
        "CREATE VIEW v AS SELECT * FROM queue_internal.attempt_0; CREATE RULE r AS ON INSERT TO mine DO ALSO NOTHING",
    );
    client.run("SELECT queue.enqueue('q'); CREATE EXTENSION hstore CASCADE; SELECT queue.enqueue('q')");
    // Tools like pg_repack may not add triggers there, because they replace the table by a copy.
    client.run("ALTER EXTENSION hstore ADD FUNCTION capture()");
    for table in ["queue", "lane", "permission", "schedule", "binding"] {
        let refused = client.refused(
            &format!(
                "CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON queue_internal.{table}
                 FOR EACH ROW EXECUTE FUNCTION capture()"
            ),
            "0A000",
        );
        let message = &refused.message;
        assert_eq!(*message, format!("table \"queue_internal.{table}\" cannot have triggers of another extension"));
        assert!(refused.hint.contains("--exclude-extension=pg_queue"), "{refused:?}");
    }
    client.run("CREATE TRIGGER u AFTER UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION capture()");
    // Tables with the same names in other schemas may have triggers.
    let mut other = cluster.connect();
    other.run("CREATE SCHEMA queue_internal; CREATE TABLE queue_internal.history (a int)");
    other.run(CAPTURE);
    other.run("CREATE TRIGGER t AFTER INSERT ON queue_internal.history FOR EACH ROW EXECUTE FUNCTION capture()");
}

#[test]
fn a_trigger_made_without_the_library_stops_everything_until_it_is_dropped() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.restore_quiet = '1s'", "fsync = off"]).start_with_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let attempt = client.claim("q");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q')");
    client.run(CAPTURE);
    drop(client);
    let create = |table: &str, enable: &str| {
        format!(
            "CREATE TRIGGER repack_trigger AFTER INSERT OR DELETE OR UPDATE ON queue_internal.{table}
                 FOR EACH ROW EXECUTE FUNCTION capture();
             ALTER TABLE queue_internal.{table} {enable} TRIGGER repack_trigger"
        )
    };
    cluster.append_conf("shared_preload_libraries = ''");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    client.run(&create("attempt_0", "ENABLE REPLICA"));
    client.run(&create("claim_0", "ENABLE ALWAYS"));
    client.run(&create("outcome_0", "ENABLE"));
    client.run(&create("history", "ENABLE"));
    drop(client);
    cluster.append_conf("shared_preload_libraries = 'pg_queue'");
    cluster.restart();

    let mut client = cluster.connect_to("app");
    for verb in ["enqueue('q')", "claim('q')", &format!("complete({attempt})")] {
        let refused = client.failure(&format!("SELECT FROM queue.{verb}"));
        assert_eq!(refused.code, "55000", "{verb}: {refused:?}");
        assert!(refused.message.contains("has trigger \"repack_trigger\""), "{verb}: {refused:?}");
        assert!(refused.hint.contains("Drop"), "{verb}: {refused:?}");
    }
    let found = client.query_one("SELECT ok, detail, hint FROM queue.doctor() WHERE name = 'triggers'", &[]).unwrap();
    assert!(!found.get::<_, bool>(0));
    for table in ["attempt_0", "claim_0", "outcome_0", "history"] {
        assert!(found.get::<_, String>(1).contains(&format!("queue_internal.{table} ")), "{found:?}");
    }
    // The database stays dormant, even after `queue.adopt`.
    client.run("UPDATE queue_internal.attempt_0 SET priority = priority");
    let told = "stays dormant after a restore";
    wait::until_true("the worker says why", || cluster.log().contains(told));
    assert!(cluster.log().contains("repack_trigger"), "{}", cluster.log());
    client.refused("SELECT queue.adopt()", "55000");
    for table in ["attempt_0", "claim_0", "outcome_0", "history"] {
        client.run(&format!("DROP TRIGGER repack_trigger ON queue_internal.{table}"));
    }
    client.run("SELECT queue.adopt()");
    client.run(&format!("SELECT queue.complete({attempt})"));
    client.enqueue("q");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 3);
    assert!(client.value::<bool>("SELECT ok FROM queue.doctor() WHERE name = 'triggers'"));
}
