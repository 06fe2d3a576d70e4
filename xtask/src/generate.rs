//! Generates files from the SQL of the extension: the upgrade scripts, the columns of tables and the objects with their
//! privileges in Rust, the signatures of functions and the contents of docs/functions.md, the verbs' options in
//! docs/decisions/verbs.md, the tables of docs/views.md (`views`), and a list in bridge/primary.sql (`absent`). Also
//! fills in the addresses of the project from Cargo.toml (`project`) and the tables of
//! docs/coming-from/cron-dialects.md (`dialects`).
//!
//! Responsible for writing and comparing files. On docs/functions.md it writes the first block of each section and the
//! text between the two marks of the contents. The rest is written by hand. Not responsible for what an upgrade runs
//! (`upgrade`).
//!
//! Invariant: a second run changes nothing.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use eyre::{Result, WrapErr as _, bail, eyre};

use crate::declarations::{self, Argument, Function};
use crate::files::{read, root, version};
use crate::options::Options;
use crate::script::{EXTENSIONS, QUEUE};
use crate::{absent, arguments, blocks, dialects, objects, project, tables, upgrade, views};

const PAGE: &str = "docs/functions.md";
/// The page with the rules that the verbs follow.
const RULES: &str = "docs/decisions/verbs.md";
/// The longest line of a signature.
const WIDTH: usize = 120;

/// The files with blocks of options.
const WITH_OPTIONS: &[&str] = &[
    "sql/schema/functions.sql",
    "sql/schema/topics.sql",
    "bridge/primary.sql",
    "src/job/given.rs",
    "src/api/queue_options.rs",
    "clients/python/src/pg_queue/enqueue.py",
    "clients/python/src/pg_queue/checks.py",
    "clients/node/lib/enqueue.js",
    "clients/node/lib/index.d.ts",
    "clients/rust/src/enqueue.rs",
    "docs/functions.md",
];

/// Writes the generated files. If `is_check` is true, it writes nothing and fails if a file is out of date.
pub fn generate(is_check: bool) -> Result<()> {
    // The blocks come first, because everything else is made from declarations that contain them.
    let options = Options::read()?;
    for name in WITH_OPTIONS {
        let text = read(&root().join(name))?;
        let made = blocks::filled(&text, |block, indent| match block {
            // Other generators make these blocks.
            "contents" | "absent" => Ok(None),
            _ => options.block(block, indent).map(Some),
        })
        .wrap_err(name)?;
        put(name, &made, is_check)?;
    }
    let version = version()?;
    let mut files = vec![(PAGE.to_owned(), page(&read(&root().join(PAGE))?, &QUEUE.text()?)?)];
    files.push((dialects::PAGE.to_owned(), dialects::page()?));
    files.push((RULES.to_owned(), rules(&read(&root().join(RULES))?, &QUEUE.text()?)?));
    let surface = read(&root().join(views::SURFACE))?;
    files.push((views::PAGE.to_owned(), views::page(&read(&root().join(views::PAGE))?, &QUEUE.text()?, &surface)?));
    let absent = absent::script(&read(&root().join(absent::SCRIPT))?, &QUEUE.text()?, &surface)?;
    files.push((absent::SCRIPT.to_owned(), absent));
    for sources in EXTENSIONS {
        let made = upgrade::script(&sources, &version)?;
        files.extend(made.map(|(name, text)| (format!("{}/{name}", upgrade::FOLDER), text)));
    }
    files.push(("src/catalog/tables.rs".to_owned(), tables::file(&QUEUE.text()?)?));
    files.push(("src/catalog/rows.rs".to_owned(), formatted(&tables::rows(&QUEUE.text()?)?)?));
    files.push(("src/catalog/objects.rs".to_owned(), formatted(&objects::file(&QUEUE.text()?)?)?));
    files.push(("src/catalog/arguments.rs".to_owned(), arguments::file()?));
    files.extend(project::files()?);
    files.iter().try_for_each(|(name, made)| put(name, made, is_check))
}

/// Writes a file. If `is_check` is true, it writes nothing and fails if the file has another text.
fn put(name: &str, made: &str, is_check: bool) -> Result<()> {
    let path = root().join(name);
    let now = if path.exists() { read(&path)? } else { String::new() };
    if made == now {
        return Ok(());
    }
    if is_check {
        let line = made.lines().zip(now.lines()).take_while(|(made, now)| made == now).count() + 1;
        bail!("{name}:{line} is not as its source says: run `make generate`");
    }
    std::fs::write(&path, made).wrap_err_with(|| format!("could not write {name}"))
}

