//! Mistakes of new users. The error has the given value and says what to do.

use std::sync::Arc;

use crate::shared::*;

/// Opens a connection that collects its notices.
pub fn listening(database: &str) -> (Client, Arc<Mutex<Vec<String>>>) {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&notices);
    let mut config = server().config();
    config.dbname(database).notice_callback(move |notice| {
        heard.lock().unwrap().push(format!("{} {}", notice.severity(), notice.message()))
    });
    (config.connect(NoTls).unwrap(), notices)
}

/// Returns the notices since the last call.
pub fn taken(notices: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    std::mem::take(&mut notices.lock().unwrap())
}

#[test]
fn the_error_for_a_role_without_grants_says_what_to_grant() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('mail'); CREATE ROLE app_user LOGIN");
    let hint = |database: &str, sql: &str| {
        let mut other = cluster.connect_to(database);
        other.run("SET ROLE app_user");
        other.refused(sql, "42501").hint
    };
    for (sql, command) in [
        ("SELECT queue.enqueue('mail')", "queue.grant('QUEUE', 'ROLE', 'produce')"),
        ("SELECT * FROM queue.jobs", "'consume', 'observe', 'manage'"),
        ("SELECT * FROM queue_internal.attempt_0", "use the functions and views of schema queue"),
    ] {
        let hint = hint("app", sql);
        assert!(hint.contains(command), "{sql}: {hint}");
    }
    // There is no hint if the message is in another language or the schema belongs to another user.
    client.run("CREATE SCHEMA other");
    assert_eq!(hint("app", "SELECT * FROM other.jobs"), "");
    let mut plain = cluster.connect_to("postgres");
    plain.run("CREATE SCHEMA queue");
    assert_eq!(hint("postgres", "SELECT * FROM queue.jobs"), "");
    client.run("SELECT queue.grant('mail', 'app_user', 'produce')");
    let mut other = cluster.connect_to("app");
    other.run("SET ROLE app_user; SELECT queue.enqueue('mail')");
}

#[test]
fn a_group_without_limits_and_a_wait_that_is_cut_are_told_once() {
    let database = Database::new();
    let (mut client, notices) = listening(&database.name);
    create(&mut client, "plain", "");
    create(&mut client, "other", "");
    create(&mut client, "limited", "max_running_per_group => 1");
    create(&mut client, "rated", "rate_limit_per_group => 1");
    client.run(
        "SELECT queue.enqueue('limited', group_key => 'g'), queue.enqueue('rated', group_key => 'g'), \
        queue.enqueue('plain')",
    );
    assert!(taken(&notices).is_empty());
    client.run("SELECT queue.enqueue('plain', group_key => 'g') FROM generate_series(1, 3)");
    let told = taken(&notices);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("NOTICE queue \"plain\" does not limit groups"));
    client.run("SELECT queue.enqueue('plain', group_key => 'g')");
    assert!(taken(&notices).is_empty());
    client.run(r#"SELECT count(*) FROM queue.enqueue_batch('other', '[{"group_key": "g"}, {"group_key": "h"}]')"#);
    assert_eq!(taken(&notices).len(), 1);

    client.run("SET pg_queue.max_wait = '50ms'");
    client.run("SELECT FROM queue.claim('limited', wait => '40 ms')");
    client.run("CALL queue.wait('plain')");
    assert!(taken(&notices).is_empty());
    for _ in 0..2 {
        client.run("SELECT FROM queue.claim('limited', wait => '60 s')");
    }
    assert_eq!(taken(&notices), ["NOTICE the call waits for 50 ms at most, not for 60000 ms"]);
}

#[test]
fn a_drop_if_exists_of_a_missing_queue_does_nothing() {
    let database = Database::new();
    let (mut client, notices) = listening(&database.name);
    let failure = client.refused("SELECT queue.drop('nope')", "42704");
    assert!(!failure.hint.contains("queue.create") && failure.hint.contains("if_exists"), "{failure:?}");
    client.run("SELECT queue.drop('nope', if_exists => true)");
    assert_eq!(taken(&notices), ["NOTICE queue \"nope\" does not exist, skipping"]);
    create(&mut client, "there", "");
    client.run(
        "SELECT queue.create_topic('topic'); SELECT queue.drop('there', if_exists => true), \
        queue.drop('topic', if_exists => true)",
    );
    assert_eq!(client.count("SELECT FROM queue.queues"), 0);
    assert!(taken(&notices).is_empty());
    // Privileges are still checked.
    create(&mut client, "there", "");
    client.run(
        "CREATE ROLE no_manager_of_queues; SELECT queue.create('own'); \
        SELECT queue.grant('own', 'no_manager_of_queues', 'manage')",
    );
    client.run("SET ROLE no_manager_of_queues");
    client.refused("SELECT queue.drop('there', if_exists => true)", "42501");
    client.run("RESET ROLE; DROP OWNED BY no_manager_of_queues; DROP ROLE no_manager_of_queues");
}
