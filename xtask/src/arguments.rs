//! Generates the list of functions' arguments that Rust reads.
//!
//! Responsible for `src/catalog/arguments.rs`, which is made from the declarations of all extensions. Not responsible
//! for reading an argument (`src/pg/argument.rs`).
//!
//! Invariant: each function has a module of its own name. Functions of another extension have its name before theirs.

use std::fmt::Write as _;

use eyre::{Result, eyre};

use crate::declarations;
use crate::options::packed;
use crate::script::{self, EXTENSIONS};

const HEAD: &str = "//! The arguments of functions, by the names in their declarations.
//!
//! Made by `make generate` from the SQL of the extensions: do not edit. Not responsible for reading an argument, or for
//! what is made of the list (`pg::argument`).
//!
//! Invariant: a name that the SQL does not declare does not compile.

// What a function does not read by its name has a constant nevertheless.
#![allow(dead_code)]

use crate::pg::argument::functions;

functions! {
";

/// Returns the kind of a type, in `src/pg/argument.rs`.
fn kind(sql: &str) -> &str {
    match sql {
        "integer" => "Integer",
        "bigint" => "Bigint",
        "boolean" => "Boolean",
        "float8" => "Float",
        "interval" => "Interval",
        "timestamptz" => "Timestamp",
        "text" | "json" => "Text",
        "jsonb" => "Jsonb",
        "bigint[]" => "Bigints",
        "text[]" => "Texts",
        "jsonb[]" => "Jsonbs",
        "bytea[]" => "Byteas",
        "oid" | "regclass" | "regproc" => "Oid",
        _ => "Other",
    }
}

/// Returns the text of the file.
pub fn file() -> Result<String> {
    // rustfmt does not format the contents of a macro.
    let mut file = HEAD.to_owned();
    for extension in EXTENSIONS {
        for statement in script::statements(&extension.text()?)? {
            let code = script::without_comments(&statement.text);
            let is_public = statement.name.starts_with("queue.") && code.contains(" RETURNS ");
            let head = match code.split_once("AS 'MODULE_PATHNAME', '") {
                Some((head, _)) => head,
                None if is_public => code,
                None => continue,
            };
            let (_, list) = head.split_once('(').ok_or_else(|| eyre!("{head} has no arguments"))?;
            let end =
                declarations::closing(list).ok_or_else(|| eyre!("the arguments of {} do not end", statement.name))?;
            let arguments: Vec<_> = declarations::arguments(&list[..end]).collect();
            if arguments.is_empty() {
                continue;
            }
            let (schema, name) = statement.name.split_once('.').unwrap_or_default();
            let before = match schema {
                "queue_bridge" => "bridge_",
                "queue_cluster" => "cluster_",
                _ => "",
            };
            let raw = if name == "await" { "r#" } else { "" };
            let module = format!("{raw}{before}{name}");
            let items = arguments.iter().map(|argument| {
                format!("{} {:?} {}", argument.name.to_uppercase(), argument.name, kind(argument.kind))
            });
            let required = arguments.iter().take_while(|argument| argument.default.is_none()).count();
            writeln!(file, "    {module} {name:?} {required} {{\n{}    }}", packed(8, ",", items))?;
        }
    }
    Ok(file + "}\n")
}
