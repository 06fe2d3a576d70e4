//! `queue_cluster` has the functions and views of `queue`. Compares them by the catalogue.

use queue_tests::EARLIER;
use queue_tests::sql::Sql;

use crate::peers::{Peers, node};

/// The functions that are missing here, and why. They are called in schema `queue`, on the server that is meant.
/// `docs/cluster.md` says the same.
const OF_ONE: [(&str, &str); 18] = [
    ("activity", "it tells of what one server's memory knows, and its rows do not say of which"),
    ("adopt", "it mends one server's rows after a restore"),
    ("await", "a procedure that gives its snapshot up: it cannot be called by a function"),
    ("current_job", "the command runs on the server of its job"),
    ("doctor", "each server has its own troubles, and the doctor waits for no other"),
    ("error_groups", "the same error on two servers would be two rows, of which none says where: see view jobs"),
    ("groups", "it tells what one server's memory knows of groups: see view jobs"),
    ("load", "it tells of what one server's memory knows, and workers belong to one server"),
    ("maintain", "each server does its own duties"),
    ("metrics", "each server is scraped by itself, and the exporter's labels say which it is"),
    ("route", "bindings are the same on all servers"),
    ("text_length", "it tells of a value, on each server the same"),
    ("throttle", "each server has its own throttles, and one that did not answer would go on"),
    ("throughput_by", "it tells of what one server's memory knows: see view throughput"),
    ("wait", "a procedure that gives its snapshot up: it cannot be called by a function"),
    ("weigh", "each server shares among the groups of its own jobs"),
    ("check", "queue_cluster.check is another one, of the cluster: queue.check reads all rows of one server"),
    ("claim", "claim and claim_any have one argument more, steal"),
];

#[test]
fn verbs_have_the_signatures_of_those_of_one_server() {
    let peers = Peers::apart(1);
    let c = &mut peers.connect(0);
    let signature = |schema: &str| {
        format!(
            "SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') ' ||
                coalesce(pg_get_function_result(p.oid), '')
             FROM pg_proc AS p WHERE p.pronamespace = '{schema}'::regnamespace"
        )
    };
    let not_there: Vec<String> = c.column(
        "SELECT p.proname::text FROM pg_proc AS p WHERE p.pronamespace = 'queue'::regnamespace
         AND NOT EXISTS (SELECT FROM pg_proc AS o WHERE o.pronamespace = 'queue_cluster'::regnamespace
         AND o.proname = p.proname) ORDER BY 1",
    );
    let left_out = OF_ONE.map(|(name, _)| name).into_iter().filter(|name| !["check", "claim"].contains(name));
    assert_eq!(not_there, left_out.collect::<Vec<_>>());
    let manual = include_str!("../../docs/cluster.md");
    for (name, why) in OF_ONE {
        assert!(manual.contains(&format!("`{name}`")), "docs/cluster.md does not say of {name} that {why}");
    }
    let differ: Vec<String> = c.column(&format!(
        "SELECT s FROM ({} AND p.proname NOT IN ('check', 'claim', 'claim_any') AND EXISTS (
            SELECT FROM pg_proc AS o WHERE o.pronamespace = 'queue_cluster'::regnamespace AND o.proname = p.proname)
         EXCEPT {}) AS x (s)",
        signature("queue"),
        signature("queue_cluster")
    ));
    assert!(differ.is_empty(), "{differ:#?}");
    for verb in ["claim", "claim_any"] {
        let arguments = |schema: &str| format!("SELECT pg_get_function_arguments('{schema}.{verb}'::regproc)");
        let own: String = c.value(&arguments("queue"));
        assert_eq!(c.value::<String>(&arguments("queue_cluster")), own + ", steal boolean DEFAULT true");
    }
}

#[test]
fn views_have_the_columns_of_one_servers_views_and_a_column_for_the_server() {
    let peers = Peers::apart(1);
    let c = &mut peers.connect(0);
    let views: Vec<String> = c.column(
        "SELECT relname::text FROM pg_class \
        WHERE relnamespace = 'queue_cluster'::regnamespace AND relkind = 'v' AND relname <> 'rerun' ORDER BY 1",
    );
    assert_eq!(views, ["attempts", "jobs", "queues", "schedules", "stats", "throughput", "workers"]);
    for view in views {
        let columns = |schema: &str| -> String {
            format!(
                "SELECT string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum) FROM pg_attribute
                     WHERE attrelid = '{schema}.{view}'::regclass AND attnum > 0"
            )
        };
        let own: String = c.value(&columns("queue"));
        assert_eq!(c.value::<String>(&columns("queue_cluster")), own + ", server text");
    }
}

/// Frequent calls of workers and producers are passed on in C. No further SQL statement runs around them.
#[test]
fn frequent_calls_run_no_further_statement() {
    let peers = Peers::new(1);
    let c = &mut peers.connect(0);
    let wrapped: Vec<String> = c.column(
        "SELECT o.proname::text FROM pg_proc AS o JOIN pg_language AS l ON l.oid = o.prolang
         WHERE o.pronamespace = 'queue_cluster'::regnamespace AND l.lanname <> 'c' AND o.proname IN (
            SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'queue'::regnamespace) ORDER BY 1",
    );
    let of_all_servers = [
        "alter",
        "bind",
        "check",
        "create",
        "create_topic",
        "drop",
        "end_batch",
        "enqueue_batch",
        "grant",
        "pause",
        "pause_schedule",
        "purge",
        "resume",
        "resume_schedule",
        "retry",
        "retry_many",
        "revoke",
        "run_schedule",
        "schedule",
        "search",
        "unbind",
        "unschedule",
        "upcoming",
    ];
    assert_eq!(wrapped, of_all_servers);
}

