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
    /// The columns that it returns, if it names them.
    pub columns: Vec<Argument<'a>>,
    /// The type that it returns, with SETOF. Empty: it does not say.
    pub returns: &'a str,
    /// Whether it is a procedure.
    pub is_procedure: bool,
}

/// An argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, as the script writes it.
    pub kind: &'a str,
    /// Its value if it is left out. `None`: it is required.
    pub default: Option<&'a str>,
    /// Whether a CALL answers with it.
    pub is_answer: bool,
}

/// Reads the functions that a script makes in schema `queue`.
pub fn functions(script: &str) -> Vec<Function<'_>> {
    let makes = [("CREATE FUNCTION queue.", false), ("CREATE PROCEDURE queue.", true)];
    let mut found = Vec::new();
    for (make, is_procedure) in makes {
        for (at, _) in script.match_indices(make) {
            let rest = &script[at + make.len()..];
            let Some((name, rest)) = rest.split_once('(') else { continue };
            let Some(end) = closing(rest) else { continue };
            let (arguments, outputs): (Vec<_>, Vec<_>) =
                parts(&rest[..end]).partition(|part| !part.starts_with("OUT "));
            let (returns, table) = returned(&rest[end + 1..]);
            let columns = outputs.into_iter().filter_map(|part| part.strip_prefix("OUT ")).chain(parts(table));
            let columns = columns.filter_map(argument).collect();
            found.push(Function {
                name,
                arguments: arguments.into_iter().filter_map(argument).collect(),
                columns,
                returns,
                is_procedure,
            });
        }
    }
    found
}

/// Reads the names of the views that a script makes in schema `queue`.
pub fn views(script: &str) -> Vec<&str> {
    let names = script.match_indices("CREATE VIEW queue.").map(|(at, make)| &script[at + make.len()..]);
    names.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()).collect()
}

/// Returns where in a script the arguments of a function begin. `None`: the script makes no such function. For constants.
pub const fn arguments_of(script: &str, function: &str) -> Option<usize> {
    let (text, function) = (script.as_bytes(), function.as_bytes());
    let mut at = 0;
    while at < text.len() {
        // Most bytes are none of these; a constant is computed slowly.
        if text[at] != b'C' {
            at += 1;
            continue;
        }
        let name = if begins(text, at, b"CREATE FUNCTION queue.") {
            at + b"CREATE FUNCTION queue.".len()
        } else if begins(text, at, b"CREATE PROCEDURE queue.") {
            at + b"CREATE PROCEDURE queue.".len()
        } else {
            text.len()
        };
        let end = name + function.len();
        if end < text.len() && begins(text, name, function) && text[end] == b'(' {
            return Some(end + 1);
        }
        at += 1;
    }
    None
}

/// Returns which of a function's arguments has a name, from 0. `None`: it has none of that name. `list`: where they begin. For
/// constants.
pub const fn position(script: &str, list: usize, argument: &str) -> Option<usize> {
    position_in(script.as_bytes(), list, argument.as_bytes())
}

/// Whether a text has these bytes at a place.
const fn begins(text: &[u8], at: usize, wanted: &[u8]) -> bool {
    if text[at] != wanted[0] || at + wanted.len() > text.len() {
        return false;
    }
    let mut n = 0;
    while n < wanted.len() {
        if text[at + n] != wanted[n] {
            return false;
        }
        n += 1;
    }
    true
}

/// Which argument of a list has a name. `at`: where the list begins.
const fn position_in(text: &[u8], mut at: usize, argument: &[u8]) -> Option<usize> {
    let (mut n, mut depth, mut is_begin, mut in_quotes) = (0, 1, true, false);
    while at < text.len() && depth > 0 {
        let byte = text[at];
        if in_quotes {
            in_quotes = byte != b'\'';
        } else if is_begin && !byte.is_ascii_whitespace() {
            if begins(text, at, b"INOUT ") {
                at += b"INOUT ".len();
            }
            if begins(text, at, b"OUT ") {
                return None;
            }
            if begins(text, at, argument) && text[at + argument.len()].is_ascii_whitespace() {
                return Some(n);
            }
            is_begin = false;
            continue;
        } else {
            match byte {
                b'\'' => in_quotes = true,
                b'(' => depth += 1,
                b')' => depth -= 1,
                b',' if depth == 1 => (n, is_begin) = (n + 1, true),
                _ => {}
            }
        }
        at += 1;
    }
    None
}

