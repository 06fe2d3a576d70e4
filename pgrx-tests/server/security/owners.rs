//! The rights of an owner: planted objects never run, and triggers and indexes of an owner run with the owner's rights.

use queue_tests::EARLIER;
use queue_tests::installation::output;

use crate::security::permissions::{RECORDED, grant};
use crate::shared::*;

/// Returns the GRANTs and REVOKEs of a dump. Those on schema public are left out, because they depend on the major
/// version of pg_dump.
fn rights(dump: &str) -> Vec<&str> {
    let is_right = |line: &str| ["GRANT", "REVOKE"].iter().any(|verb| line.starts_with(verb));
    dump.lines().filter(|line| is_right(line) && !line.contains("SCHEMA public")).collect()
}

#[test]
fn a_dump_is_restored_where_roles_are_missing() {
    const QUIET: &str = "pg_queue.restore_quiet = '1s'";
    let (source, mut client) = Cluster::new().start_with_database("app");
    client.run("CREATE ROLE known LOGIN; CREATE ROLE missing LOGIN; CREATE ROLE gone LOGIN; CREATE ROLE maker LOGIN");
    create(&mut client, "q", "");
    create(&mut client, "unused", "");
    for (queue, role, privilege) in [
        ("q", "known", "produce"),
        ("*", "missing", "manage"),
        ("q", "gone", "consume"),
        ("unused", "gone", "manage"),
        ("*", "known", "observe"),
    ] {
        grant(&mut client, queue, role, privilege);
    }
    client.run("DROP OWNED BY gone; DROP ROLE gone; SELECT queue.enqueue('q')");
    // These grants were made by hand.
    client.run("GRANT USAGE ON SCHEMA queue TO maker; GRANT EXECUTE ON FUNCTION queue.create TO maker");
    grant(&mut client, "*", "missing", "produce");
    let dump = source.pg_dump(&["app"]);
    let of_queue = rights(&dump);
    assert_eq!(of_queue.len(), 2, "{of_queue:#?}");
    assert!(of_queue.iter().all(|line| line.contains("maker")), "{of_queue:#?}");
    let file = source.dir().join("dump").display().to_string();
    output(source.command("pg_dump").args(["-Fc", "-f", &file, "app"]));

    let target = Cluster::new().conf(QUIET).start();
    let mut client = target.connect();
    client.run("CREATE ROLE known LOGIN; CREATE ROLE maker LOGIN");
    client.run("CREATE DATABASE app");
    let restore = ["--exit-on-error", "--single-transaction", "-d", "app", &file];
    output(target.command("pg_restore").args(restore));
    let mut client = target.connect_to("app");
    let is_awake = |client: &mut Client| {
        wait::until("the restore is over", || client.batch_execute("SELECT queue.enqueue('q')").ok());
    };
    is_awake(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.permission"), 4);
    client.run("SET SESSION AUTHORIZATION known; SELECT queue.enqueue('q')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready'"), 3);
    client.refused("SELECT FROM queue.claim('q')", "42501");
    client.run(
        "RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION maker; SELECT queue.create('fresh'); \
        SELECT queue.pause('fresh')",
    );
    client.run("RESET SESSION AUTHORIZATION");
    // The role is created later. The next change, or `queue.adopt`, gives it the rights that its rows name.
    client.run(
        "CREATE ROLE missing LOGIN; SELECT queue.adopt(); SET SESSION AUTHORIZATION missing; SELECT queue.pause('q')",
    );
    client.run("RESET SESSION AUTHORIZATION");
    // After this the rows give the role access to the schema, so the dump has one grant by hand.
    let dump = target.pg_dump(&["app"]);
    let by_hand = rights(&dump);
    assert!(by_hand.len() == 1 && by_hand[0].contains("FUNCTION queue.\"create\""), "{by_hand:?}");

    // A dump of pg_upgrade's kind and a copy have the same rights.
    let recorded = client.column::<String>(RECORDED);
    drop(client);
    target.connect().run("CREATE DATABASE copy TEMPLATE app");
    assert_eq!(target.connect_to("copy").column::<String>(RECORDED), recorded);
}

