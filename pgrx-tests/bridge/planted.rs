//! Scripts adopt nothing that exists before they run. Default privileges of other roles open nothing.

use postgres::Client;
use queue_tests::sql::Sql;
use queue_tests::{Cluster, installation, wait};

use crate::pair::{DATABASE, Pair, prepared, primary_sql};

/// Starts a primary on which `mallory` may make schemas.
fn primary() -> (Cluster, Client) {
    let primary = prepared(Cluster::new(), "");
    let mut postgres = primary.connect_to(DATABASE);
    postgres.run("CREATE ROLE mallory LOGIN; GRANT CREATE ON DATABASE shop TO mallory");
    (primary, postgres)
}

#[test]
fn the_script_of_a_primary_uses_nothing_that_another_role_has_made() {
    // The role, what it makes, and what the script's error names.
    for (by, planted, named) in [
        ("mallory", "CREATE SCHEMA queue", "schema \"queue\" belongs to role \"mallory\""),
        ("mallory", "CREATE SCHEMA queue_bridge", "schema \"queue_bridge\" belongs to role \"mallory\""),
        (
            "mallory",
            "CREATE SCHEMA queue_bridge; CREATE TABLE queue_bridge.outbox (id bigint);
             CREATE FUNCTION queue_bridge.version() RETURNS text LANGUAGE sql AS $$ SELECT '0.4.0' $$",
            "schema \"queue_bridge\" belongs to role \"mallory\"",
        ),
        ("mallory", "CREATE PUBLICATION pg_queue", "publication \"pg_queue\" belongs to role \"mallory\""),
        (
            "owner",
            "CREATE SCHEMA queue; CREATE TABLE queue.orders (id bigint)",
            "schema \"queue\" was not made by this script",
        ),
        ("owner", "CREATE SCHEMA queue_bridge", "schema \"queue_bridge\" was not made by this script"),
    ] {
        for role in ["owner", "postgres"] {
            let (primary, mut postgres) = primary();
            primary.connect_as(DATABASE, by).run(planted);
            let failure = primary.connect_as(DATABASE, role).failure(&primary_sql());
            // A superuser does not own these objects, so the error says so.
            let named =
                if by == role { named.to_owned() } else { named.replace("was not made by this script", "belongs") };
            assert!(failure.message.contains(&named), "{planted} as {role}: {failure:?}");
            assert!(!failure.hint.is_empty() && !failure.detail.is_empty(), "{failure:?}");
            // The script has changed nothing.
            let others =
                "SELECT FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^queue' AND proname <> 'version'";
            assert_eq!(postgres.count(others), 0, "{planted}");
        }
    }
}

#[test]
fn a_later_run_finds_what_was_planted_meanwhile() {
    let pair = Pair::new();
    let mut owner = pair.primary_as("owner");
    let mut postgres = pair.primary.connect_to(DATABASE);
    postgres.run("CREATE ROLE mallory LOGIN");
    owner.run(
        "GRANT CREATE, USAGE ON SCHEMA queue, queue_bridge TO mallory;
         GRANT TRIGGER ON queue_bridge.refused TO mallory",
    );
    owner.run("CREATE SCHEMA apart; CREATE TABLE apart.part (LIKE queue_bridge.refused)");
    let mut mallory = pair.primary_as("mallory");
    mallory.run("CREATE FUNCTION queue.evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'");
    for (planted, by_mallory, dropped, named) in [
        ("SELECT 1", true, "DROP FUNCTION queue.evil() CASCADE", "function queue.evil() belongs to role \"mallory\""),
        (
            "CREATE FUNCTION queue_bridge.evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
             CREATE TRIGGER evil BEFORE INSERT ON queue_bridge.refused
             FOR EACH ROW EXECUTE FUNCTION queue_bridge.evil()",
            true,
            "DROP FUNCTION queue_bridge.evil() CASCADE",
            "function queue_bridge.evil() belongs to role \"mallory\"",
        ),
        (
            "CREATE TABLE queue_bridge.effect_9 (id bigint)",
            true,
            "DROP TABLE queue_bridge.effect_9",
            "relation queue_bridge.effect_9 belongs to role \"mallory\"",
        ),
        (
            "CREATE DOMAIN queue.jsonb AS text",
            true,
            "DROP DOMAIN queue.jsonb",
            "type queue.jsonb belongs to role \"mallory\"",
        ),
        (
            "CREATE RULE evil AS ON INSERT TO queue_bridge.refused DO ALSO NOTHING",
            false,
            "DROP RULE evil ON queue_bridge.refused",
            "there is rule \"evil\" on queue_bridge.refused",
        ),
        (
            "ALTER TABLE apart.part INHERIT queue_bridge.refused",
            false,
            "DROP TABLE apart.part",
            "there is apart.part, a part of a table in schema queue_bridge",
        ),
    ] {
        if by_mallory {
            mallory.run(planted)
        } else {
            owner.run(planted)
        }
        let failure = owner.refused(&primary_sql(), "42501");
        owner.run("ROLLBACK");
        assert_eq!(failure.message, named, "{planted}");
        postgres.run(dropped);
    }
    owner.run(&primary_sql());
    // No privilege that was granted by hand is left.
    mallory.refused("CREATE TABLE queue.mine (id bigint)", "42501");
    pair.app().enqueue("q");
    pair.wait_arrived();
}

