//! Builder's tasks that neither cargo nor make can do alone: the extension's SQL, its installation into a server, and what is generated.

mod generate;
mod install;
mod objects;
mod script;
mod site;
mod tables;
mod upgrade;
mod views;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use eyre::{Result, WrapErr as _, eyre};

/// Builder's tasks that neither cargo nor make can do alone.
#[derive(Parser)]
#[command(name = "xtask")]
enum Task {
    /// Writes the SQL of CREATE EXTENSION to stdout
    Schema,
    /// Installs library, control file, that SQL and the upgrade scripts into a server
    Install {
        /// What cargo built, such as target/release/libpg_queue.so
        #[arg(long, value_name = "PATH")]
        library: PathBuf,
        /// The server's
        #[arg(long, value_name = "PATH")]
        pg_config: PathBuf,
        /// Installs below this folder
        #[arg(long, value_name = "DIR")]
        destdir: Option<PathBuf>,
    },
    /// Writes the upgrade scripts, and what pages say that the SQL has
    Generate {
        /// Writes nothing, and fails where one is stale
        #[arg(long)]
        check: bool,
    },
    /// Writes the pages as a book for mdBook
    Site {
        /// This folder is emptied first
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// The extension's name, and so the beginning of the names of its files.
const EXTENSION: &str = "pg_queue";
/// The extension for many servers.
const CLUSTER: &str = "pg_queue_cluster";

fn main() -> ExitCode {
    match run(Task::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Schema => {
            print!("{}", script::QUEUE.install()?);
            Ok(())
        }
        Task::Install { library, pg_config, destdir } => install::install(&library, &pg_config, destdir.as_deref()),
        Task::Generate { check } => generate::generate(check),
        Task::Site { out } => site::prepare(&out),
    }
}

/// The root of the checkout that this program was compiled in.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn control_file() -> PathBuf {
    root().join(EXTENSION).with_extension("control")
}

/// The version of the root package, which is that of the extension.
fn version() -> Result<String> {
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

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).wrap_err_with(|| format!("could not read {}", path.display()))
}
