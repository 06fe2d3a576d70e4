//! At some point server processes get no more memory. Each call succeeds or fails with 53200, and no other session
//! ends.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use queue_tests::installation;

use crate::shared::*;

/// Large calls. `$big` is a jsonb string of 20 MB, `$text` a text of 20 MB, `$ids` an array of 300,000 ids.
const CALLS: &[&str] = &[
    "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[4000000]))",
    "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[1000000]), unique_key => 'k')",
    "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[800000]), group_key => 'g')",
    "SELECT count(*) FROM queue.enqueue_batch('q', ('[' || repeat('{},', 2000000) || '{}]')::jsonb)",
    "SELECT count(*) FROM queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('payload', $big)))",
    "SELECT count(*) FROM queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object($text, 1)))",
    "SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[20000]), after => ARRAY(SELECT \
        queue.enqueue('q') FROM generate_series(1, 100)))",
    "SELECT queue.enqueue('q', $big, headers => $big)",
    "SELECT queue.enqueue('q', unique_key => $text)",
    "SELECT queue.enqueue('q', group_key => $text)",
    "SELECT queue.enqueue($text)",
    "SELECT queue.enqueue('q', stage => $text)",
    "SELECT queue.enqueue('q', after => $ids)",
    "SELECT queue.enqueue('q', on_duplicate => $text, unique_key => 'k')",
    "DO 'BEGIN FOR i IN 1..30 LOOP PERFORM queue.enqueue_many(''q'', array_fill(''1''::jsonb, ARRAY[200000])); \
        END LOOP; END'",
    "SELECT count(queue.enqueue('q', unique_key => n::text)) FROM generate_series(1, 1000000) AS n",
    "SELECT queue.enqueue_flow('q', ('[' || repeat('{},', 1000000) || '{}]')::jsonb)",
    "SELECT queue.enqueue_flow('q', jsonb_build_array(jsonb_build_object('payload', $big)))",
    "SELECT queue.enqueue_sql('sql', 'SELECT ''' || $text || '''')",
    "SELECT queue.enqueue_sql('sql', 'SELECT 1', jsonb_build_array($big, $big))",
    "SELECT queue.publish('t', $big)",
    "SELECT queue.publish('t', '1', key => $text)",
    "SELECT count(*) FROM queue.publish_many('t', array_fill('1'::jsonb, ARRAY[1000000]))",
    "SELECT count(*) FROM queue.claim($text)",
    "SELECT count(*) FROM queue.claim('q', 2000000000)",
    "SELECT count(*) FROM queue.claim_any(array_fill('q'::text, ARRAY[300000]))",
    "SELECT count(*) FROM queue.claim('q', worker => $text)",
    "SELECT queue.complete(16, $big)",
    "SELECT count(*) FROM queue.complete_many($ids)",
    "SELECT queue.fail(16, $text)",
    "SELECT queue.progress(16, $big)",
    "SELECT queue.step_done(16, $text, $big)",
    "SELECT count(*) FROM queue.fail_many($ids, $text)",
    "SELECT count(*) FROM queue.end_batch((SELECT json_agg(json_build_object('complete', \
        json_build_object('id', 16))) FROM unnest($ids)))",
    "SELECT count(*) FROM queue.end_batch(('[' || repeat('{\"complete\":{\"id\":16}},', \
        700000) || '{\"complete\":{\"id\":16}}]')::json)",
    "SELECT count(*) FROM queue.end_batch(('[{\"fail\":{\"id\":16,\"error\":\"' || $text || '\"}}]')::json)",
    "SELECT count(*) FROM queue.end_batch(('[{\"complete\":{\"id\":16,\"result\":' || $big || '}}]')::json)",
    "SELECT count(*) FROM queue.end_batch(('[{\"suspend\":{\"id\":16,\"after\":[' || repeat('31,', \
        5000000) || '31]}}]')::json)",
    "SELECT count(*) FROM queue.end_batch(('[{\"complete\":' || repeat('[', 10000000) || repeat(']', \
        10000000) || '}]')::json)",
    "SELECT count(*) FROM queue.end_batch(repeat('[', 20000000)::json)",
    "SELECT count(*) FROM queue.cancel_many(array_fill(31::bigint, ARRAY[300000]), reason => $text)",
    "SELECT count(*) FROM queue.retry_many(array_fill(31::bigint, ARRAY[300000]))",
    "SELECT count(*) FROM queue.reprioritize_many(array_fill(31::bigint, ARRAY[300000]), 1)",
    "SELECT count(*) FROM queue.search('q', states => array_fill('ready'::text, ARRAY[300000]))",
    "SELECT queue.cancel(31, reason => $text)",
    "SELECT count(*) FROM queue.search('q', ('$.a == \"' || $text || '\"')::jsonpath)",
    "SELECT count(*) FROM queue.search('q', states => '{ready}', stage => $text)",
    "SELECT queue.create($text)",
    "SELECT queue.create('new', stages => array_fill('s'::text, ARRAY[2000000]))",
    "SELECT queue.create('new', settings => jsonb_build_object($text, $big))",
    "SELECT queue.create_topic($text)",
    "SELECT queue.bind('t', 'q', pattern => $text)",
    "SELECT queue.grant('q', $text, $text)",
    "SELECT queue.schedule('s', 'q', cron => $text)",
    "SELECT queue.drop($text)",
    "SELECT count(*) FROM queue.error_groups('q')",
    "SELECT count(*), sum(length(payload::text)) FROM queue.jobs",
    "SELECT queue.purge('q')",
];

