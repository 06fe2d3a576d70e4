//! A suspended job with a time goes on at that time or at the end of the jobs it waits for, whichever comes first.

use std::sync::atomic::AtomicI32;

use crate::jobs::after::{database, maintain};
use crate::shared::*;
use crate::storage::segments::cluster;

/// Claims a job of `own` and suspends it until these jobs of `q` have ended or the time has come. Returns the job.
fn suspended(client: &mut Client, after: &[i64], upon: &str, until: &str) -> i64 {
    static PRIORITY: AtomicI32 = AtomicI32::new(0);
    // The priority makes the claim take this job.
    let priority = PRIORITY.fetch_sub(1, Ordering::Relaxed);
    let job: i64 = client.value(&format!("SELECT queue.enqueue('own', priority => {priority})"));
    let (id, claimed): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('own')");
    assert_eq!(claimed, job);
    client.run(&format!("SELECT queue.suspend({id}, ARRAY{after:?}, '{upon}', '\"begun\"', {until})"));
    job
}

fn own(client: &mut Client) {
    create(client, "own", "lease => '1 hour', max_attempts => 1");
}

#[test]
fn a_suspended_job_goes_on_at_its_time_or_at_the_end_of_the_others_whichever_is_first() {
    let (_database, mut client) = database();
    own(&mut client);
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 2)");
    let timed = suspended(&mut client, &jobs, "ended", "clock_timestamp() + interval '30 ms'");
    let ended = suspended(&mut client, &jobs, "ended", "now() + interval '1 hour'");
    let first = suspended(&mut client, &jobs, "any", "now() + interval '1 hour'");
    let row = client.query_one("SELECT state, run_at IS NOT NULL FROM queue.job($1)", &[&ended]).unwrap();
    assert_eq!((row.get::<_, String>(0), row.get::<_, bool>(1)), ("held".into(), true));
    becomes(&mut client, timed, "ready");
    let row = client.query_one("SELECT id, attempt, progress::text FROM queue.claim('own')", &[]).unwrap();
    assert_eq!((row.get::<_, i32>(1), row.get::<_, String>(2)), (1, "\"begun\"".into()));
    let id: i64 = row.get(0);
    let inputs = |client: &mut Client| -> String {
        client.value(&format!("SELECT string_agg(state, ' ' ORDER BY job_id) FROM queue.inputs({id})"))
    };
    assert_eq!(inputs(&mut client), "ready ready", "the worker sees that it was the time");
    // The other jobs end first, so the job goes on before its time.
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    assert_eq!((client.state(first), client.state(ended)), ("ready".into(), "held".into()));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    becomes(&mut client, ended, "ready");
    assert_eq!(inputs(&mut client), "completed completed");
    let mut ran: Vec<i64> = client.column("SELECT job_id FROM queue.claim('own', 10)");
    ran.sort_unstable();
    assert_eq!(ran, [ended, first]);
    client.run(&format!("SELECT queue.complete({id})"));
    let states: Vec<String> = client.column(&format!("SELECT state FROM queue.job_attempts({timed}) ORDER BY id"));
    assert_eq!(states, ["suspended", "superseded", "completed"]);
    // Without a time the job waits only for the other jobs. If the condition can no longer be met, the job is skipped.
    let other = client.enqueue("q");
    let skipped = suspended(&mut client, &[other], "completed", "now() + interval '1 hour'");
    client.run(&format!("SELECT queue.cancel({other})"));
    becomes(&mut client, skipped, "skipped");
    client.check();
}

#[test]
fn a_dead_job_holds_a_suspended_job_up_only_until_its_time() {
    let (_database, mut client) = database();
    own(&mut client);
    let job = client.enqueue("q");
    for upon in ["completed", "any"] {
        suspended(&mut client, &[job], upon, "now() + interval '1 hour'");
        suspended(&mut client, &[job], upon, "NULL");
    }
    client.run("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q')");
    maintain(&mut client);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'held'"), 4);
    let held_by_dead = "SELECT sum(value)::float8 FROM queue.metrics() WHERE name = 'pg_queue_held_by_dead'";
    assert_eq!(client.value::<f64>(held_by_dead), 2.0, "the others go on by themselves");
}

