//! Runs the pgbench scripts of this folder, one after the other, on a throw-away server that is set up as one
//! in production: `make bench`, or with the words that the names of the scripts should contain:
//! `cargo run -p queue-tests --bin bench -- WORD… [-- PGBENCH-OPTION…]`.
//!
//! `setup.sql` runs before each of them, in a new database.

use std::path::Path;

use queue_tests::{Cluster, installation};

/// As many clients as a small machine has use for, long enough for a few checkpoints' worth of noise.
const DEFAULT_OPTIONS: [&str; 3] = ["--client=4", "--jobs=2", "--time=10"];

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let options = match words.iter().position(|word| word == "--") {
        Some(at) => words.split_off(at).into_iter().skip(1).collect(),
        None => DEFAULT_OPTIONS.map(str::to_owned).to_vec(),
    };
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a readable script");
    let setup = read(&dir.join("setup.sql"));
    let mut scripts: Vec<_> = std::fs::read_dir(&dir)
        .expect("the folder of the scripts")
        .map(|file| file.expect("a file of the folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pgbench"))
        .collect();
    scripts.sort();

    let cluster =
        Cluster::new().conf("fsync = on").conf("shared_buffers = '256MB'").conf("max_wal_size = '4GB'").start();
    for script in scripts {
        let name = script.file_stem().expect("a name").display().to_string();
        if !words.is_empty() && !words.iter().any(|word| name.contains(word)) {
            continue;
        }
        println!("--- {name}");
        cluster.create_database(&name).batch_execute(&setup).expect("setup.sql runs");
        // The server's account may not be able to enter this folder.
        let copy = cluster.dir().join(format!("{name}.pgbench"));
        std::fs::write(&copy, read(&script)).expect("a writable cluster folder");
        let mut pgbench = cluster.command("pgbench");
        pgbench.args(["--no-vacuum", "--protocol=prepared"]).args(&options).arg("--file").arg(copy).arg(&name);
        print!("{}", installation::output(&mut pgbench));
    }
}
