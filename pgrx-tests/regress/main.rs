//! The SQL surface as a user of psql sees it: `sql/*.sql` must print `expected/*.out`.

use std::process::ExitCode;

fn main() -> ExitCode {
    queue_tests::golden::Suite {
        name: "regress",
        driver: "pg_regress",
        scripts: ("sql", "sql"),
        // Errors with SQLSTATE, DETAIL and HINT: all of them are part of the surface.
        options: &["--launcher={dir}/verbose"],
        output: env!("CARGO_TARGET_TMPDIR"),
    }
    .main()
}
