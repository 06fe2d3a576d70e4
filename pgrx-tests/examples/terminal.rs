//! A terminal: one shell that runs a page's commands one after the other, in one folder.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_tests::wait;

/// How long one block of commands may take: some compile a program, beside all other tests.
const LIMIT: Duration = Duration::from_secs(900);

/// What the shell does with each block. `$1` is the path of its files without their endings. With `set -e` a command
/// that fails ends the shell, and the test sees that.
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

/// How a block of commands has ended.
pub struct Done {
    /// Whether its last command has failed.
    pub has_failed: bool,
    /// What it printed, errors included.
    pub printed: String,
}

pub struct Terminal {
    shell: Child,
    /// Where the blocks and what they print are kept.
    dir: PathBuf,
    blocks: usize,
}

impl Terminal {
    /// Starts the shell: `command` is `bash` with its environment. It works in `folder`; `dir` is for this type's own
    /// files.
    pub fn start(mut command: Command, folder: &Path, dir: PathBuf) -> Self {
        std::fs::create_dir_all(&dir).expect("a folder for the terminal");
        let log = File::create(dir.join("shell.out")).expect("a writable folder");
        command
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            // With all that it starts in the background.
            .process_group(0);
        let mut shell = command.spawn().expect("bash");
        let stdin = shell.stdin.as_mut().expect("its input");
        stdin.write_all(RUN.as_bytes()).expect("the shell reads");
        Self { shell, dir, blocks: 0 }
    }

    /// Runs commands. Those that may fail say so; others end the test if they do.
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
    /// Leaves no process behind, also when the test fails.
    fn drop(&mut self) {
        let group = format!("-{}", self.shell.id());
        let _ = Command::new("sh").args(["-c", "kill -s KILL -- \"$1\"", "sh", &group]).stderr(Stdio::null()).status();
        let _ = self.shell.wait();
    }
}

/// Without what the shell itself says of a process that was killed in the background.
fn clean(printed: &str) -> String {
    let is_notice = |line: &&str| line.contains(".sh: line ") && line.contains(" Killed ");
    printed.lines().filter(|line| !is_notice(line)).map(|line| format!("{line}\n")).collect()
}
