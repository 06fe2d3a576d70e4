//! `queue_internal.history`: ended attempts, kept for the retention of their queue. It is filled when a segment is
//! reclaimed.
//!
//! It has one child table for each day on which rows expire. So expired rows are dropped with their table, and a queue
//! with a long retention does not keep the rows of other queues. A child's name begins with that day. The rest is
//! random, so that a restored child never meets another child of the same name.
//!
//! A row counts once the segment of its generation is marked as copied. While a segment is still being copied, its rows
//! are read in the segment.

use pg_queue_core::day::Day;
use pg_queue_core::id;
use pgrx::pg_sys::{self, Datum, Oid};

pub use crate::catalog::tables::history as column;
use crate::catalog::tables::{claim, outcome as ended};
use crate::catalog::{self, spi};
use crate::error::{Error, Result};
use crate::log::attempt::{AttemptOf, New};
use crate::log::outcome;
use crate::log::segment;
use crate::pg::parameter::Parameter;
use crate::pg::row::{Columns, Formed, Row};
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;
use crate::pg::{lock, process, session, syscache};
use crate::shmem::ledger::Ledger;
use crate::shmem::segments::Word;

/// A table of rows that expire on one day.
#[derive(Clone, Copy)]
pub struct Child {
    pub day: Day,
    pub table: Oid,
}

/// Returns all child tables.
pub fn children() -> Vec<Child> {
    let day = |name: &str| {
        let is_plain = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        Day::parse(name.strip_prefix("history_")?.split('_').next()?).filter(|_| is_plain)
    };
    syscache::children(catalog::pinned().history)
        .into_iter()
        .filter_map(|table| Some(Child { day: day(&syscache::table_name(table)?)?, table }))
        .collect()
}

/// Makes the table for a day. Returns false if a lock of another session on the parent is in the way.
pub fn create_child(day: Day) -> Result<bool> {
    let catalog = catalog::pinned();
    // CREATE TABLE would wait for this lock, and with it the worker and all its duties.
    if !lock::try_lock(catalog.history, pg_sys::ShareUpdateExclusiveLock) {
        return Ok(false);
    }
    let name = format!("history_{}_{:08x}", day.name(), fastrand::u32(..));
    let owner = spi::text(
        "SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(relowner)) FROM pg_catalog.pg_class
         WHERE oid OPERATOR(pg_catalog.=) $1",
        &[oid_parameter(catalog.history)],
    )?;
    let owner = owner.ok_or_else(|| Error::internal("queue_internal.history has no owner"))?;
    // The columns of parent and child are merged, and each would cause a NOTICE.
    session::with_settings(&[(c"client_min_messages", c"warning")], || {
        // No row is updated. Autovacuum only freezes rows that are kept for long.
        let made = format!(
            "CREATE TABLE queue_internal.{name} (LIKE queue_internal.history INCLUDING INDEXES)
             INHERITS (queue_internal.history)
             USING heap WITH (fillfactor = 100)"
        );
        spi::run(&made, &[])
    })?;
    guard(&name)?;
    // The identity is for a publication of all tables: `queue.forget` updates.
    let settled = format!(
        "ALTER TABLE queue_internal.{name} ENABLE ALWAYS TRIGGER foreign_write, REPLICA IDENTITY FULL, OWNER TO {owner}"
    );
    spi::run(&settled, &[])?;
    close(&name)?;
    adopt_children()?;
    Ok(true)
}

/// Makes the trigger by which only the tables' owner may write to a child by SQL, as on all tables of the extension.
fn guard(name: &str) -> Result<()> {
    let trigger = format!(
        "CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_internal.{name}
         FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write()"
    );
    spi::run(&trigger, &[]).map(|_| ())
}

/// Revokes the grants of default privileges on a child.
fn close(name: &str) -> Result<()> {
    let grantees = spi::texts(
        "SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
            ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END
         FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
         WHERE c.relname OPERATOR(pg_catalog.=) $1 AND c.relnamespace OPERATOR(pg_catalog.=)
         'queue_internal'::pg_catalog.regnamespace
           AND a.grantee OPERATOR(pg_catalog.<>) c.relowner",
        &[name.to_owned().into()],
    )?;
    grantees.iter().try_for_each(|grantee| {
        spi::run(&format!("REVOKE ALL ON queue_internal.{name} FROM {grantee}"), &[]).map(|_| ())
    })
}

