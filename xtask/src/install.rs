//! Installs the extension's files where a server looks for them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use eyre::{Result, WrapErr as _, bail};

use crate::absent;
use crate::files::{EXTENSION, control_file, read, root, version};
use crate::script::{BRIDGED, FOR_CLUSTERS, QUEUE};

/// Installs the library, the control file, the install script, the scripts of released versions, and the bridge's
/// script for primaries into the server of `pg_config`. If `destdir` is given, installs below that folder.
pub fn install(library: &Path, pg_config: &Path, destdir: Option<&Path>) -> Result<()> {
    let version = version()?;
    // Everything that can fail comes first, so that no half installation is left behind.
    let control = read(&control_file())?.replace("@CARGO_VERSION@", &version);
    let sql = QUEUE.install()?;
    let mut others = Vec::new();
    for (sources, folder) in [(FOR_CLUSTERS, "cluster"), (BRIDGED, "bridge")] {
        let control = read(&root().join(folder).join(sources.extension).with_extension("control"))?;
        others.push((sources.extension, sources.install()?, control.replace("@CARGO_VERSION@", &version)));
    }
    let primary = read(&root().join(absent::SCRIPT))?;
    let code = fs::read(library).wrap_err_with(|| format!("could not read {}", library.display()))?;
    let libraries = below(destdir, ask(pg_config, "--pkglibdir")?);
    let extensions = below(destdir, ask(pg_config, "--sharedir")?.join("extension"));

    put(&libraries.join(EXTENSION).with_extension("so"), &code, 0o755)?;
    put(&extensions.join(format!("{EXTENSION}--{version}.sql")), sql.as_bytes(), 0o644)?;
    for script in released_scripts()? {
        let name = script.file_name().unwrap_or_default();
        put(&extensions.join(name), &fs::read(&script)?, 0o644)?;
    }
    for (name, sql, _) in &others {
        put(&extensions.join(format!("{name}--{version}.sql")), sql.as_bytes(), 0o644)?;
    }
    // This script runs in another database. With the installed copy users need no source tree.
    put(&extensions.join(BRIDGED.extension).with_extension("primary.sql"), primary.as_bytes(), 0o644)?;
    // The control files come last, because they make the extensions available.
    for (name, _, control) in &others {
        put(&extensions.join(name).with_extension("control"), control.as_bytes(), 0o644)?;
    }
    put(&extensions.join(EXTENSION).with_extension("control"), control.as_bytes(), 0o644)
}

/// Installs a script for the server of `pg_config`.
pub fn script(pg_config: &Path, name: &str, text: &str) -> Result<()> {
    put(&ask(pg_config, "--sharedir")?.join("extension").join(name), text.as_bytes(), 0o644)
}

/// Returns a directory that `pg_config` knows.
fn ask(pg_config: &Path, option: &str) -> Result<PathBuf> {
    let answer = Command::new(pg_config)
        .arg(option)
        .output()
        .wrap_err_with(|| format!("could not run {}", pg_config.display()))?;
    if !answer.status.success() {
        bail!("{} {option}: {}", pg_config.display(), String::from_utf8_lossy(&answer.stderr).trim());
    }
    Ok(String::from_utf8(answer.stdout)?.trim().into())
}

/// Returns the absolute `path` below `destdir`.
fn below(destdir: Option<&Path>, path: PathBuf) -> PathBuf {
    match destdir {
        None => path,
        Some(dir) => {
            let inner: PathBuf = path.components().filter(|part| *part != Component::RootDir).collect();
            dir.join(inner)
        }
    }
}

/// Returns the sorted scripts `sql/EXTENSION--VERSION.sql`, which install a released version, and the upgrade scripts
/// `sql/EXTENSION--OLD--NEW.sql`.
fn released_scripts() -> Result<Vec<PathBuf>> {
    let dir = root().join("sql");
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&dir).wrap_err_with(|| format!("could not read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.contains("--") && path.extension() == Some(OsStr::new("sql")) {
            scripts.push(path);
        }
    }
    scripts.sort();
    Ok(scripts)
}

/// Writes a file under another name and then renames it. A running server has the old library mapped and would execute
/// a half-written one.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = path.with_file_name(name);
        fs::write(&new, content)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        fs::rename(&new, path)
    };
    write().wrap_err_with(|| format!("could not install {}", path.display()))
}
