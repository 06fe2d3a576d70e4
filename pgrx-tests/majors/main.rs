//! Upgrades with `pg_upgrade` from one major version of PostgreSQL to a later one. Jobs in every state survive and can
//! go on.
//!
//! `make test-upgrade` builds both servers and names them in the environment: `OLD_PG_CONFIG` and `PG_CONFIG`. Without
//! them these tests fail, so cargo runs them only on request.

use std::path::PathBuf;
use std::time::Duration;

use postgres::Client;
use postgres::types::FromSqlOwned;
use queue_tests::installation::{Installation, installation, output};
use queue_tests::{Cluster, error, integrity, wait};

const CONF: &str = "
pg_queue.segment_age = 1
pg_queue.segment_rows = 1000000
pg_queue.reclaim_delay = 0
pg_queue.restore_quiet = '1s'
";

/// Everything that the views show of jobs, attempts, queues and schedules, except the leases, which begin anew on the
/// new server.
const LOOKS: [&str; 6] = [
    "SELECT (to_jsonb(j) - 'lease_expires_at')::text FROM queue.jobs AS j ORDER BY job_id",
    "SELECT to_jsonb(a)::text FROM queue.attempts AS a ORDER BY id",
    "SELECT to_jsonb(q)::text FROM queue.queues AS q ORDER BY queue_name",
    "SELECT (to_jsonb(s) - 'oldest_ready_age')::text FROM queue.stats AS s ORDER BY queue_name, stage",
    "SELECT to_jsonb(s)::text FROM queue.schedules AS s ORDER BY name",
    "SELECT to_jsonb(e)::text FROM queue.errors AS e ORDER BY queue_name, error",
];

fn old_installation() -> &'static Installation {
    let pg_config = std::env::var_os("OLD_PG_CONFIG").expect("OLD_PG_CONFIG: see `make test-upgrade`");
    Box::leak(Box::new(Installation::of(&PathBuf::from(pg_config))))
}

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {}", error::describe(&e)));
}

fn column<T: FromSqlOwned>(client: &mut Client, sql: &str) -> Vec<T> {
    let rows = client.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {}", error::describe(&e)));
    rows.iter().map(|row| row.get(0)).collect()
}

fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    let mut values = column(client, sql);
    assert_eq!(values.len(), 1, "{sql}: rows");
    values.remove(0)
}

/// Returns the SQLSTATE of the statement's error.
fn failure(client: &mut Client, sql: &str) -> String {
    let refused = client.simple_query(sql).expect_err(sql);
    error::code(&refused).to_owned()
}

/// Upgrades a stopped cluster. Returns the started cluster of the new major version with its contents.
fn upgrade(old: &Cluster, conf: &str, how: &[&str]) -> Cluster {
    let target = Cluster::of(installation()).conf(conf).as_of_initdb();
    assert!(installation().major > old_installation().major, "the new server is not of a later major");
    // pg_upgrade wants checksums in both clusters or in none. initdb of 18 and later turns them on.
    if old_installation().major < 18 && installation().major >= 18 {
        output(target.command("pg_checksums").args(["--disable", "-D"]).arg(target.data()));
    }
    let mut upgrade = target.command("pg_upgrade");
    upgrade.current_dir(target.dir()).args(["-U", "postgres", "--retain", "-s"]).arg(target.dir());
    upgrade.arg("-b").arg(old.bindir()).arg("-B").arg(target.bindir());
    upgrade.arg("-d").arg(old.data()).arg("-D").arg(target.data()).args(how);
    output(&mut upgrade);
    target.start()
}

/// The state before the upgrade.
struct Before {
    cluster: Cluster,
    looks: Vec<Vec<String>>,
    /// The order in which the ready jobs of `plain` are claimed.
    order: Vec<i64>,
    /// A running attempt, an attempt whose job has a request to cancel, and an attempt of group `g`.
    running: i64,
    asked: i64,
    grouped: i64,
    /// The job with the key `k`.
    keyed: i64,
}

impl Before {
    fn new() -> Self {
        let cluster = Cluster::of(old_installation()).conf(CONF).start();
        let mut setup = cluster.connect();
        run(&mut setup, "CREATE DATABASE app");
        run(&mut setup, "CREATE ROLE producer; CREATE ROLE consumer");
        // With the worker off, nothing changes between the last look and the upgrade. The setting survives the upgrade.
        run(&mut setup, "ALTER DATABASE app SET pg_queue.worker = off");
        let mut client = cluster.connect_to("app");
        let c = &mut client;
        run(c, "CREATE EXTENSION pg_queue");
        Self::fill_history(c);
        Self::fill_logs(c);
        let running = value(c, "SELECT id FROM queue.claim('late', worker => 'w')");
        let asked = value(c, "SELECT id FROM queue.claim('late', worker => 'w')");
        run(c, &format!("SELECT queue.progress({running}, '7'), queue.extend({running}, '2 hours')"));
        run(c, &format!("SELECT queue.cancel(job_id, 'enough') FROM queue.attempts WHERE id = {asked}"));
        let grouped = value(c, "SELECT id FROM queue.claim('grouped', 5)");
        let keyed = value(c, "SELECT queue.enqueue('keyed', unique_key => 'k')");
        run(c, "SELECT queue.pause('late')");
        let order: Vec<i64> = column(
            c,
            "SELECT job_id FROM queue.jobs WHERE queue_name = 'plain' AND state = 'ready' ORDER BY priority, job_id",
        );
        assert!(order.len() > 20, "{order:?}");
        let states: Vec<String> = column(c, "SELECT DISTINCT state FROM queue.jobs ORDER BY state");
        let all = ["cancelled", "completed", "dead", "ready", "retrying", "running", "scheduled"];
        assert_eq!(states, all, "a job in each state");
        let looks = LOOKS.iter().map(|look| column(c, look)).collect();
        drop(client);
        cluster.stop_fast();
        Self { cluster, looks, order, running, asked, grouped, keyed }
    }

