//! Integers come and go exactly; what Rust does not read fails its job and no other.

mod support;

use pg_queue_client::{Batch, Options, enqueue};
use serde_json::{Value, json};
use support::{Database, running};

#[tokio::test]
async fn integers_of_64_bits_are_exact() {
    let db = Database::new().await;
    let values = json!([1_970_670_598_291_982_290_i64, i64::MIN, u64::MAX, 0.1, 1e-7]);
    let options = Options::new().headers(json!({ "n": i64::MAX }));
    let id = enqueue(&db.client, "a", &values, options).await.unwrap();
    let worker = db.worker().handler("a", |job| async move {
        assert_eq!(job.headers.as_ref().unwrap()["n"], i64::MAX);
        job.save_progress(&job.payload).await?;
        Ok(job.payload.clone())
    });
    running(worker, db.wait_state(id, "completed")).await;
    for column in ["payload", "result", "progress"] {
        assert_eq!(db.one::<Value>(&format!("SELECT {column} FROM queue.job($1)"), &[&id]).await, values, "{column}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_fails_its_job_and_no_other() {
    for is_batch in [false, true] {
        let db = Database::new().await;
        db.client.batch_execute("SELECT queue.alter('a', max_attempts => 1)").await.unwrap();
        let mut jobs = Vec::new();
        for payload in ["'1'", "'1e400'", "(repeat('[', 200) || repeat(']', 200))", "'2'"] {
            jobs.push(db.one::<i64>(&format!("SELECT queue.enqueue('a', {payload}::jsonb)"), &[]).await);
        }
        let worker = match is_batch {
            false => db.worker().handler("a", |_| async { Ok(()) }),
            true => db.worker().batch_handler("a", 10, |_: Batch| async { Ok(()) }),
        };
        running(worker, async {
            for (job, state) in jobs.iter().zip(["completed", "dead", "dead", "completed"]) {
                db.wait_state(*job, state).await;
            }
        })
        .await;
        let error: String = db.one("SELECT error FROM queue.job($1)", &[&jobs[1]]).await;
        assert!(error.contains("cannot be read: number out of range"), "{error}");
    }
}
