//! The contenders that take turns: pg_queue with the settings that programs use, the floor below it, and the table that
//! articles recommend.

use std::fmt::Display;
use std::time::SystemTime;

use crate::contender::{Contender, Payload, Takes, Verbs};
use crate::error::Result;
use crate::options::Options;
use crate::server::Server;

/// Groups whose starts are counted together, all of them within the period of one second.
const RATED_GROUPS: u32 = 3_000;
/// Jobs that wait in the table of the articles.
const BACKLOG: i32 = 200_000;
/// Jobs that wait in a deep queue, or become due next year.
const MANY: usize = 1_000_000;

const DEFAULTS: &str = "if_not_exists => false";
const STRICT: &str = "strict_order => true";
const FAIR: &str = "fair_share => 'jobs'";
const COSTS: &str = "rate_limit => 1000000000, rate_cost => '$.headers.mark'";
const ONE_EACH: &str = "max_running_per_group => 1";
/// Returns the group of each job. The hundred jobs of a group follow each other, or a thousand groups take turns.
const HUNDREDS: &str = "nextval('numbers') / 100";
const MIXED: &str = "nextval('numbers') % 1000";
const UNKEPT: &str = "retention => '0', dead_retention => '0'";
/// With this number of rows, a segment fills up within a turn.
const TURNING: &str = "pg_queue.segment_rows = 100000\npg_queue.reclaim_delay = 0";
/// Segments so small that their number matters, and not their rows.
const TURNING_FAST: &str = "pg_queue.segment_rows = 5000\npg_queue.reclaim_delay = 0";

/// A segment is full after a thousand jobs, and is not emptied.
const SMALL: &str = "pg_queue.segment_rows = 1000\npg_queue.reclaim = off";

