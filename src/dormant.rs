//! A database whose tables are being written by SQL, by a restore above all, is *dormant*: claims find nothing,
//! the verbs that write refuse, the worker does no duty but to look whether the restore is over. For a restore
//! brings the tables back one by one: attempts without their claims look ready, claims without their outcomes
//! look running, and the sequence of ids comes last.
//!
//! Foreign writes are seen by statement triggers on the tables, which the direct inserts of `log::table` do not
//! fire; where the extension writes by SQL it says so (`own_write`). The trigger marks the instance at once, the
//! end of its transaction only counts down. So that a crash between two tables forgets nothing, the trigger
//! also leaves a row in `queue.restoring`, which commits with what was written.
//!
//! Invariant: whether an instance is awake changes only under the frontier's lock, together with its mirror in
//! `shmem::awake`, which the verbs ask without the lock. It falls asleep before the first foreign row is
//! visible, and awakes after every session can know of the rows that came.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pgrx::pg_sys;

use crate::call::{Call, VOID, sql_function};
use crate::error::{self, Error, Result};
use crate::instance::{self, Catalog};
use crate::log::history;
use crate::log::table::{Entry, Relation, Snapshot};
use crate::segment::Ledger;
use crate::shmem::{self, Instance};
use crate::spi;
use crate::transaction::{self, Step};
use crate::{acl, guc, ids, late, queue, sys, tally};
use pg_queue_core::frontier::Frontier;
use pg_queue_core::id;

/// Whether an instance may be used.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Nobody has read `queue.restoring` since the start.
    #[default]
    Unread = 0,
    /// Yes.
    Awake,
    /// Its tables are being restored.
    Dormant,
}

/// What an instance knows of foreign writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dormancy {
    state: State,
    /// Open transactions with foreign writes.
    writers: u32,
    /// Counts the marks, so that an adoption that has begun before one is void.
    marks: u64,
    /// The monotonic time at which the last of the writers ended.
    quiet_since: i64,
    /// Not before this monotonic time is it worth while to look again whether the restore is over.
    look_at: i64,
    /// The log says already why it does not end.
    is_told: bool,
    /// The log says already for whom it waits.
    is_busy_told: bool,
    /// Entries of `running` may be of rows that are gone.
    pub is_suspect: bool,
}

impl Dormancy {
    /// Whether the instance may be used.
    pub fn is_awake(&self) -> bool {
        self.state == State::Awake
    }

    /// The open transactions with foreign writes, where it is dormant.
    pub fn writers(&self) -> Option<u32> {
        (self.state == State::Dormant).then_some(self.writers)
    }

    /// When, on the monotonic clock, somebody should look whether the restore is over; `MAX`: he will be woken.
    pub fn look_at(&self) -> i64 {
        match self.state {
            State::Unread => i64::MIN,
            State::Dormant if self.writers == 0 => self.quiet_since.saturating_add(quiet_us()).max(self.look_at),
            State::Awake | State::Dormant => i64::MAX,
        }
    }

    /// A transaction with foreign writes has ended.
    pub fn writer_ended(&mut self) {
        self.writers = self.writers.saturating_sub(1);
        self.quiet_since = sys::monotonic_us();
    }
}

/// How long it must be quiet, in microseconds.
fn quiet_us() -> i64 {
    i64::from(guc::RESTORE_QUIET.get()) * 1_000_000
}

