//! Guesses what a call that Postgres rejected meant: a function, an argument, a type.
//!
//! Not responsible for when advice is given (`worker::log_hook`).
//!
//! Invariant: advice names only functions and arguments that exist. A call that fits no guess gets none.

/// A function that takes arguments.
pub struct Signature {
    /// Its name, without the schema.
    pub name: &'static str,
    /// How many of its first arguments have no default.
    pub required: usize,
    /// The names of its arguments, in order, each with its type.
    pub arguments: &'static [(&'static str, &'static str)],
}

/// Names of functions and arguments in other queues, and ours. The names are in lower case, without `_`.
const WORDS: &[(&str, &str)] = &[
    ("read receive receivemessage pop fetch dequeue poll", "queue.claim"),
    ("send sendmessage push add addjob insert applyasync performasync", "queue.enqueue"),
    ("ack archive done", "queue.complete"),
    ("setvt heartbeat touch", "queue.extend"),
    ("unpause", "queue.resume"),
    ("redrive retryall retrydead", "queue.retry_many(ARRAY(SELECT job_id FROM queue.search('q', states => '{dead}')))"),
    ("cron createschedule addschedule", "queue.schedule"),
    ("countdown delayseconds", "delay"),
    ("eta startafter scheduledat", "run_at"),
    ("limit batchsize qty", "max_jobs"),
    ("visibilitytimeout vt", "lease"),
    ("maxretries retries retrylimit", "max_attempts"),
    ("key jobkey singletonkey idempotencykey dedupid", "unique_key"),
    ("jobid msgid", "id"),
    ("data args message body", "payload"),
];

/// Returns what is ours for a name in other queues.
fn ours(name: &str) -> Option<&'static str> {
    let bare = name.to_lowercase().replace('_', "");
    WORDS.iter().find(|(names, _)| names.split(' ').any(|known| known == bare)).map(|(_, meant)| *meant)
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

/// Returns advice about a function of schema `queue` that does not exist. `functions`: those that do.
pub fn on_function(name: &str, functions: &[&'static str]) -> String {
    // A foreign word comes first: `dequeue` resembles `enqueue`.
    let meant = ours(name).filter(|meant| meant.starts_with("queue."));
    let meant = meant
        .map(str::to_owned)
        .or_else(|| nearest(name, functions.iter().copied()).map(|near| format!("queue.{near}")));
    let meant = meant.map_or_else(|| "psql's \\df queue.* lists all".to_owned(), |meant| format!("use {meant}"));
    format!("There is no function queue.{name}; {meant}.")
}

/// Returns advice about a call whose arguments do not fit. `given`: these in Postgres's words, such as
/// `unknown, delay => integer`.
pub fn on_arguments(function: &Signature, given: &str) -> Option<String> {
    let Signature { name, arguments, .. } = function;
    let mut is_given = vec![false; arguments.len()];
    for (n, part) in given.split(", ").filter(|part| !part.is_empty()).enumerate() {
        let (at, kind) = match part.split_once(" => ") {
            Some((name, kind)) => match arguments.iter().position(|(known, _)| *known == name) {
                Some(at) => (at, kind),
                None => return Some(on_argument(function, name)),
            },
            None => (n, part),
        };
        let Some((argument, wanted)) = arguments.get(at) else {
            let (count, list) = (arguments.len(), list(function));
            return Some(format!("queue.{name} takes {count} arguments at most: {list}."));
        };
        if std::mem::replace(&mut is_given[at], true) {
            return Some(format!("{argument} is given twice: by its place and by its name."));
        }
        if !fits(kind, wanted) {
            let order = format!(" In order its arguments are {}.", list(function));
            let order = if part.contains(" => ") { "" } else { &order };
            return Some(wrong(function, (argument, wanted), kind) + order);
        }
    }
    let missing = is_given.iter().take(function.required).position(|is_given| !is_given)?;
    let (argument, kind) = arguments[missing];
    Some(format!("queue.{name} needs {argument}, of type {kind}. Its arguments: {}.", list(function)))
}

/// Returns the names of a function's arguments.
fn list(function: &Signature) -> String {
    function.arguments.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Returns advice about an argument that a function does not have.
fn on_argument(function: &Signature, name: &str) -> String {
    let known: Vec<&str> = function.arguments.iter().map(|(name, _)| *name).collect();
    let meant = ours(name).filter(|meant| known.contains(meant));
    let text = format!("queue.{} has no argument {name}", function.name);
    match meant.or_else(|| nearest(name, known.into_iter())) {
        Some("id") => format!("{text}; it has id, the column id of a claim."),
        Some(meant) => format!("{text}; it has {meant}."),
        None => format!("{text}. It has: {}.", list(function)),
    }
}

/// True if Postgres accepts a value of type `given` for an argument of type `wanted`.
fn fits(given: &str, wanted: &str) -> bool {
    given == "unknown"
        || given == wanted
        || match wanted {
            "text" => ["character varying", "character", "name"].contains(&given),
            "bigint" => ["smallint", "integer"].contains(&given),
            "float8" => ["smallint", "integer", "bigint", "numeric", "real", "double precision"].contains(&given),
            "timestamptz" => given.starts_with("timestamp") || given == "date",
            _ => wanted.is_empty(),
        }
}

fn wrong(function: &Signature, (name, kind): (&str, &str), given: &str) -> String {
    let has = |wanted: &str| function.arguments.iter().any(|(name, _)| *name == wanted);
    match kind {
        "interval" if given.starts_with("timestamp") && has("run_at") => {
            format!("{name} is an interval, not {given}: for a point in time use run_at.")
        }
        "interval" => format!("{name} is an interval, not {given}: write '30 seconds', or make_interval(secs => 30)."),
        "jsonb" if ["json", "text"].contains(&given) => format!("{name} is jsonb, not {given}: add ::jsonb."),
        "jsonb" => format!("{name} is jsonb, not {given}: write to_jsonb(…), or a text such as '{{\"to\": 7}}'."),
        _ if kind.ends_with("[]") && !given.ends_with("[]") => {
            format!("{name} is an array, {kind}: write ARRAY[…].")
        }
        _ if given.ends_with("[]") && !kind.ends_with("[]") => {
            let instead = match function.name {
                "claim" => "use queue.claim_any".to_owned(),
                verb @ ("complete" | "fail" | "release" | "extend") => format!("use queue.{verb}_many"),
                verb => format!("write SELECT queue.{verb}(…) FROM unnest(…)"),
            };
            format!("{name} is one value, of type {kind}, not {given}: {instead}.")
        }
        "integer" => format!("{name} is of type integer: write a whole number from {} to {}.", i32::MIN, i32::MAX),
        _ => format!("{name} is of type {kind}, not {given}."),
    }
}