    /// Makes jobs that have ended and left the logs.
    fn fill_history(c: &mut Client) {
        run(c, "SELECT queue.create('plain', max_attempts => 5, backoff_base => '1 hour', backoff_jitter => 0)");
        run(c, "SELECT count(*) FROM queue.enqueue_many('plain', array_fill('{\"of\": \"history\"}'::jsonb, '{500}'))");
        run(c, "SELECT queue.fail(id, 'in history', fatal => true) FROM queue.claim('plain', 7)");
        run(c, "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready' ORDER BY job_id LIMIT 5");
        run(c, "SELECT queue.complete(id, '\"kept\"') FROM queue.claim('plain', 500)");
        let young: Vec<String> = (0..8).map(|n| format!("SELECT FROM queue_internal.attempt_{n}")).collect();
        let young = format!("SELECT count(*) FROM ({}) AS a", young.join(" UNION ALL "));
        wait::within("all has gone to history", Duration::from_secs(60), || {
            run(c, "SELECT FROM queue.maintain()");
            (value::<i64>(c, &young) == 0).then_some(())
        });
        assert_eq!(value::<i64>(c, "SELECT count(*) FROM queue.jobs"), 500);
    }

    /// Makes jobs in all states, in queues of all kinds.
    fn fill_logs(c: &mut Client) {
        run(
            c,
            "SELECT queue.create('late', lease => '1 hour', max_running => 5);
             SELECT queue.create('letters');
             SELECT queue.create('keyed', lease => '1 hour', dead_letter => 'letters');
             SELECT queue.create('grouped', lease => '1 hour', max_running_per_group => 1);
             SELECT queue.create('staged', lease => '1 hour', stages => '{one,two}');
             SELECT queue.create('strict', lease => '1 hour', strict_order => true);
             SELECT queue.create('gone'); SELECT queue.drop('gone');
             SELECT queue.grant('plain', 'producer', 'produce'); SELECT queue.grant('*', 'consumer', 'consume');
             SELECT queue.schedule('hourly', 'plain', cron => '0 * * * *', timezone => 'Europe/Berlin');
             SELECT queue.schedule('resting', 'plain', every => '1 s'); SELECT queue.pause_schedule('resting')",
        );
        run(c, "SELECT queue.enqueue('plain', to_jsonb(n), priority => n % 3) FROM generate_series(1, 60) AS n");
        run(c, "SELECT queue.complete(id, '\"fine\"') FROM queue.claim('plain', 10)");
        run(c, "SELECT queue.fail(id, 'again', retry_in => '0') FROM queue.claim('plain', 3)");
        run(c, "SELECT queue.fail(id, 'later') FROM queue.claim('plain', 2)");
        run(c, "SELECT queue.fail(id, 'dead', fatal => true) FROM queue.claim('plain', 2)");
        run(c, "SELECT queue.release(id) FROM queue.claim('plain', 2)");
        run(c, "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready' LIMIT 2");
        run(c, "SELECT queue.enqueue('plain', '\"tomorrow\"', delay => '1 day', headers => '{\"a\": 1}')");
        run(c, "BEGIN; SELECT count(*) FROM queue.enqueue_many('plain', array_fill('1'::jsonb, '{20000}')); ROLLBACK");
        run(c, "SELECT queue.enqueue('late') FROM generate_series(1, 4)");
        run(c, "SELECT queue.enqueue('grouped', group_key => g) FROM unnest('{g,g,g}'::text[]) AS g");
        run(c, "SELECT queue.enqueue('strict', group_key => 's') FROM generate_series(1, 3)");
        run(c, "SELECT queue.enqueue('keyed', unique_key => 'dies', max_attempts => 1)");
        run(c, "SELECT queue.fail(id, 'to the letters') FROM queue.claim('keyed')");
        run(c, "SELECT queue.enqueue('keyed', unique_key => 'ended', unique_for => '1 day')");
        run(c, "SELECT queue.complete(id) FROM queue.claim('keyed')");
        run(c, "SELECT queue.enqueue('staged') FROM generate_series(1, 2)");
        run(c, "SELECT queue.advance(id) FROM queue.claim('staged', stage => 'one')");
    }

