//! Which server a call goes to. Calls to another server fail as they do at home.

use queue_tests::sql::Sql;

use crate::peers::{Peers, node};

#[test]
fn without_a_key_work_stays_at_home_and_in_the_transaction() {
    let peers = Peers::new(3);
    let c = &mut peers.connect(1);
    c.run("BEGIN");
    let id: i64 = c.value("SELECT queue_cluster.enqueue('q', '7')");
    assert_eq!(node(id), 1);
    let ids: Vec<i64> = c.column(
        "SELECT queue_cluster.enqueue_many('q', '{1,2}') UNION ALL SELECT queue_cluster.enqueue_batch('q', '[{}, {}]')",
    );
    assert!(ids.len() == 4 && ids.iter().all(|&id| node(id) == 1), "{ids:?}");
    c.run("ROLLBACK");
    assert_eq!(c.count("SELECT FROM queue_cluster.jobs"), 0);

    c.run("SELECT queue_cluster.enqueue('q', '7')");
    c.run("BEGIN");
    let id: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
    c.run(&format!("SELECT queue_cluster.complete({id}); ROLLBACK"));
    assert_eq!(c.value::<String>("SELECT state FROM queue_cluster.jobs"), "ready");
}

#[test]
fn one_job_lives_under_a_key_whichever_server_is_asked() {
    let peers = Peers::new(3);
    for owner in 0..3 {
        let key = peers.key_of(owner);
        let enqueue = format!("SELECT queue_cluster.enqueue('q', '{{}}', unique_key => '{key}')");
        let ids: Vec<i64> = (0..3).map(|n| peers.connect(n).value(&enqueue)).collect();
        assert!(node(ids[0]) == owner && ids.iter().all(|&id| id == ids[0]), "{ids:?}");
        let batch = format!("SELECT queue_cluster.enqueue_batch('q', '[{{}}, {{\"unique_key\": \"{key}\"}}]')");
        let ids_of_batch: Vec<i64> = peers.connect(0).column(&batch);
        assert_eq!((node(ids_of_batch[0]), ids_of_batch[1]), (0, ids[0]));
        // A job with a group goes to the owner of the group, whatever its unique key is.
        let grouped = format!("SELECT queue_cluster.enqueue('q', '{{}}', group_key => '{key}', unique_key => 'other')");
        assert_eq!(node(peers.connect(0).value(&grouped)), owner);
        let found: Vec<i64> = peers
            .connect(0)
            .column(&format!("SELECT queue_cluster.enqueue_many('q', '{{1,2}}', group_key => '{key}')"));
        assert!(found.iter().all(|&id| node(id) == owner), "{found:?}");
    }
}

#[test]
fn a_claim_stores_the_results_of_jobs_of_all_servers() {
    let peers = Peers::new(3);
    let c = &mut peers.connect(0);
    let enqueue = |n| peers.connect(n).value::<i64>("SELECT queue_cluster.enqueue('q')");
    let jobs = [0, 1, 0, 2].map(enqueue);
    let ids: Vec<i64> = jobs.iter().map(|_| c.value("SELECT id FROM queue_cluster.claim('q')")).collect();
    let claim = |results: &str| {
        format!("SELECT FROM queue_cluster.claim('q', completed => ARRAY{ids:?}, results => '{results}')")
    };
    for results in ["[1, 2, 3]", "[1, 2, 3, 4, 5]", "{}", "7"] {
        c.refused(&claim(results), "22023");
    }
    assert_eq!(c.count(&claim("[\"a\", null, \"c\", \"d\"]")), 0);
    let results: Vec<String> = ids
        .iter()
        .map(|id| {
            let job = "(SELECT job_id FROM queue_cluster.attempts WHERE id = $)".replace('$', &id.to_string());
            c.value(&format!("SELECT concat_ws(' ', state, result) FROM queue_cluster.job({job})"))
        })
        .collect();
    assert_eq!(results, ["completed \"a\"", "completed", "completed \"c\"", "completed \"d\""]);
}

#[test]
fn only_jobs_of_the_named_stages_are_stolen() {
    let peers = Peers::new(2);
    let (home, thief) = (&mut peers.connect(0), &mut peers.connect(1));
    home.run("SELECT queue_cluster.create('staged', stages => '{x,y,z}')");
    for stage in ["x", "y", "z"] {
        home.run(&format!("SELECT queue_cluster.enqueue('staged', stage => '{stage}')"));
    }
    let claim = "SELECT stage FROM queue_cluster.claim_any('{q,staged,staged}', 9, stages => '{NULL,z,y}')";
    assert_eq!(thief.column::<String>(claim), ["y", "z"]);
    assert_eq!(thief.count(claim), 0);
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('staged', stage => 'x')"), 1);
}

