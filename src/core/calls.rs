//! What a call that Postgres does not find may have meant: functions, arguments and views of schema `queue`, read from the script
//! that makes them.
//!
//! Responsible for the advice. Not responsible for when it is given (`worker::log_hook`).
//!
//! Invariant: advice names what there is. Where the call fits no guess there is none.

/// A function or procedure.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name, without the schema.
    pub name: &'a str,
    /// Its arguments, in order.
    pub arguments: Vec<Argument<'a>>,
}

/// An argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, as the script writes it.
    pub kind: &'a str,
    /// Whether it may be left out.
    pub is_optional: bool,
}

/// Reads the functions that a script makes in schema `queue`.
pub fn functions(script: &str) -> Vec<Function<'_>> {
    let makes = ["CREATE FUNCTION queue.", "CREATE PROCEDURE queue."];
    let mut found = Vec::new();
    for make in makes {
        for (at, _) in script.match_indices(make) {
            let rest = &script[at + make.len()..];
            let Some((name, rest)) = rest.split_once('(') else { continue };
            let Some(end) = closing(rest) else { continue };
            found.push(Function { name, arguments: parts(&rest[..end]).filter_map(argument).collect() });
        }
    }
    found
}

/// Reads the names of the views that a script makes in schema `queue`.
pub fn views(script: &str) -> Vec<&str> {
    let names = script.match_indices("CREATE VIEW queue.").map(|(at, make)| &script[at + make.len()..]);
    names.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()).collect()
}

/// Where the parenthesis ends that was opened before this text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

/// The parts between the commas of a list, without those within parentheses.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn argument(text: &str) -> Option<Argument<'_>> {
    let text = text.strip_prefix("INOUT ").unwrap_or(text);
    if text.starts_with("OUT ") {
        return None;
    }
    let (name, rest) = text.split_once(char::is_whitespace)?;
    let (kind, is_optional) = match rest.split_once(" DEFAULT ") {
        Some((kind, _)) => (kind, true),
        None => (rest, false),
    };
    Some(Argument { name, kind: kind.trim(), is_optional })
}

/// Returns which of these names is meant by one that is misspelt. `None`: it is like none of them.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let bare = |text: &str| text.to_lowercase().replace(['_', '-', ' '], "");
    let (wanted, most) = (bare(name), (name.chars().count() * 2 / 5).clamp(1, 3));
    let near = names.map(|known| (strsim::damerau_levenshtein(&wanted, &bare(known)), known));
    near.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Returns advice about a call that Postgres has not found, by its words: `queue.enqueue(unknown, delay => integer)`.