/// Formats Rust code with rustfmt.
fn formatted(code: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root().join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .wrap_err("could not run rustfmt")?;
    rustfmt.stdin.take().ok_or_else(|| eyre!("rustfmt has no input"))?.write_all(code.as_bytes())?;
    let answer = rustfmt.wait_with_output()?;
    if !answer.status.success() {
        bail!("rustfmt cannot read what was generated");
    }
    Ok(String::from_utf8(answer.stdout)?)
}

/// Returns the page with new generated parts.
fn page(now: &str, script: &str) -> Result<String> {
    let functions = declarations::functions(script);
    let mut page = String::new();
    let mut rest = now;
    while let Some(at) = rest.find("\n### `queue.") {
        let (before, section) = rest.split_at(at + 1);
        page += before;
        let name = section["### `queue.".len()..].split('`').next().unwrap_or_default();
        let function = functions.iter().find(|function| function.name == name);
        let function = function.ok_or_else(|| eyre!("{PAGE}: there is no function queue.{name}"))?;
        let block = section.find("```text\n").ok_or_else(|| eyre!("{PAGE}: queue.{name} has no signature"))?;
        let end =
            section[block..].find("\n```\n").ok_or_else(|| eyre!("{PAGE}: a block of queue.{name} does not end"))?;
        write!(page, "{}```text\n{}", &section[..block], signature(function))?;
        rest = &section[block + end..];
    }
    page += rest;
    blocks::filled(&page, |name, _| Ok((name == "contents").then(|| contents(&page))))
}

/// Returns the page of rules with one line for each group of options that the same verbs take.
fn rules(now: &str, script: &str) -> Result<String> {
    let functions = declarations::functions(script);
    let takes = |function: &Function<'_>, name: &str| function.arguments.iter().any(|argument| argument.name == name);
    let enqueue = functions.iter().find(|function| function.name == "enqueue");
    let options = enqueue.ok_or_else(|| eyre!("there is no function queue.enqueue"))?.arguments.iter().skip(2);
    let (adding, others): (Vec<_>, Vec<_>) = functions.iter().partition(|function| takes(function, "unique_key"));
    let list = |from: &[&Function<'_>], wanted: &dyn Fn(&Function<'_>) -> bool| {
        let names: Vec<_> = from.iter().filter(|f| wanted(f)).map(|f| format!("`{}`", f.name)).collect();
        names.join(", ")
    };
    let mut lines: Vec<(String, String)> = Vec::new();
    for Argument { name, .. } in options {
        let all_but = list(&adding, &|function| !takes(function, name));
        let further = list(&others, &|function| takes(function, name));
        let all = if all_but.is_empty() { "all".to_owned() } else { format!("all but {all_but}") };
        let verbs = format!("{all} | {further}");
        match lines.iter_mut().find(|line| line.1 == verbs) {
            Some((names, _)) => write!(names, ", `{name}`")?,
            None => lines.push((format!("`{name}`"), verbs)),
        }
    }
    let rows: String = lines.iter().map(|(names, verbs)| format!("| {names} | {verbs} |\n")).collect();
    let table = format!("| Option | Verbs that add jobs | Other verbs |\n|---|---|---|\n{rows}");
    blocks::filled(now, |_, _| Ok(Some(table.clone())))
}

/// Returns one line for each part of the page, with links to its functions.
fn contents(page: &str) -> String {
    let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-").replace(['`', '.', ','], "");
    let mut lines = String::new();
    for part in page.split("\n## ").skip(1) {
        let heading = part.lines().next().unwrap_or_default();
        let functions = part.split("\n### `").skip(1).filter_map(|section| section.split('`').next());
        let links: Vec<_> =
            functions.map(|name| format!("[{}](#{})", name.trim_start_matches("queue."), anchor(name))).collect();
        let _ = match links.is_empty() {
            true => writeln!(lines, "* [{heading}](#{})", anchor(heading)),
            false => writeln!(lines, "* [{heading}](#{}): {}", anchor(heading), links.join(", ")),
        };
    }
    lines
}

