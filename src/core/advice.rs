//! Guesses what a statement that Postgres rejected meant: functions, arguments, views and columns of schema `queue`.
//!
//! Responsible for the advice. Not responsible for when it is given (`worker::log_hook`), for reading the script and
//! the statement (`calls`), nor for the names that other queue products use (`synonyms`).
//!
//! Invariant: advice names only functions, arguments, views and columns that exist. A call that fits no guess gets
//! none.

use crate::calls::{Argument, Function, Place, closing, columns, parts};
use crate::synonyms;

/// How to find the jobs for a verb for many.
const FIND_JOBS: &str = " queue.search finds ids: ARRAY(SELECT job_id FROM queue.search('q', states => '{dead}')).";

/// Returns advice about a literal that is no value of its argument's type.
pub fn on_literal(place: &Place<'_>, functions: &[Function<'_>]) -> Option<String> {
    let (function, argument) = argument_at(place, functions)?;
    let Argument { name, kind, .. } = argument;
    if kind.ends_with("[]") {
        let batch = function.arguments.iter().any(|argument| argument.name == "payloads");
        let more = if batch && *name == "payloads" { " queue.enqueue_batch takes one JSON array of jobs." } else { "" };
        let more = if *name == "job_ids" { FIND_JOBS } else { more };
        return Some(format!("{name} is an array, {kind}: write ARRAY[…]::{kind}.{more}"));
    }
    let other = function.arguments.iter().find_map(|other| match (other.name, other.kind) {
        ("cron", _) => Some("cron => '0 3 * * *'".to_owned()),
        ("key", _) => Some("key => 'order.created'".to_owned()),
        (name, "interval") => Some(format!("{name} => '10 minutes'")),
        _ => None,
    });
    let nth = |other: String| {
        format!(
            "Argument {} of queue.{} is {name}, of type {kind}. Write the name of the argument that you mean, \
                for instance {other}.",
            place.at + 1,
            function.name,
        )
    };
    // True for the payload, the second argument of most functions that have one.
    let is_usual = place.at == 1
        && function.arguments.iter().any(|argument| argument.name == "delay")
        && function.name != "publish";
    match (*kind, place.named) {
        ("jsonb", None) if !is_usual && other.is_some() => return other.map(nth),
        ("integer", None) if place.at > 0 => return Some(nth(other.unwrap_or_else(|| format!("{name} => 5")))),
        _ => {}
    }
    let example = match *kind {
        "jsonb" => {
            return Some(match *name {
                "jobs" | "tasks" => {
                    format!(
                        "{name} is jsonb: write an array of objects, '[{{\"payload\": {{\"to\": 7}}}}]', \
                            or to_jsonb(…)."
                    )
                }
                _ => format!("{name} is jsonb: write an object, '{{\"to\": 7}}', a string, '\"Ada\"', or to_jsonb(…)."),
            });
        }
        "interval" => "'30 seconds', or make_interval(secs => 30)",
        "timestamptz" => "now() + interval '10 minutes', or '2030-01-31 12:00+00'",
        "boolean" => "true or false",
        "integer" if *name == "priority" => "a whole number, such as 5; smaller ones run first",
        "integer" => "a whole number, such as 5",
        "float8" => "0.5",
        "bigint" if *name == "id" => "the column id of a row that queue.claim has returned",
        "bigint" if *name == "job_id" => "what queue.enqueue has returned, or the column job_id of a claim or a view",
        _ => return Some(format!("{name} is of type {kind}.")),
    };
    if place.named.is_none() && place.at > 1 {
        return Some(format!(
            "Argument {} of queue.{} is {name}, of type {kind}: write {example}.",
            place.at + 1,
            function.name
        ));
    }
    Some(format!("{name} is of type {kind}: write {example}."))
}

/// As `on_literal`, for the value of a parameter of the statement.
pub fn on_parameter(place: &Place<'_>, functions: &[Function<'_>]) -> Option<String> {
    let advice = on_literal(place, functions)?;
    let is_json = argument_at(place, functions).is_some_and(|(_, argument)| argument.kind == "jsonb");
    let more = if is_json { " A program passes JSON as text, made with JSON.stringify or json.dumps." } else { "" };
    Some(format!("{advice}{more}"))
}

