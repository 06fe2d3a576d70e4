//! No table of pg_queue can be made unlogged, because a crash would empty it.

use crate::operations::doctor::finding;
use crate::shared::*;

#[test]
fn no_table_of_pg_queue_can_be_made_unlogged() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let ours: Vec<String> = client.column(
        "SELECT format('%s %s', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass) FROM pg_class
         WHERE relnamespace = 'queue_internal'::regnamespace AND relkind IN ('r', 'p', 'S') ORDER BY 1",
    );
    assert!(ours.len() > 50, "{ours:?}");
    for relation in &ours {
        let refused = client.refused(&format!("ALTER {relation} SET UNLOGGED"), "0A000");
        assert!(refused.message.ends_with("cannot be unlogged"), "{relation}: {refused:?}");
    }
    client.refused("ALTER TABLE IF EXISTS ONLY queue_internal.attempt_0 SET UNLOGGED", "0A000");
    client.refused("ALTER TABLE queue_internal.attempt_0 SET (fillfactor = 90), SET UNLOGGED", "0A000");
    client.refused("DO $$ BEGIN EXECUTE 'ALTER TABLE queue_internal.claim_0 SET UNLOGGED'; END $$", "0A000");
    client.run(
        "CREATE TABLE mine (id bigint); ALTER TABLE mine SET UNLOGGED; ALTER TABLE queue_internal.attempt_0 SET LOGGED",
    );
    assert!(finding(&mut client, "tables").is_ok);
    drop(client);
    // While the library is not loaded, it cannot refuse the change.
    cluster.append_conf("shared_preload_libraries = ''");
    cluster.restart();
    cluster.connect_to("app").run("ALTER TABLE queue_internal.attempt_3 SET UNLOGGED");
    cluster.append_conf("shared_preload_libraries = 'pg_queue'");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    let found = finding(&mut client, "tables");
    assert!(!found.is_ok && found.detail.contains("queue_internal.attempt_3 is unlogged"), "{found:?}");
    client.run("ALTER TABLE queue_internal.attempt_3 SET LOGGED");
    assert!(finding(&mut client, "tables").is_ok);
}
