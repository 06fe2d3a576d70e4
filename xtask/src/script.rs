//! The SQL of an extension: its sources in order, and their statements.
//!
//! Responsible for splitting a script into statements, with the name of what each one makes. Not responsible for what
//! an upgrade does with it (`upgrade`).
//!
//! Invariant: the texts of the statements together are the script.

use eyre::{Result, bail};

use crate::files::{BRIDGE, CLUSTER, EXTENSION, read, root};

/// The sources of an extension in a folder. Later parts use earlier ones.
pub struct Sources {
    pub extension: &'static str,
    pub folder: &'static str,
    pub parts: &'static [&'static str],
    /// The statements that an upgrade runs at its end.
    pub after_upgrade: &'static str,
}

pub const QUEUE: Sources = Sources {
    extension: EXTENSION,
    folder: "sql/schema",
    parts: &[
        "schema",
        "tables",
        "history",
        "permissions",
        "functions",
        "rollup",
        "topics",
        "schedules",
        "restore",
        "views",
        "doctor",
    ],
    after_upgrade: "-- For the roles to whom something was granted, \
        on what is new.\nSELECT queue_internal.derive_grants();\n",
};

/// The extension for many servers. It has only SQL.
pub const FOR_CLUSTERS: Sources = Sources {
    extension: CLUSTER,
    folder: "cluster/sql",
    parts: &["servers", "routing", "verbs", "produce", "consume", "manage", "views", "rebalance"],
    after_upgrade: "",
};

/// The extension of a queue server.
pub const BRIDGED: Sources = Sources {
    extension: BRIDGE,
    folder: "bridge/sql",
    parts: &["sources", "arrive", "waiting", "missing", "connections", "facts", "contact", "views"],
    after_upgrade: "",
};

/// All extensions of this tree.
pub const EXTENSIONS: [Sources; 3] = [QUEUE, FOR_CLUSTERS, BRIDGED];

impl Sources {
    /// Returns all parts in one text.
    pub fn text(&self) -> Result<String> {
        let parts = self.parts.iter().map(|part| read(&root().join(self.folder).join(part).with_extension("sql")));
        Ok(parts.collect::<Result<Vec<_>>>()?.join("\n"))
    }

    /// Returns the script of CREATE EXTENSION. psql refuses to run it.
    pub fn install(&self) -> Result<String> {
        Ok(format!("{}\n{}", echo(&format!("CREATE EXTENSION {}", self.extension)), self.text()?))
    }
}

/// Returns the line that makes psql refuse a script and names the command that runs it.
pub fn echo(command: &str) -> String {
    format!("\\echo Use \"{command}\" to load this file. \\quit\n")
}

/// A statement, with the comments before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub text: String,
    pub kind: Kind,
    /// The name of what it makes or explains, with its schema, as `queue.claim` or `queue.jobs`. Empty if it has none.
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// CREATE FUNCTION, PROCEDURE or VIEW. It can be run again with OR REPLACE.
    Replaceable,
    /// COMMENT ON. It can be run again.
    Comment,
    /// A DO block whose tag begins with `each_`. It can be run again and finds the existing objects itself.
    Each,
    /// Any other statement. It is run once.
    Once,
}

/// Splits a script into statements.
///
/// Errors: a quote, a comment or a body that does not end.
pub fn statements(script: &str) -> Result<Vec<Statement>> {
    let mut found = Vec::new();
    let mut rest = script;
    while let Some(length) = length(rest)? {
        found.push(statement(&rest[..length]));
        rest = &rest[length..];
    }
    Ok(found)
}