/// Returns the call of a function with its defaults and its result, in lines of at most `WIDTH` characters.
fn signature(function: &Function<'_>) -> String {
    let begin = format!("{}queue.{}(", if function.is_procedure { "CALL " } else { "" }, function.name);
    let call = broken(begin, &function.arguments, 4);
    let set = if function.returns.starts_with("SETOF") { "setof " } else { "" };
    let returns = match (function.returns, &function.columns[..]) {
        ("", []) => return call,
        (kind, []) => format!("-> {}", kind.replace("SETOF ", set)),
        (_, columns) => broken(format!("-> {set}("), columns, 8),
    };
    let last = call.lines().last().map_or(0, str::len);
    let fits = !returns.contains('\n') && last + 1 + returns.len() <= WIDTH;
    format!("{call}{}{returns}", if fits { " " } else { "\n    " })
}

/// Returns a list of arguments that ends in a parenthesis. Further lines are indented.
fn broken(begin: String, arguments: &[Argument<'_>], indent: usize) -> String {
    let (mut text, mut width) = (begin.clone(), begin.len() + indent - 4);
    for (n, argument) in arguments.iter().enumerate() {
        let comma = if n + 1 == arguments.len() { ")" } else { "," };
        let item = format!("{}{comma}", written(argument));
        if n > 0 && width + 1 + item.len() > WIDTH {
            text += &format!("\n{:indent$}", "");
            width = indent;
        } else if n > 0 {
            text.push(' ');
            width += 1;
        }
        width += item.len();
        text += &item;
    }
    if arguments.is_empty() { text + ")" } else { text }
}

fn written(argument: &Argument<'_>) -> String {
    let default = argument.default.map_or_else(String::new, |default| format!(" = {default}"));
    format!("{}{} {}{default}", if argument.is_answer { "INOUT " } else { "" }, argument.name, argument.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "CREATE FUNCTION queue.publish(topic text, key text DEFAULT '', \
        OUT job_id bigint) RETURNS SETOF record LANGUAGE c;
CREATE PROCEDURE queue.wait(queue_name text, INOUT has_jobs boolean DEFAULT NULL) LANGUAGE c;
CREATE FUNCTION queue.adopt() RETURNS void LANGUAGE c;";

    const BEFORE: &str = "# Functions\n\n<!-- contents: made by `make generate` -->\nold\n<!-- end of contents -->\n\n\
        ## Life of a job\n\n### `queue.publish`\n\n```text\nold\n```\n\nText.\n\n### `queue.wait`\n\n```text\n```\n";

    #[test]
    fn signatures_and_contents_are_made_anew() {
        let made = page(&BEFORE.replace("```text\n```", "```text\nx\n```"), SCRIPT).unwrap();
        assert!(
            made.contains("```text\nqueue.publish(topic text, key text = '') -> setof (job_id bigint)\n```\n\nText."),
            "{made}"
        );
        assert!(
            made.contains("```text\nCALL queue.wait(queue_name text, INOUT has_jobs boolean = NULL)\n```"),
            "{made}"
        );
        assert!(
            made.contains("* [Life of a job](#life-of-a-job): [publish](#queuepublish), [wait](#queuewait)\n"),
            "{made}"
        );
        assert!(!made.contains("old"));
        assert_eq!(page(&made, SCRIPT).unwrap(), made);
    }

    #[test]
    fn a_page_that_names_a_missing_function_is_an_error() {
        let wrong = BEFORE.replace("queue.wait", "queue.weight");
        assert!(page(&wrong, SCRIPT).unwrap_err().to_string().contains("no function queue.weight"));
        assert!(page("# Functions\n", SCRIPT).is_err());
    }

    #[test]
    fn long_signatures_are_broken() {
        let arguments: String = (0..30).map(|n| format!(", argument_{n} integer DEFAULT NULL")).collect();
        let script = format!("CREATE FUNCTION queue.long(first text{arguments}) RETURNS bigint LANGUAGE c;");
        let columns = arguments.replace(" DEFAULT NULL", "").replace(", argument", ", OUT column");
        let text = signature(&declarations::functions(&script.replace(") RETURNS bigint", &format!("{columns})")))[0]);
        assert!(text.lines().count() > 5 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!([text.matches("argument_").count(), text.matches("column_").count()], [30, 30]);
        assert!(text.contains(")\n    -> (column_0 integer,"), "{text}");
    }
}
