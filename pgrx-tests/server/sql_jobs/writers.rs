//! A command runs as the role that wrote it, whichever role changes the job.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;
use crate::sql_jobs::commands::enqueue_as;

/// Makes a table in which each command records its role, and a paused queue.
fn bed(database: &Database, roles: &[&str], options: &str) -> Client {
    let mut client = database.connect();
    create(&mut client, "sql", &format!("executor => 'sql', backoff_base => '0', max_attempts => 3{options}"));
    client.run("CREATE TABLE ran (what text, who text DEFAULT current_user, session text DEFAULT session_user)");
    client.run("GRANT ALL ON ran TO public; SELECT queue.pause('sql')");
    for role in roles {
        grant(&mut client, "sql", role, "manage");
    }
    client
}

/// Enqueues a command that records its role, with further arguments of `queue.enqueue_sql`.
fn note(client: &mut Client, role: &str, what: &str, more: &str) {
    enqueue_as(client, role, &format!("INSERT INTO ran VALUES ('{what}')"), more);
}

fn as_role(client: &mut Client, role: &str, sql: &str) {
    client.run(&format!("SET ROLE {role}; {sql}; RESET ROLE"));
}

/// Runs all jobs of the queue. Returns what each has recorded, with its role.
fn drain(client: &mut Client) -> Vec<String> {
    client.run("SELECT queue.resume('sql')");
    wait::until_true("all jobs have ended", || {
        client.count("SELECT FROM queue.jobs WHERE state IN ('ready', 'running', 'scheduled', 'retrying', 'held')") == 0
    });
    client.column("SELECT what || ' ' || who || CASE WHEN session <> who THEN '!' ELSE '' END FROM ran ORDER BY 1")
}

#[test]
fn each_verb_that_takes_a_command_makes_the_caller_its_writer() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], ", stages => '{one, two}'");
    // Another role leaves the command alone.
    note(&mut client, &a, "s of a", "unique_key => 's', stage => 'two'");
    note(&mut client, &b, "s of b", "unique_key => 's', stage => 'two'");
    // Batches.
    for (role, name) in [(&a, "a"), (&b, "b")] {
        let job = format!("{{\"command\": \"INSERT INTO ran VALUES (''batch of {name}'')\", \"stage\": \"two\"}}");
        as_role(&mut client, role, &format!("SELECT queue.enqueue_batch('sql', '[{job}]')"));
    }
    // A manager changes something other than the payload.
    note(&mut client, &a, "p of a", "stage => 'two', unique_key => 'p'");
    as_role(&mut client, &b, "SELECT queue.reprioritize(job_id, -1) FROM queue.jobs WHERE unique_key = 'p'");
    as_role(&mut client, &b, "SELECT queue.reschedule(job_id, now()) FROM queue.jobs WHERE unique_key = 'p'");
    // One job advances itself, and another role advances a second job while it runs. Without a new payload both keep
    // their writer.
    let on = "SELECT queue.advance(id) FROM queue.current_job() WHERE stage = ''one''; INSERT INTO ran \
        SELECT ''sent on by a'' FROM queue.current_job() WHERE stage = ''two''";
    as_role(&mut client, &a, &format!("SELECT queue.enqueue_sql('sql', '{on}')"));
    let sleep = "SELECT pg_sleep(CASE stage WHEN ''one'' THEN 600 ELSE 0 END) FROM queue.current_job(); \
        INSERT INTO ran VALUES (''sent on by b'')";
    as_role(&mut client, &a, &format!("SELECT queue.enqueue_sql('sql', '{sleep}', priority => 9)"));
    client.run("SELECT queue.resume('sql')");
    let running = "SELECT a.id FROM queue.attempts AS a JOIN queue.executors AS e USING (job_id)
                   WHERE a.state = 'running' AND e.command LIKE '%pg_sleep%'";
    let id: i64 = wait::until("it runs", || client.column(running).first().copied());
    as_role(&mut client, &b, &format!("SELECT queue.advance({id})"));
    assert_eq!(
        drain(&mut client),
        [
            format!("batch of a {a}"),
            format!("batch of b {b}"),
            format!("p of a {a}"),
            format!("s of a {a}"),
            format!("sent on by a {a}"),
            format!("sent on by b {a}"),
        ]
    );
}

