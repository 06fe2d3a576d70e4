//! The text files of this machine's documentation.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// Where Debian keeps its documentation.
pub const SYSTEM: [&str; 2] = ["/usr/share/common-licenses", "/usr/share/doc"];

/// Longer texts are cut: a tsvector has at most a megabyte, and may be longer than its text.
const LONGEST: u64 = 512 << 10;

/// Returns all files below [`SYSTEM`], and the project's documentation: `docs` and all other Markdown.
pub fn find() -> Vec<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = Vec::new();
    collect(project, &mut found);
    found.retain(|file| {
        file.starts_with(project.join("docs")) || file.extension().is_some_and(|extension| extension == "md")
    });
    for folder in SYSTEM {
        collect(Path::new(folder), &mut found);
    }
    found
}

/// Adds the files below a folder, in order. Links are not followed, so that no file is found twice. Hidden folders and
/// those of cargo are skipped. An unreadable folder counts as empty.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = folder.read_dir() else { return };
    if folder.join("CACHEDIR.TAG").exists() {
        return;
    }
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        match entry.file_type() {
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            Ok(kind) if kind.is_dir() && !is_hidden => collect(&entry.path(), found),
            _ => {}
        }
    }
}

/// Returns the decompressed text of a file, or the beginning of a long one. `None` if the file is not text in UTF-8, or
/// cannot be read.
pub fn text(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let mut reader: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut bytes = Vec::new();
    reader.as_mut().take(LONGEST).read_to_end(&mut bytes).ok()?;
    // The last character may be incomplete.
    if let Err(error) = str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    // Neither text nor jsonb can store this character.
    bytes.retain(|&byte| byte != 0);
    String::from_utf8(bytes).ok()
}
