//! Properties that drivers and their users rely on: parameters without types, named arguments, NULL anywhere, and
//! names, comments and privileges of the extension's objects.

use crate::shared::*;

/// A function of schema queue according to the catalog.
struct Function {
    schema: String,
    name: String,
    arguments: Vec<(String, String)>,
    /// The number of required arguments.
    required: usize,
    is_procedure: bool,
}

impl Function {
    /// Returns the statement that calls it with these arguments.
    fn call(&self, arguments: &[String]) -> String {
        let verb = if self.is_procedure { "CALL" } else { "SELECT * FROM" };
        format!("{verb} {}.{}({})", self.schema, self.name, arguments.join(", "))
    }
}

fn functions(client: &mut Client) -> Vec<Function> {
    let sql = "
        SELECT pronamespace::regnamespace::text, proname::text, (pronargs - pronargdefaults)::int, prokind = 'p',
               coalesce((SELECT array_agg(n ORDER BY i) FROM unnest(proargnames) WITH ORDINALITY AS a(n, i)
               WHERE i <= pronargs), '{}'),
               (SELECT coalesce(array_agg(t::oid::regtype::text ORDER BY i), '{}')
               FROM unnest(proargtypes) WITH ORDINALITY AS a(t, i))
        FROM pg_proc WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
          AND prorettype <> 'trigger'::regtype ORDER BY proname";
    let found: Vec<Function> = client
        .query(sql, &[])
        .unwrap()
        .iter()
        .map(|row| {
            let (names, types): (Vec<String>, Vec<String>) = (row.get(4), row.get(5));
            assert_eq!(names.len(), types.len(), "every argument has a name: {}", row.get::<_, String>(1));
            Function {
                schema: row.get(0),
                name: row.get(1),
                arguments: names.into_iter().zip(types).collect(),
                required: usize::try_from(row.get::<_, i32>(2)).unwrap(),
                is_procedure: row.get(3),
            }
        })
        .collect();
    assert!(found.len() > 30);
    found
}

/// Returns valid values for a function's required arguments. `attempt`, `staged`, `job` and `ended` are ids, `ends` is
/// a batch.
fn required(function: &str) -> &'static [&'static str] {
    match function {
        "create" => &["'fresh'"],
        "drop" => &["'empty'"],
        "alter" | "pause" | "resume" | "purge" | "enqueue" | "enqueue_flow" | "claim" | "wait" => &["'q'"],
        "enqueue_many" => &["'q'", "ARRAY['1']::jsonb[]"],
        "enqueue_batch" => &["'q'", "'[{}]'"],
        "enqueue_sql" => &["'commands'", "'SELECT 1'"],
        "seal" | "resolve" => &["flow"],
        "reject" => &["flow", "'no'"],
        "step" | "step_done" => &["attempt", "'a'"],
        "claim_any" => &["ARRAY['q']"],
        "complete" | "release" | "extend" | "suspend" | "inputs" | "lease_expires_at" => &["attempt"],
        "advance" => &["staged"],
        "complete_many" | "release_many" | "extend_many" => &["ARRAY[attempt]"],
        "fail" => &["attempt", "'boom'"],
        "fail_many" => &["ARRAY[attempt]", "'boom'"],
        "end_batch" => &["ends"],
        "progress" => &["attempt", "'1'"],
        "charge" => &["attempt", "1"],
        "schedule" => &["'fresh'", "'q'"],
        "unschedule" | "pause_schedule" | "resume_schedule" | "run_schedule" | "upcoming" => &["'planned'"],
        "cancel" | "retry" | "life_of" | "job" | "job_attempts" | "members" | "job_steps" => &["job"],
        "reprioritize" => &["job", "1"],
        "cancel_many" | "retry_many" => &["ARRAY[job]"],
        "reprioritize_many" => &["ARRAY[job]", "1"],
        "reschedule_many" => &["ARRAY[job]", "now()"],
        "search" | "groups" => &["'q'"],
        "throttle" => &["'q'", "'0'"],
        "weigh" => &["'q'", "'a'"],
        "reschedule" => &["job", "now()"],
        "forget" | "await" => &["ended"],
        "create_topic" => &["'fresh topic'"],
        "bind" | "unbind" => &["'topic'", "'q'"],
        "publish" | "route" => &["'topic'"],
        "publish_many" => &["'topic'", "ARRAY['1']::jsonb[]"],
        "grant" | "revoke" => &["'q'", "'postgres'", "'observe'"],
        "may_observe" => &["1"],
        "attempt_state" | "job_state" => &["'c'", "true", "false", "now()", "false"],
        "payload_of" => &["attempt"],
        "text_length" => &["'1'"],
        "close" => &["'none'"],
        "bytes_of" => &["'queue_internal.queue'"],
        "times" => &["ARRAY[]::bytea[]"],
        "bridge_sources" => &["'pg_queue_bridge_connected'"],
        "activity" | "adopt" | "assert_loaded" | "check" | "claims_now" | "derive_grants" | "doctor" | "firings"
        | "kick" | "current_job" | "executor_counts" | "executors_now" | "held_by_dead" | "live" | "maintain"
        | "load" | "memory_use" | "error_groups" | "minutes_now" | "metrics" | "recent_times" | "running_now"
        | "sleepers_now" | "lanes_now" | "schedules_now" | "segments_now" | "tallies" | "topic_counts"
        | "topics_now" | "throughput_by" | "throughput_live" => &[],
        other => panic!("say here how queue.{other} is called"),
    }
}