#[test]
fn a_source_is_not_connected_over_existing_objects() {
    let pair = Pair::apart("");
    let mut server = pair.server();
    server.run("CREATE ROLE mallory LOGIN CREATEROLE");
    let connect = format!("SELECT queue_bridge.connect('shop', '{}')", pair.conninfo());
    for (planted, dropped, named) in [
        ("CREATE ROLE queue_bridge_shop LOGIN PASSWORD 'known'", "DROP ROLE queue_bridge_shop", "role"),
        ("CREATE ROLE queue_bridge_shop SUPERUSER", "DROP ROLE queue_bridge_shop", "role"),
        (
            "CREATE ROLE queue_bridge_shop LOGIN; GRANT queue_bridge_shop TO mallory",
            "DROP ROLE queue_bridge_shop",
            "role \"queue_bridge_shop\", and others may use it",
        ),
        (
            "CREATE ROLE queue_bridge_shop LOGIN; CREATE SCHEMA AUTHORIZATION queue_bridge_shop",
            "DROP OWNED BY queue_bridge_shop; DROP ROLE queue_bridge_shop",
            "role",
        ),
        ("SELECT queue.create('queue_bridge_shop')", "SELECT queue.drop('queue_bridge_shop')", "queue or topic"),
        ("SELECT queue.create_topic('queue_bridge_shop')", "SELECT queue.drop('queue_bridge_shop')", "queue or topic"),
        (
            "SELECT queue.create('x'); SELECT queue.schedule('queue_bridge_shop', 'x', every => '1 day')",
            "SELECT queue.unschedule('queue_bridge_shop'); SELECT queue.drop('x', force => true)",
            "schedule",
        ),
        (
            "CREATE SUBSCRIPTION queue_bridge_shop CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)",
            "ALTER SUBSCRIPTION queue_bridge_shop SET (slot_name = NONE); DROP SUBSCRIPTION queue_bridge_shop",
            "subscription \"queue_bridge_shop\"",
        ),
        (
            "CREATE VIEW queue_bridge.connected_shop AS SELECT 1",
            "DROP VIEW queue_bridge.connected_shop",
            "relation queue_bridge.connected_shop",
        ),
    ] {
        for statement in planted.split("; ") {
            server.run(statement);
        }
        let failure = server.refused(&connect, "42710");
        assert!(failure.message.contains(named) && failure.hint.len() > 5, "{planted}: {failure:?}");
        assert_eq!(server.count("SELECT FROM queue_bridge.source"), 0);
        for statement in dropped.split("; ") {
            server.run(statement);
        }
    }
    // The role of an earlier source with this name is used again.
    server.run("CREATE ROLE queue_bridge_shop LOGIN");
    server.run(&connect);
    server.run("SELECT queue_bridge.disconnect('shop')");
    server.run(&connect);
}

#[test]
fn the_extension_refuses_schemas_and_libraries_of_other_roles() {
    let cluster = Cluster::new().start();
    cluster.connect().run("CREATE ROLE mallory LOGIN");
    cluster.connect().run("CREATE DATABASE shop OWNER mallory");
    let mut server = cluster.connect_to(DATABASE);
    let mut mallory = cluster.connect_as(DATABASE, "mallory");
    for schema in ["queue", "queue_internal", "queue_bridge"] {
        mallory.run(&format!("CREATE SCHEMA {schema}"));
        let failure = server.refused("CREATE EXTENSION pg_queue_bridge CASCADE", "42P06");
        assert_eq!(failure.message, format!("schema \"{schema}\" exists already"));
        assert!(failure.detail.contains("role \"mallory\"") && failure.hint.contains("RENAME"), "{failure:?}");
        mallory.run(&format!("DROP SCHEMA {schema}"));
    }
    // The owner of the database may drop schema public and everything in it.
    let failure = server.refused("CREATE EXTENSION pg_queue_bridge CASCADE", "55000");
    assert!(
        failure.message.contains("dblink lies in schema \"public\", which role \"mallory\" may drop"),
        "{failure:?}"
    );
    server.run("CREATE SCHEMA dblink; CREATE EXTENSION dblink SCHEMA dblink; CREATE EXTENSION pg_queue_bridge CASCADE");
    mallory.refused("DROP SCHEMA dblink CASCADE", "42501");
    mallory.run("DROP SCHEMA public CASCADE");
    assert_eq!(server.count("SELECT FROM queue_bridge.sources"), 0);
    let dblink = |server: &mut Client| {
        let sql = "SELECT ok, detail FROM queue.doctor() WHERE name = 'bridge'";
        let row = server.query_one(sql, &[]).expect("the check");
        (row.get::<_, bool>(0), row.get::<_, String>(1))
    };
    assert!(dblink(&mut server).0);
    mallory.run("CREATE SCHEMA public");
    server.run("ALTER EXTENSION dblink SET SCHEMA public");
    let (is_ok, detail) = dblink(&mut server);
    assert!(!is_ok && detail.contains("dblink") && detail.contains("mallory"), "{detail}");
}

