//! Calls that cannot be carried out yet are put aside, and other calls do not wait for them. Calls for the same job,
//! key, flow or attempt keep their order.

use std::time::Duration;

use postgres::Client;
use queue_tests::sql::Sql;
use queue_tests::{integrity, wait};

use crate::pair::Pair;

/// Returns the ids of the waiting calls.
fn waiting(server: &mut Client) -> Vec<i64> {
    server.column("SELECT id FROM queue_bridge.refused WHERE is_waiting ORDER BY refused_id")
}

/// Makes contacts until no call waits.
fn contact_until_all_are_done(pair: &Pair) {
    let mut server = pair.server();
    wait::within("all calls are carried out", Duration::from_secs(120), || {
        assert_eq!(pair.contact(), None);
        waiting(&mut server).is_empty().then_some(())
    });
    assert_eq!(server.count("SELECT FROM queue_bridge.refused"), 0);
    integrity::check(&mut server);
}

#[test]
fn a_key_of_an_open_transaction_holds_up_only_calls_that_name_it() {
    let pair = Pair::new();
    let (mut app, mut server, mut session) = (pair.app(), pair.server(), pair.server());
    session.run("BEGIN; SELECT queue.enqueue('q', '\"session\"', unique_key => 'k')");
    let first: i64 = app.value("SELECT queue.enqueue('q', '1', unique_key => 'k')");
    let replaced: i64 = app.value("SELECT queue.enqueue('q', '2', unique_key => 'k', on_duplicate => 'replace')");
    let batch: i64 = app.value("SELECT min(j) FROM queue.enqueue_batch('q', '[{}, {\"unique_key\": \"k\"}]') AS j");
    let grouped: i64 = app.value("SELECT queue.enqueue('q', '3', unique_key => 'k', group_key => 'g')");
    let flow: i64 = app.value("SELECT queue.enqueue_flow('q', unique_key => 'l', group_key => 'g', open => true)");
    let member: i64 = app.value(&format!("SELECT queue.enqueue('q', '\"member\"', flow => {flow})"));
    let after: i64 = app.value(&format!("SELECT queue.enqueue('q', '\"after\"', after => ARRAY[{member}])"));
    app.run(&format!("SELECT queue.seal({flow}), queue.cancel({after}, 'not needed')"));
    let other = app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs WHERE queue_name = 'q'"), [other]);
    let named = [first, replaced, batch, grouped, flow, member, after, flow, after];
    assert_eq!(waiting(&mut server), named);
    let codes = "SELECT DISTINCT code FROM queue_bridge.refused ORDER BY 1";
    assert_eq!(server.column::<String>(codes), ["55006", "55P03"]);
    assert_eq!(server.value::<i64>("SELECT waiting FROM queue_bridge.sources"), 9);
    assert_eq!(server.value::<i64>("SELECT refused FROM queue_bridge.sources"), 0);
    // The contact tries the calls again. It does not report them as refused.
    assert_eq!(pair.contact(), None);
    assert_eq!(waiting(&mut server), named);
    assert_eq!(pair.primary_as("owner").count("SELECT FROM queue_bridge.refused"), 0);
    server.run("SET pg_queue.patience = '1s'");
    wait::until("the patience is over", || {
        let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge'";
        let said = server.value::<String>(doctor);
        (said.contains(&format!("call {first} waits since")) && said.contains("(55P03)")).then_some(())
    });
    session.run("ROLLBACK");
    contact_until_all_are_done(&pair);
    // The calls have the usual effects: the first made the job, and the second changed it.
    let job = |id: i64| format!("SELECT concat_ws(' ', state, payload) FROM queue.job({id})");
    assert_eq!(server.value::<String>(&job(first)), "ready 2");
    assert_eq!(server.value::<String>(&job(batch)), "ready {}");
    let found: i64 = server.value(&format!("SELECT job_id FROM queue_bridge.passed WHERE id = {grouped}"));
    assert_eq!(found, first, "it has found the job that has its key");
    assert_eq!(server.state(after), "cancelled");
    assert_eq!(server.value::<i64>(&format!("SELECT flow FROM queue.job({member})")), flow);
}

