//! Jobs and flows that wait for the first of several jobs to complete.

use crate::jobs::after::{after, database, end, maintain};
use crate::shared::*;
use crate::storage::segments::{cluster, fillings};

/// Makes a flow with members in `q`. It goes on to queue `witness` when its first member completes.
fn flow_of(client: &mut Client, count: usize) -> (i64, Vec<i64>) {
    client.run("BEGIN");
    let flow = client.value("SELECT queue.enqueue_flow('witness', runs => true, upon => 'any')");
    let members = client
        .column(&format!("SELECT queue.enqueue_many('q', array_fill('{{}}'::jsonb, ARRAY[{count}]), flow => {flow})"));
    client.run("COMMIT");
    (flow, members)
}

/// Claims jobs of `q`. Returns their attempts in the order of the jobs.
fn claim_all(client: &mut Client) -> Vec<i64> {
    client.column("SELECT id FROM queue.claim('q', 1000) ORDER BY job_id")
}

#[test]
fn the_commit_of_the_first_completion_releases_the_successor_and_the_others_run_on() {
    let (_database, mut client) = database();
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 3)");
    let held = after(&mut client, &jobs, "any");
    assert_eq!(client.value::<String>(&format!("SELECT upon FROM queue.job({held})")), "any");
    let ids = claim_all(&mut client);
    client.run(&format!("BEGIN; SELECT queue.complete({}); ROLLBACK", ids[1]));
    maintain(&mut client);
    assert_eq!(client.state(held), "held", "its end was rolled back");
    // The commit itself releases the job, without a duty.
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    assert_eq!(client.state(held), "ready");
    assert_eq!((client.state(jobs[0]), client.state(jobs[2])), ("running".into(), "running".into()));
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    let inputs: String =
        client.value(&format!("SELECT string_agg(state, ' ' ORDER BY job_id) FROM queue.inputs({id})"));
    assert_eq!(inputs, "running completed running");
    // Later ends of the other members change nothing.
    client.run(&format!("SELECT queue.complete({}), queue.fail({}, 'no')", ids[0], ids[2]));
    maintain(&mut client);
    assert_eq!(client.state(held), "running");
    client.run(&format!("SELECT queue.complete({id})"));
    let states: Vec<String> = client.column(&format!("SELECT state FROM queue.job_attempts({held}) ORDER BY id"));
    assert_eq!(states, ["superseded", "completed"]);
    client.check();
}

#[test]
fn completions_before_the_enqueue_count() {
    let (_database, mut client) = database();
    let ended = |client: &mut Client, how: &str| {
        let job: i64 = client.value("SELECT queue.enqueue('q', priority => -1)");
        end(client, job, how);
        job
    };
    let living = client.enqueue("q");
    let [completed, dead, cancelled, other] =
        ["completed", "dead", "cancelled", "cancelled"].map(|how| ended(&mut client, how));
    for (jobs, becomes) in [
        (vec![living, completed], "ready"),
        (vec![dead, completed, cancelled], "ready"),
        (vec![living, dead], "held"),
        (vec![dead, cancelled], "held"),
        (vec![living, cancelled], "held"),
        (vec![other, cancelled], "skipped"),
    ] {
        let job = after(&mut client, &jobs, "any");
        if becomes == "ready" {
            assert_eq!(client.state(job), "ready", "at once");
        }
        maintain(&mut client);
        assert_eq!(client.state(job), becomes, "{jobs:?}");
        if becomes == "skipped" {
            let error: String = client.value(&format!("SELECT error FROM queue.job({job})"));
            assert_eq!(error, "none of the jobs that it was after has completed");
        }
    }
    client.run("BEGIN");
    let undone = after(&mut client, &[living], "any");
    client.run("ROLLBACK");
    assert_eq!(client.count(&format!("SELECT FROM queue.job({undone})")), 0);
    client.check();
}

