//! Only the owner has access to the tables and sequences of the schema, even after other grants. `pg_class` lists them.

use crate::shared::*;

/// Returns the tables of the schema, including those of history, which are made later.
fn tables(client: &mut Client) -> Vec<String> {
    client.column(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace AND relkind
         IN ('r', 'p') \
            ORDER BY relname",
    )
}

/// Starts a server with jobs in history, and a role that may read and write all data.
fn bed() -> (Cluster, Client) {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.run("CREATE ROLE mallory LOGIN; GRANT pg_write_all_data, pg_read_all_data TO mallory");
    create(&mut client, "q", "max_attempts => 1");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'x') FROM queue.claim('q')");
    wait::until_true("it is in history", || client.count("SELECT FROM queue_internal.history") == 1);
    (cluster, client)
}

#[test]
fn no_table_can_be_written_to_by_a_role_that_does_not_own_it() {
    let (_cluster, mut client) = bed();
    let tables = tables(&mut client);
    assert!(tables.iter().any(|table| table.starts_with("history_")), "{tables:?}");
    client.run(
        "GRANT USAGE ON SCHEMA queue_internal TO mallory; GRANT ALL ON ALL TABLES IN SCHEMA queue_internal TO mallory;
         SET ROLE mallory",
    );
    for table in &tables {
        let column: String = client.value(&format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = 'queue_internal.{table}'::regclass AND attnum = 1"
        ));
        for statement in [
            format!("UPDATE queue_internal.{table} SET {column} = {column}"),
            format!("UPDATE queue_internal.{table} SET {column} = {column} WHERE false"),
            format!("DELETE FROM queue_internal.{table}"),
            format!("INSERT INTO queue_internal.{table} SELECT * FROM queue_internal.{table}"),
            format!("TRUNCATE queue_internal.{table}"),
        ] {
            client.refused(&statement, "42501");
        }
    }
    client.run("RESET ROLE");
    // The doctor reports the role.
    let told: String = client.value("SELECT detail FROM queue.doctor() WHERE name = 'roles' AND NOT ok");
    assert!(told.contains("Role mallory was granted"), "{told}");
}

#[test]
fn each_table_has_the_guard_always_on() {
    let (_cluster, mut client) = bed();
    let without: Vec<String> = client.column(
        "SELECT relname::text FROM pg_class AS c WHERE relnamespace = 'queue_internal'::regnamespace AND relkind
         IN ('r', 'p')
         AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgname = 'foreign_write'
         AND tgenabled = 'A')",
    );
    assert!(without.is_empty(), "{without:?}");
    // These writes of the owner do not matter, so the database does not wait for the end of a restore.
    client
        .run("DELETE FROM queue_internal.history; DELETE FROM queue_internal.rollup; DELETE FROM queue_internal.total");
    assert_eq!(client.count("SELECT FROM queue.doctor() WHERE name = 'restore' AND NOT ok"), 0);
    client.enqueue("q");
}