/// Returns what roles other than the owner may do with the objects of these schemas, without USAGE on types.
fn opened(client: &mut Client, schemas: &str) -> Vec<String> {
    client.column(&format!(
        "SELECT o.what || ' ' || a.privilege_type || ' ' || a.grantee::regrole FROM (
             SELECT c.oid::regclass::text AS what, c.relowner AS owner, c.relacl AS acl, c.relnamespace AS n
             FROM pg_class AS c
             UNION ALL SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)),
                 p.pronamespace FROM pg_proc AS p
             UNION ALL SELECT n.nspname::text, n.nspowner, n.nspacl, n.oid FROM pg_namespace AS n
         ) AS o CROSS JOIN LATERAL aclexplode(o.acl) AS a
         WHERE a.grantee <> o.owner AND o.n::regnamespace::text = ANY ('{{{schemas}}}') ORDER BY 1"
    ))
}

#[test]
fn default_privileges_open_nothing_on_either_side() {
    const EVERYTHING: &str = "CREATE ROLE reader LOGIN;
        ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON TABLES TO reader, PUBLIC;
        ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON SEQUENCES TO reader, PUBLIC;
        ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON ROUTINES TO reader;
        ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON SCHEMAS TO reader, PUBLIC";
    let plain = Pair::new();
    let expected = [
        opened(&mut plain.server(), "queue,queue_internal,queue_bridge"),
        opened(&mut plain.primary.connect_to(DATABASE), "queue,queue_bridge"),
    ];
    let primary = prepared(Cluster::new(), "");
    primary.connect_to(DATABASE).run(&EVERYTHING.replace("FOR ROLE postgres", "FOR ROLE owner"));
    let server = Cluster::new().conf("wal_retrieve_retry_interval = '100ms'").conf("max_connections = 40").start();
    let mut client = server.create_database(DATABASE);
    client.run(EVERYTHING);
    client.run("CREATE EXTENSION pg_queue_bridge CASCADE");
    let pair = Pair { primary, server }.with_script().connected();
    for (side, expected) in expected.iter().enumerate() {
        let found = || match side {
            0 => opened(&mut pair.server(), "queue,queue_internal,queue_bridge"),
            _ => opened(&mut pair.primary.connect_to(DATABASE), "queue,queue_bridge"),
        };
        assert_eq!(&found(), expected);
        // The script runs once more, and a table of history appears.
        pair.primary_as("owner").run(&primary_sql());
        let mut server = pair.server();
        server.run("SELECT queue.complete(id) FROM queue.claim('q')");
        wait::until("it is the same", || (&found() == expected).then_some(()));
    }
    let mut reader = pair.server.connect_as(DATABASE, "reader");
    reader.refused("SELECT conninfo FROM queue_bridge.source", "42501");
    reader.refused("SELECT body FROM queue_bridge.refused", "42501");
    let mut reader = pair.primary_as("reader");
    for sql in ["TABLE queue_bridge.outbox", "SELECT queue.enqueue('q')", "SELECT queue_bridge.contact('{}')"] {
        reader.refused(sql, "42501");
    }
}

#[test]
fn a_role_on_the_primary_has_the_verbs_of_its_privileges() {
    let pair = Pair::new();
    let mut postgres = pair.primary.connect_to(DATABASE);
    let mut owner = pair.primary_as("owner");
    let verbs = [
        ("produce", &["enqueue('q')", "enqueue_many('q', '{1}')", "enqueue_batch('q', '[]')", "enqueue_flow('q')"][..]),
        (
            "consume",
            &["once(ID)", "once_many('{ID}')", "complete(16)", "complete_many('{16}')", "fail(16, 'x')", "release(16)"],
        ),
        ("manage", &["cancel(ID)", "seal(ID)"]),
    ];
    let id = pair.app().enqueue("q");
    for (privilege, own) in verbs {
        let role = format!("{privilege}r");
        postgres.run(&format!("CREATE ROLE {role} LOGIN"));
        owner.run(&format!("SELECT queue_bridge.grant('{role}', '{{{privilege}}}')"));
        let mut client = pair.primary_as(&role);
        for (_, calls) in verbs {
            for call in calls {
                let sql = format!("SELECT FROM queue.{}", call.replace("ID", &id.to_string()));
                if calls == own {
                    client.run(&sql)
                } else {
                    client.refused(&sql, "42501");
                }
            }
        }
        // Functions that only the queue server has say so.
        client.refused("SELECT queue.claim('q')", "0A000");
        owner.run(&format!("SELECT queue_bridge.revoke('{role}')"));
        client.refused(&format!("SELECT FROM queue.{}", own[0].replace("ID", &id.to_string())), "42501");
    }
    owner.refused("SELECT queue_bridge.grant('app', '{rule}')", "22023");
    owner.refused("SELECT queue_bridge.grant('nobody')", "42704");
    assert_eq!(owner.count("SELECT FROM queue_bridge.permission WHERE role_name ~ 'r$'"), 1, "taker");
}

