//! Runs demo.sql on a throw-away server and shows each statement with its result.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cluster = queue_tests::Cluster::new().start();
    cluster.create_database("demo");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/demo.sql");
    let status = cluster
        .command("psql")
        .args(["-X", "--echo-queries", "-v", "ON_ERROR_STOP=1", "-d", "demo"])
        .stdin(File::open(script).expect("demo.sql"))
        .status()
        .expect("psql");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
