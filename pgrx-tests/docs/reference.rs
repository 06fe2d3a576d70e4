//! Compares the pages with the server and the source. Nothing is missing, and each link and path leads somewhere.

use std::fs;
use std::path::{Component, Path, PathBuf};

use queue_tests::Cluster;

use crate::{none, pages, read, root};
use queue_tests::markdown::{anchors, code_spans, links, section};

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

/// Returns the path of a link's target, relative to the root.
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

/// PostgreSQL 19 and later skip the calls in `count(f() IS NULL)` and similar expressions: docs/majors.md.
#[test]
fn no_query_counts_calls_that_postgres_19_skips() {
    let mut files: Vec<(String, String)> = pages().into_iter().map(|page| (page.name, page.text)).collect();
    for folder in ["bridge", "clients", "cluster", "examples", "monitoring", "sql", "web"] {
        programs(&root().join(folder), &mut files);
    }
    assert!(files.len() > 150, "{}", files.len());
    let mut wrong = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| name != "docs/majors.md") {
        for (at, _) in text.match_indices("count(") {
            let inner = enclosed(&text[at + "count(".len()..]);
            let is_never_null = inner.ends_with("NULL")
                || ["coalesce(", "ARRAY[", "CASE", "greatest("].iter().any(|form| inner.starts_with(form));
            if inner.contains("queue.") && is_never_null {
                wrong.push(format!("{name}: count({inner})"));
            }
        }
    }
    none(&wrong);
    assert_eq!(enclosed("queue.complete(id) IS NULL) FROM queue.claim('mail')"), "queue.complete(id) IS NULL");
}

/// Returns the text up to the parenthesis that closes the one before it.
fn enclosed(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|sign| {
        depth += i32::from(sign == '(') - i32::from(sign == ')');
        depth == 0
    });
    &text[..end.unwrap_or(0)]
}

/// Adds the programs and scripts below a folder.
fn programs(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of the project").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
            programs(&path, files);
        } else if path.extension().is_some_and(|end| ["js", "py", "rs", "sql", "sh", "json"].iter().any(|e| end == *e))
        {
            files.extend(fs::read_to_string(&path).map(|text| (path.display().to_string(), text)));
        }
    }
}

#[test]
fn paths_that_are_mentioned_exist() {
    let mut wrong = Vec::new();
    for page in pages().iter().filter(|page| !page.name.starts_with("pgrx-tests") && !page.name.starts_with("src")) {
        for (line, span) in code_spans(&page.text) {
            let is_path = ["src/", "sql/", "docs/", "pgrx-tests/"].iter().any(|folder| span.starts_with(folder));
            // A tutorial also names files that its reader makes.
            let is_made = page.text.lines().nth(line - 1).is_some_and(|line| line.contains("Save this as `"));
            if is_path && !is_made && !span.contains(['*', '{', ' ']) && !root().join(&span).exists() {
                wrong.push(format!("{}:{line}: there is no {span}", page.name));
            }
        }
    }
    none(&wrong);
}

/// Compares `src` with the table of ARCHITECTURE.md. Its cells name files and folders, some together as
/// `log/{claim,outcome}`.
#[test]
fn each_file_of_the_library_is_in_the_table() {
    let page = read("ARCHITECTURE.md");
    let (_, text) = page.split_once("## Where a file is\n").expect("the section");
    let (text, _) = text.split_once("\n## ").expect("the next section");
    let table: String =
        text.lines().filter(|line| line.starts_with("| ")).skip(1).fold(String::new(), |table, line| {
            // The last cell of the row names the files.
            table + line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default() + "\n"
        });
    let names: Vec<String> = code_spans(&table).into_iter().flat_map(|(_, span)| spelled_out(&span)).collect();
    let src = root().join("src");
    let mut wrong: Vec<String> = names
        .iter()
        .filter(|name| !src.join(name).is_dir() && !src.join(format!("{name}.rs")).exists())
        .map(|name| format!("ARCHITECTURE.md: there is no {name} in src"))
        .collect();
    let is_named = |file: &Path| {
        let parents = file.ancestors().skip(1);
        names
            .iter()
            .any(|name| file.with_extension("") == Path::new(name) || parents.clone().any(|p| p == Path::new(name)))
    };
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let file = path.strip_prefix(&src).expect("below src");
            if path.is_dir() {
                folders.push(path.clone());
            } else if path.extension().is_some_and(|end| end == "rs") && !is_named(file) {
                wrong.push(format!("ARCHITECTURE.md: {} is in no row", file.display()));
            }
        }
    }
    none(&wrong);
    assert!(names.len() > 150, "{} names", names.len());
}

/// Returns all names that a name with braces stands for.
fn spelled_out(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let (inside, after) = rest.split_once('}').expect("a brace that is closed");
    inside.split(',').map(|part| format!("{before}{part}{after}")).collect()
}

#[test]
fn every_setting_function_and_view_is_documented() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
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
                 WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v'
                 GROUP BY c.relname ORDER BY 1";
    for row in client.query(views, &[]).unwrap() {
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

/// Returns the names that follow `prefix` at the beginnings of lines.
fn mentioned<'a>(page: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    page.lines().filter_map(move |line| line.strip_prefix(prefix)?.split('`').next())
}