/// The ids in `required`: a running attempt, a waiting job and an ended job of queue `q`, a running attempt in the
/// first stage of another queue, and an open flow.
struct Ids {
    attempt: i64,
    staged: i64,
    job: i64,
    ended: i64,
    flow: i64,
}

impl Ids {
    fn new(client: &mut Client) -> Self {
        client.run("SELECT queue.create('q', rate_limit => 1000000, rate_cost => '$.headers.tokens')");
        client.run("SELECT queue.create('empty'), queue.create_topic('topic')");
        client.run("SELECT queue.schedule('planned', 'q', every => '1 year')");
        client.run("SELECT queue.enqueue_many('q', ARRAY['1', '2', '3']::jsonb[])");
        let attempt = client.claim("q");
        let done = client.claim("q");
        client.run(&format!("SELECT queue.complete({done})"));
        let mut job = |state: &str| client.value(&format!("SELECT job_id FROM queue.jobs WHERE state = '{state}'"));
        let (job, ended) = (job("ready"), job("completed"));
        client.run("SELECT queue.create('staged', stages => '{first, last}')");
        client.enqueue("staged");
        let staged = client.claim("staged");
        client.run("SELECT queue.create('commands', executor => 'sql')");
        let flow = client.value("SELECT queue.enqueue_flow('q', open => true)");
        Self { attempt, staged, job, ended, flow }
    }

