//! No server logs that something is broken.

/// Words that no line of a server's log may have.
const BROKEN: &[&str] = &[" PANIC:", " XX000 ", " XX001 ", " XX002 ", "TRAP:", "inconsistent page"];

pub fn check(logs: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for line in logs.iter().flat_map(|log| log.lines()) {
        // Lines that follow an error have its SQLSTATE, too.
        if !["ERROR:", "FATAL:", "PANIC:", "WARNING:", "LOG:", "TRAP:"].iter().any(|level| line.contains(level)) {
            continue;
        }
        // An index that an interrupted REINDEX CONCURRENTLY has left.
        if line.contains("cannot reindex invalid index") {
            continue;
        }
        if BROKEN.iter().any(|broken| line.contains(broken)) {
            found.push(format!("a server has logged: {line}"));
        }
    }
    found
}