#[test]
fn a_job_is_stolen_only_when_there_is_none_at_home() {
    let peers = Peers::new(3);
    let (home, thief) = (&mut peers.connect(0), &mut peers.connect(1));
    home.run("SELECT queue_cluster.enqueue('q')");
    thief.run("SELECT queue_cluster.enqueue('q')");
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('q', steal => false, max_jobs => 5)"), 1);
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('q', disconnect => '0')"), 0);
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('q', steal => false, wait => '20 ms')"), 0);
    // A claim that lingers collects a batch at home.
    let lingers = "SELECT FROM queue_cluster.claim('q', max_jobs => 2, wait => '8 s', linger => '5 s')";
    assert_eq!(thief.count(&lingers.replace("8 s", "50 ms")), 0);
    thief.run("SELECT queue_cluster.enqueue_many('q', '{1,2}')");
    assert_eq!(thief.count(lingers), 2);
    let (id, payload): (i64, String) = {
        let row = thief
            .query_one("SELECT id, payload::text FROM queue_cluster.claim('q', worker => 'thief')", &[])
            .expect("a stolen job");
        (row.get(0), row.get(1))
    };
    assert_eq!((node(id), &*payload), (0, "{}"));
    assert_eq!(home.value::<String>("SELECT worker FROM queue_cluster.workers WHERE worker IS NOT NULL"), "thief");
    assert!(thief.value::<bool>(&format!("SELECT lease_expires_at > now() FROM queue_cluster.extend({id})")));
    thief.run(&format!("SELECT queue_cluster.progress({id}, '1'), queue_cluster.step_done({id}, 'one')"));
    assert_eq!(thief.value::<String>(&format!("SELECT queue_cluster.step({id}, 'one')::text")), "null");
    thief.run(&format!("SELECT queue_cluster.complete({id}, '\"done\"')"));
    assert_eq!(home.value::<String>(&format!("SELECT result::text FROM queue_cluster.job({})", id | 15)), "\"done\"");
    // A waiting claim finds a job on another server when its nap ends.
    let waits = std::thread::spawn({
        let mut thief = peers.connect(2);
        move || thief.value::<i64>("SELECT id FROM queue_cluster.claim('q', wait => '8 s')")
    });
    queue_tests::wait::until("the claim sleeps", || {
        let asleep = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND query LIKE '%8 s%' \
            AND pid <> pg_backend_pid()";
        (peers.connect(2).count(asleep) == 1).then_some(())
    });
    home.run("SELECT queue_cluster.enqueue('q')");
    assert_eq!(node(waits.join().expect("the claim")), 0);
}

#[test]
fn a_stolen_job_keeps_its_lease_when_the_thief_s_connection_breaks() {
    let peers = Peers::new(3);
    let (home, mut thief) = (&mut peers.connect(0), peers.connect(1));
    let jobs: [i64; 2] = [(); 2].map(|()| home.value("SELECT queue_cluster.enqueue('q')"));
    let claim = "SELECT FROM queue_cluster.claim('q', disconnect => '1 s')";
    assert_eq!((thief.count(claim), peers.connect(0).count(claim)), (1, 1));
    let pid = thief.pid();
    assert!(peers.connect(1).value::<bool>(&format!("SELECT pg_terminate_backend({pid}, 10000)")));
    queue_tests::wait::until("its connection to the other server has ended", || {
        (home.count("SELECT FROM pg_stat_activity WHERE query LIKE '%queue%claim%' AND pid <> pg_backend_pid()") == 0)
            .then_some(())
    });
    for job in jobs {
        let left = format!("SELECT lease_expires_at > now() + '1 minute' FROM queue_cluster.job({job})");
        assert!(home.value::<bool>(&left));
    }
}