/// The type that a function returns, and the columns of a table, from what follows its arguments.
fn returned(rest: &str) -> (&str, &str) {
    let Some(rest) = rest.trim_start().strip_prefix("RETURNS ") else { return ("", "") };
    if let Some(columns) = rest.strip_prefix("TABLE (") {
        return ("SETOF record", closing(columns).map_or("", |end| &columns[..end]));
    }
    let is_set = rest.starts_with("SETOF ");
    let mut spaces = rest.match_indices(char::is_whitespace).map(|(at, _)| at);
    let end = if is_set { spaces.nth(1) } else { spaces.next() };
    (rest[..end.unwrap_or(rest.len())].trim_end_matches(';'), "")
}

/// Where the parenthesis ends that was opened before this text.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

/// A place in a statement that lies in the arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The function's name, with its schema if it has one.
    pub function: &'a str,
    /// Which of the arguments, from 0.
    pub at: usize,
    /// The argument's name, if the call says it.
    pub named: Option<&'a str>,
}

/// Returns the innermost call in whose arguments a place lies. `place`: a byte of the statement.
pub fn enclosing(statement: &str, place: usize) -> Option<Place<'_>> {
    // Of each open parenthesis: the call's name, the number of the argument, where that begins.
    let mut open: Vec<(&str, usize, usize)> = Vec::new();
    let mut rest = statement.get(..place)?;
    while let Some(c) = rest.chars().next() {
        let at = place - rest.len();
        let after = &rest[c.len_utf8()..];
        let skip = |end: &str| after.find(end).map(|found| c.len_utf8() + found + end.len());
        let length = match c {
            '\'' | '"' => skip(&c.to_string()),
            '-' if after.starts_with('-') => skip("\n"),
            '/' if after.starts_with('*') => skip("*/"),
            _ => Some(c.len_utf8()),
        };
        match c {
            '(' => open.push((last_word(&statement[..at]), 0, at + 1)),
            ')' => _ = open.pop(),
            ',' => {
                if let Some(call) = open.last_mut() {
                    *call = (call.0, call.1 + 1, at + 1);
                }
            }
            _ => {}
        }
        rest = &rest[length?..];
    }
    let &(function, at, begin) = open.last()?;
    let named = statement[begin..place].split_once("=>").map(|(name, _)| name.trim());
    Some(Place { function, at, named }).filter(|place| !place.function.is_empty())
}

/// The word that a text ends with, with dots.
fn last_word(text: &str) -> &str {
    let text = text.trim_end();
    let begin = text.rfind(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).map_or(0, |at| at + 1);
    text.get(begin..).unwrap_or_default()
}

