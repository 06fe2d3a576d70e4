//! Runs every SQL example. Each page runs in one session of psql, and its examples run in order.

use std::fmt::Write as _;

use queue_tests::Cluster;
use queue_tests::installation::printed;

use crate::{Page, none, pages, read};
use queue_tests::markdown::{Block, blocks};

/// Pages that must have examples that run.
const WITH_EXAMPLES: [&str; 18] = [
    "README.md",
    "docs/coming-from/brokers.md",
    "docs/coming-from/durable.md",
    "docs/coming-from/libraries.md",
    "docs/coming-from/pg-cron.md",
    "docs/coming-from/pgmq.md",
    "docs/coming-from/skip-locked.md",
    "docs/concepts.md",
    "docs/errors.md",
    "docs/frameworks.md",
    "docs/functions.md",
    "docs/operations.md",
    "docs/permissions.md",
    "docs/recipes.md",
    "docs/schedules.md",
    "docs/settings.md",
    "docs/testing.md",
    "docs/views.md",
];

/// `pgrx-tests/examples/tutorials.rs` runs these pages as a whole.
const TUTORIALS: &str = "docs/tutorials/";

/// The languages of other blocks. None of them may hide an SQL example. The packages' own tests run Python and
/// JavaScript and read YAML. `make drivers` runs others, and docs/frameworks.md says which blocks are not run.
const OTHER: [&str; 15] = [
    "", "csharp", "elixir", "go", "ini", "java", "js", "mermaid", "php", "python", "ruby", "rust", "sh", "text", "yaml",
];

/// What an example promises.
enum Promise {
    /// Each statement succeeds.
    Success,
    /// Each statement succeeds, and this is printed.
    Output(String),
    /// The last statement fails with this SQLSTATE. The others succeed.
    Error(String),
}

struct Example {
    line: usize,
    sql: String,
    promise: Promise,
}

/// Returns what runs before the page's examples. Two kinds of lines name it: `<!-- tables: FILE.sql -->` makes tables
/// in place of those of another product, and `<!-- helper: PAGE#anchor -->` runs the blocks of a section that the page
/// tells the reader to run first.
fn before(page: &Page) -> Vec<Example> {
    let mut found = Vec::new();
    for (n, line) in page.text.lines().enumerate() {
        let mark = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" -->");
        let sql = match (mark("<!-- tables: "), mark("<!-- helper: ")) {
            (Some(file), _) => read(file),
            (_, Some(section)) => of_section(section),
            _ => continue,
        };
        found.push(Example { line: n + 1, sql, promise: Promise::Success });
    }
    found
}

/// Returns the `sql` blocks of a section, named as `docs/page.md#anchor`, up to the next heading.
fn of_section(name: &str) -> String {
    let (page, anchor) = name.split_once('#').expect("PAGE#anchor");
    let text = read(page);
    let is_heading = |line: &str| line.starts_with('#') && line.trim_start_matches('#').starts_with(' ');
    let named = |line: &str| line.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-") == anchor;
    let lines = text.lines().skip_while(|line| !(is_heading(line) && named(line))).skip(1);
    let section: Vec<_> = lines.take_while(|line| !is_heading(line)).collect();
    let found: String =
        blocks(&section.join("\n")).into_iter().filter(|block| block.info == "sql").map(|block| block.body).collect();
    assert!(!found.is_empty(), "{name}: no such section with SQL");
    found
}

/// Returns the examples of a page. Fails at a block with an unknown info string.
fn examples(page: &Page) -> Result<Vec<Example>, String> {
    let blocks = blocks(&page.text);
    let mut found = before(page);
    for (at, block) in blocks.iter().enumerate() {
        let wrong = |why: &str| Err(format!("{}:{}: {why}: ```{}", page.name, block.line, block.info));
        let (language, rest) = block.info.split_once(' ').unwrap_or((&block.info, ""));
        if language != "sql" {
            if OTHER.contains(&language) {
                continue;
            }
            return wrong("unknown kind of block");
        }
        let promise = match (rest, rest.strip_prefix("error=")) {
            ("", _) => Promise::Success,
            (_, Some(code)) => Promise::Error(code.to_owned()),
            ("output", _) => match blocks.get(at + 1) {
                Some(Block { info, body, .. }) if info == "text" => Promise::Output(body.clone()),
                _ => return wrong("no text block with the output follows"),
            },
            _ => return wrong("unknown option"),
        };
        found.push(Example { line: block.line, sql: block.body.clone(), promise });
    }
    Ok(found)
}