#[test]
fn a_death_is_not_a_completion_and_a_retry_may_still_bring_one() {
    let (_database, mut client) = database();
    let jobs = [client.enqueue("q"), client.enqueue("q")];
    let held = after(&mut client, &jobs, "any");
    let next = after(&mut client, &[held], "any");
    end(&mut client, jobs[0], "dead");
    maintain(&mut client);
    let held_by_dead = "SELECT sum(value)::float8 FROM queue.metrics() WHERE name = 'pg_queue_held_by_dead'";
    let stuck = |client: &mut Client| client.value::<f64>(held_by_dead);
    assert_eq!((client.state(held), stuck(&mut client)), ("held".into(), 0.0), "the other one may complete");
    end(&mut client, jobs[1], "cancelled");
    maintain(&mut client);
    assert_eq!((client.state(held), stuck(&mut client)), ("held".into(), 1.0));
    client.run(&format!("SELECT queue.retry({})", jobs[0]));
    end(&mut client, jobs[0], "completed");
    assert_eq!(client.state(held), "ready");
    // A cancellation of the waiting job and of its successors works as for any held job.
    client.run(&format!("SELECT queue.cancel({next})"));
    end(&mut client, held, "completed");
    maintain(&mut client);
    assert_eq!(client.state(next), "cancelled");
    // If the dead predecessor is not known any more, no predecessor can complete.
    let jobs = [client.enqueue("q"), client.enqueue("q")];
    let held = after(&mut client, &jobs, "any");
    end(&mut client, jobs[0], "cancelled");
    client.run(&format!("SELECT queue.cancel({held})"));
    end(&mut client, jobs[1], "completed");
    maintain(&mut client);
    assert_eq!(client.state(held), "cancelled");
    client.check();
}

#[test]
fn a_batch_of_completions_releases_jobs_that_wait_for_any_of_them() {
    let (_database, mut client) = database();
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 40)");
    let pairs: Vec<i64> = jobs.chunks(2).map(|pair| after(&mut client, pair, "any")).collect();
    let all = after(&mut client, &jobs, "any");
    let ids = claim_all(&mut client);
    client.run(&format!("SELECT queue.complete_many(ARRAY{:?})", &ids[..30]));
    maintain(&mut client);
    for (n, &pair) in pairs.iter().enumerate() {
        assert_eq!(client.state(pair), if n < 15 { "ready" } else { "held" });
    }
    assert_eq!(client.state(all), "ready");
    // The same rule holds for a batch of ends.
    client.run(&format!("SELECT queue.end_batch('[{{\"complete\": {{\"id\": {}}}}}]')", ids[31]));
    maintain(&mut client);
    assert_eq!(client.state(pairs[15]), "ready");
    // The same rule holds for a flow's tasks and for suspended jobs.
    let flow: i64 = client.value(
        "SELECT queue.enqueue_flow('q', '[{\"task\": \"a\", \"priority\": -9}, {\"task\": \"b\"},
            {\"task\": \"c\", \"after\": [\"a\", \"b\"], \"upon\": \"any\"}]')",
    );
    let task = |client: &mut Client, name: &str| -> i64 {
        client.value(&format!("SELECT job_id FROM queue.members({flow}) WHERE task = '{name}'"))
    };
    let [a, c] = ["a", "c"].map(|name| task(&mut client, name));
    maintain(&mut client);
    assert_eq!(client.state(c), "held");
    end(&mut client, a, "completed");
    assert_eq!(client.state(c), "ready");
    create(&mut client, "own", "");
    let job = client.enqueue("own");
    let id = client.claim("own");
    client.run(&format!("SELECT queue.suspend({id}, ARRAY[{}, {c}], 'any')", jobs[35]));
    maintain(&mut client);
    assert_eq!(client.state(job), "held");
    client.run(&format!("SELECT queue.complete({})", ids[35]));
    assert_eq!(client.state(job), "ready");
    client.check();
}

#[test]
fn a_flow_goes_on_at_its_first_completed_member() {
    let (_database, mut client) = database();
    let (flow, members) = flow_of(&mut client, 3);
    stays(&mut client, flow, "held");
    let ids = claim_all(&mut client);
    client.run(&format!("SELECT queue.fail({}, 'no')", ids[0]));
    stays(&mut client, flow, "held");
    // The completed member is neither the first nor the last living one.
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    becomes(&mut client, flow, "ready");
    assert_eq!(client.state(members[2]), "running");
    client.refused(&format!("SELECT queue.enqueue('q', flow => {flow})"), "55000");
    client.run(&format!("SELECT queue.complete({})", ids[2]));
    client.run("SELECT queue.complete(id) FROM queue.claim('witness')");
    stays(&mut client, flow, "completed");
    // No member can complete any more.
    let (flow, members) = flow_of(&mut client, 2);
    for &member in &members {
        stays(&mut client, flow, "held");
        client.run(&format!("SELECT queue.cancel({member})"));
    }
    becomes(&mut client, flow, "skipped");
    let error: String = client.value(&format!("SELECT error FROM queue.job({flow})"));
    assert_eq!(error, "none of its members has completed");
    // A dead member may be retried.
    let (flow, members) = flow_of(&mut client, 2);
    end(&mut client, members[0], "dead");
    end(&mut client, members[1], "cancelled");
    stays(&mut client, flow, "held");
    client.run(&format!("SELECT queue.retry({})", members[0]));
    stays(&mut client, flow, "held");
    end(&mut client, members[0], "completed");
    becomes(&mut client, flow, "ready");
    client.run("SELECT queue.complete(id) FROM queue.claim('witness')");
    // In a flow without members no member can complete.
    let empty: i64 = client.value("SELECT queue.enqueue_flow('q', upon => 'any')");
    becomes(&mut client, empty, "skipped");
    client.refused("SELECT queue.enqueue_flow('q', upon => 'any', fail_fast => true)", "22023");
    client.check();
}

