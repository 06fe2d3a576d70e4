//! The end of `make web`: Ctrl-C ends everything that the terminal has started and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use queue_tests::wait;

use crate::http::Address;

/// Returns the processes of a group according to /proc.
fn of_group(group: u32) -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_of_group = |stat: &String| {
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, of) = (fields.next(), fields.nth(1));
        state != Some("Z") && of == Some(&group.to_string())
    };
    stats.filter(is_of_group).collect()
}

/// Returns the folders with the server of a process.
fn folders(pid: u32) -> Vec<PathBuf> {
    let all = ["/tmp", "/dev/shm"].iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    all.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(&format!("/queue-{pid}-"))).collect()
}

#[test]
fn the_demo_ends_at_ctrl_c_and_leaves_nothing() {
    let demo = Path::new(env!("CARGO_BIN_EXE_pg_queue_web")).with_file_name("demo");
    let (said, writer) = std::io::pipe().expect("a pipe");
    // Starts the demo as the Makefile does. The shell becomes the demo, so the folder's name has the shell's number.
    let mut command = Command::new("/bin/bash");
    command.args(["-c", "trap '' INT; exec \"$0\" web --listen 127.0.0.1:0"]).arg(&demo);
    command.stdin(Stdio::null()).stdout(writer.try_clone().expect("a pipe")).stderr(writer).process_group(0);
    let mut process = command.spawn().expect("the demo, which `make stage` builds");
    drop(command);
    let mut lines = BufReader::new(said).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.split_once("listening on http://").map(|(_, at)| at.to_owned()));
    let address = Address::Tcp(address.expect("where it listens").split('/').next().unwrap_or_default().to_owned());
    // Reads the rest of the output, so that the demo never blocks.
    std::thread::spawn(move || lines.for_each(drop));
    wait::until("the shop is busy", || {
        let seen = address.get("/api/overview").ok();
        (seen["total"]["running"].as_i64() > Some(3) && seen["total"]["completed"].as_i64() > Some(3)).then_some(())
    });
    // An open stream of a browser does not delay the end.
    let mut events = address.events(&[]);
    assert!(events.next().is_some());
    assert!(!folders(process.id()).is_empty());
    let group = process.id();
    let sent = Command::new("kill").args(["-INT", "--", &format!("-{group}")]).status().expect("kill");
    assert!(sent.success());
    let ended = wait::until("it has ended", || process.try_wait().expect("its end"));
    assert!(ended.success(), "{ended}");
    wait::until("its processes are gone", || of_group(group).is_empty().then_some(()));
    wait::until("its folder is gone", || folders(group).is_empty().then_some(()));
    assert!(events.next().is_none());
}
