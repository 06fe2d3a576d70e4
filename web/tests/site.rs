//! The site that `make site` has built. Each link leads somewhere. In a browser each page fits a phone, reports no
//! error and can be searched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::browser::Browser;

/// Returns the folder of the site.
fn site() -> PathBuf {
    let site = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder").join("site");
    assert!(site.join("index.html").exists(), "there is no site: run `make site`");
    site
}

/// Adds all files below a folder by their paths within it.
fn files(folder: &Path, within: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the site") {
        let entry = entry.expect("an entry");
        let path = format!("{within}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files(&entry.path(), &format!("{path}/"), found);
        } else {
            found.insert(path);
        }
    }
}

/// Returns the values of an attribute in a page.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!(" {attribute}=\"");
    page.match_indices(&begin).filter_map(|(at, _)| page[at + begin.len()..].split('"').next()).collect()
}

/// Returns the path that a link of a page leads to.
fn target(page: &str, link: &str) -> String {
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in link.split('/') {
        match part {
            ".." => _ = path.pop(),
            "." | "" => {}
            part => path.push(part),
        }
    }
    path.join("/")
}

#[test]
fn each_link_leads_somewhere() {
    let site = site();
    let mut found = BTreeSet::new();
    files(&site, "", &mut found);
    let pages: BTreeMap<&String, String> = found
        .iter()
        .filter(|file| file.ends_with(".html"))
        .map(|file| (file, std::fs::read_to_string(site.join(file)).expect("a page")))
        .collect();
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in &pages {
        for link in values(text, "href").into_iter().chain(values(text, "src")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") || link == "/" {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            // The page for missing addresses is shown at any address, so its links are relative to the root.
            let from = if page.as_str() == "404.html" { "" } else { page.as_str() };
            let path = if file.is_empty() { (*page).clone() } else { target(from, file) };
            let has_anchor = || pages.get(&path).is_none_or(|text| values(text, "id").contains(&anchor));
            if !found.contains(&path) || !anchor.is_empty() && !has_anchor() {
                wrong.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(count > 1_000 && pages.len() > 50, "{count} links on {} pages", pages.len());
    assert_eq!(wrong, [""; 0]);
    // The list for programs names pages that exist.
    let list = std::fs::read_to_string(site.join("llms.txt")).expect("llms.txt");
    let named: Vec<&str> = list.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(named.len() > 40, "{list}");
    for page in named {
        assert!(found.contains(page), "llms.txt: there is no {page}");
    }
}

#[test]
fn the_site_can_be_read_and_searched() {
    let address = format!("file://{}/", site().display());
    let browser = Browser::open(&address, "index.html");
    for page in
        ["index.html", "docs/functions.html", "docs/troubleshooting.html", "docs/benchmark.html", "docs/errors.html"]
    {
        for (width, is_phone) in [(1280, false), (390, true)] {
            browser.size(width, 844, is_phone);
            browser.go(page);
            browser.wait_script("the page is there", "return document.querySelector('main h1') !== null");
            let excess = browser.script("return document.documentElement.scrollWidth - innerWidth");
            assert!(excess.as_i64().is_some_and(|excess| excess <= 0), "{page} at {width}: {excess} too wide");
            assert_eq!(browser.complaints(), [""; 0], "{page}");
        }
    }
    browser.size(1280, 860, false);
    browser.go("docs/concepts.html");
    browser.wait_script("a way on", "return document.querySelector('a[rel~=next]') !== null");
    browser.go("index.html?search=disconnect");
    browser
        .wait_script("something is found", "return document.querySelectorAll('#mdbook-searchresults li').length > 0");
    browser.dark(true);
    browser.go("docs/views.html");
    browser.wait_script("it is dark", "return document.documentElement.classList.contains('navy')");
    assert_eq!(browser.complaints(), [""; 0]);
}
