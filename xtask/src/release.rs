//! Turns the tree into a release, and then into the version after it.
//!
//! Responsible for the version in every file that has it, the date in the changelog, the frozen scripts, and for
//! refusing a tree that cannot be released. Not responsible for building (`make dist`), nor for the steps that a person
//! takes afterwards (CONTRIBUTING.md).
//!
//! Invariant: all checks come before the first write.

use std::collections::BTreeMap;
use std::process::Command;

use eyre::{Result, WrapErr as _, bail, eyre};

use crate::files::{read, root, version};
use crate::script::{EXTENSIONS, Sources};
use crate::{absent, frozen, generate, project};

/// The files that have the version, each with the text around it.
const PLACES: [(&str, &str); 18] = [
    ("Cargo.toml", "\nversion = \"{}\"\n"),
    (absent::SCRIPT, "SELECT '{}'::text"),
    (META, "\n  \"version\": \"{}\""),
    (META, "\n      \"version\": \"{}\""),
    ("clients/node/package.json", "\n  \"version\": \"{}\""),
    ("clients/python/src/pg_queue/version.py", "\n__version__ = \"{}\"\n"),
    ("clients/rust/Cargo.toml", "\nversion = \"{}\"\n"),
    ("docs/kubernetes.md", "pg_queue_web:{}"),
    ("docs/kubernetes.md", "pg-queue-{}"),
    ("docs/kubernetes.md", "pg_queue:{}"),
    ("docs/settings.md", "| `pg_queue.library_version` | `{}` |"),
    ("examples/rust/Cargo.toml", "\nversion = \"{}\"\n"),
    ("pgrx-tests/Cargo.toml", "\nversion = \"{}\"\n"),
    ("pgrx-tests/regress/expected/surface.out", "\npg_queue.library_version = {} "),
    ("src/core/Cargo.toml", "\nversion = \"{}\"\n"),
    ("web/Cargo.toml", "\nversion = \"{}\"\n"),
    ("xtask/Cargo.toml", "\nversion = \"{}\"\n"),
    (LOCK, "\nversion = \"{}\"\n"),
];
const LOCK: &str = "Cargo.lock";
const CHANGELOG: &str = "CHANGELOG.md";
const META: &str = "META.json";

/// The page and the section that list what is done by hand.
const PAGE: &str = "CONTRIBUTING.md";
const BY_HAND: &str = "### By hand\n";

/// Turns this tree into the release of `to` on this date: sets its version, dates the changelog, freezes the scripts.
/// If `is_dry` is true, it writes nothing and allows uncommitted changes.
///
/// Errors: the tree cannot be released; the version is not a later one.
pub fn release(to: &str, date: &str, is_dry: bool) -> Result<()> {
    let from = version()?;
    check(to, is_dry)?;
    if is_released(&from)? {
        if !is_dry {
            bail!("{from} is released: `make next VERSION=…` begins the version after it");
        }
        return next_edits(&from, to)?.list();
    }
    let mut edits = Edits::default();
    edits.set_version(&from, to)?;
    edits.replace(CHANGELOG, &format!("\n## [{from}] - unreleased\n"), &format!("\n## [{to}] - {date}\n"))?;
    edits.replace(META, "\"release_status\": \"testing\"", "\"release_status\": \"stable\"")?;
    if is_dry {
        return edits.list();
    }
    edits.write()?;
    generate::generate(false)?;
    freeze(to)?;
    println!("{to} is set, dated and frozen in this tree.");
    Ok(())
}

/// Begins the version after a release.
///
/// Errors: as for `release`; this version is not released.
pub fn next(to: &str) -> Result<()> {
    let from = version()?;
    check(to, false)?;
    if !is_released(&from)? {
        bail!("{from} is not released: `make release VERSION={from}` comes first");
    }
    next_edits(&from, to)?.write()?;
    generate::generate(false)
}

fn next_edits(from: &str, to: &str) -> Result<Edits> {
    let mut edits = Edits::default();
    edits.set_version(from, to)?;
    edits.replace(META, "\"release_status\": \"stable\"", "\"release_status\": \"testing\"")?;
    let newest = read(&root().join(CHANGELOG))?.find("\n## [").ok_or_else(|| eyre!("{CHANGELOG} has no version"))?;
    edits.text(CHANGELOG)?.insert_str(newest, &format!("\n## [{to}] - unreleased\n"));
    for Sources { extension, .. } in EXTENSIONS {
        edits.0.insert(format!("sql/transition/{extension}--{from}--{to}.sql"), Some(String::new()));
    }
    Ok(edits)
}

