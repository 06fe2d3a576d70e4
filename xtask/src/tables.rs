//! Generates the columns of the tables that Rust reads and writes directly, and of rows that it returns, from the
//! statements that make them.
//!
//! Responsible for `src/catalog/tables.rs`, with the shape and the column numbers of each table, and
//! `src/catalog/rows.rs`, with a struct for each row. Not responsible for comparing a shape with a database's table
//! (`pg::shape`).
//!
//! Invariant: a column stands in the SQL and nowhere else.

use std::fmt::Write as _;

use eyre::{Result, bail, eyre};

/// The tables. Tables that exist several times have a number after this name.
const TABLES: [&str; 18] = [
    "attempt",
    "claim",
    "firing",
    "history",
    "key",
    "lane",
    "note",
    "outcome",
    "parked",
    "queue",
    "restoring",
    "rollup",
    "schedule",
    "segment_log",
    "successor",
    "timeline",
    "total",
    "weight",
];

/// Rows that functions return: the type or function, the name of its module, and the script's text before the columns.
const ROWS: [(&str, &str, &str); 3] = [
    ("queue_internal.live", "LifeRow", "CREATE FUNCTION queue_internal.live()\n    RETURNS TABLE ("),
    ("queue.listed_job", "ListedJob", "CREATE TYPE queue.listed_job AS ("),
    ("queue.claimed_job", "ClaimedJob", "CREATE TYPE queue.claimed_job AS ("),
];

/// SQL types, and pgrx's names for their oids.
const TYPES: [(&str, &str); 14] = [
    ("\"char\"", "CHAROID"),
    ("bigint", "INT8OID"),
    ("bigint[]", "INT8ARRAYOID"),
    ("boolean", "BOOLOID"),
    ("bytea", "BYTEAOID"),
    ("double precision", "FLOAT8OID"),
    ("float8", "FLOAT8OID"),
    ("integer", "INT4OID"),
    ("interval", "INTERVALOID"),
    ("jsonb", "JSONBOID"),
    ("oid", "OIDOID"),
    ("text", "TEXTOID"),
    ("text[]", "TEXTARRAYOID"),
    ("timestamptz", "TIMESTAMPTZOID"),
];

const HEAD: &str = "\
//! The columns of the tables that are read and written directly: their names and types, by number. If a user adds,
//! drops or changes one, the library would read and write memory that it must not.
//!
//! Made by `make generate` from sql/schema: do not edit. Not responsible for comparing a table with its shape: see
//! `pg::shape`.
//!
//! Invariant: each table is checked when it is opened, with its lock, unless this session was told nothing of any table
//! since it was checked last. Columns that were added and dropped again, behind the extension's own, are tolerated:
//! they are NULL.

#![allow(dead_code, reason = \"each column has its number, whether or not Rust reads it\")]

use pgrx::pg_sys::{self, Datum};

use crate::pg::argument::position;
use crate::pg::datum::Interval;
use crate::pg::row::{Columns, Stored};
use crate::pg::shape::Shape;

/// Makes a module for each table: its shape, the numbers of its columns, and a row.
macro_rules! tables {
    ($($table:ident {
        $($constant:ident $field:ident: $kind:ty = $name:literal $oid:ident $is_not_null:literal),*
    })*) => {$(
        pub mod $table {
            use super::*;

            pub const SHAPE: Shape = &[$(($name, pg_sys::$oid, $is_not_null)),*];
            const NAMES: &[&str] = &[$($name),*];
            $(pub const $constant: usize = position(NAMES, $name);)*
            pub const COUNT: usize = NAMES.len();

            /// A row. Its datums are valid as long as what they were read from.
            #[derive(Clone, Copy)]
            pub struct Row {
                $(pub $field: $kind,)*
            }

            impl Row {
                /// A row without any values.
                pub const BLANK: Self = Self { $($field: <$kind as Stored>::BLANK,)* };

                /// Reads all columns.
                #[inline]
                pub fn read(row: &impl Columns) -> Self {
                    Self { $($field: Stored::read(row, $constant),)* }
                }

                /// Returns the values in the order of the columns, as they are written.
                #[inline]
                pub fn values(self) -> [Option<Datum>; COUNT] {
                    [$(Stored::datum(self.$field)),*]
                }
            }

            /// A row of which a column is read when it is asked for.
            pub struct Lazy<R>(pub R);

            impl<R: Columns> Lazy<R> {
                $(#[inline]
                pub fn $field(&self) -> $kind {
                    Stored::read(&self.0, $constant)
                })*
            }
        }
    )*};
}

tables! {
";

const ROWS_HEAD: &str = "//! The rows that functions return.
//!
//! Made by `make generate` from sql/schema: do not edit. Not responsible for rows of tables: see `tables`.
//!
//! Invariant: a row has the columns that the SQL declares, in its order.

use pgrx::pg_sys::Datum;
";

/// Returns the Rust type of a column with this type.
fn kind(oid: &str) -> &'static str {
    match oid {
        "INT8OID" | "TIMESTAMPTZOID" => "i64",
        "INT4OID" => "i32",
        "CHAROID" => "u8",
        "BOOLOID" => "bool",
        "FLOAT8OID" => "f64",
        "INTERVALOID" => "Interval",
        _ => "Datum",
    }
}

/// Returns the text of the file of all tables. rustfmt does not format the contents of a macro.
pub fn file(script: &str) -> Result<String> {
    let mut file = HEAD.to_owned();
    for table in TABLES {
        let columns = columns(script, table)?;
        writeln!(file, "    // `queue_internal.{}`\n    {table} {{", written(script, table))?;
        for (n, Column { name, oid, is_not_null }) in columns.iter().enumerate() {
            let kind = if *is_not_null { kind(oid).to_owned() } else { format!("Option<{}>", kind(oid)) };
            let comma = if n + 1 == columns.len() { "" } else { "," };
            writeln!(file, "        {} {name}: {kind} = {name:?} {oid} {is_not_null}{comma}", name.to_uppercase())?;
        }
        writeln!(file, "    }}")?;
    }
    Ok(file + "}\n")
}

