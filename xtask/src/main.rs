//! Builder's tasks that neither cargo nor make can do alone: the extension's SQL, its installation into a server, and
//! generated files.

mod absent;
mod arguments;
mod blocks;
mod declarations;
mod dialects;
mod earlier;
mod files;
mod frozen;
mod generate;
mod install;
mod objects;
mod options;
mod project;
mod release;
mod script;
mod site;
mod tables;
mod upgrade;
mod views;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use eyre::Result;

/// Builder's tasks that neither cargo nor make can do alone.
#[derive(Parser)]
#[command(name = "xtask")]
enum Task {
    /// Writes the SQL of CREATE EXTENSION to stdout
    Schema,
    /// Installs library, control file, that SQL and the upgrade scripts into a server
    Install {
        /// The library that cargo built, such as target/release/libpg_queue.so
        #[arg(long, value_name = "PATH")]
        library: PathBuf,
        /// The pg_config of the server
        #[arg(long, value_name = "PATH")]
        pg_config: PathBuf,
        /// Installs below this folder
        #[arg(long, value_name = "DIR")]
        destdir: Option<PathBuf>,
    },
    /// Installs an artificial earlier version and its upgrade script to this version, for tests of upgrades
    Earlier {
        /// The pg_config of the server
        #[arg(long, value_name = "PATH")]
        pg_config: PathBuf,
    },
    /// Writes the upgrade scripts and the other files that are generated from the SQL
    Generate {
        /// Writes nothing, and fails if a file is stale
        #[arg(long)]
        check: bool,
    },
    /// Turns the tree into that of a release: sets the version, dates the changelog, freezes the scripts
    Release {
        version: String,
        /// The date of the release, as 2030-01-31
        #[arg(long)]
        date: String,
        /// Writes nothing, but does all checks that need no commit
        #[arg(long)]
        dry_run: bool,
    },
    /// Prints the steps that a person takes after a release is built
    ByHand,
    /// Turns the tree into that of the version after a release
    Next { version: String },
    /// Writes the pages as a book for mdBook
    Site {
        /// This folder is emptied first
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

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
        Task::Earlier { pg_config } => earlier::install(&pg_config),
        Task::Generate { check } => generate::generate(check),
        Task::Release { version, date, dry_run } => release::release(&version, &date, dry_run),
        Task::ByHand => release::by_hand(),
        Task::Next { version } => release::next(&version),
        Task::Site { out } => site::prepare(&out),
    }
}
