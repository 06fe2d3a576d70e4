//! The text files of this machine's documentation.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// Where Debian keeps its documentation.
pub const SYSTEM: [&str; 2] = ["/usr/share/common-licenses", "/usr/share/doc"];

/// Longer texts are cut: a tsvector has at most a megabyte, and a text may have more in it than its own length.
const LONGEST: u64 = 512 << 10;

/// All files below [`SYSTEM`] and the project's documentation: `docs`, and whatever else is written in Markdown.
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

/// Adds the files below a folder, in order. Links are not followed, or a file might be found twice. Neither hidden
/// folders nor those of cargo are looked into; folders that we may not read count as empty.
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

/// The text of a file, decompressed, its beginning if it is long. `None` if it is not text in UTF-8 or we may not
/// read it.
pub fn text(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let mut reader: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut bytes = Vec::new();
    reader.as_mut().take(LONGEST).read_to_end(&mut bytes).ok()?;
    // The last character may have been cut.
    if let Err(error) = str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    // Neither text nor jsonb can hold it.
    bytes.retain(|&byte| byte != 0);
    String::from_utf8(bytes).ok()
}
