//! Builder's tasks that neither cargo nor make can do alone: the extension's SQL, its installation into a server, and what is generated.
//! See [`USAGE`].

mod generate;
mod install;
mod objects;
mod script;
mod site;
mod tables;
mod upgrade;
mod views;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use eyre::{Result, WrapErr as _, bail, eyre};

const USAGE: &str = "\
Usage: cargo run -p xtask -- schema
       cargo run -p xtask -- install --library PATH --pg-config PATH [--destdir DIR]
       cargo run -p xtask -- generate [--check true]
       cargo run -p xtask -- site    --out DIR

schema   writes the SQL of CREATE EXTENSION to stdout
install  installs library, control file, that SQL and the upgrade scripts into the server of --pg-config,
         below DIR if one is given
generate writes the upgrade scripts, and what pages say that the SQL has; with --check it fails where one is stale
site     writes the pages as a book for mdBook into DIR, which is emptied first

PATH of --library is what cargo built, such as target/release/libpg_queue.so.";

/// The extension's name, and so the beginning of the names of its files.
const EXTENSION: &str = "pg_queue";
/// The extension for many servers.
const CLUSTER: &str = "pg_queue_cluster";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    let task = args.next().ok_or_else(|| eyre!("no task given\n\n{USAGE}"))?;
    match task.as_str() {
        "schema" => {
            Options::parse(args, &[])?;
            print!("{}", script::QUEUE.install()?);
            Ok(())
        }
        "install" => {
            let mut options = Options::parse(args, &["library", "pg-config", "destdir"])?;
            install::install(
                &options.required("library")?,
                &options.required("pg-config")?,
                options.take("destdir").as_deref().map(Path::new),
            )
        }
        "generate" => {
            let is_check = Options::parse(args, &["check"])?.take("check").is_some();
            generate::generate(is_check)
        }
        "site" => site::prepare(&Options::parse(args, &["out"])?.required("out")?),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        unknown => bail!("there is no task \"{unknown}\"\n\n{USAGE}"),
    }
}

/// What was given as `--name value`.
struct Options(HashMap<String, String>);

impl Options {
    fn parse(mut args: impl Iterator<Item = String>, known: &[&str]) -> Result<Self> {
        let mut given = HashMap::new();
        while let Some(arg) = args.next() {
            let name = arg
                .strip_prefix("--")
                .filter(|name| known.contains(name))
                .ok_or_else(|| eyre!("unknown option \"{arg}\"\n\n{USAGE}"))?;
            let value = args.next().ok_or_else(|| eyre!("option \"{arg}\" lacks its value\n\n{USAGE}"))?;
            given.insert(name.to_owned(), value);
        }
        Ok(Self(given))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn required(&mut self, name: &str) -> Result<PathBuf> {
        let value = self.take(name).ok_or_else(|| eyre!("option \"--{name}\" is needed\n\n{USAGE}"))?;
        Ok(value.into())
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
