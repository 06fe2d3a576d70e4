//! The example workers, and how each is started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What an example is written in.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    Python,
    Node,
    Rust,
    Shell,
}

impl Language {
    /// Those that are tested here: all, unless `make examples` has said that it could not get Node's driver.
    pub fn all_here() -> Vec<Self> {
        let mut all = vec![Self::Python, Self::Rust, Self::Shell];
        if !target().join("examples/without-node").exists() {
            all.push(Self::Node);
        }
        all
    }

    fn node() -> Command {
        let mut command = Command::new("node");
        // Where `make examples` has put the driver, and where Debian does.
        let folders = [target().join("examples/node_modules"), "/usr/share/nodejs".into()];
        command.env("NODE_PATH", std::env::join_paths(folders).expect("folders without a colon"));
        command
    }

    fn has_node() -> bool {
        let status = Self::node().args(["-e", "require('pg')"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// The command that starts the worker; it lacks only where to connect to. Panics, saying what to install, if the
    /// worker could not run here.
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

/// The command that starts an example in Python. Panics as `Language::worker` does.
pub fn python(name: &str) -> Command {
    // A python from elsewhere may come first and not know Debian's modules.
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

/// A file of the examples.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples").join(name)
}

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package inside the tree").to_owned()
}

/// Where cargo puts what it compiles, and `make examples` what it gets.
pub fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()))
}