/// Returns the first function of schema `queue` that a statement names, and the first literal after it: a queue, as a rule.
pub fn first_call(statement: &str) -> Option<(&str, Option<String>)> {
    let rest = &statement[statement.find("queue.")? + "queue.".len()..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let literal = rest[end..].trim_start().strip_prefix('(').and_then(|rest| rest.trim_start().strip_prefix('\''));
    // A quote within is written twice.
    let read = |text: &str| text.replace("''", "\0").split_once('\'').map(|(name, _)| name.replace('\0', "'"));
    Some((&rest[..end], literal.and_then(read)))
}

/// Returns advice about a literal that is none of the type of its argument.
pub fn advice_on_literal(place: &Place<'_>, functions: &[Function<'_>]) -> Option<String> {
    let (function, argument) = argument_at(place, functions)?;
    let Argument { name, kind, .. } = argument;
    if kind.ends_with("[]") {
        let batch = function.arguments.iter().any(|argument| argument.name == "payloads");
        let more = if batch && *name == "payloads" { " queue.enqueue_batch takes one JSON array of jobs." } else { "" };
        return Some(format!("{name} is an array, {kind}: write ARRAY[…]::{kind}.{more}"));
    }
    if *kind == "jsonb" {
        return Some(format!(
            "{name} is jsonb: write an object, '{{\"to\": 7}}', a string, '\"Ada\"', or to_jsonb(…)."
        ));
    }
    Some(match place.named {
        Some(_) => format!("{name} is of type {kind}."),
        None => format!(
            "Argument {} of queue.{} is {name}, of type {kind}. Write the name of the argument that you mean, for instance {}.",
            place.at + 1,
            function.name,
            function
                .arguments
                .iter()
                .find(|argument| argument.kind == "interval")
                .map_or_else(|| format!("{name} => …"), |argument| format!("{} => '10 minutes'", argument.name)),
        ),
    })
}

/// Returns advice about a word that is no name of an argument because it is a word of SQL: `limit => 3`.
pub fn advice_on_word(place: &Place<'_>, word: &str, functions: &[Function<'_>]) -> Option<String> {
    let name = place.function.strip_prefix("queue.")?;
    functions.iter().find(|function| function.name == name).map(|function| unknown(function, &word.to_lowercase()))
}

