//! Tests that the files in `/monitoring` do what `docs/monitoring.md` says. The real exporter shows the values of
//! `queue.metrics()`, Prometheus's own tool accepts the rules and all queries of the dashboard, and these use metrics
//! that exist.
//!
//! `make monitoring` gets the programs. If one is missing, the tests fail and name it.

mod exporter;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use queue_tests::Cluster;
use queue_tests::sql::Sql;
use serde_json::Value;

use exporter::{Exporter, Sample};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn monitoring(file: &str) -> PathBuf {
    root().join("monitoring").join(file)
}

/// Returns the statements of docs/monitoring.md that make the exporter's role.
fn role() -> String {
    let page = std::fs::read_to_string(root().join("docs/monitoring.md")).expect("the page");
    let from = page.find("CREATE ROLE queue_monitor").expect("the role");
    page[from..].split("```").next().expect("a block").to_owned()
}

/// Makes a database in which every metric has a value.
fn busy(cluster: &Cluster, database: &str) -> Client {
    let mut client = cluster.create_database(database);
    client.run("SELECT queue.create('mail', max_attempts => 2), queue.enqueue('mail', delay => '1 day')");
    // If an attempt ends before memory has counted, it is missing from the mean running times.
    client.wait_counted();
    for sql in [
        "SELECT queue.create('files', stages => '{read, write}')",
        "SELECT queue.create('empty')",
        "SELECT queue.pause('empty')",
        "SELECT queue.schedule('nightly', 'mail', every => '1 day')",
        "SELECT count(*) FROM queue.enqueue_many('mail', array_fill('1'::jsonb, '{20}'))",
        "SELECT count(*) FROM queue.enqueue_many('files', array_fill('1'::jsonb, '{5}'), delay => '1 hour')",
        "SELECT queue.complete(id) FROM queue.claim('mail', 7)",
        "SELECT queue.fail(id, 'no') FROM queue.claim('mail', 3)",
        "SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('mail', 2)",
        "SELECT queue.enqueue('mail', after => ARRAY(SELECT job_id FROM queue.jobs WHERE state = 'dead'))",
        "SELECT FROM queue.claim('mail', 4)",
        "CREATE EXTENSION pg_queue_bridge CASCADE",
        // The subscription of this source does not exist.
        "INSERT INTO queue_bridge.source (source, node_id, conninfo, slot, subscription, life, contact_at, answer) \
            VALUES ('shop', 127, '', '', 1, 3, now(), '{\"lag_bytes\": 7}')",
        "SELECT queue.create_topic('orders'), queue.bind('orders', 'files', 'order.*', \
            filter => '$.payload.total > 10')",
        "SELECT FROM queue.publish('orders', '{\"total\": 20}', 'order.placed')",
        "SELECT FROM queue.publish('orders', '{\"total\": \"20\"}', 'order.placed')",
    ] {
        client.run(sql);
    }
    client
}

/// Returns the values of `queue.metrics()` as the exporter shows them.
fn metrics(client: &mut Client) -> BTreeMap<Sample, (f64, String)> {
    let sql =
        "SELECT name, labels || jsonb_build_object('datname', current_database()), value, type FROM queue.metrics()";
    let rows = client.query(sql, &[]).unwrap();
    let found = rows.iter().map(|row| {
        let labels: BTreeMap<String, String> = serde_json::from_value(row.get::<_, Value>(1)).expect("texts");
        (Sample { name: row.get(0), labels }, (row.get(2), row.get(3)))
    });
    let all: BTreeMap<_, _> = found.collect();
    assert_eq!(all.len(), rows.len(), "no metric comes twice with the same labels");
    all
}

/// True if the metric changes by itself.
fn moves(name: &str) -> bool {
    name.ends_with("_seconds") || name == "pg_queue_storage_bytes" || name == "pg_queue_check_ok"
}

