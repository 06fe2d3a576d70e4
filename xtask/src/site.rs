//! The sources of the site: the pages of the tree as a book for mdBook, and llms.txt.
//!
//! Responsible for the contents of the given folder: the pages that docs/README.md lists, in its order and under its
//! headings, the files that they link to, and book.toml. Not responsible for the pages' contents, nor for the site
//! itself, which mdBook makes.
//!
//! Invariant: each link of a page leads to a page, to a part of one or to a copy of the file. It is an error if the
//! list lacks a page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use eyre::{Result, WrapErr as _, bail, eyre};

use crate::files::{read, root};

/// The page that lists all others.
const LIST: &str = "docs/README.md";
const FRONT: &str = "README.md";

const BOOK: &str = r#"[book]
title = "pg_queue"
description = "A job queue inside PostgreSQL"
language = "en"
src = "src"

[output.html]
preferred-dark-theme = "navy"
default-theme = "light"
no-section-label = true
additional-css = ["site.css"]

[output.html.search]
limit-results = 30
heading-split-level = 3

# Else it asks a server of Rust's about each page.
[output.html.playground]
runnable = false

[output.html.print]
enable = false
"#;

/// A table that is wider than a phone scrolls by itself, so that the page does not scroll sideways.
const STYLE: &str = "\
.content main { overflow-wrap: anywhere; }
.content table { display: block; overflow-x: auto; overflow-wrap: normal; margin-inline: 0; width: max-content; \
max-width: 100%; }
.content img { max-width: 100%; }
";

/// A page that the list names.
struct Entry {
    title: String,
    /// Its path below the root of the tree.
    path: String,
    /// Its description in the list.
    about: String,
}

/// The parts of the list, each with its heading.
type Parts = Vec<(String, Vec<Entry>)>;

/// Writes the sources of the site into a folder. Empties the folder first.
pub fn prepare(out: &Path) -> Result<()> {
    if out.exists() {
        std::fs::remove_dir_all(out).wrap_err_with(|| format!("could not empty {}", out.display()))?;
    }
    let parts = parts(&read(&root().join(LIST))?);
    let mut pages: BTreeSet<String> = parts.iter().flat_map(|(_, entries)| entries).map(|e| e.path.clone()).collect();
    pages.extend([FRONT.to_owned(), LIST.to_owned()]);
    pages.extend(below("docs/decisions")?);
    complete(&pages)?;
    let source = out.join("src");
    let mut files = BTreeSet::new();
    for page in &pages {
        let text = linked(page, &read(&root().join(page))?, &pages, &mut files)?;
        write(&source.join(page), &text)?;
    }
    for (from, to) in &files {
        let to = source.join(to);
        std::fs::create_dir_all(to.parent().unwrap_or(&source))?;
        std::fs::copy(root().join(from), &to).wrap_err_with(|| format!("could not copy {from}"))?;
    }
    write(&source.join("SUMMARY.md"), &summary(&parts, &pages)?)?;
    write(&source.join("llms.txt"), &llms(&parts)?)?;
    write(&out.join("site.css"), STYLE)?;
    write(&out.join("book.toml"), BOOK)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    std::fs::write(path, text).wrap_err_with(|| format!("could not write {}", path.display()))
}

/// Returns the pages in a folder and in the folders within it.
fn below(folder: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.extend(below(&path)?);
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Fails if the list lacks pages of the documentation.
fn complete(pages: &BTreeSet<String>) -> Result<()> {
    let lost: Vec<_> = below("docs")?.into_iter().filter(|page| !pages.contains(page)).collect();
    if lost.is_empty() { Ok(()) } else { bail!("{LIST} does not list {}", lost.join(", ")) }
}

/// Reads the list of pages: lines `* [title](path): about` under headings.
fn parts(list: &str) -> Parts {
    let mut parts = Parts::new();
    for line in list.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            parts.push((heading.to_owned(), Vec::new()));
        } else if let (Some((_, entries)), Some(entry)) = (parts.last_mut(), line.strip_prefix("* [").and_then(entry)) {
            entries.push(entry);
        }
    }
    parts
}

fn entry(line: &str) -> Option<Entry> {
    let (title, rest) = line.split_once("](")?;
    let (target, about) = rest.split_once(')')?;
    let about = about.trim_start_matches(':').trim().to_owned();
    Some(Entry { title: title.to_owned(), path: beside(LIST, target), about })
}

/// Returns the path of a link's target, relative to the root.
fn beside(page: &str, target: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.display().to_string()
}

/// Returns the text of a page. Links to other files of the tree become links to copies. Adds these files and the names
/// of their copies to `files`.
fn linked(page: &str, text: &str, pages: &BTreeSet<String>, files: &mut BTreeSet<(String, String)>) -> Result<String> {
    let mut made = String::with_capacity(text.len());
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            made += line;
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            let (before, after) = rest.split_at(at + 2);
            let Some(end) = after.find(')') else { break };
            made += before;
            made += &target(page, &after[..end], pages, files)?;
            rest = &after[end..];
        }
        made += rest;
    }
    Ok(made)
}

