//! The list of options of jobs and of queues, `sql/options.toml`, and the text that is generated from it in each
//! language.
//!
//! Responsible for the list, and for the text of each generated block. Not responsible for finding the blocks
//! (`blocks`).
//!
//! Invariant: this code names no single option.

use std::fmt::Write as _;

use eyre::{Result, WrapErr as _, eyre};
use serde::Deserialize;

use crate::files::{read, root};

/// The longest line of generated text.
const WIDTH: usize = 118;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    job: Vec<Job>,
    queue: Vec<Queue>,
}

/// An entry of the list.
#[derive(Deserialize)]
struct Job {
    name: String,
    kind: Kind,
    /// The default in SQL. `None` means NULL.
    default: Option<String>,
    range: Option<String>,
    null: String,
    says: String,
    #[serde(default)]
    values: Vec<String>,
    #[serde(default)]
    without: Vec<Use>,
    check: Option<String>,
}

type Queue = Job;

/// Calls and elements that take options of jobs.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Use {
    Enqueue,
    Publish,
    Flow,
    Task,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Integer,
    Count,
    Share,
    Flag,
    /// The id of a job.
    Id,
    Ids,
    Span,
    Time,
    Text,
    /// A text. Programs often have a number for it.
    Key,
    /// A text that is a name in this database or one of a few words.
    Word,
    Names,
    Json,
}

/// The types of a kind in each language.
struct Types {
    sql: &'static str,
    oid: &'static str,
    /// The type as which the server reads it from a job's options.
    rust: &'static str,
    python: &'static str,
    python_check: &'static str,
    node: &'static str,
    node_cast: &'static str,
    node_check: &'static str,
}

impl Kind {
    fn types(self) -> Types {
        let types = |sql, oid, rust, [python, python_check]: [_; 2], [node, node_cast, node_check]: [_; 3]| Types {
            sql,
            oid,
            rust,
            python,
            python_check,
            node,
            node_cast,
            node_check,
        };
        const NONE: [&str; 2] = [""; 2];
        const NEITHER: [&str; 3] = [""; 3];
        match self {
            Self::Integer => types("integer", "INT4OID", "i32", ["int", "integer"], ["number", "::integer", "integer"]),
            Self::Count => types("bigint", "INT8OID", "i64", NONE, NEITHER),
            Self::Share => types("float8", "FLOAT8OID", "", NONE, NEITHER),
            Self::Flag => types("boolean", "BOOLOID", "", NONE, NEITHER),
            Self::Id => types("bigint", "INT8OID", "i64", ["int", "integer"], ["number", "::bigint", "checks.id"]),
            Self::Ids => types(
                "bigint[]",
                "INT8ARRAYOID",
                "Ids",
                ["Iterable[int]", "job_ids"],
                ["readonly number[]", "::bigint[]", "checks.ids"],
            ),
            Self::Span => types(
                "interval",
                "INTERVALOID",
                "Interval",
                ["Duration", "interval"],
                ["Duration", "::text::interval", "interval"],
            ),
            Self::Time => types(
                "timestamptz",
                "TIMESTAMPTZOID",
                "Time",
                ["datetime", "moment"],
                ["Date | string", "::text::timestamptz", "time"],
            ),
            Self::Text => types("text", "TEXTOID", "Key", ["str", "text"], ["string", "::text", "text"]),
            Self::Key => {
                types("text", "TEXTOID", "Key", ["str", "text"], ["string | number | bigint", "::text", "checks.key"])
            }
            Self::Word => types("text", "TEXTOID", "Cow<'a, str>", ["str", "text"], ["string", "::text", "text"]),
            Self::Names => types("text[]", "TEXTARRAYOID", "", NONE, NEITHER),
            Self::Json => {
                types("jsonb", "JSONBOID", "Json", ["Any", "headers"], ["unknown", "::text::jsonb", "headers"])
            }
        }
    }
}

impl Options {
    pub fn read() -> Result<Self> {
        const FILE: &str = "sql/options.toml";
        toml::from_str(&read(&root().join(FILE))?).wrap_err(FILE)
    }

    /// Returns the options that this use takes.
    fn of(&self, used: Use) -> impl Iterator<Item = &Job> {
        self.job.iter().filter(move |option| !option.without.contains(&used))
    }