/// Returns advice about a text that is no valid path.
pub fn on_path(place: &Place<'_>) -> Option<&'static str> {
    match place.function.strip_prefix("queue.")? {
        "bind" => Some(
            "Write a path into the event, for instance '$.payload.total > 1000'; it has topic, key, \
                headers and payload.",
        ),
        _ => Some(
            "Write a path into the job, for instance '$.payload.to == 7'; it has payload, state, error, \
                headers and more columns of \
             queue.jobs.",
        ),
    }
}

/// Returns advice about a name in a call that Postgres took for a column. `rest`: the statement, beginning at the name.
pub fn on_name(place: &Place<'_>, name: &str, rest: &str, functions: &[Function<'_>]) -> Option<String> {
    let function = place.function.strip_prefix("queue.")?;
    let function = functions.iter().find(|known| known.name == function)?;
    let after = rest.trim_start_matches('"').get(name.len()..)?.trim_start_matches('"').trim_start();
    if after.starts_with('=') || after.starts_with(":=") {
        return Some(match function.arguments.iter().any(|argument| argument.name == name) {
            true => format!("An argument is named with =>: write {name} => …."),
            false => unknown(function, name),
        });
    }
    Some(format!("If it is a text, write it in single quotes: '{}'.", name.replace('\'', "''")))
}

/// Returns advice about a column that does not exist, if the statement reads exactly one view or function of schema
/// `queue` and nothing else.
pub fn on_column(statement: &str, name: &str, script: &str, functions: &[Function<'_>]) -> Option<String> {
    let lower = statement.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if words.clone().filter(|word| *word == "from").count() != 1 || words.clone().any(|word| word == "join") {
        return None;
    }
    let source = statement[lower.find("from")? + 4..].trim_start().strip_prefix("queue.")?;
    let end = source.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(source.len());
    let (source, rest) = source.split_at(end);
    let rest = rest.strip_prefix('(').map_or(rest, |rest| closing(rest).map_or("", |end| &rest[end + 1..]));
    if rest.trim_start().starts_with(',') {
        return None;
    }
    let function = functions.iter().find(|function| function.name == source);
    let row = function.and_then(|function| function.returns.strip_prefix("SETOF queue."));
    let mut has = columns(script, row.unwrap_or(source));
    if has.is_empty() {
        has = function.map(|function| function.columns.iter().map(|column| column.name).collect()).unwrap_or_default();
    }
    if has.is_empty() || has.contains(&name) {
        return None;
    }
    let meant = synonyms::column(name, &has).or_else(|| nearest(name, has.iter().copied()));
    Some(match meant {
        Some(meant) => format!("queue.{source} has no column {name}; it has {meant}."),
        None => format!("queue.{source} has no column {name}. It has: {}.", has.join(", ")),
    })
}

/// Returns advice about a word at which the parser stopped. Either the word is a keyword of SQL, as in `limit => 3`, or
/// a comma is missing before it.
pub fn on_word(place: &Place<'_>, word: &str, functions: &[Function<'_>]) -> Option<String> {
    let name = place.function.strip_prefix("queue.")?;
    let function = functions.iter().find(|function| function.name == name)?;
    let word = word.to_lowercase();
    Some(match function.arguments.iter().any(|argument| argument.name == word) {
        true => format!("A comma is missing before {word} => …."),
        false => unknown(function, &word),
    })
}

/// Returns the function and the argument in which a place lies.
fn argument_at<'a>(place: &Place<'_>, functions: &'a [Function<'a>]) -> Option<(&'a Function<'a>, &'a Argument<'a>)> {
    let name = place.function.strip_prefix("queue.")?;
    let function = functions.iter().find(|function| function.name == name)?;
    let argument = match place.named {
        Some(name) => function.arguments.iter().find(|argument| argument.name == name),
        None => function.arguments.get(place.at),
    };
    argument.map(|argument| (function, argument))
}

