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

fn hint(failure: &postgres::Error) -> String {
    failure.as_db_error().and_then(|e| e.hint()).unwrap_or_default().to_owned()
}

fn detail(failure: &postgres::Error) -> String {
    failure.as_db_error().and_then(|e| e.detail()).unwrap_or_default().to_owned()
}

#[test]
fn the_error_for_a_role_without_grants_says_what_to_grant() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('mail'); CREATE ROLE app_user LOGIN");
    let try_as_user = |database: &str, sql: &str| {
        let mut other = cluster.connect_to(database);
        other.run("SET ROLE app_user");
        other.batch_execute(sql).unwrap_err()
    };
    for (sql, command) in [
        ("SELECT queue.enqueue('mail')", "queue.grant('QUEUE', 'ROLE', 'produce')"),
        ("SELECT * FROM queue.jobs", "'consume', 'observe', 'manage'"),
        ("SELECT * FROM queue_internal.attempt_0", "use the functions and views of schema queue"),
    ] {
        let failure = try_as_user("app", sql);
        assert_eq!(error::code(&failure), "42501");
        assert!(hint(&failure).contains(command), "{failure:?}");
    }
    // There is no hint if the message is in another language or the schema belongs to another user.
    client.run("CREATE SCHEMA other");
    assert_eq!(hint(&try_as_user("app", "SELECT * FROM other.jobs")), "");
    let mut plain = cluster.connect_to("postgres");
    plain.run("CREATE SCHEMA queue");
    assert_eq!(hint(&try_as_user("postgres", "SELECT * FROM queue.jobs")), "");
    client.run("SELECT queue.grant('mail', 'app_user', 'produce')");
    let mut other = cluster.connect_to("app");
    other.run("SET ROLE app_user; SELECT queue.enqueue('mail')");
}

#[test]
fn an_error_contains_the_given_value() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue('{q}')"));
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}')"));
    for (sql, given) in [
        (format!("SELECT queue.enqueue('{q}', delay => '-7 s')"), "It is -00:00:07."),
        (format!("SELECT queue.enqueue('{q}', lease => '20 years')"), "It is 20 years."),
        (format!("SELECT queue.fail({id}, 'x', retry_in => '-2 days')"), "It is -2 days."),
        (format!("SELECT queue.release({id}, '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.extend({id}, '0')"), "It is 00:00:00."),
        (format!("SELECT id FROM queue.claim('{q}', wait => '-3 s')"), "It is -00:00:03."),
        (format!("SELECT id FROM queue.claim('{q}', lease => '0')"), "It is 00:00:00."),
        (format!("CALL queue.wait('{q}', '-1 min')"), "It is -00:01:00."),
        (format!("SELECT queue.alter('{q}', rate_period => '0')"), "It is 00:00:00."),
        (format!("SELECT queue.alter('{q}', backoff_base => '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.alter('{q}', backoff_jitter => 2)"), "It is 2."),
        (format!("SELECT queue.alter('{q}', retention => '-2 s')"), "It is -00:00:02."),
        (format!("SELECT queue.alter('{q}', lease => '-1 s')"), "It is -00:00:01."),
    ] {
        let failure = client.batch_execute(&sql).unwrap_err();
        assert_eq!((error::code(&failure), detail(&failure).as_str()), ("22023", given), "{sql}");
    }
}

#[test]
fn on_duplicate_needs_a_unique_key() {
    let (mut client, q) = queue("");
    for way in ["replace", "rerun", "error"] {
        for sql in [
            format!("SELECT queue.enqueue('{q}', on_duplicate => '{way}')"),
            format!("SELECT count(*) FROM queue.enqueue_batch('{q}', '[{{\"on_duplicate\": \"{way}\"}}]')"),
        ] {
            let failure = client.batch_execute(&sql).unwrap_err();
            assert_eq!(error::code(&failure), "22023", "{sql}");
            assert!(failure.as_db_error().unwrap().message().ends_with("on_duplicate needs a unique_key"));
        }
    }
    // The default value needs no key, whether it is given or not.
    client.run(&format!(
        "SELECT queue.enqueue('{q}', on_duplicate => 'skip'), queue.enqueue('{q}', on_duplicate => NULL)"
    ));
}

#[test]
fn a_group_without_limits_and_a_shortened_wait_raise_one_notice_each() {
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
    let failure = client.batch_execute("SELECT queue.drop('nope')").unwrap_err();
    assert_eq!(error::code(&failure), "42704");
    assert!(!hint(&failure).contains("queue.create") && hint(&failure).contains("if_exists"), "{failure:?}");
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
    let failure = client.batch_execute("SELECT queue.drop('there', if_exists => true)").unwrap_err();
    assert_eq!(error::code(&failure), "42501");
    client.run("RESET ROLE; DROP OWNED BY no_manager_of_queues; DROP ROLE no_manager_of_queues");
}

/// A plain number was given as an id.
#[test]
fn an_error_does_not_call_a_plain_number_an_id() {
    let (mut client, _) = queue("");
    for (sql, message) in [
        ("SELECT queue.complete(7)", "7 is not the id of an attempt"),
        ("SELECT queue.cancel(7)", "7 is not the id of a job"),
        ("SELECT queue.complete(15)", "15 is not the id of an attempt"),
        ("SELECT queue.cancel(1)", "1 is not the id of a job"),
    ] {
        let failure = client.batch_execute(sql).unwrap_err();
        assert_eq!((error::code(&failure), failure.as_db_error().unwrap().message()), ("22023", message));
    }
}