#[test]
fn each_attempt_of_a_batch_goes_to_its_server() {
    let peers = Peers::new(3);
    for n in 0..3 {
        peers.connect(n).run("SELECT queue_cluster.enqueue_many('q', '{1,2,3}')");
    }
    let c = &mut peers.connect(0);
    let mut ids: Vec<i64> = Vec::new();
    while ids.len() < 9 {
        let more: Vec<i64> = c.column("SELECT id FROM queue_cluster.claim('q', 10)");
        assert!(!more.is_empty(), "{ids:?}");
        ids.extend(more);
    }
    let list = |ids: &[i64]| format!("ARRAY{ids:?}::bigint[]");
    let extended = format!("SELECT id FROM queue_cluster.extend_many({}) WHERE outcome = 'extended'", list(&ids));
    let mut extended: Vec<i64> = c.column(&extended);
    extended.sort_unstable();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(extended, sorted);
    // Counts the answers.
    let answers = |c: &mut postgres::Client, call: &str| -> Vec<String> {
        c.column(&format!("SELECT outcome || ' ' || count(*) FROM queue_cluster.{call} GROUP BY outcome ORDER BY 1"))
    };
    assert_eq!(answers(c, &format!("release_many({})", list(&ids[..3]))), ["released 3"]);
    assert_eq!(answers(c, &format!("fail_many({}, 'no', fatal => true)", list(&ids[3..6]))), ["dead 3"]);
    assert_eq!(answers(c, &format!("complete_many({})", list(&ids))), ["completed 3", "lost 6"]);
    let states: Vec<String> =
        c.column("SELECT state || ' ' || count(*) FROM queue_cluster.jobs GROUP BY state ORDER BY 1");
    assert_eq!(states, ["completed 3", "dead 3", "ready 3"]);
    // A claim completes earlier attempts on any server.
    let first: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
    let second: Vec<i64> = c.column(&format!("SELECT id FROM queue_cluster.claim('q', completed => '{{{first}}}')"));
    let third: Vec<i64> =
        c.column(&format!("SELECT id FROM queue_cluster.claim('q', completed => '{{{}}}')", second[0]));
    let none = format!("SELECT id FROM queue_cluster.claim('q', wait => '30 ms', completed => '{{{}}}')", third[0]);
    assert_eq!(c.count(&none), 0);
    assert_eq!(c.count("SELECT FROM queue_cluster.jobs WHERE state = 'completed'"), 6);
    // A claim reports the attempts that it cannot complete, on any server.
    let sql = format!(
        "SELECT id, job_id IS NULL, headers->>'outcome', headers->>'reason' LIKE 'lost lease%' \
            FROM queue_cluster.claim('q', completed => {})",
        list(&ids)
    );
    let rows = c.query(&sql, &[]).unwrap();
    let mut found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    found.sort_unstable();
    assert_eq!(found, sorted);
    assert!(rows.iter().all(|row| row.get(1) && row.get::<_, &str>(2) == "lost" && row.get(3)), "{rows:?}");
}