#[test]
fn times_in_a_batch_are_those_of_the_caller() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    pair.server.connect().run("ALTER DATABASE shop SET timezone = 'Pacific/Chatham'");
    app.run("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'");
    app.run(
        "SELECT queue.enqueue_batch('q', '[{\"payload\": 1, \"run_at\": \"02/03/2097 10:00\"}]');
         SELECT queue.enqueue_flow('q', '[{\"payload\": 2, \"run_at\": \"02/03/2097 10:00\"}]');
         SELECT queue.enqueue('q', '3', run_at => '02/03/2097 10:00')",
    );
    pair.wait_arrived();
    let times = server.column::<bool>(
        "SELECT run_at = '2097-03-02 10:00:00+09' FROM queue.jobs WHERE payload IN ('1', '2', '3') ORDER BY job_id",
    );
    assert_eq!(times, [true; 3]);
}

#[test]
fn arrays_may_begin_at_any_number() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run("SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q'); SELECT queue_bridge.allow('shop', 't')");
    pair.contact();
    app.run("SELECT queue.enqueue_many('q', '[0:1]={21,22}'::jsonb[])");
    app.run("SELECT queue.publish_many('t', '[5:6]={11,12}'::jsonb[], '[0:1]={a,b}'::text[])");
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    let payloads =
        "SELECT concat(payload, headers #>> '{event,key}') FROM queue.jobs WHERE queue_name = 'q' ORDER BY 1";
    assert_eq!(server.column::<String>(payloads), ["11a", "12b", "21", "22"]);
}

#[test]
fn a_long_text_in_an_error_ends_no_contact() {
    let pair = Pair::new();
    let mut app = pair.app();
    app.refused("SELECT queue.enqueue('q', stage => repeat('y', 2000))", "22023");
    let fields = "jsonb_build_array(jsonb_build_object('stage', repeat('b', 1024)))";
    for _ in 0..3 {
        app.run(&format!("SELECT queue.enqueue_batch('q', {fields})"));
    }
    pair.wait_arrived();
    assert_eq!(pair.server().count("SELECT FROM queue_bridge.refused"), 3);
    assert_eq!(pair.contact(), None);
    let longest = "SELECT max(length(message)) FROM queue_bridge.refused";
    assert_eq!(pair.primary_as("owner").value::<i32>(longest), 1000);
}

#[test]
fn backslashes_that_escape_change_nothing() {
    // Postgres 19 and later refuse the setting.
    if installation::installation().major >= 19 {
        return;
    }
    let pair = Pair::apart("standard_conforming_strings = off");
    pair.server.connect().run("ALTER DATABASE shop SET standard_conforming_strings = off");
    let pair = pair.connected();
    pair.app().enqueue("q");
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    assert_eq!(
        pair.app().refused("SELECT queue.claim('q')", "0A000").message,
        "queue.claim is answered by the queue server"
    );
    let checks = "SELECT string_agg(detail, ' ') FROM queue.doctor() WHERE name = 'bridge' AND NOT ok";
    assert_eq!(pair.server().value::<Option<String>>(checks), None);
}

#[test]
fn the_effect_of_a_job_that_is_still_to_come_cannot_be_taken() {
    let pair = Pair::new();
    let mut app = pair.app();
    let last = app.enqueue("q");
    for ahead in [1, 2, 1_000, 1 << 33] {
        let next = last + 16 * ahead;
        app.refused(&format!("SELECT queue.once({next})"), "22023");
        app.refused(&format!("SELECT queue.once_many('{{{last},{next}}}')"), "22023");
    }
    assert_eq!(app.enqueue("q"), last + 16);
    assert!(app.value::<bool>(&format!("SELECT queue.once({})", last + 16)));
    // The primary does not judge ids that the queue server gave.
    let own = pair.server().enqueue("q");
    assert!(app.value::<bool>(&format!("SELECT queue.once({own})")));
}