pub fn advice(call: &str, functions: &[Function<'_>]) -> Option<String> {
    let (name, given) = call.split_once('(')?;
    let (schema, name) = name.rsplit_once('.').map_or(("", name), |(schema, name)| (schema, name));
    if !["", "queue"].contains(&schema) {
        return None;
    }
    let Some(function) = functions.iter().find(|function| function.name == name) else {
        let meant = nearest(name, functions.iter().map(|function| function.name)).filter(|_| schema == "queue")?;
        return Some(format!("There is no function queue.{name}; there is queue.{meant}."));
    };
    if schema.is_empty() {
        return Some(format!("It is in schema queue: write queue.{name}(…)."));
    }
    let mut is_given = vec![false; function.arguments.len()];
    for (n, part) in parts(&given[..closing(given)?]).enumerate() {
        let (at, kind) = match part.split_once(" => ") {
            Some((name, kind)) => match function.arguments.iter().position(|argument| argument.name == name) {
                Some(at) => (at, kind),
                None => return Some(unknown(function, name)),
            },
            None => (n, part),
        };
        let Some(argument) = function.arguments.get(at) else {
            return Some(format!(
                "queue.{name} takes {} arguments at most: {}.",
                function.arguments.len(),
                list(function)
            ));
        };
        is_given[at] = true;
        if !fits(kind, argument.kind) {
            return Some(wrong(argument, kind));
        }
    }
    let missing =
        function.arguments.iter().zip(is_given).find(|(argument, is_given)| !argument.is_optional && !is_given);
    missing.map(|(argument, _)| {
        format!("queue.{name} needs {}, of type {}. Its arguments: {}.", argument.name, argument.kind, list(function))
    })
}

/// The arguments of a function, in a few words.
fn list(function: &Function<'_>) -> String {
    function.arguments.iter().map(|argument| argument.name).collect::<Vec<_>>().join(", ")
}

fn unknown(function: &Function<'_>, name: &str) -> String {
    let known = function.arguments.iter().map(|argument| argument.name);
    let other = match name {
        "limit" | "batch_size" | "count" | "qty" => "max_jobs",
        "timeout" | "poll" => "wait",
        "max_retries" | "retries" | "max_tries" => "max_attempts",
        "visibility_timeout" | "vt" => "lease",
        "key" | "dedup_key" | "deduplication_id" => "unique_key",
        "scheduled_at" | "start_after" | "at" | "eta" => "run_at",
        "data" | "args" | "body" | "message" | "msg" => "payload",
        _ => "",
    };
    let other = known.clone().find(|known| *known == other).or_else(|| nearest(name, known));
    match other {
        Some(other) => format!("queue.{} has no argument {name}; it has {other}.", function.name),
        None => format!("queue.{} has no argument {name}. It has: {}.", function.name, list(function)),
    }
}

/// Whether Postgres takes a value of a type for an argument of another one.
fn fits(given: &str, wanted: &str) -> bool {
    let is_text = |kind: &str| ["text", "character varying", "character", "name", "\"char\""].contains(&kind);
    given == "unknown"
        || given == wanted
        || is_text(given) && wanted == "text"
        || matches!((given, wanted), ("smallint", "integer" | "bigint") | ("integer", "bigint"))
        || matches!((given, wanted), ("smallint" | "integer" | "bigint" | "numeric" | "real", "float8"))
        || matches!((given, wanted), ("double precision", "float8") | ("timestamp with time zone", "timestamptz"))
        || matches!((given, wanted), ("timestamp without time zone" | "date", "timestamptz"))
        || matches!((given, wanted), ("time without time zone", "interval"))
}

fn wrong(argument: &Argument<'_>, given: &str) -> String {
    let Argument { name, kind, .. } = argument;
    match *kind {
        "interval" => format!("{name} is an interval, not {given}: write '30 seconds', or make_interval(secs => 30)."),
        "jsonb" if given == "json" || given == "text" => format!("{name} is jsonb, not {given}: add ::jsonb."),
        "jsonb" => format!("{name} is jsonb, not {given}: write to_jsonb(…), or a text such as '{{\"to\": 7}}'."),
        "timestamptz" => {
            format!("{name} is a timestamptz, not {given}: write now() + interval '1 hour', or add ::timestamptz.")
        }
        kind if kind.ends_with("[]") && !given.ends_with("[]") => {
            format!("{name} is an array, {kind}: write ARRAY[…].")
        }
        kind => format!("{name} is of type {kind}, not {given}: add ::{kind}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "CREATE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, delay interval DEFAULT NULL, unique_key text DEFAULT NULL,
    after bigint[] DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'x';
CREATE PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT '30 seconds', INOUT has_jobs boolean DEFAULT NULL) LANGUAGE c;
CREATE FUNCTION queue.fail(id bigint, error text, cost numeric(3, 1) DEFAULT round(1.5)) RETURNS void;
CREATE FUNCTION queue_internal.kick() RETURNS void;
CREATE VIEW queue.jobs AS SELECT 1; CREATE VIEW queue.queues WITH (security_barrier) AS SELECT 1;";

    fn advise(call: &str) -> String {
        advice(call, &functions(SCRIPT)).unwrap_or_default()
    }

    #[test]
    fn functions_and_views_are_those_of_the_script() {
        let all = functions(SCRIPT);
        assert_eq!(all.iter().map(|f| f.name).collect::<Vec<_>>(), ["enqueue", "fail", "wait"]);
        assert_eq!(all[0].arguments.len(), 6);
        assert_eq!(all[1].arguments[2], Argument { name: "cost", kind: "numeric(3, 1)", is_optional: true });
        assert_eq!(all[2].arguments[2].name, "has_jobs");
        assert_eq!(views(SCRIPT), ["jobs", "queues"]);
    }

    #[test]
    fn each_mistake_has_its_advice() {
        for (call, wanted) in [
            ("queue.enqueue(unknown, delay => integer)", "delay is an interval, not integer"),
            ("queue.enqueue(unknown, unknown, integer, integer)", "delay is an interval"),
            ("queue.enqueue(unknown, json)", "payload is jsonb, not json: add ::jsonb"),
            ("queue.enqueue(unknown, integer)", "to_jsonb"),
            ("queue.enqueue(unknown, after => integer)", "after is an array, bigint[]: write ARRAY[…]"),
            ("queue.enqueue(unknown, uniquekey => unknown)", "it has unique_key"),
            ("queue.enqueue(unknown, key => unknown)", "it has unique_key"),
            ("queue.enqueue(unknown, colour => unknown)", "has no argument colour. It has: queue_name"),
            ("queue.enqueu(unknown)", "there is queue.enqueue"),
            ("enqueue(unknown)", "write queue.enqueue(…)"),
            ("queue.fail(integer)", "queue.fail needs error, of type text"),
            ("queue.fail(text, text)", "id is of type bigint, not text: add ::bigint"),
            ("queue.wait(unknown, unknown, boolean, integer)", "takes 3 arguments at most"),
        ] {
            assert!(advise(call).contains(wanted), "{call}: {}", advise(call));
        }
        for call in [
            "queue.enqueue(unknown, jsonb)",
            "other.enqueue(unknown)",
            "enqueuer(unknown)",
            "queue.zzzzzzzz()",
            "queue.enqueue",
        ] {
            assert_eq!(advise(call), "", "{call}");
        }
    }

    #[test]
    fn names_are_near_by_a_few_letters() {
        let names = ["emails", "reports", "video_encoding"];
        for (given, wanted) in
            [("email", "emails"), ("Emails", "emails"), ("emials", "emails"), ("video-encoding", "video_encoding")]
        {
            assert_eq!(nearest(given, names.into_iter()), Some(wanted));
        }
        assert_eq!(nearest("orders", names.into_iter()), None);
    }
}
