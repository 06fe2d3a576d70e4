//! Jobs with predecessors survive failures: many deaths, processes that end in the middle, a dump and its restore.

use crate::shared::*;
use crate::storage::segments;

fn after(client: &mut Client, jobs: &[i64], upon: &str) -> i64 {
    client.query_one("SELECT queue.enqueue('q', after => $1, upon => $2)", &[&jobs, &upon]).unwrap().get(0)
}

fn wait_for(client: &mut Client, job: i64, state: &str) {
    wait::until_true(state, || client.state(job) == state);
}

#[test]
fn after_an_outage_the_retry_of_dead_jobs_lets_all_chains_go_on() {
    const CHAINS: i64 = 4_000;
    let (_database, mut client) =
        Database::new().with_queue("q", "max_attempts => 1, lease => '1 hour', backoff_base => '0'");
    client.run(&format!(
        "WITH a AS MATERIALIZED (SELECT queue.enqueue('q') AS a FROM generate_series(1, {CHAINS})),
              b AS MATERIALIZED (SELECT queue.enqueue('q', after => ARRAY[a]) AS b FROM a)
         SELECT count(queue.enqueue('q', after => ARRAY[b])) FROM b"
    ));
    let counts = "SELECT format('%s %s %s', dead, held, completed) FROM queue.stats WHERE queue_name = 'q'";
    client.run(&format!(
        "SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('q', {CHAINS})), 'down')"
    ));
    let before = client.enqueue("q");
    let cleanup = after(&mut client, &[before], "ended");
    client.run(&format!("SELECT queue.cancel({before})"));
    wait_for(&mut client, cleanup, "ready");
    assert_eq!(client.value::<String>(counts), format!("{CHAINS} {} 0", 2 * CHAINS));
    assert_eq!(client.value::<i64>(&retry_dead("q")), CHAINS);
    let work = "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 1000)))";
    wait::until_true("all chains are complete", || {
        client.run(work);
        client.value::<String>(counts) == format!("0 0 {}", 3 * CHAINS + 1)
    });
    client.check();
}

#[test]
fn a_dump_takes_held_jobs_along() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "max_attempts => 1, lease => '1 hour', backoff_base => '0'");
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 4)");
    let waiting = after(&mut client, &jobs[1..2], "completed");
    let by_dead = after(&mut client, &jobs[2..3], "completed");
    let cleanup = after(&mut client, &jobs, "ended");
    let first = after(&mut client, &jobs[2..], "any");
    let overdue: i64 = client
        .value(&format!("SELECT queue.enqueue('q', after => '{{{}}}', upon => 'overdue', delay => '1 hour')", jobs[3]));
    wait::until_true("what was handed over is served", || {
        client.count("SELECT FROM queue.maintain() WHERE duty = 'release' AND did > 0") == 0
    });
    // No process has served this successor when the dump is taken.
    let served_there = after(&mut client, &jobs[..1], "completed");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2) AS c ORDER BY job_id");
    client.run(&format!("SELECT queue.release({}), queue.fail({}, 'no')", ids[0], ids[1]));
    let mut copy = restore_copy(&cluster, "app");
    copy.run("ALTER DATABASE copy RESET pg_queue.worker");
    wait::until_true("the restore is adopted", || copy.batch_execute("SELECT queue.adopt()").is_ok());
    wait_for(&mut copy, served_there, "ready");
    for job in [waiting, by_dead, cleanup, first, overdue] {
        assert_eq!(copy.state(job), "held");
    }
    assert_eq!(copy.value::<String>(&format!("SELECT upon FROM queue.job({first})")), "any");
    copy.run(&format!("SELECT queue.retry({})", jobs[2]));
    // The jobs in the order of their ids: two predecessors, the retried job, and the released jobs.
    wait::until_true("all but one that is cancelled have run", || {
        copy.run("SELECT count(queue.complete(id)) FROM queue.claim('q') WHERE true");
        copy.state(cleanup) == "completed"
    });
    wait::until_true("the chain behind them has run", || {
        copy.run("SELECT count(queue.complete(id)) FROM queue.claim('q')");
        [waiting, by_dead, first, served_there].into_iter().all(|job| copy.state(job) == "completed")
    });
    wait_for(&mut copy, overdue, "skipped");
    copy.check();
}