/// Makes DROP EXTENSION drop the children, too. They are not members of the extension, so pg_dump treats them as tables
/// with data.
pub fn adopt_children() -> Result<()> {
    let orphans = spi::i64_column(
        "SELECT i.inhrelid::pg_catalog.int8 FROM pg_catalog.pg_inherits AS i
         WHERE i.inhparent OPERATOR(pg_catalog.=) $1 AND NOT EXISTS (
             SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid OPERATOR(pg_catalog.=)
             'pg_catalog.pg_class'::pg_catalog.regclass
             AND d.objid OPERATOR(pg_catalog.=) i.inhrelid AND d.deptype OPERATOR(pg_catalog.=) 'x')",
        &[oid_parameter(catalog::pinned().history)],
    )?;
    for table in orphans {
        syscache::depend_on_our_extension(Oid::from(table as u32));
    }
    Ok(())
}

fn oid_parameter(oid: Oid) -> Parameter {
    Parameter::raw(Some(oid.into()), pg_sys::OIDOID)
}

/// Rows that will be inserted into a child together. They are formed when they are added, so their datums need not live
/// longer.
pub struct Writer {
    child: Child,
    table: Relation,
    rows: Vec<Formed>,
    keys: Vec<Keys>,
}

/// The columns of a row that indexes have.
struct Keys {
    id: i64,
    job_id: i64,
    lane: i32,
    is_dead: bool,
    flow: Option<i64>,
}

impl Writer {
    /// Opens a child on which the session has RowExclusiveLock.
    pub fn open(child: Child) -> Self {
        let table = Relation::write_shaped(child.table, column::SHAPE);
        table.refuse_triggers();
        Self { child, table, rows: Vec::new(), keys: Vec::new() }
    }

    /// Returns the day on which the rows of the child expire.
    pub fn day(&self) -> Day {
        self.child.day
    }

    /// Adds a row.
    pub fn add(&mut self, row: &column::Row) {
        let &column::Row { id, job_id, lane, flow, .. } = row;
        self.keys.push(Keys { id, job_id, lane, is_dead: is_dead(row), flow });
        self.rows.push(self.table.form(&row.values()));
    }

    /// Inserts the rows that were added.
    pub fn insert(self) {
        let Self { child, table, rows, keys } = self;
        let tids = table.insert_formed(rows);
        let own = [oid_by_job(child), oid_of_later(child), index_of_dead(child), index_by_flow(child)];
        table.fill_others(&tids, &|index| own.contains(&Some(index)));
        let [by_job, of_later, of_dead, by_flow] = own.map(|index| index.map(Relation::write_index));
        if let Some(index) = by_job {
            index.insert_entries(&table, &tids, false, |n| Some([keys[n].job_id.into()]));
        }
        if let Some(index) = of_later {
            index.insert_entries(&table, &tids, false, |n| {
                (id::count(keys[n].id) != id::count(keys[n].job_id)).then(|| [keys[n].id.into()])
            });
        }
        if let Some(index) = of_dead {
            index.insert_entries(&table, &tids, false, |n| keys[n].is_dead.then(|| [keys[n].lane.into()]));
        }
        if let Some(index) = by_flow {
            index.insert_entries(&table, &tids, false, |n| keys[n].flow.map(|flow| [flow.into()]));
        }
    }
}

/// Returns whether the index of dead jobs has this row.
fn is_dead(row: &column::Row) -> bool {
    match outcome::Kind::of(row.outcome) {
        outcome::Kind::Dead => true,
        outcome::Kind::TimedOut => row.next_id.is_none(),
        _ => false,
    }
}

/// Its index of dead jobs.
pub fn index_of_dead(child: Child) -> Option<Oid> {
    syscache::index_on(child.table, column::LANE as i16 + 1, true, "_lane_idx")
}

/// Gets the job, the id, the lane and the outcome of an attempt.
pub type EachOfFlow<'a> = dyn FnMut(i64, i64, i32, &outcome::Outcome) + 'a;