/// Refuses a tree that cannot be released.
fn check(to: &str, is_dry: bool) -> Result<()> {
    let number = frozen::numbers(to).ok_or_else(|| eyre!("a version is three numbers, as 1.2.3, and not {to:?}"))?;
    if let Some(last) = frozen::versions()?.last().filter(|last| **last >= number) {
        bail!("{to} does not come after {}, which is released", frozen::text(*last));
    }
    frozen::check()?;
    generate::generate(true)?;
    if is_dry {
        return Ok(());
    }
    let answer = Command::new("git").args(["status", "--porcelain"]).current_dir(root()).output();
    let answer = answer.wrap_err("could not run git")?;
    if !answer.status.success() || !answer.stdout.is_empty() {
        let (said, why) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        bail!("the tree is not as a commit has it: commit or stash this first\n{said}{why}");
    }
    Ok(())
}

fn is_released(version: &str) -> Result<bool> {
    Ok(frozen::versions()?.into_iter().map(frozen::text).any(|released| released == version))
}

/// Adds the scripts of this version to those that never change.
fn freeze(version: &str) -> Result<()> {
    let sql = root().join("sql");
    let mut list = read(&root().join(frozen::LIST))?;
    let before = frozen::versions()?.last().copied().map(frozen::text).unwrap_or_default();
    let mut freeze = |name: &str, script: &str| {
        list += &frozen::line(name, script);
        std::fs::write(sql.join(name), script).wrap_err_with(|| format!("could not write sql/{name}"))
    };
    freeze(&frozen::primary(version), &read(&root().join(absent::SCRIPT))?)?;
    for sources in EXTENSIONS {
        freeze(&format!("{}--{version}.sql", sources.extension), &sources.install()?)?;
        let name = format!("{}--{before}--{version}.sql", sources.extension);
        if sql.join(&name).exists() {
            freeze(&name, &read(&sql.join(&name))?)?;
        }
    }
    std::fs::write(root().join(frozen::LIST), list)?;
    frozen::check()
}

/// Prints the steps that a person takes after a release.
pub fn by_hand() -> Result<()> {
    for key in project::missing()? {
        println!("Cargo.toml has no {key} of the project: fill it in, and run `make generate`.");
    }
    let page = read(&root().join(PAGE))?;
    let (_, list) = page.split_once(BY_HAND).ok_or_else(|| eyre!("{PAGE} has no part {BY_HAND:?}"))?;
    println!("By hand:\n{}", list.split("\n#").next().unwrap_or_default().trim_end());
    Ok(())
}

/// New texts of files by their paths. `None` removes the file.
#[derive(Default)]
struct Edits(BTreeMap<String, Option<String>>);

impl Edits {
    /// Returns the text of a file with the edits so far.
    fn text(&mut self, file: &str) -> Result<&mut String> {
        if !self.0.contains_key(file) {
            self.0.insert(file.to_owned(), Some(read(&root().join(file))?));
        }
        self.0.get_mut(file).and_then(Option::as_mut).ok_or_else(|| eyre!("{file} goes"))
    }

    /// Replaces a text in a file, which must have it.
    fn replace(&mut self, file: &str, old: &str, new: &str) -> Result<()> {
        let text = self.text(file)?;
        if !text.contains(old) {
            bail!("{file} does not have this: {}", old.trim());
        }
        *text = text.replace(old, new);
        Ok(())
    }

    /// Sets the version everywhere and renames the transitions to it.
    fn set_version(&mut self, from: &str, to: &str) -> Result<()> {
        for (file, around) in PLACES {
            let [old, new] = [from, to].map(|version| around.replace("{}", version));
            if file == LOCK {
                // In the lock file only crates of this tree have no source.
                let text = self.text(file)?;
                let ours =
                    |part: &str| if part.contains("\nsource = ") { part.to_owned() } else { part.replace(&old, &new) };
                *text = text.split_inclusive("\n\n").map(ours).collect();
            } else {
                self.replace(file, &old, &new)?;
            }
        }
        let before = frozen::versions()?.last().copied().map(frozen::text).unwrap_or_default();
        if before == from || to == from {
            return Ok(());
        }
        for Sources { extension, .. } in EXTENSIONS {
            for end in [".sql", ".after.sql"] {
                let [old, new] =
                    [from, to].map(|version| format!("sql/transition/{extension}--{before}--{version}{end}"));
                if root().join(&old).exists() {
                    let text = read(&root().join(&old))?;
                    self.0.extend([(old, None), (new, Some(text))]);
                }
            }
            let made = format!("sql/{extension}--{before}--{from}.sql");
            if root().join(&made).exists() {
                self.0.insert(made, None);
            }
        }
        Ok(())
    }

    /// Prints the edits without writing them.
    fn list(&self) -> Result<()> {
        for (file, text) in &self.0 {
            println!("{} {file}", if text.is_some() { "writes" } else { "removes" });
        }
        Ok(())
    }

    fn write(self) -> Result<()> {
        for (file, text) in self.0 {
            let path = root().join(&file);
            let write =
                |text| path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
            let done = text.map_or_else(|| std::fs::remove_file(&path), write);
            done.wrap_err_with(|| format!("could not write {file}"))?;
        }
        Ok(())
    }
}
