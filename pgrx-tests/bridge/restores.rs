//! A primary that is replaced by a copy of itself: a dump, a snapshot of its disk, an earlier timeline. No id is given
//! twice, effects are remembered, and nothing is emptied before it has arrived.

use std::path::Path;
use std::process::Command;

use queue_tests::sql::Sql;
use queue_tests::{Cluster, installation, integrity, wait};

use crate::outages::{cut_off, put_old};
use crate::pair::{DATABASE, Pair, conninfo, prepared, primary_sql};

/// Checks that there are this many jobs, with distinct ids.
#[track_caller]
fn check_ids(pair: &Pair, jobs: i64) {
    let mut server = pair.server();
    let found = server.value::<String>("SELECT format('%s %s', count(*), count(DISTINCT job_id)) FROM queue.jobs");
    assert_eq!(found, format!("{jobs} {jobs}"));
    // A repair brings the marks of `wait_arrived` once more.
    assert_eq!(server.count("SELECT FROM queue_bridge.refused WHERE verb <> '?'"), 0);
    integrity::check(&mut server);
}

/// Moves the source to a primary at another address. Returns what the repair said.
fn repair(pair: &Pair, conninfo: &str) -> String {
    pair.server().value(&format!(
        "SELECT concat_ws(' ', copied, known, renumbered, phantoms) FROM queue_bridge.repair('shop', '{conninfo}')"
    ))
}

#[test]
fn a_restored_dump_of_the_primary_can_be_the_source() {
    // The options of the dump, whether the script runs before or after it, and whether the data of the outbox is
    // restored.
    for (options, script, has_data) in [
        (&["-Fc"][..], "", true),
        (&["--schema-only"][..], "", false),
        (&["--data-only"][..], "before", true),
        (&["-n", "queue_bridge"][..], "after", true),
    ] {
        let mut pair = Pair::new();
        let mut app = pair.app();
        let done = app.enqueue("q");
        assert!(app.value::<bool>(&format!("SELECT queue.once({done})")));
        pair.wait_arrived();
        assert_eq!(pair.contact(), None);
        let dump = pair.primary.dir().join("dump");
        let name = dump.to_string_lossy().into_owned();
        installation::run(pair.primary.command("pg_dump").args(options).args(["-f", &name, DATABASE]));
        // This job is not in the dump.
        let lost = app.enqueue("q");
        pair.wait_arrived();
        let other = prepared(Cluster::new(), "");
        let run_script = || {
            let mut owner = other.connect_as(DATABASE, "owner");
            owner.run(&primary_sql());
            owner.run("SELECT queue_bridge.admit('taker'), queue_bridge.grant('app', '{produce,consume,manage}')");
        };
        if script == "before" {
            run_script();
        }
        let mut restore = other.command(if options == ["-Fc"] { "pg_restore" } else { "psql" });
        restore.args(["-d", DATABASE]);
        if options != ["-Fc"] {
            restore.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]);
        }
        installation::run(restore.arg(&name));
        if script == "after" {
            run_script();
        }
        let mut app = other.connect_as(DATABASE, "app");
        let enqueue = "SELECT queue.enqueue('q')";
        // The restored primary is not connected. It may give ids that the old primary has given.
        let early = if script == "before" {
            app.refused(enqueue, "55000");
            0
        } else {
            i64::try_from(app.count(enqueue)).expect("one")
        };
        let said = repair(&pair, &conninfo(&other));
        pair.primary = other;
        for _ in 0..40 {
            app.enqueue("q");
        }
        pair.wait_arrived();
        assert_eq!(pair.contact(), None, "{options:?}");
        check_ids(&pair, 42 + early);
        let phantoms = pair.server().column::<i64>("SELECT job_id FROM queue_bridge.phantom");
        if has_data {
            assert_eq!(phantoms, [lost], "{options:?}: {said}");
            assert!(!app.value::<bool>(&format!("SELECT queue.once({done})")), "{options:?}: its effect is restored");
        } else {
            assert_eq!(phantoms, Vec::<i64>::new(), "{options:?}: {said}");
        }
        assert_eq!(pair.primary_as("owner").count("SELECT FROM queue_bridge.turn WHERE since > now()"), 0);
        wait_emptied(&pair);
    }
}

