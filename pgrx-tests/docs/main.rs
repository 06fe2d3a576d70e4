//! Checks that the documentation is true. Every SQL example runs and does what the page says, and the reference pages
//! are complete.
//!
//! How an example is marked: README.md of this package. `examples` runs the examples, `reference` compares pages with
//! the server, `errors` compares them with the source, `top` runs the script that shows the queues in a terminal,
//! `packages` checks the files for package managers, `promises` checks the map from promises to tests.

mod errors;
mod examples;
mod packages;
mod promises;
mod reference;
mod top;

use std::path::{Path, PathBuf};

/// A page of documentation.
struct Page {
    /// Its path below the root of the tree.
    name: String,
    text: String,
}

/// Returns the root of the tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package inside the tree").to_owned()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns all pages below `docs`, `examples` and `clients`, at the root, and beside the code, sorted.
fn pages() -> Vec<Page> {
    let mut names = Vec::new();
    collect("", false, &mut names);
    ["clients", "docs", "examples", "pgrx-tests", "src"].iter().for_each(|folder| collect(folder, true, &mut names));
    names.sort();
    names.into_iter().map(|name| Page { text: read(&name), name }).collect()
}

fn collect(folder: &str, is_deep: bool, names: &mut Vec<String>) {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for entry in entries {
        let entry = entry.expect("an entry of the folder");
        let name = entry.file_name().into_string().expect("a plain name");
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.path().is_dir() {
            if is_deep {
                collect(&path, true, names);
            }
        } else if path.ends_with(".md") {
            names.push(path);
        }
    }
}

/// Fails with all complaints if there are any.
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} found:\n\n{}\n", complaints.len(), complaints.join("\n\n"));
}