thread_local! {
    /// The instance that this session has asked for last, and its slot in shared memory.
    static SLOT: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
    /// What the segments do, as the adopting transaction has read it.
    static LEDGER: Cell<Option<Ledger>> = const { Cell::new(None) };
    /// How many of the extension's own statements are under way.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

/// Whether the instance may be used, as far as anybody knows; false also when nobody knows yet. Costs next to
/// nothing. Not to be called under the frontier's lock.
pub fn is_awake(number: u32) -> bool {
    let (known, slot) = SLOT.get();
    if known == number && number != 0 && shmem::awake(slot).load(Ordering::Acquire) == number {
        return true;
    }
    let found = shmem::with(|shared| {
        let slot = slot_of(shared.instances, number)?;
        Some((slot, shared.instances[slot].dormancy.is_awake()))
    });
    // When it was dropped, whoever goes on is told that.
    let Some((slot, is_awake)) = found else { return true };
    SLOT.set((number, slot));
    is_awake
}

fn slot_of(instances: &[Instance], number: u32) -> Option<usize> {
    instances.iter().position(|i| number != 0 && i.number == number)
}

/// Changes an instance's dormancy and, with it, the mirror. `None`: the instance is gone.
fn change<R>(number: u32, f: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> R) -> Option<R> {
    shmem::with(|shared| {
        let slot = slot_of(shared.instances, number)?;
        let instance = &mut shared.instances[slot];
        let result = f(&mut shared.frontier, instance);
        shmem::awake(slot).store(if instance.dormancy.is_awake() { number } else { 0 }, Ordering::Release);
        Some(result)
    })
}

/// Whether the instance may be used. The first who asks after a start, or after a promotion, reads what the
/// segments are doing and what the last crash has left.
pub fn learn(catalog: &Catalog) -> bool {
    if shmem::awake(catalog.slot).load(Ordering::Acquire) == catalog.number || is_awake(catalog.number) {
        return true;
    }
    let state = shmem::with_instance(catalog.number, |_, instance| instance.dormancy.state);
    // A standby may still hear of a restore; it is asked when it has become a primary.
    if state == Some(State::Unread) && !sys::in_recovery() {
        let table = Relation::read(catalog.restoring);
        let index = Relation::read_index(catalog.restoring_idx);
        let is_restoring = table.scan(&index, &[], Snapshot::Now).next().is_some();
        // On a standby nobody has heard what became of the segments.
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now);
        let now = sys::monotonic_us();
        change(catalog.number, |_, instance| {
            // Foreign writes that began meanwhile have marked it.
            if instance.dormancy.state == State::Unread {
                let state = if is_restoring { State::Dormant } else { State::Awake };
                instance.dormancy = Dormancy { state, quiet_since: now, ..instance.dormancy };
                ledger.apply(instance);
            }
        });
    }
    is_awake(catalog.number)
}

/// For verbs that write.
///
/// Errors: 55000 while the tables are being restored.
pub fn refuse(catalog: &Catalog) -> Result<()> {
    if learn(catalog) {
        return Ok(());
    }
    Err(Error::new(error::WRONG_STATE, "the queues of this database are being restored")
        .detail("Their tables are being written by other means than the functions of pg_queue, or were a moment ago.")
        .hint("This ends by itself a while after the restore; SELECT queue.adopt() ends it now."))
}

/// Runs the extension's own SQL: what it writes to the tables is not foreign.
pub fn own_write<R>(f: impl FnOnce() -> R) -> R {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            OWN.set(OWN.get() - 1);
        }
    }
    OWN.set(OWN.get() + 1);
    let _guard = Guard;
    f()
}

sql_function!(pg_queue_foreign_write, pg_finfo_pg_queue_foreign_write => foreign_write);

/// `queue.foreign_write()`, a statement trigger before whatever changes the tables.
fn foreign_write(call: &Call) -> Result<Option<pg_sys::Datum>> {
    if !call.is_trigger() {
        return Err(Error::new(error::NOT_SUPPORTED, "queue.foreign_write can only be called as a trigger"));
    }
    mark()?;
    Ok(Some(VOID))
}

/// Somebody switches triggers of this table on or off. A restore of data alone that does so escapes them.
pub fn triggers_switched(table: pg_sys::Oid) -> Result<()> {
    if sys::in_recovery() || !sys::owns_table(table) {
        return Ok(());
    }
    let Ok(catalog) = instance::current() else { return Ok(()) };
    let is_log = |s: &instance::Segment| [s.attempt, s.claim, s.outcome, s.note].contains(&table);
    let is_memory = catalog.memory.contains(&table);
    let is_schedule = table == catalog.schedule || catalog.firing.iter().any(|half| half.0 == table);
    let is_permission = sys::our_relation(c"permission") == Some(table);
    let is_other = is_memory || is_schedule || is_permission || table == catalog.queue || table == catalog.lane;
    if is_other || catalog.segments.iter().any(is_log) {
        mark()?;
    }
    Ok(())
}

/// The open transaction writes to the tables by SQL.
fn mark() -> Result<()> {
    if OWN.get() > 0 || sys::is_in_extension_script() || sys::is_binary_upgrade() {
        return Ok(());
    }
    transaction::register();
    let catalog = instance::current()?;
    if transaction::is_foreign_writer(catalog.number) {
        return Ok(());
    }
    transaction::remember(catalog.number, Step::ForeignWrite);
    let before = change(catalog.number, |_, instance| {
        let before = instance.dormancy.state;
        instance.dormancy.state = State::Dormant;
        tally::doubt(instance);
        instance.dormancy.writers += 1;
        instance.dormancy.marks += 1;
        before
    });
    let table = Relation::write(catalog.restoring);
    let index = Relation::write_index(catalog.restoring_idx);
    let now = sys::now_us();
    let row = [Some(now.into()), Some(sys::pid().into())];
    table.insert_row(row, &mut [Entry { index: &index, is_unique: false, key: &mut [now.into()] }]);
    if before != Some(State::Dormant) {
        let name = sys::database_name(sys::database());
        pgrx::log!("pg_queue of database \"{name}\" is dormant: its tables are being written by SQL");
    }
    Ok(())
}

