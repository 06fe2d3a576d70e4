//! The queues of the torture and the server's settings. Each queue stands for promises that the others do not have.

use queue_tests::random::Random;

/// How the jobs of a queue are made and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Priorities and delays, with order by priority and age.
    Plain,
    /// Groups with `strict_order`.
    Strict,
    /// `max_running`, `max_running_per_group` and `rate_limit_per_group`.
    Limited,
    /// `rate_limit`.
    Rated,
    /// Unique keys, reruns and versions.
    Keyed,
    /// Versions decide which contents are the newest.
    Versioned,
    /// Keys that stay taken for a time.
    Timed,
    /// `max_waiting`.
    Narrow,
    /// Stages, one of which comes and goes.
    Staged,
    /// Few attempts, and a dead letter queue.
    Mortal,
    /// A dead letter queue for the mortal jobs.
    Morgue,
    /// The queue keeps no ended jobs.
    Brief,
    /// The queue is dropped and created again.
    Coming,
    /// Schedules enqueue into the queue.
    Ticking,
    /// Jobs with predecessors.
    Chained,
    /// Flows and their members, and jobs that wait for jobs that they have made.
    Flowing,
    /// Jobs that must start in time, or expire.
    Hurried,
}

#[derive(Debug)]
pub struct Queue {
    pub name: &'static str,
    pub kind: Kind,
    pub options: &'static str,
    /// `max_running`, where there is one.
    pub limit: Option<usize>,
    /// `max_running_per_group`; 1 with `strict_order`.
    pub group_limit: Option<usize>,
    /// `rate_limit`, in `RATE_PERIOD`.
    pub rate: Option<usize>,
    /// `rate_limit_per_group`, in `RATE_PERIOD`.
    pub group_rate: Option<usize>,
    /// `max_waiting`.
    pub waiting: Option<usize>,
    /// Settings that a manager makes now and then. They raise no limit and shorten no lease, so checkers need not know
    /// when.
    pub changes: &'static [&'static str],
}

/// The topic of all events.
pub const TOPIC: &str = "events";

/// The keys of the events.
pub const KEYS: &[&str] = &["", "mail", "mail.big", "order.big", "order.small"];

/// A binding of the topic. The keys that its pattern matches are listed by hand, independently of the server.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    pub queue: &'static str,
    pattern: &'static str,
    pub keys: &'static [&'static str],
    options: &'static str,
    pub on_full: &'static str,
    /// True if it is never removed and matches with certainty.
    pub is_sure: bool,
}

impl Binding {
    /// Returns the statement that makes the binding.
    pub fn sql(&self) -> String {
        let Self { queue, pattern, options, on_full, .. } = self;
        format!("SELECT queue.bind('{TOPIC}', '{queue}', '{pattern}', on_full => '{on_full}'{options})")
    }
}

const fn binding(queue: &'static str, pattern: &'static str, keys: &'static [&'static str]) -> Binding {
    Binding { queue, pattern, keys, options: "", on_full: "keep", is_sure: true }
}

const BY_GROUP: &str = ", group_key => '$.payload.group'";

pub const BINDINGS: &[Binding] = &[
    binding("plain", "#", KEYS),
    Binding { options: BY_GROUP, ..binding("strict", "order.*", &["order.big", "order.small"]) },
    Binding { options: BY_GROUP, ..binding("limited", "*.big", &["mail.big", "order.big"]) },
    Binding {
        options: ", filter => '$.key starts with \"order\"'",
        ..binding("mortal", "#", &["order.big", "order.small"])
    },
    binding("brief", "#.big", &["mail.big", "order.big"]),
    Binding { on_full: "drop", is_sure: false, ..binding("narrow", "mail.#", &["mail", "mail.big"]) },
    Binding { is_sure: false, ..binding("staged", "*", &["", "mail"]) },
    Binding { is_sure: false, ..binding("coming", "order.#", &["order.big", "order.small"]) },
];

/// The `rate_period` of queues that have a rate, in microseconds.
pub const RATE_PERIOD: i64 = 500_000;

/// The stages of the queue that always has stages, with the last stage at the end.
pub const STAGES: [&str; 3] = ["pick", "pack", "send"];

const LEASES: &[&str] = &["lease => '3 s'", "lease => '4 s'"];

const fn queue(name: &'static str, kind: Kind, options: &'static str) -> Queue {
    Queue {
        name,
        kind,
        options,
        limit: None,
        group_limit: None,
        rate: None,
        group_rate: None,
        waiting: None,
        changes: LEASES,
    }
}