/// The function and the argument that a place lies in.
fn argument_at<'a>(place: &Place<'_>, functions: &'a [Function<'a>]) -> Option<(&'a Function<'a>, &'a Argument<'a>)> {
    let name = place.function.strip_prefix("queue.")?;
    let function = functions.iter().find(|function| function.name == name)?;
    let argument = match place.named {
        Some(name) => function.arguments.iter().find(|argument| argument.name == name),
        None => function.arguments.get(place.at),
    };
    argument.map(|argument| (function, argument))
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
    let answer = text.strip_prefix("INOUT ");
    let (name, rest) = answer.unwrap_or(text).split_once(char::is_whitespace)?;
    let (kind, default) = match rest.split_once(" DEFAULT ") {
        Some((kind, default)) => (kind, Some(default)),
        None => (rest, None),
    };
    Some(Argument { name, kind: kind.trim(), default, is_answer: answer.is_some() })
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
        function.arguments.iter().zip(is_given).find(|(argument, is_given)| argument.default.is_none() && !is_given);
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
    let begins = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let other = known.clone().find(|known| *known == other || begins(known)).or_else(|| nearest(name, known));
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
        let cost = Argument { name: "cost", kind: "numeric(3, 1)", default: Some("round(1.5)"), is_answer: false };
        assert_eq!(all[1].arguments[2], cost);
        assert_eq!([all[0].returns, all[1].returns, all[2].returns], ["bigint", "void", ""]);
        assert!(all[2].arguments[2].is_answer && all[2].is_procedure && !all[0].is_procedure);
        let [table, out] = &functions(
            "CREATE FUNCTION queue.a() RETURNS TABLE (b text, c numeric(1, 2)) LANGUAGE c; CREATE FUNCTION queue.d(e text, OUT f text)\n  \
             RETURNS SETOF record LANGUAGE c;",
        )[..] else {
            panic!()
        };
        assert_eq!((table.returns, table.columns.len(), table.columns[1].kind), ("SETOF record", 2, "numeric(1, 2)"));
        assert_eq!((out.returns, out.columns[0].name, out.arguments.len()), ("SETOF record", "f", 1));
        assert_eq!(all[2].arguments[2].name, "has_jobs");
        assert_eq!(views(SCRIPT), ["jobs", "queues"]);
    }

    #[test]
    fn arguments_have_positions() {
        const ENQUEUE: usize = arguments_of(SCRIPT, "enqueue").unwrap();
        const AFTER: Option<usize> = position(SCRIPT, ENQUEUE, "after");
        assert_eq!(AFTER, Some(5));
        let at = |function, argument| position(SCRIPT, arguments_of(SCRIPT, function)?, argument);
        assert_eq!(at("enqueue", "queue_name"), Some(0));
        assert_eq!((at("wait", "timeout"), at("wait", "has_jobs"), at("fail", "cost")), (Some(1), Some(2), Some(2)));
        assert_eq!(
            (at("enqueue", "afte"), at("enqueu", "after"), at("kick", "a"), at("enqueue", "returns")),
            (None, None, None, None)
        );
        for function in functions(SCRIPT) {
            for (n, argument) in function.arguments.iter().enumerate() {
                assert_eq!(at(function.name, argument.name), Some(n));
            }
        }
        let out = "CREATE FUNCTION queue.f(a text DEFAULT ',(', OUT b int) RETURNS int;";
        let list = arguments_of(out, "f").unwrap();
        assert_eq!((position(out, list, "a"), position(out, list, "b")), (Some(0), None));
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
            ("queue.enqueue(unknown, unique => unknown)", "it has unique_key"),
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
    fn a_place_lies_in_the_innermost_call() {
        let place = |statement: &str| {
            let at = statement.find('^').unwrap();
            let statement = statement.replace('^', "");
            enclosing(&statement, at).map(|place| (place.function.to_owned(), place.at, place.named.map(str::to_owned)))
        };
        let is = |function: &str, at, named: Option<&str>| Some((function.to_owned(), at, named.map(str::to_owned)));
        for (statement, wanted) in [
            ("SELECT queue.enqueue('q', ^'x')", is("queue.enqueue", 1, None)),
            ("SELECT queue.enqueue('q', delay => ^'x')", is("queue.enqueue", 1, Some("delay"))),
            ("SELECT queue.enqueue ('a, (b', -- it's ( that\n round(1, 2), ^'x')", is("queue.enqueue", 2, None)),
            ("SELECT queue.enqueue(/* ' ( */ 'it''s', to_jsonb(1, ^'x'))", is("to_jsonb", 1, None)),
            ("SELECT queue.enqueue('ä', (^'x'))", None),
            ("SELECT ^1", None),
            ("SELECT 'open ( ^", None),
            ("SELECT a) , ^", None),
        ] {
            assert_eq!(place(statement), wanted, "{statement}");
        }
        assert_eq!(enclosing("short", 100), None);
    }

    #[test]
    fn literals_and_words_have_their_advice() {
        let all = functions(SCRIPT);
        let advise = |at, named| advice_on_literal(&Place { function: "queue.enqueue", at, named }, &all).unwrap();
        assert!(advise(2, None).contains("Argument 3 of queue.enqueue is priority"), "{}", advise(2, None));
        assert!(advise(2, None).contains("delay => '10 minutes'"));
        assert!(advise(1, None).contains("payload is jsonb"));
        assert!(advise(1, Some("after")).contains("after is an array, bigint[]"));
        assert_eq!(advice_on_literal(&Place { function: "other.enqueue", at: 0, named: None }, &all), None);
        assert_eq!(advice_on_literal(&Place { function: "queue.enqueue", at: 99, named: None }, &all), None);
        let place = Place { function: "queue.enqueue", at: 1, named: None };
        assert!(advice_on_word(&place, "GROUP", &all).unwrap().contains("has no argument group"));
        assert_eq!(first_call("SELECT queue.claim( 'mail', 2)"), Some(("claim", Some("mail".to_owned()))));
        assert_eq!(first_call("SELECT queue.claim('it''s')"), Some(("claim", Some("it's".to_owned()))));
        assert_eq!(first_call("SELECT * FROM queue.jobs WHERE a = 'b'"), Some(("jobs", None)));
        assert_eq!(first_call("SELECT 1"), None);
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