/// Returns the new target of a page's link.
fn target(
    page: &str,
    target: &str,
    pages: &BTreeSet<String>,
    files: &mut BTreeSet<(String, String)>,
) -> Result<String> {
    let file = target.split('#').next().unwrap_or_default();
    if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return Ok(target.to_owned());
    }
    let path = beside(page, file);
    if pages.contains(&path) {
        // mdBook makes index.html from a README, but does not change links to it.
        return Ok(target.replacen("README.md", "index.html", 1));
    }
    let on_disk = root().join(&path);
    if on_disk.is_dir() {
        let folder = file.trim_end_matches('/');
        return if pages.contains(&format!("{path}/README.md")) {
            Ok(format!("{folder}/index.html"))
        } else {
            bail!("{page}: the link to {path} leads to a folder without a page: name a file of it")
        };
    }
    if !on_disk.is_file() {
        return Err(eyre!("{page}: there is no {path}"));
    }
    let is_picture = ["svg", "png"].iter().any(|kind| Path::new(file).extension().is_some_and(|it| it == *kind));
    if is_picture {
        files.insert((path.clone(), path));
        return Ok(target.to_owned());
    }
    // With the ending .txt a browser shows the file and does not download it.
    let shown = |name: &str| format!("{}.txt", name.trim_end_matches(".md").trim_end_matches(".txt"));
    files.insert((path.clone(), shown(&path)));
    Ok(shown(file))
}

/// Returns the order of the pages in mdBook's format.
fn summary(parts: &Parts, pages: &BTreeSet<String>) -> Result<String> {
    let mut text = format!("# Summary\n\n[pg_queue]({FRONT})\n[All pages]({LIST})\n");
    let mut listed: BTreeSet<&str> = BTreeSet::from([FRONT, LIST]);
    for (heading, entries) in parts {
        write!(text, "\n# {heading}\n\n")?;
        for Entry { title, path, .. } in entries {
            // A page may stand under several headings, but it has one place in the book.
            if !listed.insert(path) {
                continue;
            }
            writeln!(text, "- [{title}]({path})")?;
            let folder = Path::new(path).parent().filter(|_| path.ends_with("/README.md") && path.starts_with("docs/"));
            let inner =
                pages.iter().filter(|page| folder.is_some_and(|folder| Path::new(page).parent() == Some(folder)));
            for page in inner.filter(|page| *page != path) {
                writeln!(text, "  - [{}]({page})", title_of(page)?)?;
                listed.insert(page);
            }
        }
    }
    Ok(text)
}

/// Returns the first heading of a page.
fn title_of(page: &str) -> Result<String> {
    let text = read(&root().join(page))?;
    let title = text.lines().find_map(|line| line.strip_prefix("# "));
    title.map(str::to_owned).ok_or_else(|| eyre!("{page} has no heading"))
}

/// Returns llms.txt, the list for programs that read the site: see llmstxt.org.
fn llms(parts: &Parts) -> Result<String> {
    let mut text = "# pg_queue\n\n> A job queue inside PostgreSQL, as an extension: jobs commit with the data, \
        workers are woken by the commit, \
                    and no dead rows are left. Any SQL client is a producer or a worker; there are packages for \
                    Python, Node and Rust.\n"
        .to_owned();
    for (heading, entries) in parts {
        write!(text, "\n## {heading}\n\n")?;
        for Entry { title, path, about } in entries {
            writeln!(text, "- [{title}]({}): {about}", place(path))?;
        }
    }
    Ok(text)
}

/// Returns the path at which mdBook puts a page.
fn place(path: &str) -> String {
    let page = path.strip_suffix(".md").unwrap_or(path);
    match page.strip_suffix("README") {
        Some(folder) => format!("{folder}index.html"),
        None => format!("{page}.html"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_taken_apart() {
        let parts = parts(
            "# All\n\n* [before](a.md)\n\n## Learn\n\n* [Concepts](concepts.md): the life\n* [Back](../README.md): \
                up\nText.\n",
        );
        let [(heading, entries)] = &parts[..] else { panic!("one part") };
        assert_eq!(heading, "Learn");
        let named: Vec<_> = entries.iter().map(|e| (e.title.as_str(), e.path.as_str(), e.about.as_str())).collect();
        assert_eq!(named, [("Concepts", "docs/concepts.md", "the life"), ("Back", "README.md", "up")]);
        assert_eq!(place("README.md"), "index.html");
        assert_eq!(place("docs/views.md"), "docs/views.html");
    }

    #[test]
    fn links_to_files_lead_to_copies() {
        let pages = BTreeSet::from(["docs/views.md".to_owned(), "examples/README.md".to_owned()]);
        let mut files = BTreeSet::new();
        let text = "[a](views.md#cost) [b](../src/lib.rs) [c](https://x.org/) [d](../examples) \
            [e](#here)\n```text\n[f](../src/lib.rs)\n```\n";
        let made = linked("docs/errors.md", text, &pages, &mut files).unwrap();
        assert_eq!(
            made,
            "[a](views.md#cost) [b](../src/lib.rs.txt) [c](https://x.org/) [d](../examples/index.html) \
                [e](#here)\n```text\n[f](../src/lib.rs)\n```\n"
        );
        assert_eq!(files, BTreeSet::from([("src/lib.rs".to_owned(), "src/lib.rs.txt".to_owned())]));
        for wrong in ["[a](nowhere.md)", "[a](../src)"] {
            assert!(linked("docs/errors.md", wrong, &pages, &mut files).is_err(), "{wrong}");
        }
    }
}
