//! The tables of docs/coming-from/cron-dialects.md: the meaning of a cron expression in another tool, and the
//! expression to write here.
//!
//! Responsible for writing the two blocks of the page from pgrx-tests/moves/dialects.toml. Not responsible for whether
//! the file is true: `make try-moves` asks the parsers.
//!
//! Invariant: each tool has a row, and each row names tools of the file. For each tool of a row the page shows an
//! expression that the tool accepts. The row's claims hold for each shown expression.

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
    /// The page leaves this row out.
    #[serde(default)]
    is_hidden: bool,
    #[serde(default)]
    like: Vec<Like>,
}

/// The claim of a row for another expression, perhaps for other tools.
#[derive(Deserialize)]
struct Like {
    text: String,
    write: Option<String>,
    #[serde(default)]
    tools: Vec<String>,
    /// The page shows this expression beside the row's.
    #[serde(default)]
    is_shown: bool,
}

/// Returns the page with tables from the file.
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
    /// Returns the rows of the page with their numbers.
    fn shown(&self) -> impl Iterator<Item = (usize, &Row)> {
        (1..).zip(self.rows.iter().filter(|row| !row.is_hidden))
    }

    /// Returns the table of tools: one line each, with the numbers of its rows.
    fn tools(&self) -> Result<String> {
        let mut lines = String::from("|From|Rows|\n|---|---|\n");
        for Tool { name, title } in &self.tools {
            let mut numbers = Vec::new();
            for (n, row) in self.shown() {
                let is_shown = row.shown_tools().any(|tool| tool == name);
                ensure!(
                    is_shown || !row.like.iter().any(|like| like.tools.contains(name)),
                    "the page shows no expression of {name} for `{}`",
                    row.text,
                );
                numbers.extend(is_shown.then_some(n));
            }
            ensure!(!numbers.is_empty(), "no row names {name}");
            lines += &format!("|{title}|{}|\n", ranges(&numbers));
        }
        Ok(lines)
    }

    /// Returns the table of expressions: one line for each row.
    fn expressions(&self) -> Result<String> {
        let mut lines = String::from("|Row|Expression|Here|There|Write here|\n|---|---|---|---|---|\n");
        for (n, row) in self.shown() {
            let unknown = row.tools.iter().find(|name| !self.tools.iter().any(|tool| tool.name == **name));
            ensure!(unknown.is_none(), "`{}` names a tool that is not in the list: {unknown:?}", row.text);
            let mut texts = format!("`{}`", short(&row.text));
            for like in row.like.iter().filter(|like| like.is_shown) {
                ensure!(like.write.is_none(), "`{}` is shown, so what to write has to be the row's", like.text);
                texts += &format!(", `{}`", last_field(&row.text, &like.text));
            }
            let write = match (row.write.as_str(), &row.only) {
                ("", _) => "–".to_owned(),
                (write, None) => format!("`{}`", short(write)),
                (write, Some(weekday)) => format!("`{}`, test for {weekday}", short(write)),
            };
            lines += &format!("|{n}|{texts}|{}|{}|{write}|\n", row.here, row.there);
        }
        Ok(lines)
    }
}

impl Row {
    /// Returns the tools whose expression the page shows.
    fn shown_tools(&self) -> impl Iterator<Item = &String> {
        let likes = self.like.iter().filter(|like| like.is_shown);
        self.tools.iter().chain(likes.flat_map(|like| &like.tools))
    }
}

/// Returns an expression without midnight, because the page says that three fields follow it.
fn short(text: &str) -> String {
    text.strip_prefix("0 0 ").unwrap_or(text).to_owned()
}

/// Returns the last field of a text if the other fields are as in `first`, else the text as the page shows it.
fn last_field(first: &str, text: &str) -> String {
    match (first.rsplit_once(' '), text.rsplit_once(' ')) {
        (Some((before, _)), Some((same, last))) if before == same => last.to_owned(),
        _ => short(text),
    }
}

/// Returns ascending numbers as a list. Three or more neighbours become a range: `1, 3–5`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let written = runs.map(|run| match run {
        [first, _, .., last] => format!("{first}–{last}"),
        _ => run.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    });
    written.collect::<Vec<_>>().join(", ")
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
        like = [{ text = "1 2 * * FRI", is_shown = true, tools = ["b"] }, { text = "1 2 3 * *" }]
    "#;
    const BLANK: &str = "<!-- tools: made by `make generate` -->\n<!-- end of tools -->\n\
        <!-- expressions: made by `make generate` -->\n<!-- end of expressions -->\n";

    #[test]
    fn a_tool_has_the_numbers_of_its_rows() {
        let made = filled(BLANK, SOURCE).unwrap();
        assert!(made.contains("|A|1, 2|\n|B|2|\n"), "{made}");
        assert!(made.contains("|1|`13 * FRI`|either|both|`13 * *`, test for Friday|\n"), "{made}");
        assert!(made.contains("|2|`1 2 * * *`, `FRI`|once|twice|–|\n"), "{made}");
        assert_eq!(filled(&made, SOURCE).unwrap(), made);
    }

    #[test]
    fn names_without_a_counterpart_are_errors() {
        assert!(filled(BLANK, &SOURCE.replace("[\"a\"]", "[\"c\"]")).is_err());
        assert!(filled(BLANK, &SOURCE.replace("[\"b\"]", "[\"a\"]")).is_err());
    }

    #[test]
    fn each_tool_of_a_row_sees_an_expression_with_what_to_write() {
        assert!(filled(BLANK, &SOURCE.replace("is_shown = true", "is_shown = false")).is_err());
        assert!(filled(BLANK, &SOURCE.replace("is_shown = true", "is_shown = true, write = \"1 2 3 * *\"")).is_err());
    }

    #[test]
    fn neighbours_are_ranges() {
        assert_eq!(ranges(&[1, 2, 4, 5, 6, 9]), "1, 2, 4–6, 9");
    }
}