/// Returns the length of the first statement with its semicolon. `None` if there is no statement left.
fn length(text: &str) -> Result<Option<usize>> {
    let (mut at, mut is_atomic, mut has_code) = (0, false, false);
    let skip = |from: usize, end: &str| match text[from..].find(end) {
        Some(found) => Ok(from + found + end.len()),
        None => bail!("{end} is missing after: {}", text[from..].lines().next().unwrap_or_default()),
    };
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if rest.starts_with("--") {
            at = skip(at, "\n")?;
        } else if rest.starts_with("/*") {
            at = skip(at, "*/")?;
        } else if c == '\'' || c == '"' {
            at = skip(at + 1, &c.to_string())?;
        } else if let Some(tag) = dollar_quote(rest) {
            at = skip(at + tag.len(), tag)?;
        } else if rest.starts_with("BEGIN ATOMIC") {
            (at, is_atomic) = (at + "BEGIN ATOMIC".len(), true);
        } else if c == ';' {
            at += 1;
            // A body in SQL ends with a line of its own.
            if !is_atomic || text[..at].ends_with("\nEND;") {
                return Ok(Some(at));
            }
        } else {
            has_code |= !c.is_whitespace();
            at += c.len_utf8();
        }
    }
    if has_code {
        bail!("a statement does not end: {}", text.trim().lines().next().unwrap_or_default())
    }
    Ok(None)
}

/// Returns the opening quote of a text in dollar quotes.
fn dollar_quote(text: &str) -> Option<&str> {
    let end = text.strip_prefix('$')?.find('$')?;
    let tag = &text[..end + 2];
    tag[1..=end].chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(tag)
}

/// Returns the statement with its name and kind.
fn statement(text: &str) -> Statement {
    let code = without_comments(text);
    let words: Vec<&str> =
        code.split(|c: char| c.is_whitespace() || c == '(' || c == ';').filter(|w| !w.is_empty()).collect();
    let (kind, name) = match words[..] {
        ["CREATE", "OR", "REPLACE", _, name, ..] => (Kind::Replaceable, name),
        ["CREATE", "FUNCTION" | "PROCEDURE" | "VIEW", name, ..] => (Kind::Replaceable, name),
        // The comment of a column belongs to its table or view.
        ["COMMENT", "ON", "COLUMN", name, ..] => (Kind::Comment, name.rsplit_once('.').map_or(name, |(name, _)| name)),
        ["COMMENT", "ON", _, name, ..] => (Kind::Comment, name),
        ["DO", tag, ..] if tag.starts_with("$each_") => (Kind::Each, tag),
        ["CREATE", "TABLE" | "TYPE" | "SEQUENCE" | "SCHEMA" | "INDEX", name, ..] => (Kind::Once, name),
        ["CREATE", "UNIQUE", "INDEX", name, ..] => (Kind::Once, name),
        _ => (Kind::Once, ""),
    };
    Statement { text: text.to_owned(), kind, name: name.to_owned() }
}

/// Returns a statement without the comments before it, and without the line that makes psql refuse the script.
pub fn without_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        let (end, length) = match rest {
            _ if rest.starts_with("--") || rest.starts_with("\\echo") => ("\n", 1),
            _ if rest.starts_with("/*") => ("*/", 2),
            _ => return rest,
        };
        rest = rest.find(end).map_or("", |at| &rest[at + length..]).trim_start();
    }
}