#[test]
fn a_past_time_means_now_and_an_infinite_one_is_refused() {
    let (_database, mut client) = database();
    own(&mut client);
    let other = client.enqueue("q");
    let job = suspended(&mut client, &[other], "ended", "now() - interval '1 s'");
    assert_eq!(client.state(job), "ready");
    let id = client.claim("own");
    for until in ["'infinity'", "'-infinity'"] {
        client.refused(&format!("SELECT queue.suspend({id}, until => {until})"), "22023");
    }
    // An invalid call is an error in spite of the time.
    client.refused(&format!("SELECT queue.suspend({id}, '{{16000000015}}', until => now() - interval '1 s')"), "P0002");
    let answer = |client: &mut Client, arguments: &str| -> String {
        client.value(&format!(
            "SELECT concat_ws(': ', outcome, reason)
             FROM queue.end_batch('[{{\"suspend\": {{\"id\": {id}, {arguments}}}}}]')"
        ))
    };
    assert_eq!(answer(&mut client, "\"until\": \"soon\""), "refused: until is no time");
    assert_eq!(answer(&mut client, "\"until\": \"infinity\""), "refused: until must be finite");
    let answered = answer(&mut client, &format!("\"after\": [{other}], \"until\": \"2001-01-01 00:00:00+00\""));
    assert_eq!(answered, "suspended");
    assert_eq!(client.state(job), "ready");
    // If the condition is met already, the job does not wait.
    client.run(&format!("SELECT queue.cancel({other})"));
    let met = suspended(&mut client, &[other], "ended", "now() + interval '1 hour'");
    assert_eq!(client.state(met), "ready");
    client.check();
}

#[test]
fn a_suspended_job_keeps_its_time_over_changes_and_a_new_time_moves_it() {
    let (_database, mut client) = database();
    own(&mut client);
    let other = client.enqueue("q");
    let job = suspended(&mut client, &[other], "ended", "now() + interval '1 hour'");
    client.run(&format!("SELECT queue.reprioritize({job}, 5)"));
    client.run(&format!("SELECT queue.reschedule({job}, now() + interval '2 hours')"));
    maintain(&mut client);
    assert_eq!(client.state(job), "held");
    client.run(&format!("SELECT queue.reschedule({job}, clock_timestamp() + interval '30 ms')"));
    becomes(&mut client, job, "ready");
    assert_eq!(client.value::<i32>(&format!("SELECT priority FROM queue.job({job})")), 5);
    // A time in the past means now.
    let job = suspended(&mut client, &[other], "ended", "now() + interval '1 hour'");
    client.run(&format!("SELECT queue.reschedule({job}, now() - interval '1 s')"));
    becomes(&mut client, job, "ready");
    // After a change of the job, the end of the other jobs still counts.
    let job = suspended(&mut client, &[other], "ended", "now() + interval '1 hour'");
    client.run(&format!("SELECT queue.reprioritize({job}, 5); SELECT queue.cancel({other})"));
    becomes(&mut client, job, "ready");
    client.run("SELECT queue.purge('own')");
    // The job gets other contents under its key.
    let other = client.enqueue("q");
    let keyed: i64 = client.value("SELECT queue.enqueue('own', unique_key => 'k')");
    let id = client.claim("own");
    client.run(&format!("SELECT queue.suspend({id}, ARRAY[{other}], until => clock_timestamp() + interval '100 ms')"));
    client.run("SELECT queue.enqueue('own', '7', unique_key => 'k', on_duplicate => 'replace', delay => '1 hour')");
    becomes(&mut client, keyed, "ready");
    assert_eq!(client.value::<String>(&format!("SELECT payload::text FROM queue.job({keyed})")), "7");
    // A retry by hand and a cancel end the wait.
    client.run("SELECT queue.purge('own')");
    let [retried, cancelled] = [0; 2].map(|_| suspended(&mut client, &[other], "ended", "now() + interval '1 hour'"));
    client.run(&format!("SELECT queue.retry({retried}), queue.cancel({cancelled})"));
    assert_eq!((client.state(retried), client.state(cancelled)), ("ready".into(), "cancelled".into()));
    client.check();
}