/// Calls `each` with each attempt in history that is of a flow, as the active
/// snapshot sees it. `ledger`: which segments are still read where they are.
pub fn each_of_flow(flow: i64, ledger: &Ledger, each: &mut EachOfFlow<'_>) {
    let counting = Counting::of(ledger);
    for child in children() {
        let Some(table) = open(child) else { continue };
        let Some(index) = index_by_flow(child) else { continue };
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[Key::eq_i64(1, flow)], Snapshot::Statement);
        while scan.next().is_some() {
            let (values, nulls) = scan.columns(column::NEXT_ID + 1);
            let int = |column: usize| values[column].value() as i64;
            let outcome = outcome::Outcome {
                ended_at: int(column::ENDED_AT),
                kind: outcome::Kind::of(values[column::OUTCOME].value() as u8),
                next_id: (!nulls[column::NEXT_ID]).then(|| int(column::NEXT_ID)),
            };
            if counting.has(int(column::GENERATION)) {
                each(int(column::JOB_ID), int(column::ID), int(column::LANE) as i32, &outcome);
            }
            process::check_for_interrupts();
        }
    }
}

/// The index by flow.
fn index_by_flow(child: Child) -> Option<Oid> {
    syscache::index_on(child.table, column::FLOW as i16 + 1, true, "_flow_idx")
}

/// A dead job.
#[derive(Clone, Copy)]
pub struct Dead {
    /// Its last attempt.
    pub id: i64,
    pub job_id: i64,
    pub lane: i32,
    /// `timestamptz` of its death.
    pub ended_at: i64,
}

/// Calls `each` with the last attempts of dead jobs in history.
pub fn each_dead(snapshot: Snapshot, counting: &Counting, mut each: impl FnMut(Dead)) {
    for child in children() {
        let Some(table) = open(child) else { continue };
        let Some(index) = index_of_dead(child) else { continue };
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[], snapshot);
        for n in 1_u32.. {
            if scan.next().is_none() {
                break;
            }
            let (values, _) = scan.columns(column::LANE + 1);
            let int = |column: usize| values[column].value() as i64;
            if counting.has(int(column::GENERATION)) {
                each(Dead {
                    id: int(column::ID),
                    job_id: int(column::JOB_ID),
                    lane: int(column::LANE) as i32,
                    ended_at: int(column::ENDED_AT),
                });
            }
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
        }
    }
}

fn oid_by_job(child: Child) -> Option<Oid> {
    syscache::index_on(child.table, column::JOB_ID as i16 + 1, false, "_job_id_idx")
}

fn oid_of_later(child: Child) -> Option<Oid> {
    syscache::index_on(child.table, column::ID as i16 + 1, true, "_id_idx")
}

/// Says whether the rows of a generation count. They do not while its segment is still being copied.
pub struct Counting([i64; id::SEGMENTS]);

impl Counting {
    /// Returns the generations that count now.
    pub fn now() -> Self {
        Self::of_words(segment::word)
    }

    /// Returns the generations that count according to a ledger.
    pub fn of(ledger: &Ledger) -> Self {
        Self::of_words(|segment| ledger.word(segment))
    }

    fn of_words(word: impl Fn(u8) -> Word) -> Self {
        Self(std::array::from_fn(|segment| {
            let word = word(segment as u8);
            if word.state().is_copied_from() { word.generation() } else { 0 }
        }))
    }

    /// Returns whether the rows of this generation count.
    pub fn has(&self, generation: i64) -> bool {
        !self.0.contains(&generation)
    }
}

/// An attempt in history. Its datums are valid as long as it.
pub struct Past {
    row: Row,
    // Its lock prevents that the toast table is dropped.
    _table: Relation,
}

impl Past {
    /// The lane.
    pub fn lane(&self) -> i32 {
        self.row.i32(column::LANE)
    }

    /// Returns the flow that it is a member of.
    pub fn flow(&self) -> Option<i64> {
        self.number(column::FLOW)
    }

    /// Returns how it has ended.
    pub fn outcome(&self) -> outcome::Outcome {
        outcome::Outcome {
            ended_at: self.row.i64(column::ENDED_AT),
            kind: outcome::Kind::of(self.row.char(column::OUTCOME)),
            next_id: self.number(column::NEXT_ID),
        }
    }

    fn number(&self, column: usize) -> Option<i64> {
        self.row.get(column).map(|d| d.value() as i64)
    }

    /// Returns a column.
    pub fn get(&self, column: usize) -> Option<Datum> {
        self.row.get(column)
    }

    /// The attempt.
    pub fn id(&self) -> i64 {
        self.row.i64(column::ID)
    }

    /// The job.
    pub fn job_id(&self) -> i64 {
        self.row.i64(column::JOB_ID)
    }

    /// Returns the attempt as a template for the next attempt.
    pub fn template(&self) -> New {
        New::of_past(&column::Row::read(&self.row))
    }
}

