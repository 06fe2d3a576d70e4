//! Reads functions and their arguments from the scripts that create them.
//!
//! Responsible for reading. Not responsible for the files that are made from them (`arguments`, `functions`,
//! `generate`).

/// A function or procedure.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name, without the schema.
    pub name: &'a str,
    /// Its arguments, in order.
    pub arguments: Vec<Argument<'a>>,
    /// The columns that it returns, if it names them.
    pub columns: Vec<Argument<'a>>,
    /// The type that it returns, with SETOF. Empty if the script names none.
    pub returns: &'a str,
    /// True for a procedure.
    pub is_procedure: bool,
}

/// An argument.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, as the script writes it.
    pub kind: &'a str,
    /// Its default value. `None` if the argument is required.
    pub default: Option<&'a str>,
    /// True for an output argument.
    pub is_answer: bool,
}

/// Returns the functions that a script creates in schema `queue`.
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

/// Returns the type that a function returns, and the columns if the type is a table. `rest`: the script after the
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

/// Returns the position of the parenthesis that closes the one before this text.
pub fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
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

/// Returns the arguments of a list, without the outputs.
pub fn arguments(list: &str) -> impl Iterator<Item = Argument<'_>> {
    parts(list).filter(|part| !part.starts_with("OUT ")).filter_map(argument)
}

fn argument(text: &str) -> Option<Argument<'_>> {
    // Comments may stand before and after the argument.
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
mod tests {
    use super::*;

    const SCRIPT: &str = "CREATE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0, delay interval DEFAULT NULL,
    unique_key text DEFAULT NULL,
    after bigint[] DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'x';
CREATE PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT '30 seconds',
INOUT has_jobs boolean DEFAULT NULL) LANGUAGE c;
CREATE FUNCTION queue.fail(id bigint, error text, cost numeric(3, 1) DEFAULT round(1.5)) RETURNS void;
CREATE FUNCTION queue_internal.kick() RETURNS void;";

    #[test]
    fn functions_are_those_of_the_script() {
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
    }
}
