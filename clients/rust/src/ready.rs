//! What a worker asks the server before its first claim: whether the extension is there, and new enough.

use crate::connection::{Link, Refusal};
use crate::settings::WorkerError;

const ASK: &str = "SELECT pg_catalog.current_database()::text, pg_catalog.to_regnamespace('queue') IS NULL, \
                   (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_queue')";

const WANTED: [&str; 2] = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];

/// Returns why the worker cannot work there. `None`: it can. A router of a cluster has the functions without the
/// extension.
pub(crate) async fn ask(link: &Link) -> Result<Option<String>, Refusal> {
    let rows = link.fetch(ASK, &[], &|| {}).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (database, is_missing, version): (&str, bool, Option<&str>) = (row.get(0), row.get(1), row.get(2));
    if is_missing {
        return Ok(Some(format!("database {database} has no extension pg_queue: run CREATE EXTENSION pg_queue there")));
    }
    let wanted = WANTED.join(".");
    Ok(version.filter(|version| numbers(version) < numbers(&wanted)).map(|version| {
        format!(
            "the extension in database {database} is {version}, this package needs {wanted}: \
             run ALTER EXTENSION pg_queue UPDATE there"
        )
    }))
}

pub(crate) fn cannot_start(text: &str) -> WorkerError {
    WorkerError(format!("the worker cannot start: {text}").into())
}

fn numbers(version: &str) -> Vec<u32> {
    let number = |part: &str| part[..part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len())].parse();
    let mut parts = version.split('.');
    // A version such as `main` is newer than any number.
    let first = parts.next().and_then(|part| number(part).ok()).unwrap_or(u32::MAX);
    vec![first, parts.next().and_then(|part| number(part).ok()).unwrap_or(0)]
}
