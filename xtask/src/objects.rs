//! Generates the list of privileges that give access to functions and views, from the line `-- For: …` above the
//! statement that makes them.
//!
//! Responsible for `src/catalog/objects.rs`. Not responsible for the GRANTs (`catalog::grants`).
//!
//! Invariant: an object without such a line belongs to the owner alone.

use std::fmt::Write as _;

use eyre::{Result, bail};

use crate::script::{self, Kind};

/// The words after `For:`, and the names of the bits in Rust.
const PRIVILEGES: [(&str, &str); 5] = [
    ("produce", "PRODUCE"),
    ("consume", "CONSUME"),
    ("observe", "OBSERVE"),
    ("manage", "MANAGE"),
    ("manage '*'", "MANAGE_ALL"),
];

const HEAD: &str = "//! Which privilege gives access to which function and view.
//!
//! Made by `make generate` from the lines `-- For: …` in sql/schema: do not edit. Not responsible for the GRANTs
//! (`catalog::grants`).
//!
//! Invariant: what is not listed is the owner's alone.

use crate::catalog::permission::Privilege;

/// A bit beside those of `Privilege`: to manage every queue.
pub const MANAGE_ALL: u8 = 1 << 4;
pub const PRODUCE: u8 = 1 << Privilege::Produce as u8;
pub const CONSUME: u8 = 1 << Privilege::Consume as u8;
pub const OBSERVE: u8 = 1 << Privilege::Observe as u8;
pub const MANAGE: u8 = 1 << Privilege::Manage as u8;

/// The kind of an object, which determines what can be granted on it.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Schema,
    Routine,
    /// A routine that users have no use for, in a schema of its own.
    Internal,
    View,
    /// A view that other views and functions read, in the schema of `Internal`.
    Part,
}

/// Each object with the privileges that give access to it.
pub const OBJECTS: &[(u8, Kind, &str)] = &[
    (PRODUCE | CONSUME | OBSERVE | MANAGE, Kind::Schema, \"queue\"),
";

/// Returns the text of the file.
pub fn file(script: &str) -> Result<String> {
    let mut file = HEAD.to_owned();
    for statement in script::statements(script)? {
        let code = script::without_comments(&statement.text);
        let comments = &statement.text[..statement.text.len() - code.len()];
        let Some(words) = comments.lines().find_map(|line| line.strip_prefix("-- For: ")) else { continue };
        let name = &statement.name;
        let Some(words) = words.strip_suffix('.').filter(|_| statement.kind == Kind::Replaceable) else {
            bail!("{name}: a line \"-- For: …\" ends with a full stop, and stands above a function or view");
        };
        let mut bits = Vec::new();
        for word in words.split(", ") {
            let Some((_, bit)) = PRIVILEGES.iter().find(|(known, _)| *known == word) else {
                bail!("{name} is for {word}, which is no privilege");
            };
            bits.push(*bit);
        }
        let is_view = code.starts_with("CREATE VIEW");
        let kind = match name.split_once('.') {
            Some(("queue_internal", _)) if is_view => "Part",
            Some(("queue_internal", _)) => "Internal",
            _ if is_view => "View",
            _ => "Routine",
        };
        let name = name.rsplit('.').next().unwrap_or(name);
        writeln!(file, "    ({}, Kind::{kind}, \"{name}\"),", bits.join(" | "))?;
    }
    Ok(file + "];\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_objects_are_listed() {
        let script = "-- For: produce, manage '*'.\nCREATE FUNCTION queue.f() RETURNS void LANGUAGE c;
-- Two words.\n-- For: observe.\nCREATE VIEW queue.v AS SELECT 1;\n\
CREATE FUNCTION queue.owners() RETURNS void LANGUAGE c;
-- For: observe.\nCREATE FUNCTION queue_internal.g() RETURNS void LANGUAGE c;
-- For: observe.\nCREATE VIEW queue_internal.w AS SELECT 1;";
        let made = file(script).unwrap();
        for line in [
            "(PRODUCE | MANAGE_ALL, Kind::Routine, \"f\"),",
            "(OBSERVE, Kind::View, \"v\"),",
            "(OBSERVE, Kind::Internal, \"g\"),",
            "(OBSERVE, Kind::Part, \"w\"),",
        ] {
            assert!(made.contains(line), "{made}");
        }
        assert!(!made.contains("owners"));
        assert!(file(&script.replace("observe", "watch")).is_err());
        assert!(file("-- For: observe.\nCREATE TABLE queue.t (a int);").is_err());
    }
}
