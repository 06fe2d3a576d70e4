//! Checks the map from promises to tests: each named test exists, and no subject and no scenario is missing.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{none, read, root};
use queue_tests::markdown::{code_spans, prose};

const PAGE: &str = "docs/internals/promises.md";

/// Adds the texts of all files below a folder, by file name.
fn files(folder: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            files(&path, found);
        } else if let (Some(name), Ok(text)) = (path.file_name(), std::fs::read_to_string(&path)) {
            found.entry(name.display().to_string()).or_default().push(text);
        }
    }
}

fn below(folder: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    files(&root().join(folder), &mut found);
    found
}

/// Returns the names of all scenarios for the packages. They are not parsed as JSON, since some contain half of a
/// surrogate pair.
fn scenarios() -> Vec<String> {
    let name = |line: &str| line.strip_prefix("    \"name\": \"")?.strip_suffix("\",").map(str::to_owned);
    let texts = below("clients/conformance/scenarios").into_values().flatten();
    texts.flat_map(|text| text.lines().filter_map(name).collect::<Vec<_>>()).collect()
}

/// True if a file of this name has a test of this name.
fn has_test(files: &BTreeMap<String, Vec<String>>, subject: &str, test: &str) -> bool {
    let head = format!("fn {test}(");
    files.get(&format!("{subject}.rs")).is_some_and(|texts| {
        texts
            .iter()
            .flat_map(|text| text.split("#[test]").skip(1))
            .any(|text| text.split_once("fn ").is_some_and(|(_, rest)| rest.starts_with(&head["fn ".len()..])))
    })
}

#[test]
fn each_promise_has_tests_that_exist() {
    let (core, tests) = (below("src/core"), below("pgrx-tests"));
    let page = read(PAGE);
    let scenarios = scenarios();
    let is_name = |span: &str| {
        span.contains("::") || ["golden:", "isolation:", "conformance:"].iter().any(|kind| span.starts_with(kind))
    };
    let mut wrong = Vec::new();
    // The first table explains the names, so it is skipped.
    let begin = page.lines().position(|line| line.starts_with("## ")).expect("a section");
    for (line, span) in code_spans(&page).into_iter().filter(|(line, span)| *line > begin && is_name(span)) {
        let exists = match span.split_once(':') {
            Some(("golden", name)) => ["sql", "out"].iter().all(|kind| tests.contains_key(&format!("{name}.{kind}"))),
            Some(("isolation", name)) => {
                ["spec", "out"].iter().all(|kind| tests.contains_key(&format!("{name}.{kind}")))
            }
            Some(("conformance", name)) => scenarios.iter().any(|one| one == name),
            Some(("core", name)) => name.split_once("::").is_some_and(|(file, test)| has_test(&core, file, test)),
            _ => span.split_once("::").is_some_and(|(file, test)| has_test(&tests, file, test)),
        };
        if !exists {
            wrong.push(format!("{PAGE}:{line}: there is no {span}"));
        }
    }
    let is_row = |row: &str| row.starts_with("| ") && !row.starts_with("| Promise |");
    for (line, row) in prose(&page).into_iter().filter(|(line, row)| *line > begin && is_row(row)) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        if cells.len() != 3 || !cells[1].contains("](") || !cells[2].contains('`') {
            wrong.push(format!("{PAGE}:{line}: a row has a promise, a link and tests"));
        }
    }
    none(&wrong);
}

#[test]
fn each_guarantee_and_each_subject_is_in_the_map() {
    let page = read(PAGE);
    let readme = read("README.md");
    let (_, guaranteed) = readme.split_once("## What is guaranteed").expect("the section");
    let (guaranteed, _) = guaranteed.split_once("\n## ").expect("the next section");
    let mut wrong = Vec::new();
    for line in guaranteed.lines().filter_map(|line| line.strip_prefix("* **")) {
        let name = line.split("**").next().unwrap_or_default();
        if !page.contains(&format!("| **{name}**")) {
            wrong.push(format!("{PAGE} has no row for the guarantee {name}"));
        }
    }
    for (file, texts) in below("pgrx-tests/server") {
        let subject = file.trim_end_matches(".rs");
        if texts.iter().any(|text| text.contains("#[test]")) && !page.contains(&format!("`{subject}::")) {
            wrong.push(format!("{PAGE} names no test of {subject}"));
        }
    }
    for name in scenarios() {
        if !page.contains(&format!("`conformance:{name}`")) {
            wrong.push(format!("{PAGE} does not name the scenario {name}"));
        }
    }
    none(&wrong);
}
