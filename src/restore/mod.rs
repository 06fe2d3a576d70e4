//! Handles a *dormant* database: SQL is writing its tables, usually a restore. Claims find nothing, verbs that write
//! refuse, and the worker only checks whether the restore is over. See docs/internals/restore.md.
//!
//! Statement triggers see foreign writes. The direct inserts of `pg::table` fire none, and SQL writes of the extension
//! are marked as its own (`spi::own_write`). The trigger marks the instance immediately. The end of its transaction
//! only decrements the count of writers. A transaction that has written also leaves a row in
//! `queue_internal.restoring`, in case the server crashes between two tables.
//!
//! Invariant: an instance falls asleep or awakes only under the frontier's lock, together with its mirror in
//! `shmem::awake`. It falls asleep before the first foreign row is visible. It awakes after every session can know of
//! the new rows.

use pg_queue_core::id;
use pgrx::pg_sys;

use crate::catalog::spi::{self, OWN_STATEMENTS};
use crate::catalog::{self, grants, ids, queue, triggers};
use crate::error::{self, Error, Result};
use crate::guc;
use crate::log::{history, segment};
use crate::pg::scan::Snapshot;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Entry, Relation};
use crate::pg::{self, role, session, syscache, time, trigger};
use crate::shmem::awake::{self, LEDGER};
use crate::shmem::ledger::Ledger;
use crate::shmem::restore::{self, RestoreState, State, Writer};
use crate::shmem::{self, here};
use crate::transaction::foreign::{HAS_WRITTEN, TOUCHED};
use crate::transaction::{self, ExtensionStep, hooks};

/// True if the instance may be used. The first session that asks after a start or a promotion reads the states of the
/// segments. It also reads whether a restore was in progress before the crash.
pub fn learn() -> bool {
    if awake::is_awake() {
        return true;
    }
    let state = shmem::with_instance(|_, instance| instance.restore.state);
    // A standby may still receive a restore. It reads the state when it has become a primary.
    if state == Some(State::Unread) && !session::in_recovery() {
        let catalog = catalog::pinned();
        let table = Relation::read(catalog.restoring);
        let index = Relation::read_index(catalog.restoring_idx);
        let is_restoring = table.scan(&index, &[], Snapshot::Now).next().is_some();
        // A standby does not learn the changes of segments.
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now);
        let now = time::monotonic_us();
        awake::change(here::number(), |_, instance| {
            // Foreign writes that began meanwhile have set the state.
            if instance.restore.state == State::Unread {
                let state = if is_restoring { State::Restoring } else { State::Awake };
                instance.restore = RestoreState { state, before: state, quiet_since: now, ..instance.restore };
                ledger.apply(instance);
            }
        });
    }
    awake::is_awake()
}

/// Refuses verbs that write while the tables are being restored.
///
/// Errors: 55000 while the tables are being restored.
pub fn refuse() -> Result<()> {
    if learn() {
        return Ok(());
    }
    let writer = shmem::with_instance(|_, instance| instance.restore.writer()).flatten();
    let by = writer.map_or_else(String::new, |writer| format!(", last by {writer}"));
    Err(Error::new(error::WRONG_STATE, "the queues of this database are being restored")
        .detail(format!("Their tables are being written by SQL, or were a moment ago{by}."))
        .hint("This ends by itself a while after the restore. SELECT queue.adopt() ends it now."))
}

/// Notes that triggers of this table are being switched on or off. A data-only restore does that, and escapes the
/// triggers.
pub fn triggers_switched(table: pg_sys::Oid) -> Result<()> {
    if session::in_recovery() || !role::owns_table(table) {
        return Ok(());
    }
    if syscache::is_in_our_schema(table) && matters(table) {
        mark(table, false)?;
    }
    Ok(())
}

/// True if jobs must not run while SQL writes to this table of the extension. False if its rows are derived from
/// others, or are about ended jobs.
pub fn matters(table: pg_sys::Oid) -> bool {
    let name = syscache::table_name(table).unwrap_or_default();
    let is_one_of = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
    !is_one_of(&["history", "parked_", "rollup", "total", "group_start", "restoring", "timeline"])
}