#[test]
fn members_that_come_later_count_and_an_open_flow_waits_for_its_seal() {
    let (database, mut client) = database();
    let (flow, members) = flow_of(&mut client, 1);
    stays(&mut client, flow, "held");
    // A member that is added later completes before the duty runs.
    client.run(&format!("SELECT queue.enqueue('q', priority => -1, flow => {flow})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    becomes(&mut client, flow, "ready");
    assert_eq!(client.state(members[0]), "ready");
    client.run("SELECT queue.complete(id) FROM queue.claim('witness'); SELECT queue.purge('q')");
    // A member in an open transaction holds the flow up. It counts after it has completed.
    let (flow, members) = flow_of(&mut client, 1);
    let mut other = database.connect();
    other.run("BEGIN");
    let late: i64 = other.value(&format!("SELECT queue.enqueue('q', flow => {flow})"));
    end(&mut client, members[0], "cancelled");
    stays(&mut client, flow, "held");
    other.run("COMMIT");
    stays(&mut client, flow, "held");
    end(&mut client, late, "completed");
    becomes(&mut client, flow, "ready");
    client.run("SELECT queue.complete(id) FROM queue.claim('witness')");
    let open: i64 = client.value("SELECT queue.enqueue_flow('witness', open => true, runs => true, upon => 'any')");
    let member: i64 = client.value(&format!("SELECT queue.enqueue('q', flow => {open})"));
    end(&mut client, member, "completed");
    stays(&mut client, open, "held");
    client.run(&format!("SELECT queue.seal({open})"));
    becomes(&mut client, open, "ready");
    let sealed: i64 = client.value("SELECT queue.enqueue_flow('witness', open => true, runs => true, upon => 'any')");
    client.run(&format!("SELECT queue.seal({sealed})"));
    becomes(&mut client, sealed, "skipped");
    // A flow that also has predecessors goes on at the first completion among predecessors and members.
    let done = client.enqueue("q");
    end(&mut client, done, "completed");
    let flow: i64 = client.value(&format!(
        "SELECT queue.enqueue_flow('witness', '[{{}}]', runs => true, upon => 'any', after => ARRAY[{done}])"
    ));
    becomes(&mut client, flow, "ready");
    let living = client.enqueue("q");
    let flow: i64 = client
        .value(&format!("SELECT queue.enqueue_flow('witness', '[{{}}]', upon => 'any', after => ARRAY[{living}])"));
    stays(&mut client, flow, "held");
    end(&mut client, living, "completed");
    becomes(&mut client, flow, "completed");
    client.check();
}

#[test]
fn a_suspended_job_goes_on_at_its_first_completed_member() {
    let (_database, mut client) = database();
    let job = client.enqueue("witness");
    let id = client.claim("witness");
    client.run("BEGIN");
    let members: Vec<i64> =
        client.column(&format!("SELECT queue.enqueue_many('q', array_fill('{{}}'::jsonb, ARRAY[3]), flow => {job})"));
    client.run(&format!("SELECT queue.suspend({id}, upon => 'any'); COMMIT"));
    stays(&mut client, job, "held");
    let ids = claim_all(&mut client);
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    becomes(&mut client, job, "ready");
    assert_eq!(client.state(members[0]), "running");
    client.check();
}

/// Two processes serve the same flow in turn. Neither misses an end that only the other one was notified of.
#[test]
fn processes_that_take_turns_at_a_flow_miss_no_end_of_its_members() {
    let (database, mut one) = database();
    let mut other = database.connect();
    for (upon, how) in [("any", "completed"), ("failed", "dead")] {
        let flow: i64 = one.value(&format!(
            "SELECT queue.enqueue_flow('witness', '[{{\"queue\": \"q\"}},
            {{\"queue\": \"q\"}}, {{\"queue\": \"q\"}}]', runs => true, upon => '{upon}')"
        ));
        stays(&mut one, flow, "held");
        stays(&mut other, flow, "held");
        stays(&mut one, flow, "held");
        let ids = claim_all(&mut one);
        one.run(&match how {
            "dead" => format!("SELECT queue.fail({}, 'no')", ids[1]),
            _ => format!("SELECT queue.complete({})", ids[1]),
        });
        // The other process serves the end, or it leaves the flow to this process.
        other.run("SELECT queue.maintain()");
        becomes(&mut one, flow, "ready");
        one.run("SELECT queue.complete(id) FROM queue.claim('witness')");
    }
    // The other process is notified of the completion but cannot act, because a transaction that adds a member holds
    // the flow up.
    let (flow, _) = flow_of(&mut one, 3);
    stays(&mut one, flow, "held");
    let ids = claim_all(&mut one);
    let mut adder = database.connect();
    adder.run(&format!("BEGIN; SELECT queue.enqueue('q', flow => {flow})"));
    one.run(&format!("SELECT queue.complete({})", ids[1]));
    stays(&mut other, flow, "held");
    adder.run("COMMIT");
    becomes(&mut one, flow, "ready");
}

#[test]
fn a_flow_outlives_crashes_moves_and_history_until_its_first_member_completes() {
    let cluster = cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    client.run("SELECT queue.alter('q', max_attempts => 1, lease => '1 hour')");
    create(&mut client, "witness", "");
    create(&mut client, "filler", "retention => '0', lease => '1 hour'");
    let (first, _) = flow_of(&mut client, 3);
    let (second, members) = flow_of(&mut client, 3);
    let ids = claim_all(&mut client);
    client.run(&format!("SELECT queue.fail({}, 'no')", ids[3]));
    let end = fillings(&mut client) + 3;
    wait::until_true("the ring turns", || {
        client.pass_through("filler", 500);
        fillings(&mut client) >= end
    });
    drop(client);
    cluster.restart_immediate();
    let mut client = cluster.connect();
    assert_eq!((client.state(first), client.state(second)), ("held".into(), "held".into()));
    // This is neither the first nor the newest member of the flow.
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    wait::until_true("the flow goes on", || client.state(first) == "ready");
    // A member completes while no worker runs.
    client.switch_worker_off();
    client.run(&format!("SELECT queue.retry({0})", members[0]));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    drop(client);
    cluster.restart_immediate();
    let mut client = cluster.connect();
    client.run("ALTER DATABASE postgres RESET pg_queue.worker");
    wait::until_true("the flow goes on", || client.state(second) == "ready");
    client.check();
}

#[test]
fn the_last_member_may_end_while_the_duty_looks_at_its_flow() {
    for (upon, end) in [
        ("any", "SELECT queue.complete({id})"),
        ("any", "SELECT queue.complete({id}), queue.drop('last', force => true)"),
        ("failed", "SELECT queue.fail({id}, 'no')"),
        ("failed", "BEGIN; SELECT queue.fail({id}, 'no'); SELECT queue.drop('last', force => true); COMMIT"),
    ] {
        let (database, mut client) = database();
        create(&mut client, "last", "max_attempts => 1");
        client.run("BEGIN");
        let flow: i64 = client.value(&format!("SELECT queue.enqueue_flow('witness', runs => true, upon => '{upon}')"));
        let first: i64 = client.value(&format!("SELECT queue.enqueue('q', flow => {flow})"));
        client.run(&format!("SELECT queue.enqueue('last', flow => {flow}); COMMIT"));
        let id = client.claim("last");
        maintain(&mut client);
        client.run(&format!("SELECT queue.cancel({first})"));
        let mut slow = database.connect();
        let fault = server().fault_of(slow.pid(), "release.searched", "wait");
        thread::scope(|scope| {
            let slow = scope.spawn(move || maintain(&mut slow));
            fault.wait_reached();
            client.run(&end.replace("{id}", &id.to_string()));
            drop(fault);
            slow.join().unwrap();
        });
        maintain(&mut client);
        assert_eq!(client.state(flow), "ready", "upon {upon}: {end}");
    }
}
