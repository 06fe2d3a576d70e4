//! A command runs in a complete session. Everything that uses the connection gets an answer, and the log has the same
//! lines as for a session.

use crate::shared::*;
use crate::sql_jobs::commands::{ended, enqueue_as};

/// Starts a server with a queue of commands and a role that may enqueue into it.
fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::with(&["log_line_prefix = '%m [%p] %u@%d %b %e '", "pg_queue.max_executors = 4"]).start();
    let mut admin = cluster.create_database("app");
    admin.run("CREATE ROLE author LOGIN");
    create(&mut admin, "sql", "executor => 'sql', max_attempts => 1");
    admin.run("SELECT queue.grant('sql', 'author', 'produce')");
    (cluster, admin)
}

/// Waits until all commands have ended.
fn wait_all(admin: &mut Client) {
    wait::until_true("all commands have ended", || {
        let sql = "SELECT count(*) FROM queue.jobs WHERE state IN ('ready', 'running', 'delayed')";
        admin.value::<i64>(sql) == 0
    });
}

#[test]
fn no_function_of_the_server_or_its_modules_ends_the_server() {
    let (cluster, mut admin) = cluster();
    admin.run("SET client_min_messages = error");
    let modules: Vec<String> = admin.column(
        "SELECT name FROM pg_available_extensions WHERE installed_version IS NULL AND name NOT LIKE 'pg_queue%' \
            ORDER BY name",
    );
    for module in modules {
        // Some modules need a language that is not installed.
        let _ = admin.batch_execute(&format!("CREATE EXTENSION \"{module}\" CASCADE"));
    }
    admin.run("GRANT USAGE ON FOREIGN DATA WRAPPER postgres_fdw TO author");
    // Calls functions without arguments, and functions with one text or number. Functions that wait or read without an
    // end are left out.
    let calls: Vec<String> = admin.column(
        "SELECT format('SELECT count(*) FROM (SELECT %I.%I(%s)) AS f', n.nspname, p.proname,
                       CASE WHEN p.pronargs = 0 THEN '' ELSE '''1''::' || p.proargtypes[0]::regtype END)
         FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
         WHERE p.prokind = 'f' AND p.provariadic = 0 AND n.nspname IN ('pg_catalog', 'public')
           AND (p.pronargs = 0 OR p.pronargs = 1 AND p.proargtypes[0] IN ('text'::regtype, 'integer'::regtype,
           'name'::regtype))
           AND p.prorettype NOT IN (SELECT oid FROM pg_type WHERE typtype = 'p' AND typname NOT IN ('record', 'void'))
           AND p.proname !~ 'advisory|sleep|dblink'
         ORDER BY 1",
    );
    assert!(calls.len() > 200, "{}", calls.len());
    for call in &calls {
        enqueue_as(&mut admin, "author", call, "");
    }
    for call in [
        "SELECT ssl_client_dn_field('CN')",
        "SELECT ssl_issuer_field('CN')",
        "SHOW ALL",
        "TABLE pg_settings",
        "TABLE pg_stat_activity",
        "TABLE pg_stat_ssl",
        "TABLE pg_stat_gssapi",
        "SET tcp_keepalives_idle = 7; SHOW tcp_keepalives_idle",
        "SET tcp_user_timeout = 7; SET client_connection_check_interval = 1; SELECT pg_sleep(0.1)",
    ] {
        enqueue_as(&mut admin, "author", call, "");
    }
    wait_all(&mut admin);
    assert!(!cluster.log().contains("terminated by signal"));
    // A server without OpenSSL has no module sslinfo.
    let has_ssl = admin.count("SELECT FROM pg_extension WHERE extname = 'sslinfo'") == 1;
    let ssl = "SELECT jsonb_build_array(ssl_is_used(), ssl_version(), ssl_cipher(), ssl_client_cert_present(),
        ssl_client_serial(),
               ssl_client_dn(), ssl_issuer_dn(), (SELECT count(*) FROM ssl_extension_info()))";
    if has_ssl {
        let job = enqueue_as(&mut admin, "author", ssl, "");
        assert_eq!(ended(&mut admin, job).0, "completed");
        let result: String = admin.value(&format!("SELECT result::text FROM queue.job({job})"));
        assert_eq!(result, "[false, null, null, false, null, null, null, 0]");
    }
    let answer =
        "SELECT jsonb_build_array(inet_client_addr(), inet_client_port(), inet_server_addr(), inet_server_port(),
                  current_setting('tcp_keepalives_idle'))";
    let job = enqueue_as(&mut admin, "author", answer, "");
    assert_eq!(ended(&mut admin, job).0, "completed");
    let result: String = admin.value(&format!("SELECT result::text FROM queue.job({job})"));
    assert_eq!(result, r#"[null, null, null, null, "0"]"#);
}

#[test]
fn the_log_has_the_same_lines_as_for_a_session() {
    let (cluster, mut admin) = cluster();
    let run = |admin: &mut Client, command: &str, more: &str| {
        let job = enqueue_as(admin, "author", command, more);
        ended(admin, job);
    };
    // By default the log has only errors with their commands.
    run(&mut admin, "SELECT 'quiet'", "");
    run(&mut admin, "SELECT 1 / 0 AS loud", "");
    admin.run(
        "ALTER ROLE author SET log_statement = 'all'; ALTER ROLE author SET log_min_duration_statement = 0;
         ALTER ROLE author SET log_parameter_max_length = 10",
    );
    wait::until_true("the processes of before have ended", || {
        admin
            .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue executor%'");
        admin.count("SELECT FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue executor%'") == 0
    });
    run(&mut admin, "SELECT 'one'", "");
    run(&mut admin, "SELECT 'first'; SELECT 'second'", "autocommit => true");
    run(&mut admin, "SELECT $1", "arguments => '[\"a long argument\"]'");
    let log = cluster.log();
    let has = |pattern: &str| log.lines().any(|line| line.contains("author@app") && line.ends_with(pattern));
    assert!(!log.contains("SELECT 'quiet'"), "{log}");
    for line in [
        "ERROR:  division by zero",
        "STATEMENT:  SELECT 1 / 0 AS loud",
        "LOG:  statement: SELECT 'one'",
        "LOG:  statement: SELECT 'first'",
        "LOG:  statement: SELECT 'second'",
        "LOG:  execute <unnamed>: SELECT $1",
        "DETAIL:  parameters: $1 = 'a long arg...'",
    ] {
        assert!(has(line), "{line}: {log}");
    }
    assert!(log.lines().any(|line| line.contains("author@app") && line.contains("LOG:  duration: ")), "{log}");
    assert!(!log.contains("DISCARD"));
    // If log_statement has written a statement, its duration comes without the statement.
    assert!(!log.contains("ms  statement: SELECT 'one'"), "{log}");
}
