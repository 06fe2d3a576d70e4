//! Runs the tutorials as a reader does: the shared page up to its step "Your program", then the page of a language,
//! then the rest of the shared page. Each tutorial runs in an empty folder against a new server, block by block, and
//! must print what the pages show. How blocks are marked: README.md of this package.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use queue_tests::markdown::{Block, blocks};
use queue_tests::{Cluster, wait};

use crate::language::{root, target};
use crate::terminal::Terminal;

/// The page that all languages share, and its step in which the page of a language is done.
const SHARED: &str = "docs/tutorials/README.md";
const PROGRAM: &str = "\n## 3. Your program\n";

/// How long commands are repeated until they print what the page shows.
const SOON: Duration = Duration::from_secs(60);

/// One step of a page.
enum Step<'a> {
    /// Saves a file.
    Save { name: &'a str, body: &'a str },
    /// Runs commands.
    Run { commands: &'a str, promise: Promise<'a> },
}

/// What a page promises about commands.
enum Promise<'a> {
    /// The commands succeed.
    Success,
    /// The commands succeed and print this.
    Output(&'a str),
    /// The commands print this after some time. They can be repeated until then.
    Soon(&'a str),
    /// The last command fails, and the commands print this.
    Failure(&'a str),
}

/// Returns the steps of a page with their lines. Panics at a block that no step needs: every block of a tutorial is
/// tested unless it says `by-hand`.
fn steps(text: &str) -> Vec<(usize, Vec<Block>)> {
    let mut rest = blocks(text).into_iter().peekable();
    let mut found = Vec::new();
    while let Some(block) = rest.next() {
        let line = block.line;
        let wants_output = matches!(block.info.as_str(), "sh output" | "sh soon" | "sh fails");
        let mut step = vec![block];
        if wants_output {
            let output = rest.next_if(|next| next.info == "text");
            step.push(output.unwrap_or_else(|| panic!("line {line}: no text block with the output follows")));
        }
        found.push((line, step));
    }
    found
}

/// Returns the meaning of a step's blocks. `None` for a step that is done by hand.
fn step(blocks: &[Block]) -> Option<Step<'_>> {
    let block = &blocks[0];
    if let Some((_, rest)) = block.lead.split_once("Save this as `") {
        let (name, _) = rest.split_once('`').expect("the name of the file in backquotes");
        return Some(Step::Save { name, body: &block.body });
    }
    let promise = match (block.info.as_str(), blocks.get(1)) {
        ("sh by-hand", _) => return None,
        ("sh", _) => Promise::Success,
        ("sh output", Some(output)) => Promise::Output(&output.body),
        ("sh soon", Some(output)) => Promise::Soon(&output.body),
        ("sh fails", Some(output)) => Promise::Failure(&output.body),
        (info, _) => panic!("line {}: a block that nothing tries: ```{info}", block.line),
    };
    Some(Step::Run { commands: &block.body, promise })
}

/// True if this was printed. A line `…` stands for any number of lines, and `…` within a line for any text.
fn is_as_shown(shown: &str, printed: &str) -> bool {
    fn lines(text: &str) -> Vec<&str> {
        text.trim_end().lines().map(str::trim_end).collect()
    }
    fn is_line(shown: &str, printed: &str) -> bool {
        match shown.split_once('…') {
            None => shown == printed,
            Some((before, after)) => printed.strip_prefix(before).is_some_and(|rest| {
                rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| is_line(after, &rest[at..]))
            }),
        }
    }
    fn are_lines(shown: &[&str], printed: &[&str]) -> bool {
        match (shown, printed) {
            ([], printed) => printed.is_empty(),
            (["…", shown @ ..], printed) => (0..=printed.len()).any(|at| are_lines(shown, &printed[at..])),
            ([first, shown @ ..], [line, printed @ ..]) => is_line(first, line) && are_lines(shown, printed),
            _ => false,
        }
    }
    are_lines(&lines(shown), &lines(printed))
}

