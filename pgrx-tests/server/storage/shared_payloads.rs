//! Payloads that several attempts or jobs share, over moves and copies.

use crate::shared::*;
use crate::storage::segments_races::{claim_one, drive, fill, in_state, is, large, open_segment, still, turn};

/// Claims a job, which must have this payload, and fails it.
fn fail_with(client: &mut Client, payload: &str) {
    let sql = format!("SELECT id, coalesce(payload = {payload}, false) FROM queue.claim('q')");
    let row = client.query_one(&sql, &[]).unwrap();
    assert!(row.get::<_, bool>(1), "the worker did not get the payload");
    client.run(&format!("SELECT queue.fail({}, 'again')", row.get::<_, i64>(0)));
}

#[test]
fn a_shared_payload_survives_the_end_of_its_segment_even_for_an_ended_job() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    for pieces in [70, 300, 30_000] {
        let job = client.value::<i64>(&format!("SELECT queue.enqueue('q', {})", large(pieces)));
        let payload = large(pieces);
        let (id, _) = claim_one(&mut client).unwrap();
        let first = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the segment is closed", &in_state(first, "'c'"));
        client.run(&format!("SELECT queue.fail({id}, 'once')"));
        let (second, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.complete({second})"));
        let is_whole = format!("(SELECT payload = {payload} FROM queue.job({job}))");
        drive(&mut client, "the first attempt's segment is empty", &in_state(first, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: the view");
        // The second attempt's segment goes to history with the payload.
        let segment = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the second attempt's segment is empty", &in_state(segment, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: history");
        client.run(&format!("SELECT queue.retry({job})"));
        let row = client.query_one(&format!("SELECT id, payload = {payload} FROM queue.claim('q')"), &[]).unwrap();
        assert!(row.get::<_, Option<bool>>(1).unwrap_or(false), "{pieces}: the retried job has lost its payload");
        client.run(&format!("SELECT queue.complete({})", row.get::<_, i64>(0)));
        assert_eq!(client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}")), 1);
    }
}

#[test]
fn a_payload_that_moved_with_its_attempt_is_used_by_later_attempts() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let payload = large(300);
    let job = client.value::<i64>(&format!("SELECT queue.enqueue('q', {payload})"));
    let is_whole = format!("(SELECT payload = {payload} FROM queue.job({job}))");
    fail_with(&mut client, &payload);
    client.run(&format!("SELECT queue.reprioritize({job}, 3)"));
    fill(&mut client);
    drive(&mut client, "the segment is drained", &in_state(0, "'d'"));
    // The second attempt has moved with its payload, but its old row still exists.
    assert!(is(&mut client, &is_whole));
    fail_with(&mut client, &payload);
    assert!(is(&mut client, &is_whole));
    fail_with(&mut client, &payload);
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    fail_with(&mut client, &payload);
    turn(&mut client, 2);
    fail_with(&mut client, &payload);
    assert!(is(&mut client, &is_whole));
}

#[test]
fn a_payload_shared_by_several_jobs_stays_as_long_as_one_needs_it() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('ends', retention => '0'), queue.create('kept'), queue.create('late')");
    client.run("SELECT queue.create_topic('t')");
    client.run(
        "SELECT queue.bind('t', queue_name, delay => CASE queue_name WHEN 'late' THEN interval '1 hour' END)
         FROM unnest('{q,ends,kept,late}'::text[]) AS queue_name",
    );
    let payload = large(10_000);
    let jobs = format!("SELECT job_id FROM queue.publish('t', {payload}) ORDER BY queue_name");
    let &[ends, kept, late, fails] = &client.column::<i64>(&jobs)[..] else { panic!("four jobs") };
    let written: i64 =
        client.value("SELECT count(*) FROM queue_internal.attempt_0 WHERE payload IS NOT NULL AND job_id > 0");
    assert_eq!(written, 1, "the payload is written once");
    client.check();
    let is_whole = |client: &mut Client, job: i64| {
        let sql = format!("(SELECT coalesce(payload = {payload}, false) FROM queue.job({job}))");
        is(client, &sql)
    };
    fail_with(&mut client, &payload);
    for queue in ["ends", "kept"] {
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    }
    assert!([kept, late, fails].iter().all(|&job| is_whole(&mut client, job)));
    fill(&mut client);
    drive(&mut client, "the segment is drained", &in_state(0, "'d'"));
    fail_with(&mut client, &payload);
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    for _ in 0..3 {
        turn(&mut client, 1);
        fail_with(&mut client, &payload);
        assert!([kept, late, fails].iter().all(|&job| is_whole(&mut client, job)));
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE job_id = {ends}")), 0);
    // The payload of one copy is forgotten, those of the others stay.
    client.run(&format!("SELECT queue.forget({kept})"));
    assert!(!is_whole(&mut client, kept));
    assert!([late, fails].iter().all(|&job| is_whole(&mut client, job)));
    client.check();
}

#[test]
fn a_forgotten_shared_payload_is_removed_with_its_last_job() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run(
        "SELECT queue.create('a'), queue.create('b'), queue.create_topic('t'), queue.bind('t', 'a'), \
        queue.bind('t', 'b')",
    );
    let payload = large(10_000);
    let jobs = client.column::<i64>(&format!("SELECT job_id FROM queue.publish('t', {payload}) ORDER BY queue_name"));
    for queue in ["a", "b"] {
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    }
    let is_there = format!("SELECT FROM queue_internal.attempt_0 WHERE payload = {payload}");
    client.run(&format!("SELECT queue.forget({})", jobs[0]));
    assert_eq!(client.count(&is_there), 1);
    assert!(is(&mut client, &format!("(SELECT payload = {payload} FROM queue.job({}))", jobs[1])));
    client.run(&format!("SELECT queue.forget({})", jobs[1]));
    assert_eq!(client.count(&is_there), 0);
}
