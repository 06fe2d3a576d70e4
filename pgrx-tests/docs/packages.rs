//! META.json follows the specification of PGXN (https://pgxn.org/meta/spec.txt) and agrees with Cargo.toml. The
//! packages in `clients` have the same version.

use serde_json::{Map, Value};

use crate::{read, root};

/// Returns a value from the `[package]` of Cargo.toml.
fn of_package(key: &str) -> String {
    let manifest = read("Cargo.toml");
    let package = manifest.split("\n[").next().expect("the first section");
    let value = package.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
    value.unwrap_or_else(|| panic!("Cargo.toml has no {key}")).trim().trim_matches('"').to_owned()
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

/// True for a version as PGXN wants it: three numbers without leading zeros, and perhaps a label after `-`.
fn is_version(value: &Value) -> bool {
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|number| number.to_string() == part);
    value.as_str().is_some_and(|text| {
        let (numbers, label) = text.split_once('-').unwrap_or((text, "x"));
        numbers.split('.').count() == 3 && numbers.split('.').all(is_number) && !label.is_empty()
    })
}

/// Checks the keys and values of an object: all keys in `must` exist, no key is unknown, and `is_good` is true for
/// each.
#[track_caller]
fn check(object: &Value, must: &[&str], may: &[&str], is_good: impl Fn(&str, &Value) -> bool) {
    let object: &Map<String, Value> = object.as_object().expect("an object");
    for key in must {
        assert!(object.contains_key(*key), "{key} is missing");
    }
    for (key, value) in object {
        assert!(must.contains(&key.as_str()) || may.contains(&key.as_str()), "there is no {key} in the specification");
        assert!(is_good(key, value), "{key}: {value}");
    }
}

/// The extensions that an installation has.
const EXTENSIONS: [&str; 3] = ["pg_queue", "pg_queue_cluster", "pg_queue_bridge"];

#[test]
fn the_metadata_for_pgxn_keeps_its_specification() {
    let meta: Value = serde_json::from_str(&read("META.json")).expect("JSON");
    let must = ["name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"];
    let may = ["description", "generated_by", "no_index", "prereqs", "release_status", "resources", "tags"];
    check(&meta, &must, &may, |key, value| match key {
        "version" => is_version(value),
        "license" => value == "postgresql",
        "release_status" => value == "stable" || value == "testing" || value == "unstable",
        "provides" | "meta-spec" | "prereqs" | "resources" | "no_index" => value.is_object(),
        "tags" => value.as_array().is_some_and(|tags| !tags.is_empty() && tags.iter().all(is_text)),
        _ => is_text(value),
    });
    check(&meta["meta-spec"], &["version"], &["url"], |key, value| match key {
        "version" => value == "1.0.0",
        _ => value == "https://pgxn.org/meta/spec.txt",
    });
    check(&meta["provides"], &EXTENSIONS, &[], |_, value| value.is_object());
    for extension in EXTENSIONS {
        check(&meta["provides"][extension], &["file", "version"], &["abstract", "docfile"], |key, value| match key {
            "version" => is_version(value),
            "abstract" => is_text(value),
            _ => value.as_str().is_some_and(|path| root().join(path).is_file()),
        });
    }
    check(&meta["prereqs"], &["runtime"], &[], |_, value| value.is_object());
    check(&meta["prereqs"]["runtime"], &["requires"], &[], |_, value| value.is_object());
    check(&meta["prereqs"]["runtime"]["requires"], &["PostgreSQL"], &[], |_, value| is_version(value));
}

#[test]
fn the_metadata_for_pgxn_is_of_this_version() {
    let meta: Value = serde_json::from_str(&read("META.json")).expect("JSON");
    let version = of_package("version");
    assert_eq!(meta["version"], *version);
    for extension in EXTENSIONS {
        assert_eq!(meta["provides"][extension]["version"], *version);
    }
    assert_eq!(meta["abstract"], *of_package("description"));
}

#[test]
fn the_clients_have_the_version_of_the_extension() {
    let version = of_package("version");
    let node: Value = serde_json::from_str(&read("clients/node/package.json")).expect("JSON");
    assert_eq!(node["version"], version);
    let line = format!("version = \"{version}\"");
    let python = read("clients/python/src/pg_queue/version.py");
    assert!(
        python.lines().any(|found| found == format!("__{}", line.replacen("version", "version__", 1))),
        "version.py"
    );
    assert!(read("clients/rust/Cargo.toml").lines().any(|found| found == line), "Cargo.toml");
}

/// The metadata that a package index shows, and the files that an installation needs.
#[test]
fn the_clients_say_what_they_are() {
    let licence = read("LICENSE");
    let node: Value = serde_json::from_str(&read("clients/node/package.json")).expect("JSON");
    for key in ["description", "license", "main", "types"] {
        assert!(is_text(&node[key]), "package.json: {key}");
    }
    assert!(node["keywords"].as_array().is_some_and(|words| words.len() > 3 && words.iter().all(is_text)));
    for entry in node["exports"].as_object().expect("exports").values() {
        for file in ["types", "default"] {
            let path = entry[file].as_str().expect("a path");
            assert!(root().join("clients/node").join(path).is_file(), "{path}");
        }
    }
    for (file, lines) in [
        ("python/pyproject.toml", ["description", "readme", "license", "keywords", "requires-python"]),
        ("rust/Cargo.toml", ["description", "readme", "license", "keywords", "categories"]),
    ] {
        let manifest = read(&format!("clients/{file}"));
        for key in lines {
            assert!(manifest.lines().any(|line| line.starts_with(&format!("{key} = "))), "{file}: {key}");
        }
    }
    assert!(root().join("clients/python/src/pg_queue/py.typed").is_file());
    for package in ["node", "python", "rust"] {
        assert_eq!(read(&format!("clients/{package}/LICENSE")), licence, "{package}");
    }
}
