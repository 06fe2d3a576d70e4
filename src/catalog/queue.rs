//! The settings of queues, as this session knows them: read once from `queue_internal.queue` by its indexes and kept
//! until Postgres says that the table changed (every change of a queue sends that message with its commit).
//!
//! Not responsible for changing a queue: see `api::queues`. A change calls `changed`.
//!
//! Invariant: a session that was told of a change uses no setting that it read before.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pg_queue_core::backoff::Curve;
use pg_queue_core::frontier::{Limits, charge_of};

use crate::catalog::noted::Noted;
use crate::catalog::procedure::Procedure;
use crate::catalog::rights::{self, Privilege};
use crate::catalog::tables::{lane, queue as column, weight};
use crate::catalog::{self, spi};
use crate::error::{self, Error, Result};
use crate::pg::datum::{Interval, text, text_array};
use crate::pg::jsonpath::FieldPath;
use crate::pg::row::Row;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::Relation;
use crate::pg::{jsonb, memory, relcache, session};
use crate::transaction::hooks;

/// A queue's settings.
pub struct Queue {
    pub id: i32,
    pub name: String,
    /// The lane of jobs outside stages: all jobs, or those from before the queue had stages.
    pub lane: i32,
    /// The stages, in their order.
    pub stages: Vec<Stage>,
    /// The lane of jobs that are after others. `None`: its row is not there yet, in a restore.
    pub held: Option<i32>,
    /// All lanes that jobs are claimed from: `lane`, and those of the stages; behind them `held`.
    lanes: Vec<i32>,
    /// The stages that are not the queue's any more. Only ended jobs are there.
    former: Vec<Stage>,
    /// The queue that dead jobs are copied to; `None`: they are not copied.
    pub dead_letter: Option<String>,
    pub is_paused: bool,
    pub max_attempts: i32,
    /// In microseconds.
    pub lease: i64,
    pub curve: Curve,
    /// In microseconds.
    pub backoff_base: i64,
    /// In microseconds.
    pub backoff_max: i64,
    pub backoff_jitter: f64,
    pub notify: bool,
    /// How long ended attempts are kept, in microseconds; negative: for ever.
    pub retention: i64,
    /// How long dead jobs are kept, in microseconds; negative: for ever.
    pub dead_retention: i64,
    /// The limits on its running jobs; `None`: it has none.
    pub limits: Option<Limits>,
    /// The charges of groups with a weight, see [`Queue::charges`].
    charges: OnceCell<Vec<(i64, u64)>>,
    /// Where a job has what it counts for the rates, see [`Queue::cost`].
    rate_cost: Option<String>,
    cost: OnceCell<Option<FieldPath>>,
    pub max_waiting: Option<i64>,
    /// How long its jobs may wait to be claimed; `None`: for ever.
    pub start_within: Option<Interval>,
    /// What runs its jobs in the server; `None`: workers claim them.
    pub executor: Option<Executor>,
    /// Settings of the sessions in which they run then.
    pub settings: Option<Settings>,
    /// Which of procedure, run_as and settings it has.
    pub executor_options: Vec<&'static str>,
}

/// How jobs run in the server.
#[derive(Clone, PartialEq, Eq)]
pub enum Executor {
    /// Each job has its command, and runs as the role that wrote it.
    Sql,
    /// The payload of each is handed to a procedure or function, which runs as one role.
    Call { procedure: Procedure, role: Noted },
}

/// Settings of sessions, and who wants them.
pub struct Settings {
    /// An object, as JSON.
    pub json: String,
    /// The role that has set them.
    pub by: Noted,
}

/// A stage of a queue.
pub struct Stage {
    pub name: String,
    pub lane: i32,
}

impl Queue {
    /// Returns all lanes that jobs are claimed from.
    pub fn lanes(&self) -> &[i32] {
        &self.lanes[..self.lanes.len() - usize::from(self.held.is_some())]
    }

    /// Returns all lanes that jobs may wait in, be it for other jobs.
    pub fn living_lanes(&self) -> &[i32] {
        &self.lanes
    }

    /// Returns whether jobs of this lane are after others.
    pub fn is_held(&self, lane: i32) -> bool {
        self.held == Some(lane)
    }

    /// Returns whether jobs of a group have to wait for each other.
    pub fn has_groups(&self) -> bool {
        self.limits.is_some_and(|limits| limits.has_groups())
    }