/// Notes that the open transaction is about to write to this table by SQL. `counts`: the commit checks by the
/// statistics whether it has written.
pub fn mark(table: pg_sys::Oid, counts: bool) -> Result<()> {
    if OWN_STATEMENTS.get() > 0 || session::is_in_extension_script() || session::is_binary_upgrade() {
        return Ok(());
    }
    catalog::current()?;
    transaction::register();
    hooks::before_commit(before_commit);
    let known = transaction::foreign_writer(here::number());
    let from = known.unwrap_or_else(|| TOUCHED.with_borrow(Vec::len));
    let count = if counts { pg::transaction::rows_written(table) } else { None };
    TOUCHED.with_borrow_mut(|touched| match touched[from..].iter_mut().find(|(t, _)| *t == table) {
        Some((_, before)) if count.is_none() => *before = None,
        Some(_) => {}
        None => touched.push((table, count)),
    });
    if known.is_some() {
        return Ok(());
    }
    let writer = Writer::this_session(table);
    transaction::record(ExtensionStep::ForeignWrite { from });
    let before = awake::change(here::number(), |_, instance| {
        let restore = &mut instance.restore;
        let before = restore.state;
        if before != State::Restoring {
            (restore.state, restore.before) = (State::Restoring, before);
        }
        restore.writer = writer;
        restore.writers += 1;
        restore.marks += 1;
        instance.invalidate_counters();
        before
    });
    if before != Some(State::Restoring) {
        let name = syscache::database_name(session::database());
        pgrx::log!("pg_queue of database \"{name}\" is dormant: its tables are being written by SQL, by {writer}");
    }
    Ok(())
}

/// Before the commit, checks whether the transaction has written by SQL, and then inserts the row that says so.
fn before_commit() -> Result<()> {
    // Rows of a savepoint that was rolled back count, too. Then the database is dormant for a while without need.
    let has_written = TOUCHED.with_borrow(|touched| {
        touched.iter().any(|&(table, before)| before.is_none() || pg::transaction::rows_written(table) != before)
    });
    HAS_WRITTEN.set(has_written);
    if !has_written {
        return Ok(());
    }
    let Ok(catalog) = catalog::current() else { return Ok(()) };
    if transaction::foreign_writer(here::number()).is_none() || transaction::is_dropping(here::number()) {
        return Ok(());
    }
    let table = Relation::write(catalog.restoring);
    let index = Relation::write_index(catalog.restoring_idx);
    let now = time::now_us();
    let row = [Some(now.into()), Some(session::pid().into())];
    table.insert_row(row, &mut [Entry { index: &index, is_unique: false, key: &mut [now.into()] }]);
    Ok(())
}

/// A sequence that a restore has left behind its table's rows.
struct Lag {
    sequence: &'static str,
    largest: i64,
    handed_out: i64,
}

