//! The workers as seen from outside: what they write, when their processes end, and what happens to their jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::Client;
use queue_tests::wait;

use crate::place::{Place, Places, Worker};

/// A job so long that it ends only if the test ends it.
const ENDLESS: &str = r#"{"name": "Ada", "seconds": 600}"#;

/// Starts a worker in each place.
fn workers(places: &Places) -> Vec<Worker> {
    places.all.iter().map(|place| place.worker(&places.cluster)).collect()
}

/// Enqueues this job in each place.
fn enqueue(places: &Places, payload: &str) -> Vec<i64> {
    places.all.iter().map(|place| place.enqueue(payload)).collect()
}

/// Waits until all of these jobs, one in each place, have this state.
fn wait_state(places: &Places, jobs: &[i64], state: &str) {
    places.all.iter().zip(jobs).for_each(|(place, &job)| place.wait_state(job, state));
}

/// Returns the number of attempts by state.
fn attempts(place: &Place) -> BTreeMap<String, i64> {
    let states: Vec<String> = place.ask("SELECT array_agg(state) FROM queue.attempts", &[]);
    states.into_iter().fold(BTreeMap::new(), |mut counts, state| {
        *counts.entry(state).or_default() += 1;
        counts
    })
}

#[test]
fn each_job_is_done_once_though_a_worker_is_told_to_stop_in_the_middle() {
    const JOBS: i64 = 40;
    let places = Places::new();
    let mut stopped = workers(&places);
    let mut others = workers(&places);
    for place in &places.all {
        let sql = "SELECT count(*) FROM queue.enqueue_many('greetings', array_fill('{\"name\": \"Ada\"}'::jsonb, \
                   ARRAY[$1::bigint::int]))";
        assert_eq!(place.ask::<i64>(sql, &[&JOBS]), JOBS);
    }
    for (place, worker) in places.all.iter().zip(&stopped) {
        wait::until(&format!("{place}: some jobs are done"), || {
            (place.ask::<i64>("SELECT count(*) FROM greeting", &[]) > 5).then_some(())
        });
        places.cluster.signal("TERM", worker.pid());
    }
    stopped.iter_mut().for_each(Worker::wait_end);
    for place in &places.all {
        wait::within(&format!("{place}: all jobs are completed"), Duration::from_secs(60), || {
            let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
            (place.ask::<i64>(sql, &[]) == JOBS).then_some(())
        });
        let sql = "SELECT count(*) FROM greeting g JOIN queue.jobs j USING (job_id) WHERE g.text = 'Hello, Ada!'";
        assert_eq!(place.ask::<i64>(sql, &[]), JOBS, "{place}");
        assert_eq!(place.ask::<i64>("SELECT count(DISTINCT job_id) FROM greeting", &[]), JOBS, "{place}");
        let lost = "SELECT count(*) FROM queue.attempts WHERE state NOT IN ('completed', 'released')";
        assert_eq!(place.ask::<i64>(lost, &[]), 0, "{place}: {:?}", attempts(place));
    }
    // These workers sleep in a claim.
    for worker in &others {
        places.cluster.signal("TERM", worker.pid());
    }
    others.iter_mut().for_each(Worker::wait_end);
}

