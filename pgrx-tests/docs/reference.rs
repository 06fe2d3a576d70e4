//! Compares the pages with the server and the source: nothing is left out, and nothing points nowhere.

use std::path::{Component, Path, PathBuf};

use queue_tests::Cluster;

use crate::{none, pages, read, root};
use queue_tests::markdown::{anchors, code_spans, links, section};

/// Views that only other views read.
const INTERNAL_VIEWS: [&str; 7] =
    ["activity_part", "job_life", "life", "metric", "observed", "payload", "throughput_part"];

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        for (line, target) in links(&page.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.name.clone() } else { beside(&page.name, file) };
            if !root().join(&path).exists() {
                wrong.push(format!("{}:{line}: there is no {path}", page.name));
            } else if !anchor.is_empty() && !anchors(&read(&path)).iter().any(|a| a == anchor) {
                wrong.push(format!("{}:{line}: {path} has no heading #{anchor}", page.name));
            }
        }
    }
    none(&wrong);
}

/// The path of a link's target below the root.
fn beside(page: &str, target: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.display().to_string()
}

#[test]
fn paths_that_are_mentioned_exist() {
    let mut wrong = Vec::new();
    for page in pages().iter().filter(|page| !page.name.starts_with("pgrx-tests") && !page.name.starts_with("src")) {
        for (line, span) in code_spans(&page.text) {
            let is_path = ["src/", "sql/", "docs/", "pgrx-tests/"].iter().any(|folder| span.starts_with(folder));
            // A tutorial names the files that its reader makes.
            let is_made = page.text.lines().nth(line - 1).is_some_and(|line| line.contains("Save this as `"));
            if is_path && !is_made && !span.contains(['*', '{', ' ']) && !root().join(&span).exists() {
                wrong.push(format!("{}:{line}: there is no {span}", page.name));
            }
        }
    }
    none(&wrong);
}

/// The table of features in ARCHITECTURE.md: each column names floors, each cell files there.
#[test]
fn files_of_features_exist() {
    let page = read("ARCHITECTURE.md");
    let (_, text) = page.split_once("## Where a feature is\n").expect("the section");
    let (text, _) = text.split_once("\n## ").expect("the next section");
    let rows = text.lines().filter(|line| line.starts_with('|')).map(|line| line.split('|').collect::<Vec<_>>());
    let spans = |cell: &str| code_spans(cell).into_iter().map(|(_, span)| span).collect::<Vec<_>>();
    let (mut floors, mut wrong, mut files) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        if floors.is_empty() {
            floors = row.iter().map(|cell| spans(cell)).collect();
            continue;
        }
        for (cell, floors) in row.iter().zip(&floors) {
            for file in spans(cell).iter().filter(|_| !floors.is_empty()) {
                files += 1;
                if !floors.iter().any(|floor| root().join("src").join(floor).join(file).exists()) {
                    wrong.push(format!("{}: there is no {file} in {floors:?}", row[1].trim()));
                }
            }
        }
    }
    none(&wrong);
    assert!(files > 50, "{files} files are named");
}

#[test]
fn every_setting_function_and_view_is_documented() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    let mut wrong = Vec::new();

    let page = read("docs/settings.md");
    let settings = "SELECT name, current_setting(name), min_val, max_val, context FROM pg_settings
                    WHERE name LIKE 'pg\\_queue.%' ORDER BY name";
    for row in client.query(settings, &[]).unwrap() {
        let (name, value): (String, String) = (row.get(0), row.get(1));
        let Some(line) = page.lines().find(|line| line.starts_with(&format!("| `{name}`"))) else {
            wrong.push(format!("docs/settings.md has no row for {name}"));
            continue;
        };
        let context = match row.get::<_, &str>(4) {
            "postmaster" => "start",
            "sighup" => "reload",
            "superuser" => "superuser",
            "internal" => "never",
            _ => "anyone",
        };
        let bounds = [row.get::<_, Option<String>>(2), row.get(3)];
        let said = bounds.into_iter().flatten().chain([format!("`{value}`"), context.to_owned()]);
        wrong.extend(said.filter(|s| !line.contains(s)).map(|s| format!("docs/settings.md, {name}: {s} is missing")));
    }
    wrong.extend(mentioned(&page, "| `pg_queue.").filter_map(|name| {
        let known = client.query_opt("SELECT FROM pg_settings WHERE name = 'pg_queue.' || $1", &[&name]).unwrap();
        known.is_none().then(|| format!("docs/settings.md: there is no setting pg_queue.{name}"))
    }));

    let page = read("docs/functions.md");
    let functions = "SELECT p.proname::text, coalesce(p.proargnames, '{}')::text[] FROM pg_proc AS p
                     WHERE p.pronamespace = 'queue'::regnamespace ORDER BY 1";
    for row in client.query(functions, &[]).unwrap() {
        let (name, arguments): (String, Vec<String>) = (row.get(0), row.get(1));
        match section(&page, &format!("queue.{name}")) {
            None => wrong.push(format!("docs/functions.md has no section `queue.{name}`")),
            Some(text) => wrong.extend(
                arguments
                    .iter()
                    .filter(|argument| !text.contains(argument.as_str()))
                    .map(|argument| format!("docs/functions.md, queue.{name}: {argument} is missing")),
            ),
        }
    }
    wrong.extend(mentioned(&page, "### `queue.").filter_map(|name| {
        let found = client.query_opt("SELECT FROM pg_proc WHERE oid = to_regproc('queue.' || $1)", &[&name]).unwrap();
        found.is_none().then(|| format!("docs/functions.md: there is no function queue.{name}"))
    }));

    let page = read("docs/views.md");
    let views = "SELECT c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
                 FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
                 WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v' AND c.relname <> ALL ($1)
                 GROUP BY c.relname ORDER BY 1";
    for row in client.query(views, &[&INTERNAL_VIEWS.map(str::to_owned).to_vec()]).unwrap() {
        let (name, columns): (String, Vec<String>) = (row.get(0), row.get(1));
        match section(&page, &format!("queue.{name}")) {
            None => wrong.push(format!("docs/views.md has no section `queue.{name}`")),
            Some(text) => wrong.extend(
                columns
                    .iter()
                    .filter(|column| !text.contains(&format!("`{column}`")))
                    .map(|column| format!("docs/views.md, queue.{name}: column {column} is missing")),
            ),
        }
    }
    wrong.extend(mentioned(&page, "## `queue.").filter_map(|name| {
        let found = client.query_opt("SELECT FROM pg_class WHERE oid = to_regclass('queue.' || $1)", &[&name]).unwrap();
        found.is_none().then(|| format!("docs/views.md: there is no view queue.{name}"))
    }));
    none(&wrong);
}

/// The names that follow `prefix` at the beginnings of lines.
fn mentioned<'a>(page: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    page.lines().filter_map(move |line| line.strip_prefix(prefix)?.split('`').next())
}
