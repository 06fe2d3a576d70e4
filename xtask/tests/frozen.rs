//! What was released stays as it was: an installation of it must be upgradable by the scripts that were tested with it.

use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The scripts of releases, each with its SHA-256. A release adds its own (`sha256sum sql/pg_queue--VERSION.sql`); none
/// changes any more.
const RELEASED: [(&str, &str); 2] = [
    ("pg_queue--0.3.0.sql", "75d7d97053a57e46dec39287735fca943cdb5bdb35e038c7f6888cbbefd5c322"),
    ("pg_queue_cluster--0.3.0.sql", "cc314de4fe3ce33a4f640fa15fc174f9b629d5f6e6a2f4ad85bc475b87a08d37"),
];

#[test]
fn a_released_script_never_changes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sql");
    for (name, hash) in RELEASED {
        let script = std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found: String = Sha256::digest(&script).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            found, hash,
            "{name} was released as it was: put the change into sql/schema, and run `make generate`"
        );
    }
    // And none is left out.
    let install = |name: &str| name.matches("--").count() == 1 && name.ends_with(".sql");
    let names = std::fs::read_dir(folder).expect("sql").map(|entry| entry.expect("a file").file_name());
    let unknown: Vec<_> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| install(name) && RELEASED.iter().all(|(known, _)| known != name))
        .collect();
    assert_eq!(unknown, [""; 0], "is it released? then it belongs into this list");
}
