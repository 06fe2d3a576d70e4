//! Makes a release and the version after it from a copy of this tree. Other trees cannot be released.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of the tree as a repository with one commit. It is removed at the end.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let dir = std::env::temp_dir().join(format!("xtask-release-{name}-{}", std::process::id()));
        let copy = Copy(dir);
        copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &copy.0);
        copy.git(&["init", "--quiet"]);
        copy.commit();
        copy
    }

    fn git(&self, arguments: &[&str]) {
        let who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "core.hooksPath=/dev/null"];
        let done = Command::new("git").args(who).args(arguments).current_dir(&self.0).status().unwrap();
        assert!(done.success(), "git {arguments:?}");
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=test"]);
    }

    /// Runs xtask. Returns its output or its error.
    fn xtask(&self, arguments: &[&str]) -> Result<String, String> {
        let answer = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).current_dir(&self.0).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if answer.status.success() { Ok(text(answer.stdout)) } else { Err(text(answer.stderr)) }
    }

    #[track_caller]
    fn refuses(&self, arguments: &[&str], why: &str) {
        let error = self.xtask(arguments).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    /// Runs another program. Returns its output, and true if it succeeded.
    fn run(&self, program: &str, arguments: &[&str]) -> (String, bool) {
        let answer = Command::new(program).args(arguments).current_dir(&self.0).output().unwrap();
        (String::from_utf8(answer.stdout).unwrap(), answer.status.success())
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn append(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), self.read(file) + text).unwrap();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies files except built and downloaded ones.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if ["target", ".git", "node_modules"].iter().any(|skipped| name == *skipped) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            copy_folder(&path, &to.join(name));
        } else {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// The version of the tree.
const NOW: &str = env!("CARGO_PKG_VERSION");

#[test]
fn a_release_and_the_version_after_it_can_be_made() {
    let copy = Copy::new("whole");
    let is_released = copy.read("sql/released.sha256").contains(&format!("  pg_queue--{NOW}.sql\n"));
    if is_released {
        copy.xtask(&["next", "90.0.0"]).unwrap();
        copy.commit();
    }
    copy.xtask(&["release", "90.1.0", "--date", "2030-01-31"]).unwrap();
    assert!(copy.xtask(&["by-hand"]).unwrap().contains("git tag"));
    copy.xtask(&["generate", "--check"]).unwrap();

    assert!(copy.read("CHANGELOG.md").contains("\n## [90.1.0] - 2030-01-31\n"));
    assert!(!copy.read("CHANGELOG.md").contains("unreleased"));
    assert!(copy.read("META.json").contains("\"release_status\": \"stable\""));
    assert_eq!(copy.xtask(&["schema"]).unwrap(), copy.read("sql/pg_queue--90.1.0.sql"));
    let list = copy.read("sql/released.sha256");
    let (scripts, _) = copy.run("git", &["ls-files", "--cached", "--others", ":(glob)sql/*--90.1.0.sql"]);
    assert!(scripts.contains("sql/pg_queue--90.1.0.sql") && scripts.contains("sql/pg_queue_cluster--90.1.0.sql"));
    for script in scripts.lines() {
        assert!(list.contains(&script.replace("sql/", "  ")), "{script} is not in {list}");
    }
    let primary = copy.read("bridge/primary--90.1.0.sql");
    assert!(primary == copy.read("bridge/primary.sql") && primary.contains("SELECT '90.1.0'::text"));
    assert!(list.contains("  ../bridge/primary--90.1.0.sql\n"), "{list}");
    // Cargo need not change the lock file.
    assert!(copy.run("cargo", &["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]).1);
    // Only files about the past still have the earlier version.
    let past = [".", ":!*.lock", ":!CHANGELOG.md", ":!docs/benchmark.md", ":!docs/internals", ":!packaging", ":!sql"];
    let (found, _) = copy.run("git", &[&["grep", "-lF", NOW, "--"], &past[..]].concat());
    let told: Vec<_> = found.lines().filter(|file| !file.ends_with(".rs") && !is_released).collect();
    assert_eq!(told, [""; 0], "they still have {NOW}");

    copy.commit();
    copy.refuses(&["release", "90.2.0", "--date", "2030-02-01"], "90.1.0 is released: `make next");
    copy.refuses(&["release", "90.0.9", "--date", "2030-02-01"], "does not come after");
    copy.xtask(&["release", "90.2.0", "--date", "2030-02-01", "--dry-run"]).unwrap();
    copy.xtask(&["next", "90.2.0"]).unwrap();
    copy.xtask(&["generate", "--check"]).unwrap();
    assert!(copy.read("META.json").contains("\"release_status\": \"testing\""));
    assert!(copy.read("CHANGELOG.md").contains("\n## [90.2.0] - unreleased\n\n## [90.1.0] - 2030-01-31\n"));
    for extension in ["pg_queue", "pg_queue_bridge", "pg_queue_cluster"] {
        let script = copy.read(&format!("sql/{extension}--90.1.0--90.2.0.sql"));
        assert!(script.contains("UPDATE TO '90.2.0'"), "{extension}");
    }
    copy.commit();
    copy.refuses(&["next", "90.3.0"], "90.2.0 is not released");

    // A change of the SQL goes into the upgrade script and is frozen with it.
    let script = "sql/pg_queue--90.1.0--90.2.0.sql";
    copy.append("sql/schema/doctor.sql", "CREATE TABLE queue_internal.new (a integer);\n");
    copy.xtask(&["generate"]).unwrap();
    assert!(copy.read(script).contains("CREATE TABLE queue_internal.new (a integer);"));
    copy.commit();
    copy.xtask(&["release", "90.2.0", "--date", "2030-02-01"]).unwrap();
    assert!(copy.read("sql/released.sha256").contains("  pg_queue--90.1.0--90.2.0.sql\n"));
    copy.commit();
    for released in ["sql/pg_queue--90.1.0.sql", script] {
        copy.append(released, "-- harmless\n");
        copy.commit();
        copy.refuses(&["release", "90.3.0", "--date", "2030-03-01"], "was released as it was");
        copy.git(&["revert", "--no-edit", "HEAD"]);
    }
}

#[test]
fn a_tree_that_cannot_be_released_is_refused() {
    let copy = Copy::new("refused");
    let release = ["release", "90.0.0", "--date", "2030-01-31"];
    let dry = ["release", "90.0.0", "--date", "2030-01-31", "--dry-run"];
    copy.refuses(&["release", "1.0.0-rc.1", "--date", "2030-01-31"], "three numbers");

    copy.append("README.md", "\n");
    copy.refuses(&release, "README.md");
    let said = copy.xtask(&dry).unwrap();
    assert!(said.contains("writes META.json\n"), "a dry run needs no commit: {said}");
    copy.commit();

    let function = "-- For: observe.\nCREATE FUNCTION queue_internal.other() RETURNS void LANGUAGE sql AS '';\n";
    copy.append("sql/schema/views.sql", function);
    copy.commit();
    copy.refuses(&release, "run `make generate`");
    copy.refuses(&dry, "run `make generate`");
    copy.git(&["revert", "--no-edit", "HEAD"]);

    fs::write(copy.0.join("bridge/primary--0.9.0.sql"), "").unwrap();
    copy.refuses(&dry, "bridge/primary--0.9.0.sql looks released");
    fs::remove_file(copy.0.join("bridge/primary--0.9.0.sql")).unwrap();

    fs::write(copy.0.join("META.json"), copy.read("META.json").replace("testing", "unstable")).unwrap();
    copy.refuses(&dry, "META.json does not have this");
    let (changes, _) = copy.run("git", &["status", "--porcelain"]);
    assert_eq!(changes, " M META.json\n", "what is refused changes nothing");
}