/// Calls for a million elements each.
const MILLIONS: &[&str] = &[
    "SELECT count(*) FROM queue.enqueue_batch('q', (SELECT jsonb_agg(jsonb_build_object('payload', n, 'unique_key', \
        n::text, 'group_key', 'g' || n % 10)) FROM generate_series(1, 1000000) AS n))",
    "SELECT count(*) FROM queue.publish_many('t', array_fill('1'::jsonb, ARRAY[1000000]), keys => \
        array_fill('a.b'::text, ARRAY[1000000]))",
    "SELECT count(*) FROM queue.publish_many('several', array_fill('{\"a\": 1}'::jsonb, ARRAY[1000000]))",
];

/// Calls that take memory in many small pieces. They run with many limits, so that each piece is the first that does
/// not fit in one of the runs.
const SMALL_PIECES: &[&str] = &[
    "SELECT count(*) FROM queue.publish_many('several', array_fill('{\"a\": 1}'::jsonb, ARRAY[20000]))",
    "SELECT count(*) FROM queue.enqueue_batch('q', ('[' || repeat('{\"group_key\": \"g\"},', 20000) || '{}]')::jsonb)",
    "SELECT count(*) FROM queue.end_batch(('[' || repeat('{\"fail\":{\"id\":16,\"error\":\"x\"}},', 20000) || \
        '{\"complete\":{\"id\":16}}]')::json)",
];

/// Limits the address space of the postmaster, and with it that of all new sessions. The limit is the present size of a
/// session plus this number of bytes.
fn limit(cluster: &Cluster, client: &mut Client, more: u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.pid())).expect("a session of this machine");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its size");
    let kilobytes: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    let limit = format!("--as={}:", kilobytes * 1024 + more);
    let mut command = Command::new("prlimit");
    // The account that owns a process may lower its limits.
    if let Some((uid, gid)) = installation::account() {
        command.uid(uid).gid(gid);
    }
    installation::run(command.args(["--pid", &cluster.postmaster_pid().to_string(), &limit]));
}

#[test]
fn no_call_ends_the_server_however_little_memory_there_is() {
    let (cluster, mut admin) =
        Cluster::with(&["work_mem = '64MB'", "pg_queue.worker = off"]).start_with_database("app");
    admin.run(
        "SELECT queue.create('q'), queue.create('sql', executor => 'sql'), queue.create_topic('t'), \
            queue.bind('t', 'q'), queue.create('other'), queue.create_topic('several'), queue.bind('several', 'q'), \
            queue.bind('several', 'other')",
    );
    let mut refused = 0;
    // The limits go from the bare minimum for a session to enough for most calls.
    let small = (14..54).step_by(2).map(|megabytes| (megabytes, SMALL_PIECES));
    for (megabytes, calls) in [(60, CALLS), (250, CALLS), (900, CALLS), (2500, MILLIONS)].into_iter().chain(small) {
        limit(&cluster, &mut admin, megabytes << 20);
        for call in calls {
            let sql = call
                .replace("$text", "repeat('x', 20000000)")
                .replace("$big", "to_jsonb(repeat('x', 20000000))")
                .replace("$ids", "array_fill(16::bigint, ARRAY[300000])");
            let mut client = cluster.connect_to("app");
            client.run("SET statement_timeout = '60 s'; SET client_min_messages = error; BEGIN");
            let result = client.simple_query(&sql);
            if let Err(failure) = result {
                assert!(!failure.is_closed(), "{megabytes} MB: {call}: the connection was closed");
                let code = error::code(&failure);
                refused += usize::from(code == "53200");
                assert!(!["42883", "42601", "42703"].contains(&code), "{call}: {failure:?}");
            }
            // The session can still be used.
            client.run("ROLLBACK; SELECT 1");
        }
    }
    assert!(refused > 10, "only {refused} were refused: the test tries too little");
    // No process was ended, so the first session still exists.
    assert_eq!(admin.value::<i32>("SELECT 1"), 1);
    assert!(!cluster.log().contains("terminated by signal"));
}