#[test]
fn a_look_at_all_held_jobs_finds_each_kind_of_predecessor() {
    let cluster = segments::cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    create(&mut client, "p", "lease => '1 hour', backoff_base => '0', max_attempts => 2");
    create(&mut client, "filler", "retention => '0', lease => '1 hour'");
    // For each case: what is done with a job, the resulting state of its successor, and the call that ends the job if
    // it lives. `@` is the job, `#` its attempt.
    let kinds = [
        ("", "held", "SELECT queue.cancel(@)"),
        ("SELECT queue.reprioritize(@, 5)", "held", "SELECT queue.cancel(@)"),
        ("claim", "held", "SELECT queue.complete(#)"),
        ("claim; SELECT queue.release(#)", "held", "SELECT queue.cancel(@)"),
        ("claim; SELECT queue.fail(#, 'no', retry_in => '1 hour')", "held", "SELECT queue.cancel(@)"),
        ("claim; SELECT queue.fail(#, 'no', fatal => true)", "held", ""),
        (
            "claim; SELECT queue.fail(#, 'no', fatal => true); SELECT queue.retry(@, now() + interval '1 hour')",
            "held",
            "SELECT queue.cancel(@)",
        ),
        ("claim; SELECT queue.complete(#)", "ready", ""),
        (
            "claim; SELECT queue.complete(#); SELECT queue.retry(@, now() + interval '1 hour')",
            "held",
            "SELECT queue.cancel(@)",
        ),
        ("SELECT queue.cancel(@)", "skipped", ""),
    ];
    let make = |client: &mut Client| -> Vec<(i64, i64)> {
        let act = |(n, (does, ..)): (usize, &(&str, &str, &str))| {
            // The newest job has the smallest priority, so the claim takes it.
            let (job, mut id): (i64, i64) = (client.value(&format!("SELECT queue.enqueue('p', priority => -{n})")), 0);
            for sql in does.split("; ").filter(|sql| !sql.is_empty()) {
                match sql {
                    "claim" => id = client.claim("p"),
                    _ => client.run(&sql.replace('@', &job.to_string()).replace('#', &id.to_string())),
                }
            }
            (job, id)
        };
        kinds.iter().enumerate().map(act).collect()
    };
    for has_moved in [false, true] {
        let jobs = make(&mut client);
        // The worker is off, so no process has looked when the session that enqueues the successors ends.
        client.switch_worker_off();
        let held: Vec<i64> = jobs.iter().map(|(job, _)| after(&mut client, &[*job], "completed")).collect();
        client.run("ALTER DATABASE postgres RESET pg_queue.worker");
        if has_moved {
            wait::until_true("they are in an old segment", || {
                client.pass_through("filler", 500);
                let moved = format!(
                    "SELECT FROM queue_internal.attempt_8 WHERE job_id = {0} UNION ALL SELECT
                     FROM queue_internal.attempt_9 \
                        WHERE job_id = {0}",
                    jobs[0].0
                );
                client.count(&moved) > 0
            });
        }
        drop(client);
        cluster.restart();
        client = cluster.connect();
        for (&job, (does, state, _)) in held.iter().zip(&kinds) {
            wait::until_true(&format!("after {does:?} it is {state}"), || client.state(job) == *state);
        }
        for ((job, id), (_, _, end)) in jobs.iter().zip(&kinds) {
            client.run(&end.replace('@', &job.to_string()).replace('#', &id.to_string()));
        }
        for (&job, (does, state, end)) in held.iter().zip(&kinds) {
            let becomes = match *end {
                "" => state,
                "SELECT queue.complete(#)" => "ready",
                _ => "skipped",
            };
            wait::until_true(&format!("after {does:?} and {end} it is {becomes}"), || client.state(job) == *becomes);
        }
        client.check();
        client.run("SELECT queue.purge('q')");
    }
}
