//! Released scripts never change. Otherwise an installation of a release might not be upgradable by the scripts that
//! were tested with it.
//!
//! Responsible for the list of released scripts with their hashes, and for checking that the scripts are unchanged. Not
//! responsible for making them (`release`).
//!
//! Invariant: the list has each script that installs a release or leads to one. The script for primaries
//! (`bridge/primary.sql`) counts as one that installs.

use eyre::{Result, bail};
use sha2::{Digest as _, Sha256};

use crate::files::{EXTENSION, read, root};

/// The list, in the format of `sha256sum`.
pub const LIST: &str = "sql/released.sha256";

/// The folders with released scripts, and the text before the scripts' names in the list.
const FOLDERS: [(&str, &str); 2] = [("sql", ""), ("bridge", "../bridge/")];

/// Returns the name in the list of a version's script for primaries. It lies in another folder, since a server takes a
/// file with such a name for an extension's script.
pub fn primary(version: &str) -> String {
    format!("../bridge/primary--{version}.sql")
}

/// Returns the line of a script in the list.
pub fn line(name: &str, script: &str) -> String {
    let hash: String = Sha256::digest(script).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hash}  {name}\n")
}

/// Fails if a released script has changed, or if one that looks released is not in the list.
pub fn check() -> Result<()> {
    let list = read(&root().join(LIST))?;
    for entry in list.lines() {
        let (_, name) = entry.split_once("  ").unwrap_or_default();
        if line(name, &read(&root().join("sql").join(name))?).trim_end() != entry {
            bail!("sql/{name} was released as it was: a change belongs into what it is made of, see sql/README.md");
        }
    }
    for (folder, before) in FOLDERS {
        for name in std::fs::read_dir(root().join(folder))? {
            let name = name?.file_name().to_string_lossy().into_owned();
            let is_listed = list.contains(&format!("  {before}{name}\n"));
            if name.ends_with(".sql") && name.matches("--").count() == 1 && !is_listed {
                bail!("{folder}/{name} looks released, and is not in {LIST}");
            }
        }
    }
    Ok(())
}

/// Returns the released versions of pg_queue, oldest first.
pub fn versions() -> Result<Vec<[u32; 3]>> {
    let list = read(&root().join(LIST))?;
    let mut versions: Vec<_> = list
        .lines()
        .filter_map(|line| line.split_once(&format!("  {EXTENSION}--"))?.1.strip_suffix(".sql"))
        .filter_map(numbers)
        .collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Returns the three numbers of a version. Versions have no labels, since an upgrade script compares them as numbers.
pub fn numbers(version: &str) -> Option<[u32; 3]> {
    let parts: Option<Vec<u32>> =
        version.split('.').map(|part| part.parse().ok().filter(|number: &u32| number.to_string() == part)).collect();
    parts?.try_into().ok()
}

pub fn text([major, minor, patch]: [u32; 3]) -> String {
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_script_never_changes() {
        check().unwrap();
    }

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!(numbers("0.10.3"), Some([0, 10, 3]));
        for no in ["0.4", "0.4.0-rc.1", "0.04.0", "a.b.c", "", "1.2.3.4"] {
            assert_eq!(numbers(no), None, "{no}");
        }
    }
}
