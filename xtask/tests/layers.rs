//! Checks the layout of the sources. In `src` each folder is a layer, and a file imports only from its own layer and
//! lower ones. In every crate, package and page no files import each other in a circle. Files and lines are short. In
//! the product, types have few methods, and functions are short and have few arguments. No check needs a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The folders from the lowest layer up. Files beside them in `src` belong to no layer: all files import `error.rs` and
/// `guc.rs`, which import none, and `lib.rs` imports all.
const FLOORS: [&str; 13] = [
    "pg",
    "shmem",
    "transaction",
    "catalog",
    "log",
    "restore",
    "job",
    "executor",
    "duty",
    "worker",
    "doctor",
    "api",
    "view",
];

/// Lower layers from which a layer does not import. A function that changes something goes through `job`, so that a
/// job's state changes in one place.
const CLOSED: [(&str, &str); 1] = [("api", "log")];

/// Where `unsafe` is allowed: the boundary to Postgres, shared memory, and callbacks that Postgres calls.
const UNSAFE: [&str; 6] = ["pg/", "shmem/", "executor/", "worker/", "transaction/callbacks.rs", "api/mod.rs"];

/// Folders of scripts, the ending of their files, and the text before an imported file's name. Python's imports for
/// types count.
const SCRIPTS: [(&str, &str, &str); 3] = [
    ("clients/python/src/pg_queue", ".py", "from ."),
    ("clients/node/lib", ".js", "require('./"),
    ("web/assets", ".js", "from \"./"),
];

/// A file has no more lines than this.
const MAX_LINES: usize = 600;

/// A line has no more characters than this. Prose, data, and recorded or released texts are excepted.
const MAX_COLUMNS: usize = 120;

/// Models and data of tests may be longer, because a model is read in one piece beside the code that it models.
const LONG: [&str; 3] =
    ["src/core/frontier/tests/model.rs", "src/core/frontier/tests/limits_model.rs", "src/core/schedule/tests.rs"];

/// The crates that run in a user's server or programs. Each of their files says what it is for.
const PRODUCT: [&str; 5] = ["src", "src/core", "web/src", "clients/rust/src", "xtask/src"];

/// A type has no more methods than this in all files of its crate.
const MAX_METHODS: usize = 80;

/// A function has no more lines than this, from its signature to its last brace.
const MAX_FUNCTION_LINES: usize = 80;

/// A function has no more arguments than this, without `self`.
const MAX_ARGUMENTS: usize = 6;

/// The functions that are longer or have more arguments: the file and the name. An entry within both limits is an
/// error. PostgreSQL sets the signatures in `pg/raw.rs` and of `on_utility`.
const KNOWN_LONG: &[(&str, &str)] = &[
    ("src/pg/raw.rs", "index_insert"),
    ("src/pg/raw.rs", "ExecInsertIndexTuples"),
    ("src/pg/raw.rs", "set_config_option"),
    ("src/pg/raw.rs", "standard_ProcessUtility"),
    ("src/worker/hooks.rs", "on_utility"),
];

/// A source file.
struct Source {
    /// Its path below the crate's folder.
    path: String,
    /// The modules that lead to the file.
    module: Vec<String>,
    text: String,
}

impl Source {
    fn tokens(&self) -> TokenStream {
        TokenStream::from_str(&self.text).unwrap_or_else(|e| panic!("{}: {e}", self.path))
    }
}

/// A crate: a folder with a `lib.rs` or a `main.rs`.
struct Crate {
    /// Its path below the repository.
    folder: String,
    sources: Vec<Source>,
}

/// Folders without sources of this project, or with generated ones.
const SKIPPED: [&str; 5] = ["target", "node_modules", ".git", "frozen", "expected"];