/// A longer name, in bytes, resembles none. A comparison takes as many steps as the lengths of both multiplied.
const MAX_NAME: usize = 128;

/// Returns the name that a misspelt one most resembles. `None`: it resembles none of them.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_NAME {
        return None;
    }
    let bare = |text: &str| text.to_lowercase().replace(['_', '-', ' '], "");
    let (wanted, most) = (bare(name), (name.chars().count() * 2 / 5).clamp(1, 3));
    let near = names.map(|known| (strsim::damerau_levenshtein(&wanted, &bare(known)), known));
    near.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Returns advice about a call to a function that does not exist. `call` is in Postgres's words:
/// `queue.enqueue(unknown, delay => integer)`.
pub fn on_call(call: &str, functions: &[Function<'_>], views: &[&str]) -> Option<String> {
    let (name, given) = call.split_once('(')?;
    let (schema, name) = name.rsplit_once('.').map_or(("", name), |(schema, name)| (schema, name));
    if !["", "queue"].contains(&schema) {
        return None;
    }
    let Some(function) = functions.iter().find(|function| function.name == name) else {
        if schema.is_empty() {
            return None;
        }
        if views.contains(&name) {
            return Some(format!("queue.{name} is a view: SELECT * FROM queue.{name}."));
        }
        let near = nearest_function(name, functions);
        // The first word is the verb. This guess never suggests a function that removes jobs.
        let by_verb = || {
            name.split('_')
                .next()
                .and_then(synonyms::function)
                .filter(|meant| near.is_none() && !synonyms::removes(meant))
        };
        if let Some(meant) = synonyms::function(name).or_else(by_verb) {
            return Some(format!("There is no function queue.{name}; use {meant}."));
        }
        let is_word = |known: &&str| name.split('_').any(|word| word == *known);
        let meant = near.or_else(|| functions.iter().map(|function| function.name).find(is_word));
        let meant =
            meant.map_or_else(|| "psql's \\df queue.* lists all".to_owned(), |meant| format!("there is queue.{meant}"));
        return Some(format!("There is no function queue.{name}; {meant}."));
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
            if function.arguments.is_empty() {
                return Some(format!("queue.{name} takes no arguments."));
            }
            return Some(format!(
                "queue.{name} takes {} arguments at most: {}.",
                function.arguments.len(),
                list(function)
            ));
        };
        if is_given[at] {
            return Some(format!("{} is given twice: by its place and by its name.", argument.name));
        }
        is_given[at] = true;
        if !fits(kind, argument.kind) {
            let advice = wrong(function, argument, kind);
            let is_named = part.contains(" => ");
            let is_plain = argument.kind == "jsonb" && ["json", "text"].contains(&kind);
            return Some(if is_named || is_plain {
                advice
            } else {
                format!("{advice} {}", in_order(function, at, kind))
            });
        }
    }
    let missing =
        function.arguments.iter().zip(is_given).find(|(argument, is_given)| argument.default.is_none() && !is_given);
    missing.map(|(argument, _)| {
        let more = if argument.name == "job_ids" { FIND_JOBS } else { "" };
        format!(
            "queue.{name} needs {}, of type {}. Its arguments: {}.{more}",
            argument.name,
            argument.kind,
            list(function)
        )
    })
}

/// Returns the function that is meant by a misspelt, shortened or lengthened name. The resemblance must be close: a
/// similar name may mean the opposite.
fn nearest_function<'a>(name: &str, functions: &[Function<'a>]) -> Option<&'a str> {
    let names = || functions.iter().map(|function| function.name);
    let begins = |known: &&str| name.strip_prefix(known).is_some_and(|rest| rest.starts_with('_'));
    let goes_on = |known: &&str| name.len() >= 4 && known.starts_with(name);
    let is_close = |known: &&str| {
        strsim::damerau_levenshtein(name, known) <= (name.chars().count() / 4).clamp(1, 2)
            && known.get(..1) == name.get(..1)
    };
    let is_next = |known: &&str| strsim::damerau_levenshtein(name, known) == 1 && known.get(..1) == name.get(..1);
    let spelt = || nearest(name, names()).filter(is_close);
    names().find(is_next).or_else(|| names().find(goes_on)).or_else(|| names().find(begins)).or_else(spelt)
}

