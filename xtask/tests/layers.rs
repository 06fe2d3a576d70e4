//! The layout of `src`: each folder is a floor, and a file imports its own folder and those below it. Reads the files as
//! tokens; needs no server. The dashboard's files, in `web/src`, are short, say what they are for, and are safe, too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The folders, from the ground up. The files beside them at the root of `src` belong to no floor: `error.rs` and `guc.rs`
/// are imported by all and import none, `lib.rs` imports all.
const FLOORS: [&str; 11] =
    ["pg", "shmem", "transaction", "catalog", "log", "job", "executor", "duty", "worker", "doctor", "api"];

/// Where `unsafe` may stand: the fence, shared memory, and callbacks that Postgres calls.
const UNSAFE: [&str; 6] = ["pg/", "shmem/", "executor/", "worker/", "transaction/callbacks.rs", "api/mod.rs"];

/// A file has no more lines than this.
const MOST_LINES: usize = 600;

/// Models and data of tests, which may be longer: a model is read beside what it models, in one piece.
const LONG: [&str; 3] =
    ["core/frontier/tests/model.rs", "core/frontier/tests/limits_model.rs", "core/schedule/tests.rs"];

/// A source file: its path below `src`, and the modules that lead to it.
struct Source {
    path: String,
    module: Vec<String>,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../src")
}

