//! A terminal: one shell that runs a page's blocks of commands one after the other in one folder.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_tests::wait;

/// The longest time for a block of commands. Some blocks compile a program while all other tests run.
const LIMIT: Duration = Duration::from_secs(900);

/// What the shell does with each block. `$1` is the path of the block's files without their endings. With `set -e` a
/// command that fails ends the shell, and the test notices that.
const RUN: &str = r#"
run() {
    . "$1.sh" >"$1.out" 2>&1 </dev/null
    echo 0 >"$1.status"
}
run_failing() {
    set +e
    . "$1.sh" >"$1.out" 2>&1 </dev/null
    echo $? >"$1.status"
    set -e
}
set -e
"#;

/// The result of a block of commands.
pub struct Done {
    /// True if its last command has failed.
    pub has_failed: bool,
    /// What it printed, including errors.
    pub printed: String,
}

pub struct Terminal {
    shell: Child,
    /// The folder for the blocks and their output.
    dir: PathBuf,
    blocks: usize,
}

impl Terminal {
    /// Starts the shell. `command` is `bash` with its environment. The shell works in `folder`. `dir` is for this
    /// type's own files.
    pub fn start(mut command: Command, folder: &Path, dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).expect("a folder for the terminal");
        let log = File::create(dir.join("shell.out")).expect("a writable folder");
        command
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            // The group includes everything that the shell starts in the background.
            .process_group(0);
        let mut shell = command.spawn().expect("bash");
        let stdin = shell.stdin.as_mut().expect("its input");
        stdin.write_all(RUN.as_bytes()).expect("the shell reads");
        Self { shell, dir, blocks: 0 }
    }

    /// Runs commands. If `may_fail` is false, a failure ends the shell and is an error.
    pub fn run(&mut self, commands: &str, may_fail: bool) -> Result<Done, String> {
        self.blocks += 1;
        let at = self.dir.join(self.blocks.to_string());
        let [script, output, status] = ["sh", "out", "status"].map(|ending| at.with_extension(ending));
        std::fs::write(&script, commands).expect("a writable folder");
        let verb = if may_fail { "run_failing" } else { "run" };
        let stdin = self.shell.stdin.as_mut().expect("its input");
        writeln!(stdin, "{verb} '{}'", at.display()).map_err(|error| format!("the shell has ended: {error}"))?;
        let printed = || clean(&std::fs::read_to_string(&output).unwrap_or_default());
        let status = wait::within("the commands have ended", LIMIT, || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            let has_ended = self.shell.try_wait().expect("our child").is_some();
            (status.ends_with('\n') || has_ended).then_some(status)
        });
        match status.trim() {
            "" => Err(format!("it failed\n{}", printed())),
            status => Ok(Done { has_failed: status != "0", printed: printed() }),
        }
    }
}

impl Drop for Terminal {
    /// Kills the shell and its processes, also when the test fails.
    fn drop(&mut self) {
        let group = format!("-{}", self.shell.id());
        let _ = Command::new("sh").args(["-c", "kill -s KILL -- \"$1\"", "sh", &group]).stderr(Stdio::null()).status();
        let _ = self.shell.wait();
    }
}

/// Removes the shell's messages about processes that were killed in the background.
fn clean(printed: &str) -> String {
    let is_notice = |line: &&str| line.contains(".sh: line ") && line.contains(" Killed ");
    printed.lines().filter(|line| !is_notice(line)).map(|line| format!("{line}\n")).collect()
}