#[test]
fn many_keys_of_an_open_transaction_hold_up_nothing_either() {
    let pair = Pair::new();
    let (mut app, mut server, mut session) = (pair.app(), pair.server(), pair.server());
    let keys = "SELECT queue.enqueue('q', to_jsonb(n), unique_key => 'k' || n) FROM generate_series(1, 1000) AS n";
    session.run(&format!("BEGIN; {keys}"));
    app.run(keys);
    let other = app.enqueue("q");
    wait::within("the call behind them has arrived", Duration::from_secs(60), || {
        (server.count(&format!("SELECT FROM queue.job({other})")) == 1).then_some(())
    });
    assert_eq!(waiting(&mut server).len(), 1000);
    // Each call is tried again, although one contact does not reach all of them.
    wait::within("all are tried again", Duration::from_secs(120), || {
        assert_eq!(pair.contact(), None);
        let untried = "SELECT FROM queue_bridge.refused WHERE tried_at < refused_at + interval '1 ms'";
        (server.count(untried) == 0).then_some(())
    });
    session.run("ROLLBACK");
    contact_until_all_are_done(&pair);
    assert_eq!(server.value::<i64>("SELECT count(DISTINCT unique_key) FROM queue.jobs"), 1000);
}

#[test]
fn a_transaction_with_more_keys_than_fit_arrives() {
    let pair = Pair::apart("");
    pair.server.append_conf("pg_queue.max_keys = 1024");
    pair.server.restart();
    let pair = pair.connected();
    let (mut app, mut server) = (pair.app(), pair.server());
    app.run("SELECT queue.enqueue('q', to_jsonb(n), unique_key => 'k' || n) FROM generate_series(1, 3000) AS n");
    let other = app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(server.count(&format!("SELECT FROM queue.job({other})")), 1);
    let hint = "SELECT DISTINCT hint FROM queue_bridge.refused WHERE is_waiting AND code = '53400'";
    assert!(server.value::<String>(hint).starts_with("Raise pg_queue.max_keys"));
    contact_until_all_are_done(&pair);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 3001);
}

#[test]
fn an_end_blocked_by_another_transaction_is_carried_out_later() {
    let pair = Pair::new();
    let (mut app, mut server, mut session) = (pair.app(), pair.server(), pair.server());
    for _ in 0..4 {
        app.enqueue("q");
    }
    pair.wait_arrived();
    let ids = server.column::<i64>("SELECT id FROM queue.claim('q', 4, lease => '1 hour')");
    session.run("BEGIN");
    session.run(&format!("SELECT queue.fail(id, 'no') FROM unnest('{{{},{}}}'::bigint[]) AS id", ids[0], ids[1]));
    app.run(&format!("SELECT queue.complete({}), queue.complete_many('{{{},{}}}')", ids[0], ids[1], ids[2]));
    app.run(&format!("SELECT queue.complete({})", ids[3]));
    pair.wait_arrived();
    assert_eq!(waiting(&mut server), [ids[0], ids[1]]);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE state = 'completed'"), 1);
    session.run("ROLLBACK");
    contact_until_all_are_done(&pair);
    assert_eq!(server.count("SELECT FROM queue.jobs WHERE state = 'completed'"), 4);
}

#[test]
fn a_queue_that_an_open_transaction_drops_holds_up_no_other() {
    let pair = Pair::new();
    let (mut app, mut server, mut session) = (pair.app(), pair.server(), pair.server());
    server.run("SELECT queue.create('other'); SELECT queue_bridge.allow('shop', 'other')");
    assert_eq!(pair.contact(), None);
    let dropped: Vec<i64> = (0..3).map(|_| app.enqueue("other")).collect();
    pair.wait_arrived();
    for end in ["ROLLBACK", "COMMIT"] {
        session.run("BEGIN; SELECT queue.drop('other', force => true)");
        app.run("SELECT queue.enqueue('other') FROM generate_series(1, 20)");
        let other = app.enqueue("q");
        pair.wait_arrived();
        assert_eq!(server.count(&format!("SELECT FROM queue.job({other})")), 1);
        assert_eq!(waiting(&mut server).len(), 20);
        session.run(end);
        wait::until("they have their turn", || {
            assert_eq!(pair.contact(), None);
            waiting(&mut server).is_empty().then_some(())
        });
    }
    // The drop removed the earlier job and the jobs of the first round. The calls of the second round are refused.
    assert_eq!(server.count(&format!("SELECT FROM queue.jobs WHERE job_id = {}", dropped[0])), 0);
    assert_eq!(server.count("SELECT FROM queue_bridge.refused WHERE code = '42704'"), 20);
    integrity::check(&mut server);
}

