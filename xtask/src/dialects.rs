//! The tables of docs/coming-from/cron-dialects.md: what a cron expression means elsewhere, and what to write here.
//!
//! Responsible for writing the two blocks of the page from pgrx-tests/moves/dialects.toml. Not responsible for whether
//! the file is true: `make try-moves` asks the parsers.
//!
//! Invariant: each tool has a row, and each row has tools that the file names.

use eyre::{Result, WrapErr as _, bail, ensure};
use serde::Deserialize;

use crate::blocks;
use crate::files::{read, root};

pub const PAGE: &str = "docs/coming-from/cron-dialects.md";
const SOURCE: &str = "pgrx-tests/moves/dialects.toml";

#[derive(Deserialize)]
struct Dialects {
    tools: Vec<Tool>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    title: String,
}

#[derive(Deserialize)]
struct Row {
    text: String,
    here: String,
    there: String,
    write: String,
    only: Option<String>,
    tools: Vec<String>,
    /// The page leaves it out.
    #[serde(default)]
    is_hidden: bool,
    #[serde(default)]
    like: Vec<Like>,
}

/// The claim of a row for another expression, which the page leaves out. It may be a claim of other tools.
#[derive(Deserialize)]
struct Like {
    #[serde(default)]
    tools: Vec<String>,
}

/// Returns the page with tables as the file says.
pub fn page() -> Result<String> {
    let source = read(&root().join(SOURCE))?;
    filled(&read(&root().join(PAGE))?, &source).wrap_err(SOURCE)
}

fn filled(page: &str, source: &str) -> Result<String> {
    let dialects: Dialects = toml::from_str(source)?;
    blocks::filled(page, |block, _| match block {
        "tools" => dialects.tools().map(Some),
        "expressions" => dialects.expressions().map(Some),
        _ => bail!("there is no such block"),
    })
}

impl Dialects {
    /// The rows of the page with their numbers.
    fn shown(&self) -> impl Iterator<Item = (usize, &Row)> {
        (1..).zip(self.rows.iter().filter(|row| !row.is_hidden))
    }

    /// A line a tool, with the numbers of its rows.
    fn tools(&self) -> Result<String> {
        let mut lines = String::from("|From|Rows|\n|---|---|\n");
        for Tool { name, title } in &self.tools {
            let is_in =
                |row: &Row| row.tools.iter().chain(row.like.iter().flat_map(|like| &like.tools)).any(|t| t == name);
            let rows = self.shown().filter(|(_, row)| is_in(row));
            let numbers: Vec<_> = rows.map(|(n, _)| n.to_string()).collect();
            ensure!(!numbers.is_empty(), "no row names {name}");
            lines += &format!("|{title}|{}|\n", numbers.join(", "));
        }
        Ok(lines)
    }

    /// A line a row.
    fn expressions(&self) -> Result<String> {
        let mut lines = String::from("|Row|Expression|Here|There|Write here|\n|---|---|---|---|---|\n");
        for (n, row) in self.shown() {
            let unknown = row.tools.iter().find(|name| !self.tools.iter().any(|tool| tool.name == **name));
            ensure!(unknown.is_none(), "`{}` names a tool that is not in the list: {unknown:?}", row.text);
            // The page says that three fields follow midnight.
            let short = |text: &str| text.strip_prefix("0 0 ").unwrap_or(text).to_owned();
            let write = match (row.write.as_str(), &row.only) {
                ("", _) => "–".to_owned(),
                (write, None) => format!("`{}`", short(write)),
                (write, Some(weekday)) => format!("`{}`, test for {weekday}", short(write)),
            };
            lines += &format!("|{}|`{}`|{}|{}|{write}|\n", n, short(&row.text), row.here, row.there);
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        tools = [{ name = "a", title = "A" }, { name = "b", title = "B" }]
        [[rows]]
        text = "0 0 13 * FRI"
        here = "either"
        there = "both"
        write = "0 0 13 * *"
        only = "Friday"
        tools = ["a"]
        [[rows]]
        text = "1 2 * * *"
        here = "once"
        there = "twice"
        write = ""
        tools = ["a"]
        like = [{ tools = ["b"] }]
    "#;
    const BLANK: &str = "<!-- tools: made by `make generate` -->\n<!-- end of tools -->\n\
        <!-- expressions: made by `make generate` -->\n<!-- end of expressions -->\n";

    #[test]
    fn a_tool_has_the_numbers_of_its_rows() {
        let made = filled(BLANK, SOURCE).unwrap();
        assert!(made.contains("|A|1, 2|\n|B|2|\n"), "{made}");
        assert!(made.contains("|1|`13 * FRI`|either|both|`13 * *`, test for Friday|\n"), "{made}");
        assert!(made.contains("|2|`1 2 * * *`|once|twice|–|\n"), "{made}");
        assert_eq!(filled(&made, SOURCE).unwrap(), made);
    }

    #[test]
    fn names_without_a_counterpart_are_errors() {
        assert!(filled(BLANK, &SOURCE.replace("[\"a\"]", "[\"c\"]")).is_err());
        assert!(filled(BLANK, &SOURCE.replace("[\"b\"]", "[\"a\"]")).is_err());
    }
}