/// A sequence that a restore has left behind its table's rows.
struct Lag {
    sequence: &'static str,
    largest: i64,
    handed_out: i64,
}

/// The sequences that would hand out numbers which are in use.
fn lags() -> Result<Vec<Lag>> {
    let (from, to) = (id::attempt(ids::node(), 0, 0), id::attempt(ids::node() + 1, 0, 0));
    let newest = |n| {
        format!(
            "SELECT pg_catalog.max(id) AS id FROM queue.attempt_{n}
             WHERE id OPERATOR(pg_catalog.>=) $1 AND id OPERATOR(pg_catalog.<) $2"
        )
    };
    // Job ids share the counts of first attempts.
    let newest: Vec<String> = (0..id::SEGMENTS).map(newest).collect();
    let sql = format!(
        "SELECT v FROM (VALUES
             (1, (SELECT pg_catalog.max(id) FROM ({}) AS newest)),
             (2, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4 FROM queue.id_seq)),
             (3, (SELECT pg_catalog.max(queue_id) FROM queue.queue)),
             (4, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4 FROM queue.queue_id_seq)),
             (5, (SELECT pg_catalog.max(lane) FROM queue.lane)),
             (6, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4 FROM queue.lane_seq)),
             (7, (SELECT pg_catalog.max(schedule_id) FROM queue.schedule)),
             (8, (SELECT last_value OPERATOR(pg_catalog.-) (NOT is_called)::pg_catalog.int4 FROM queue.schedule_id_seq))
         ) AS found (n, v) ORDER BY n",
        newest.join(" UNION ALL ")
    );
    let found = spi::optional_i64_column(&sql, &[from.into(), to.into()])?;
    let &[newest, ids, queue, queues, lane, lanes, schedule, schedules] = &found[..] else {
        return Err(Error::internal("the sequences could not be read"));
    };
    let lag = |sequence, largest, handed_out| Lag { sequence, largest, handed_out };
    let all = [
        // Its values are the first of a block each.
        lag("queue.id_seq", newest.map_or(0, id::count), ids::last_of_block(ids.unwrap_or(0))),
        lag("queue.queue_id_seq", queue.unwrap_or(0), queues.unwrap_or(0)),
        lag("queue.lane_seq", lane.unwrap_or(0), lanes.unwrap_or(0)),
        lag("queue.schedule_id_seq", schedule.unwrap_or(0), schedules.unwrap_or(0)),
    ];
    Ok(all.into_iter().filter(|lag| lag.largest > lag.handed_out).collect())
}

/// Why the restore is not over, although it is quiet.
enum Obstacle {
    /// The session of this process has restored and is busy, with other tables probably.
    Busy(i64),
    /// This will not pass by itself; what, in a sentence.
    Lasting(String),
}