#[test]
fn an_error_fails_the_job_and_not_the_worker() {
    let places = Places::new();
    for place in &places.all {
        place.run("SELECT queue.alter('greetings', max_attempts => 2)");
        place.run("ALTER TABLE greeting ADD CONSTRAINT not_to_greet CHECK (text <> 'Hello, Eve!')");
    }
    let mut workers = workers(&places);
    let nobody = enqueue(&places, "{}");
    let refused = enqueue(&places, r#"{"name": "Eve"}"#);
    let good = enqueue(&places, r#"{"name": "Ada"}"#);
    wait_state(&places, &nobody, "dead");
    wait_state(&places, &refused, "dead");
    wait_state(&places, &good, "completed");
    for (i, place) in places.all.iter().enumerate() {
        let error = |job: i64| place.ask::<String>("SELECT error FROM queue.job($1)", &[&job]);
        // The handler itself raises the error. The shell's handler does not know names, so its error comes from the
        // database.
        let said = error(nobody[i]);
        assert!(said.contains("nobody to greet") || said.contains("null value"), "{place}: {said}");
        // The job's transaction raises the error and leaves nothing behind.
        assert!(error(refused[i]).contains("not_to_greet"), "{place}: {}", error(refused[i]));
        assert_eq!(place.ask::<i64>("SELECT count(*) FROM greeting", &[]), 1, "{place}");
        assert_eq!((place.attempt(nobody[i]), place.attempt(refused[i])), (2, 2), "{place}");
        assert!(workers[i].runs(), "{place}");
    }
}

/// Makes the jobs of each place wait at a gate before they write. A gate opens when its connection ends.
fn gates(places: &Places) -> Vec<Client> {
    let gate = |place: &Place| {
        place.run(
            "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
             CREATE TRIGGER pass BEFORE INSERT ON greeting FOR EACH ROW EXECUTE FUNCTION pass()",
        );
        let mut gate = place.connect(&places.cluster);
        gate.execute("SELECT pg_advisory_lock(1)", &[]).unwrap();
        gate
    };
    places.all.iter().map(gate).collect()
}

/// Waits until this place's worker stands at the gate. Returns its server process.
fn at_the_gate(place: &Place) -> i32 {
    wait::until(&format!("{place}: the worker stands at the gate"), || {
        let sql =
            "SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'";
        place.ask::<Option<i32>>(sql, &[])
    })
}

#[test]
fn a_job_that_was_lost_writes_nothing() {
    let places = Places::new();
    let mut gates = gates(&places);
    let mut workers = workers(&places);
    let lost = enqueue(&places, r#"{"name": "Ada"}"#);
    for (place, &job) in places.all.iter().zip(&lost) {
        at_the_gate(place);
        // The worker is about to complete the job. The test takes the job away from it.
        assert_eq!(place.ask::<String>("SELECT queue.cancel($1, force => true)", &[&job]), "cancelled", "{place}");
    }
    gates.clear();
    let next = enqueue(&places, r#"{"name": "Grace"}"#);
    wait_state(&places, &next, "completed");
    for (i, place) in places.all.iter().enumerate() {
        assert_eq!((place.greetings(lost[i]), place.greetings(next[i])), (0, 1), "{place}");
        assert_eq!(place.ask::<String>("SELECT state FROM queue.job($1)", &[&lost[i]]), "cancelled", "{place}");
        assert!(place.said(&places.cluster).contains("lost lease"), "{place} says so");
        assert!(workers[i].runs(), "{place}");
    }
}

#[test]
fn a_long_job_keeps_its_lease() {
    let places = Places::new();
    // The work takes longer than two leases.
    let _workers = workers(&places);
    let long = enqueue(&places, r#"{"name": "Ada", "seconds": 13}"#);
    wait_state(&places, &long, "completed");
    for (place, &job) in places.all.iter().zip(&long) {
        assert_eq!((place.attempt(job), place.greetings(job)), (1, 1), "{place}");
        assert_eq!(attempts(place), BTreeMap::from([("completed".to_owned(), 1)]), "{place}");
    }
}

#[test]
fn a_long_job_is_given_back_when_the_worker_is_told_to_stop() {
    let places = Places::new();
    let mut workers = workers(&places);
    let long = enqueue(&places, ENDLESS);
    wait_state(&places, &long, "running");
    for worker in &workers {
        places.cluster.signal("TERM", worker.pid());
    }
    workers.iter_mut().for_each(Worker::wait_end);
    // The worker gives the job back immediately, not after the lease, and the attempt does not count.
    wait_state(&places, &long, "ready");
    let _others = self::workers(&places);
    wait_state(&places, &long, "running");
    for (place, &job) in places.all.iter().zip(&long) {
        assert_eq!(place.attempt(job), 1, "{place}");
        let states = BTreeMap::from([("released".to_owned(), 1), ("running".to_owned(), 1)]);
        assert_eq!(attempts(place), states, "{place}");
    }
}

#[test]
fn a_killed_workers_job_runs_again_after_its_lease() {
    let places = Places::new();
    let victims = workers(&places);
    // The jobs are so long that all of them run before one is done.
    let jobs = enqueue(&places, r#"{"name": "Ada", "seconds": 10}"#);
    wait_state(&places, &jobs, "running");
    for victim in &victims {
        places.cluster.kill9(victim.pid());
    }
    let _others = workers(&places);
    wait_state(&places, &jobs, "completed");
    for (place, &job) in places.all.iter().zip(&jobs) {
        assert_eq!((place.attempt(job), place.greetings(job)), (2, 1), "{place}");
        let states = BTreeMap::from([("completed".to_owned(), 1), ("timed_out".to_owned(), 1)]);
        assert_eq!(attempts(place), states, "{place}");
    }
}

#[test]
fn a_cancelled_long_job_stops_and_the_worker_goes_on() {
    let places = Places::new();
    let mut workers = workers(&places);
    let long = enqueue(&places, ENDLESS);
    wait_state(&places, &long, "running");
    for (place, &job) in places.all.iter().zip(&long) {
        assert_eq!(place.ask::<String>("SELECT queue.cancel($1)", &[&job]), "cancelling", "{place}");
    }
    wait_state(&places, &long, "cancelled");
    let next = enqueue(&places, r#"{"name": "Ada"}"#);
    wait_state(&places, &next, "completed");
    for (i, place) in places.all.iter().enumerate() {
        assert_eq!((place.greetings(long[i]), place.greetings(next[i])), (0, 1), "{place}");
        assert!(workers[i].runs(), "{place}");
    }
}

#[test]
fn workers_go_on_by_themselves_after_a_restart_of_the_server() {
    let places = Places::new();
    let (mut busy, mut idle) = (workers(&places), workers(&places));
    let interrupted = enqueue(&places, r#"{"name": "Ada", "seconds": 3}"#);
    wait_state(&places, &interrupted, "running");
    places.cluster.restart();
    places.connect_again();
    let next = enqueue(&places, r#"{"name": "Grace"}"#);
    wait_state(&places, &next, "completed");
    wait_state(&places, &interrupted, "completed");
    for (i, place) in places.all.iter().enumerate() {
        assert_eq!((place.greetings(interrupted[i]), place.greetings(next[i])), (1, 1), "{place}");
        assert!(busy[i].runs() && idle[i].runs(), "{place}");
    }
}

#[test]
fn workers_go_on_after_a_crash_in_the_jobs_own_transaction() {
    let places = Places::new();
    let _gates = gates(&places);
    let mut workers = workers(&places);
    let jobs = enqueue(&places, r#"{"name": "Ada"}"#);
    let backends: Vec<i32> = places.all.iter().map(at_the_gate).collect();
    // A crash ends all connections, including those that hold the gates.
    places.cluster.crash(backends[0]);
    places.connect_again();
    wait_state(&places, &jobs, "completed");
    for (i, place) in places.all.iter().enumerate() {
        assert_eq!(place.greetings(jobs[i]), 1, "{place}");
        assert!(workers[i].runs(), "{place}");
    }
}

#[test]
fn a_heartbeat_that_fails_does_not_cost_the_job() {
    let places = Places::new();
    // The lease leaves time for another heartbeat, even on a slow machine.
    places.all.iter().for_each(|place| place.run("SELECT queue.alter('greetings', lease => '15 seconds')"));
    let mut workers = workers(&places);
    let long = enqueue(&places, r#"{"name": "Ada", "seconds": 20}"#);
    wait_state(&places, &long, "running");
    for place in &places.all {
        place.run("ALTER FUNCTION queue.extend(bigint, interval) RENAME TO not_now");
    }
    for place in &places.all {
        wait::within(&format!("{place}: a heartbeat has failed"), Duration::from_secs(20), || {
            // SQLSTATE 42883: the function does not exist.
            places.cluster.log().contains(&format!(" {place} 42883 ")).then_some(())
        });
        place.run("ALTER FUNCTION queue.not_now(bigint, interval) RENAME TO extend");
    }
    wait_state(&places, &long, "completed");
    for (i, place) in places.all.iter().enumerate() {
        assert_eq!((place.attempt(long[i]), place.greetings(long[i])), (1, 1), "{place}");
        assert_eq!(attempts(place), BTreeMap::from([("completed".to_owned(), 1)]), "{place}");
        assert!(workers[i].runs(), "{place}");
    }
}
