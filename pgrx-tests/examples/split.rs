//! The example that splits one job among many workers.

use std::process::Stdio;

use queue_tests::sql::Sql;
use queue_tests::{Cluster, wait};

use crate::language::python;

#[test]
fn a_job_is_split_over_workers_and_goes_on_when_its_parts_have_completed() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue; SELECT queue.create('totals', max_attempts => 1), queue.create('parts')");
    let job: i64 = client.value(
        "SELECT queue.enqueue('totals', jsonb_build_object('numbers', \
            (SELECT jsonb_agg(n) FROM generate_series(1, 1000) AS n)))",
    );
    let wrong: i64 = client.value("SELECT queue.enqueue('totals', '{}')");
    let mut workers: Vec<_> = (0..2)
        .map(|_| {
            let mut command = python("split.py");
            cluster.connect_env(&mut command);
            command.stderr(Stdio::null()).spawn().expect("the worker starts")
        })
        .collect();
    wait::until("the total is there", || (client.state(job) == "completed").then_some(()));
    wait::until("what is no job of this kind is dead", || (client.state(wrong) == "dead").then_some(()));
    let result: serde_json::Value = client.value(&format!("SELECT result FROM queue.job({job})"));
    assert_eq!(result, 500_500);
    let states: Vec<String> =
        client.column(&format!("SELECT state FROM queue.attempts WHERE job_id = {job} ORDER BY id"));
    assert_eq!(states, ["suspended", "superseded", "completed"]);
    assert_eq!(client.count(&format!("SELECT FROM queue.members({job}, 'completed')")), 10);
    for worker in &mut workers {
        worker.kill().expect("a process of ours");
        worker.wait().expect("it has ended");
    }
}
