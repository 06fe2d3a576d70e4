//! The surface is that of queue.*, by the catalogue.

use queue_tests::sql::Sql;

use crate::peers::Peers;

/// What is of one server alone, or cannot be called from a function: it is called in schema `queue`.
const AT_HOME: [&str; 11] = [
    "adopt",
    "await",
    "check",
    "current_job",
    "doctor",
    "maintain",
    "metrics",
    "publish_many",
    "retry_dead",
    "route",
    "wait",
];

/// What reads one server, and has its view or function over all under another name, or none.
const OF_ONE: [&str; 4] = ["activity", "error_groups", "retry_many", "throughput_by"];

#[test]
fn verbs_have_the_signatures_of_those_of_one_server() {
    let peers = Peers::apart(1);
    let c = &mut peers.connect(0);
    let signature = |schema: &str| {
        format!(
            "SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') ' || coalesce(pg_get_function_result(p.oid), '')
             FROM pg_proc AS p WHERE p.pronamespace = '{schema}'::regnamespace"
        )
    };
    let not_there: Vec<String> = c.column(
        "SELECT p.proname::text FROM pg_proc AS p WHERE p.pronamespace = 'queue'::regnamespace
         AND NOT EXISTS (SELECT FROM pg_proc AS o WHERE o.pronamespace = 'queue_cluster'::regnamespace AND o.proname = p.proname) ORDER BY 1",
    );
    let mut left_out: Vec<&str> = AT_HOME.iter().chain(&OF_ONE).copied().collect();
    left_out.sort_unstable();
    // `check` is there under the same name and says another thing.
    left_out.retain(|name| *name != "check");
    assert_eq!(not_there, left_out);
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
fn views_have_the_columns_of_those_of_one_server_and_the_server() {
    let peers = Peers::apart(1);
    let c = &mut peers.connect(0);
    let views: Vec<String> = c.column("SELECT relname::text FROM pg_class WHERE relnamespace = 'queue_cluster'::regnamespace AND relkind = 'v' ORDER BY 1");
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

/// A call at home is the call of queue.*, put into the caller's plan: no function is called around it.
#[test]
fn at_home_the_planner_leaves_nothing_of_the_detour() {
    let peers = Peers::new(1);
    let c = &mut peers.connect(0);
    for call in ["enqueue('q', '{}')", "complete(1)", "fail(1, 'no')", "cancel(31)", "release(1)"] {
        let plan: Vec<String> = c.column(&format!("EXPLAIN (VERBOSE, COSTS OFF) SELECT queue_cluster.{call}"));
        let plan = plan.join("\n");
        let (verb, _) = call.split_once('(').expect("a call");
        assert!(
            plan.contains(&format!("queue.{verb}(")) && !plan.contains(&format!("queue_cluster.{verb}(")),
            "{plan}"
        );
    }
}
