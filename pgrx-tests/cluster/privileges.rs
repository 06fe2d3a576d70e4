//! Calls to another server are made as the calling role. Functions that a role plants in its search_path are not
//! called.

use queue_tests::sql::Sql;

use crate::peers::Peers;

#[test]
fn a_role_has_the_same_privileges_on_other_servers_as_at_home() {
    let peers = Peers::new(2);
    let mut admin = peers.connect(0);
    let role = &mut peers.connect_as(0, "clerk");
    let keys = [peers.key_of(0), peers.key_of(1)];
    let refused = |role: &mut postgres::Client, sql: &str| role.refused(sql, "42501");
    for key in &keys {
        refused(role, &format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    }
    admin.run("SELECT queue_cluster.grant('q', 'clerk', 'produce')");
    for key in &keys {
        role.run(&format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    }
    refused(role, "SELECT queue_cluster.claim('q')");
    // The clerk's privileges count even if a superuser has SET ROLE clerk, as in a function with its owner's rights.
    admin.run("SET ROLE clerk");
    for n in 0..2 {
        refused(&mut admin, &format!("SELECT queue_cluster.cancel({})", (n + 1_i64) << 46 | 31));
    }
    admin.run("RESET ROLE");
    refused(role, "SELECT FROM queue_cluster.jobs");
    admin.run("SELECT queue_cluster.grant('q', 'clerk', 'observe'), queue_cluster.grant('q', 'clerk', 'consume')");
    assert_eq!(role.count("SELECT FROM queue_cluster.jobs"), 2);
    for _ in 0..2 {
        let id: i64 = role.value("SELECT id FROM queue_cluster.claim('q')");
        role.run(&format!("SELECT queue_cluster.complete({id})"));
    }
    admin.run("SELECT queue_cluster.revoke('q', 'clerk', 'produce')");
    for key in &keys {
        refused(role, &format!("SELECT queue_cluster.enqueue('q', unique_key => '{key}')"));
    }
    for sql in [
        "SELECT queue_cluster.add_server('x', 'host=/tmp')",
        "SELECT * FROM queue_cluster.rebalance()",
        "SELECT queue_cluster.mark_down('s2')",
        "SELECT queue_cluster.learn('{}')",
        "SELECT queue_cluster.carry_learn(2, '{}')",
        "SELECT queue_cluster.carry_learn_by('host=/tmp', '{}')",
        "SELECT queue_cluster.probe('host=/tmp')",
        "SELECT queue_cluster.give('{1}', '{1}')",
        "SELECT queue_cluster.carry_give(2, '{1}', '{1}')",
        "SELECT queue_cluster.make_from('SELECT 1', '{}')",
        "SELECT FROM queue_cluster.sync()",
        "UPDATE queue_cluster.slot SET node_id = 1",
        "DELETE FROM queue_cluster.server",
        "CREATE FUNCTION queue_cluster.f() RETURNS int LANGUAGE sql RETURN 1",
        "SELECT queue_cluster.create('mine')",
    ] {
        refused(role, sql);
    }
}

#[test]
fn nothing_is_found_by_the_search_path() {
    let peers = Peers::new(2);
    let mut admin = peers.connect(0);
    admin.run("CREATE SCHEMA planted; SET search_path = planted, pg_catalog");
    for (name, arguments, result) in [
        ("coalesce_key", "text, text", "text"),
        ("unnest", "bigint[]", "SETOF bigint"),
        ("format", "text, VARIADIC text[]", "text"),
        ("current_setting", "text", "text"),
        ("cardinality", "integer[]", "integer"),
        ("random", "", "float8"),
        ("now", "", "timestamptz"),
        ("jsonb_typeof", "jsonb", "text"),
    ] {
        admin.run(&format!(
            "CREATE FUNCTION planted.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted \
                % was called', '{name}'; END $$"
        ));
    }
    admin.run(
        "CREATE FUNCTION planted.shift(bigint, \
        integer) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted >>'; END $$",
    );
    for (name, operand, operator) in
        [("same", "integer", "="), ("other", "integer", "<>"), ("same_text", "text", "="), ("same_big", "bigint", "=")]
    {
        admin.run(&format!(
            "CREATE FUNCTION planted.{name}({operand}, {operand}) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE \
                'planted {name}'; END $$"
        ));
        admin.run(&format!(
            "CREATE OPERATOR planted.{operator} (FUNCTION = planted.{name}, LEFTARG = {operand}, RIGHTARG = {operand})"
        ));
    }
    admin.run("CREATE OPERATOR planted.>> (FUNCTION = planted.shift, LEFTARG = bigint, RIGHTARG = integer)");
    let key = peers.key_of(1);
    let own = peers.key_of(0);
    assert_eq!(admin.failure("SELECT 1 = 1").message, "planted same", "what is planted would be found");
    for options in [String::new(), format!(", unique_key => '{key}'"), format!(", group_key => '{own}'")] {
        admin.run(&format!("SELECT queue_cluster.enqueue('q'{options})"));
    }
    admin.run(&format!("SELECT FROM queue_cluster.enqueue_batch('q', '[{{}}, {{\"unique_key\": \"{key}\"}}]')"));
    let mut completed = "NULL".to_owned();
    for _ in 0..4 {
        let id: i64 = admin.value(&format!("SELECT id FROM queue_cluster.claim('q', completed => {completed})"));
        admin.run(&format!("SELECT queue_cluster.extend({id}), queue_cluster.progress({id}, '1')"));
        admin.run(&format!("SELECT FROM queue_cluster.extend_many('{{{id}}}')"));
        completed = format!("'{{{id}}}'");
    }
    let outcome: String = admin.value(&format!("SELECT outcome FROM queue_cluster.complete_many({completed})"));
    assert_eq!(outcome, "completed");
    assert_eq!(admin.count("SELECT FROM queue_cluster.jobs"), 4);
    admin.run("SELECT FROM queue_cluster.search('q', states => '{completed}'); SELECT FROM queue_cluster.rebalance()");
}

#[test]
fn a_role_without_rights_holds_up_neither_producers_nor_a_rebalance() {
    let peers = Peers::new(2);
    let mut admin = peers.connect(0);
    let role = &mut peers.connect_as(0, "clerk");
    admin.run("SELECT queue_cluster.grant('q', 'clerk', 'produce')");
    // Takes all locks whose numbers the role might know.
    let mut stranger = peers.connect(0);
    stranger.run("CREATE ROLE stranger LOGIN; SET ROLE stranger; BEGIN");
    stranger.run(
        "SELECT count(pg_advisory_lock(1886544739, n)), count(pg_advisory_xact_lock(1886544739, n)) \
        FROM generate_series(0, 1030) AS n",
    );
    for sql in [
        "SELECT queue_cluster.hold('k' || n) FROM generate_series(1, 10) AS n",
        "SELECT queue_cluster.try_hold('k' || n) FROM generate_series(1, 10) AS n",
        "SELECT queue_cluster.hold_slot(n) FROM generate_series(0, 1030) AS n",
        "SELECT queue_cluster.take_slot(n) FROM generate_series(0, 1030) AS n",
        "SELECT queue_cluster.lock_map()",
        "SELECT FROM queue_cluster.slot FOR KEY SHARE",
        "LOCK TABLE queue_cluster.slot IN SHARE ROW EXCLUSIVE MODE",
    ] {
        stranger.run("SAVEPOINT s");
        stranger.refused(sql, "42501");
        stranger.run("ROLLBACK TO s");
    }
    // Does what the role may do, and leaves the transaction open.
    stranger.run(
        "SELECT queue_cluster.owner_now(n) FROM generate_series(0, 1023) AS n; SELECT \
        FROM queue_cluster.slot; LOCK TABLE queue_cluster.slot IN ACCESS SHARE MODE",
    );
    role.run("SET statement_timeout = '20 s'");
    for n in 0..2 {
        let key = peers.key_of(n);
        role.run(&format!("SELECT queue_cluster.enqueue('q', group_key => '{key}')"));
        role.run(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT queue_cluster.enqueue('q', group_key => '{key}'); COMMIT"
        ));
    }
    admin.run("SET statement_timeout = '20 s'; SELECT queue_cluster.mark_down('s2'), queue_cluster.rebalance()");
    stranger.run("ROLLBACK");
}