    /// Returns whether groups start jobs in proportion to their weights.
    pub fn has_fair_shares(&self) -> bool {
        self.limits.is_some_and(|limits| limits.is_fair)
    }

    /// Returns where a job has what it counts for the rates. `None`: each counts as one, or the queue has no rate.
    pub fn cost(&self) -> Option<&FieldPath> {
        let has_rate = self.limits.is_some_and(|limits| limits.rate > 0 || limits.group_rate > 0);
        let path = self.rate_cost.as_ref().filter(|_| has_rate)?;
        // It was checked when it was set.
        self.cost.get_or_init(|| FieldPath::parse(path).ok()).as_ref()
    }

    /// Returns what a job of each group with a weight is charged, by the groups' hashes in order.
    pub fn charges(&self) -> &[(i64, u64)] {
        self.charges.get_or_init(|| {
            let mut charges = Vec::new();
            self.each_weight(None, |group, weight| memory::push(&mut charges, (group, charge_of(weight))));
            charges
        })
    }

    /// Returns the weight of a group. `None`: it has none, which counts as 1.
    pub fn weight_of(&self, group: i64) -> Option<f64> {
        let mut found = None;
        self.each_weight(Some(group), |_, weight| found = Some(weight));
        found
    }

    /// Calls `f` with the weights of all groups that have one, or of one group, in the order of the groups' hashes.
    fn each_weight(&self, group: Option<i64>, mut f: impl FnMut(i64, f64)) {
        let catalog = catalog::pinned();
        let table = Relation::read(catalog.weight);
        let index = Relation::read_index(catalog.weight_pkey);
        let keys = [Key::eq_i32(1, self.id), Key::eq_i64(2, group.unwrap_or_default())];
        let mut scan = table.scan(&index, &keys[..1 + usize::from(group.is_some())], Snapshot::Now);
        while scan.next().is_some() {
            let row = scan.row();
            f(row.i64(weight::GROUP_HASH), f64::from_bits(row.i64(weight::WEIGHT) as u64));
        }
    }

    /// Returns all lanes that jobs may wait in, be it for other jobs, and those of former stages.
    pub fn all_lanes(&self) -> impl Iterator<Item = i32> + '_ {
        self.lanes.iter().copied().chain(self.former.iter().map(|stage| stage.lane))
    }

    /// Returns the lanes of former stages.
    pub fn former(&self) -> impl Iterator<Item = i32> + '_ {
        self.former.iter().map(|stage| stage.lane)
    }

    /// Returns the lane that new jobs go to.
    pub fn entry(&self) -> i32 {
        self.stages.first().map_or(self.lane, |stage| stage.lane)
    }

    /// Returns the lane of a stage.
    ///
    /// Errors: 22023 when the queue has no such stage.
    pub fn stage(&self, name: &str) -> Result<i32> {
        if let Some(stage) = self.stages.iter().find(|stage| stage.name == name) {
            return Ok(stage.lane);
        }
        let error = Error::invalid(format!("queue \"{}\" has no stage \"{name}\"", self.name));
        if self.stages.is_empty() {
            return Err(error.detail("It has no stages.").hint("Leave \"stage\" out, or set them with queue.alter."));
        }
        let names: Vec<String> = self.stages.iter().map(|stage| format!("\"{}\"", stage.name)).collect();
        Err(error.detail(format!("Its stages are {}.", names.join(", "))))
    }

    /// Returns the name of a lane's stage; `None`: the lane is outside stages.
    pub fn stage_of(&self, lane: i32) -> Option<&str> {
        let stage = self.stages.iter().chain(&self.former).find(|stage| stage.lane == lane);
        stage.map(|stage| stage.name.as_str())
    }

    /// Returns the lane after this one; `None`: it is the last.
    pub fn after(&self, lane: i32) -> Option<i32> {
        let at = self.stages.iter().position(|stage| stage.lane == lane);
        self.stages.get(at.map_or(0, |at| at + 1)).map(|stage| stage.lane)
    }

    /// Returns whether a job in this lane has further stages before it.
    pub fn goes_on_after(&self, lane: i32) -> bool {
        lane != self.lane && self.stages.last().is_some_and(|stage| stage.lane != lane)
    }

    /// Returns whether jobs may wait in this lane.
    pub fn has_lane(&self, lane: i32) -> bool {
        self.lanes.contains(&lane)
    }
}