#[test]
fn a_replaced_command_runs_as_the_role_that_wrote_it_last() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], "");
    let schedule = |name: &str| {
        let command = format!("'INSERT INTO ran VALUES (''s of {name}'')'");
        format!("SELECT queue.schedule('s', 'sql', command => {command}, every => '1 year')")
    };
    as_role(&mut client, &a, &schedule("a"));
    as_role(&mut client, &b, "SELECT queue.run_schedule('s')");
    as_role(&mut client, &b, &schedule("b"));
    as_role(&mut client, &a, "SELECT queue.pause_schedule('s'), queue.resume_schedule('s'), queue.run_schedule('s')");
    // Another role replaces a waiting job.
    note(&mut client, &a, "k of a", "unique_key => 'k'");
    note(&mut client, &b, "k of b", "unique_key => 'k', on_duplicate => 'replace'");
    assert_eq!(drain(&mut client), [format!("k of b {b}"), format!("s of a {a}"), format!("s of b {b}")]);
}

#[test]
fn a_requested_run_is_that_of_the_role_that_requested_it() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], "");
    let mut gate = database.connect();
    gate.run("SELECT pg_advisory_lock(1)");
    client.run("SELECT queue.resume('sql')");
    let waits = "SELECT pg_advisory_xact_lock(1); INSERT INTO ran VALUES ('first')";
    enqueue_as(&mut client, &a, waits, "unique_key => 'k'");
    wait::until_true("it runs", || client.count("SELECT FROM queue.executors WHERE state = 'running'") == 1);
    note(&mut client, &b, "second", "unique_key => 'k', on_duplicate => 'rerun'");
    gate.run("SELECT pg_advisory_unlock(1)");
    wait::until_true("both have run", || client.count("SELECT FROM ran") == 2);
    assert_eq!(drain(&mut client), [format!("first {a}"), format!("second {b}")]);
}

#[test]
fn a_command_cannot_get_more_rights_than_its_writer() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], ", lease => '1 minute'");
    client.run(&format!(
        "SELECT queue.resume('sql'); GRANT {b} TO {a}; CREATE SCHEMA AUTHORIZATION {a}; GRANT CREATE \
        ON SCHEMA public TO {a}"
    ));
    client.run(&format!("SET ROLE {a}"));
    let mut end = |command: &str| -> String {
        let job: i64 = client
            .query_one("SELECT queue.enqueue_sql('sql', $1)", &[&command])
            .unwrap_or_else(|e| panic!("{command}: {e:?}"))
            .get(0);
        wait::until("it has ended", || {
            let sql = format!(
                "SELECT state || ' ' || coalesce(error, '') FROM queue.job({job}) WHERE state IN ('completed', 'dead')"
            );
            client.column::<String>(&sql).pop()
        })
    };
    for command in [
        "RESET ROLE; INSERT INTO ran VALUES ('reset')",
        "RESET SESSION AUTHORIZATION; INSERT INTO ran VALUES ('authorization')",
        "SET ROLE NONE; INSERT INTO ran VALUES ('none')",
        // If a session with more rights used this search_path, it would meet the planted objects.
        "CREATE FUNCTION a_planted(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT current_user = 'postgres' $$;
         CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = a_planted)",
    ] {
        assert_eq!(end(command), "completed ", "{command}");
    }
    for command in [
        "SET SESSION AUTHORIZATION postgres",
        "SET ROLE postgres",
        "SELECT pg_read_file('postgresql.conf')",
        "CREATE ROLE gained SUPERUSER",
        "INSERT INTO queue_internal.queue SELECT * FROM queue_internal.queue",
        "UPDATE queue_internal.attempt_0 SET run_as = 'postgres'",
        "INSERT INTO queue_internal.schedule SELECT * FROM queue_internal.schedule",
        "SELECT queue.alter('sql', executor => 'call', procedure => 'jsonb_typeof', run_as => 'postgres')",
    ] {
        let ended = end(command);
        assert!(ended.starts_with("dead 42501: "), "{command}: {ended}");
    }
    // A command may become a role that has its own role as a member, as in any session. The next job begins as its own
    // role.
    assert_eq!(end(&format!("SET ROLE {b}; INSERT INTO ran VALUES ('became')")), "completed ");
    assert_eq!(end("INSERT INTO ran VALUES ('after')"), "completed ");
    // LISTEN ends with the command. In 15 and later a background process cannot LISTEN.
    let listens = end("LISTEN secrets");
    assert!(listens == "completed " || listens.starts_with("dead 0A000: "), "{listens}");
    assert_eq!(end("INSERT INTO ran SELECT 'heard' FROM pg_listening_channels()"), "completed ");
    client.run("RESET ROLE");
    let ran: Vec<String> = client.column("SELECT what || ' ' || who || ' ' || session FROM ran ORDER BY 1");
    assert_eq!(
        ran,
        [
            format!("after {a} {a}"),
            format!("authorization {a} {a}"),
            format!("became {b} {a}"),
            format!("none {a} {a}"),
            format!("reset {a} {a}")
        ]
    );
}