/// Returns the names of a function's arguments.
fn list(function: &Function<'_>) -> String {
    function.arguments.iter().map(|argument| argument.name).collect::<Vec<_>>().join(", ")
}

fn unknown(function: &Function<'_>, name: &str) -> String {
    let known: Vec<&str> = function.arguments.iter().map(|argument| argument.name).collect();
    let begins = |known: &&str| {
        known.strip_prefix(name).is_some_and(|rest| rest.starts_with('_') || name.len() >= 4)
            || name.strip_prefix(known).is_some_and(|rest| rest.starts_with('_'))
    };
    let other = synonyms::argument(name, &known).or_else(|| known.iter().copied().find(begins));
    let Some(other) = other.or_else(|| nearest(name, known.iter().copied())) else {
        if let Some(instead) = synonyms::instead(name) {
            return format!("queue.{} has no argument {name}. {instead}", function.name);
        }
        return format!("queue.{} has no argument {name}. It has: {}.", function.name, list(function));
    };
    let more = if other == "id" { ", the column id of a claim" } else { "" };
    format!("queue.{} has no argument {name}; it has {other}{more}.", function.name)
}

/// Says in which order the arguments come, up to `at`, and for which of them a value of this type may be meant.
fn in_order(function: &Function<'_>, at: usize, given: &str) -> String {
    let names: Vec<&str> = function.arguments.iter().take(at + 2).map(|argument| argument.name).collect();
    let more = if names.len() < function.arguments.len() { " and so on" } else { "" };
    let is_meant = |argument: &&Argument<'_>| {
        ["interval", "timestamptz", "boolean"].contains(&argument.kind) && fits(given, argument.kind)
    };
    let meant = function.arguments.iter().skip(at).find(is_meant);
    let meant = meant.map(|argument| format!(" To give {} write {} => ….", argument.name, argument.name));
    format!("In order the arguments are {}{more}.{}", names.join(", "), meant.unwrap_or_default())
}

/// True if Postgres accepts a value of type `given` for an argument of type `wanted`.
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

