//! The page: the files of the neighbouring folder `assets`, compiled in.
//!
//! Invariant: the page needs only these files. It fetches nothing from elsewhere, and nothing is generated.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

macro_rules! files {
    ($($name:literal => $kind:literal),* $(,)?) => {
        /// Name, media type, content.
        const FILES: &[(&str, &str, &str)] = &[$(($name, $kind, include_str!(concat!("../assets/", $name)))),*];
    };
}

files! {
    "index.html" => "text/html; charset=utf-8",
    "style.css" => "text/css; charset=utf-8",
    "icon.svg" => "image/svg+xml",
    "icon-ill.svg" => "image/svg+xml",
    "main.js" => "text/javascript; charset=utf-8",
    "dom.js" => "text/javascript; charset=utf-8",
    "format.js" => "text/javascript; charset=utf-8",
    "server.js" => "text/javascript; charset=utf-8",
    "chart.js" => "text/javascript; charset=utf-8",
    "dialog.js" => "text/javascript; charset=utf-8",
    "bulk.js" => "text/javascript; charset=utf-8",
    "table.js" => "text/javascript; charset=utf-8",
    "overview.js" => "text/javascript; charset=utf-8",
    "queue.js" => "text/javascript; charset=utf-8",
    "flow.js" => "text/javascript; charset=utf-8",
    "job.js" => "text/javascript; charset=utf-8",
    "pages.js" => "text/javascript; charset=utf-8",
}

/// Returns a file. The tag is a digest of its text, so browsers fetch a new version.
pub fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some((_, kind, text)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let tag = format!("\"{:x}\"", digest(text));
    let fixed = [
        (header::CONTENT_TYPE, (*kind).to_owned()),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::ETAG, tag.clone()),
    ];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, fixed).into_response();
    }
    (fixed, *text).into_response()
}

/// FNV-1a. It distinguishes versions of a file.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = FILES.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes < 140_000, "{bytes} bytes");
    }

    #[test]
    fn nothing_in_them_makes_markup_of_text_or_comes_from_elsewhere() {
        for (name, _, text) in FILES {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "srcdoc"]
            {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let rest = text.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !rest.contains("http://") && !rest.contains("https://") && !rest.contains("//cdn"),
                "{name} names a site"
            );
        }
        let page = FILES[0].2;
        assert!(
            !page.contains(" style=") && !page.contains(" on") && !page.contains("<script>"),
            "the policy forbids it"
        );
    }
}
