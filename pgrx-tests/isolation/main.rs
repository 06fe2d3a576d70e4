//! Sessions side by side, step by step: `specs/*.spec` must print `expected/*.out`.

use std::process::ExitCode;

fn main() -> ExitCode {
    queue_tests::golden::Suite {
        name: "isolation",
        driver: "pg_isolation_regress",
        scripts: ("specs", "spec"),
        options: &[],
        output: env!("CARGO_TARGET_TMPDIR"),
    }
    .main()
}