#[test]
fn a_call_that_waits_can_be_refused() {
    let pair = Pair::new();
    let (mut app, mut server, mut session) = (pair.app(), pair.server(), pair.server());
    session.run("BEGIN; SELECT queue.enqueue('q', unique_key => 'k')");
    let [first, second] = [(); 2].map(|()| app.value::<i64>("SELECT queue.enqueue('q', unique_key => 'k')"));
    pair.wait_arrived();
    server.run(&format!("SELECT queue_bridge.refuse('shop', {first}), queue_bridge.refuse('shop', {second})"));
    assert!(waiting(&mut server).is_empty());
    assert_eq!(server.column::<String>("SELECT code FROM queue_bridge.refused"), ["57014", "57014"]);
    assert_eq!(server.count("SELECT FROM queue_bridge.source WHERE refusing <> '{}'"), 0);
    session.run("ROLLBACK");
    assert_eq!(server.value::<i64>("SELECT queue_bridge.retry_refused('shop')"), 2);
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs WHERE unique_key = 'k'"), [first]);
}

/// Makes events of topic `t` wait, because queue `full` has no room.
fn fill(pair: &Pair, events: i32) {
    let mut server = pair.server();
    server.run(
        "SELECT queue.create('full', max_waiting => 1); SELECT queue.create_topic('t');
         SELECT queue.bind('t', 'full', on_full => 'error'); SELECT queue_bridge.allow('shop', 't')",
    );
    assert_eq!(pair.contact(), None);
    server.run("SELECT queue.enqueue('full')");
    server.wait_counted();
    publish(&mut pair.app(), 1, events);
    pair.wait_arrived();
    assert_eq!(waiting(&mut server).len(), events as usize);
}

/// Publishes the events `from..=to`.
fn publish(app: &mut Client, from: i32, to: i32) {
    app.run(&format!("SELECT queue.publish('t', to_jsonb(n)) FROM generate_series({from}, {to}) AS n"));
}

/// Gives queue `full` room.
fn make_room(server: &mut Client) {
    server.run("SELECT queue.purge('full'), queue.alter('full', max_waiting => 1000000)");
    server.wait_counted();
}

/// Checks that the events `1..=to` have arrived in order.
#[track_caller]
fn check_events(server: &mut Client, to: i32) {
    let events =
        "SELECT payload::integer FROM queue.jobs WHERE queue_name = 'full' AND state = 'ready' ORDER BY job_id";
    let events = server.column::<i32>(events);
    assert!(events.iter().copied().eq(1..=to), "{} events", events.len());
    integrity::check(server);
}

#[test]
fn a_long_chain_of_calls_drains_in_its_order_once_the_cause_is_gone() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    fill(&pair, 4000);
    assert_eq!(pair.contact(), None);
    assert_eq!(waiting(&mut server).len(), 4000);
    make_room(&mut server);
    // Later events queue up behind them.
    publish(&mut app, 4001, 4100);
    pair.wait_arrived();
    // Sorting all of them for each event would take a minute.
    for _ in 0..3 {
        assert_eq!(pair.contact(), None);
    }
    assert_eq!(waiting(&mut server).len(), 0);
    check_events(&mut server, 4100);
}

#[test]
fn a_chain_of_calls_ends_while_others_come() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    fill(&pair, 1000);
    make_room(&mut server);
    server.run("SELECT queue.resume_schedule('queue_bridge_shop')");
    let mut last = 1000;
    wait::until("nothing waits, although events come", || {
        last += 1;
        publish(&mut app, last, last);
        waiting(&mut server).is_empty().then_some(())
    });
    pair.wait_arrived();
    wait::until("the last ones", || waiting(&mut server).is_empty().then_some(()));
    check_events(&mut server, last);
}
