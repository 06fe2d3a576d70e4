//! Schedules: what they plan, what they enqueue, and what becomes of them. No test waits for a clock: the time is
//! set by `pg_queue.clock_offset`, in a session that does the worker's duties.

use postgres::Client;

use crate::shared::{Database, Sql, create};

/// A database without a worker, in which this session is the clock.
struct Stage {
    client: Client,
    database: Database,
}

impl Stage {
    /// With a queue `q`; it is this time.
    fn at(time: &str) -> Self {
        let database = Database::without_worker();
        let mut client = database.connect();
        create(&mut client, "q", "");
        let mut stage = Self { client, database };
        stage.set(time);
        stage
    }

    /// It is this time now.
    fn set(&mut self, time: &str) {
        set_clock(&mut self.client, time);
    }

    /// Does the worker's duties at this time.
    fn fire(&mut self, time: &str) {
        self.set(time);
        maintain(&mut self.client);
    }

    fn schedule(&mut self, arguments: &str) -> Option<String> {
        self.client.value(&format!("SELECT queue.schedule({arguments})::text"))
    }

    /// The slots of the jobs that were enqueued, in this order.
    fn slots(&mut self) -> Vec<String> {
        self.client.column("SELECT headers->>'slot' FROM queue.jobs ORDER BY job_id")
    }

    /// A column of the view, as text.
    fn shown(&mut self, column: &str) -> Option<String> {
        self.client.value(&format!("SELECT {column}::text FROM queue.schedules"))
    }
}

/// The schedules of this session live at this time.
pub fn set_clock(client: &mut Client, time: &str) {
    client.run(&format!(
        "SELECT set_config('pg_queue.clock_offset', extract(epoch FROM timestamptz '{time}' - clock_timestamp())::text, false)"
    ));
}

/// Does the duties of schedules until none is due.
pub fn maintain(client: &mut Client) {
    while client.value::<i64>("SELECT sum(did)::bigint FROM queue.maintain() WHERE duty ~ 'schedules'") > 0 {}
}

#[test]
fn a_slot_enqueues_a_job_with_all_that_was_said() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    let next = stage.schedule(
        "'s', 'q', '{\"n\": 1}', cron => '*/5 * * * *', priority => 7, max_attempts => 3, headers => '{\"a\": 2, \"slot\": 0}'",
    );
    assert_eq!(next.as_deref(), Some("2026-01-05 10:05:00+00"));
    assert_eq!(stage.shown("next_run_at"), next);
    assert_eq!(stage.shown("last_job_id"), None);
    stage.fire("2026-01-05 10:04:59Z");
    assert_eq!(stage.slots(), [""; 0]);
    stage.fire("2026-01-05 10:05:00Z");
    maintain(&mut stage.client);
    let job: String = stage
        .client
        .value("SELECT concat_ws(' ', payload, priority, max_attempts, headers, state, queue_name) FROM queue.jobs");
    assert_eq!(job, "{\"n\": 1} 7 3 {\"a\": 2, \"slot\": \"2026-01-05T10:05:00Z\", \"schedule\": \"s\"} ready q");
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-05 10:10:00+00"));
    assert_eq!(stage.shown("date_trunc('minute', last_run_at)").as_deref(), Some("2026-01-05 10:05:00+00"));
    assert_eq!(
        stage.client.count("SELECT FROM queue.schedules AS s JOIN queue.jobs AS j ON j.job_id = s.last_job_id"),
        1
    );
}