#[derive(Default)]
struct Cache {
    changes: u64,
    /// True if one of the queues has fair shares.
    has_fair: bool,
    by_name: BTreeMap<String, Rc<Queue>>,
    by_lane: BTreeMap<i32, Rc<Queue>>,
}

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

fn cached<T>(get: impl FnOnce(&mut Cache) -> T) -> T {
    CACHE.with_borrow_mut(|cache| {
        let changes = relcache::queue_changes();
        if cache.changes != changes {
            *cache = Cache { changes, ..Cache::default() };
        }
        get(cache)
    })
}

/// Returns the queue of this name.
///
/// Errors: 42704 when there is none.
pub fn by_name(name: &str) -> Result<Rc<Queue>> {
    if let Some(queue) = cached(|cache| cache.by_name.get(name).cloned()) {
        return Ok(queue);
    }
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.queue);
    let index = Relation::read_index(catalog.queue_name);
    let mut scan = table.scan(&index, &[Key::eq_text(1, crate::pg::datum::text_datum(name))], Snapshot::Now);
    let queue = scan.next().and_then(|_| remember(&scan.row()));
    match queue {
        Some(queue) => Ok(queue),
        None if is_topic(name)? => Err(Error::new(error::NOT_SUPPORTED, format!("\"{name}\" is a topic"))
            .detail("A topic keeps no jobs: what is published there goes to the queues that are bound to it.")
            .hint("Use queue.publish; claim from the queues of view queue.bindings.")),
        None => {
            let error = Error::new(error::UNDEFINED, format!("queue \"{name}\" does not exist"));
            Err(match nearest(name) {
                Some(other) => error.hint(format!("There is a queue \"{other}\". Names are compared byte by byte.")),
                None if name.is_empty() => error.hint("View queue.queues lists the queues."),
                None if name.starts_with(['{', '[']) => {
                    error.hint("The first argument is the name of a queue. The second is the payload.")
                }
                None => error.hint(format!(
                    "View queue.queues lists the queues. To make this one, run SELECT queue.create('{}').",
                    name.replace('\'', "''")
                )),
            })
        }
    }
}

/// Returns the queue whose name is most like this one, of the first thousand that the current user may do something
/// with. `None`: none is like it.
fn nearest(name: &str) -> Option<String> {
    const MAX_NAMES: usize = 1_000;
    let rights = rights::rights();
    let is_known = |id: i32| Privilege::ALL.into_iter().any(|(privilege, _)| rights.on_queue(id, privilege));
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.queue);
    let index = Relation::read_index(catalog.queue_name);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    let mut names = Vec::new();
    while names.len() < MAX_NAMES && scan.next().is_some() {
        let row = scan.row();
        names.extend(row.get(column::QUEUE_NAME).map(text).filter(|_| is_known(row.i32(column::QUEUE_ID))));
    }
    pg_queue_core::advice::nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns whether a topic has this name, which no queue can have then.
pub fn is_topic(name: &str) -> Result<bool> {
    let _snapshot = ActiveSnapshot::with_own();
    spi::has_row(
        "SELECT 1 FROM queue_internal.topic WHERE topic_name OPERATOR(pg_catalog.=) $1::pg_catalog.text",
        &[name.to_owned().into()],
    )
}

/// Returns whether there is a queue of this name.
pub fn exists_by_name(name: &str) -> bool {
    by_name(name).is_ok()
}

/// Returns whether there is a queue of this number.
pub fn exists(id: i32) -> bool {
    if cached(|cache| cache.by_name.values().any(|queue| queue.id == id)) {
        return true;
    }
    let catalog = catalog::pinned();
    let table = Relation::read(catalog.queue);
    let index = Relation::read_index(catalog.queue_pkey);
    table.scan(&index, &[Key::eq_i32(1, id)], Snapshot::Now).next().is_some()
}

/// Returns the queue of this id; `None`: it was dropped.
pub fn by_id(id: i32) -> Result<Option<Rc<Queue>>> {
    let catalog = catalog::pinned();
    let lanes = Relation::read(catalog.lane);
    let index = Relation::read_index(catalog.lane_queue);
    let mut scan = lanes.scan(&index, &[Key::eq_i32(1, id)], Snapshot::Now);
    if scan.next().is_none() {
        return Ok(None);
    }
    by_lane(scan.row().i32(lane::LANE))
}

