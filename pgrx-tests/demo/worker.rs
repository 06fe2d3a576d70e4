//! A worker: an ordinary client of the database. It does not know about other workers, nor what happens to its job if
//! it is killed.

use std::convert::Infallible;
use std::env::var;

use postgres::{Client, Error, NoTls, Row};
use queue_tests::error;

/// Claims and indexes one file after the other, until the connection or the process ends.
pub fn run(name: &str) -> Result<Infallible, Error> {
    let [host, port, user, database] =
        ["PGHOST", "PGPORT", "PGUSER", "PGDATABASE"].map(|name| var(name).expect("a setting of the connection"));
    let config = format!("host={host} port={port} user={user} dbname={database} application_name={name}");
    let mut client = Client::connect(&config, NoTls)?;
    loop {
        let claimed = client.query_opt(
            "SELECT id, job_id, attempt, max_attempts, payload->>'path' AS path, payload->>'text' AS text
             FROM queue.claim('index_files', wait => '2 seconds', worker => $1)",
            &[&name],
        )?;
        let Some(job) = claimed else { continue };
        let path: &str = job.get("path");
        println!("{path}");
        if let Err(error) = index(&mut client, &job, name) {
            if error.as_db_error().is_none() {
                return Err(error);
            }
            let (attempt, attempts): (i32, i32) = (job.get("attempt"), job.get("max_attempts"));
            // One write: other workers print to the same terminal.
            let line =
                format!("         {name}: {path}: attempt {attempt} of {attempts}: {}\n", error::message(&error));
            eprint!("{line}");
            give_up(&mut client, &job, &error)?;
        }
    }
}

/// The document and the end of its job, in one transaction: both or neither.
fn index(client: &mut Client, job: &Row, name: &str) -> Result<(), Error> {
    let mut transaction = client.transaction()?;
    transaction.execute(
        "INSERT INTO document (path, tsv, job_id, attempt, indexed_by)
         VALUES ($1, to_tsvector('english', $2), $3, $4, $5)",
        &[
            &job.get::<_, &str>("path"),
            &job.get::<_, &str>("text"),
            &job.get::<_, i64>("job_id"),
            &job.get::<_, i32>("attempt"),
            &name,
        ],
    )?;
    transaction.execute("SELECT queue.complete($1)", &[&job.get::<_, i64>("id")])?;
    transaction.commit()
}

/// Tells the queue the error. The queue decides whether and when it tries again.
fn give_up(client: &mut Client, job: &Row, why: &Error) -> Result<(), Error> {
    let failed = client.execute("SELECT queue.fail($1, $2)", &[&job.get::<_, i64>("id"), &error::message(why)]);
    match failed {
        // The lease has expired, and another worker has the job.
        Err(error) if error::code(&error) == "QJ001" => Ok(()),
        other => other.map(drop),
    }
}
