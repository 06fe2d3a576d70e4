//! Servers that are away: which calls fail, how they fail, and which calls still work.

use queue_tests::sql::Sql;

use crate::peers::{Peers, node};

#[test]
fn a_lost_server_is_an_error_of_its_own_and_the_others_go_on() {
    let peers = Peers::new(3);
    let c = &mut peers.connect(0);
    let (own, lost) = (peers.key_of(0), peers.key_of(2));
    let job: i64 = c.value(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{lost}')"));
    peers.servers[2].stop_immediate();
    let keyed = |key: &str| format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')");
    // First the open connection breaks, then a new one fails.
    for _ in 0..2 {
        let failure = c.failure(&keyed(&lost));
        assert!(failure.code.starts_with("08") || failure.code == "57P01" || failure.code == "57P02", "{failure:?}");
    }
    c.refused(&format!("SELECT queue_cluster.cancel({job})"), "08001");
    c.refused("SELECT * FROM queue_cluster.jobs", "08001");
    // Claims, calls at home and calls for the second server still work.
    c.run(&keyed(&own));
    c.run(&keyed(&peers.key_of(1)));
    c.run("SELECT queue_cluster.enqueue('q')");
    assert_eq!(c.count("SELECT FROM queue_cluster.claim('q', 10)"), 2);
    assert_eq!(c.count("SELECT FROM queue_cluster.claim('q', 10)"), 1);
    assert_eq!(c.count("SELECT FROM queue_cluster.claim('q', wait => '1 s')"), 0);

    let problems: Vec<String> = c.column("SELECT server || ': ' || problem FROM queue_cluster.check()");
    assert!(problems.iter().any(|problem| problem.starts_with("s3: it cannot be reached")), "{problems:?}");
    c.run("SELECT queue_cluster.mark_down('s3')");
    let failure = c.failure(&keyed(&lost));
    assert!(failure.code == "08001" && failure.message.contains("marked down"), "{failure:?}");
    assert_eq!(peers.connect(1).failure(&keyed(&lost)).code, "08001");
    assert_eq!(c.count("SELECT FROM queue_cluster.jobs"), 3);
    let problems: Vec<String> = c.column("SELECT server || ': ' || problem FROM queue_cluster.check()");
    assert_eq!(problems, ["s3: it is marked down"]);

    peers.servers[2].start_again();
    c.run("SELECT queue_cluster.mark_up('s3')");
    assert_eq!(c.value::<i64>(&keyed(&lost)), job);
    assert_eq!(c.count("SELECT FROM queue_cluster.check()"), 0);
    assert_eq!(c.count("SELECT FROM queue_cluster.jobs"), 4);
}

#[test]
fn a_change_that_some_servers_missed_is_completed_by_repeating_it() {
    let peers = Peers::new(3);
    let c = &mut peers.connect(0);
    peers.servers[1].stop_immediate();
    let failure = c.refused("SELECT queue_cluster.create('late', max_running => 10)", "08001");
    assert!(failure.detail.contains("s3: done") && failure.detail.contains("s2: "), "{failure:?}");
    peers.servers[1].start_again();
    c.run("SELECT queue_cluster.create('late', max_running => 10)");
    let limits: Vec<i32> =
        c.column("SELECT max_running FROM queue_cluster.queues WHERE queue_name = 'late' ORDER BY server");
    assert_eq!(limits, [4, 3, 3], "a limit is divided");
    c.refused("SELECT queue_cluster.create('late')", "42710");
    c.refused("SELECT queue_cluster.create('two', max_running => 2)", "22023");
    c.run("SELECT queue_cluster.alter('late', rate_limit => 5)");
    c.run("SELECT queue.drop('late')");
    let problems: Vec<String> = peers.connect(1).column("SELECT server || ': ' || problem FROM queue_cluster.check()");
    assert_eq!(problems, ["s1: queue \"late\" is missing there"]);
    c.run("SELECT queue_cluster.drop('late')");
    c.refused("SELECT queue_cluster.drop('late')", "42704");
    assert_eq!(c.count("SELECT FROM queue_cluster.check()"), 0);
}

#[test]
fn a_server_is_found_behind_its_standby() {
    let peers = Peers::new(2);
    let standby = peers.servers[1].standby();
    let c = &mut peers.connect(0);
    let both = format!(
        "host={},{} dbname=app target_session_attrs=read-write connect_timeout=3",
        peers.servers[1].dir().display(),
        standby.dir().display()
    );
    c.run(&format!("SELECT queue_cluster.add_server('s2', '{both}')"));
    let key = peers.key_of(1);
    let enqueue = format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')");
    let job: i64 = c.value(&enqueue);
    standby.wait_replayed(&peers.servers[1]);
    peers.servers[1].kill_server();
    standby.promote();
    queue_tests::wait::until("the promoted server answers", || {
        c.query(&enqueue, &[]).ok().map(|rows| assert_eq!(rows[0].get::<_, i64>(0), job))
    });
    let id: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
    assert_eq!(node(id), 1);
    c.run(&format!("SELECT queue_cluster.complete({id})"));
}

/// Each job of queue `outbox` makes one remote job and is completed after it. However often the remote enqueue is
/// repeated, the remote job exists once.
#[test]
fn an_outbox_forwards_once() {
    let peers = Peers::new(2);
    let (from, to) = (&mut peers.connect(0), &mut peers.connect(1));
    from.run("SELECT queue.create('outbox', lease => '1 minute'); CREATE TABLE ordered (n int)");
    let key = |job: i64| {
        format!(
            "SELECT queue_cluster.enqueue('q', '{{\"job\": {job}}}', unique_key => 'outbox:{job}', \
                unique_for => '1 day')"
        )
    };
    for n in 0..60 {
        from.run("BEGIN");
        let job: i64 = from.value("SELECT queue_cluster.enqueue('outbox')");
        from.run(&format!("INSERT INTO ordered VALUES ({n})"));
        from.run(if n % 3 == 0 { "ROLLBACK" } else { "COMMIT" });
        assert!(job > 0);
    }
    let mut crashes = 0;
    loop {
        // Every fourth time the forwarder is cut off between its two commits. Its claim is then offered again.
        let mut forwarder = peers.connect(0);
        let Some(row) = forwarder
            .query_opt("SELECT id, job_id FROM queue.claim('outbox', disconnect => '0')", &[])
            .expect("a claim")
        else {
            break;
        };
        let (id, job): (i64, i64) = (row.get(0), row.get(1));
        forwarder.run(&key(job));
        if crashes < 20 && job % 64 == 15 {
            crashes += 1;
            let pid = forwarder.pid();
            from.run(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
            continue;
        }
        forwarder.run(&format!("SELECT queue.complete({id})"));
    }
    assert!(crashes > 5, "{crashes}");
    let arrived: i64 = to.value("SELECT count(DISTINCT payload) FROM queue_cluster.jobs WHERE queue_name = 'q'");
    assert_eq!((arrived, to.count("SELECT FROM queue_cluster.jobs WHERE queue_name = 'q'")), (40, 40));
}
