//! Builder's tasks that neither cargo nor make can do alone: the extension's SQL, its installation into a server, and
//! what is generated.

mod files;
mod generate;
mod install;
mod objects;
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
