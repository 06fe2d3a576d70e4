//! `queue.check()`, which compares rows, counters and memory, reports nothing.

use postgres::Client;

pub fn check(client: &mut Client) -> Result<Vec<String>, postgres::Error> {
    let sql = "SELECT format('queue.check: %s', c) FROM queue.check() AS c";
    Ok(client.query(sql, &[])?.iter().map(|row| row.get(0)).collect())
}
