//! Compares the declarations of Postgres in `src/pg/unbound.rs` with the headers of the server that
//! `PGRX_PG_CONFIG_PATH` names, or else of the first `pg_config` in the path. The file is translated to C, and a C
//! compiler compares it with the headers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use syn::{Expr, Fields, FnArg, ForeignItem, Item, Lit, Meta, ReturnType, Type};

const HEADERS: [&str; 8] = [
    "libpq/libpq.h",
    "libpq/libpq-be.h",
    "libpq/pqcomm.h",
    "miscadmin.h",
    "storage/lwlock.h",
    "utils/elog.h",
    "utils/pidfile.h",
    "utils/timeout.h",
];

/// Types that have another name in C, or none.
const EXPRESSIONS: [(&str, &str); 2] = [
    ("ADDIN_SHMEM_INIT_LOCK", "(char *) AddinShmemInitLock - (char *) MainLWLockArray) / sizeof(LWLockPadded"),
    ("FE_BE_WAIT_SET_SOCKET_POS", "FeBeWaitSetSocketPos"),
];

/// Writes a C declaration of this type and name. The name may be empty.
fn declared(kind: &Type, name: &str) -> String {
    match kind {
        Type::Path(path) => {
            let last = path.path.segments.last().expect("a type").ident.to_string();
            let known = match last.as_str() {
                "c_int" | "i32" => "int",
                "c_char" => "char",
                "u32" => "uint32",
                "usize" => "Size",
                other => other,
            };
            format!("{known} {name}")
        }
        Type::Ptr(pointer) if pointer.const_token.is_some() => {
            format!("const {}", declared(&pointer.elem, &format!("*{name}")))
        }
        Type::Ptr(pointer) => declared(&pointer.elem, &format!("*{name}")),
        Type::Array(array) => {
            let Expr::Lit(length) = &array.len else { panic!("the length of {name} is no number") };
            let Lit::Int(length) = &length.lit else { panic!("the length of {name} is no number") };
            declared(&array.elem, &format!("{name}[{length}]"))
        }
        Type::BareFn(function) => {
            let arguments: Vec<String> = function.inputs.iter().map(|argument| declared(&argument.ty, "")).collect();
            returned(&function.output, &format!("(*{name})({})", listed(arguments)))
        }
        _ => panic!("{name} has a type that this test does not know"),
    }
}

fn returned(output: &ReturnType, rest: &str) -> String {
    match output {
        ReturnType::Default => format!("void {rest}"),
        ReturnType::Type(_, kind) => declared(kind, rest),
    }
}

fn listed(arguments: Vec<String>) -> String {
    if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") }
}

/// Returns the C condition for a condition of Rust: `feature = "from17"` is a version number.
fn condition(meta: &Meta) -> String {
    match meta {
        Meta::NameValue(feature) => {
            let Expr::Lit(value) = &feature.value else { panic!("a feature is a text") };
            let Lit::Str(value) = &value.lit else { panic!("a feature is a text") };
            let value = value.value();
            let major = value.strip_prefix("from").unwrap_or_else(|| panic!("{value} is no from…"));
            format!("PG_VERSION_NUM >= {major}0000")
        }
        Meta::List(list) if list.path.is_ident("not") => {
            format!("!({})", condition(&list.parse_args().expect("one condition")))
        }
        _ => panic!("a condition that this test does not know"),
    }
}

/// Puts lines under the condition of these attributes.
fn under(attributes: &[syn::Attribute], lines: &str) -> String {
    let mut lines = lines.to_owned();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")) {
        let meta = attribute.parse_args().expect("a condition");
        lines = format!("#if {}\n{lines}#endif\n", condition(&meta));
    }
    lines
}