/// Returns the script for psql. Marks show where each example begins and ends, and the SQLSTATE of its last statement.
/// A transaction that a promised error has left open is rolled back.
fn script(examples: &[Example]) -> String {
    let mut script = String::from("\\set ON_ERROR_STOP on\n");
    for (n, Example { sql, promise, .. }) in examples.iter().enumerate() {
        let (before, after) = match promise {
            Promise::Error(_) => ("\\set ON_ERROR_STOP off\n", "\\set ON_ERROR_STOP on\nROLLBACK;\n"),
            _ => ("", ""),
        };
        let _ = write!(script, "{before}\\echo @@begin {n}\n{sql}\n\\echo @@end {n} :SQLSTATE\n{after}");
    }
    script
}

/// Runs a page's examples in a new database. Returns the differences from the page.
fn run(cluster: &Cluster, database: &str, page: &Page, examples: &[Example]) -> Vec<String> {
    drop(cluster.create_database(database));
    let file = cluster.dir().join(format!("{database}.sql"));
    std::fs::write(&file, script(examples)).expect("a writable cluster folder");
    let mut psql = cluster.command("psql");
    psql.args(["-X", "-P", "pager=off", "-d", database])
        .env("PGOPTIONS", "-c statement_timeout=60s")
        .stdin(std::fs::File::open(file).expect("the file just written"));
    let printed = printed(psql);
    let mut wrong = Vec::new();
    for (n, example) in examples.iter().enumerate() {
        if let Err(why) = judge(&printed, n, example) {
            wrong.push(format!("{}:{}: {why}", page.name, example.line));
        }
        if !printed.contains(&format!("@@end {n} ")) {
            // psql stopped in this example.
            break;
        }
    }
    wrong
}

/// Compares the output of an example with the page.
fn judge(printed: &str, n: usize, example: &Example) -> Result<(), String> {
    let (_, rest) = printed.split_once(&format!("@@begin {n}\n")).ok_or("it was not reached")?;
    let Some((output, rest)) = rest.split_once(&format!("@@end {n} ")) else {
        return Err(format!("it failed\n{rest}"));
    };
    let code = rest.lines().next().unwrap_or_default();
    let errors = output.lines().filter(|line| line.starts_with("ERROR:")).count();
    match &example.promise {
        Promise::Success => Ok(()),
        Promise::Error(wanted) if code == wanted && errors == 1 => Ok(()),
        Promise::Error(wanted) => Err(format!("{wanted} was promised, {code} came, with {errors} errors\n{output}")),
        Promise::Output(wanted) if clean(wanted) == clean(output) => Ok(()),
        Promise::Output(wanted) => Err(format!("it printed\n\n{output}\nand not\n\n{wanted}")),
    }
}

/// Removes blanks at the ends of lines, which editors remove too, and blank lines at the end.
fn clean(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

#[test]
fn every_example_does_what_the_page_says() {
    // A database for each page.
    let settings = ["max_prepared_transactions = 5", "pg_queue.max_databases = 64", "max_worker_processes = 80"];
    let cluster = settings.into_iter().fold(Cluster::new(), Cluster::conf).start();
    let mut wrong = Vec::new();
    for (n, page) in pages().iter().enumerate() {
        if page.name.starts_with(TUTORIALS) {
            continue;
        }
        match examples(page) {
            Ok(examples) if !examples.is_empty() => {
                println!("{}: {} examples", page.name, examples.len());
                wrong.extend(run(&cluster, &format!("docs_{n}"), page, &examples));
            }
            Ok(_) if WITH_EXAMPLES.contains(&page.name.as_str()) => {
                wrong.push(format!("{}: no example runs", page.name));
            }
            Ok(_) => {}
            Err(why) => wrong.push(why),
        }
    }
    none(&wrong);
}

#[test]
fn pages_with_examples_are_there() {
    let names: Vec<String> = pages().into_iter().map(|page| page.name).collect();
    let missing = WITH_EXAMPLES.iter().filter(|wanted| !names.iter().any(|name| name == **wanted));
    none(&missing.map(|name| format!("{name}: there is no such page")).collect::<Vec<_>>());
}

#[test]
fn tables_and_helpers_run_before_a_page() {
    let (tables, helper) = ("pgrx-tests/docs/peers/pgmq.sql", "docs/coming-from/libraries.md#moving-the-waiting-jobs");
    let text = format!("<!-- tables: {tables} -->\n<!-- helper: {helper} -->\n```sql\nSELECT 1;\n```\n");
    let found = examples(&Page { name: "a page".into(), text }).expect("a page with one block");
    assert_eq!((found.len(), &found[0].sql, found[2].sql.trim()), (3, &read(tables), "SELECT 1;"));
    assert!(found[1].sql.contains("CREATE FUNCTION enqueue_moving") && !found[1].sql.contains("pgboss"));
}