fn wrong(function: &Function<'_>, argument: &Argument<'_>, given: &str) -> String {
    let Argument { name, kind, .. } = argument;
    match *kind {
        "interval"
            if given.starts_with("timestamp") && function.arguments.iter().any(|other| other.name == "run_at") =>
        {
            format!("{name} is an interval, not {given}: for a point in time use run_at.")
        }
        "interval" => format!("{name} is an interval, not {given}: write '30 seconds', or make_interval(secs => 30)."),
        "jsonb" if given == "json" || given == "text" => format!("{name} is jsonb, not {given}: add ::jsonb."),
        "jsonb" => format!("{name} is jsonb, not {given}: write to_jsonb(…), or a text such as '{{\"to\": 7}}'."),
        "timestamptz" => {
            format!("{name} is a timestamptz, not {given}: write now() + interval '1 hour', or add ::timestamptz.")
        }
        kind if kind.ends_with("[]") && !given.ends_with("[]") => {
            format!("{name} is an array, {kind}: write ARRAY[…].")
        }
        kind if given.ends_with("[]") && !kind.ends_with("[]") => {
            let instead = match function.name {
                "claim" => "use queue.claim_any".to_owned(),
                verb @ ("complete" | "fail" | "release" | "extend") => format!("use queue.{verb}_many"),
                verb => match verb.strip_suffix("_many") {
                    Some(one) => format!("for jobs by their ids write SELECT queue.{one}(…) FROM unnest(…)"),
                    None => {
                        format!(
                            "call queue.{verb} for each element, for instance SELECT queue.{verb}(…) FROM unnest(…)"
                        )
                    }
                },
            };
            format!("{name} is one value, of type {kind}, not {given}: {instead}.")
        }
        "text" if given == "boolean" => format!("{name} is of type text, not boolean: write a text in single quotes."),
        kind if given == "interval" || given.starts_with("timestamp") => {
            format!("{name} is of type {kind}, not {given}.")
        }
        "integer" if given == "bigint" => {
            format!("{name} is of type integer: write a number from {} to {}.", i32::MIN, i32::MAX)
        }
        "integer" | "bigint" if given == "numeric" => {
            format!("{name} is of type {kind}: write a whole number in its range.")
        }
        kind => format!("{name} is of type {kind}, not {given}: add ::{kind}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::tests::SCRIPT;
    use crate::calls::{functions, views};

    fn advise(call: &str) -> String {
        on_call(call, &functions(SCRIPT), &views(SCRIPT)).unwrap_or_default()
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
            ("queue.jobs(unknown)", "SELECT * FROM queue.jobs"),
            ("queue.send(unknown)", "use queue.enqueue"),
            ("queue.zzzzzzzz()", "There is no function queue.zzzzzzzz; psql's \\df queue.* lists all."),
            ("queue.waist(unknown)", "there is queue.wait"),
            ("queue.bulk_enqueue(unknown)", "use queue.enqueue_many"),
            ("queue.ack_job(unknown)", "use queue.complete"),
            ("queue.is_empty(unknown)", "use view queue.stats"),
            ("queue.truncate_it(unknown)", "lists all"),
            ("queue.truncate(unknown)", "use queue.purge"),
            ("queue.enqueue(unknown, prio => integer)", "it has priority"),
            ("queue.enqueue(unknown, delay_for => integer)", "it has delay"),
            ("queue.enqueue(unknown, queue_name => unknown)", "queue_name is given twice"),
            ("queue.enqueue_now(unknown)", "there is queue.enqueue"),
            ("queue.mail(unknown)", "lists all"),
            (
                "queue.enqueue(unknown, callback => unknown)",
                "has no argument callback. Enqueue the job that follows with after",
            ),
            ("queue.enqueue(unknown, countdown => integer)", "it has delay"),
            ("queue.fail(job_id => integer)", "it has id, the column id of a claim"),
            ("queue.fail(bigint[], text)", "use queue.fail_many"),
            ("queue.wait(text[])", "FROM unnest(…)"),
            (
                "queue.wait(boolean)",
                "write a text in single quotes. In order the arguments are queue_name, timeout and so on.",
            ),
            (
                "queue.enqueue(unknown, unknown, interval)",
                "queue_name, payload, priority, delay and so on. To give delay write delay => ….",
            ),
            ("queue.fail(unknown, integer)", "In order the arguments are id, error, cost."),
        ] {
            assert!(advise(call).contains(wanted), "{call}: {}", advise(call));
        }
        for call in ["queue.enqueue(unknown, jsonb)", "other.enqueue(unknown)", "enqueuer(unknown)", "queue.enqueue"] {
            assert_eq!(advise(call), "", "{call}");
        }
    }

    #[test]
    fn literals_and_words_have_their_advice() {
        let all = functions(SCRIPT);
        let advise = |at, named| on_literal(&Place { function: "queue.enqueue", at, named }, &all).unwrap();
        assert!(advise(2, None).contains("Argument 3 of queue.enqueue is priority"), "{}", advise(2, None));
        assert!(advise(2, None).contains("delay => '10 minutes'"));
        assert!(advise(1, None).contains("payload is jsonb"));
        assert!(advise(1, Some("after")).contains("after is an array, bigint[]"));
        assert_eq!(on_literal(&Place { function: "other.enqueue", at: 0, named: None }, &all), None);
        assert_eq!(on_literal(&Place { function: "queue.enqueue", at: 99, named: None }, &all), None);
        let place = Place { function: "queue.enqueue", at: 1, named: None };
        assert!(on_word(&place, "delay", &all).unwrap().contains("A comma is missing before delay"));
        assert!(on_name(&place, "delay", "delay = 1", &all).unwrap().contains("write delay => …"));
        assert!(on_name(&place, "dellay", "dellay = 1", &all).unwrap().contains("it has delay"));
        assert!(on_name(&place, "q's", "\"q's\")", &all).unwrap().contains("'q''s'"));
        assert!(on_word(&place, "GROUP", &all).unwrap().contains("has no argument group"));
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