/// Puts an old call into the outbox and waits until its partition is emptied.
#[track_caller]
fn wait_emptied(pair: &Pair) {
    let mut owner = pair.primary_as("owner");
    let partition = put_old(&mut owner, 1);
    pair.wait_arrived();
    wait::until("it is emptied", || {
        assert_eq!(pair.contact(), None);
        (owner.count(&format!("SELECT FROM {partition}")) == 0).then_some(())
    });
}

#[test]
fn a_copy_in_another_database_is_not_the_source_until_it_is_repaired() {
    let pair = Pair::new();
    pair.app().enqueue("q");
    pair.wait_arrived();
    let dump = pair.primary.pg_dump(&["-d", DATABASE]);
    pair.primary.connect().run("CREATE DATABASE copy OWNER owner TEMPLATE template0");
    let printed = pair.primary.psql_in("copy", &dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut copy = pair.primary.connect_as("copy", "app");
    copy.run("SELECT queue.enqueue('q') FROM generate_series(1, 2)");
    // The copy reports that no queue server takes its jobs, and it keeps them.
    let mut owner = pair.primary.connect_as("copy", "owner");
    assert!(!owner.value::<bool>("SELECT is_active FROM queue_bridge.lag()"));
    let partition = put_old(&mut owner, 1);
    for _ in 0..2 {
        assert!(!owner.value::<bool>("SELECT queue_bridge.tidy()"));
    }
    owner.run(&format!("DELETE FROM {partition}"));
    assert_eq!(pair.contact(), None);
    pair.app().enqueue("q");
    pair.wait_arrived();
    check_ids(&pair, 2);
    // The copy takes over. It has also given the id of the second job.
    let said = repair(&pair, &pair.conninfo().replace("dbname=shop", "dbname=copy"));
    assert_eq!(said, "3 1 1 1");
    copy.enqueue("q");
    pair.wait_streaming();
    let mut server = pair.server();
    wait::until("all of it has arrived", || (server.count("SELECT FROM queue.jobs") == 5).then_some(()));
    assert_eq!(pair.contact(), None);
    check_ids(&pair, 5);
}

#[test]
fn a_restore_without_the_publication_is_refused() {
    let pair = Pair::new();
    pair.primary.connect_to(DATABASE).run("DROP PUBLICATION pg_queue");
    let failure = pair.server().refused("SELECT queue_bridge.repair('shop')", "55000");
    assert!(failure.message.contains("publication"), "{failure:?}");
    pair.primary_as("owner").run(&primary_sql());
    pair.server().run("SELECT queue_bridge.repair('shop')");
    pair.app().enqueue("q");
    pair.wait_arrived();
    check_ids(&pair, 1);
}

#[test]
fn rows_that_a_restore_adds_to_the_outbox_are_known() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    server.run(
        "SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#'); SELECT queue_bridge.allow('shop', 't')",
    );
    for (verb, target) in [("e", "q"), ("e", "q"), ("p", "t")] {
        owner.run(&format!(
            "INSERT INTO queue_bridge.outbox SELECT queue_bridge.new_id() - ('{verb}' = 'p')::integer, at,
             queue_bridge.ring_at(at), '{verb}', '{target}', NULL, '1'
             FROM (SELECT now() - interval '5 minutes') AS t (at)"
        ));
    }
    pair.wait_arrived();
    check_ids(&pair, 3);
    server.run("SELECT queue.complete(id) FROM queue.claim('q')");
    let dump = pair.primary.pg_dump(&["--data-only", "-t", "queue_bridge.outbox*", DATABASE]);
    let printed = pair.primary.psql_in(DATABASE, &dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    pair.wait_arrived();
    check_ids(&pair, 3);
    // Restores the whole schema. The publication was gone for a while, so the slot cannot be used any more.
    for _ in 0..2 {
        assert_eq!(pair.contact(), None);
    }
    let dump = pair.primary.pg_dump(&["-d", DATABASE]);
    for _ in 0..3 {
        assert_eq!(pair.contact(), None);
    }
    owner.run("DROP SCHEMA queue, queue_bridge CASCADE; DROP PUBLICATION pg_queue");
    let printed = pair.primary.psql_in(DATABASE, &dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    assert_eq!(pair.contact().as_deref(), Some("it has gone back in time"));
    app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_ids(&pair, 4);
}

/// Copies a data directory.
pub fn copy_folder(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}

#[test]
fn a_primary_that_goes_back_in_time_is_repaired() {
    let pair = Pair::new();
    for _ in 0..10 {
        pair.app().enqueue("q");
    }
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    pair.primary.stop_fast();
    let (data, backup) = (pair.primary.data(), pair.primary.dir().join("backup"));
    copy_folder(&data, &backup);
    pair.primary.start_again();
    for _ in 0..10 {
        pair.app().enqueue("q");
    }
    pair.primary.connect().run("CREATE TABLE much AS SELECT repeat('x', 1000) AS x FROM generate_series(1, 10000)");
    pair.wait_arrived();
    for _ in 0..3 {
        assert_eq!(pair.contact(), None);
    }
    // A snapshot of the disk has the same server, the same timeline and the slot.
    pair.primary.stop_fast();
    std::fs::remove_dir_all(&data).expect("the data directory");
    copy_folder(&backup, &data);
    pair.primary.start_again();
    for _ in 0..20 {
        pair.app().enqueue("q");
    }
    assert_eq!(pair.contact().as_deref(), Some("it has gone back in time"));
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    check_ids(&pair, 40);
    assert_eq!(pair.server().value::<i64>("SELECT phantoms FROM queue_bridge.sources"), 10);
}

#[test]
fn ids_go_on_when_a_primary_with_an_earlier_timeline_takes_over() {
    let mut pair = Pair::new();
    pair.app().enqueue("q");
    pair.wait_arrived();
    let standby = pair.primary.standby();
    standby.wait_replayed(&pair.primary);
    cut_off(&standby);
    standby.promote();
    let enqueue = |pair: &Pair| {
        pair.app().run("SELECT queue.enqueue('q') FROM generate_series(1, 100)");
        pair.wait_arrived();
    };
    // The source moves to the former standby, back, and there again.
    let mut other = standby;
    for round in 1..=3 {
        std::mem::swap(&mut pair.primary, &mut other);
        repair(&pair, &pair.conninfo());
        // Waits for the repair, which looks up copied calls by their ids. The next calls arrive after it.
        pair.wait_arrived();
        enqueue(&pair);
        check_ids(&pair, 1 + round * 100);
    }
}

#[test]
fn nothing_is_emptied_before_it_was_copied() {
    let pair = Pair::new();
    let (mut server, mut owner) = (pair.server(), pair.primary_as("owner"));
    server.run("SELECT queue.create_topic('t'); SELECT queue_bridge.allow('shop', 't')");
    assert_eq!(pair.contact(), None);
    // The queue server is away for so long that its slot is lost.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    let mut primary = pair.primary.connect_to(DATABASE);
    wait::until("the slot is free", || {
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active";
        (primary.count(sql) > 0).then_some(())
    });
    let partition = put_old(&mut owner, 1);
    // A copied call fails for a while.
    pair.app().run("SELECT queue.publish('t')");
    let publish = "CREATE OR REPLACE FUNCTION queue_bridge.publish(topic text, ids bigint[], made_at timestamptz,
        body jsonb, options jsonb) RETURNS void";
    server.run(&format!("{publish} LANGUAGE plpgsql AS $$BEGIN RAISE 'no power' USING ERRCODE = '58030'; END$$"));
    assert_eq!(pair.contact().as_deref(), Some("its slot is lost"));
    pair.wait_failing();
    for _ in 0..30 {
        pair.contact();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(owner.count(&format!("SELECT FROM {partition}")), 1, "it has not arrived");
    server.run(&format!("{publish} LANGUAGE c AS '$libdir/pg_queue', 'pg_queue_bridge_publish'"));
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 1);
    wait::until("it is emptied", || {
        assert_eq!(pair.contact(), None);
        (owner.count(&format!("SELECT FROM {partition}")) == 0).then_some(())
    });
}
