//! Tests the support library on servers without pg_queue.

use queue_tests::{Cluster, error, integrity, wait};

fn plain() -> Cluster {
    Cluster::new().conf("shared_preload_libraries = ''").start()
}

#[test]
fn clusters_share_nothing() {
    let (one, other) = (plain(), plain());
    one.connect().batch_execute("CREATE DATABASE only_here").unwrap();
    one.connect_to("only_here");
    assert!(other.config().dbname("only_here").connect(postgres::NoTls).is_err());
}

#[test]
fn a_cluster_survives_each_way_to_end() {
    let cluster = plain();
    cluster.connect().batch_execute("CREATE TABLE kept AS SELECT 1 AS n").unwrap();
    let first = cluster.postmaster_pid();
    cluster.restart();
    assert_ne!(cluster.postmaster_pid(), first);
    cluster.restart_immediate();
    assert!(cluster.log().contains("automatic recovery in progress"));

    // A session that is busy computing must not keep a killed server's memory.
    let mut busy = cluster.connect();
    let computing = std::thread::spawn(move || busy.batch_execute("SELECT count(*) FROM generate_series(1, 1e12)"));
    wait::until("the session computes", || {
        let sql = "SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%series(1%'";
        cluster.connect().query_opt(sql, &[]).unwrap()
    });
    cluster.kill_server();
    assert!(computing.join().unwrap().is_err());
    cluster.start_again();

    let mut victim = cluster.connect();
    let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    cluster.crash(pid);
    let kept: i64 = cluster.connect().query_one("SELECT count(*) FROM kept", &[]).unwrap().get(0);
    assert_eq!(kept, 1);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let cluster = Cluster::new().conf("shared_preload_libraries = 'no_such_library'");
    let log = cluster.try_start().unwrap_err();
    assert!(log.contains("no_such_library"), "{log}");
}

#[test]
fn settings_are_reloaded() {
    let cluster = plain();
    cluster.append_conf("work_mem = '7MB'");
    cluster.reload();
    let row = cluster.connect().query_one("SHOW work_mem", &[]).unwrap();
    assert_eq!(row.get::<_, String>(0), "7MB");
}

#[test]
fn a_standby_follows_and_takes_over() {
    let primary = plain();
    let standby = primary.standby();
    primary.connect().batch_execute("CREATE TABLE t AS SELECT 1").unwrap();
    standby.wait_replayed(&primary);
    let refused = standby.connect().batch_execute("INSERT INTO t VALUES (2)").unwrap_err();
    assert_eq!(error::code(&refused), "25006");
    primary.stop_immediate();
    standby.promote();
    standby.connect().batch_execute("INSERT INTO t VALUES (2)").unwrap();
}

#[test]
fn programs_talk_to_the_cluster() {
    let cluster = plain();
    let printed = cluster.psql("CREATE TABLE t (n int); SELECT 1/0; SELECT 'still ' || 'here';");
    assert!(printed.contains("ERROR:  22012: division by zero"), "{printed}");
    assert!(printed.contains("still here"), "{printed}");
    assert!(cluster.pg_dump(&["--schema-only", "postgres"]).contains("CREATE TABLE public.t"));
}

#[test]
fn an_error_has_its_parts() {
    let cluster = plain();
    let sql = "DO $$ BEGIN RAISE 'm' USING ERRCODE = 'QJ001', DETAIL = 'd', HINT = 'h'; END $$";
    let error = cluster.connect().batch_execute(sql).unwrap_err();
    let parts = (error::code(&error), error::message(&error), error::detail(&error), error::hint(&error));
    assert_eq!(parts, ("QJ001", "m", Some("d"), Some("h")));
}

#[test]
fn a_row_that_an_index_lacks_is_a_fault() {
    let cluster = plain();
    let mut client = cluster.connect();
    client
        .batch_execute("CREATE SCHEMA queue_internal; CREATE TABLE queue_internal.t (id integer PRIMARY KEY)")
        .unwrap();
    client.batch_execute("INSERT INTO queue_internal.t SELECT generate_series(1, 1000)").unwrap();
    assert_eq!(integrity::faults(&mut client), Vec::<String>::new());
    // While the index is not ready, another session inserts a row without an index entry.
    let ready = |is_ready: bool| {
        let sql =
            format!("UPDATE pg_index SET indisready = {is_ready} WHERE indexrelid = 'queue_internal.t_pkey'::regclass");
        cluster.connect().batch_execute(&sql).unwrap();
    };
    ready(false);
    cluster.connect().batch_execute("INSERT INTO queue_internal.t VALUES (1001)").unwrap();
    ready(true);
    let faults = integrity::faults(&mut cluster.connect());
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0].starts_with("queue_internal.t_pkey: ") && faults[0].contains("lacks matching index tuple"),
        "{faults:?}"
    );
}