#[test]
fn an_open_transaction_does_not_delay_a_suspended_job_beyond_its_time() {
    let (database, mut client) = Database::new().with_queue("q", "");
    own(&mut client);
    let other = client.enqueue("q");
    // The suspension commits after its time, when the worker's cursor has already passed that time.
    let late = client.enqueue("own");
    let id = client.claim("own");
    client.run(&format!(
        "BEGIN; SELECT queue.suspend({id}, ARRAY[{other}], until => clock_timestamp() + interval '20 ms')"
    ));
    let mut session = database.connect();
    let passing: i64 = session.value("SELECT queue.enqueue('q', delay => '60 ms')");
    wait::until_true("time passes", || session.state(passing) == "ready");
    client.run("COMMIT");
    wait::until_true("it goes on", || client.state(late) == "ready");
    client.run("SELECT queue.complete(id) FROM queue.claim('own', wait => '10 s')");
    // An open transaction that adds members does not delay the job either.
    let job: i64 = client.value("SELECT queue.enqueue('own')");
    let id = client.claim("own");
    client.run(&format!("SELECT queue.enqueue('q', flow => {job})"));
    session.run(&format!("BEGIN; SELECT queue.enqueue('q', flow => {job})"));
    client.run(&format!("SELECT queue.suspend({id}, until => clock_timestamp() + interval '50 ms')"));
    wait::until_true("it goes on", || client.state(job) == "ready");
    session.run("COMMIT");
    let id: i64 = client.value("SELECT id FROM queue.claim('own', wait => '10 s')");
    assert_eq!(client.count(&format!("SELECT FROM queue.inputs({id}) WHERE state = 'ready'")), 2);
    client.check();
}

#[test]
fn a_crash_a_move_to_another_segment_and_a_restore_keep_the_time() {
    let cluster = cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    own(&mut client);
    create(&mut client, "filler", "retention => '0', lease => '1 hour'");
    let other = client.enqueue("q");
    let moved = suspended(&mut client, &[other], "ended", "now() + interval '10 minutes'");
    let never = suspended(&mut client, &[other], "ended", "now() + interval '10 minutes'");
    let in_old = format!(
        "SELECT FROM queue_internal.attempt_8 WHERE job_id = {moved}
         UNION ALL SELECT FROM queue_internal.attempt_9 WHERE job_id = {moved}"
    );
    assert_eq!(client.count(&in_old), 0);
    wait::until_true("it is in an old segment", || {
        client.pass_through("filler", 500);
        client.count(&in_old) > 0
    });
    client.run(&format!("SELECT queue.reschedule({moved}, clock_timestamp() + interval '300 ms')"));
    let crashed = suspended(&mut client, &[other], "ended", "clock_timestamp() + interval '300 ms'");
    drop(client);
    cluster.restart_immediate();
    let mut client = cluster.connect();
    for job in [moved, crashed] {
        wait::until_true("it goes on", || client.state(job) == "ready");
    }
    assert_eq!(client.state(never), "held");
    client.check();
}

#[test]
fn a_restored_database_keeps_the_times_of_suspended_jobs() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start_with_database("app");
    create(&mut client, "q", "");
    own(&mut client);
    let other = client.enqueue("q");
    let timed = suspended(&mut client, &[other], "ended", "clock_timestamp() + interval '3 s'");
    let waits = suspended(&mut client, &[other], "ended", "now() + interval '1 hour'");
    let mut copy = restore_copy(&cluster, "app");
    wait::until_true("the restore is adopted", || copy.batch_execute("SELECT queue.adopt()").is_ok());
    wait::until_true("it goes on", || copy.state(timed) == "ready");
    assert_eq!(copy.state(waits), "held");
    copy.run(&format!("SELECT queue.cancel({other})"));
    wait::until_true("it goes on", || copy.state(waits) == "ready");
    copy.check();
}