/// Returns the sequences that would return numbers that are in use.
fn lags() -> Result<Vec<Lag>> {
    let (from, to) = (id::attempt(ids::node(), 0, 0), id::attempt(ids::node() + 1, 0, 0));
    let newest = |n| {
        format!(
            "SELECT pg_catalog.max(id) AS id FROM queue_internal.attempt_{n}
             WHERE id OPERATOR(pg_catalog.>=) $1 AND id OPERATOR(pg_catalog.<) $2"
        )
    };
    // Job ids share the counts of first attempts.
    let none = std::iter::once("SELECT NULL::pg_catalog.int8 AS id".to_owned());
    let newest: Vec<String> = none.chain(segment::plannable().into_iter().map(newest)).collect();
    let sql = format!(
        "SELECT v FROM (VALUES
             (1, (SELECT pg_catalog.max(id) FROM ({}) AS newest)),
             (2, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4
             FROM queue_internal.id_seq)),
             (3, (SELECT pg_catalog.max(queue_id) FROM (SELECT queue_id FROM queue_internal.queue UNION ALL
             SELECT topic_id
             FROM queue_internal.topic) AS ids)),
             (4, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4
             FROM queue_internal.queue_id_seq)),
             (5, (SELECT pg_catalog.max(lane) FROM queue_internal.lane)),
             (6, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4
             FROM queue_internal.lane_seq)),
             (7, (SELECT pg_catalog.max(schedule_id) FROM queue_internal.schedule)),
             (8, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4
             FROM queue_internal.schedule_id_seq)),
             (9, (SELECT pg_catalog.max(binding_id) FROM queue_internal.binding)),
             (10, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4
             FROM queue_internal.binding_id_seq))
         ) AS found (n, v) ORDER BY n",
        newest.join(" UNION ALL "),
    );
    let _snapshot = ActiveSnapshot::latest();
    let found = spi::read_rows(&sql, &[from.into(), to.into()], |row| row.get::<i64>(1))?;
    let &[newest, ids, queue, queues, lane, lanes, schedule, schedules, binding, bindings] = &found[..] else {
        return Err(Error::internal("the sequences could not be read"));
    };
    let lag = |sequence, largest, handed_out| Lag { sequence, largest, handed_out };
    let all = [
        // Each value of the sequence is the first of a block.
        lag("queue_internal.id_seq", newest.map_or(0, id::count), ids::last_of_block(ids.unwrap_or(0))),
        lag("queue_internal.queue_id_seq", queue.unwrap_or(0), queues.unwrap_or(0)),
        lag("queue_internal.lane_seq", lane.unwrap_or(0), lanes.unwrap_or(0)),
        lag("queue_internal.schedule_id_seq", schedule.unwrap_or(0), schedules.unwrap_or(0)),
        lag("queue_internal.binding_id_seq", binding.unwrap_or(0), bindings.unwrap_or(0)),
    ];
    Ok(all.into_iter().filter(|lag| lag.largest > lag.handed_out).collect())
}

/// The reason why the restore is not over although no session writes.
enum Obstacle {
    /// The session of this process has restored and is still busy, probably with other tables.
    Busy(i64),
    /// An obstacle that does not end by itself, as a sentence.
    Lasting(String),
}

fn obstacle() -> Result<Option<Obstacle>> {
    let busy = spi::i64_column(
        "SELECT a.pid::pg_catalog.int8 FROM pg_catalog.pg_stat_activity AS a JOIN queue_internal.restoring AS r
             ON a.pid OPERATOR(pg_catalog.=) r.pid AND a.backend_start OPERATOR(pg_catalog.<=) r.written_at
         WHERE a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
           AND (a.state OPERATOR(pg_catalog.<>) 'idle' OR a.state_change OPERATOR(pg_catalog.>)
                (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $1)))
         LIMIT 1",
        &[f64::from(guc::RESTORE_QUIET.get()).into()],
    )?;
    if let Some(&pid) = busy.first() {
        return Ok(Some(Obstacle::Busy(pid)));
    }
    let disabled = format!(
        "SELECT 1::pg_catalog.int8 FROM pg_catalog.pg_trigger
         WHERE tgfoid OPERATOR(pg_catalog.=) {} AND tgenabled OPERATOR(pg_catalog.=) 'D' LIMIT 1",
        triggers::foreign_write()
    );
    let disabled = spi::i64_column(&disabled, &[])?;
    if !disabled.is_empty() {
        return Ok(Some(Obstacle::Lasting("Triggers on its tables are switched off.".into())));
    }
    if let Some(found) = triggers::found(false)?.into_iter().next() {
        return Ok(Some(Obstacle::Lasting(found)));
    }
    Ok(behind()?.into_iter().next().map(Obstacle::Lasting))
}

/// Returns a sentence for each sequence that would return numbers that are in use.
pub fn behind() -> Result<Vec<String>> {
    let sentence = |Lag { sequence, largest, handed_out }| {
        format!("{sequence} has reached {handed_out}, while {largest} is in use.")
    };
    Ok(lags()?.into_iter().map(sentence).collect())
}

/// True if it is time to check whether the restore is over. Reads only memory.
pub fn should_look() -> bool {
    let number = here::number();
    let look_at = shmem::with_instance(|_, instance| instance.restore.look_at()).unwrap_or(i64::MAX);
    look_at < i64::MAX && look_at <= time::monotonic_us() && !transaction::is_adopting(number)
}

