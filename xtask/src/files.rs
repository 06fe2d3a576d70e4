//! The places of the checkout's files.

use std::path::{Path, PathBuf};

use eyre::{Result, WrapErr as _, eyre};

/// The extension's name. The names of its files begin with it.
pub const EXTENSION: &str = "pg_queue";

/// The extension for many servers.
pub const CLUSTER: &str = "pg_queue_cluster";

/// The extension for databases in which the first cannot be installed.
pub const BRIDGE: &str = "pg_queue_bridge";

/// Returns the root of the checkout in which this program runs, or else of the one in which it was compiled.
pub fn root() -> PathBuf {
    let here = Path::new(".");
    let is_root = here.join("xtask/src/files.rs").exists();
    if is_root { here.to_owned() } else { Path::new(env!("CARGO_MANIFEST_DIR")).join("..") }
}

pub fn control_file() -> PathBuf {
    root().join(EXTENSION).with_extension("control")
}

/// Returns the version of the root package, which is the version of the extension.
pub fn version() -> Result<String> {
    let path = root().join("Cargo.toml");
    let manifest = read(&path)?;
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| key.trim() == "version")
        .map(|(_, value)| value.trim().trim_matches('"').to_owned())
        .ok_or_else(|| eyre!("there is no package version in {}", path.display()))
}

pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).wrap_err_with(|| format!("could not read {}", path.display()))
}
