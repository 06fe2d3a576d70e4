//! Tables and indexes are sound by amcheck, and the logs are emptied when no job lives.

use std::time::Duration;

use postgres::Client;
use queue_tests::integrity;

use crate::shared::Patience;

/// The longest time for which the logs may fail to shrink, and the rest that may stay: less than a segment.
const EMPTYING: Duration = Duration::from_secs(60);
const LEFT: i64 = 2000;

pub fn check(client: &mut Client) -> Result<Vec<String>, postgres::Error> {
    let mut found = Vec::new();
    let mut patience = Patience::new(EMPTYING);
    loop {
        let left: i64 = client.query_one("SELECT count(*) FROM queue_internal.live()", &[])?.get(0);
        if left <= LEFT {
            break;
        }
        if patience.is_over(left) {
            let states = client.query(
                "SELECT DISTINCT ON (segment) format('%s %s', segment, state) FROM queue_internal.segment_log
                                       ORDER BY segment, entry DESC",
                &[],
            )?;
            let states: Vec<String> = states.iter().map(|row| row.get(0)).collect();
            found.push(format!("{left} attempts are left in the logs, of which none lives: {states:?}"));
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    found.extend(integrity::faults(client).iter().map(|fault| format!("amcheck: {fault}")));
    Ok(found)
}