#[test]
fn a_role_that_was_dropped_or_remade_or_became_a_superuser_runs_nothing() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (gone, anew, risen) = (roles.make("gone", ""), roles.make("anew", ""), roles.make("risen", ""));
    let mut client = bed(&database, &[&gone, &anew, &risen], "");
    for role in [&gone, &anew, &risen] {
        note(&mut client, role, role, "");
    }
    client.run(&format!("DROP OWNED BY {gone}; DROP ROLE {gone}; DROP OWNED BY {anew}; DROP ROLE {anew}"));
    client.run(&format!("CREATE ROLE {anew} LOGIN; ALTER ROLE {risen} SUPERUSER"));
    assert!(drain(&mut client).is_empty());
    let errors: Vec<String> =
        client.column("SELECT state || ' ' || split_part(error, E'\\n', 1) FROM queue.jobs ORDER BY job_id");
    assert_eq!(
        errors,
        [
            format!("dead 42704: role \"{gone}\" does not exist"),
            format!("dead 42704: role \"{anew}\" does not exist"),
            format!("dead 42501: role \"{risen}\" is a superuser, and no job runs as one"),
        ]
    );
    client.refused("SELECT queue.enqueue_sql('sql', 'INSERT INTO ran VALUES (''super'')')", "42501");
    client.run(&format!("ALTER ROLE {risen} NOSUPERUSER"));
}

#[test]
fn roles_take_turns_in_the_order_of_their_jobs() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], ", max_running => 1");
    for n in 0..20 {
        let role = if n % 2 == 0 { &a } else { &b };
        note(&mut client, role, &format!("{n:02}"), "");
    }
    assert_eq!(drain(&mut client).len(), 20);
    let order: Vec<String> = client.column("SELECT what || who FROM ran ORDER BY ctid");
    let wanted: Vec<String> = (0..20).map(|n| format!("{n:02}{}", if n % 2 == 0 { &a } else { &b })).collect();
    assert_eq!(order, wanted);
}

#[test]
fn objects_planted_in_a_role_s_search_path_run_only_as_that_role() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], "");
    // Each planted object has one of these names and records the calling role.
    client.run(&format!(
        "CREATE SCHEMA planted AUTHORIZATION {a}; GRANT USAGE ON SCHEMA planted TO public; SET ROLE {a};
         CREATE TABLE planted.met (who text DEFAULT current_user); GRANT INSERT ON planted.met TO public;
         CREATE FUNCTION planted.now() RETURNS timestamptz LANGUAGE sql AS
         'INSERT INTO planted.met DEFAULT VALUES; SELECT pg_catalog.now()';
         CREATE FUNCTION planted.same(bigint, bigint) RETURNS boolean LANGUAGE sql
             AS 'INSERT INTO planted.met DEFAULT VALUES; SELECT $1 OPERATOR(pg_catalog.=) $2';
         CREATE OPERATOR planted.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = planted.same);
         CREATE FUNCTION planted.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql
             AS $$ INSERT INTO planted.met DEFAULT VALUES; SELECT 'planted' $$;
         CREATE TYPE planted.thing AS (n integer);
         CREATE FUNCTION planted.to_json(planted.thing) RETURNS json LANGUAGE sql
             AS $$ INSERT INTO planted.met DEFAULT VALUES; SELECT '{{}}'::json $$;
         CREATE CAST (planted.thing AS json) WITH FUNCTION planted.to_json(planted.thing) AS IMPLICIT;
         CREATE TABLE planted.deferred (n integer); GRANT ALL ON planted.deferred TO public;
         CREATE FUNCTION planted.at_commit() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN INSERT INTO planted.met DEFAULT VALUES; RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON planted.deferred DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION planted.at_commit();
         RESET ROLE; ALTER ROLE {a} SET search_path = planted, pg_catalog, public; SELECT queue.resume('sql')"
    ));
    let mut end = |role: &str, command: &str, rows: i32| {
        client.run(&format!("SET ROLE {role}"));
        let job: i64 = client
            .query_one("SELECT queue.enqueue_sql('sql', $1, result_rows => $2)", &[&command, &rows])
            .unwrap()
            .get(0);
        client.run("RESET ROLE");
        wait::until_true("it has ended", || {
            let state = client.state(job);
            ["completed", "dead"].contains(&state.as_str())
        });
    };
    end(
        &a,
        "INSERT INTO planted.deferred VALUES (1); SELECT now(), jsonb_typeof('1'), 1::bigint = 1::bigint, \
            ROW(1)::planted.thing AS t",
        5,
    );
    end(&a, "SELECT queue.complete(id) FROM queue.current_job()", 0);
    end(&a, "SELECT queue.fail(id, 'so') FROM queue.current_job()", 0);
    end(&a, "SELECT 1 / 0", 0);
    end(&b, "INSERT INTO ran VALUES ('as ever')", 0);
    let met: Vec<String> = client.column("SELECT DISTINCT who FROM planted.met");
    assert_eq!(met, [a]);
    assert_eq!(client.column::<String>("SELECT who FROM ran"), [b]);
}

