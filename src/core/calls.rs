//! Reads functions, arguments, views and columns of schema `queue` from the script that creates them, and finds the
//! calls in a statement.
//!
//! Responsible for reading. Not responsible for what a call may have meant (`advice`).

/// A function or procedure.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name, without the schema.
    pub name: &'a str,
    /// Its arguments, in order.
    pub arguments: Vec<Argument<'a>>,
    /// The columns that it returns, if it names them.
    pub columns: Vec<Argument<'a>>,
    /// The type that it returns, with SETOF. Empty: the script names none.
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
    /// Its default value. `None`: it is required.
    pub default: Option<&'a str>,
    /// Whether it is an output argument.
    pub is_answer: bool,
}

/// Reads the functions that a script creates in schema `queue`.
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

/// Reads the names of the views that a script creates in schema `queue`.
pub fn views(script: &str) -> Vec<&str> {
    let names = script.match_indices("CREATE VIEW queue.").map(|(at, make)| &script[at + make.len()..]);
    names.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()).collect()
}

/// Reads from the script the names of the columns of a view or of a function's result. Empty: the script names none.
pub fn columns<'a>(script: &'a str, name: &str) -> Vec<&'a str> {
    let comment = format!("COMMENT ON COLUMN queue.{name}.");
    let names = script.match_indices(&comment).map(|(at, made)| &script[at + made.len()..]);
    names.filter_map(|rest| rest.split_whitespace().next()).collect()
}

/// Returns the type that a function returns, and the columns if that is a table. `rest`: the script after the
/// arguments.
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