/// Returns the lanes of all queues.
pub fn lanes() -> Vec<i32> {
    let catalog = catalog::pinned();
    let lanes = Relation::read(catalog.lane);
    let index = Relation::read_index(catalog.lane_pkey);
    let mut scan = lanes.scan(&index, &[], Snapshot::Now);
    let mut all = Vec::new();
    while scan.next().is_some() {
        all.push(scan.row().i32(lane::LANE));
    }
    all
}

/// Returns the queue that this lane belongs to; `None`: it was dropped.
pub fn by_lane(lane: i32) -> Result<Option<Rc<Queue>>> {
    if let Some(queue) = cached(|cache| cache.by_lane.get(&lane).cloned()) {
        return Ok(Some(queue));
    }
    let catalog = catalog::pinned();
    let lanes = Relation::read(catalog.lane);
    let lane_index = Relation::read_index(catalog.lane_pkey);
    let mut scan = lanes.scan(&lane_index, &[Key::eq_i32(1, lane)], Snapshot::Now);
    if scan.next().is_none() {
        return Ok(None);
    }
    let id = scan.row().i32(lane::QUEUE_ID);
    let table = Relation::read(catalog.queue);
    let index = Relation::read_index(catalog.queue_pkey);
    let mut scan = table.scan(&index, &[Key::eq_i32(1, id)], Snapshot::Now);
    if scan.next().is_none() {
        return Ok(None);
    }
    Ok(remember(&scan.row()))
}

/// Returns whether groups of this lane start jobs in proportion to their weights, as far as this session has read its
/// queue.
pub fn is_known_as_fair(lane: i32) -> bool {
    cached(|cache| {
        cache.has_fair && cache.by_lane.get(&lane).is_some_and(|queue| queue.has_fair_shares() && !queue.is_held(lane))
    })
}

/// Reads a queue from its row and keeps it for this session. `None`: the queue does not have all its lanes yet, because
/// it is being restored.
fn remember(row: &Row) -> Option<Rc<Queue>> {
    let id = row.i32(column::QUEUE_ID);
    let catalog = catalog::pinned();
    let lanes = Relation::read(catalog.lane);
    let index = Relation::read_index(catalog.lane_queue);
    let mut scan = lanes.scan(&index, &[Key::eq_i32(1, id)], Snapshot::Now);
    let (mut outside, mut held, mut former) = (None, None, Vec::new());
    while scan.next().is_some() {
        let row = scan.row();
        let lane = row.i32(lane::LANE);
        match row.get(lane::STAGE).map(text) {
            Some(name) => former.push(Stage { name, lane }),
            None if row.get(lane::IS_HELD).is_some_and(|d| d.value() & 1 != 0) => held = Some(lane),
            None => outside = Some(lane),
        }
    }
    let lane = outside?;
    let names = row.get(column::STAGES).map(text_array).unwrap_or_default();
    let mut stages = memory::list(names.len());
    for name in names.into_iter().flatten() {
        let at = former.iter().position(|stage| stage.name == name)?;
        stages.push(former.swap_remove(at));
    }
    let lanes = std::iter::once(lane).chain(stages.iter().map(|stage| stage.lane)).chain(held).collect();
    let us = |n: usize| row.get(n).map_or(0, |datum| Interval::read(datum).us());
    let queue = Rc::new(Queue {
        id,
        name: row.get(column::QUEUE_NAME).map(text).unwrap_or_default(),
        lane,
        stages,
        held,
        lanes,
        former,
        dead_letter: row.get(column::DEAD_LETTER).map(text),
        is_paused: row.get(column::IS_PAUSED).is_some_and(|d| d.value() & 1 != 0),
        max_attempts: row.i32(column::MAX_ATTEMPTS),
        lease: us(column::LEASE),
        curve: row.get(column::BACKOFF).and_then(|d| Curve::parse(&text(d))).unwrap_or(Curve::Exponential),
        backoff_base: us(column::BACKOFF_BASE),
        backoff_max: us(column::BACKOFF_MAX),
        backoff_jitter: f64::from_bits(row.i64(column::BACKOFF_JITTER) as u64),
        notify: row.get(column::NOTIFY).is_some_and(|d| d.value() & 1 != 0),
        retention: us(column::RETENTION),
        dead_retention: us(column::DEAD_RETENTION),
        limits: limits(row),
        charges: OnceCell::new(),
        rate_cost: row.get(column::RATE_COST).map(text),
        cost: OnceCell::new(),
        max_waiting: row.get(column::MAX_WAITING).map(|d| d.value() as i64),
        start_within: row.get(column::START_WITHIN).map(Interval::read),
        executor: executor(row),
        settings: row
            .get(column::SETTINGS)
            .map(jsonb::text)
            .map(|json| Settings { json, by: noted(row, column::SETTINGS_BY, column::SETTINGS_BY_ID) }),
        executor_options: [
            ("procedure", column::PROCEDURE),
            ("run_as", column::RUN_AS),
            ("settings", column::SETTINGS),
        ]
        .into_iter()
        .filter_map(|(name, n)| row.get(n).map(|_| name))
        .collect(),
    });
    cached(|cache| {
        cache.has_fair |= queue.has_fair_shares();
        cache.by_name.insert(queue.name.clone(), Rc::clone(&queue));
        for lane in queue.all_lanes() {
            cache.by_lane.insert(lane, Rc::clone(&queue));
        }
    });
    Some(queue)
}

