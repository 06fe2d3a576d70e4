//! For each crate in this tree's manifests, docs/decisions/dependencies.md says why it is there and who maintains it.
//! The page names no other crates.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the crates that a manifest asks for, without those of this tree.
fn asked_for(manifest: &str) -> impl Iterator<Item = String> {
    let mut is_list = false;
    let lines = manifest.lines().filter(move |line| {
        if line.starts_with('[') {
            is_list = line.trim_end().ends_with("dependencies]");
        }
        is_list && !line.contains("path = ")
    });
    lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).filter(|name| !name.starts_with('#'))
}

#[test]
fn each_crate_has_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let workspace = read("Cargo.toml");
    let members = workspace.split_once("members = [").unwrap().1.split(']').next().unwrap();
    let members = members.split('"').skip(1).step_by(2).map(|folder| format!("{folder}/Cargo.toml"));
    let others = ["Cargo.toml".to_owned(), "clients/drivers/Cargo.toml".to_owned()];
    let asked: BTreeSet<String> =
        members.chain(others).flat_map(|file| asked_for(&read(&file)).collect::<Vec<_>>()).collect();
    assert!(asked.len() > 30, "{asked:?}");

    // The names in the first column, and in the line about what the package for Rust shares.
    let page = read("docs/decisions/dependencies.md");
    let rows = page.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split(" | ").next());
    let told: BTreeSet<String> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    assert_eq!(asked.difference(&told).collect::<Vec<_>>(), [""; 0], "the page has no row for them");
    assert_eq!(told.difference(&asked).collect::<Vec<_>>(), [""; 0], "no Cargo.toml asks for them");
}