fn obstacle() -> Result<Option<Obstacle>> {
    let busy = spi::i64_column(
        "SELECT a.pid::pg_catalog.int8 FROM pg_catalog.pg_stat_activity AS a JOIN queue.restoring AS r
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
    let disabled = spi::i64_column(
        "SELECT 1::pg_catalog.int8 FROM pg_catalog.pg_trigger
         WHERE tgfoid OPERATOR(pg_catalog.=) 'queue.foreign_write()'::pg_catalog.regprocedure
           AND tgenabled OPERATOR(pg_catalog.=) 'D' LIMIT 1",
        &[],
    )?;
    if !disabled.is_empty() {
        return Ok(Some(Obstacle::Lasting("Triggers on its tables are switched off.".into())));
    }
    Ok(lags()?.first().map(|Lag { sequence, largest, handed_out }| {
        Obstacle::Lasting(format!("{sequence} has reached {handed_out}, while {largest} is in use."))
    }))
}

/// Whether somebody should look whether the restore is over; memory only.
pub fn should_look(number: u32) -> bool {
    let look_at = shmem::with_instance(number, |_, instance| instance.dormancy.look_at()).unwrap_or(i64::MAX);
    look_at < i64::MAX && look_at <= sys::monotonic_us() && !transaction::is_adopting(number)
}

/// Ends the dormancy if the restore is over. Returns whether it does, with the commit.
pub fn end_if_over(catalog: &Catalog) -> Result<bool> {
    if learn(catalog) || !should_look(catalog.number) || sys::uses_one_snapshot() {
        return Ok(false);
    }
    let number = catalog.number;
    // Before the look: a foreign write that begins now makes what follows void.
    let marks = shmem::with_instance(number, |_, instance| instance.dormancy.marks).unwrap_or(0);
    let Some(obstacle) = obstacle()? else {
        adopt(catalog, marks)?;
        return Ok(true);
    };
    let look_at = sys::monotonic_us().saturating_add(quiet_us());
    let is_news = shmem::with_instance(number, |_, instance| {
        let dormancy = &mut instance.dormancy;
        dormancy.look_at = look_at;
        let is_told = match obstacle {
            Obstacle::Busy(_) => &mut dormancy.is_busy_told,
            Obstacle::Lasting(_) => &mut dormancy.is_told,
        };
        !std::mem::replace(is_told, true)
    });
    if is_news != Some(true) {
        return Ok(false);
    }
    let name = sys::database_name(sys::database());
    match obstacle {
        Obstacle::Busy(pid) => {
            pgrx::log!("pg_queue of database \"{name}\" waits for process {pid}, which has restored and is still busy")
        }
        Obstacle::Lasting(reason) => {
            Error::new(error::WRONG_STATE, format!("pg_queue of database \"{name}\" stays dormant after a restore"))
                .detail(reason)
                .hint("When the restore is whole, run SELECT queue.adopt().")
                .warn();
        }
    }
    Ok(false)
}

/// Ends the dormancy with the commit, whatever there is to say against it.
///
/// Errors: 55006 when another transaction with foreign writes is open.
pub fn end_now(catalog: &Catalog) -> Result<()> {
    learn(catalog);
    let own = transaction::foreign_writes(catalog.number);
    let found = shmem::with_instance(catalog.number, |_, i| (i.dormancy.writers as usize, i.dormancy.marks));
    let (writers, marks) = found.unwrap_or((0, 0));
    if writers > own {
        return Err(Error::new(error::IN_USE, "a transaction that writes to the tables of pg_queue has not ended")
            .hint("Wait until the restore is over, or end it."));
    }
    for Lag { sequence, largest, .. } in lags()? {
        spi::i64_column(
            "SELECT pg_catalog.setval($1::pg_catalog.regclass, $2)",
            &[sequence.to_owned().into(), largest.into()],
        )?;
    }
    adopt(catalog, marks)
}

/// Adopts what is in the tables, with the commit; unless there were more marks until then.
fn adopt(catalog: &Catalog, marks: u64) -> Result<()> {
    // Whoever else is adopting deletes what he has locked.
    spi::run(
        "DELETE FROM queue.restoring AS r USING (SELECT ctid FROM queue.restoring FOR UPDATE SKIP LOCKED) AS s
         WHERE r.ctid OPERATOR(pg_catalog.=) s.ctid",
        &[],
    )?;
    queue::changed(catalog);
    history::adopt_children(catalog)?;
    acl::derive(catalog)?;
    LEDGER.set(Some(Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Now)));
    transaction::remember(catalog.number, Step::Adopted { marks });
    let name = sys::database_name(sys::database());
    pgrx::log!("pg_queue of database \"{name}\" adopts what is in its tables");
    Ok(())
}

/// The transaction that adopts has committed, and all sessions were told of changed queues. All that memory
/// knows is read anew, but who holds what. False: it came to nothing, for there was a foreign write meanwhile.
/// Cannot fail.
pub fn wake(number: u32, marks: u64) -> bool {
    let now = sys::now_us();
    let is_awake = change(number, |frontier, instance| {
        if instance.dormancy.marks != marks {
            return false;
        }
        let was_awake = instance.dormancy.is_awake();
        instance.dormancy = Dormancy { state: State::Awake, marks, is_suspect: true, ..Dormancy::default() };
        (instance.id_next, instance.id_limit) = (0, 0);
        // As at the start: all that is due by now lies behind its lane's position.
        (instance.due_to, instance.next_due) = (now, i64::MIN);
        instance.is_recovered = false;
        late::scan(instance);
        instance.schedules.doubt();
        tally::doubt(instance);
        // In one that was awake the ring has turned since that was read.
        if let Some(ledger) = LEDGER.take().filter(|_| !was_awake) {
            ledger.apply(instance);
        }
        // The lanes of queues that were dropped may be in use again.
        instance.dropping.iter_mut().filter(|mark| !mark.is_open).for_each(|mark| mark.lane = 0);
        frontier.forget_ready(number);
        true
    });
    is_awake.unwrap_or(false)
}