#[test]
fn the_exporter_shows_what_metrics_says() {
    let cluster = Cluster::new().start();
    let mut clients = [busy(&cluster, "shop"), busy(&cluster, "library")];
    cluster.connect().run("CREATE ROLE queue_monitor LOGIN");
    for client in &mut clients {
        client.run(&role().replace("CREATE ROLE queue_monitor LOGIN", "SELECT"));
    }
    let exporter = Exporter::start(&cluster, &["shop", "library"], &monitoring("postgres_exporter.yaml"));
    let shown = exporter.scrape();
    let mut wanted = BTreeMap::new();
    for client in &mut clients {
        wanted.append(&mut metrics(client));
    }
    let names: BTreeSet<&str> = wanted.keys().map(|sample| sample.name.as_str()).collect();
    assert_eq!(names.len(), 46, "{names:?}");
    let (there, missing): (Vec<_>, Vec<_>) = wanted.keys().partition(|sample| shown.samples.contains_key(sample));
    assert!(missing.is_empty() && there.len() > 100, "missing {missing:#?}");
    let more: Vec<_> =
        shown.samples.keys().filter(|s| s.name.starts_with("pg_queue_") && !wanted.contains_key(s)).collect();
    assert!(more.is_empty(), "only the exporter has {more:#?}");
    for (sample, (value, kind)) in &wanted {
        assert_eq!(&shown.types[&sample.name], kind, "{sample:?}");
        let seen = shown.samples[sample];
        assert!(seen.is_finite(), "{sample:?}: {seen}");
        assert!(moves(&sample.name) || seen == *value, "{sample:?}: {seen} and {value}");
    }
    // The views say the same.
    let jobs = |state: &str| {
        let labels = [("datname", "shop"), ("queue", "mail"), ("state", state)];
        shown.samples[&Sample::new("pg_queue_jobs", &labels)]
    };
    let states = ["ready", "scheduled", "retrying", "running", "dead", "held"];
    assert_eq!(states.map(jobs), [4.0, 1.0, 3.0, 4.0, 2.0, 1.0]);
    let counts = ["total", "copies_total", "unrouted_total", "dropped_total", "filter_errors_total"].map(|count| {
        shown.samples[&Sample::new(&format!("pg_queue_published_{count}"), &[("datname", "shop"), ("topic", "orders")])]
    });
    assert_eq!(counts, [2.0, 1.0, 1.0, 0.0, 1.0]);
    for client in &mut clients {
        client.run("DROP OWNED BY queue_monitor");
    }
}

fn promtool(arguments: &[&str], folder: &Path) {
    let done = Command::new("promtool").args(arguments).current_dir(folder).output();
    let done = done.expect("promtool: run `make monitoring`, or as root: apt-get install prometheus");
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "promtool {arguments:?}: {said}");
}

/// Returns all queries of the dashboard, with their variables filled in.
fn queries(dashboard: &Value) -> Vec<String> {
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().expect("a query").to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let asked = variable["definition"].as_str().and_then(|q| q.strip_prefix("label_values(")?.strip_suffix(')'));
        queries.extend(asked.and_then(|q| q.rsplit_once(", ")).map(|(query, _label)| query.to_owned()));
    }
    let fill =
        |query: String| query.replace("$__rate_interval", "1m").replace("$datname", ".*").replace("$queue", ".*");
    queries.into_iter().map(fill).collect()
}

/// Returns the metrics and labels that a query names.
fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("pg_queue_"))
}

#[test]
fn rules_and_dashboard_use_existing_metrics() {
    let cluster = Cluster::new().start();
    let mut client = busy(&cluster, "shop");
    let known: BTreeSet<String> = metrics(&mut client).into_keys().map(|sample| sample.name).collect();

    let text = std::fs::read_to_string(monitoring("dashboard.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let queries = queries(&dashboard);
    assert!(queries.len() > 20, "{queries:#?}");
    let rules = std::fs::read_to_string(monitoring("alerts.yaml")).expect("the rules");
    let unknown: Vec<&str> = queries
        .iter()
        .map(String::as_str)
        .chain([rules.as_str()])
        .flat_map(words)
        .filter(|w| !known.contains(*w))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    // Each metric is used by the dashboard.
    let unseen: Vec<_> =
        known.iter().filter(|name| !queries.iter().any(|q| words(q).any(|word| word == *name))).collect();
    assert!(unseen.is_empty(), "{unseen:?}");

    // Writes the queries as rules, so that the tool parses them.
    let folder = cluster.dir().join("rules");
    std::fs::create_dir(&folder).expect("a folder");
    let parsed: String = queries.iter().enumerate().fold(
        "groups:\n- name: dashboard\n  rules:\n".into(),
        |rules: String, (n, query)| {
            rules + &format!("  - record: query_{n}\n    expr: {}\n", Value::from(query.as_str()))
        },
    );
    std::fs::write(folder.join("dashboard.yaml"), parsed).expect("a writable folder");
    std::fs::write(folder.join("alerts.yaml"), rules).expect("a writable folder");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring/alerts_test.yaml");
    std::fs::copy(tests, folder.join("alerts_test.yaml")).expect("a writable folder");
    promtool(&["check", "rules", "dashboard.yaml", "alerts.yaml"], &folder);
    promtool(&["test", "rules", "alerts_test.yaml"], &folder);
}
