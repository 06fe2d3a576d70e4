//! The server starts with pg_queue preloaded. The extension can be created and dropped.

use crate::shared::*;

#[test]
fn the_extension_can_be_created_and_dropped() {
    let database = Database::new();
    let mut client = database.connect();
    let installed = "SELECT FROM pg_extension WHERE extname = 'pg_queue'";
    assert_eq!(client.query(installed, &[]).unwrap().len(), 1);

    client.refused("CREATE EXTENSION pg_queue", "42710");
    client.run("DROP EXTENSION pg_queue");
    assert_eq!(client.query(installed, &[]).unwrap().len(), 0);
}

#[test]
fn the_schemas_keep_their_names_while_the_extension_exists() {
    let database = Database::new();
    let (mut client, mut worker) = (database.connect(), database.connect());
    create(&mut client, "q", "");
    for schema in ["queue", "queue_internal"] {
        let rename = format!("ALTER SCHEMA {schema} RENAME TO other");
        let in_a_function = format!("DO $$ BEGIN EXECUTE '{rename}'; END $$");
        for statement in [rename, in_a_function] {
            let failure = client.refused(&statement, "0A000");
            assert_eq!(failure.message, format!("schema \"{schema}\" cannot be renamed"));
            assert!(failure.detail.contains("pg_queue") && !failure.hint.is_empty(), "{failure:?}");
            client.refused(&format!("BEGIN; SAVEPOINT s; {statement}"), "0A000");
            client.run("ROLLBACK");
        }
    }
    client.refused("ALTER EXTENSION pg_queue SET SCHEMA public", "0A000");
    worker.enqueue("q");
    worker.claim("q");

    // A change of owner and changes of other schemas are allowed.
    client.run("ALTER SCHEMA queue OWNER TO CURRENT_USER");
    client.run("CREATE SCHEMA one; ALTER SCHEMA one RENAME TO two; DROP SCHEMA two");
    client.refused("DROP SCHEMA queue CASCADE", "2BP01");
    client.refused("DROP SCHEMA queue_internal CASCADE", "2BP01");
    client.run("DROP EXTENSION pg_queue");
    // Without the extension, a schema with this name belongs to the user.
    for schema in ["queue", "queue_internal"] {
        client.run(&format!("CREATE SCHEMA {schema}; ALTER SCHEMA {schema} RENAME TO other; DROP SCHEMA other"));
    }
    client.run("CREATE EXTENSION pg_queue");
    create(&mut client, "q", "");
    client.enqueue("q");
}

#[test]
fn an_error_that_passes_through_the_library_has_no_backtrace() {
    let cluster = Cluster::new();
    let mut start = cluster.command("pg_ctl");
    start.args(["start", "-w", "-l"]).arg(cluster.dir().join("log")).arg("-D").arg(cluster.data());
    let done = start.envs([("RUST_BACKTRACE", "full"), ("RUST_LIB_BACKTRACE", "1")]).status().unwrap();
    assert!(done.success(), "{}", cluster.log());
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let look = |client: &mut Client, sql: &str, code: &str| {
        let failure = client.failure(sql);
        assert_eq!((failure.code.as_str(), failure.detail.as_str()), (code, ""), "{sql}: {failure:?}");
    };
    look(&mut client, "SELECT queue.enqueue('q', delay => '300000 years')", "22008");
    let mut other = cluster.connect_to("app");
    other.run("BEGIN; SELECT queue.create('new')");
    client.run("SET lock_timeout = '10 ms'");
    look(&mut client, "SELECT queue.create('new')", "55P03");
}
