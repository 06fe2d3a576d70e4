//! sqlx: the statements of docs/clients.md.
//!
//! sqlx prepares a statement under a name, and then runs it. Behind a pooler in transaction mode the two steps may have
//! different connections. So both have to be in one transaction, and `persistent(false)` leaves out the name.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection};
use sqlx::query::Query;
use sqlx::{Connection as _, Error, Postgres, Row as _};

fn statement(sql: &str) -> Query<'_, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}

fn code(error: &Error) -> String {
    error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
}

/// Cancels the claim from another connection once it sleeps: sqlx cannot cancel.
async fn cancel(mut other: PgConnection) -> Result<(), Error> {
    let sql = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active' AND datname = current_database()
          AND pid <> pg_backend_pid()";
    loop {
        let mut transaction = other.begin().await?;
        let found = statement(sql).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        if !found.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let options = PgConnectOptions::new(); // PGHOST, …
    let mut connection = PgConnection::connect_with(&options).await?;
    let mut db = connection.begin().await?;

    // A Value is jsonb, a Duration an interval, a Vec an array.
    let enqueue = statement("SELECT queue.enqueue($1, $2, delay => $3)").bind("jobs").bind(json!({ "n": 1 }));
    let job: i64 = enqueue.bind(Duration::ZERO).fetch_one(&mut *db).await?.get(0);
    let payloads = vec![json!({ "n": 2 }), json!({ "n": 3 })];
    statement("SELECT queue.enqueue_many($1, $2)").bind("jobs").bind(payloads).execute(&mut *db).await?;
    db.commit().await?;

    let mut db = connection.begin().await?;
    let claim = statement("SELECT id, job_id, payload FROM queue.claim('jobs', 3, wait => $1)");
    let rows = claim.bind(Duration::from_secs(1)).fetch_all(&mut *db).await?;
    db.commit().await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
    let payloads: Vec<Value> = rows.iter().map(|row| row.get("payload")).collect();
    assert_eq!(payloads, [json!({ "n": 1 }), json!({ "n": 2 }), json!({ "n": 3 })]);
    assert_eq!(rows[0].get::<i64, _>("job_id"), job);

    let mut db = connection.begin().await?;
    let completed =
        statement("SELECT outcome FROM queue.complete_many($1)").bind(&ids[..1]).fetch_one(&mut *db).await?;
    assert_eq!(completed.get::<String, _>(0), "completed");
    let fail = statement("SELECT queue.fail($1, $2, retry_in => $3)").bind(ids[1]).bind("no");
    fail.bind(Duration::from_secs(3600)).execute(&mut *db).await?;
    statement("SELECT queue.complete($1, $2)").bind(ids[2]).bind(json!({ "ok": true })).execute(&mut *db).await?;
    db.commit().await?;

    let mut db = connection.begin().await?;
    let lost = statement("SELECT queue.complete($1)").bind(ids[2]).execute(&mut *db).await.unwrap_err();
    assert_eq!(code(&lost), "QJ001", "{lost}");
    db.rollback().await?;
    let mut db = connection.begin().await?;
    let claim = "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => $1) WHERE job_id IS NULL";
    let answer = statement(claim).bind(&ids[2..]).fetch_one(&mut *db).await?;
    assert_eq!(answer.get::<String, _>(0), "lost");
    let result = statement("SELECT result FROM queue.jobs WHERE job_id = $1").bind(rows[2].get::<i64, _>("job_id"));
    assert_eq!(result.fetch_one(&mut *db).await?.get::<Value, _>(0), json!({ "ok": true }));
    db.commit().await?;

    let canceller = tokio::spawn(cancel(PgConnection::connect_with(&options).await?));
    let begun = Instant::now();
    let mut db = connection.begin().await?;
    let waiting = statement("SELECT id FROM queue.claim('jobs', wait => '10 seconds')").fetch_all(&mut *db).await;
    assert_eq!(code(&waiting.unwrap_err()), "57014");
    assert!(begun.elapsed() < Duration::from_secs(8), "the cancel works immediately");
    db.rollback().await?;
    canceller.await.expect("no panic")
}