    /// Returns the text of the block with this name. `indent`: the indentation of its marks.
    pub fn block(&self, name: &str, indent: usize) -> Result<String> {
        let verb = |name: &str| match name {
            "enqueue" => Ok(Use::Enqueue),
            "publish" => Ok(Use::Publish),
            "flow" => Ok(Use::Flow),
            "task" => Ok(Use::Task),
            _ => Err(eyre!("{name} takes no options of jobs")),
        };
        if let Some(used) = name.strip_prefix("arguments of ") {
            let write =
                |option: &Job, default: &str| format!("{} {} DEFAULT {default}", option.name, option.kind.types().sql);
            return Ok(match used {
                "queue" => packed(indent, ",", self.queue.iter().map(|option| write(option, "NULL"))),
                used => packed(
                    indent,
                    ",",
                    self.of(verb(used)?).map(|option| write(option, option.default.as_deref().unwrap_or("NULL"))),
                ),
            });
        }
        if let Some(used) = name.strip_prefix("defaults of ") {
            let items = self.of(verb(used)?).map(|Job { name, kind, default, .. }| match default {
                Some(default) => {
                    let cast = if default.starts_with('\'') {
                        format!("::pg_catalog.{}", kind.types().sql)
                    } else {
                        String::new()
                    };
                    format!("{name} OPERATOR(pg_catalog.=) {default}{cast}")
                }
                None => format!("{name} IS NULL"),
            });
            return Ok(packed(indent, " AND", items));
        }
        if let Some(used) = name.strip_prefix("fields of ") {
            return Ok(packed(indent, ",", self.of(verb(used)?).map(|option| format!("'{0}', {0}", option.name))));
        }
        if let Some(used) = name.strip_prefix("names of ") {
            return Ok(packed(indent, ",", self.of(verb(used)?).map(|option| option.name.clone())));
        }
        let lines = match name {
            "options of jobs" => {
                self.job.iter().map(|option| format!("{}: {},", option.name, option.kind.types().rust)).collect()
            }
            "options of queues" => self.queue.iter().map(queue_row).collect::<Result<_>>()?,
            "jobs in words" => in_words(&self.job),
            "queues in words" => in_words(&self.queue),
            "options of jobs by language" => self.job.iter().flat_map(rust_client).collect(),
            "classes of options" => self.python_classes(),
            "checks of options" => self
                .job
                .iter()
                .filter(|option| option.kind != Kind::Json)
                .map(|option| format!("\"{}\": {},", option.name, option.kind.types().python_check))
                .collect(),
            "table of options" => self.job.iter().map(node_row).collect::<Vec<_>>(),
            "options that are not taken" => {
                [(Use::Publish, "publish"), (Use::Flow, "enqueue_flow"), (Use::Task, "task")]
                    .map(|(used, name)| format!("{name}: [{}],", self.not_of(used, "'", ", ")))
                    .to_vec()
            }
            "type of options" => self.job.iter().flat_map(|option| [comment(option), declaration(option)]).collect(),
            "types of further options" => self.further_types(),
            "options of a job" => table(&self.job),
            "options of a queue" => table(&self.queue),
            _ => return Err(eyre!("there is no block of this name")),
        };
        Ok(lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect())
    }

    /// Returns the options that this use does not take, with their names in Node.
    fn not_of(&self, used: Use, quote: &str, between: &str) -> String {
        let others = self.job.iter().filter(|option| option.without.contains(&used));
        others.map(|option| format!("{quote}{}{quote}", camel(&option.name))).collect::<Vec<_>>().join(between)
    }

    fn python_classes(&self) -> Vec<String> {
        // The name of a task is the first argument of its class, so it is not an option.
        let takes =
            |option: &Job, used: Use| !option.without.contains(&used) && (used != Use::Task || option.name != "task");
        let classes = [
            (Use::Enqueue, "Options", "queue.enqueue"),
            (Use::Flow, "FlowOptions", "queue.enqueue_flow"),
            (Use::Task, "TaskOptions", ""),
            (Use::Publish, "EventOptions", "queue.publish"),
        ];
        let is_shared = |option: &Job| classes.iter().all(|(used, ..)| takes(option, *used));
        let field = |option: &Job| {
            let kind = match &option.values[..] {
                [] => option.kind.types().python.to_owned(),
                values => {
                    format!("Literal[{}]", values.iter().map(|v| format!("\"{v}\"")).collect::<Vec<_>>().join(", "))
                }
            };
            let kind = if kind == "Any" { kind } else { format!("Optional[{kind}]") };
            [wrapped("    #: ", &plain(&option.says, str::to_owned)), format!("    {}: {kind}", option.name)]
        };
        let mut lines = vec!["class SharedOptions(TypedDict, total=False):".to_owned()];
        lines.push(
            "    \"\"\"What all of the following have. None means the default, as if the option were left out.\"\"\""
                .to_owned(),
        );
        lines.push(String::new());
        lines.extend(self.job.iter().filter(|option| is_shared(option)).flat_map(field));
        for (used, class, verb) in classes {
            let what = if verb.is_empty() { "a task".to_owned() } else { format!("`{verb}`") };
            lines.extend([String::new(), String::new(), format!("class {class}(SharedOptions, total=False):")]);
            lines.extend([format!("    \"\"\"The options of {what}.\"\"\""), String::new()]);
            lines.extend(self.job.iter().filter(|o| takes(o, used) && !is_shared(o)).flat_map(field));
        }
        lines
    }

    fn further_types(&self) -> Vec<String> {
        [(Use::Publish, "EventOptions"), (Use::Flow, "FlowOptions"), (Use::Task, "TaskOptions")]
            .map(|(used, name)| format!("type {name} = Omit<EnqueueOptions, {}>", self.not_of(used, "'", " | ")))
            .to_vec()
    }
}