/// Objects that a role can plant if it may create them in `public` and in its temporary schema.
const TRAPS: &str = "
    CREATE FUNCTION public.trap() RETURNS void LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''trapped as %'', current_user; END';
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT public.trap(); SELECT NULL::timestamptz';
    CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'SELECT public.trap(); SELECT NULL::timestamptz';
    CREATE FUNCTION public.max(integer) RETURNS integer LANGUAGE sql AS 'SELECT public.trap(); SELECT 1';
    CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT public.trap(); SELECT ''x''';
    CREATE FUNCTION public.concat(text, name) RETURNS text LANGUAGE sql AS 'SELECT public.trap(); SELECT ''x''';
    CREATE FUNCTION public.setval(regclass, bigint) RETURNS bigint LANGUAGE sql AS
    'SELECT public.trap(); SELECT 1::bigint';
    CREATE TABLE public.queue (queue_id integer, queue_name text);
    CREATE TABLE public.permission (queue_id integer, role_name text, privilege text);
    CREATE TYPE public.regclass AS ENUM ('x');
    CREATE TYPE public.jsonb AS ENUM ('x');
    DO $traps$
    DECLARE
        operator text;
        type_name text;
    BEGIN
        FOREACH type_name IN ARRAY ARRAY['integer', 'bigint', 'text', 'oid', '\"char\"', 'name', 'boolean',
        'timestamptz', 'pg_catalog.jsonb'] LOOP
            EXECUTE format('CREATE FUNCTION public.trapped(%1$s, %1$s) RETURNS boolean LANGUAGE sql AS
                            ''SELECT public.trap(); SELECT true''', type_name);
            FOREACH operator IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '~~', '&', '>>', '+', '-', '*', '||'] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.trapped, LEFTARG = %s, RIGHTARG = %2$s)',
                               operator, type_name);
            END LOOP;
        END LOOP;
        -- Of these two there is none that fits as well.
        CREATE FUNCTION public.trapped(integer, bigint) RETURNS boolean LANGUAGE sql AS
        'SELECT public.trap(); SELECT true';
        CREATE OPERATOR public.= (FUNCTION = public.trapped, LEFTARG = integer, RIGHTARG = bigint);
        CREATE FUNCTION public.trapped(text, name) RETURNS boolean LANGUAGE sql AS 'SELECT public.trap(); SELECT true';
        CREATE OPERATOR public.= (FUNCTION = public.trapped, LEFTARG = text, RIGHTARG = name);
    END
    $traps$;";

/// Settings under which planted objects precede all others.
const HOSTILE: &str = "SET search_path = pg_temp, public, queue, pg_catalog";

#[test]
fn objects_planted_by_other_roles_never_run() {
    let cluster =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0", "pg_queue.restore_quiet = 1"])
            .start();
    let mut client = cluster.connect();
    client.run("CREATE DATABASE app");
    client.run("CREATE ROLE somebody");
    client.run("ALTER DATABASE app SET search_path = pg_temp, public, queue, pg_catalog");
    let mut client = cluster.connect_to("app");
    client.run(&format!("SET search_path = public; {TRAPS}; {HOSTILE}"));
    assert_eq!(client.failure("SELECT now()").message, "trapped as postgres", "the trap snaps");
    assert_eq!(client.failure("SELECT 1 = 1").message, "trapped as postgres", "the trap snaps");
    // Creates an earlier version, runs the upgrade script, and creates this version.
    client.run(&format!("CREATE EXTENSION pg_queue VERSION '{EARLIER}'"));
    client.run("GRANT EXECUTE ON FUNCTION queue.enqueue TO somebody; ALTER EXTENSION pg_queue UPDATE");
    client.run("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue");
    client.run("GRANT TEMP ON DATABASE app TO somebody; SELECT queue.grant('*', 'somebody', 'manage')");
    for who in ["postgres", "somebody"] {
        let mut user = cluster.connect_to("app");
        user.run(&format!("SET SESSION AUTHORIZATION {who}; {HOSTILE}"));
        for table in
            ["queue", "permission", "lane", "history", "schedule", "attempt_0", "pg_proc", "pg_class", "pg_namespace"]
        {
            user.run(&format!("CREATE TEMP TABLE {table} (id bigint)"));
        }
        for sql in [
            "SELECT queue.create('graves')",
            "SELECT queue.create('q', stages => '{a, b}', max_running => 5, rate_limit => 100, \
                dead_letter => 'graves')",
            "SELECT queue.create('q', lease => '1 s', if_not_exists => true)",
            "SELECT queue.alter('q', stages => '{a, b, c}'), queue.pause('q'), queue.resume('q')",
            "SELECT queue.alter('q', reset => '{stages}')",
            "SELECT queue.grant('q', 'somebody', 'observe'), queue.revoke('q', 'somebody', 'observe')",
            "SELECT queue.enqueue('q', unique_key => 'k', version => '2020-01-01', unique_for => '1 hour')",
            "SELECT queue.enqueue('q', unique_key => 'k', on_duplicate => 'replace', version => '2021-01-01')",
            "SELECT queue.enqueue_batch('q', '[{}, {}, {\"group_key\": \"g\"}, {}, {}]')",
            "SELECT queue.complete(id) FROM queue.claim('q')",
            "SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q')",
            "SELECT queue.extend(id, '1 hour'), queue.progress(id, '1') FROM queue.claim('q')",
            "SELECT queue.schedule('s', 'q', every => '1 hour'), queue.pause_schedule('s'), queue.resume_schedule('s')",
            "SELECT queue.run_schedule('s')",
            "SELECT queue.retry_many(ARRAY(SELECT job_id FROM queue.search('q', '$.error starts with \"x\"', \
                '{dead}')))",
            "SELECT queue.cancel_many('{}'), queue.reprioritize_many('{}', 1), \
                queue.reschedule_many('{}', '2100-01-01')",
            "SELECT queue.end_batch(pg_catalog.json_build_array(pg_catalog.json_build_object('release',
                pg_catalog.json_build_object('id', id, 'delay', '0'))))
             FROM queue.claim('q')",
            "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state OPERATOR(pg_catalog.=) 'ready' LIMIT 1",
            "SELECT queue.reprioritize(job_id, 3) FROM queue.jobs WHERE state OPERATOR(pg_catalog.=) 'ready' LIMIT 1",
            "SELECT queue.forget(job_id), queue.retry(job_id) FROM queue.jobs \
                WHERE state OPERATOR(pg_catalog.=) 'completed'",
            "SELECT * FROM queue.throughput_by()",
            "SELECT * FROM queue.upcoming('s')",
            "SELECT * FROM queue.maintain()",
        ] {
            user.run(sql);
        }
        for view in ["jobs", "attempts", "queues", "stats", "throughput", "errors", "workers", "schedules"] {
            user.run(&format!("SELECT * FROM queue.{view}"));
        }
        user.run(
            "SELECT queue.unschedule('s'), queue.purge('q'), queue.drop('q', force => true), \
            queue.drop('graves', force => true)",
        );
        user.run("SELECT queue.adopt()");
    }
    // Meanwhile the worker does its duties: it fires schedules, ends leases, copies and empties segments, and drops
    // days.
    client.run(
        "SELECT queue.create('q', rate_limit => 1000, rate_period => '1 s', notify => true, \
        backoff_base => '0', lease => '1 s')",
    );
    client.run("SELECT queue.schedule('s', 'q', every => '1 s'); SELECT queue.enqueue('q')");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 1);
    for done in [
        "queue.schedules WHERE last_job_id IS NOT NULL",
        "queue.attempts WHERE state OPERATOR(pg_catalog.=) 'timed_out'",
        "queue_internal.rollup",
        "queue_internal.history",
    ] {
        wait::until_true(done, || {
            client.run(
                "SELECT queue.enqueue('q', delay => '0.1 s'), \
                queue.enqueue('q', unique_key => 'k', unique_for => '1 s')",
            );
            client.run("SELECT queue.complete(id) FROM queue.claim('q')");
            client.count(&format!("SELECT FROM {done} LIMIT 1")) == 1
        });
    }
    // Only the two errors above are in the log.
    assert_eq!(cluster.log().matches("ERROR:  trapped as").count(), 2, "{}", cluster.log());
}

/// The owner of the extension's tables must not get the rights of roles that call its functions, nor those of the
/// worker. Returns a session of the role `keeper`. It was a superuser when it created the extension in `app`, and is
/// none now.
fn demoted_owner(cluster: &Cluster) -> Client {
    let mut client = cluster.connect();
    client.run("CREATE ROLE keeper SUPERUSER LOGIN");
    client.run("CREATE DATABASE app OWNER keeper");
    let mut keeper = cluster.connect_as("app", "keeper");
    keeper.run("CREATE EXTENSION pg_queue; SELECT queue.create('q')");
    client.run("ALTER ROLE keeper NOSUPERUSER");
    keeper
}

#[test]
fn an_owner_s_trigger_runs_with_the_owner_s_rights_and_leaves_search_paths_alone() {
    let cluster = Cluster::new().start();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE TABLE public.seen (by_whom text, path text);
         CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_user, current_setting('search_path'));
             PERFORM set_config('search_path', 'evil', false);
             RETURN NULL;
         END $$;
         CREATE TRIGGER evil AFTER UPDATE ON queue_internal.queue FOR EACH STATEMENT EXECUTE FUNCTION evil()",
    );
    let mut chief = cluster.connect_to("app");
    wait::until("it is awake again", || chief.batch_execute("SELECT queue.adopt(); SELECT queue.resume('q')").ok());
    chief.run("TRUNCATE public.seen; SET search_path = public, queue; SELECT queue.pause('q')");
    assert_eq!(chief.value::<String>("SHOW search_path"), "public, queue");
    assert_eq!(
        chief.column::<String>("SELECT by_whom || ': ' || path FROM public.seen"),
        ["keeper: pg_catalog, pg_temp"]
    );
}

#[test]
fn an_owner_s_deferred_trigger_is_refused() {
    const TABLES: [&str; 4] = ["queue", "lane", "schedule", "permission"];
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE keeper SUPERUSER; END IF;
             RETURN NULL;
         END $$",
    );
    let mut chief = cluster.connect_to("app");
    chief.run("CREATE ROLE friend");
    let verbs = [
        "SELECT queue.create('other')",
        "SELECT queue.pause('q')",
        "SELECT queue.alter('q', stages => '{a, b}')",
        "SELECT queue.schedule('s', 'q', every => '1 hour')",
        "SELECT queue.grant('q', 'friend', 'observe')",
        "SELECT queue.revoke('q', 'friend', 'observe')",
        "SELECT queue.unschedule('s')",
        "SELECT queue.adopt()",
        "SELECT queue.drop('other')",
    ];
    for table in TABLES {
        keeper.run(&format!(
            "CREATE CONSTRAINT TRIGGER evil AFTER INSERT OR UPDATE OR DELETE ON queue_internal.{table}
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil()"
        ));
    }
    wait::until("it is awake again", || chief.batch_execute("SELECT queue.adopt(); SELECT queue.claim('q')").ok());
    let refused = verbs.map(|verb| chief.batch_execute(verb).map_err(|e| error::code(&e).to_owned()));
    assert_eq!(client.count("SELECT FROM pg_roles WHERE rolname = 'keeper' AND rolsuper"), 0);
    let found = refused.iter().filter(|answer| answer.as_ref().is_err_and(|code| code == "42501")).count();
    assert_eq!(found, 5, "{refused:?}");
    for table in TABLES {
        keeper.run(&format!("DROP TRIGGER evil ON queue_internal.{table}"));
    }
    verbs.into_iter().for_each(|verb| chief.run(verb));
}

#[test]
fn a_database_in_another_encoding_is_refused() {
    let cluster = Cluster::new().start();
    cluster.connect().run("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let failure = cluster.connect_to("old").failure("CREATE EXTENSION pg_queue");
    assert_eq!((failure.code.as_str(), failure.detail.contains("LATIN1")), ("0A000", true), "{failure:?}");
}

#[test]
fn an_owner_s_index_is_filled_with_the_owner_s_rights() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE FUNCTION evil() RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE keeper SUPERUSER;
             END IF; END $$;
         CREATE FUNCTION harmless(x bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN PERFORM public.evil(); RETURN x; END $$;
         CREATE INDEX ON queue_internal.outcome_0 (harmless(id)); CREATE INDEX ON queue_internal.claim_0 (harmless(id));
         CREATE INDEX ON queue_internal.outcome_0 ((id + harmless(1)));
         SELECT queue.enqueue('q')",
    );
    let mut chief = cluster.connect_to("app");
    chief.run("SELECT FROM queue.claim('q', lease => '1 s')");
    wait::until_true("the worker has ended the attempt", || {
        chief.count("SELECT FROM queue.attempts WHERE state = 'timed_out'") > 0
    });
    assert_eq!(client.count("SELECT FROM pg_roles WHERE rolname = 'keeper' AND rolsuper"), 0);
    assert_eq!(chief.column::<String>("SELECT current_user::text"), ["postgres"]);
}

#[test]
fn a_role_renamed_and_dropped_leaves_nothing_in_a_dump() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run("CREATE ROLE carl");
    grant(&mut client, "q", "carl", "consume");
    client.run("ALTER ROLE carl RENAME TO carla; DROP OWNED BY carla; DROP ROLE carla");
    let gone = "SELECT FROM pg_init_privs AS p, aclexplode(p.initprivs) AS a
                WHERE a.grantee <> 0 AND NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = a.grantee)";
    assert_eq!(client.count(gone), 0);
}
