//! The list in bridge/primary.sql of the functions that a primary cannot answer: functions of schema `queue` that the
//! script does not define, with their arguments and results.
//!
//! Responsible for the text between the two marks. Not responsible for what these functions do on a primary: they raise
//! an error.
//!
//! Invariant: for each function of the queue server, a primary has one of that name.

use eyre::{Result, eyre};

use crate::declarations::{self, Argument, Function};
use crate::views;

pub const SCRIPT: &str = "bridge/primary.sql";
const BEGIN: &str = "-- absent: made by `make generate`\n";
const END: &str = "-- end of absent\n";
/// The result type of functions that return rows of a type or a view of the extension begins with this.
const RETURNS_OWN: &str = "SETOF queue.";
/// The longest line of the list.
const WIDTH: usize = 120;

/// Returns the script with a new list. `sql`: the SQL of the extension. `surface`: see `views`.
pub fn script(now: &str, sql: &str, surface: &str) -> Result<String> {
    let (before, rest) = now.split_once(BEGIN).ok_or_else(|| eyre!("{SCRIPT} has no mark {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| eyre!("{SCRIPT} has no mark {END}"))?;
    let mut functions = declarations::functions(sql);
    let is_defined = |name: &str| [before, after].iter().any(|part| part.contains(&format!("FUNCTION queue.{name}(")));
    functions.retain(|function| !is_defined(function.name));
    functions.sort_by_key(|function| function.name);
    let mut types: Vec<_> = functions.iter().filter_map(|f| f.returns.strip_prefix(RETURNS_OWN)).collect();
    types.sort_unstable();
    types.dedup();
    let types = types.into_iter().map(|name| Ok(literal(&own_type(name, sql, surface)?)));
    let functions = functions.iter().map(|function| Ok(literal(&declaration(function))));
    let lines = types.chain(functions).collect::<Result<Vec<_>>>()?;
    Ok(format!("{before}{BEGIN}{}\n{END}{after}", lines.join(",\n")))
}

/// Returns the declaration of a function on the primary.
fn declaration(function: &Function<'_>) -> String {
    let arguments: Vec<_> = function.arguments.iter().map(argument).collect();
    let (kind, returns) = match (function.is_procedure, &function.columns[..]) {
        (true, _) => ("PROCEDURE", String::new()),
        (false, []) => {
            ("FUNCTION", format!(" RETURNS {}", function.returns.replace(RETURNS_OWN, "SETOF queue_bridge.")))
        }
        (false, columns) => {
            let columns: Vec<_> = columns.iter().map(argument).collect();
            ("FUNCTION", format!(" RETURNS TABLE ({})", columns.join(", ")))
        }
    };
    format!("{kind} queue.{}({}){returns}", function.name, arguments.join(", "))
}

/// Returns a declaration as a literal in several lines.
fn literal(text: &str) -> String {
    let mut broken = String::from("    '");
    let mut width = broken.len();
    for (n, word) in text.replace('\'', "''").split(' ').enumerate() {
        if width + 1 + word.len() + 2 > WIDTH {
            broken += "\n     ";
            width = 5;
        }
        let gap = if n == 0 { "" } else { " " };
        broken += gap;
        broken += word;
        width += gap.len() + word.len();
    }
    broken + "'"
}

fn argument(argument: &Argument<'_>) -> String {
    let default = argument.default.map_or_else(String::new, |default| format!(" DEFAULT {default}"));
    format!("{}{} {}{default}", if argument.is_answer { "INOUT " } else { "" }, argument.name, argument.kind)
}

/// Returns the declaration on the primary of a type of the extension, or of a type for a view's rows.
fn own_type(name: &str, sql: &str, surface: &str) -> Result<String> {
    let columns = match sql.split_once(&format!("CREATE TYPE queue.{name} AS (")) {
        Some((_, rest)) => {
            let end = declarations::closing(rest).ok_or_else(|| eyre!("type queue.{name} does not end"))?;
            rest[..end].split_whitespace().collect::<Vec<_>>().join(" ")
        }
        None => {
            let columns = views::columns(surface, name)?;
            columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect::<Vec<_>>().join(", ")
        }
    };
    Ok(format!("TYPE queue_bridge.{name} AS ({columns})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_the_script_does_not_define_are_listed() {
        let now = format!("CREATE FUNCTION queue.here(a int);\n{BEGIN}old\n{END}end");
        let sql = "CREATE FUNCTION queue.here(a int) RETURNS int;
            CREATE TYPE queue.t AS (a int,\n   b text);
            CREATE FUNCTION queue.typed(a text DEFAULT 'x') RETURNS SETOF queue.t LANGUAGE c;
            CREATE FUNCTION queue.viewed() RETURNS SETOF queue.v STABLE;
            CREATE FUNCTION queue.plain(a int, OUT b int, OUT c text) LANGUAGE c;
            CREATE PROCEDURE queue.called(a int, INOUT b int DEFAULT NULL) LANGUAGE c;";
        let wanted = "    'TYPE queue_bridge.t AS (a int, b text)',
    'TYPE queue_bridge.v AS (c bigint)',
    'PROCEDURE queue.called(a int, INOUT b int DEFAULT NULL)',
    'FUNCTION queue.plain(a int) RETURNS TABLE (b int, c text)',
    'FUNCTION queue.typed(a text DEFAULT ''x'') RETURNS SETOF queue_bridge.t',
    'FUNCTION queue.viewed() RETURNS SETOF queue_bridge.v'
";
        let made = script(&now, sql, "\nview v\n    c bigint\n").unwrap();
        assert!(made.contains(&format!("{BEGIN}{wanted}{END}end")), "{made}");
        assert!(script("", sql, "").is_err());
        assert!(script(&now, sql, "").is_err());
    }
}