/// The library finds the routing arguments by their positions. Each of them routes the call, for each verb.
#[test]
fn each_routing_argument_leads_to_its_server() {
    let peers = Peers::new(2);
    let key = peers.key_of(1);
    let other: i64 = peers.connect(1).value("SELECT queue_cluster.enqueue_flow('q', open => true)");
    let c = &mut peers.connect(0);
    c.run(
        "SELECT queue_cluster.create('sql', executor => 'sql'), queue_cluster.create_topic('t'), \
        queue_cluster.bind('t', 'q')",
    );
    for (call, id) in [
        ("enqueue('q'", ""),
        ("enqueue_many('q', '{1}'", ""),
        ("enqueue_sql('sql', 'SELECT 1'", ""),
        ("enqueue_flow('q'", ""),
        ("publish('t'", ".job_id"),
        ("publish_many('t', '{1}'", ".job_id"),
    ] {
        let made = |c: &mut postgres::Client, option: &str| -> i64 {
            let job = if id.is_empty() { "x" } else { "x.job_id" };
            c.value(&format!("SELECT {job} FROM queue_cluster.{call}{option}) AS x"))
        };
        assert_eq!(node(made(c, "")), 0, "{call}");
        for option in [
            format!("unique_key => '{key}'"),
            format!("group_key => '{key}'"),
            format!("after => '{{{other}}}'"),
            format!("flow => {other}"),
        ] {
            assert_eq!(node(made(c, &format!(", {option}"))), 1, "{call}, {option}");
        }
    }
}

/// A caller needs the privilege to execute queue.VERB, as if it had called that function.
#[test]
fn a_role_without_execute_on_a_verb_may_not_call_it_here() {
    let peers = Peers::new(1);
    let mut admin = peers.connect(0);
    let role = &mut peers.connect_as(0, "nobody_much");
    for call in [
        "enqueue('q')",
        "claim('q')",
        "complete(16)",
        "complete_many('{16}')",
        "end_batch('[{\"complete\": {\"id\": 16}}]')",
        "cancel(31)",
        "cancel_many('{31}')",
        "retry_many('{31}')",
    ] {
        role.refused(&format!("SELECT * FROM queue_cluster.{call}"), "42501");
    }
    admin.run("SELECT queue_cluster.grant('q', 'nobody_much', 'consume')");
    assert_eq!(role.count("SELECT FROM queue_cluster.claim('q')"), 0);
    role.refused("SELECT queue_cluster.enqueue('q')", "42501");
}

#[test]
fn a_placeholder_of_a_template_must_have_a_text() {
    let peers = Peers::apart(1);
    let c = &mut peers.connect(0);
    let call = "SELECT queue_cluster.make_from('SELECT {verb}, {nothing}', queue_cluster.shape('claim'))";
    assert_eq!(c.failure(call).message, "placeholder {nothing} of a template has no text");
}

/// Everything in the extension's schema, one line each: its definition, its comment and its privileges.
const SNAPSHOT: &str = "
    SELECT format('%s may %s; %s', pg_get_functiondef(p.oid),
                  (SELECT string_agg(a::text, ' ' ORDER BY a::text)
                   FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) AS a),
                  obj_description(p.oid, 'pg_proc'))
    FROM pg_proc AS p WHERE p.pronamespace = 'queue_cluster'::regnamespace
  UNION ALL
    SELECT format('%s %s may %s; %s: %s', c.relkind, c.relname, c.relacl, obj_description(c.oid, 'pg_class'),
                  (SELECT string_agg(format('%s %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '
                  ORDER BY a.attnum)
                   FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
    FROM pg_class AS c WHERE c.relnamespace = 'queue_cluster'::regnamespace
    ORDER BY 1";

#[test]
fn an_upgraded_extension_equals_a_fresh_one() {
    let peers = Peers::apart(1);
    let server = &peers.servers[0];
    let mut old = server.create_database("old");
    old.run(&format!(
        "DROP EXTENSION pg_queue; CREATE EXTENSION plproxy; CREATE EXTENSION pg_queue VERSION '{EARLIER}'; \
        CREATE EXTENSION pg_queue_cluster VERSION '{EARLIER}'"
    ));
    old.run("ALTER EXTENSION pg_queue UPDATE; ALTER EXTENSION pg_queue_cluster UPDATE");
    let fresh: Vec<String> = peers.connect(0).column(SNAPSHOT);
    let upgraded: Vec<String> = old.column(SNAPSHOT);
    assert!(fresh.len() > 100, "{}", fresh.len());
    let missing: Vec<_> = fresh.iter().filter(|line| !upgraded.contains(line)).collect();
    let left: Vec<_> = upgraded.iter().filter(|line| !fresh.contains(line)).collect();
    assert!(missing.is_empty() && left.is_empty(), "missing {missing:#?}, left over {left:#?}");
}
