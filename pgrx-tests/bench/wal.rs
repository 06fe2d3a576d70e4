//! How much WAL a server has written.

use postgres::Client;

use crate::Result;

/// Bytes up to the place where the next record goes.
pub fn bytes(client: &mut Client) -> Result<i64> {
    let row = client.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", &[])?;
    Ok(row.try_get(0)?)
}
