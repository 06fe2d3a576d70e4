//! The producer: one job per file, its text in the payload.

use std::path::PathBuf;
use std::time::Instant;

use postgres::types::Json;
use postgres::{Client, Row};
use serde_json::{Value, json};

use crate::files;

/// The payload, among those of the files, that cannot be indexed: see [`hopeless_text`].
pub const HOPELESS: &str = "(made up) hopeless.txt";

/// Each call of `enqueue_many` adds at most this many jobs, or slightly more than this many bytes of text.
const CHUNK_JOBS: usize = 100;
const CHUNK_BYTES: usize = 4 << 20;

/// Enqueues the files that are text, and the hopeless text between them. Returns the paths of the files and the job of
/// the hopeless text.
pub fn produce(client: &mut Client, found: &[PathBuf]) -> (Vec<String>, i64) {
    let start = Instant::now();
    let (first, second) = found.split_at(found.len() / 2);
    let mut enqueued = produce_files(client, first);
    let hopeless = enqueue(client, &[payload(HOPELESS, &hopeless_text())])[0].get(0);
    enqueued.extend(produce_files(client, second));
    println!(
        "         all are enqueued, after {} s: {} files, and one that is hopeless ({} others are not text)",
        start.elapsed().as_secs(),
        enqueued.len(),
        found.len() - enqueued.len()
    );
    (enqueued, hopeless)
}

/// Enqueues the files in chunks, each in a transaction, and returns their paths.
fn produce_files(client: &mut Client, found: &[PathBuf]) -> Vec<String> {
    let mut enqueued = Vec::new();
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for file in found {
        let (Some(path), Some(text)) = (file.to_str(), files::text(file)) else { continue };
        enqueued.push(path.to_owned());
        bytes += text.len();
        chunk.push(payload(path, &text));
        if chunk.len() == CHUNK_JOBS || bytes >= CHUNK_BYTES {
            enqueue(client, &chunk);
            (chunk, bytes) = (Vec::new(), 0);
        }
    }
    enqueue(client, &chunk);
    enqueued
}

fn payload(path: &str, text: &str) -> Json<Value> {
    Json(json!({"path": path, "text": text}))
}

fn enqueue(client: &mut Client, payloads: &[Json<Value>]) -> Vec<Row> {
    client.query("SELECT queue.enqueue_many('index_files', $1)", &[&payloads]).expect("the jobs' ids")
}

/// Returns a text with more different words than a tsvector can hold.
fn hopeless_text() -> String {
    (0..150_000).map(|number| format!("word{number} ")).collect()
}