#[test]
fn a_membership_counts_when_the_command_runs() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a], "");
    client.run(&format!("GRANT {b} TO {a}"));
    enqueue_as(&mut client, &a, &format!("SET ROLE {b}; INSERT INTO ran VALUES ('became')"), "");
    client.run(&format!("REVOKE {b} FROM {a}"));
    assert!(drain(&mut client).is_empty());
    let error: String = client.value("SELECT error FROM queue.jobs WHERE state = 'dead'");
    assert!(error.starts_with("42501: permission denied to set role"), "{error}");
}

#[test]
fn a_manager_that_retries_a_job_does_not_become_its_writer() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], "");
    let once = "INSERT INTO ran SELECT ''again'' WHERE 1 / (SELECT count(*) FROM allowed) > 0";
    client.run("CREATE TABLE allowed (n integer); GRANT SELECT ON allowed TO public");
    as_role(&mut client, &a, &format!("SELECT queue.enqueue_sql('sql', '{once}', max_attempts => 1)"));
    as_role(&mut client, &a, &format!("SELECT queue.enqueue_sql('sql', '{once}', max_attempts => 1)"));
    as_role(
        &mut client,
        &a,
        "SELECT queue.enqueue_flow('sql', '[{\"task\": \"t\", \"command\": \"INSERT INTO ran VALUES (''member'')\"}]')",
    );
    drain(&mut client);
    client.run("INSERT INTO allowed VALUES (1)");
    let jobs: Vec<i64> = client.column("SELECT job_id FROM queue.jobs WHERE state = 'dead' ORDER BY job_id");
    assert_eq!(jobs.len(), 2);
    as_role(&mut client, &b, &format!("SELECT queue.retry({})", jobs[0]));
    as_role(&mut client, &b, &retry_dead("sql"));
    assert_eq!(drain(&mut client), [format!("again {a}"), format!("again {a}"), format!("member {a}")]);
}

#[test]
fn roles_that_are_written_into_the_tables_by_hand_gain_nothing() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let mut client = bed(&database, &[&a, &b], "");
    note(&mut client, &a, "by hand", "");
    client.run(&format!(
        "GRANT USAGE ON SCHEMA queue_internal TO {b}; GRANT ALL ON ALL TABLES IN SCHEMA queue_internal
        TO {b}; SET ROLE {b}"
    ));
    client.refused(
        &format!("UPDATE queue_internal.attempt_0 SET run_as = '{b}', run_as_id = '{b}'::regrole::oid::bigint"),
        "42501",
    );
    for table in ["attempt_0", "note_0", "schedule", "queue"] {
        client.refused(&format!("INSERT INTO queue_internal.{table} SELECT * FROM queue_internal.{table}"), "42501");
    }
    client.run("RESET ROLE");
    assert_eq!(drain(&mut client), [format!("by hand {a}")]);
}