pub const QUEUES: &[Queue] = &[
    queue("plain", Kind::Plain, ""),
    Queue { group_limit: Some(1), ..queue("strict", Kind::Strict, "strict_order => true") },
    Queue {
        limit: Some(6),
        group_limit: Some(2),
        group_rate: Some(12),
        changes: &[
            "max_running => 6, max_running_per_group => 2",
            "max_running => 4, max_running_per_group => 2",
            "max_running => 6, max_running_per_group => 1",
            "rate_limit_per_group => 12",
            "rate_limit_per_group => 8",
            "fair_share => 'jobs'",
            "rate_cost => '$.payload.cost'",
            "reset => '{fair_share}'",
            "reset => '{rate_cost}'",
        ],
        ..queue(
            "limited",
            Kind::Limited,
            "max_running => 6, max_running_per_group => 2, rate_limit_per_group => 12, rate_period => '500 ms'",
        )
    },
    Queue {
        rate: Some(25),
        changes: &["rate_limit => 25", "rate_limit => 15", "rate_cost => '$.payload.cost'", "reset => '{rate_cost}'"],
        ..queue("rated", Kind::Rated, "rate_limit => 25, rate_period => '500 ms'")
    },
    queue("keyed", Kind::Keyed, ""),
    queue("versioned", Kind::Versioned, ""),
    queue("timed", Kind::Timed, ""),
    Queue {
        waiting: Some(8),
        changes: &["max_waiting => 8", "max_waiting => 5"],
        ..queue("narrow", Kind::Narrow, "max_waiting => 8")
    },
    Queue {
        limit: Some(8),
        changes: &[
            "stages => '{pick,pack,weigh,send}'",
            "stages => '{pick,pack,send}'",
            "stages => '{pack,pick,send}'",
        ],
        ..queue("staged", Kind::Staged, "stages => '{pick,pack,send}', max_running => 8")
    },
    queue("morgue", Kind::Morgue, ""),
    queue("mortal", Kind::Mortal, "max_attempts => 2, dead_letter => 'morgue'"),
    queue("brief", Kind::Brief, "retention => '0', dead_retention => '0'"),
    queue("coming", Kind::Coming, ""),
    queue("ticking", Kind::Ticking, ""),
    queue("chained", Kind::Chained, ""),
    queue("flowing", Kind::Flowing, ""),
    Queue {
        changes: &["start_within => '300 ms'", "start_within => '700 ms'"],
        ..queue("hurried", Kind::Hurried, "start_within => '500 ms'")
    },
];

/// Options of all queues that do not set them otherwise. Jobs die only for lack of attempts or on request, and no job
/// expires.
pub const COMMON: [(&str, &str); 6] = [
    ("max_attempts", "1000000"),
    ("lease", "'3 s'"),
    ("backoff", "'constant'"),
    ("backoff_base", "'30 ms'"),
    ("retention", "'-1'"),
    ("dead_retention", "'-1'"),
];

/// Returns the statement that makes the queue.
pub fn create(queue: &Queue) -> String {
    let mut sql = format!("SELECT queue.create('{}'", queue.name);
    for (option, value) in COMMON {
        if !queue.options.split(", ").any(|given| given.starts_with(&format!("{option} "))) {
            sql += &format!(", {option} => {value}");
        }
    }
    if !queue.options.is_empty() {
        sql += &format!(", {}", queue.options);
    }
    sql + ")"
}

/// Returns lines of postgresql.conf: little memory and small segments. The seed decides how little and how small.
pub fn settings(random: &mut Random) -> Vec<String> {
    let mut lines: Vec<String> = [
        "max_connections = 80",
        "max_prepared_transactions = 20",
        "superuser_reserved_connections = 10",
        "pg_queue.reclaim_delay = '2s'",
        "pg_queue.segment_age = '5s'",
        "pg_queue.segment_rows = 1000",
        "wal_retrieve_retry_interval = '100ms'",
        "hot_standby_feedback = off",
        "max_standby_streaming_delay = 0",
        "log_min_messages = warning",
        "restart_after_crash = on",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut one = |name: &str, values: &[i64]| lines.push(format!("pg_queue.{name} = {}", random.one_of(values)));
    one("max_ready", &[2, 8, 32, 512]);
    one("max_running", &[64, 128, 4096]);
    one("max_lanes", &[16, 32, 256]);
    one("max_keys", &[16, 64, 4096]);
    one("max_databases", &[1, 4]);
    // A standby compares each page with its primary's.
    if random.percent(50) {
        lines.push("wal_consistency_checking = 'all'".to_owned());
    }
    lines
}
