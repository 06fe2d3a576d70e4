//! Compares `docs/errors.md` with the source: each error stands under its SQLSTATE, and there are no others.
//!
//! A message is compared as its template. Values that the source fills in are `…` on the page. If the first cell of a
//! table's row on that page is in backquotes, it is such a template.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::{none, read, root};
use queue_tests::markdown::section;

/// How the source makes an error: the text up to the opening parenthesis, the index of the argument with the message,
/// and the constant of the SQLSTATE unless it is the first argument.
const CONSTRUCTORS: [(&str, usize, Option<&str>); 5] = [
    ("Error::new(", 1, None),
    ("Error::invalid(", 0, Some("INVALID")),
    ("Error::internal(", 0, Some("INTERNAL")),
    ("ParseError::new(", 1, Some("INVALID")),
    ("Self::new(", 1, None),
];

/// Arguments that pass on an error that is made and found elsewhere.
const PASSED_ON: [&str; 2] = ["error.code", "error.message"];

#[test]
fn every_sqlstate_has_a_section() {
    let page = read("docs/errors.md");
    let missing = codes().into_values().filter(|code| section(&page, code).is_none()).collect::<BTreeSet<_>>();
    none(&missing.into_iter().map(|code| format!("docs/errors.md has no section `{code}`")).collect::<Vec<_>>());
}

#[test]
fn every_message_is_documented_and_no_other() {
    let page = read("docs/errors.md");
    let codes = codes();
    let mut wrong = Vec::new();
    let mut raised = BTreeSet::new();
    for file in sources("src") {
        match messages(&read(&file), file == "src/error.rs") {
            Ok(found) => raised.extend(found.into_iter().filter_map(|(code, message)| match codes.get(&code) {
                Some(code) => Some((code.clone(), message)),
                None => {
                    wrong.push(format!("{file}: {code} is no SQLSTATE of src/error.rs: {message}"));
                    None
                }
            })),
            Err(why) => wrong.push(format!("{file}: {why}")),
        }
    }
    assert!(raised.len() > 80, "the source is read: {raised:?}");

    let said: BTreeSet<(String, String)> = codes
        .values()
        .flat_map(|code| rows(section(&page, code).unwrap_or_default()).map(|message| (code.clone(), message)))
        .collect();
    wrong.extend(
        raised.difference(&said).map(|(code, message)| format!("docs/errors.md, {code}: `{message}` is missing")),
    );
    wrong.extend(
        said.difference(&raised).map(|(code, message)| format!("docs/errors.md, {code}: nothing raises `{message}`")),
    );
    none(&wrong);
}

#[test]
fn messages_are_read_as_templates() {
    let source = r#"
        Err(Error::new(
            error::LIMIT,
            format!("queue \"{}\" is full", queue.name),
        ))
        Error::invalid("wait cannot be negative").hint("None.")
        #[cfg(test)]
        Error::invalid("in a test")
    "#;
    let found = messages(source, false).unwrap();
    let wanted = [("LIMIT", "queue \"…\" is full"), ("INVALID", "wait cannot be negative")];
    assert_eq!(found, wanted.map(|(code, message)| (code.to_owned(), message.to_owned())));
    assert!(messages("Error::invalid(how)", false).is_err());
}

/// Returns the constants of `src/error.rs` with their SQLSTATEs.
fn codes() -> BTreeMap<String, String> {
    let source = read("src/error.rs");
    let constants = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \""));
    let codes: BTreeMap<_, _> =
        constants.map(|(name, rest)| (name.to_owned(), rest.trim_end_matches("\";").to_owned())).collect();
    assert!(codes.len() > 10, "src/error.rs lists SQLSTATEs as constants: {codes:?}");
    codes
}

/// Returns the texts of all Rust files below a folder.
fn sources(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}")) {
        let entry = entry.expect("an entry of the folder");
        let path = format!("{folder}/{}", entry.file_name().to_str().expect("a plain name"));
        if entry.path().is_dir() {
            found.extend(sources(&path));
        } else if Path::new(&path).extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the errors that a file makes, as (constant of the SQLSTATE, template of the message). `Self` is an error
/// only in the file that defines it. Fails at a message that cannot be read from the source.
fn messages(source: &str, is_definition: bool) -> Result<Vec<(String, String)>, String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    for (at, _) in source.match_indices(['E', 'P', 'S']) {
        let is_whole = !source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest: String = source[at..].chars().take(1000).collect();
        // rustfmt may break the line after the opening parenthesis.
        let rest =
            rest.split_once('(').map_or_else(String::new, |(head, tail)| format!("{head}({}", tail.trim_start()));
        let constructor = CONSTRUCTORS.iter().find(|(head, ..)| rest.starts_with(head));
        let Some((head, position, code)) =
            constructor.filter(|(head, ..)| is_whole && (is_definition || *head != "Self::new("))
        else {
            continue;
        };
        let arguments = arguments(rest.split_once('(').map_or("", |(_, tail)| tail));
        let code = code.map_or_else(|| arguments[0].rsplit("::").next().unwrap_or_default(), |code| code);
        if arguments.iter().any(|argument| PASSED_ON.contains(&argument.as_str())) {
            continue;
        }
        let Some(message) = arguments.get(*position) else { return Err(format!("{head}: {arguments:?}")) };
        match template(message) {
            Some(message) => found.push((code.to_owned(), message)),
            // The constructors have no literal.
            None if is_definition && message == "message" || message == "invariant" => {}
            None => return Err(format!("the message is no literal, so no test can see it: {head}… {message}")),
        }
    }
    Ok(found)
}

/// Splits the text up to the closing parenthesis at its commas.
fn arguments(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let (mut depth, mut is_quoted, mut is_escaped) = (0, false, false);
    for c in text.chars() {
        if is_quoted {
            is_quoted = is_escaped || c != '"';
            is_escaped = c == '\\' && !is_escaped;
        } else {
            match c {
                '"' => is_quoted = true,
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 0 => break,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.push(String::new());
                    continue;
                }
                _ => {}
            }
        }
        found.last_mut().expect("one at least").push(c);
    }
    found.iter().map(|argument| argument.trim().to_owned()).collect()
}

/// Returns the text of a literal or of a `format!`, with `…` for values. `None` for anything else.
fn template(argument: &str) -> Option<String> {
    let literal = argument.strip_prefix("format!(").map_or(argument, str::trim_start).strip_prefix('"')?;
    let mut text = String::new();
    let mut characters = literal.chars();
    loop {
        match characters.next()? {
            '"' => return Some(text),
            '\\' => text.push(characters.next()?),
            '{' => {
                characters.by_ref().find(|c| *c == '}')?;
                text.push('…');
            }
            c => text.push(c),
        }
    }
}

/// Returns the first cells of table rows if they are in backquotes.
fn rows(section: &str) -> impl Iterator<Item = String> {
    section.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned()))
}