fn read(dir: &Path, root: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let mut module: Vec<String> = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            module.pop_if(|last| last == "mod" || last == "lib");
            found.push(Source { path: below, module, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    read(&root(), &root(), &mut found);
    assert!(found.len() > 100, "the sources are not where they were");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The files of the dashboard, which has one floor.
fn of_the_dashboard() -> Vec<Source> {
    let root = root().join("../web/src");
    let mut found = Vec::new();
    read(&root, &root, &mut found);
    assert!(found.len() > 10, "the dashboard's sources are not where they were");
    found
}

/// The files of the extension itself: not of the core, which is a crate of its own.
fn of_the_extension(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| !source.path.starts_with("core/"))
}

/// A path that a file names, from the crate's root, and its line.
type Named = (Vec<String>, usize);

/// Collects the paths that begin with `crate` or `super`, or after `use` with a module of the file's own; those of `use`
/// trees, too.
fn paths(source: &Source, stream: TokenStream, children: &[String], found: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => paths(source, group.stream(), children, found),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let is_used = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(before) if before == "use");
                let mut module = source.module.clone();
                let start = match name.as_str() {
                    "crate" => Some(Vec::new()),
                    "super" => {
                        module.pop();
                        Some(module)
                    }
                    child if is_used && children.iter().any(|known| known == child) => {
                        module.push(name);
                        Some(module)
                    }
                    _ => None,
                };
                if let Some(start) = start {
                    at = path(start, &tokens, at + 1, ident.span().start().line, false, found);
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// The rest of a path, from behind one of its names. Returns where it ends.
fn path(
    mut path_so_far: Vec<String>,
    tokens: &[TokenTree],
    mut at: usize,
    line: usize,
    is_branch: bool,
    found: &mut Vec<Named>,
) -> usize {
    let from = at;
    while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(ident)) if ident == "super" => {
                path_so_far.pop();
            }
            Some(TokenTree::Ident(ident)) => path_so_far.push(ident.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inner.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ',')) {
                    if let Some(TokenTree::Ident(first)) = branch.first() {
                        let mut start = path_so_far.clone();
                        if first != "self" {
                            start.push(first.to_string());
                        }
                        path(start, branch, 1, first.span().start().line, true, found);
                    }
                }
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    // `pub(super)` and `pub(crate)` name nothing.
    if at > from || is_branch {
        found.push((path_so_far, line));
    }
    at
}

/// What each file imports: the other files, with the line of the first mention.
fn imports(sources: &[Source]) -> BTreeMap<&str, BTreeMap<&str, usize>> {
    let by_module: BTreeMap<&[String], &str> =
        of_the_extension(sources).map(|source| (&source.module[..], &source.path[..])).collect();
    let mut all = BTreeMap::new();
    for source in of_the_extension(sources) {
        let depth = source.module.len();
        let children: Vec<String> = by_module
            .keys()
            .filter(|module| module.len() == depth + 1 && module.starts_with(&source.module))
            .map(|module| module[depth].clone())
            .collect();
        let mut named = Vec::new();
        let tokens = TokenStream::from_str(&source.text).unwrap_or_else(|e| panic!("{}: {e}", source.path));
        paths(source, tokens, &children, &mut named);
        let mut files = BTreeMap::new();
        for (path, line) in named {
            let longest = (1..=path.len()).rev().find_map(|length| by_module.get(&path[..length]));
            if let Some(&file) = longest.filter(|&&file| file != source.path) {
                files.entry(file).or_insert(line);
            }
        }
        all.insert(&source.path[..], files);
    }
    all
}

fn floor(path: &str) -> Option<usize> {
    let (folder, _) = path.split_once('/')?;
    let floor = FLOORS.iter().position(|known| *known == folder);
    Some(floor.unwrap_or_else(|| panic!("{path}: {folder} is no floor")))
}

#[test]
fn no_file_imports_from_a_floor_above_its_own() {
    let sources = sources();
    let mut upwards = Vec::new();
    for (path, files) in imports(&sources) {
        for (file, line) in files {
            let is_up = match (floor(path), floor(file)) {
                (Some(own), Some(other)) => other > own,
                (None, Some(_)) => path != "lib.rs",
                _ => file == "lib.rs",
            };
            if is_up {
                upwards.push(format!("src/{path}:{line} imports src/{file}"));
            }
        }
    }
    assert!(upwards.is_empty(), "imports upwards:\n{}", upwards.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    /// Walks depth first; the files on the way from the start lie in `way`.
    fn walk<'a>(
        file: &'a str,
        imports: &BTreeMap<&'a str, BTreeMap<&'a str, usize>>,
        done: &mut Vec<&'a str>,
        way: &mut Vec<&'a str>,
    ) {
        if let Some(at) = way.iter().position(|known| *known == file) {
            panic!("a circle: {} -> {file}", way[at..].join(" -> "));
        }
        if done.contains(&file) {
            return;
        }
        way.push(file);
        for other in imports[file].keys() {
            walk(other, imports, done, way);
        }
        way.pop();
        done.push(file);
    }
    let sources = sources();
    let imports = imports(&sources);
    let mut done = Vec::new();
    for file in imports.keys() {
        walk(file, &imports, &mut done, &mut Vec::new());
    }
    assert_eq!(done.len(), imports.len());
}

#[test]
fn unsafe_stands_in_its_rooms_only() {
    fn has_unsafe(stream: TokenStream) -> bool {
        stream.into_iter().any(|token| match token {
            TokenTree::Group(group) => has_unsafe(group.stream()),
            TokenTree::Ident(ident) => ident == "unsafe",
            _ => false,
        })
    }
    let sources = sources();
    let is_allowed = |path: &str| UNSAFE.iter().any(|room| path.starts_with(room));
    let strays: Vec<&str> = sources
        .iter()
        .filter(|source| !is_allowed(&source.path) && has_unsafe(TokenStream::from_str(&source.text).unwrap()))
        .map(|source| &source.path[..])
        .collect();
    assert!(strays.is_empty(), "unsafe outside its rooms: {strays:?}");
    for source in of_the_dashboard() {
        assert!(!has_unsafe(TokenStream::from_str(&source.text).unwrap()), "unsafe in web/src/{}", source.path);
    }
}

#[test]
fn files_can_be_read_in_one_go() {
    let sources = sources();
    let web = of_the_dashboard();
    let long: Vec<String> = sources
        .iter()
        .chain(&web)
        .map(|source| (&source.path[..], source.text.lines().count()))
        .filter(|(path, lines)| *lines > MOST_LINES && !LONG.contains(path))
        .map(|(path, lines)| format!("src/{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "files of more than {MOST_LINES} lines:\n{}", long.join("\n"));
    for path in LONG {
        assert!(sources.iter().any(|source| source.path == path), "src/{path} is not there any more");
    }
}

#[test]
fn each_file_says_what_it_is_for() {
    let (sources, web) = (sources(), of_the_dashboard());
    let all = sources.iter().chain(&web);
    let silent: Vec<&str> = all.filter(|s| !s.text.starts_with("//!")).map(|source| &source.path[..]).collect();
    assert!(silent.is_empty(), "files without a head: {silent:?}");
}