/// Adds the files below a folder whose names have one of these endings.
fn files(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_symlink() || SKIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// Returns the text files with one of these endings, by their paths below the repository.
fn texts(endings: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    files(root, endings, &mut found);
    found.sort();
    let below = |path: &PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    let texts = found.iter().map(|path| (below(path), fs::read(path).unwrap()));
    texts.filter_map(|(path, text)| Some((path, String::from_utf8(text).ok()?))).collect()
}

/// Returns all crates of the repository. A file belongs to the innermost one.
fn crates() -> Vec<Crate> {
    let texts = texts(&[".rs"]);
    let folder_of = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let is_root = |path: &str| path.ends_with("/lib.rs") || path.ends_with("/main.rs");
    let mut crates: Vec<Crate> = texts
        .iter()
        .filter(|(path, _)| is_root(path))
        .map(|(path, _)| Crate { folder: folder_of(path), sources: Vec::new() })
        .collect();
    for (path, text) in texts {
        let owner = crates
            .iter_mut()
            .filter(|own| path.strip_prefix(&own.folder).is_some_and(|rest| rest.starts_with('/')))
            .max_by_key(|own| own.folder.len());
        let Some(owner) = owner else { continue };
        let below = path[owner.folder.len() + 1..].to_owned();
        let mut module: Vec<String> = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        module.pop_if(|last| last == "mod" || last == "lib" || last == "main");
        owner.sources.push(Source { path: below, module, text });
    }
    assert!(crates.len() > 15, "the crates are not where they were");
    crates
}

/// Returns the files of one crate.
fn sources(folder: &str) -> Vec<Source> {
    let found = crates().into_iter().find(|own| own.folder == folder).map(|own| own.sources).unwrap_or_default();
    assert!(found.len() > 5, "the sources of {folder} are not where they were");
    found
}

/// A path that a file names, from the crate's root, and its line.
type Named = (Vec<String>, usize);

/// Collects the paths that begin with `crate` or `super`, and paths after `use` that begin with a module of the file,
/// including those of `use` trees.
fn paths(source: &Source, stream: TokenStream, children: &[String], found: &mut Vec<Named>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => paths(source, group.stream(), children, found),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let is_used = at > 0 && matches!(&tokens[at - 1], TokenTree::Ident(before) if before == "use");
                let is_path = is_colon(tokens.get(at + 1))
                    && is_colon(tokens.get(at + 2))
                    && !is_colon(at.checked_sub(1).and_then(|before| tokens.get(before)));
                let mut module = source.module.clone();
                let start = match name.as_str() {
                    "crate" => Some(Vec::new()),
                    "super" => {
                        module.pop();
                        Some(module)
                    }
                    child if (is_used || is_path) && children.iter().any(|known| known == child) => {
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

/// Reads the rest of a path after one of its names. Returns where it ends.
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
    // `pub(super)` and `pub(crate)` name no module.
    if at > from || is_branch {
        found.push((path_so_far, line));
    }
    at
}

/// Returns the files that each file imports, with the line of the first mention.
fn imports(sources: &[Source]) -> BTreeMap<&str, BTreeMap<&str, usize>> {
    let by_module: BTreeMap<&[String], &str> =
        sources.iter().map(|source| (&source.module[..], &source.path[..])).collect();
    let mut all = BTreeMap::new();
    for source in sources {
        let depth = source.module.len();
        let children: Vec<String> = by_module
            .keys()
            .filter(|module| module.len() == depth + 1 && module.starts_with(&source.module))
            .map(|module| module[depth].clone())
            // If the file imports another module under this name, the name means that module.
            .filter(|child| {
                !source.text.contains(&format!("::{child};")) && !source.text.contains(&format!(" {child}}};"))
            })
            .collect();
        let mut named = Vec::new();
        paths(source, source.tokens(), &children, &mut named);
        let mut files = BTreeMap::new();
        for (path, line) in named {
            let longest = (0..=path.len()).rev().find_map(|length| by_module.get(&path[..length]));
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
fn no_file_imports_from_a_higher_layer() {
    let sources = sources("src");
    let is_closed = |path: &str, file: &str| {
        let folders = path.split_once('/').zip(file.split_once('/')).map(|((own, _), (other, _))| (own, other));
        folders.is_some_and(|folders| CLOSED.contains(&folders))
    };
    let mut upwards = Vec::new();
    for (path, files) in imports(&sources) {
        for (file, line) in files {
            let is_up = match (floor(path), floor(file)) {
                (Some(own), Some(other)) => other > own,
                (None, Some(_)) => path != "lib.rs",
                _ => false,
            };
            if is_up || is_closed(path, file) {
                upwards.push(format!("src/{path}:{line} imports src/{file}"));
            }
        }
    }
    assert!(upwards.is_empty(), "imports that may not be:\n{}", upwards.join("\n"));
}

/// Returns the files that each script imports, as `imports` does. `mark`: the text before the name of an imported file.
fn imports_of_scripts<'a>(texts: &'a [(String, String)], mark: &str) -> BTreeMap<&'a str, BTreeMap<&'a str, usize>> {
    let name_of = |path: &'a str| path.rsplit(['/', '.']).nth(1).unwrap_or_default();
    let files: BTreeSet<&str> = texts.iter().map(|(path, _)| name_of(path)).collect();
    let imports = |text: &'a str| {
        let named = |(at, _)| {
            let rest = text[at + mark.len()..].split(['\n', '\'', '"']).next().unwrap_or_default();
            // Python's `from . import a, b` names several files.
            let (names, most) = rest.strip_prefix(" import ").map_or((rest, 1), |names| (names, usize::MAX));
            names.split(|c: char| !c.is_alphanumeric() && c != '_').take(most).map(move |name| (name, at))
        };
        text.match_indices(mark).flat_map(named).filter(|(name, _)| files.contains(name)).collect()
    };
    texts.iter().map(|(path, text)| (name_of(path), imports(text))).collect()
}

/// Returns the files on a circle of imports, or between two circles.
fn circles(folder: &str, mut imports: BTreeMap<&str, BTreeMap<&str, usize>>) -> Vec<String> {
    loop {
        let files: BTreeSet<&str> = imports.keys().copied().collect();
        let imported: BTreeSet<&str> = imports.values().flat_map(|others| others.keys().copied()).collect();
        imports.retain(|file, others| {
            others.retain(|other, _| files.contains(other));
            imported.contains(file) && !others.is_empty()
        });
        if imports.len() == files.len() {
            return imports.iter().map(|(file, on)| format!("{folder}/{file} imports {:?}", on.keys())).collect();
        }
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut all = Vec::new();
    for own in crates() {
        all.extend(circles(&own.folder, imports(&own.sources)));
    }
    for (folder, ending, mark) in SCRIPTS {
        let texts: Vec<_> = texts(&[ending]).into_iter().filter(|(path, _)| path.starts_with(folder)).collect();
        let imports = imports_of_scripts(&texts, mark);
        assert!(imports.values().map(BTreeMap::len).sum::<usize>() > 30, "the imports of {folder} are not found");
        all.extend(circles(folder, imports));
    }
    assert!(all.is_empty(), "circles:\n{}", all.join("\n"));
}

#[test]
fn unsafe_stands_only_in_the_listed_folders() {
    fn has_unsafe(stream: TokenStream) -> bool {
        stream.into_iter().any(|token| match token {
            TokenTree::Group(group) => has_unsafe(group.stream()),
            TokenTree::Ident(ident) => ident == "unsafe",
            _ => false,
        })
    }
    for (folder, rooms) in [("src", &UNSAFE[..]), ("src/core", &[]), ("web/src", &[])] {
        let sources = sources(folder);
        let is_allowed = |path: &str| rooms.iter().any(|room| path.starts_with(room));
        let strays: Vec<&str> = sources
            .iter()
            .filter(|source| !is_allowed(&source.path) && has_unsafe(source.tokens()))
            .map(|source| &source.path[..])
            .collect();
        assert!(strays.is_empty(), "unsafe outside its rooms, in {folder}: {strays:?}");
    }
}

#[test]
fn files_are_short() {
    let texts = texts(&[".rs", ".py", ".js"]);
    let long: Vec<String> = texts
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(path, lines)| *lines > MAX_LINES && !LONG.contains(&&path[..]))
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "files of more than {MAX_LINES} lines:\n{}", long.join("\n"));
    for known in LONG {
        assert!(texts.iter().any(|(path, _)| path == known), "{known} is not there any more");
    }
}

#[test]
fn lines_are_short() {
    let is_long = |line: &str| line.chars().count() > MAX_COLUMNS;
    let mut long = Vec::new();
    let endings = [".rs", ".py", ".js", ".ts", ".css", ".sql", "Makefile"];
    // Shell scripts have no ending. Released scripts never change.
    let is_released = |path: &str| path.starts_with("sql/pg_queue") && path.matches("--").count() == 1;
    let is_measured = |path: &str, text: &str| {
        !is_released(path) && (text.starts_with("#!") || endings.iter().any(|end| path.ends_with(end)))
    };
    for (path, text) in texts(&[""]).into_iter().filter(|(path, text)| is_measured(path, text)) {
        let lines = text.lines().enumerate().filter(|(_, line)| is_long(line));
        long.extend(lines.map(|(n, _)| format!("{path}:{}", n + 1)));
    }
    assert!(long.is_empty(), "{} lines of more than {MAX_COLUMNS} characters:\n{}", long.len(), long.join("\n"));
}

#[test]
fn each_file_says_what_it_is_for() {
    for folder in PRODUCT {
        let sources = sources(folder);
        let silent: Vec<&str> =
            sources.iter().filter(|s| !s.text.starts_with("//!")).map(|source| &source.path[..]).collect();
        assert!(silent.is_empty(), "files of {folder} without a head: {silent:?}");
    }
}

/// A function of the product: its file and line, the type whose method it is, the number of its lines and arguments.
struct Function {
    file: String,
    line: usize,
    name: String,
    of: Option<String>,
    lines: usize,
    arguments: usize,
}

/// Returns the number of arguments between a signature's parentheses, without `self`. A comma between `<` and `>`
/// separates none.
fn arguments(stream: TokenStream) -> usize {
    let (mut count, mut depth, mut is_open, mut is_arrow, mut names_self) = (0, 0, false, false, false);
    for token in stream {
        let punct = if let TokenTree::Punct(punct) = &token { Some(punct.as_char()) } else { None };
        match punct {
            Some(',') if depth == 0 => is_open = false,
            Some('<') => depth += 1,
            // The `>` of `->` closes nothing.
            Some('>') if !is_arrow => depth -= 1,
            _ if !is_open => (count, is_open) = (count + 1, true),
            _ => {}
        }
        names_self |= count == 1 && matches!(&token, TokenTree::Ident(ident) if ident == "self");
        is_arrow = punct == Some('-');
    }
    count - usize::from(names_self)
}

/// Returns the type of an `impl`, which is the last name of its path, from the tokens between `impl` and the brace.
fn implemented(tokens: &[TokenTree]) -> Option<String> {
    let is = |token: &TokenTree, name: &str| matches!(token, TokenTree::Ident(ident) if ident == name);
    let (mut depth, mut is_arrow, mut last) = (0, false, None);
    for token in tokens {
        match token {
            TokenTree::Punct(punct) => {
                match punct.as_char() {
                    '<' => depth += 1,
                    '>' if !is_arrow => depth -= 1,
                    _ => {}
                }
                is_arrow = punct.as_char() == '-';
                continue;
            }
            _ if depth > 0 => {}
            _ if is(token, "where") => break,
            _ if is(token, "for") => last = None,
            TokenTree::Ident(ident) => last = Some(ident.to_string()),
            _ => {}
        }
        is_arrow = false;
    }
    last
}

/// Adds the functions of a file, without its tests. `of`: the type whose `impl` contains the tokens.
fn functions(file: &str, stream: TokenStream, of: Option<&str>, found: &mut Vec<Function>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut is_of_tests = false;
    let mut at = 0;
    while at < tokens.len() {
        let brace_from = |from: usize| {
            let ends = |token: &TokenTree| match token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => punct.as_char() == ';',
                _ => false,
            };
            tokens[from..].iter().position(ends).map_or(tokens.len() - 1, |nth| from + nth)
        };
        match &tokens[at] {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                let attribute = group.to_string().replace(' ', "");
                is_of_tests |= ["[cfg(test)]", "[test]"].contains(&&attribute[..]);
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => is_of_tests = false,
            TokenTree::Group(group) => functions(file, group.stream(), of, found),
            TokenTree::Ident(ident) if is_of_tests && ["fn", "mod", "impl"].contains(&&ident.to_string()[..]) => {
                at = brace_from(at);
                is_of_tests = false;
            }
            TokenTree::Ident(ident) if ident == "impl" => {
                let end = brace_from(at);
                if let TokenTree::Group(group) = &tokens[end] {
                    // The `impl` of a signature is followed by a trait and has no brace, because the code for `fn` has
                    // skipped the signature.
                    let of = implemented(&tokens[at + 1..end]);
                    functions(file, group.stream(), of.as_deref(), found);
                }
                at = end;
            }
            TokenTree::Ident(ident) if ident == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                    let end = brace_from(at);
                    let parentheses = tokens[at..end].iter().find_map(|token| match token {
                        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => Some(group),
                        _ => None,
                    });
                    let line = ident.span().start().line;
                    found.push(Function {
                        file: file.to_owned(),
                        line,
                        name: name.to_string(),
                        of: of.map(str::to_owned),
                        lines: tokens[end].span().end().line + 1 - line,
                        arguments: parentheses.map_or(0, |group| arguments(group.stream())),
                    });
                    // A function inside another one is no method.
                    if let TokenTree::Group(group) = &tokens[end] {
                        functions(file, group.stream(), None, found);
                    }
                    at = end;
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Returns the functions of a crate of the product.
fn functions_of(folder: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let is_test = |source: &Source| source.module.iter().any(|module| module == "tests");
    for source in sources(folder).iter().filter(|source| !is_test(source)) {
        functions(&format!("{folder}/{}", source.path), source.tokens(), None, &mut found);
    }
    found
}

#[test]
fn functions_are_short_and_have_few_arguments() {
    let mut long = Vec::new();
    let mut known: Vec<(&str, &str)> = KNOWN_LONG.to_vec();
    for function in PRODUCT.iter().flat_map(|folder| functions_of(folder)) {
        let Function { file, line, name, lines, arguments, .. } = &function;
        if *lines <= MAX_FUNCTION_LINES && *arguments <= MAX_ARGUMENTS {
            continue;
        }
        if KNOWN_LONG.contains(&(&file[..], &name[..])) {
            known.retain(|entry| *entry != (&file[..], &name[..]));
        } else {
            long.push(format!("{file}:{line} {name}: {lines} lines, {arguments} arguments"));
        }
    }
    let most = format!("more than {MAX_FUNCTION_LINES} lines or {MAX_ARGUMENTS} arguments");
    assert!(long.is_empty(), "functions of {most}:\n{}", long.join("\n"));
    assert!(known.is_empty(), "entries of KNOWN_LONG that are within the bounds: {known:?}");
}

#[test]
fn types_have_few_methods() {
    for folder in PRODUCT {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let functions = functions_of(folder);
        assert!(functions.len() > 20, "the functions of {folder} are not where they were");
        functions.into_iter().filter_map(|function| function.of).for_each(|of| *counts.entry(of).or_default() += 1);
        counts.retain(|_, count| *count > MAX_METHODS);
        assert!(counts.is_empty(), "types of {folder} with more than {MAX_METHODS} methods: {counts:?}");
    }
}

#[test]
fn functions_are_measured_correctly() {
    const CODE: &str = "
        #[cfg(test)]
        mod tests { fn left_out() {} }
        #[cfg(test)]
        use super::Slot;
        impl<T: Fn(u8) -> u8> Index<Slot<T>> for Slots<'_, T> where T: Copy {
            fn one(&self, map: Map<u8, u8>, then: impl Fn(u8, u8) -> u8,) -> impl Iterator<Item = u8> {
                fn within() {}
            }
        }
        #[test]
        fn left_out_too() {}
        extern \"C\" fn free(a: u8,
            b: (u8, u8)) {}
        trait Entry { fn declared(self: Box<Self>, other: u8); }";
    let mut found = Vec::new();
    functions("", TokenStream::from_str(CODE).unwrap(), None, &mut found);
    let found: Vec<_> = found.iter().map(|f| (&f.name[..], f.of.as_deref(), f.lines, f.arguments)).collect();
    assert_eq!(
        found,
        [("one", Some("Slots"), 3, 2), ("within", None, 1, 0), ("free", None, 2, 2), ("declared", None, 1, 1),]
    );
}