#[test]
fn end_batch_ends_each_attempt_on_its_server() {
    let peers = Peers::new(3);
    for n in 0..3 {
        peers.connect(n).run("SELECT queue_cluster.enqueue_many('q', '{1,2,3,4}')");
    }
    let c = &mut peers.connect(0);
    let mut ids: Vec<i64> = Vec::new();
    while ids.len() < 12 {
        let more: Vec<i64> = c.column("SELECT id FROM queue_cluster.claim('q', 10)");
        assert!(!more.is_empty(), "{ids:?}");
        ids.extend(more);
    }
    ids.sort_unstable();
    let kinds = [
        r#"{"complete": {"id": $, "result": 7}}"#,
        r#"{"fail": {"id": $, "error": "no", "fatal": true}}"#,
        r#"{"release": {"id": $, "delay": "1 hour"}}"#,
        r#"{"complete": {"id": $, "result": 1e400000}}"#,
    ];
    let beats: Vec<String> = ids.iter().map(|id| format!(r#"{{"extend": {{"id": {id}}}}}"#)).collect();
    let extended = format!("SELECT FROM queue_cluster.end_batch('[{}]') WHERE outcome = 'extended'", beats.join(", "));
    assert_eq!(c.count(&extended), ids.len());
    let ends: Vec<String> = ids.iter().enumerate().map(|(n, id)| kinds[n % 4].replace('$', &id.to_string())).collect();
    let call =
        format!("SELECT id, outcome, reason IS NULL FROM queue_cluster.end_batch('[{}]') ORDER BY id", ends.join(", "));
    let rows = c.query(&call, &[]).unwrap();
    let found: Vec<(i64, &str, bool)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let outcomes = ["completed", "dead", "released", "refused"];
    let expected: Vec<(i64, &str, bool)> =
        ids.iter().enumerate().map(|(n, id)| (*id, outcomes[n % 4], n % 4 != 3)).collect();
    assert_eq!(found, expected);
    assert_eq!(c.count("SELECT FROM queue_cluster.end_batch('[]')"), 0);
    // An invalid element is found at home before any server is called.
    let running = ids[3];
    for element in ["1", "{}", r#"{"complete": {}}"#, r#"{"complete": {"id": "x"}}"#, r#"{"complete": {"id": 7}}"#] {
        let call = format!(r#"SELECT queue_cluster.end_batch('[{{"release": {{"id": {running}}}}}, {element}]')"#);
        assert_eq!(c.failure(&call).code, "22023", "{element}");
    }
    for ends in ["null", "{}", "7"] {
        c.refused(&format!("SELECT queue_cluster.end_batch('{ends}')"), "22023");
    }
    let left: Vec<String> = c.column(&format!(
        "SELECT outcome FROM queue_cluster.complete_many(ARRAY[{}, {}, {}])",
        ids[3], ids[7], ids[11]
    ));
    assert_eq!(left, ["completed"; 3]);
}

/// This is why the argument of `queue_cluster.end_batch`, as that of `queue.end_batch`, is json and not jsonb.
#[test]
fn a_text_that_jsonb_cannot_hold_keeps_no_other_attempt_from_ending() {
    let peers = Peers::new(2);
    for text in [r"\u0000", r"\ud800"] {
        let mut ends = Vec::new();
        for n in 0..2 {
            let c = &mut peers.connect(n);
            c.run("SELECT queue_cluster.enqueue_many('q', '{1,2}')");
            let ids: Vec<i64> = c.column("SELECT id FROM queue_cluster.claim('q', 2, steal => false)");
            ends.push(format!(r#"{{"complete": {{"id": {}, "result": "{text}"}}}}"#, ids[0]));
            ends.push(format!(r#"{{"complete": {{"id": {}}}}}"#, ids[1]));
        }
        let c = &mut peers.connect(0);
        let call = format!("SELECT outcome FROM queue_cluster.end_batch('[{}]') ORDER BY id", ends.join(", "));
        assert_eq!(c.column::<String>(&call), ["refused", "completed", "refused", "completed"], "{text}");
    }
}

#[test]
fn jobs_of_all_servers_are_changed_by_one_call() {
    let peers = Peers::new(3);
    let mut jobs: Vec<i64> = Vec::new();
    for n in 0..3 {
        jobs.extend(peers.connect(n).column::<i64>("SELECT queue_cluster.enqueue_many('q', '{1,2}')"));
    }
    let c = &mut peers.connect(0);
    for (call, outcome, condition) in [
        ("reprioritize_many($, 4)", "reprioritized", "priority = 4"),
        ("reschedule_many($, '2100-01-01')", "rescheduled", "state = 'scheduled'"),
        ("retry_many($)", "retried", "state = 'ready'"),
        ("cancel_many($, 'enough')", "cancelled", "state = 'cancelled' AND error = 'enough'"),
        ("retry_many($, '2100-01-01')", "retried", "state = 'scheduled'"),
    ] {
        let call = call.replace('$', &format!("ARRAY{jobs:?}::bigint[] || NULL::bigint"));
        let rows = c.query(&format!("SELECT id, outcome, reason FROM queue_cluster.{call} ORDER BY id"), &[]).unwrap();
        let mut found: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        found.sort_unstable();
        jobs.sort_unstable();
        assert_eq!(found, jobs, "{call}");
        assert!(
            rows.iter().all(|row| row.get::<_, &str>(1) == outcome && row.get::<_, Option<&str>>(2).is_none()),
            "{rows:?}"
        );
        assert_eq!(c.count(&format!("SELECT FROM queue_cluster.jobs WHERE {condition}")), 6, "{call}");
    }
    // Ids of missing jobs, one on each server.
    let missing: Vec<i64> = (0..3).map(|n| (n << 46) | 16_000_015).collect();
    for call in ["cancel_many($)", "retry_many($)", "reprioritize_many($, 1)", "reschedule_many($, now())"] {
        let call = call.replace('$', &format!("ARRAY{missing:?}"));
        let found: Vec<String> =
            c.column(&format!("SELECT outcome FROM queue_cluster.{call} WHERE reason LIKE '%job%'"));
        assert_eq!(found, ["missing"; 3], "{call}");
    }
}

/// Each call fails with the same SQLSTATE for a job of this server and for a job of another.
#[test]
fn calls_fail_elsewhere_as_they_do_at_home() {
    let peers = Peers::new(2);
    let mut ids = Vec::new();
    for n in 0..2 {
        let c = &mut peers.connect(n);
        c.run("SELECT queue_cluster.enqueue_many('q', '{1,2}')");
        let ended: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
        c.run(&format!("SELECT queue_cluster.complete({ended})"));
        let running: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
        ids.push((ended, ended | 15, running, running | 15));
    }
    let c = &mut peers.connect(0);
    let mut codes = Vec::new();
    for (ended, ended_job, running, running_job) in ids {
        let calls = [
            format!("complete({ended})"),
            format!("fail({ended}, 'no')"),
            format!("fail({running}, NULL)"),
            format!("release({ended})"),
            format!("extend({ended})"),
            format!("extend({running}, '-1 s')"),
            format!("progress({ended}, '1')"),
            format!("progress({running}, NULL)"),
            format!("advance({running})"),
            format!("suspend({running}, upon => 'never')"),
            format!("inputs({running_job})"),
            format!("step({running}, '')"),
            format!("step_done({ended}, 'x')"),
            format!("complete({running_job})"),
            format!("complete_many('{{{running_job}}}')"),
            format!("end_batch('[{{\"complete\": {{\"id\": {running_job}}}}}]')"),
            format!("end_batch('[{{\"complete\": {{\"id\": {running}, \"error\": 1}}}}]')"),
            format!("cancel_many('{{{running}}}')"),
            format!("retry_many('{{{running}}}')"),
            format!("reprioritize_many('{{{running}}}', 1)"),
            format!("reschedule_many('{{{running}}}', now())"),
            format!("cancel({ended_job})"),
            format!("cancel({ended})"),
            format!("cancel({})", ended_job + 1600),
            format!("retry({running_job})"),
            format!("reprioritize({ended_job}, 1)"),
            format!("reschedule({ended_job}, now())"),
            format!("forget({running_job})"),
            format!("job({ended})"),
            format!("job_attempts({ended})"),
            format!("members({ended})"),
            format!("job_steps({ended})"),
            format!("seal({ended_job})"),
            format!("resolve({ended_job})"),
            format!("reject({ended_job}, 'no')"),
        ];
        codes.push(calls.map(|call| {
            let failure = c.failure(&format!("SELECT * FROM queue_cluster.{call}"));
            // The SQLSTATE of each call at home.
            let (verb, _) = call.split_once('(').expect("a call");
            (verb.to_owned(), failure.code)
        }));
    }
    assert_eq!(codes[0], codes[1]);
    let distinct: std::collections::BTreeSet<&String> = codes[0].iter().map(|(_, code)| code).collect();
    let expected = ["22004", "22023", "55000", "P0002", "QJ001"];
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), expected);
    // The error keeps its detail and hint.
    let failure = c.failure(&format!("SELECT queue_cluster.complete({})", (2_i64 << 46) | 16_000_000));
    assert!(failure.detail.contains("There is no such attempt") && !failure.hint.is_empty(), "{failure:?}");
    // An id of no server is refused at home.
    for call in ["complete(0)", "complete(NULL)", "job(-1)", "complete_many('{0}')", "cancel(9007199254740991)"] {
        let code = c.failure(&format!("SELECT * FROM queue_cluster.{call}")).code;
        assert!(["22023", "22004", "P0002"].contains(&&*code), "{call}: {code}");
    }
    c.refused("SELECT queue_cluster.enqueue('gone', unique_key => 'k1')", "42704");
    for n in 0..2 {
        let key = peers.key_of(n);
        c.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
        let again = format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}', on_duplicate => 'error')");
        c.refused(&again, "23505");
    }
}

#[test]
fn calls_that_would_span_two_servers_are_refused() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let (own, other) = (
        c.value::<i64>("SELECT queue_cluster.enqueue('q')"),
        peers.connect(1).value::<i64>("SELECT queue_cluster.enqueue('q')"),
    );
    let after = format!("SELECT queue_cluster.enqueue('q', after => '{{{own},{other}}}')");
    c.refused(&after, "0A000");
    let id: i64 = c.value(&format!("SELECT queue_cluster.enqueue('q', after => '{{{other}}}')"));
    assert_eq!(node(id), 1);
    let key = peers.key_of(0);
    c.refused(&format!("SELECT queue_cluster.enqueue('q', after => '{{{other}}}', group_key => '{key}')"), "0A000");
    let remembered = "SELECT queue_cluster.enqueue('q', group_key => 'g', unique_key => 'u', unique_for => '1 hour')";
    c.refused(remembered, "0A000");
    let remembered = r#"SELECT queue_cluster.enqueue_batch('q',
        '[{"group_key": "g", "unique_key": "u", "version": "2026-01-01"}]')"#;
    c.refused(remembered, "0A000");
}