/// The name of a contender in results and in `--only`, and the function that sets it up.
type Named = (&'static str, fn(&Options) -> Result<Contender>);

/// All contenders. From `plain` to `strict-segments` each job carries a text of its own, as its group or in its
/// headers; no limit is ever reached. With `-hundreds` and `-mixed`, 1,000 groups of 100 jobs each wait: the jobs of a
/// group follow each other, or the groups take turns.
pub const ALL: [Named; 33] = [
    ("ours", |_| ours("", DEFAULTS)),
    ("ours-retention-0", |_| ours("", UNKEPT)),
    ("loop", |_| by("", DEFAULTS, Verbs::of(Takes::Next, QUEUE, &[OURS, include_str!("sql/ours-loop.sql")]))),
    ("floor", |_| floor()),
    ("articles", |_| backlog(false)),
    ("articles-index", |_| backlog(true)),
    ("still", |_| ours("pg_queue.reclaim = off", DEFAULTS)),
    ("turning", |_| ours(TURNING, DEFAULTS)),
    ("turning-retention-0", |_| ours(TURNING, UNKEPT)),
    ("turning-fast", |_| ours(TURNING_FAST, DEFAULTS)),
    ("turning-fast-retention-0", |_| ours(TURNING_FAST, UNKEPT)),
    ("shallow", |_| filled(1_000)),
    ("deep", |options| filled(options.scale(MANY, MANY / 5))),
    ("far", |options| with_far(options.scale(MANY, MANY / 5))),
    ("plain", |_| marking(DEFAULTS, "headers", None)),
    ("max-running", |_| marking("max_running => 10000", "headers", None)),
    ("rate-limit", |_| marking("rate_limit => 1000000000", "headers", None)),
    ("rate-cost", |_| marking(COSTS, "headers", None)),
    ("rate-per-group", |_| marking("rate_limit_per_group => 1000000000", "group_key", Some(RATED_GROUPS))),
    ("start-within", |_| marking("start_within => '1 day'", "headers", None)),
    ("groups", |_| marking(ONE_EACH, "group_key", None)),
    ("strict-order", |_| marking(STRICT, "group_key", None)),
    ("strict-segments", |_| in_all_segments()),
    ("fair-loud", |_| marking(FAIR, "group_key", Some(1))),
    ("fair-groups", |_| marking(FAIR, "group_key", Some(RATED_GROUPS))),
    ("plain-hundreds", |_| with_hundreds(DEFAULTS, "headers", HUNDREDS)),
    ("spread-hundreds", |_| in_the_order_of_turns()),
    ("groups-hundreds", |_| with_hundreds(ONE_EACH, "group_key", HUNDREDS)),
    ("strict-hundreds", |_| with_hundreds(STRICT, "group_key", HUNDREDS)),
    ("groups-mixed", |_| with_hundreds(ONE_EACH, "group_key", MIXED)),
    ("strict-mixed", |_| with_hundreds(STRICT, "group_key", MIXED)),
    ("fair-hundreds", |_| with_hundreds(FAIR, "group_key", HUNDREDS)),
    ("fair-mixed", |_| with_hundreds(FAIR, "group_key", MIXED)),
];

/// Sets a contender up.
pub fn set_up(name: &str, options: &Options) -> Result<Contender> {
    eprintln!("setting up {name}");
    let (_, set_up) = ALL.iter().find(|(other, _)| *other == name).ok_or_else(|| format!("no contender is {name}"))?;
    let contender = set_up(options)?;
    contender.server.settle();
    Ok(contender)
}

/// The queue of `ours`.
const QUEUE: &str = "bench";

/// The statements of `ours`, of a worker's loop, of the floor and of the table of the articles.
const OURS: &str = include_str!("sql/ours.sql");
pub const WORKER: &str = include_str!("sql/worker.sql");
const FLOOR: &str = include_str!("sql/floor.sql");
pub const ARTICLES: &str = include_str!("sql/articles.sql");

/// pg_queue with these settings, and a queue with these options, which are SQL such as `retention => '0'`.
fn ours(settings: &str, options: &str) -> Result<Contender> {
    by(settings, options, Verbs::of(Takes::Alone, QUEUE, &[OURS]))
}

fn by(settings: &str, options: &str, verbs: Verbs) -> Result<Contender> {
    Contender::new(Server::with_extension(settings)?, verbs.with("options", options))
}

/// pg_queue whose jobs carry a text in this option of `queue.enqueue`. Each job has its own text, or the next one of
/// `texts`.
fn marking(options: &str, option: &str, texts: Option<u32>) -> Result<Contender> {
    let number = texts.map_or("nextval('numbers')".to_owned(), |texts| format!("nextval('numbers') % {texts}"));
    marked("", options, option, &number)
}

/// pg_queue in strict order, with other jobs in all young segments.
fn in_all_segments() -> Result<Contender> {
    let strict = marked(SMALL, STRICT, "group_key", "nextval('numbers')")?;
    strict.server.execute_with(include_str!("sql/ours-segments.sql"), &[])?;
    Ok(strict)
}

/// pg_queue with a backlog of 1,000 groups of 100 jobs, or with as many texts instead of groups. `number`: the number
/// of a job's group.
fn with_hundreds(options: &str, option: &str, number: &str) -> Result<Contender> {
    filled_with_hundreds(marked("", options, option, number)?, option, &mark(option, number))
}

/// pg_queue without groups. Its jobs run in about the order in which such groups take turns: the first job of each
/// hundred, then the second of each, and so on. Groups take their turns in another order within a round. In each round
/// ten new hundreds begin.
fn in_the_order_of_turns() -> Result<Contender> {
    let turn = |numbers: &str| format!("(SELECT greatest(n / 100 - 1000, 0) / 10 + n % 100 FROM {numbers})");
    let value = turn("nextval('numbers') AS n") + "::integer";
    // A subquery without a reference to the row is evaluated once for all rows.
    let mark = turn("(SELECT nextval('numbers') AS n WHERE p IS NOT NULL) AS of_row");
    let verbs = Verbs::of(Takes::Alone, QUEUE, &[OURS, include_str!("sql/ours-marked.sql")]);
    let verbs = verbs.with("option", "priority").with("mark", &mark).with("value", &value);
    filled_with_hundreds(by("", DEFAULTS, verbs)?, "priority", &mark)
}

fn filled_with_hundreds(hundreds: Contender, option: &str, mark: &str) -> Result<Contender> {
    let values: [(&str, &dyn Display); 3] = [("payload", &Payload::new().sql()), ("option", &option), ("mark", &mark)];
    hundreds.server.execute_with(include_str!("sql/ours-hundreds.sql"), &values)?;
    Ok(hundreds)
}

/// pg_queue whose jobs carry a text with this number in this option of `queue.enqueue`.
fn marked(settings: &str, options: &str, option: &str, number: &str) -> Result<Contender> {
    let mark = mark(option, number);
    let verbs = Verbs::of(Takes::Alone, QUEUE, &[OURS, include_str!("sql/ours-marked.sql")]);
    by(settings, options, verbs.with("option", option).with("mark", &mark).with("value", &mark))
}

/// A text with this number, as a value of this option. Headers are an object.
fn mark(option: &str, number: &str) -> String {
    let text = format!("('n' || {number})");
    if option == "headers" { format!("jsonb_build_object('mark', {text})") } else { text }
}

/// pg_queue with this many waiting jobs.
fn filled(jobs: usize) -> Result<Contender> {
    let (ours, payload) = (ours("", DEFAULTS)?, Payload::new().sql());
    ours.server.execute_with(include_str!("sql/ours-filled.sql"), &[("jobs", &jobs), ("payload", &payload)])?;
    Ok(ours)
}

/// The floor: the three inserts that pg_queue makes for a job, on plain tables of the same shape, without the
/// extension.
fn floor() -> Result<Contender> {
    Contender::new(Server::plain(""), Verbs::of(Takes::Sent, "", &[FLOOR]))
}

/// The table of the articles without jobs.
///
/// Not tuned: the claim's limit is a parameter, as libraries send it, and the planner is free. For an unknown limit its
/// generic plan would join the whole table, so it plans each claim anew. Tuned: the limit is a constant, and only plans
/// by the index are allowed, so that one plan serves all claims and is the best.
fn articles(is_tuned: bool) -> Result<Contender> {
    let (tuned, limit) =
        if is_tuned { (include_str!("sql/articles-tuned.sql"), "{batch}") } else { ("", "$1::integer") };
    let verbs = Verbs::of(Takes::Alone, "", &[ARTICLES, tuned]).with("limit", limit).with("condition", "true");
    Contender::new(Server::plain(""), verbs.with("columns", "id, payload"))
}

/// The table of the articles with a backlog.
fn backlog(is_tuned: bool) -> Result<Contender> {
    let (articles, payload) = (articles(is_tuned)?, Payload::new().sql());
    articles
        .server
        .execute_with(include_str!("sql/articles-backlog.sql"), &[("jobs", &BACKLOG), ("payload", &payload)])?;
    Ok(articles)
}

/// A server with a queue in which this many jobs wait for next year.
fn with_far(jobs: usize) -> Result<Contender> {
    let ours = ours("", DEFAULTS)?;
    ours.server.execute_with(include_str!("sql/ours-far.sql"), &[("queue", &QUEUE), ("jobs", &jobs)])?;
    Ok(ours)
}

/// Microseconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}