/// Runs the commands. Errors: how they differ from the promise.
fn run(terminal: &mut Terminal, commands: &str, promise: &Promise) -> Result<(), String> {
    let compare = |shown: &str, printed: String| match is_as_shown(shown, &printed) {
        true => Ok(()),
        false => Err(format!("it printed\n\n{printed}\nand not\n\n{shown}")),
    };
    match promise {
        Promise::Success => terminal.run(commands, false).map(drop),
        Promise::Output(shown) => compare(shown, terminal.run(commands, false)?.printed),
        Promise::Failure(shown) => {
            let done = terminal.run(commands, true)?;
            if done.has_failed { compare(shown, done.printed) } else { Err(format!("it succeeded\n{}", done.printed)) }
        }
        Promise::Soon(shown) => {
            let start = std::time::Instant::now();
            // The wait must not panic, because a panic would not show the last output.
            wait::within("the page's output is there", 2 * SOON, || {
                // A file that a background command writes may not exist yet.
                let found = terminal.run(commands, true).and_then(|done| compare(shown, done.printed));
                (found.is_ok() || start.elapsed() > SOON).then_some(found)
            })
        }
    }
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Does what the page and the shared page say. `environment` sets what differs here from a reader's machine.
fn follow(page: &str, environment: impl FnOnce(&mut Command, &Path)) {
    let (shared, own) = (read(SHARED), read(page));
    let (before, after) = shared.split_once(PROGRAM).expect("the step in which the program is made");
    let cluster = Cluster::new().start();
    let _client = cluster.create_database("app");
    let folder = cluster.dir().join("tutorial");
    std::fs::create_dir(&folder).expect("a new folder");
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc"]);
    cluster.connect_env(&mut bash);
    let programs = [cluster.bindir().to_owned(), target().join("debug")];
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&others)));
    bash.env("PATH", path.expect("folders without a colon")).env("PGDATABASE", "app").env("PG_QUEUE", root());
    environment(&mut bash, &folder);
    let mut terminal = Terminal::start(bash, &folder, cluster.dir().join("terminal"));
    // The parts with their first lines, for error messages.
    let parts = [(SHARED, 0, before), (page, 0, own.as_str()), (SHARED, before.lines().count() + 1, after)];
    let all = parts.into_iter().flat_map(|(page, first, text)| {
        steps(text).into_iter().map(move |(line, blocks)| (page, first + line, blocks))
    });
    for (page, line, blocks) in all {
        match step(&blocks) {
            None => {}
            Some(Step::Save { name, body }) => {
                let file = folder.join(name);
                std::fs::create_dir_all(file.parent().expect("a folder")).expect("a writable folder");
                std::fs::write(file, body).expect("a writable folder");
            }
            Some(Step::Run { commands, promise }) => {
                run(&mut terminal, commands, &promise).unwrap_or_else(|why| panic!("{page}:{line}: {why}"));
            }
        }
    }
}

/// True if `make examples` has got what this tutorial installs.
fn is_prepared(what: &str) -> bool {
    let is_there = target().join("examples").join(what).exists();
    if !is_there {
        assert!(
            target().join("examples").join(format!("without-{what}")).exists(),
            "the tutorials cannot run: run `make examples`"
        );
    }
    is_there
}

#[test]
fn the_tutorial_for_python_does_what_it_says() {
    if is_prepared("wheels") {
        follow("docs/tutorials/python.md", |bash, folder| {
            // pip writes into the folder that it installs from, so it gets a copy.
            let clone = folder.with_file_name("clone");
            std::fs::create_dir_all(clone.join("clients")).expect("a new folder");
            let copied =
                Command::new("cp").arg("-r").arg(root().join("clients/python")).arg(clone.join("clients")).status();
            assert!(copied.is_ok_and(|status| status.success()), "cp failed");
            bash.env("PG_QUEUE", clone)
                .env("PIP_NO_INDEX", "1")
                .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
                .env("PIP_ROOT_USER_ACTION", "ignore")
                .env("PIP_FIND_LINKS", target().join("examples/wheels"));
        });
    }
}

#[test]
fn the_tutorial_for_node_does_what_it_says() {
    if is_prepared("npm") {
        follow("docs/tutorials/node.md", |bash, _| {
            bash.env("npm_config_cache", target().join("examples/npm")).env("npm_config_offline", "true");
        });
    }
}

#[test]
fn the_tutorial_for_rust_does_what_it_says() {
    follow("docs/tutorials/rust.md", |bash, folder| {
        // All runs share one folder for compiled files and the versions of the workspace.
        let compiled = target().join("examples/rust");
        std::fs::create_dir_all(&compiled).expect("a writable target folder");
        std::os::unix::fs::symlink(compiled, folder.join("target")).expect("a link");
        std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("the versions");
        // A reader's cargo has none of the variables that `make test` sets.
        bash.env_remove("RUSTC_WORKSPACE_WRAPPER");
        bash.env_remove("CARGO_TARGET_DIR").env("CARGO_NET_OFFLINE", "true").env("CARGO_PROFILE_DEV_DEBUG", "0");
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            bash.env_remove(name);
        }
    });
}

#[test]
fn shown_output_is_compared_line_by_line() {
    assert!(is_as_shown("a\nb\n", "a\nb  \n\n"));
    assert!(!is_as_shown("a\n", "a\nb\n"));
    assert!(is_as_shown("…\nb\n", "a\na\nb\n") && is_as_shown("…\nb\n", "b\n"));
    assert!(!is_as_shown("…\nb\n", "b\nc\n"));
    assert!(is_as_shown("id … of …!", "id 31 of all!") && !is_as_shown("id … of …!", "id 31 of all"));
}