/// If the restore is over, ends it with the commit. Returns true if it is over.
pub fn end_if_over() -> Result<bool> {
    if learn() || !should_look() || pg::transaction::uses_one_snapshot() {
        return Ok(false);
    }
    // This is read before the checks. A foreign write that begins now voids the adoption.
    let marks = shmem::with_instance(|_, instance| instance.restore.marks).unwrap_or(0);
    let Some(obstacle) = obstacle()? else {
        adopt(marks)?;
        return Ok(true);
    };
    let look_at = time::monotonic_us().saturating_add(restore::quiet_us());
    let is_news = shmem::with_instance(|_, instance| {
        let restore = &mut instance.restore;
        restore.look_at = look_at;
        let is_told = match obstacle {
            Obstacle::Busy(_) => &mut restore.is_busy_told,
            Obstacle::Lasting(_) => &mut restore.is_told,
        };
        !std::mem::replace(is_told, true)
    });
    if is_news != Some(true) {
        return Ok(false);
    }
    let name = syscache::database_name(session::database());
    match obstacle {
        Obstacle::Busy(pid) => {
            pgrx::log!("pg_queue of database \"{name}\" waits for process {pid}, which has restored and is still busy")
        }
        Obstacle::Lasting(reason) => {
            Error::new(error::WRONG_STATE, format!("pg_queue of database \"{name}\" stays dormant after a restore"))
                .detail(reason)
                .hint("When the restore is complete, run SELECT queue.adopt().")
                .warn();
        }
    }
    Ok(false)
}

/// Ends the restore with the commit, despite lasting obstacles.
///
/// Errors: 55006 if another transaction with foreign writes is open; 55000 if the tables have row triggers that are not
/// ours.
pub fn end_now() -> Result<()> {
    learn();
    let own = transaction::foreign_writes(here::number());
    let found = shmem::with_instance(|_, i| (i.restore.writers as usize, i.restore.marks));
    let (writers, marks) = found.unwrap_or((0, 0));
    if writers > own {
        return Err(Error::new(error::IN_USE, "a transaction that writes to the tables of pg_queue has not ended")
            .hint("Wait until the restore is over, or end it."));
    }
    if let Some(found) = triggers::found(false)?.into_iter().next() {
        return Err(Error::new(
            error::WRONG_STATE,
            "the tables of pg_queue have triggers that would not see every row",
        )
        .detail(found)
        .hint(trigger::DROP_IT));
    }
    for Lag { sequence, largest, .. } in lags()? {
        spi::i64_column(
            "SELECT pg_catalog.setval($1::pg_catalog.regclass, $2)",
            &[sequence.to_owned().into(), largest.into()],
        )?;
    }
    adopt(marks)
}

/// Adopts the contents of the tables with the commit. A foreign write before the commit voids the adoption.
fn adopt(marks: u64) -> Result<()> {
    // Another session that is adopting deletes the rows that it has locked.
    spi::run(
        "DELETE FROM queue_internal.restoring AS r USING (SELECT ctid
         FROM queue_internal.restoring FOR UPDATE SKIP LOCKED) AS s
         WHERE r.ctid OPERATOR(pg_catalog.=) s.ctid",
        &[],
    )?;
    // Each queue needs a lane for held jobs, even if its rows were written by hand.
    spi::run(
        "INSERT INTO queue_internal.lane (queue_id, is_held) SELECT q.queue_id, true FROM queue_internal.queue AS q
         WHERE NOT EXISTS (SELECT FROM queue_internal.lane AS n WHERE n.queue_id OPERATOR(pg_catalog.=) q.queue_id
         AND n.is_held)",
        &[],
    )?;
    queue::changed();
    history::adopt_children()?;
    grants::derive()?;
    let catalog = catalog::pinned();
    LEDGER.set(Some(Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now)));
    transaction::record(ExtensionStep::Adopted { marks });
    let name = syscache::database_name(session::database());
    pgrx::log!("pg_queue of database \"{name}\" adopts what is in its tables");
    Ok(())
}