/// Triggers and rules would run with the rights of the tables' owner. So a role with TRIGGER would get the owner's
/// rights.
#[test]
fn only_the_owner_can_add_triggers_and_rules_to_a_table_or_view() {
    let (_cluster, mut client) = bed();
    let mut tables: Vec<String> = tables(&mut client).iter().map(|name| format!("queue_internal.{name}")).collect();
    let views: Vec<String> = client.column(
        "SELECT format('%s.%s', schemaname, viewname) FROM pg_views
         WHERE schemaname IN ('queue', 'queue_internal') ORDER BY 1",
    );
    tables.extend(views.iter().cloned());
    client.run(
        "GRANT USAGE ON SCHEMA queue, queue_internal TO mallory; GRANT CREATE ON SCHEMA public TO mallory;
         GRANT ALL ON ALL TABLES IN SCHEMA queue, queue_internal TO mallory;
         SET ROLE mallory;
         CREATE FUNCTION public.evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    );
    for table in &tables {
        let is_view = views.contains(table);
        let (row, statement) = if is_view { ("INSTEAD OF", "AFTER") } else { ("AFTER", "BEFORE") };
        let mut attempts = vec![
            format!(
                "CREATE TRIGGER evil {row} INSERT OR UPDATE OR DELETE \
                    ON {table} FOR EACH ROW EXECUTE FUNCTION public.evil()"
            ),
            format!(
                "CREATE TRIGGER evil {statement} UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION \
                    public.evil()"
            ),
            format!("CREATE RULE evil AS ON UPDATE TO {table} DO ALSO NOTHING"),
        ];
        let key: Option<String> = client
            .column(&format!(
                "SELECT format('CREATE TABLE public.fk (%s, FOREIGN KEY (%s) REFERENCES {table} (%2$s))',
                     string_agg(quote_ident(attname) || ' ' || format_type(atttypid, NULL), ', ' ORDER BY u.n),
                     string_agg(quote_ident(attname), ', ' ORDER BY u.n))
                 FROM pg_index CROSS JOIN LATERAL unnest(indkey) WITH ORDINALITY AS u (attnum, n)
                 JOIN pg_attribute AS a ON a.attrelid = indrelid AND a.attnum = u.attnum
                 WHERE indrelid = '{table}'::regclass AND indisprimary GROUP BY indexrelid"
            ))
            .pop();
        attempts.extend(key);
        for attempt in attempts {
            client.refused(&attempt, "42501");
        }
    }
}

#[test]
fn default_privileges_open_nothing() {
    let cluster = Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start();
    let mut client = cluster.connect();
    client.run("CREATE ROLE reader LOGIN");
    client.run("CREATE DATABASE late");
    let mut client = cluster.connect_to("late");
    client.run(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO reader, PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL
            ON SEQUENCES TO reader, PUBLIC;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON ROUTINES TO reader; ALTER DEFAULT PRIVILEGES GRANT ALL
         ON TYPES TO reader;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO reader",
    );
    client.run("CREATE EXTENSION pg_queue");
    create(&mut client, "q", "max_attempts => 1");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'x') FROM queue.claim('q')");
    wait::until_true("it is in history", || client.count("SELECT FROM queue_internal.history") == 1);
    let opened = "SELECT c.relname || ' ' || a.privilege_type FROM pg_class AS c, aclexplode(c.relacl) AS a
                  WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                  AND a.grantee <> c.relowner
                  UNION ALL SELECT p.proname || ' ' || a.privilege_type FROM pg_proc AS p, aclexplode(p.proacl) AS a
                  WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                  AND a.grantee <> p.proowner
                  UNION ALL SELECT n.nspname || ' ' || a.privilege_type FROM pg_namespace AS n,
                  aclexplode(n.nspacl) AS a
                  WHERE n.nspname IN ('queue', 'queue_internal') AND a.grantee <> n.nspowner";
    assert_eq!(client.column::<String>(opened), Vec::<String>::new());
    client.run("SET ROLE reader");
    for table in ["queue_internal.attempt_0", "queue_internal.history", "queue.jobs"] {
        client.refused(&format!("SELECT * FROM {table}"), "42501");
    }
    client.refused("SELECT queue.create('mine')", "42501");
}

#[test]
fn texts_in_indexes_are_compared_byte_by_byte() {
    let (_cluster, mut client) = bed();
    let others: Vec<String> = client.column(
        "SELECT i.indexrelid::regclass::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
         CROSS JOIN unnest(i.indcollation) AS u (oid)
         WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r' AND u.oid <> 0
         AND u.oid <> '\"C\"'::regcollation
         ORDER BY 1",
    );
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_table_of_history_takes_three_commands() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.run(
        "CREATE TABLE seen (n serial, tag text);
         CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.seen (tag) VALUES (tg_tag); END $$;
         CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION note()",
    );
    create(&mut client, "q", "");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    wait::until_true("it is in history", || client.count("SELECT FROM queue_internal.history") == 1);
    let seen: Vec<String> = client.column("SELECT tag FROM seen ORDER BY n");
    assert_eq!(seen, ["CREATE TABLE", "CREATE TRIGGER", "ALTER TABLE"]);
}