/// Joins items with `between`, in as few lines as possible.
pub fn packed(indent: usize, between: &str, items: impl Iterator<Item = String>) -> String {
    let mut text = " ".repeat(indent);
    let mut width = indent;
    for (n, item) in items.enumerate() {
        if n > 0 {
            text += between;
            if width + 2 * between.len() + 1 + item.len() > WIDTH {
                let _ = write!(text, "\n{:indent$}", "");
                width = indent;
            } else {
                text.push(' ');
                width += between.len() + 1;
            }
        }
        width += item.len();
        text += &item;
    }
    text + "\n"
}

fn queue_row(option: &Queue) -> Result<String> {
    let Queue { name, kind, default, check, .. } = option;
    let check = check.as_ref().ok_or_else(|| eyre!("{name} has no check"))?;
    let default = default.as_deref().unwrap_or("NULL");
    Ok(format!("{name}: {} = \"{default}\", {check};", kind.types().oid))
}

fn rust_client(option: &Job) -> [String; 2] {
    let kind = match (option.kind, &option.values[..]) {
        (Kind::Word, [_, ..]) => camel_type(&option.name),
        (kind, _) => match kind {
            Kind::Integer => "i32",
            Kind::Id => "i64",
            Kind::Ids => "Ids",
            Kind::Span => "Duration",
            Kind::Time => "SystemTime",
            Kind::Json => "Value",
            _ => "String",
        }
        .to_owned(),
    };
    [wrapped("/// ", &plain(&option.says, str::to_owned)), format!("{}: {kind},", option.name)]
}

fn node_row(option: &Job) -> String {
    let Types { node_cast, node_check, .. } = option.kind.types();
    format!("{}: ['{}', '{node_cast}', {node_check}],", camel(&option.name), option.name)
}

fn comment(option: &Job) -> String {
    let text = plain(&option.says, camel);
    let line = format!("/** {text} */");
    if line.len() + 2 <= WIDTH { line } else { format!("/**\n{}\n   */", wrapped("   * ", &text)) }
}

fn declaration(option: &Job) -> String {
    let kind = match &option.values[..] {
        [] => option.kind.types().node.to_owned(),
        values => values.iter().map(|value| format!("'{value}'")).collect::<Vec<_>>().join(" | "),
    };
    let null = if kind == "unknown" { "" } else { " | null" };
    format!("{}?: {kind}{null}", camel(&option.name))
}

/// Returns the table of a page.
fn table(options: &[Job]) -> Vec<String> {
    let mut lines = vec!["|Argument|Range|Meaning|NULL|".to_owned(), "|---|---|---|---|".to_owned()];
    lines.extend(options.iter().map(|Job { name, range, values, says, null, .. }| {
        let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
        format!("|`{name}`|{}|{says}|{null}|", range.as_ref().unwrap_or(&values))
    }));
    lines
}

/// Returns a SQL literal that says what each option means.
fn in_words(options: &[Job]) -> Vec<String> {
    let mut lines = vec!["'".to_owned()];
    for Job { name, range, values, says, default, .. } in options {
        let values = if values.is_empty() { range.clone().unwrap_or_default() } else { values.join(", ") };
        let default = default.as_ref().map(|default| format!("default {}", default.replace('\'', "")));
        let facts: Vec<String> =
            [Some(values), default].into_iter().flatten().filter(|fact| !fact.is_empty()).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join("; ")) };
        let text = plain(&format!("{name}{facts}: {says}"), str::to_owned).replace('`', "").replace('\'', "''");
        lines.push(wrapped("", &text));
    }
    lines.push("'".to_owned());
    lines
}

/// Returns text in lines that each begin with `before`.
fn wrapped(before: &str, text: &str) -> String {
    let mut lines = vec![before.to_owned()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        if last.len() > before.len() && last.len() + 1 + word.len() > WIDTH - 4 {
            lines.push(format!("{before}{word}"));
        } else {
            *last += if last.len() > before.len() { " " } else { "" };
            *last += word;
        }
    }
    lines.join("\n")
}

/// Returns a sentence without links, with the options' names as in a language.
fn plain(says: &str, named: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    let mut rest = says;
    while let Some((before, link)) = rest.split_once('[') {
        let (shown, behind) = link.split_once("](").expect("a link");
        let (_, behind) = behind.split_once(')').expect("a link's end");
        // A link in parentheses only says where more is, so it is left out.
        match (before.strip_suffix(" ("), behind.strip_prefix(')')) {
            (Some(before), Some(behind)) => (text, rest) = (text + before, behind),
            _ => (text, rest) = (text + before + shown, behind),
        }
    }
    text += rest;
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 1 { format!("`{}`", named(part)) } else { part.to_owned() }).collect()
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
}

fn camel_type(name: &str) -> String {
    let name = camel(name);
    name[..1].to_uppercase() + &name[1..]
}
