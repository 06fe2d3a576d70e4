//! Calls that replication silently passes over. Both sides count, and a repair brings the missing calls.

use postgres::Client;
use queue_tests::sql::Sql;
use queue_tests::{integrity, wait};

use crate::outages::put_old;
use crate::pair::{DATABASE, Pair, primary_sql};

/// Enqueues a job, requests the cancellation of another, and puts a third into the partition that is emptied next.
/// Returns the id of the first.
fn call(pair: &Pair, cancelled: i64) -> i64 {
    let mut app = pair.app();
    app.run(&format!("SELECT queue.cancel({cancelled}, 'not needed')"));
    put_old(&mut pair.primary_as("owner"), 7);
    app.enqueue("q")
}

/// Makes contacts until these calls have arrived. Returns what the first contact reported.
#[track_caller]
fn contact_until_arrived(pair: &Pair, cancelled: i64, job: i64) -> String {
    let mut server = pair.server();
    let found = wait::until("the contact sees it", || pair.contact());
    wait::until("the missing calls arrive", || {
        pair.contact();
        (server.count(&format!("SELECT FROM queue.job({job})")) == 1).then_some(())
    });
    pair.wait_arrived();
    assert_eq!(server.state(cancelled), "cancelled");
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE payload = '7'"), 1);
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    wait::until("all is well", || {
        let problem = "SELECT problem FROM queue_bridge.sources";
        (pair.contact().is_none() && server.value::<Option<String>>(problem).is_none()).then_some(())
    });
    integrity::check(&mut server);
    found
}

/// Connects a pair with a job, runs `before`, makes calls, runs `after`, and waits for the calls. Returns what the
/// first contact reported.
#[track_caller]
fn check(before: impl FnOnce(&Pair, &mut Client), after: impl FnOnce(&Pair, &mut Client)) -> String {
    let pair = Pair::new();
    let cancelled = pair.app().enqueue("q");
    pair.wait_arrived();
    assert_eq!(pair.contact(), None);
    let mut primary = pair.primary.connect_to(DATABASE);
    before(&pair, &mut primary);
    let job = call(&pair, cancelled);
    after(&pair, &mut primary);
    contact_until_arrived(&pair, cancelled, job)
}

#[test]
fn calls_that_were_not_published_for_a_moment_arrive() {
    let found = check(
        |_, primary| primary.run("ALTER PUBLICATION pg_queue DROP TABLE queue_bridge.outbox"),
        |_, primary| primary.run("ALTER PUBLICATION pg_queue ADD TABLE queue_bridge.outbox"),
    );
    assert_eq!(found, "its publication or its outbox was changed");
    let found = check(
        |_, primary| primary.run("ALTER PUBLICATION pg_queue SET (publish = 'update')"),
        |_, primary| primary.run("ALTER PUBLICATION pg_queue SET (publish = 'insert')"),
    );
    assert_eq!(found, "its publication or its outbox was changed");
    let found = check(
        |_, primary| primary.run("DROP PUBLICATION pg_queue"),
        |pair, _| pair.primary_as("owner").run(&primary_sql()),
    );
    assert_eq!(found, "its publication or its outbox was changed");
}

#[test]
fn a_publication_that_lacks_the_outbox_is_named() {
    let pair = Pair::new();
    let mut primary = pair.primary.connect_to(DATABASE);
    let (mut owner, mut server) = (pair.primary_as("owner"), pair.server());
    primary.run("ALTER PUBLICATION pg_queue DROP TABLE queue_bridge.outbox");
    let job = pair.app().enqueue("q");
    let partition = put_old(&mut owner, 7);
    for _ in 0..4 {
        let said = pair.contact().expect("a problem");
        assert!(said.contains("does not publish the outbox"), "{said}");
        assert_eq!(owner.count(&format!("SELECT FROM {partition}")), 1, "it is not emptied");
    }
    primary.run("ALTER PUBLICATION pg_queue ADD TABLE queue_bridge.outbox");
    assert!(pair.contact().is_some());
    pair.wait_arrived();
    assert_eq!(server.state(job), "ready");
    wait::until("it is emptied", || {
        pair.contact();
        (owner.count(&format!("SELECT FROM {partition}")) == 0).then_some(())
    });
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE payload = '7'"), 1);
}

#[test]
fn calls_that_a_slot_has_passed_over_arrive() {
    let found = check(
        |pair, primary| {
            pair.server().run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
            let is_active = "SELECT FROM pg_replication_slots WHERE active";
            wait::until("the source is not read", || (primary.count(is_active) == 0).then_some(()));
        },
        |pair, primary| {
            primary
                .run("SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots");
            pair.server().run("ALTER SUBSCRIPTION queue_bridge_shop ENABLE");
        },
    );
    assert_eq!(found, "3 of its calls have not arrived");
}

#[test]
fn calls_of_an_outbox_without_wal_arrive() {
    let all = |how: &str| {
        (0..3).map(|n| format!("ALTER TABLE queue_bridge.outbox_{n} SET {how};")).collect::<Vec<_>>().join(" ")
    };
    let found = check(|_, primary| primary.run(&all("UNLOGGED")), |_, primary| primary.run(&all("LOGGED")));
    assert_eq!(found, "3 of its calls have not arrived");
}

#[test]
fn a_trigger_that_was_disabled_is_mended() {
    let found = check(
        |pair, _| pair.server().run("ALTER TABLE queue_bridge.outbox DISABLE TRIGGER ALL"),
        |pair, _| {
            let mut server = pair.server();
            server.run("ALTER TABLE queue_bridge.outbox ENABLE TRIGGER ALL");
            wait::until("rows are stored", || (server.count("SELECT FROM queue_bridge.outbox") == 3).then_some(()));
            let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge' AND NOT ok";
            assert!(server.value::<String>(doctor).contains("trigger \"arrive\""));
        },
    );
    assert!(found.contains("trigger \"arrive\" was disabled"), "{found}");
}

#[test]
fn a_contact_that_fails_says_why() {
    let pair = Pair::new();
    let mut server = pair.server();
    let (mut app, mut session) = (pair.app(), pair.server());
    session.run("BEGIN; SELECT queue.enqueue('q', unique_key => 'k')");
    app.run("SELECT queue.enqueue('q', unique_key => 'k')");
    pair.wait_arrived();
    session.run("ROLLBACK");
    pair.primary.stop_fast();
    server.run("SELECT queue.resume_schedule('queue_bridge_shop')");
    server.run(
        "SELECT queue.schedule('queue_bridge_shop', 'queue_bridge_shop', '{\"source\": \"shop\"}', every => '1 s')",
    );
    wait::until("the problem is told", || {
        let problem = server.value::<Option<String>>("SELECT problem FROM queue_bridge.sources");
        problem.filter(|problem| problem.starts_with("there is no contact: "))
    });
    let job = "SELECT FROM queue.jobs WHERE unique_key = 'k' AND state = 'ready'";
    wait::until("what waits is tried without the source", || (server.count(job) == 1).then_some(()));
    pair.primary.start_again();
    wait::until("there is a contact", || {
        server.value::<Option<String>>("SELECT problem FROM queue_bridge.sources").is_none().then_some(())
    });
}