fn executor(row: &Row) -> Option<Executor> {
    let value = |n: usize| row.get(n).map(text);
    match value(column::EXECUTOR)?.as_str() {
        "sql" => Some(Executor::Sql),
        _ => Some(Executor::Call {
            procedure: Procedure {
                name: value(column::PROCEDURE).unwrap_or_default(),
                id: row.get(column::PROCEDURE_ID).map_or(0, |d| d.value() as i64),
                owner: noted(row, column::PROCEDURE_OWNER, column::PROCEDURE_OWNER_ID),
            },
            role: noted(row, column::RUN_AS, column::RUN_AS_ID),
        }),
    }
}

/// Reads a role that a queue's row names in two columns.
fn noted(row: &Row, name: usize, id: usize) -> Noted {
    Noted {
        name: row.get(name).map(text).unwrap_or_default(),
        id: row.get(id).map_or(0, |d| d.value() as i64),
        since: row.i64(column::CREATED_AT),
    }
}

fn limits(row: &Row) -> Option<Limits> {
    let number = |n: usize| row.get(n).map_or(0, |d| d.value() as i32 as u32);
    let is_strict = row.get(column::STRICT_ORDER).is_some_and(|d| d.value() & 1 != 0);
    let limits = Limits {
        running: number(column::MAX_RUNNING),
        group: if is_strict { 1 } else { number(column::MAX_RUNNING_PER_GROUP) },
        is_strict,
        is_fair: row.get(column::FAIR_SHARE).is_some(),
        rate: number(column::RATE_LIMIT),
        group_rate: number(column::RATE_LIMIT_PER_GROUP),
        period: row.get(column::RATE_PERIOD).map_or(0, |datum| Interval::read(datum).us()),
        costs: row.get(column::RATE_COST).map_or(0, |path| session::hash(&text(path)).cast_unsigned() | 1),
    };
    (limits.running != 0 || limits.has_groups() || limits.rate != 0).then_some(limits)
}

/// Prevents that a queue is dropped before this transaction ends.
///
/// Errors: 42704 if it was dropped.
pub fn lock(queue: &Queue) -> Result<()> {
    let sql = "SELECT queue_id::pg_catalog.int8 FROM queue_internal.queue
        WHERE queue_id OPERATOR(pg_catalog.=) $1 FOR KEY SHARE";
    if spi::i64_column(sql, &[queue.id.into()])?.is_empty() {
        return Err(Error::new(error::UNDEFINED, format!("queue \"{}\" does not exist", queue.name))
            .detail("It was dropped a moment ago."));
    }
    Ok(())
}

/// Tells every session, when this transaction commits, that queues have changed. This session knows it immediately.
pub fn changed() {
    // After a rollback, Postgres does not take back what the last command has announced, because no session was told of
    // it; but the same command may have read the queue's new settings.
    hooks::on_rollback(relcache::forget_queues);
    // This session's own message comes with the next command: another function of the same statement must not believe
    // what it has kept.
    relcache::forget_queues();
    relcache::announce(catalog::pinned().queue);
}