/// Returns where the parenthesis closes that was opened before this text.
pub fn closing(text: &str) -> Option<usize> {
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
    // For each open parenthesis the call's name, the argument's number, and where the argument begins.
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

/// Returns the word with which a text ends. Dots belong to words.
fn last_word(text: &str) -> &str {
    let text = text.trim_end();
    let begin = text.rfind(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.')).map_or(0, |at| at + 1);
    text.get(begin..).unwrap_or_default()
}

/// The arguments that name a queue or topic. The last one is an array.
const QUEUES: [&str; 3] = ["queue_name", "topic", "queue_names"];

/// Returns the first function or view of schema `queue` that a statement names. Also returns the queue or topic that
/// the call names, if that is a literal. Of several queues it returns the first.
pub fn first_call<'a>(statement: &'a str, functions: &[Function<'_>]) -> Option<(&'a str, Option<String>)> {
    let (name, value) = first_value(statement, functions)?;
    let value = value.map(|value| value.strip_prefix("ARRAY[").unwrap_or(value));
    let literal = value.and_then(|value| value.strip_prefix('\''));
    // A quote within a literal is written twice.
    let read = |text: &str| text.replace("''", "\0").split_once('\'').map(|(name, _)| name.replace('\0', "'"));
    let of_array = |text: String| match text.strip_prefix('{') {
        Some(list) => list.split(['}', ',']).next().unwrap_or_default().to_owned(),
        None => text,
    };
    Some((name, literal.and_then(read).map(of_array)))
}

/// Returns the number of the parameter that names the queue or topic of the first call. `None`: none does.
pub fn queue_parameter(statement: &str, functions: &[Function<'_>]) -> Option<usize> {
    let digits = first_value(statement, functions)?.1?.strip_prefix('$')?;
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

/// Returns the name of the first function or view of schema `queue`, and what the call gives as its queue or topic.
fn first_value<'a>(statement: &'a str, functions: &[Function<'_>]) -> Option<(&'a str, Option<&'a str>)> {
    let rest = &statement[statement.find("queue.")? + "queue.".len()..];
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let is_queue = |argument: &Argument<'_>| QUEUES.contains(&argument.name);
    let place =
        functions.iter().find(|function| function.name == name).and_then(|f| f.arguments.iter().position(is_queue));
    let given = rest.trim_start().strip_prefix('(').map(given).unwrap_or_default();
    let named = given.iter().find_map(|part| {
        part.split_once("=>").filter(|(name, _)| QUEUES.contains(&name.trim())).map(|(_, value)| value)
    });
    Some((name, named.or_else(|| given.get(place?).copied()).map(str::trim)))
}

/// Returns the arguments of a call as they are written. `text`: the statement after the opening parenthesis.
fn given(text: &str) -> Vec<&str> {
    let (mut found, mut depth, mut begin, mut is_quoted) = (Vec::new(), 0, 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' => depth += 1,
            ')' if depth == 0 => {
                found.push(&text[begin..at]);
                break;
            }
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// Returns the place in a call at which parameter `number` of a statement stands. `None`: it stands in no call to
/// schema `queue`.
pub fn place_of_parameter(statement: &str, number: usize) -> Option<Place<'_>> {
    let name = format!("${number}");
    let is_whole = |at: usize| !statement[at + name.len()..].starts_with(|c: char| c.is_ascii_digit());
    let places = statement.match_indices(&name).map(|(at, _)| at).filter(|&at| is_whole(at));
    places.filter_map(|at| enclosing(statement, at)).find(|place| place.function.starts_with("queue."))
}

/// Returns the word with which a text ends, the name before an arrow. `None`: the text does not end with a word.
pub fn word_before(text: &str) -> Option<&str> {
    Some(last_word(text)).filter(|word| !word.is_empty())
}

/// Returns the parts of a list between its commas. Commas within parentheses do not count.
pub fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

/// Reads the arguments of a list, without the outputs.
pub fn arguments(list: &str) -> impl Iterator<Item = Argument<'_>> {
    parts(list).filter(|part| !part.starts_with("OUT ")).filter_map(argument)
}

fn argument(text: &str) -> Option<Argument<'_>> {
    // There may be comments before it and behind it.
    let text = text.rsplit_once("make generate`\n").map_or(text, |(_, text)| text);
    let text = text.split_once("-- ").map_or(text, |(text, _)| text).trim();
    let answer = text.strip_prefix("INOUT ");
    let (name, rest) = answer.unwrap_or(text).trim_start_matches("VARIADIC ").split_once(char::is_whitespace)?;
    let (kind, default) = match rest.split_once(" DEFAULT ") {
        Some((kind, default)) => (kind, Some(default)),
        None => (rest, None),
    };
    Some(Argument { name, kind: kind.trim(), default, is_answer: answer.is_some() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub const SCRIPT: &str = "CREATE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, delay interval DEFAULT NULL,
    unique_key text DEFAULT NULL,
    after bigint[] DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'x';
CREATE PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT '30 seconds',
INOUT has_jobs boolean DEFAULT NULL) LANGUAGE c;
CREATE FUNCTION queue.fail(id bigint, error text, cost numeric(3, 1) DEFAULT round(1.5)) RETURNS void;
CREATE FUNCTION queue_internal.kick() RETURNS void;
CREATE VIEW queue.jobs AS SELECT 1; CREATE VIEW queue.queues WITH (security_barrier) AS SELECT 1;";

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
            "CREATE FUNCTION queue.a() RETURNS TABLE (b text, c numeric(1, 2)) LANGUAGE c; \
                CREATE FUNCTION queue.d(e text, OUT f text)\n  \
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
    fn the_first_call_has_its_queue() {
        let all = functions(SCRIPT);
        let first = |statement: &'static str| first_call(statement, &all);
        assert_eq!(first("SELECT queue.wait( 'mail', 2)"), Some(("wait", Some("mail".to_owned()))));
        assert_eq!(first("SELECT queue.wait('it''s (')"), Some(("wait", Some("it's (".to_owned()))));
        assert_eq!(
            first("SELECT queue.wait(timeout => f('a, b'), queue_name => 'c')"),
            Some(("wait", Some("c".to_owned())))
        );
        assert_eq!(first("SELECT queue.wait(a, 'b')"), Some(("wait", None)));
        assert_eq!(first("SELECT queue.fail(16, 'b')"), Some(("fail", None)));
        assert_eq!(first("SELECT * FROM queue.jobs WHERE a = 'b'"), Some(("jobs", None)));
        assert_eq!(first("SELECT 1"), None);
        assert_eq!(queue_parameter("SELECT queue.wait($12, 2)", &all), Some(12));
        assert_eq!(queue_parameter("SELECT queue.wait(timeout => $2, queue_name => $3::text)", &all), Some(3));
        assert_eq!(queue_parameter("SELECT queue.wait('mail', $1)", &all), None);
        let any = functions("CREATE FUNCTION queue.claim_any(queue_names text[], max_jobs integer) RETURNS void;");
        for given in ["ARRAY['a', 'b']", "'{a,b}'", "'{a}', 2"] {
            let statement = format!("SELECT * FROM queue.claim_any({given})");
            assert_eq!(first_call(&statement, &any), Some(("claim_any", Some("a".to_owned()))));
        }
    }
}
