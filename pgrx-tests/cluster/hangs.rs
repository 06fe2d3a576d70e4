//! Servers that hang, connections that break during a claim, and peers of different versions. No job is lost, and other
//! servers are not affected more than necessary.

use std::thread::scope;

use queue_tests::Cluster;
use queue_tests::sql::Sql;
use queue_tests::wait;

use crate::peers::{Peers, node};

/// PL/Proxy waits for an answer, and for the answer to its cancel request, as long as the other server exists. Only the
/// sessions that asked are held up.
#[test]
fn a_hanging_server_holds_up_only_the_sessions_that_have_asked_it() {
    let peers = Peers::new(2);
    let (c, thief) = (&mut peers.connect(0), &mut peers.connect(0));
    let lost = peers.key_of(1);
    let pid = thief.pid();
    // The connection to the other server is open before that server begins to hang.
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('q')"), 0);
    let frozen = peers.servers[1].freeze_sessions();
    scope(|scope| {
        let asked = scope.spawn(|| thief.count("SELECT FROM queue_cluster.claim('q', 5)"));
        wait::until("the thief waits for an answer", || {
            let claims =
                format!("SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' AND query LIKE '%claim%'");
            (c.count(&claims) == 1).then_some(())
        });
        c.run("SELECT queue_cluster.mark_down('s2')");
        c.run("SELECT queue_cluster.enqueue('q')");
        assert_eq!(c.count("SELECT FROM queue_cluster.claim('q', 5)"), 1);
        assert_eq!(c.count("SELECT FROM queue_cluster.claim('q', wait => '50 ms')"), 0);
        c.refused(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{lost}')"), "08001");
        assert_eq!(c.count("SELECT FROM queue_cluster.jobs"), 1);
        // Only the end of the hanging server helps.
        peers.servers[1].kill_server();
        assert_eq!(asked.join().expect("the thief"), 0);
    });
    drop(frozen);
    assert_eq!(thief.count("SELECT FROM queue_cluster.claim('q', 5)"), 0);
}

/// The claim is recorded there, but its answer is lost with the thief. The job is offered again when its lease ends.
#[test]
fn a_claim_whose_answer_is_lost_comes_back() {
    let peers = Peers::new(2);
    let (c, owner) = (&mut peers.connect(0), &mut peers.connect(1));
    c.run("SELECT queue_cluster.alter('q', lease => '2 s')");
    let job: i64 = owner.value("SELECT queue_cluster.enqueue('q')");
    let mut thief = peers.connect(0);
    let pid = thief.pid();
    thief.run("BEGIN");
    let id: i64 = thief.value("SELECT id FROM queue_cluster.claim('q')");
    assert_eq!(node(id), 1);
    c.run(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    let again = wait::until("the job is offered again", || {
        let row = c.query_opt("SELECT id, job_id FROM queue_cluster.claim('q')", &[]).expect("a claim")?;
        assert_eq!(row.get::<_, i64>(1), job);
        Some(row.get::<_, i64>(0))
    });
    c.refused(&format!("SELECT queue_cluster.complete({id})"), "QJ001");
    c.run(&format!("SELECT queue_cluster.complete({again})"));
    // The job's server is killed while a thief holds the job. When the server is back, it knows the claim.
    c.run("SELECT queue_cluster.alter('q', lease => '1 hour')");
    owner.run("SELECT queue_cluster.enqueue('q')");
    let id: i64 = c.value("SELECT id FROM queue_cluster.claim('q')");
    peers.servers[1].kill_server();
    let failure = c.failure(&format!("SELECT queue_cluster.complete({id})"));
    assert!(failure.code.starts_with("08") || failure.code.starts_with("57P"), "{failure:?}");
    peers.servers[1].start_again();
    wait::until("it is completed", || c.simple_query(&format!("SELECT queue_cluster.complete({id})")).ok());
}

/// A role that one server does not know, or that has no privileges there: work at home goes on, and `check` reports the
/// problem.
#[test]
fn a_role_that_one_server_refuses_steals_nothing_there() {
    let peers = Peers::new(2);
    let admin = &mut peers.connect(0);
    let mut role = peers.connect_as(0, "hand");
    admin.run("SELECT queue.grant('q', 'hand', 'consume'), queue.grant('q', 'hand', 'produce')");
    peers.connect(1).run("SELECT queue_cluster.enqueue('q')");
    assert_eq!(role.count("SELECT FROM queue_cluster.claim('q')"), 0);
    role.run("SELECT queue_cluster.enqueue('q')");
    assert_eq!(role.count("SELECT FROM queue_cluster.claim('q', 5)"), 1);
    let key = peers.key_of(1);
    role.refused(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"), "42501");
    let said: Vec<String> = admin.column("SELECT problem FROM queue_cluster.check()");
    assert_eq!(said, ["its privileges differ: consume on q to hand here, produce on q to hand here"]);
    admin.run("SELECT queue_cluster.grant('q', 'hand', 'consume'), queue_cluster.grant('q', 'hand', 'produce')");
    assert_eq!(role.count("SELECT FROM queue_cluster.claim('q', 5)"), 1);
    assert_eq!(admin.count("SELECT FROM queue_cluster.check()"), 0);
    peers.servers[1]
        .connect_to("app")
        .run("SELECT queue.revoke('q', 'hand', 'consume'), queue.revoke('q', 'hand', 'produce')");
    peers.servers[1].connect().run("DROP ROLE hand");
    let mut again = peers.servers[0].connect_as("app", "hand");
    assert_eq!(again.count("SELECT FROM queue_cluster.claim('q', 5)"), 0);
    let failure = again.failure(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    assert!(failure.code.starts_with("08"), "{failure:?}");
}

/// A copy of a peer that is restored elsewhere owns no keys and calls no server. A peer that is restored in place of
/// the lost one is added again.
#[test]
fn a_dump_of_a_peer_has_no_map() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let key = peers.key_of(1);
    c.run("SELECT queue_cluster.enqueue('q', '7')");
    let dump = peers.servers[0].pg_dump(&["-d", "app"]);
    let copy = Cluster::new().conf("pg_queue.node_id = 1").start();
    copy.create_database("app").run("SELECT 1");
    copy.psql_in("app", &dump);
    let other = &mut copy.connect_to("app");
    assert_eq!(other.count("SELECT FROM queue_cluster.server") + other.count("SELECT FROM queue_cluster.slot"), 0);
    other.refused(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"), "55000");
    let id = wait::until("the job of the dump is claimed", || {
        other.query_opt("SELECT id FROM queue_cluster.claim('q')", &[]).ok()?.map(|row| row.get::<_, i64>(0))
    });
    other.run(&format!("SELECT queue_cluster.complete({id})"));
    // The copy takes the place of the lost server.
    let conninfo = format!("host={} dbname=app", copy.dir().display());
    peers.servers[0].stop_immediate();
    let rest = &mut peers.connect(1);
    let found: Vec<String> = rest.column("SELECT problem FROM queue_cluster.check()");
    assert!(found[0].starts_with("it cannot be reached"), "{found:?}");
    assert_eq!(rest.value::<i32>(&format!("SELECT queue_cluster.add_server('s1', '{conninfo}')")), 1);
    assert_eq!(rest.count("SELECT FROM queue_cluster.check()"), 0);
    other.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    let is_well = "SELECT ok FROM queue.doctor() WHERE name = 'cluster'";
    assert!(other.value::<bool>(is_well) && rest.value::<bool>(is_well));
}

/// Peers are upgraded one after the other. Calls that fit work, others fail with a clear error, and a peer of another
/// version cannot be added.
#[test]
fn peers_of_two_versions_are_told_apart() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let key = peers.key_of(1);
    peers.connect(1).run("UPDATE pg_extension SET extversion = '0.0.1' WHERE extname = 'pg_queue_cluster'");
    c.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    let found: String = c.value("SELECT problem FROM queue_cluster.check()");
    assert!(found.starts_with("it has version 0.0.1 of pg_queue_cluster"), "{found}");
    let again = format!("SELECT queue_cluster.add_server('s2', '{}')", peers.conninfo(1));
    c.refused(&again, "55000");
    // A newer server calls with arguments that the older one does not have.
    peers.connect(1).run("ALTER FUNCTION queue_cluster.accept_enqueue RENAME TO accept_enqueue_of_before");
    c.refused(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"), "42883");
    peers.connect(1).run(
        "ALTER EXTENSION pg_queue DROP FUNCTION queue.claim; ALTER FUNCTION queue.claim RENAME TO claim_of_before",
    );
    assert_eq!(c.count("SELECT FROM queue_cluster.claim('q')"), 0);
    let failure = peers.connect(1).failure("SELECT FROM queue_cluster.claim('q')");
    assert!(failure.code == "42883" && failure.hint.contains("UPDATE"), "{failure:?}");
}

/// The extension does not use a schema that a role has made before.
#[test]
fn a_schema_that_was_there_before_is_refused() {
    let (_server, mut client) = Cluster::new().conf("pg_queue.node_id = 1").start_with_database("app");
    client.run("CREATE EXTENSION plproxy; CREATE SCHEMA queue_cluster");
    client.refused("CREATE EXTENSION pg_queue_cluster", "42P06");
    client.run("DROP SCHEMA queue_cluster; CREATE EXTENSION pg_queue_cluster; DROP EXTENSION pg_queue_cluster");
    assert_eq!(client.count("SELECT FROM pg_namespace WHERE nspname = 'queue_cluster'"), 0);
}

/// The doctor reports a server that has the number of another one, and names the servers that are marked down.
#[test]
fn the_doctor_knows_the_number_of_a_server() {
    let peers = Peers::new(2);
    let c = &mut peers.connect(0);
    let finding = |c: &mut postgres::Client| -> (bool, String) {
        let row = c.query_one("SELECT ok, detail FROM queue.doctor() WHERE name = 'cluster'", &[]).expect("the check");
        (row.get(0), row.get(1))
    };
    assert_eq!(finding(c), (true, "It is number 1 of 2 servers, none of which is marked down.".to_owned()));
    c.run("SELECT queue_cluster.mark_down('s2')");
    assert_eq!(finding(c), (false, "Server \"s2\" is marked down.".to_owned()));
    c.run("SELECT queue_cluster.mark_up('s2')");
    for (number, what) in [(2, "the number of server \"s2\""), (7, "the number of no server"), (1, "")] {
        peers.servers[0].append_conf(&format!("pg_queue.node_id = {number}"));
        peers.servers[0].reload();
        let c = &mut peers.connect(0);
        wait::until("the server has read its number", || {
            (c.value::<String>("SHOW pg_queue.node_id") == number.to_string()).then_some(())
        });
        let (is_ok, detail) = finding(c);
        assert!(is_ok == (number == 1) && detail.contains(what), "{number}: {detail}");
        let said: Vec<String> = c.column("SELECT problem FROM queue_cluster.check() WHERE server = 'this server'");
        assert_eq!(said.len(), usize::from(number != 1), "{said:?}");
    }
}
