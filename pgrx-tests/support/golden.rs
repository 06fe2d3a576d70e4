//! Golden tests: Postgres's own test drivers run a script and compare what it printed with a file.
//!
//! Each test gets a database of its own with pg_queue in it, so that tests depend neither on each other nor on
//! their order. A test without an expected file fails, and so does an expected file without a test. With
//! `BLESS=1` in the environment the output of this run becomes the expected file, for a person to read.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cluster::Cluster;
use crate::installation::installation;

/// One folder of golden tests and the driver that runs them.
#[derive(Debug)]
pub struct Suite {
    /// The name of the suite, of its folder in this package and of its driver's folder.
    pub name: &'static str,
    /// The driver program.
    pub driver: &'static str,
    /// The folder of the scripts below the suite's folder, and their file name extension.
    pub scripts: (&'static str, &'static str),
    /// More options for the driver. `{dir}` stands for the suite's folder.
    pub options: &'static [&'static str],
    /// A folder for what the driver writes: `env!("CARGO_TARGET_TMPDIR")` of the test target.
    pub output: &'static str,
}

impl Suite {
    /// Runs the tests whose name contains one of the words on the command line, or all tests. It is the `main` of a
    /// test target without a harness.
    pub fn main(&self) -> ExitCode {
        let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
        let wanted = |name: &String| words.is_empty() || words.iter().any(|word| name.contains(word));

        let (folder, extension) = self.scripts;
        let scripts = self.names(folder, extension);
        let mut failed: Vec<String> = self
            .names("expected", "out")
            .iter()
            // Another possible output of a test x is named x_1.
            .filter(|name| !scripts.iter().any(|script| self.expects(script, name)))
            .map(|name| format!("expected/{name}.out belongs to no test"))
            .collect();

        let chosen: Vec<_> = scripts.into_iter().filter(wanted).collect();
        if !chosen.is_empty() {
            let cluster = Cluster::new().start();
            for name in &chosen {
                match self.run(&cluster, name) {
                    Ok(()) => println!("test {}::{name} ... ok", self.name),
                    Err(why) => {
                        println!("test {}::{name} ... FAILED\n{why}", self.name);
                        failed.push(name.clone());
                    }
                }
            }
        }
        if failed.is_empty() {
            println!("{}: {} passed", self.name, chosen.len());
            ExitCode::SUCCESS
        } else {
            println!("{}: {} FAILED: {}", self.name, failed.len(), failed.join(", "));
            ExitCode::FAILURE
        }
    }

    /// True if `expected/<output>.out` belongs to this script.
    fn expects(&self, script: &str, output: &str) -> bool {
        output.strip_prefix(script).is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix('_').is_some_and(|digit| digit.len() == 1 && digit.as_bytes()[0].is_ascii_digit())
        })
    }

    /// Runs one test. `Err` has the difference of its output.
    fn run(&self, cluster: &Cluster, name: &str) -> Result<(), String> {
        let bless = std::env::var_os("BLESS").is_some();
        let expected = self.dir().join(format!("expected/{name}.out"));
        if !expected.exists() {
            if !bless {
                return Err(format!("there is no {}: see BLESS in README.md", expected.display()));
            }
            // The driver needs an expected file.
            std::fs::write(&expected, "").map_err(|error| error.to_string())?;
        }

        let results = Path::new(self.output).join(self.name).join(name);
        std::fs::create_dir_all(&results).map_err(|error| error.to_string())?;
        let mut driver = Command::new(installation().test_tools.join(self.name).join(self.driver));
        cluster.connect_env(&mut driver);
        driver
            .arg(format!("--bindir={}", cluster.bindir().display()))
            .arg(format!("--inputdir={}", self.dir().display()))
            .arg(format!("--outputdir={}", results.display()))
            .arg(format!("--dbname={}_{name}", self.name))
            .arg("--load-extension=pg_queue")
            .args(self.options.iter().map(|option| option.replace("{dir}", &self.dir().display().to_string())))
            .arg(name);
        let done = driver.output().map_err(|error| format!("{}: {error}", self.driver))?;
        if done.status.success() {
            return Ok(());
        }

        let printed = results.join(format!("results/{name}.out"));
        if bless && printed.exists() {
            std::fs::copy(&printed, &expected).map_err(|error| error.to_string())?;
            return Ok(());
        }
        let mut why = String::new();
        match std::fs::read_to_string(results.join("regression.diffs")) {
            Ok(diff) if !diff.is_empty() => why.push_str(&diff),
            // The driver has compared nothing.
            _ => {
                let _ = write!(why, "{}", String::from_utf8_lossy(&done.stdout));
                let _ = write!(why, "{}", String::from_utf8_lossy(&done.stderr));
            }
        }
        Err(why)
    }

    /// Returns the sorted names of the suite's files in `folder` with this extension.
    fn names(&self, folder: &str, extension: &str) -> BTreeSet<String> {
        let dir = self.dir().join(folder);
        let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        files
            .map(|file| file.expect("a file of the folder").path())
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .map(|path| path.file_stem().expect("a name").display().to_string())
            .collect()
    }

    fn dir(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.name)
    }
}