/// Returns the text of the file of all rows.
pub fn rows(script: &str) -> Result<String> {
    let mut file = ROWS_HEAD.to_owned();
    for (row, module, begin) in ROWS {
        let at = script.find(begin).ok_or_else(|| eyre!("no script makes {row}"))?;
        let items = items(&script[at + begin.len()..]);
        let names: Vec<&str> = items.iter().map(|item| item.split_whitespace().next().unwrap_or_default()).collect();
        writeln!(file, "\n/// `{row}`.\n#[derive(Clone, Copy, Default)]\npub struct {module} {{")?;
        names.iter().try_for_each(|name| writeln!(file, "    pub {name}: Option<Datum>,"))?;
        writeln!(file, "}}\n\nimpl {module} {{\n    pub const COUNT: usize = {};\n", names.len())?;
        writeln!(file, "    /// Returns the columns in their order.")?;
        writeln!(file, "    pub fn columns(&self) -> [Option<Datum>; Self::COUNT] {{\n        [")?;
        names.iter().try_for_each(|name| writeln!(file, "            self.{name},"))?;
        writeln!(file, "        ]\n    }}\n}}")?;
    }
    Ok(file)
}

/// Returns the table's name in the script: `attempt_N` if there are several.
fn written(script: &str, table: &str) -> String {
    let is_numbered = script.contains(&format!("CREATE TABLE queue_internal.{table}_%1$s"));
    if is_numbered { format!("{table}_N") } else { table.to_owned() }
}

/// A column.
struct Column {
    name: String,
    oid: &'static str,
    is_not_null: bool,
}

/// Returns the columns of a table in order.
fn columns(script: &str, table: &str) -> Result<Vec<Column>> {
    let begins =
        [format!("CREATE TABLE queue_internal.{table} ("), format!("CREATE TABLE queue_internal.{table}_%1$s (")];
    let begin = begins.iter().find_map(|begin| script.find(begin).map(|at| at + begin.len()));
    let list = &script[begin.ok_or_else(|| eyre!("no script makes the table queue_internal.{table}"))?..];
    let items = items(list);
    let mut columns = Vec::new();
    for item in &items {
        let (name, rest) = item.split_once(char::is_whitespace).unwrap_or((item, ""));
        if ["CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "EXCLUDE", "LIKE"].contains(&name) {
            continue;
        }
        let ends = [
            " NOT ",
            " NULL",
            " DEFAULT ",
            " CONSTRAINT ",
            " PRIMARY ",
            " GENERATED ",
            " COLLATE ",
            " CHECK ",
            " UNIQUE",
        ];
        let padded = format!("{} ", rest.split_whitespace().collect::<Vec<_>>().join(" "));
        let end = ends.iter().filter_map(|end| padded.find(end)).min().unwrap_or(padded.len());
        let kind = padded[..end].trim();
        let Some((_, oid)) = TYPES.iter().find(|(known, _)| *known == kind) else {
            bail!("queue_internal.{table}.{name} is of type {kind}, which xtask/src/tables.rs does not know");
        };
        let is_not_null = ["NOT NULL", "PRIMARY KEY", "GENERATED"].iter().any(|mark| rest.contains(mark));
        columns.push(Column { name: name.to_owned(), oid, is_not_null });
    }
    // All columns of a primary key are NOT NULL.
    for key in items.iter().filter_map(|item| item.split_once("PRIMARY KEY (")).map(|(_, rest)| rest) {
        let names: Vec<&str> = key.split(')').next().unwrap_or_default().split(',').map(str::trim).collect();
        for column in columns.iter_mut().filter(|column| names.contains(&column.name.as_str())) {
            column.is_not_null = true;
        }
    }
    Ok(columns)
}

/// Returns the items of a list in parentheses, without comments.
fn items(list: &str) -> Vec<String> {
    let (mut items, mut item, mut depth) = (Vec::new(), String::new(), 1);
    let code = list.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    for c in code.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        match c {
            _ if depth == 0 => break,
            ',' if depth == 1 => items.push(std::mem::take(&mut item).trim().to_owned()),
            c => item.push(c),
        }
    }
    items.push(item.trim().to_owned());
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_the_statement() {
        let script = "CREATE TABLE queue_internal.attempt_%1$s (
            id bigint NOT NULL CONSTRAINT a PRIMARY KEY WITH (deduplicate_items = off), -- the first, of all
            after bigint[], upon \"char\", key text COLLATE \"C\" NOT NULL,
            flag boolean DEFAULT false CHECK (flag IN (true, false)), lane integer, turn integer,
            CONSTRAINT b PRIMARY KEY (lane, turn)
        ) USING heap;";
        let found: Vec<_> =
            columns(script, "attempt").unwrap().into_iter().map(|c| (c.name, c.oid, c.is_not_null)).collect();
        let is = |name: &str, oid, is_not_null| (name.to_owned(), oid, is_not_null);
        assert_eq!(
            found,
            [
                is("id", "INT8OID", true),
                is("after", "INT8ARRAYOID", false),
                is("upon", "CHAROID", false),
                is("key", "TEXTOID", true),
                is("flag", "BOOLOID", false),
                is("lane", "INT4OID", true),
                is("turn", "INT4OID", true),
            ]
        );
        assert_eq!(written(script, "attempt"), "attempt_N");
        assert!(columns(script, "claim").is_err());
        assert!(columns("CREATE TABLE queue_internal.a (b money)", "a").is_err());
    }
}
