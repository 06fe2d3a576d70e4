//! Short methods for the SQL of tests. All panic with the statement if its result is not as expected.

use postgres::types::FromSqlOwned;
use postgres::{Client, Row};

use crate::{error, wait};

/// The error of a failed statement.
#[derive(Debug)]
pub struct Failure {
    pub code: String,
    pub message: String,
    pub detail: String,
    pub hint: String,
}

impl From<&postgres::Error> for Failure {
    fn from(e: &postgres::Error) -> Self {
        assert!(e.as_db_error().is_some(), "not an error of the server: {e:?}");
        let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
        Self {
            code: error::code(e).to_owned(),
            message: error::message(e).to_owned(),
            detail: owned(error::detail(e)),
            hint: owned(error::hint(e)),
        }
    }
}

/// Values of the first columns of a row: a tuple.
pub trait Columns {
    fn of(row: &Row) -> Self;
}

macro_rules! columns {
    ($($column:ident $at:literal),*) => {
        impl<$($column: FromSqlOwned),*> Columns for ($($column,)*) {
            fn of(row: &Row) -> Self {
                ($(row.get::<_, $column>($at),)*)
            }
        }
    };
}

columns!(A 0, B 1);
columns!(A 0, B 1, C 2);
columns!(A 0, B 1, C 2, D 3);

/// Short methods for a test's statements. All panic with the statement if its result is not as expected.
pub trait Sql {
    /// Runs statements.
    fn run(&mut self, sql: &str);
    /// Returns the first column of all rows.
    fn column<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T>;
    /// Returns the only value of the only row.
    fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T;
    /// Returns the first columns of all rows.
    fn rows<T: Columns>(&mut self, sql: &str) -> Vec<T>;
    /// Returns the first columns of the only row.
    fn row<T: Columns>(&mut self, sql: &str) -> T;
    /// Returns the error of the statement, which must fail. Returns after its rollback.
    fn failure(&mut self, sql: &str) -> Failure;
    /// Does what `failure` does, and checks the SQLSTATE.
    #[track_caller]
    fn refused(&mut self, sql: &str, code: &str) -> Failure;
    /// Waits until the failed last statement is rolled back. The server sends an error before that, and the driver
    /// returns it.
    fn wait_rolled_back(&mut self);
    /// Claims a job, which must be ready. Returns the attempt's id.
    fn claim(&mut self, queue: &str) -> i64;
    /// Enqueues a job. Returns its id.
    fn enqueue(&mut self, queue: &str) -> i64;
    /// Claims up to this many jobs and completes them. Returns the number of completed jobs.
    fn work_off(&mut self, queue: &str, jobs: i64) -> i64;
    /// Enqueues this many jobs and completes as many, to fill segments with ended jobs.
    fn pass_through(&mut self, queue: &str, jobs: i64);
    /// Returns how many rows the statement returns.
    fn count(&mut self, sql: &str) -> usize;
    /// Fails with the fault if `queue.check()` reports one.
    #[track_caller]
    fn check(&mut self);
    /// Returns the process id of the session's server process.
    fn pid(&mut self) -> i32;
    /// Makes this session's work visible in the server's statistics.
    fn flush_statistics(&mut self);
    /// Returns the state of a job.
    fn state(&mut self, job_id: i64) -> String;
    /// Waits until the background worker, or `queue.maintain()`, has made this condition true.
    fn maintain_until(&mut self, condition: &str);
    /// Switches off the background worker of this database. Returns when the worker does no more duties.
    fn switch_worker_off(&mut self);
    /// True if memory knows the counts of all lanes and there is at least one. A lane without jobs is not counted.
    fn is_counted(&mut self) -> bool;
    /// Waits until memory knows the counts. Minute statistics lack events before that.
    fn wait_counted(&mut self);
}

impl Sql for Client {
    fn run(&mut self, sql: &str) {
        self.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    fn column<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        let rows = self.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        rows.iter().map(|row| row.try_get(0).unwrap_or_else(|e| panic!("{sql}: {e:?}"))).collect()
    }

    fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        let mut values = self.column(sql);
        assert_eq!(values.len(), 1, "{sql}: rows");
        values.remove(0)
    }

    fn rows<T: Columns>(&mut self, sql: &str) -> Vec<T> {
        let rows = self.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        rows.iter().map(T::of).collect()
    }

    fn row<T: Columns>(&mut self, sql: &str) -> T {
        let mut rows = self.rows(sql);
        assert_eq!(rows.len(), 1, "{sql}: rows");
        rows.remove(0)
    }

    fn failure(&mut self, sql: &str) -> Failure {
        match self.simple_query(sql) {
            Ok(answer) => panic!("{sql}: no error, but {answer:?}"),
            Err(e) => {
                self.wait_rolled_back();
                Failure::from(&e)
            }
        }
    }

    fn refused(&mut self, sql: &str, code: &str) -> Failure {
        let failure = self.failure(sql);
        assert_eq!(failure.code, code, "{sql}: {failure:?}");
        failure
    }

    fn wait_rolled_back(&mut self) {
        let _ = self.simple_query("");
    }

    fn claim(&mut self, queue: &str) -> i64 {
        self.value(&format!("SELECT id FROM queue.claim('{queue}')"))
    }

    fn enqueue(&mut self, queue: &str) -> i64 {
        self.value(&format!("SELECT queue.enqueue('{queue}')"))
    }

    fn work_off(&mut self, queue: &str, jobs: i64) -> i64 {
        self.value(&format!(
            "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('{queue}', {jobs})))
             WHERE outcome = 'completed'"
        ))
    }

    fn pass_through(&mut self, queue: &str, jobs: i64) {
        let payloads = format!("pg_catalog.array_fill('1'::jsonb, ARRAY[{jobs}])");
        self.run(&format!("SELECT count(*) FROM queue.enqueue_many('{queue}', {payloads})"));
        self.work_off(queue, jobs);
    }

    fn count(&mut self, sql: &str) -> usize {
        self.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).len()
    }

    fn check(&mut self) {
        assert_eq!(self.column::<String>("SELECT c::text FROM queue.check() AS c"), [""; 0]);
    }

    fn pid(&mut self) -> i32 {
        self.value("SELECT pg_backend_pid()")
    }

    fn flush_statistics(&mut self) {
        self.run("SELECT pg_stat_force_next_flush()");
    }

    fn state(&mut self, job_id: i64) -> String {
        self.value(&format!("SELECT state FROM queue.job({job_id})"))
    }

    fn maintain_until(&mut self, condition: &str) {
        wait::until_true(condition, || {
            self.run("SELECT FROM queue.maintain()");
            self.value::<bool>(&format!("SELECT {condition}"))
        });
    }

    fn switch_worker_off(&mut self) {
        self.run(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET pg_queue.worker = off', current_database()); END $$",
        );
        wait::until_true("the background worker is off", || {
            let off = "SELECT FROM queue.doctor() WHERE name = 'worker' AND detail LIKE '%pg_queue.worker is off%'";
            self.count(off) > 0
        });
    }

    fn is_counted(&mut self) -> bool {
        self.value("SELECT coalesce(bool_and(is_counted), false) FROM queue_internal.tallies()")
    }

    fn wait_counted(&mut self) {
        wait::until_true("memory knows the counts", || self.is_counted());
    }
}

/// Returns a statement that retries the dead jobs of a queue, the oldest first, and returns their number.
pub fn retry_dead(queue: &str) -> String {
    format!(
        "SELECT count(*) FROM queue.retry_many(ARRAY(
             SELECT job_id FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'dead' ORDER BY job_id))
             WHERE reason IS NULL"
    )
}

/// Waits until this session sleeps inside a claim or `queue.wait`.
pub fn wait_asleep(client: &mut Client, pid: i32) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' AND wait_event_type = 'Extension'"
    );
    wait::until_true("the session sleeps", || client.value::<i64>(&sql) == 1);
}

/// Waits until this session waits for another session's transaction.
pub fn wait_blocked(client: &mut Client, pid: i32) {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'");
    wait::until_true("the session waits", || client.value::<i64>(&sql) == 1);
}
