//! Checks tables and indexes of pg_queue with amcheck.

use postgres::Client;

use crate::error;

const PREPARE: &str = "CREATE EXTENSION IF NOT EXISTS amcheck";

const INDEXES: &str = "
    SELECT i.indexrelid::regclass::text FROM pg_index AS i
    JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam JOIN pg_class AS t
    ON t.oid = i.indrelid
    WHERE t.relnamespace = 'queue_internal'::regnamespace AND t.relkind = 'r' AND a.amname = 'btree' AND i.indisvalid
    AND i.indisready
    ORDER BY 1";

const TABLES: &str = "
    SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace AND relkind = 'r'
    ORDER BY 1";

/// Returns the faults of all tables and b-trees of schema `queue`, including rows without an index entry. Skips
/// relations that are dropped meanwhile, such as a day of history. Creates the extension amcheck if needed.
pub fn faults(client: &mut Client) -> Vec<String> {
    client.batch_execute(PREPARE).expect("the server's amcheck");
    let mut faults = Vec::new();
    let mut looked = 0;
    for (relations, check) in [
        (
            INDEXES,
            "SELECT 'fault' FROM bt_index_check($1::text::regclass, heapallindexed => true) AS r WHERE r IS NULL",
        ),
        (TABLES, "SELECT concat_ws(' ', 'block', blkno, 'item', offnum, msg) FROM verify_heapam($1::text::regclass)"),
    ] {
        for row in client.query(relations, &[]).expect("the relations") {
            let relation: String = row.get(0);
            looked += 1;
            match client.query(check, &[&relation]) {
                Ok(rows) => faults.extend(rows.iter().map(|row| format!("{relation}: {}", row.get::<_, String>(0)))),
                Err(gone) if error::code(&gone) == "42P01" => {}
                Err(fault) => faults.push(format!("{relation}: {}", error::describe(&fault))),
            }
        }
    }
    assert!(looked > 0, "there are no tables in schema queue_internal");
    faults
}

/// Panics with all [`faults`] if there are any.
pub fn check(client: &mut Client) {
    let faults = faults(client);
    assert!(faults.is_empty(), "amcheck found {} faults:\n{}", faults.len(), faults.join("\n"));
}