    /// Checks that everything is there and can go on.
    fn check(&self, target: &Cluster) {
        let mut client = target.connect_to("app");
        let c = &mut client;
        assert_eq!(
            value::<i32>(c, "SELECT current_setting('server_version_num')::integer / 10000"),
            installation().major as i32
        );
        for (look, before) in LOOKS.iter().zip(&self.looks) {
            assert!(!before.is_empty(), "{look}");
            assert_eq!(&column::<String>(c, look), before, "{look}");
        }
        integrity::check(c);
        self.check_rules(c);

        // The running attempts can end, the cancelled one as cancelled, and the group goes on after its attempt.
        run(c, &format!("SELECT queue.complete({}, '\"over there\"')", self.running));
        assert_eq!(failure(c, &format!("SELECT queue.complete({})", self.running)), "QJ001");
        run(c, &format!("SELECT queue.fail({}, 'stopped')", self.asked));
        let state =
            format!("SELECT j.state FROM queue.attempts AS a, queue.job(a.job_id) AS j WHERE a.id = {}", self.asked);
        assert_eq!(value::<String>(c, &state), "cancelled");
        assert_eq!(
            column::<i64>(c, "SELECT id FROM queue.claim('grouped', 5)").len(),
            0,
            "the group's only place is taken"
        );
        run(c, &format!("SELECT queue.complete({})", self.grouped));
        assert_eq!(column::<i64>(c, "SELECT id FROM queue.claim('grouped', 5)").len(), 1);
        for stage in ["one", "two"] {
            // One of the two jobs had advanced to the second stage.
            let claim = format!("SELECT id FROM queue.claim('staged', 5, stage => '{stage}')");
            assert_eq!(column::<i64>(c, &claim).len(), 1, "{stage}");
        }
        assert_eq!(column::<i64>(c, "SELECT job_id FROM queue.claim('plain', 1000)"), self.order);
        // A new id is larger than all old ones.
        let newest: i64 = value(c, "SELECT max(job_id) FROM queue.jobs");
        assert!(value::<i64>(c, "SELECT queue.enqueue('plain')") > newest);

        // The background worker resumes its duties: the schedule fires.
        run(c, "ALTER DATABASE app RESET pg_queue.worker; SELECT queue.resume_schedule('resting')");
        wait::until("the schedule has fired", || {
            let fired: Vec<i64> =
                column(c, "SELECT last_job_id FROM queue.schedules WHERE name = 'resting' AND last_job_id IS NOT NULL");
            fired.first().copied()
        });
        run(c, "SELECT queue.pause_schedule('resting')");
        integrity::check(c);
        let log = target.log();
        assert!(!log.contains("PANIC") && !log.contains("XX000") && !log.contains("TRAP"), "{log}");
    }

    /// Checks that the settings of queues, keys and roles are unchanged.
    fn check_rules(&self, c: &mut Client) {
        assert_eq!(value::<i64>(c, "SELECT queue.enqueue('keyed', unique_key => 'k')"), self.keyed);
        let ended = "SELECT state FROM queue.job(queue.enqueue('keyed', unique_key => 'ended'))";
        assert_eq!(value::<String>(c, ended), "completed");
        assert_eq!(column::<i64>(c, "SELECT id FROM queue.claim('late')").len(), 0, "the queue is paused");
        run(c, "SET ROLE producer");
        run(c, "BEGIN; SELECT queue.enqueue('plain'); ROLLBACK");
        assert_eq!(failure(c, "SELECT FROM queue.claim('plain')"), "42501");
        run(c, "SET ROLE consumer");
        run(c, "BEGIN; SELECT FROM queue.claim('strict'); ROLLBACK");
        run(c, "RESET ROLE");
        let unwell: Vec<String> =
            column(c, "SELECT concat_ws(': ', name, detail) FROM queue.doctor() WHERE NOT ok AND name <> 'worker'");
        assert!(unwell.is_empty(), "{unwell:?}");
    }
}

/// What the other tests rely on. A new server whose minor version is older than the old server's may refuse its
/// catalogs. For example, 18.6 refuses every table of 15.20.
#[test]
fn the_servers_can_be_upgraded_without_pg_queue() {
    let bare = "shared_preload_libraries = ''";
    let old = Cluster::of(old_installation()).conf(bare).as_of_initdb().start();
    run(&mut old.connect(), "CREATE TABLE plain AS SELECT 7 AS x");
    old.stop_fast();
    let target = upgrade(&old, bare, &[]);
    assert_eq!(value::<i32>(&mut target.connect(), "SELECT x FROM plain"), 7);
}

#[test]
fn jobs_in_every_state_go_on_under_a_later_major() {
    let before = Before::new();
    let target = upgrade(&before.cluster, CONF, &[]);
    before.check(&target);
}

#[test]
fn jobs_in_every_state_go_on_where_the_files_are_linked() {
    let before = Before::new();
    let target = upgrade(&before.cluster, CONF, &["--link"]);
    before.check(&target);
}