    /// Returns these arguments of the function with their types.
    fn fill(&self, function: &Function, arguments: &[&str]) -> Vec<String> {
        arguments
            .iter()
            .zip(&function.arguments)
            .map(|(value, (_, kind))| {
                let value = match *value {
                    "attempt" => self.attempt.to_string(),
                    "staged" => self.staged.to_string(),
                    "job" => self.job.to_string(),
                    "ended" => self.ended.to_string(),
                    "flow" => self.flow.to_string(),
                    "ARRAY[attempt]" => format!("ARRAY[{}]", self.attempt),
                    "ARRAY[job]" => format!("ARRAY[{}]", self.job),
                    "ends" => format!(r#"'[{{"complete": {{"id": {}}}}}]'"#, self.attempt),
                    other => other.to_owned(),
                };
                format!("{value}::{kind}")
            })
            .collect()
    }
}

#[test]
fn parameters_need_no_types() {
    let mut client = connect();
    for function in functions(&mut client) {
        for count in function.required..=function.arguments.len() {
            let given = &function.arguments[..count];
            let by_place: Vec<String> = (1..=count).map(|n| format!("${n}")).collect();
            let by_name: Vec<String> =
                given.iter().enumerate().map(|(n, (name, _))| format!("{name} => ${}", n + 1)).collect();
            for arguments in [by_place, by_name] {
                let sql = function.call(&arguments);
                let prepared = client.prepare(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
                let names: Vec<String> = prepared
                    .params()
                    .iter()
                    .map(|kind| client.value(&format!("SELECT {}::regtype::text", kind.oid())))
                    .collect();
                let declared: Vec<&String> = given.iter().map(|(_, kind)| kind).collect();
                assert_eq!(names.iter().collect::<Vec<_>>(), declared, "{sql}");
            }
        }
    }
}

#[test]
fn a_worker_can_prepare_its_statements_without_types() {
    let mut client = connect();
    create(&mut client, "prepared", "backoff_base => '0'");
    let enqueue = client.prepare("SELECT queue.enqueue($1, $2, priority => $3)").unwrap();
    let claim = client.prepare("SELECT id, payload FROM queue.claim($1, $2, worker => $3, completed => $4)").unwrap();
    let fail = client.prepare("SELECT queue.fail($1, $2)").unwrap();
    let complete = client.prepare("SELECT queue.complete($1, $2)").unwrap();
    let extend = client.prepare("SELECT lease_expires_at > now(), is_cancelled FROM queue.extend($1)").unwrap();
    for n in 0..3 {
        let payload = serde_json::json!({ "n": n });
        client.query_one(&enqueue, &[&"prepared", &payload, &n]).unwrap();
        let rows = client.query(&claim, &[&"prepared", &1i32, &"w", &None::<Vec<i64>>]).unwrap();
        let id: i64 = rows[0].get(0);
        assert_eq!(rows[0].get::<_, serde_json::Value>(1), payload);
        let row = client.query_one(&extend, &[&id]).unwrap();
        assert_eq!((row.get(0), row.get(1)), (true, false));
        if n == 1 {
            client.query_one(&fail, &[&id, &"boom"]).unwrap();
            let id = client.claim("prepared");
            client.query_one(&complete, &[&id, &payload]).unwrap();
        } else {
            client.query_one(&complete, &[&id, &None::<serde_json::Value>]).unwrap();
        }
        assert_eq!(error::code(&client.query_one(&complete, &[&id, &payload]).unwrap_err()), "QJ001");
    }
}

#[test]
fn null_means_the_default_and_is_refused_for_required_arguments() {
    let database = Database::new();
    let mut client = database.connect();
    // The commands run as this test's superuser.
    client.run("SET pg_queue.superuser_jobs = on");
    let ids = Ids::new(&mut client);
    for function in functions(&mut client) {
        let values = required(&function.name);
        assert_eq!(values.len(), function.required, "queue.{}", function.name);
        let optional: Vec<String> = function.arguments[function.required..]
            .iter()
            .map(|(name, kind)| format!("{name} => NULL::{kind}"))
            .collect();

        // NULL for each optional argument, and for all of them together.
        let mut tries: Vec<&[String]> = optional.chunks(1).collect();
        tries.push(&optional);
        for nulls in tries {
            let mut arguments = ids.fill(&function, values);
            arguments.extend_from_slice(nulls);
            let sql = function.call(&arguments);
            if function.is_procedure {
                // A procedure refuses transaction blocks, so it runs outside.
                assert_eq!(client.count(&sql), 1, "{sql}");
                continue;
            }
            client.run("BEGIN");
            // These functions need one of two optional arguments.
            let needs_one = ["schedule", "suspend"].contains(&function.name.as_str());
            match client.simple_query(&sql) {
                Ok(_) => assert!(!needs_one, "{sql}"),
                Err(e) => assert!(needs_one && error::code(&e) == "22023", "{sql}: {e:?}"),
            }
            client.run("ROLLBACK");
        }

        // NULL for each required argument.
        for n in 0..function.required {
            client.run("BEGIN");
            let mut arguments = ids.fill(&function, values);
            let (name, kind) = &function.arguments[n];
            arguments[n] = format!("NULL::{kind}");
            let sql = function.call(&arguments);
            match function.name.as_str() {
                // Functions behind the views: for NULL they return no row.
                "life_of" => assert_eq!(client.count(&sql), 0),
                "bytes_of" | "lease_expires_at" | "payload_of" | "text_length" | "times" => {
                    assert!(
                        client
                            .value::<Option<String>>(&format!("SELECT ({})::text", sql.replace("* FROM ", "")))
                            .is_none()
                    );
                }
                "job" | "job_attempts" | "members" | "job_steps" => assert_eq!(client.count(&sql), 0),
                // NULL in a log row means no outcome or no time. If no extension is named, there is nothing to close.
                "attempt_state" | "close" | "job_state" => assert_eq!(client.count(&sql), 1),
                _ => {
                    assert_eq!(client.refused(&sql, "22004").message, format!("{name} cannot be null"), "{sql}");
                }
            }
            client.run("ROLLBACK");
        }

        // All arguments together.
        let nulls: Vec<String> = function.arguments.iter().map(|(_, kind)| format!("NULL::{kind}")).collect();
        if let Err(e) = client.simple_query(&function.call(&nulls)) {
            assert_eq!(error::code(&e), "22004", "queue.{}: {e:?}", function.name);
        }
    }
}

#[test]
fn no_two_functions_share_a_name() {
    let shared: Vec<String> = connect().column(
        "SELECT proname::text FROM pg_proc WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
         GROUP BY proname HAVING count(*) > 1",
    );
    assert!(shared.is_empty(), "{shared:?}");
}

#[test]
fn no_output_column_is_a_reserved_word() {
    let reserved: Vec<String> = connect().column(
        "SELECT DISTINCT k.word FROM pg_get_keywords() AS k
         WHERE k.catcode IN ('R', 'T') AND k.word IN (
             SELECT attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
             WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('v', 'c') AND a.attnum > 0
             UNION ALL
             SELECT unnest(proargnames) FROM pg_proc WHERE pronamespace = 'queue'::regnamespace)",
    );
    assert!(reserved.is_empty(), "{reserved:?}");
}

#[test]
fn everything_has_a_comment() {
    let bare: Vec<String> = connect().column(
        "SELECT 'function ' || proname FROM pg_proc
         WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
         AND obj_description(oid, 'pg_proc') IS NULL
         UNION ALL
         SELECT 'relation ' || relname FROM pg_class
         WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
           AND relkind IN ('r', 'v', 'm', 'p', 'c', 'S', 'f')
           AND obj_description(oid, 'pg_class') IS NULL
           -- The sequences of identity columns are part of their tables; a composite type's comment is the type's.
           AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'i' AND relkind = 'S')
           AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.typrelid = pg_class.oid AND relkind = 'c'
                           AND obj_description(t.oid, 'pg_type') IS NOT NULL)
         UNION ALL
         SELECT 'column ' || relname || '.' || attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
         WHERE relnamespace = 'queue'::regnamespace AND relkind IN ('v', 'm', 'c', 'f') AND attnum > 0
           AND NOT attisdropped AND col_description(c.oid, attnum) IS NULL
         UNION ALL
         SELECT 'schema ' || nspname FROM pg_namespace
         WHERE nspname IN ('queue', 'queue_internal') AND obj_description(oid, 'pg_namespace') IS NULL
         UNION ALL
         SELECT 'extension' FROM pg_extension WHERE extname = 'pg_queue'
         AND obj_description(oid, 'pg_extension') IS NULL",
    );
    assert!(bare.is_empty(), "{bare:#?}");
    // A comment must explain, and not only repeat the name.
    let repeated: Vec<String> = connect().column(
        "SELECT c.relname || '.' || a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
         WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('v', 'c') AND a.attnum > 0
           AND lower(rtrim(col_description(c.oid, a.attnum), '.')) = replace(a.attname, '_', ' ')",
    );
    assert!(repeated.is_empty(), "{repeated:#?}");
}