fn translated(file: &syn::File) -> String {
    // The fields of these libraries come after the declared ones. Their headers may not be installed.
    let mut text = "#include \"postgres.h\"\n#undef ENABLE_GSS\n#undef USE_SSL\n#undef USE_OPENSSL\n".to_owned();
    HEADERS.iter().for_each(|header| text += &format!("#include \"{header}\"\n"));
    // The array begins at address 0, so that the address of a lock in it is a constant.
    text += "#define MainLWLockArray ((LWLockPadded *) 0)\n";
    text += "#define SAME(a, b) _Static_assert(__builtin_types_compatible_p(__typeof__(a), __typeof__(b)), #b)\n";
    for item in &file.items {
        match item {
            Item::ForeignMod(block) => {
                for item in &block.items {
                    match item {
                        ForeignItem::Fn(function) => {
                            let name = &function.sig.ident;
                            let mut arguments: Vec<String> = Vec::new();
                            for argument in &function.sig.inputs {
                                let FnArg::Typed(argument) = argument else { panic!("{name} has a receiver") };
                                arguments.push(declared(&argument.ty, ""));
                            }
                            if function.sig.variadic.is_some() {
                                arguments.push("...".to_owned());
                            }
                            let ours = returned(&function.sig.output, &format!("(*our_{name})({})", listed(arguments)));
                            text += &under(&function.attrs, &format!("{ours};\nSAME(our_{name}, &{name});\n"));
                        }
                        ForeignItem::Static(variable) => {
                            let name = &variable.ident;
                            let ours = declared(&variable.ty, &format!("our_{name}"));
                            text += &under(&variable.attrs, &format!("{ours};\nSAME(our_{name}, {name});\n"));
                        }
                        _ => panic!("a declaration that this test does not know"),
                    }
                }
            }
            Item::Struct(structure) => {
                let Fields::Named(fields) = &structure.fields else { panic!("{} has no names", structure.ident) };
                let (name, mut ours, mut compared) = (&structure.ident, String::new(), String::new());
                for field in &fields.named {
                    let ident = field.ident.as_ref().expect("a name");
                    ours += &under(&field.attrs, &format!("  {};\n", declared(&field.ty, &ident.to_string())));
                    let line = format!(
                        "_Static_assert(offsetof(our_{name}, {ident}) == offsetof({name}, {ident}), \"{ident}\");\n\
                         _Static_assert(sizeof(((our_{name} *) 0)->{ident})\n\
                         == sizeof((({name} *) 0)->{ident}), \"{ident}\");\n"
                    );
                    compared += &under(&field.attrs, &line);
                }
                write!(text, "typedef struct\n{{\n{ours}}} our_{name};\n{compared}").expect("text");
            }
            Item::Type(alias) => {
                let (name, ours) = (&alias.ident, declared(&alias.ty, ""));
                writeln!(text, "_Static_assert(sizeof({name}) == sizeof({ours}), \"{name}\");").expect("text");
            }
            Item::Const(constant) => {
                let Expr::Lit(value) = &*constant.expr else { panic!("{} is no number", constant.ident) };
                let Lit::Int(value) = &value.lit else { panic!("{} is no number", constant.ident) };
                let name = constant.ident.to_string();
                let theirs = EXPRESSIONS.iter().find(|(known, _)| *known == name).map_or(&*name, |(_, theirs)| theirs);
                text += &under(&constant.attrs, &format!("_Static_assert(({theirs}) == {value}, \"{name}\");\n"));
            }
            Item::Use(_) => {}
            _ => panic!("an item that this test does not know"),
        }
    }
    text
}

/// Compares C with a server's headers. Returns the compiler's messages.
fn compared(text: &str) -> Result<(), String> {
    let pg_config = env::var("PGRX_PG_CONFIG_PATH").unwrap_or_else(|_| "pg_config".to_owned());
    let folder = Command::new(&pg_config).arg("--includedir-server").output().expect("pg_config runs");
    let folder = String::from_utf8(folder.stdout).expect("a path");
    assert!(Path::new(folder.trim()).join("postgres.h").exists(), "{pg_config} has no headers");
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{:x}.c", text.len()));
    fs::write(&source, text).expect("written");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-fsyntax-only", "-Werror", "-I", folder.trim()]).arg(&source);
    let output = command.output().expect("a C compiler");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn source() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/pg/unbound.rs")).expect("src/pg/unbound.rs")
}

fn parsed(text: &str) -> syn::File {
    syn::parse_file(text).expect("Rust")
}

#[test]
fn declarations_beside_the_bindings_match_the_headers() {
    if let Err(said) = compared(&translated(&parsed(&source()))) {
        panic!("src/pg/unbound.rs says something else than the headers:\n{said}");
    }
}

#[test]
fn a_wrong_declaration_is_found() {
    let wrong = [
        ("keep_indicator: bool", "keep_indicator: c_int", "&disable_timeout"),
        ("milliseconds: c_int", "milliseconds: c_int, more: c_int", "&enable_timeout_after"),
        ("STATEMENT_TIMEOUT: TimeoutId = 3", "STATEMENT_TIMEOUT: TimeoutId = 4", "STATEMENT_TIMEOUT"),
        ("ADDIN_SHMEM_INIT_LOCK: usize = 21", "ADDIN_SHMEM_INIT_LOCK: usize = 22", "ADDIN_SHMEM_INIT_LOCK"),
        ("pub noblock: bool,", "", "laddr"),
        ("pub remote_port: *mut c_char,", "pub remote_port: c_int,", "remote_port"),
        ("pub type ProtocolVersion = u32", "pub type ProtocolVersion = c_char", "ProtocolVersion"),
        ("FrontendProtocol: ProtocolVersion", "FrontendProtocol: c_int", "FrontendProtocol"),
    ];
    for (ours, other, name) in wrong {
        let text = source();
        assert_eq!(text.matches(ours).count(), 1, "{ours}");
        let said = compared(&translated(&parsed(&text.replace(ours, other)))).expect_err(other);
        assert!(said.contains(&format!("static assertion failed: \"{name}\"")), "{other}: {said}");
    }
}