/// Returns the attempt of a row in a child. `None`: the child is being dropped.
pub fn past(child: Child, row: Row) -> Option<Past> {
    Some(Past { row, _table: open(child)? })
}

/// Opens a child that may be dropped at any moment.
pub fn open(child: Child) -> Option<Relation> {
    Relation::try_read(child.table, column::SHAPE)
}

/// Calls `f` with the attempts of a job in history, as a snapshot sees them, until it returns false.
pub fn each_of_job(
    job_id: i64,
    snapshot: Snapshot,
    counting: &Counting,
    f: &mut dyn FnMut(&Past) -> Result<bool>,
) -> Result<()> {
    for child in children() {
        let Some(table) = open(child) else { continue };
        let Some(index) = oid_by_job(child) else { continue };
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[Key::eq_i64(1, job_id)], snapshot);
        while scan.next().is_some() {
            if counting.has(scan.columns(column::GENERATION + 1).0[column::GENERATION].value() as i64)
                && let Some(table) = open(child)
                && !f(&Past { row: scan.row(), _table: table })?
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the newest attempt of a job that is only in history.
pub fn newest(job_id: i64) -> Option<Past> {
    let counting = Counting::now();
    let mut newest: Option<(i64, Child)> = None;
    for child in children() {
        let Some(table) = open(child) else { continue };
        let Some(index) = oid_by_job(child) else { continue };
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[Key::eq_i64(1, job_id)], Snapshot::Now);
        while scan.next().is_some() {
            let (values, _) = scan.columns(column::GENERATION + 1);
            let (id, generation) = (values[column::ID].value() as i64, values[column::GENERATION].value() as i64);
            if counting.has(generation) && newest.is_none_or(|(known, _)| id::count(known) < id::count(id)) {
                newest = Some((id, child));
            }
        }
    }
    newest.and_then(|(id, child)| find_in(child, id))
}

/// Returns an attempt in history.
pub fn find(attempt: i64) -> Option<Past> {
    children().into_iter().find_map(|child| find_in(child, attempt))
}

/// Returns an attempt in a child, whether it counts or not.
pub fn find_in(child: Child, attempt: i64) -> Option<Past> {
    let table = open(child)?;
    let look = |index: Oid, key: i64| {
        let index = Relation::read_index(index);
        let mut scan = table.scan(&index, &[Key::eq_i64(1, key)], Snapshot::Now);
        while scan.next().is_some() {
            if scan.columns(1).0[column::ID].value() as i64 == attempt {
                return Some(scan.row());
            }
        }
        None
    };
    // A first attempt shares the count of its job. The other attempts have an index.
    let by_job = || look(oid_by_job(child)?, attempt | id::JOB_NIBBLE);
    let later = || look(oid_of_later(child)?, attempt);
    let row = by_job().or_else(later)?;
    Some(Past { row, _table: table })
}

/// Returns what history keeps of an ended attempt. `payload`: for the last attempt of a job.
pub fn kept<R: Columns>(
    attempt: &AttemptOf<R>,
    claim: Option<&R>,
    outcome: &R,
    payload: Option<Datum>,
    progress: Option<Datum>,
    steps: Option<Datum>,
) -> column::Row {
    let claim = claim.map(|row| claim::Row::read(row));
    let ended::Row { id: _, ended_at, outcome, next_id, result, error } = ended::Row::read(outcome);
    let run = attempt.copy();
    column::Row {
        id: run.id,
        job_id: run.job_id,
        generation: attempt.home.generation,
        enqueued_at: run.enqueued_at,
        claimed_at: claim.map(|claim| claim.claimed_at),
        ended_at,
        lane: run.lane,
        priority: run.priority,
        attempt: run.attempt,
        max_attempts: run.max_attempts,
        pid: claim.map(|claim| claim.pid),
        outcome,
        claim_kind: claim.map(|claim| claim.kind),
        run_at: run.run_at,
        next_id,
        payload,
        headers: run.headers,
        group_key: run.group_key,
        unique_key: run.unique_key,
        worker: claim.and_then(|claim| claim.worker),
        error,
        last_error: run.last_error,
        result,
        progress,
        lease: run.lease,
        version: run.version,
        flow: run.flow,
        task: run.task,
        after: run.after,
        upon: run.upon,
        steps,
        run_as: run.run_as,
        run_as_id: run.run_as_id,
        own_flow: run.own_flow,
        timing: run.timing,
    }
}
