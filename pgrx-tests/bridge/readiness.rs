//! Properties of a primary that rule out a bridge, or that its owner should know: encodings, synchronous commits,
//! transactions that others wait for, rows that cannot be read.

use queue_tests::sql::Sql;
use queue_tests::{Cluster, wait};

use crate::pair::{DATABASE, Pair, primary_sql};

#[test]
fn a_primary_whose_text_cannot_be_converted_is_refused() {
    let pair = Pair::apart("");
    let mut primary = pair.primary.connect();
    let mut server = pair.server();
    for (encoding, is_taken) in [("SQL_ASCII", false), ("EUC_JP", false), ("WIN1252", false), ("LATIN1", true)] {
        let name = encoding.to_lowercase();
        primary.run(&format!(
            "CREATE DATABASE {name} OWNER owner ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ));
        let mut owner = pair.primary.connect_as(&name, "owner");
        owner.run(&primary_sql());
        owner.run("SELECT queue_bridge.admit('taker')");
        let conninfo = pair.conninfo().replace(DATABASE, &name);
        let connect = format!("SELECT queue_bridge.connect('{name}', '{conninfo}')");
        if is_taken {
            server.run(&connect);
        } else {
            let failure = server.refused(&connect, "55000");
            assert!(failure.message.ends_with(&format!("its encoding is {encoding}")), "{failure:?}");
        }
    }
}

#[test]
fn a_primary_whose_commits_would_wait_is_refused() {
    let pair = Pair::apart("");
    let mut server = pair.server();
    let connect = format!("SELECT queue_bridge.connect('shop', '{}')", pair.conninfo());
    let set = |value: &str| {
        pair.primary.append_conf(&format!("synchronous_standby_names = '{value}'"));
        pair.primary.reload();
        let mut primary = pair.primary.connect();
        wait::until("the setting is read", || {
            (primary.value::<String>("SHOW synchronous_standby_names") == value).then_some(())
        });
    };
    for value in ["*", "FIRST 1 (other, queue_bridge_shop)"] {
        set(value);
        assert!(server.refused(&connect, "55000").message.contains("synchronous_standby_names"));
    }
    set("queue_bridge_shop_2");
    // On such a primary no commit would end.
    set("");
    server.run("SELECT queue.create('q')");
    pair.connect();
    assert_eq!(pair.contact(), None);
}

#[test]
fn obstacles_to_the_shutdown_of_a_primary_are_reported() {
    let pair = Pair::apart("");
    let (mut server, mut primary) = (pair.server(), pair.primary.connect());
    primary.run("ALTER ROLE taker SET wal_sender_timeout = 0");
    let connect = format!("SELECT queue_bridge.connect('shop', '{}')", pair.conninfo());
    let refusal = server.refused(&connect, "55000");
    assert!(refusal.message.contains("its wal_sender_timeout is 0"), "{refusal:?}");
    primary.run("ALTER ROLE taker RESET wal_sender_timeout");
    server.run("SELECT queue.create('q'); ALTER DATABASE shop SET pg_queue.patience = '1s'");
    pair.connect();
    // Until the connection is open, contacts report it as missing for a minute.
    pair.wait_streaming();
    server.run("SELECT queue_bridge.allow('shop', 'q')");
    assert_eq!(pair.contact(), None);
    // A contact also finds the setting after the source was connected.
    primary.run("ALTER ROLE taker SET wal_sender_timeout = 0");
    let problem = pair.contact().expect("a problem");
    assert!(problem.starts_with("its wal_sender_timeout is 0"), "{problem}");
    primary.run("ALTER ROLE taker SET wal_sender_timeout = '5s'");
    assert_eq!(pair.contact(), None);
    // The view reports calls that wait for a lock.
    let mut looking = pair.server();
    server.run("BEGIN; LOCK TABLE queue_bridge.outbox");
    pair.app().enqueue("q");
    let said = wait::until("the problem is told", || {
        looking.value::<Option<String>>("SELECT problem FROM queue_bridge.sources")
    });
    let pid: i32 = server.value("SELECT pg_backend_pid()");
    assert!(said.contains(&format!("waits for a lock of pid {pid}")), "{said}");
    server.run("ROLLBACK");
    wait::until("the job has arrived", || {
        (looking.count("SELECT FROM queue.jobs WHERE queue_name = 'q'") == 1).then_some(())
    });
    assert_eq!(looking.value::<Option<String>>("SELECT problem FROM queue_bridge.sources"), None);
    // A connected source can be repaired in spite of the setting.
    primary.run("ALTER ROLE taker SET wal_sender_timeout = 0");
    looking.run("SELECT queue_bridge.repair('shop')");
}

#[test]
fn a_repair_says_for_which_transactions_it_waits() {
    let pair = Pair::with_primary(Cluster::new(), "max_prepared_transactions = 2").connected();
    pair.primary.connect().run("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'left over'");
    let mut waiting = pair.server();
    let repair = std::thread::spawn(move || waiting.run("SELECT queue_bridge.repair('shop')"));
    let mut server = pair.server();
    let problem = "SELECT problem FROM queue_bridge.sources";
    let said = wait::until("the problem is told", || server.value::<Option<String>>(problem));
    assert!(said.contains("prepared transaction \"left over\""), "{said}");
    pair.primary.connect().run("ROLLBACK PREPARED 'left over'");
    repair.join().expect("a repair");
    assert_eq!(server.value::<Option<String>>(problem), None);
}

#[test]
fn an_unreadable_row_is_named_and_left_out_by_a_repair() {
    let pair = Pair::new();
    let (mut app, mut server, mut owner) = (pair.app(), pair.server(), pair.primary_as("owner"));
    assert_eq!(pair.contact(), None);
    // The queue server's stack is smaller than the primary's.
    server.run("ALTER SUBSCRIPTION queue_bridge_shop DISABLE");
    server.run("ALTER SYSTEM SET max_stack_depth = '400kB'");
    pair.server.reload();
    let mut primary = pair.primary.connect();
    let is_active = "SELECT FROM pg_replication_slots WHERE active";
    wait::until("the source is not read", || (primary.count(is_active) == 0).then_some(()));
    // A script of the owner writes the row without the functions.
    let bad: i64 = owner.value(
        "INSERT INTO queue_bridge.outbox SELECT queue_bridge.new_id(), now(), queue_bridge.ring_at(now()), 'e', 'q',
             NULL, (repeat('[', 14000) || repeat(']', 14000))::jsonb, NULL RETURNING id",
    );
    server.run("ALTER SUBSCRIPTION queue_bridge_shop ENABLE");
    let behind = app.enqueue("q");
    server.run("ALTER DATABASE shop SET pg_queue.patience = '1s'");
    let mut other = pair.server();
    wait::until("the problem is told", || {
        assert_eq!(pair.contact(), None);
        let said = other.value::<Option<String>>("SELECT problem FROM queue_bridge.sources");
        said.filter(|said| said.starts_with("no call arrives since"))
    });
    server.run("SELECT queue_bridge.repair('shop')");
    wait::until("the call behind it has arrived", || {
        (server.count(&format!("SELECT FROM queue.job({behind})")) == 1).then_some(())
    });
    let listed = "SELECT id FROM queue_bridge.refused WHERE body IS NOT NULL";
    assert_eq!(owner.column::<i64>(listed), [bad]);
    // The owner can also take out a single call by its id.
    let id = app.enqueue("q");
    assert_eq!(owner.value::<i64>(&format!("SELECT queue_bridge.take_out({id})")), 1);
    assert_eq!(owner.column::<i64>(&format!("{listed} ORDER BY id")), [bad, id]);
}
