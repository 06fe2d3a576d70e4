//! The proof that each file was indexed exactly once, whatever happened to the workers.

use postgres::Client;

use crate::producer::HOPELESS;

/// Prints line by line what was proved or not. Returns true if everything was.
pub fn holds(client: &mut Client, enqueued: &[String], hopeless: i64, killed: Option<i64>) -> bool {
    let checks = [once(client, enqueued), handed_on(client, killed), given_up(client, hopeless), all_over(client)];
    println!();
    for (holds, claim) in &checks {
        println!("{} {claim}", if *holds { "[proved]" } else { "[WRONG] " });
    }
    let holds = checks.iter().all(|(holds, _)| *holds);
    println!("{}", if holds { "Each file was indexed exactly once." } else { "The proof FAILED." });
    holds
}

type Check = (bool, String);

/// Compares the rows of `document` with the list of enqueued files.
fn once(client: &mut Client, enqueued: &[String]) -> Check {
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM document), (SELECT count(DISTINCT path) FROM document),
                    count(*) FILTER (WHERE d.path IS NULL), count(*) FILTER (WHERE d.rows > 1),
                    count(*) FILTER (WHERE f.path IS NULL)
             FROM unnest($1::text[]) AS f (path)
             FULL JOIN (SELECT path, count(*) AS rows FROM document GROUP BY path) AS d ON d.path = f.path",
            &[&enqueued],
        )
        .expect("the documents");
    let [rows, paths, missing, twice, strange]: [i64; 5] = std::array::from_fn(|column| row.get(column));
    let files = enqueued.len();
    let holds = usize::try_from(rows) == Ok(files) && paths == rows && [missing, twice, strange] == [0; 3];
    (
        holds && files > 0,
        format!(
            "{files} files enqueued, {rows} documents, of {paths} paths: {missing} missing, {twice} indexed more \
             than once, {strange} that were not enqueued"
        ),
    )
}

/// Another worker has done the job of the killed worker after its lease.
fn handed_on(client: &mut Client, killed: Option<i64>) -> Check {
    let Some(job) = killed else { return (false, "no worker was killed at work".to_owned()) };
    let sql = "SELECT state, coalesce(worker, 'nobody') FROM queue.attempts WHERE job_id = $1 ORDER BY attempt";
    let attempts = client.query(sql, &[&job]).expect("the attempts");
    let attempts: Vec<(&str, &str)> = attempts.iter().map(|row| (row.get(0), row.get(1))).collect();
    let [(first, killed), .., (last, heir)] = attempts[..] else {
        return (false, format!("job {job} of the killed worker was not handed on: {attempts:?}"));
    };
    let sql = "SELECT count(*) FROM document WHERE job_id = $1";
    let documents: i64 = client.query_one(sql, &[&job]).expect("the documents").get(0);
    (
        (first, last) == ("timed_out", "completed") && killed != heir && documents == 1,
        format!("job {job}: {first} with {killed}, which was killed; {last} by {heir}: {documents} document"),
    )
}

/// The hopeless job was tried as often as the queue says, and has left nothing.
fn given_up(client: &mut Client, job: i64) -> Check {
    let row = client
        .query_one(
            "SELECT state, attempt, max_attempts, (SELECT count(*) FROM document WHERE job_id = $1)
             FROM queue.job($1)",
            &[&job],
        )
        .expect("the hopeless job");
    let (state, attempt, attempts, documents): (&str, i32, i32, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    (
        state == "dead" && attempt == attempts && documents == 0,
        format!("job {job}, {HOPELESS}: {state} after attempt {attempt} of {attempts}: {documents} documents"),
    )
}

/// The queue's own count agrees.
fn all_over(client: &mut Client) -> Check {
    let row = client
        .query_one(
            "SELECT ready + scheduled + retrying + running, dead, completed, (SELECT count(*) FROM document)
             FROM queue.stats WHERE queue_name = 'index_files'",
            &[],
        )
        .expect("the statistics");
    let [left, dead, completed, documents]: [i64; 4] = std::array::from_fn(|column| row.get(column));
    (
        left == 0 && dead == 1 && completed == documents,
        format!("the queue counted {completed} completed and {dead} dead, and has {left} left to do"),
    )
}
