//! The server starts with pg_queue preloaded, and the extension can be created and dropped.

use queue_tests::{Cluster, error};

#[test]
fn the_extension_can_be_created_and_dropped() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    let installed = "SELECT FROM pg_extension WHERE extname = 'pg_queue'";
    assert_eq!(client.query(installed, &[]).unwrap().len(), 1);

    let again = client.batch_execute("CREATE EXTENSION pg_queue").unwrap_err();
    assert_eq!(error::code(&again), "42710", "{again:?}");

    client.batch_execute("DROP EXTENSION pg_queue").unwrap();
    assert_eq!(client.query(installed, &[]).unwrap().len(), 0);
}
