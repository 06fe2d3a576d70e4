//! Idle workers in `queue.workers` and in the metrics: what they wait for, who may see them, and when they disappear.

use crate::claims::waiting::Sleeper;
use crate::security::permissions::{Roles, grant, session};
use crate::shared::*;

/// Returns the rows of these processes: worker, queue, number of running jobs, and whether it waits.
fn rows(client: &mut Client, pids: &[i32]) -> Vec<String> {
    client.column(&format!(
        "SELECT concat_ws(' ', coalesce(worker, '-'), coalesce(queue_name, '-'), running,
             CASE WHEN waiting_since BETWEEN now() - interval '10 minutes' AND clock_timestamp() THEN 'waits' END)
         FROM queue.workers WHERE pid = ANY ('{{{}}}') ORDER BY queue_name, worker",
        pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    ))
}

fn idle(client: &mut Client, queue: &str) -> f64 {
    client.value(&format!(
        "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_workers_idle' AND labels ->> 'queue' = '{queue}'"
    ))
}

#[test]
fn a_worker_that_waits_is_seen_until_its_connection_ends() {
    let database = Database::new();
    let mut client = database.connect();
    create(&mut client, "a", "");
    create(&mut client, "staged", "stages => '{one,two}'");
    assert_eq!((idle(&mut client, "a"), idle(&mut client, "staged")), (0.0, 0.0));
    let claim = "SELECT id FROM queue.claim_any('{a,staged}', wait => '1 minute', worker => 'w')";
    let sleeper = Sleeper::with(database.connect(), &mut client, claim);
    let pid = sleeper.pid;
    assert_eq!(rows(&mut client, &[pid]), ["- a 0 waits", "- staged 0 waits"]);
    assert_eq!(client.count("SELECT FROM queue.workers WHERE oldest_claim IS NULL AND oldest_claimed_at IS NULL"), 2);
    assert_eq!((idle(&mut client, "a"), idle(&mut client, "staged")), (1.0, 1.0));

    // A worker that runs a job and waits for more is one row, and is not idle.
    let mut busy = database.connect();
    client.run("SELECT queue.enqueue('a')");
    sleeper.claimed();
    assert_eq!(client.count(&format!("SELECT FROM queue.workers WHERE pid = {pid}")), 1, "it has the job");
    client.run("SELECT queue.enqueue('a')");
    let id = busy.claim("a");
    let sleeper =
        Sleeper::with(busy, &mut client, "SELECT id FROM queue.claim('a', wait => '1 minute', worker => 'v')");
    assert_eq!(rows(&mut client, &[sleeper.pid]), ["- a 1 waits"]);
    assert_eq!(idle(&mut client, "a"), 0.0);
    client.run(&format!("SELECT queue.complete({id})"));
    wait::until_true("it is idle", || rows(&mut client, &[sleeper.pid]) == ["- a 0 waits"]);
    assert_eq!(idle(&mut client, "a"), 1.0);

    // CALL queue.wait also counts as waiting.
    let caller = Sleeper::with(database.connect(), &mut client, "CALL queue.wait('staged', '1 minute')");
    assert_eq!(rows(&mut client, &[caller.pid]), ["- staged 0 waits"]);

    for pid in [sleeper.pid, caller.pid] {
        assert!(client.value::<bool>(&format!("SELECT pg_terminate_backend({pid}, 10000)")));
        assert_eq!(rows(&mut client, &[pid]), [""; 0]);
    }
    assert_eq!((idle(&mut client, "a"), idle(&mut client, "staged")), (0.0, 0.0));
}

#[test]
fn a_role_sees_the_workers_that_wait_for_its_queues() {
    let database = Database::new();
    let mut client = database.connect();
    create(&mut client, "hers", "");
    create(&mut client, "theirs", "");
    let roles = Roles::new(&database);
    let role = roles.make("observer", "");
    grant(&mut client, "hers", &role, "observe");
    let claim = "SELECT id FROM queue.claim_any('{hers,theirs}', wait => '1 minute')";
    let both = Sleeper::with(database.connect(), &mut client, claim);
    let other =
        Sleeper::with(database.connect(), &mut client, "SELECT id FROM queue.claim('theirs', wait => '1 minute')");
    let mut observer = session(&database, &role);
    assert_eq!(rows(&mut observer, &[both.pid, other.pid]), ["- hers 0 waits"]);
    assert_eq!(observer.count("SELECT FROM queue.workers WHERE client_port IS NOT NULL"), 0);
    assert_eq!(rows(&mut client, &[both.pid, other.pid]).len(), 3);
    drop(observer);
    for pid in [both.pid, other.pid] {
        client.run(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
    }
}

/// Connections of the client packages are shown with their names, even between two claims.
#[test]
fn connections_of_packages_are_seen_between_two_claims() {
    let database = Database::new();
    let mut client = database.connect();
    create(&mut client, "q", "");
    let named = |name: &str| {
        let mut other =
            server().config().dbname(&database.name).application_name(name).connect(postgres::NoTls).unwrap();
        let pid = other.pid();
        (other, pid)
    };
    let (worker, pid) = named("pg_queue worker node/0.4.0");
    let (_other, other_pid) = named("psql");
    assert_eq!(client.column::<String>("SELECT application_name FROM queue.workers"), ["pg_queue worker node/0.4.0"]);
    assert_eq!(rows(&mut client, &[pid, other_pid]), ["- - 0"]);
    // The database's background worker has a similar name but is not shown. Nor is a package's connection to another
    // database.
    let ours = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'pg_queue worker (%'";
    wait::until_true("the background worker is there", || client.count(ours) > 0);
    assert_eq!(client.count("SELECT FROM queue.workers"), 1);
    assert_eq!(Database::new().connect().count("SELECT FROM queue.workers"), 0);
    drop(worker);
    wait::until_true("it is gone", || rows(&mut client, &[pid]).is_empty());
}