#[test]
fn every_member_of_the_extension_lies_in_its_schemas() {
    let outside: Vec<String> = connect().column(
        "SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend AS d
         CROSS JOIN pg_identify_object(classid, objid, objsubid) AS o
         WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
           AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_queue')
           AND NOT coalesce(o.schema, o.name) IN ('queue', 'queue_internal')",
    );
    assert!(outside.is_empty(), "{outside:?}");
    let shown: Vec<String> = connect().column(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind NOT IN ('v', 'c')",
    );
    assert!(shown.is_empty(), "schema queue has views, types of results, and functions: {shown:?}");
    let strangers: Vec<String> = connect().column(
        "SELECT relname::text FROM pg_class AS c
         WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND relkind IN ('r', 'v', 'S')
           AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid
           AND deptype IN ('e', 'i'))",
    );
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
fn nothing_is_granted_to_public() {
    let mut client = connect();
    let granted: Vec<String> = client.column(
        "SELECT 'function ' || p.proname FROM pg_proc AS p,
            aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
         WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND a.grantee = 0
         UNION ALL
         SELECT 'relation ' || c.relname FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND a.grantee = 0
         UNION ALL
         SELECT 'schema' FROM pg_namespace AS n, aclexplode(n.nspacl) AS a 
         WHERE n.nspname IN ('queue', 'queue_internal') AND a.grantee = 0",
    );
    assert!(granted.is_empty(), "{granted:?}");
}

#[test]
fn sessions_and_their_prepared_statements_outlive_the_extension() {
    let database = Database::new();
    let (mut client, mut other) = (database.connect(), database.connect());
    client.run("SELECT queue.create('q')");
    let enqueue = other.prepare("SELECT queue.enqueue('q', '{\"n\": 1}')").unwrap();
    let claim = other.prepare("SELECT id FROM queue.claim('q')").unwrap();
    for _ in 0..3 {
        let job: i64 = other.query_one(&enqueue, &[]).unwrap().get(0);
        let id: i64 = other.query_one(&claim, &[]).unwrap().get(0);
        other.query_one(&enqueue, &[]).unwrap();
        client.run("DROP EXTENSION pg_queue");
        assert!(other.query(&claim, &[]).is_err());
        client.run("CREATE EXTENSION pg_queue; SELECT queue.create('q')");
        // Nothing of the old extension is left, neither jobs nor attempts.
        assert_eq!(other.query(&claim, &[]).unwrap().len(), 0);
        assert_eq!(other.count(&format!("SELECT FROM queue.job({job})")), 0);
        other.refused(&format!("SELECT queue.complete({id})"), "QJ001");
        assert_eq!(other.count("SELECT FROM queue_internal.running_now()"), 0);
    }
}
