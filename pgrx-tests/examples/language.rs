//! The example workers and how they are started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The language of an example.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    Python,
    Node,
    Rust,
    Shell,
}

impl Language {
    /// Returns the languages tested here: all, unless `make examples` could not get Node's driver.
    pub fn all_here() -> Vec<Self> {
        let mut all = vec![Self::Python, Self::Rust, Self::Shell];
        if !target().join("examples/without-node").exists() {
            all.push(Self::Node);
        }
        all
    }

    fn node() -> Command {
        let mut command = Command::new("node");
        // The folders in which `make examples` and Debian put the driver.
        let folders = [target().join("examples/node_modules"), "/usr/share/nodejs".into()];
        command.env("NODE_PATH", std::env::join_paths(folders).expect("folders without a colon"));
        command
    }

    fn has_node() -> bool {
        let status = Self::node().args(["-e", "require('pg')"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Returns the command that starts the worker. The caller adds the connection settings. Panics if the worker cannot
    /// run here, and says what to install.
    pub fn worker(self) -> Command {
        match self {
            Self::Python => python("worker.py"),
            Self::Node => {
                if !Self::has_node() {
                    missing("nodejs node-pg");
                }
                let mut command = Self::node();
                command.arg(example("worker.js"));
                command
            }
            Self::Rust => {
                let program = target().join("debug/queue-worker");
                assert!(program.exists(), "there is no {}: run `make examples`", program.display());
                Command::new(program)
            }
            Self::Shell => Command::new(example("worker.sh")),
        }
    }
}

/// Returns the command that starts an example in Python. Panics as `Language::worker` does.
pub fn python(name: &str) -> Command {
    // The first python in the path may not know Debian's modules.
    let pythons = ["python3", "/usr/bin/python3"];
    let python = pythons.into_iter().find(|python| succeeds(python, &["-c", "import psycopg"]));
    let mut command = Command::new(python.unwrap_or_else(|| missing("python3-psycopg")));
    command.arg(example(name));
    command
}

fn missing(packages: &str) -> ! {
    panic!("an example cannot run: run `make examples`, or as root: apt-get install {packages}")
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns the path of an example.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples").join(name)
}

/// Returns the root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package inside the tree").to_owned()
}

/// Returns the folder for what cargo compiles and `make examples` gets.
pub fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()))
}