/// Returns a statement in a form in which layout makes no difference: comments, white space between words, and the
/// lines of a literal, as `'a '` and `'b'` for `'a b'`. A text in dollar quotes stays as it is, because Postgres keeps
/// the layout of a body.
pub fn canonical(text: &str) -> String {
    let (mut made, mut rest, mut gap) = (String::new(), without_comments(text), "");
    while let Some(c) = rest.chars().next() {
        let quote = if matches!(c, '\'' | '"') { &rest[..1] } else { dollar_quote(rest).unwrap_or_default() };
        let end = rest[quote.len()..].find(quote).map(|at| at + 2 * quote.len());
        let length = if quote.is_empty() { c.len_utf8() } else { end.unwrap_or(rest.len()) };
        let (token, behind) = rest.split_at(length);
        if c == '\'' && made.ends_with('\'') && gap.contains('\n') {
            made.pop();
            made += &token[1..];
        } else {
            let is_tight = gap.is_empty() || made.ends_with(['(', ',']) || c == ')';
            made += if is_tight { "" } else { " " };
            made += token;
        }
        rest = without_comments(behind);
        gap = &behind[..behind.len() - rest.len()];
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(script: &str) -> Vec<(Kind, String)> {
        let all = statements(script).unwrap();
        assert_eq!(all.iter().map(|s| s.text.as_str()).collect::<String>().trim_end(), script.trim_end());
        all.into_iter().map(|statement| (statement.kind, statement.name)).collect()
    }

    #[test]
    fn a_script_is_taken_apart() {
        let script = "-- It's the first; really.\nCREATE TABLE queue.a (b text DEFAULT ';');
CREATE VIEW queue.v AS SELECT '''' || \";\" FROM queue.a; /* ; */
CREATE FUNCTION queue.f(a int DEFAULT 1) RETURNS int LANGUAGE plpgsql AS $x$ BEGIN RETURN 1; END; $x$;
CREATE FUNCTION queue.g() RETURNS int LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE WHEN true THEN 1 END;
    SELECT 2;
END;
DO $each_view$ BEGIN NULL; END $each_view$;
DO $once$ BEGIN NULL; END $once$;
COMMENT ON COLUMN queue.v.b IS 'It''s; this.';
COMMENT ON FUNCTION queue.f IS 'f';
CREATE UNIQUE INDEX a_idx ON queue.a (b);
";
        let is = |kind, name: &str| (kind, name.to_owned());
        assert_eq!(
            kinds(script),
            [
                is(Kind::Once, "queue.a"),
                is(Kind::Replaceable, "queue.v"),
                is(Kind::Replaceable, "queue.f"),
                is(Kind::Replaceable, "queue.g"),
                is(Kind::Each, "$each_view$"),
                is(Kind::Once, ""),
                is(Kind::Comment, "queue.v"),
                is(Kind::Comment, "queue.f"),
                is(Kind::Once, "a_idx"),
            ]
        );
        assert_eq!(without_comments("-- a\n\n-- b\nSELECT 1;"), "SELECT 1;");
    }

    #[test]
    fn layout_does_not_change_a_statement() {
        let one = "CREATE FUNCTION queue.f(a text DEFAULT 'a  ''b', c int) RETURNS int LANGUAGE c; -- It's old.";
        let other = "-- For: observe.
CREATE FUNCTION queue.f(
    a text DEFAULT 'a  '
        '''b', -- It's new.
    c int
)
    RETURNS int LANGUAGE c;";
        assert_eq!(canonical(one), canonical(other));
        for differs in ["'a ''b'", "'a  b'", "'a  ' 'b'", "'a  ''c'"] {
            assert_ne!(canonical(one), canonical(&one.replace("'a  ''b'", differs)), "{differs}");
        }
        assert_ne!(canonical("DO $x$ BEGIN  END $x$;"), canonical("DO $x$ BEGIN END $x$;"));
        assert_eq!(canonical("SELECT 'a"), "SELECT 'a");
    }

    #[test]
    fn an_unclosed_quote_comment_or_body_is_an_error() {
        for script in ["SELECT 'a", "SELECT $a$ b;", "SELECT 1", "/* a"] {
            assert!(statements(script).is_err(), "{script}");
        }
    }

    #[test]
    fn the_sources_can_be_taken_apart() {
        for sources in [QUEUE, FOR_CLUSTERS, BRIDGED] {
            let all = statements(&sources.text().unwrap()).unwrap();
            assert!(all.len() > 40, "{}", sources.extension);
            let unnamed = all.iter().filter(|s| s.kind == Kind::Replaceable && !s.name.contains('.'));
            assert_eq!(unnamed.count(), 0, "{}", sources.extension);
        }
    }
}
