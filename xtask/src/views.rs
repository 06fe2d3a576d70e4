//! The tables of docs/views.md: the columns of each view, with their types and comments.
//!
//! Responsible for the lines below the head of such a table. Not responsible for the rest of the page. The types come
//! from the recorded result of the surface test, since no script says the types of a view's columns.
//!
//! Invariant: the meaning of a column stands in the SQL and nowhere else.

use std::fmt::Write as _;

use eyre::{Result, eyre};

pub const PAGE: &str = "docs/views.md";
pub const SURFACE: &str = "pgrx-tests/regress/expected/surface.out";
const HEAD: &str = "|Column|Type|What|\n|---|---|---|\n";

/// Returns the page with new tables.
pub fn page(now: &str, script: &str, surface: &str) -> Result<String> {
    let mut page = String::new();
    let mut view = "";
    let mut rest = now;
    while let Some(at) = rest.find(HEAD) {
        let (before, table) = rest.split_at(at + HEAD.len());
        page += before;
        // The last heading of a view before the table.
        let heading = before.rmatch_indices("\n## `queue.").next().map(|(at, mark)| &before[at + mark.len()..]);
        view = heading.and_then(|heading| heading.split('`').next()).unwrap_or(view);
        for (column, kind) in columns(surface, view)? {
            let words = comment(script, view, column).ok_or_else(|| eyre!("queue.{view}.{column} has no COMMENT"))?;
            writeln!(
                page,
                "|`{column}`|{}|{}|",
                kind.replace("timestamp with time zone", "timestamptz"),
                written(&words)
            )?;
        }
        rest = &table[table.lines().take_while(|line| line.starts_with("|`")).map(|line| line.len() + 1).sum()..];
    }
    Ok(page + rest)
}

/// Returns the columns of a view with their types.
pub fn columns<'a>(surface: &'a str, view: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let begin = format!("\nview {view}\n");
    let at =
        surface.find(&begin).ok_or_else(|| eyre!("{SURFACE} has no view {view}: run the regress test with BLESS=1"))?;
    let lines = surface[at + begin.len()..].lines().map_while(|line| line.strip_prefix("    "));
    Ok(lines.filter_map(|line| line.split_once(' ')).collect())
}

/// Returns the text of a column's COMMENT.
fn comment(script: &str, view: &str, column: &str) -> Option<String> {
    let begin = format!("COMMENT ON COLUMN queue.{view}.{column} IS");
    let mut rest = script[script.find(&begin)? + begin.len()..].trim_start().strip_prefix('\'')?;
    let mut words = String::new();
    loop {
        let (part, behind) = rest.split_once('\'')?;
        words += part;
        if let Some(quoted) = behind.strip_prefix('\'') {
            // A quote inside the literal is written twice.
            words.push('\'');
            rest = quoted;
        } else if let Some(next) = behind.trim_start().strip_prefix('\'') {
            // Literals on consecutive lines are one literal.
            rest = next;
        } else {
            return Some(words.replace('\n', " "));
        }
    }
}

/// Returns the text as a cell of a table. A single sentence loses its capital and its full stop.
fn written(words: &str) -> String {
    let words = words.replace('|', "\\|");
    let Some(sentence) = words.strip_suffix('.').filter(|words| !words.contains(". ")) else { return words };
    let mut characters = sentence.chars();
    let first = characters.next().map(|first| first.to_lowercase().collect::<String>()).unwrap_or_default();
    first + characters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "COMMENT ON COLUMN queue.jobs.id IS 'The job''s id; ''x''.';\nCOMMENT ON COLUMN \
        queue.jobs.at IS\n    'When. '\n    'It''s '\n    '''now''.';";
    const SURFACE: &str = "\nview jobs\n    id bigint\n    at timestamp with time zone\nview other\n    id text\n";

    #[test]
    fn tables_are_made_of_comments() {
        let now = format!("# Views\n\n## `queue.jobs`\n\nText.\n\n{HEAD}|`old`|x|y|\n\nMore.\n");
        let made = page(&now, SCRIPT, SURFACE).unwrap();
        let rows = "|`id`|bigint|the job's id; 'x'|\n|`at`|timestamptz|When. It's 'now'.|\n\nMore.\n";
        assert!(made.ends_with(rows), "{made}");
        assert_eq!(page(&made, SCRIPT, SURFACE).unwrap(), made);
    }

    #[test]
    fn a_column_without_a_comment_is_an_error() {
        let now = format!("\n## `queue.other`\n\n{HEAD}");
        assert!(page(&now, SCRIPT, SURFACE).unwrap_err().to_string().contains("queue.other.id"));
        assert!(page(&now.replace("other", "none"), SCRIPT, SURFACE).is_err());
    }
}
