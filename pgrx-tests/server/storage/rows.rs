//! A stored row has no more columns than it needs. It is read as if it had all.

use crate::shared::*;

/// Returns the number of columns of each row of a table, in physical order.
fn widths(client: &mut Client, table: &str) -> Vec<i32> {
    let sql = format!(
        "SELECT t_infomask2 & 2047 FROM heap_page_items(get_raw_page('queue_internal.{table}', 0)) ORDER BY lp"
    );
    client.query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_row_ends_with_its_last_value_and_missing_columns_read_as_null() {
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.worker = off").start_with_database("app");
    client.run("CREATE EXTENSION pageinspect");
    create(&mut client, "q", "");
    // Single jobs and batches store only the columns up to the payload.
    let plain: i64 = client.value("SELECT queue.enqueue('q', '{\"n\": 1}')");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('{\"n\": 2}'::jsonb, '{2}'))");
    assert_eq!(widths(&mut client, "attempt_0"), [11, 11, 11]);
    // A member of a flow comes first, then an ordinary job.
    let flow: i64 = client.value("SELECT queue.enqueue_flow('q', open => true)");
    client.run(&format!(
        "SELECT queue.enqueue('q', '{{\"n\": 3}}', flow => {flow}, task => 'part', priority => -1);
         SELECT queue.enqueue('q', '{{\"n\": 4}}', group_key => 'g')"
    ));
    let wide = widths(&mut client, "attempt_0");
    assert!(wide[3] > 14 && wide[4] >= 21, "{wide:?}");
    // The first claims have no worker's name, and the outcomes no result.
    client.run("SELECT FROM queue.claim('q', 2); SELECT FROM queue.claim('q', 10, worker => 'w')");
    assert_eq!(widths(&mut client, "claim_0")[..2], [5, 5]);
    let seen: Vec<(i32, Option<String>)> =
        client.rows("SELECT (payload->>'n')::int, group_key FROM queue.jobs WHERE payload ? 'n' ORDER BY 1");
    assert_eq!(seen, [(1, None), (2, None), (2, None), (3, None), (4, Some("g".into()))]);
    client.run("SELECT queue.complete(id) FROM queue.attempts WHERE state = 'running'");
    assert_eq!(widths(&mut client, "outcome_0")[0], 3);
    let others = "headers IS NULL AND unique_key IS NULL AND flow IS NULL AND task IS NULL";
    assert_eq!(
        client.count(&format!("SELECT FROM queue.jobs WHERE job_id = {plain} AND state = 'completed' AND {others}")),
        1
    );
}
