//! The addresses of the project: its homepage, and the address for reports of vulnerabilities. Cargo.toml has both, in
//! `[workspace.metadata.project]`. The publisher of this tree fills them in.
//!
//! Responsible for the lines that name them in other files. Not responsible for packages (`packaging/common` reads
//! Cargo.toml itself).
//!
//! Invariant: while an address is empty, no file names one.

use eyre::{Result, eyre};

use crate::files::{read, root};

/// The files that name an address, its key in Cargo.toml, the beginning of the line before, and the text around the
/// address.
const LINES: [(&str, &str, &str, &str); 5] = [
    ("META.json", "homepage", "  \"release_status\": ", "  \"resources\": { \"homepage\": \"{}\" },"),
    ("SECURITY.md", "contact", "Please report a vulnerability ", "Or write to `{}`."),
    ("clients/node/package.json", "homepage", "  \"license\": ", "  \"homepage\": \"{}\","),
    ("clients/python/pyproject.toml", "homepage", "license = ", "urls = { Homepage = \"{}\" }"),
    ("clients/rust/Cargo.toml", "homepage", "license = ", "homepage = \"{}\""),
];

/// Returns the keys of the addresses that are not filled in.
pub fn missing() -> Result<Vec<&'static str>> {
    let manifest = read(&root().join("Cargo.toml"))?;
    let keys = ["homepage", "contact"].map(|key| address(&manifest, key).map(|address| (key, address)));
    let keys: Vec<_> = keys.into_iter().collect::<Result<_>>()?;
    Ok(keys.into_iter().filter(|(_, address)| address.is_empty()).map(|(key, _)| key).collect())
}

/// Returns the files with their new texts.
pub fn files() -> Result<Vec<(String, String)>> {
    let manifest = read(&root().join("Cargo.toml"))?;
    let made = LINES.iter().map(|(file, key, before, line)| {
        let text = with_line(&read(&root().join(file))?, before, line, address(&manifest, key)?);
        Ok(((*file).to_owned(), text.ok_or_else(|| eyre!("{file} has no line that begins with {before}"))?))
    });
    made.collect()
}

fn address<'a>(manifest: &'a str, key: &str) -> Result<&'a str> {
    let part = manifest.split("\n[workspace.metadata.project]\n").nth(1).and_then(|rest| rest.split("\n[").next());
    let line = part.and_then(|part| part.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")));
    line.and_then(|rest| rest.strip_suffix('"')).ok_or_else(|| eyre!("Cargo.toml has no {key} of the project"))
}

/// Returns the text with one line about this address after the line that begins with `before`. If the address is empty,
/// the line is left out. `None` if no line begins with `before`.
fn with_line(text: &str, before: &str, line: &str, address: &str) -> Option<String> {
    let begin = line.split("{}").next().unwrap_or_default();
    let mut found = false;
    let mut made = String::new();
    for now in text.lines().filter(|now| !now.starts_with(begin)) {
        made += &format!("{now}\n");
        if now.starts_with(before) && !found {
            found = true;
            if !address.is_empty() {
                made += &format!("{}\n", line.replace("{}", address));
            }
        }
    }
    found.then_some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_added_changed_and_removed() {
        let (text, before, line) = ("{\n  \"license\": \"x\",\n}\n", "  \"license\": ", "  \"homepage\": \"{}\",");
        let named = with_line(text, before, line, "https://a.example").unwrap();
        assert_eq!(named, "{\n  \"license\": \"x\",\n  \"homepage\": \"https://a.example\",\n}\n");
        let other = with_line(&named, before, line, "https://b.example").unwrap();
        assert!(other.contains("b.example") && !other.contains("a.example"), "{other}");
        assert_eq!(with_line(&other, before, line, "").unwrap(), text);
        assert_eq!(with_line("", before, line, ""), None);
    }

    #[test]
    fn both_addresses_have_a_place() {
        let manifest = "[workspace]\n\n[workspace.metadata.project]\nhomepage = \"h\"\ncontact = \"\"\n\n[lib]\n";
        assert_eq!(address(manifest, "homepage").unwrap(), "h");
        assert_eq!(address(manifest, "contact").unwrap(), "");
        assert!(address("[workspace]\n", "contact").is_err());
        assert!(files().is_ok() && missing().is_ok());
    }
}
