//! Errors that say nothing about the work that they interrupt: a cancel request, an unavailable lock, no memory, no
//! disk. A subtransaction passes them on as Postgres raised them.

use crate::shared::*;

#[test]
fn a_verb_for_many_jobs_passes_errors_of_the_server_on_unchanged() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    let cancel = format!("SELECT outcome FROM queue.cancel_many(ARRAY[{job}])");
    let pid = client.pid();
    let arm = |action: &str| cluster.fault_of(pid, "waiting.taken", action);
    for code in ["57014", "55P03", "53200", "53100"] {
        let fault = arm(&format!("error {code}"));
        let failure = client.failure(&cancel);
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            (code, "fault point \"waiting.taken\" was reached")
        );
        assert_eq!((failure.detail.as_str(), failure.hint.as_str()), ("A test has armed it.", "Release it."));
        assert!(fault.release());
        assert_nothing_was_done(&mut client, job);
    }
    // Errors that Postgres raises itself.
    let mut other = cluster.connect_to("app");
    other.run("BEGIN; LOCK TABLE queue_internal.claim_0 IN EXCLUSIVE MODE");
    for (setting, code, text) in [
        ("lock_timeout", "55P03", "canceling statement due to lock timeout"),
        ("statement_timeout", "57014", "canceling statement due to statement timeout"),
    ] {
        client.run(&format!("SET {setting} = '50 ms'"));
        let failure = client.failure(&cancel);
        assert_eq!((failure.code.as_str(), failure.message.as_str()), (code, text));
        client.run(&format!("RESET {setting}"));
        assert_nothing_was_done(&mut client, job);
    }
    other.run("ROLLBACK");
    let held = arm("wait");
    let (failure, mut client) = cancel_held(&cluster, client, &cancel, held);
    assert_eq!(failure, ("57014".to_owned(), "canceling statement due to user request".to_owned()));
    assert_nothing_was_done(&mut client, job);
    // Any other error may be about a single job, so each job is tried alone.
    let fault = cluster.fault_of(pid, "waiting.taken", "error 22012");
    assert_eq!(client.value::<String>(&cancel), "cancelled");
    assert!(fault.release());
}

/// Asserts that the job waits as before, and that its rows and memory agree.
fn assert_nothing_was_done(client: &mut postgres::Client, job: i64) {
    assert_eq!(client.state(job), "ready");
    client.check();
}

#[test]
fn a_check_that_is_cancelled_says_so() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let check = "SELECT * FROM queue.check()";
    let held = cluster.fault_of(client.pid(), "walk.claims_read", "wait");
    let (failure, mut client) = cancel_held(&cluster, client, check, held);
    assert_eq!(failure, ("57014".to_owned(), "canceling statement due to user request".to_owned()));
    assert_eq!(client.count(check), 0);
}

/// Runs a statement until it reaches a fault point, and cancels it there. Returns the SQLSTATE, the message and the
/// session.
fn cancel_held(
    cluster: &Cluster,
    mut client: postgres::Client,
    sql: &str,
    held: Fault,
) -> ((String, String), postgres::Client) {
    let sql = sql.to_owned();
    let running = thread::spawn(move || (client.failure(&sql), client));
    let pid = held.wait_reached();
    cluster.connect().run(&format!("SELECT pg_cancel_backend({pid})"));
    drop(held);
    let (failure, client) = running.join().expect("the session's thread");
    ((failure.code, failure.message), client)
}
