//! The `note` log: facts about a running attempt that must survive a crash.

use pgrx::pg_sys::{Datum, Oid};

use crate::catalog;
use crate::catalog::run_as::RunAs;
pub(super) use crate::catalog::tables::note as column;
use crate::log::attempt::New;
use crate::log::segment::Home;
use crate::pg::datum::{Interval, stored_size};
use crate::pg::row::{Columns as _, NewRows, Row};
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::{Entry, Relation};
use crate::pg::{jsonb, process, time};

/// The kind of a note that says that a predecessor has completed; see `edge`.
pub(super) const MET: u8 = b'n';
/// In place of a predecessor: the seal of an open flow.
pub const SEAL: i64 = 0;

/// The kinds of notes about a running attempt, as they are stored.
const PROGRESS: u8 = b'p';
const CANCEL_REQUESTED: u8 = b'c';
const LEASE: u8 = b'l';
const STEP: u8 = b't';
/// The kinds of notes about another run: one is requested; those up to a call were made, or are no longer needed.
const RERUN: u8 = b'r';
const SERVED: u8 = b's';

/// A note about a running attempt.
#[derive(Clone, Copy)]
pub enum Note {
    /// The worker reported progress.
    Progress(Datum),
    /// The attempt is to be cancelled: the body of [`Cancel`].
    CancelRequested(Option<Datum>),
    /// The lease was made longer than the claim's: microseconds.
    Lease(i64),
    /// A step is done: an object with a field of the step's name.
    Step(Datum),
}

impl Note {
    fn row(self, id: i64) -> column::Row {
        match self {
            Self::Progress(body) => column::Row { body: Some(body), ..noted(id, PROGRESS) },
            Self::CancelRequested(body) => column::Row { body, ..noted(id, CANCEL_REQUESTED) },
            Self::Lease(lease) => column::Row { lease_us: Some(lease), ..noted(id, LEASE) },
            Self::Step(body) => column::Row { body: Some(body), ..noted(id, STEP) },
        }
    }
}

/// A producer's request for another run of a job.
#[derive(Clone, Copy)]
pub struct Rerun {
    /// Ascends with each call under the key, see `rerun::is_newer`.
    pub asked: i64,
    pub payload: Option<Datum>,
    pub headers: Option<Datum>,
    /// What the call has said about the job's times: see `job::timing`.
    pub timing: Option<Datum>,
    pub priority: i32,
    pub run_at: Option<i64>,
    pub version: Option<i64>,
    /// `None`: the job's value.
    pub max_attempts: Option<i32>,
    /// `None`: the job's value.
    pub lease: Option<Interval>,
    /// The role that has written the payload, as which the job runs.
    pub run_as: Option<RunAs>,
}

/// A note of another run that was read.
pub struct Asked(Row);

impl Asked {
    /// Returns the request. It is valid as long as this note.
    pub fn rerun(&self) -> Rerun {
        let row = column::Row::read(&self.0);
        Rerun {
            asked: row.asked.unwrap_or(0),
            payload: row.body,
            headers: row.headers,
            timing: row.timing,
            priority: row.priority.unwrap_or(0),
            run_at: row.run_at,
            version: row.version,
            max_attempts: row.max_attempts,
            lease: row.lease,
            run_as: RunAs::of(row.run_as, row.run_as_id),
        }
    }
}

/// Opens the notes for an attempt of this home, to write. `None`: the segment has another generation now.
pub(super) fn open_home(home: Home) -> Option<Relation> {
    let table = Relation::write(catalog::segment(home.segment).note);
    if home.is_valid() {
        return Some(table);
    }
    table.unlock();
    None
}

/// Returns a note of this moment about an attempt.
fn noted(id: i64, kind: u8) -> column::Row {
    column::Row { id, noted_at: time::now_us(), kind, ..column::Row::BLANK }
}

/// Inserts a note that requests another run. Returns false as `insert` does.
pub fn insert_rerun(home: Home, id: i64, rerun: &Rerun) -> bool {
    let Some(table) = open_home(home) else { return false };
    let Rerun { asked, payload, headers, timing, priority, run_at, version, max_attempts, lease, run_as } = *rerun;
    let row = column::Row {
        body: payload,
        asked: Some(asked),
        priority: Some(priority),
        max_attempts,
        run_at,
        version,
        lease,
        headers,
        timing,
        run_as: run_as.map(|role| role.name),
        run_as_id: run_as.map(|role| role.id),
        ..noted(id, RERUN)
    };
    let index = Relation::write_index(catalog::segment(home.segment).note_rerun);
    table.insert_row(
        row.values(),
        &mut [Entry { index: &index, is_unique: false, key: &mut [id.into(), rerun.asked.into()] }],
    );
    true
}

/// Inserts a note that the run of this call and of earlier calls was made, or is no longer needed. Inserts nothing if
/// the attempt's home has another generation now.
pub fn insert_served(home: Home, id: i64, asked: i64) {
    let oids = catalog::segment(home.segment);
    let table = Relation::write(oids.note);
    if !home.is_valid() {
        table.unlock();
        return;
    }
    // The note comes behind the call's own note and before that of the next call, because the low bits of a call's
    // number are 0.
    let asked = asked | 1;
    let row = column::Row { asked: Some(asked), ..noted(id, SERVED) };
    let index = Relation::write_index(oids.note_rerun);
    table.insert_row(
        row.values(),
        &mut [Entry { index: &index, is_unique: false, key: &mut [id.into(), asked.into()] }],
    );
}

/// Returns the newest request for another run after an attempt, if that run was not made. It reads only this note, even
/// if there are many.
pub fn newest_rerun(segment: u8, id: i64) -> Option<Asked> {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    if table.blocks() == 0 {
        return None;
    }
    let index = Relation::read_index(oids.note_rerun);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Now);
    scan.previous()?;
    let row = scan.row();
    (row.char(column::KIND) == RERUN).then(|| Asked(row))
}

/// As `newest_rerun`, and also whether the note is of an open transaction. A key has one producer at a time, so if any
/// note is of an open transaction, the newest is.
pub fn newest_rerun_even_open(segment: u8, id: i64) -> Option<(Asked, bool)> {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    if table.blocks() == 0 {
        return None;
    }
    let index = Relation::read_index(oids.note_rerun);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    scan.previous()?;
    let (row, is_open) = (scan.row(), scan.is_in_progress());
    (is_open || row.char(column::KIND) == RERUN).then(|| (Asked(row), is_open))
}

/// Returns another open transaction that has requested another run after an attempt. A key has one producer at a time,
/// so the newest note is of that transaction.
pub fn open_producer(segment: u8, id: i64) -> Option<u32> {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    let index = Relation::read_index(oids.note_rerun);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    scan.previous()?;
    scan.inserter()
}

/// Returns the attempts of a segment, ascending, after which another run was requested.
pub fn with_rerun(segment: u8) -> Vec<i64> {
    ids_with(segment, catalog::segment(segment).note_rerun, |_| true)
}

/// Returns the attempts of a segment, ascending, with a request to cancel.
pub fn with_cancel(segment: u8) -> Vec<i64> {
    ids_with(segment, catalog::segment(segment).note_id, |kind| kind == CANCEL_REQUESTED)
}

/// Returns the attempts with notes of these kinds, by an index.
fn ids_with(segment: u8, index: Oid, is_wanted: impl Fn(u8) -> bool) -> Vec<i64> {
    let table = Relation::read(catalog::segment(segment).note);
    if table.blocks() == 0 {
        return Vec::new();
    }
    let index = Relation::read_index(index);
    let mut scan = table.scan(&index, &[], Snapshot::Now);
    let mut ids: Vec<i64> = Vec::new();
    for n in 1_u32.. {
        if scan.next().is_none() {
            break;
        }
        let (values, _) = scan.columns(column::KIND + 1);
        let id = values[column::ID].value() as i64;
        if is_wanted(values[column::KIND].value() as u8) && ids.last() != Some(&id) {
            ids.push(id);
        }
        // There may be very many notes of progress.
        if n.is_multiple_of(1024) {
            process::check_for_interrupts();
        }
    }
    ids
}

/// Inserts a note. Returns false if the attempt's home has another generation now; nothing is inserted then. See
/// `hold::write_note`.
pub fn insert(home: Home, id: i64, note: Note) -> bool {
    let Some(table) = open_home(home) else { return false };
    let row = note.row(id);
    let index = Relation::write_index(catalog::segment(home.segment).note_id);
    table.insert_row(row.values(), &mut [Entry { index: &index, is_unique: false, key: &mut [id.into()] }]);
    true
}

/// Copies notes unchanged into a segment.
pub fn copy(segment: u8, notes: &[Row]) {
    if notes.is_empty() {
        return;
    }
    let oids = catalog::segment(segment);
    let table = Relation::write(oids.note);
    let mut rows = NewRows::new(column::COUNT, notes.len());
    for row in notes {
        rows.add::<{ column::COUNT }>(std::array::from_fn(|n| row.get(n)));
    }
    let tids = table.insert(&mut rows);
    // The conditions of the indexes are those of their definitions.
    let asked = |n: usize| notes[n].get(column::ASKED);
    Relation::write_index(oids.note_id).insert_entries(&table, &tids, false, |n| {
        notes[n].get(column::ID).filter(|_| asked(n).is_none()).map(|id| [id])
    });
    if (0..notes.len()).any(|n| asked(n).is_some()) {
        Relation::write_index(oids.note_rerun)
            .insert_entries(&table, &tids, false, |n| Some([notes[n].get(column::ID)?, asked(n)?]));
    }
    let job_id = |n: usize| notes[n].get(column::JOB_ID);
    if (0..notes.len()).any(|n| job_id(n).is_some()) {
        Relation::write_index(oids.note_job)
            .insert_entries(&table, &tids, false, |n| Some([job_id(n)?, notes[n].get(column::ID)?]));
    }
}

/// Returns the notes of an attempt that still count: the newest of each kind, and the longest lease. `None`: an open
/// transaction is writing one.
pub fn all_settled(segment: u8, id: i64) -> Option<Vec<Row>> {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    if table.blocks() == 0 {
        return Some(Vec::new());
    }
    let index = Relation::read_index(oids.note_id);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    let mut summary = Summary::default();
    while scan.next().is_some() {
        if scan.is_in_progress() {
            return None;
        }
        summary.add(scan.row());
    }
    drop(scan);
    let mut notes = summary.into_rows();
    let index = Relation::read_index(oids.note_rerun);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    if scan.previous().is_some() {
        if scan.is_in_progress() {
            return None;
        }
        notes.push(scan.row());
    }
    Some(notes)
}

/// Returns whether there is a request to cancel an attempt. `Some(true)`: the transaction that requests it is open.
/// `None`: there is no such note.
pub fn cancel_even_open(segment: u8, id: i64) -> Option<bool> {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    if table.blocks() == 0 {
        return None;
    }
    let index = Relation::read_index(oids.note_id);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    let mut found = None;
    while scan.next().is_some() {
        if scan.row().char(column::KIND) == CANCEL_REQUESTED {
            found = Some(scan.is_in_progress() || found == Some(true));
        }
    }
    found
}

/// Returns the sum of a measure of the steps of an attempt, with those that open transactions have noted.
pub fn steps_size(segment: u8, id: i64, measure: fn(Datum) -> usize) -> usize {
    let oids = catalog::segment(segment);
    let table = Relation::read(oids.note);
    let index = Relation::read_index(oids.note_id);
    let mut scan = table.scan(&index, &[Key::eq_i64(1, id)], Snapshot::Dirty);
    let mut bytes = 0;
    while scan.next().is_some() {
        let row = scan.current();
        if row.char(column::KIND) == STEP {
            bytes += row.get(column::BODY).map_or(0, measure);
        }
    }
    bytes
}

/// Returns the stored size of a note's body.
pub fn size(note: &Row) -> usize {
    note.get(column::BODY).map_or(0, stored_size)
}

/// The facts of all notes of an attempt.
#[derive(Default)]
pub struct Summary {
    newest_progress: Option<(i64, Row)>,
    cancel: Option<Cancel>,
    longest_lease: Option<(i64, Row)>,
    steps: Vec<Row>,
    /// True if the attempt is an open flow that has been sealed.
    pub is_sealed: bool,
}

/// A request to cancel the attempt.
pub struct Cancel(Row);

impl Cancel {
    /// Returns the body of a request with this reason.
    pub fn new_body(reason: Option<&str>) -> Option<Datum> {
        jsonb::of(&serde_json::json!({ "reason": reason? }))
    }

    /// Returns its body.
    pub fn body(&self) -> Option<Datum> {
        self.0.get(column::BODY)
    }

    /// Returns the reason.
    pub fn reason(&self) -> Option<String> {
        jsonb::text_field(self.body()?, "reason")
    }
}

impl Summary {
    fn add(&mut self, row: Row) {
        match row.char(column::KIND) {
            PROGRESS => {
                let at = row.i64(column::NOTED_AT);
                if self.newest_progress.as_ref().is_none_or(|(known, _)| *known <= at) {
                    self.newest_progress = Some((at, row));
                }
            }
            CANCEL_REQUESTED => self.cancel = Some(Cancel(row)),
            LEASE => {
                let lease = row.get(column::LEASE_US).map_or(0, |d| d.value() as i64);
                if self.lease() < lease {
                    self.longest_lease = Some((lease, row));
                }
            }
            STEP => self.steps.push(row),
            MET => self.is_sealed |= row.i64(column::JOB_ID) == SEAL,
            _ => {}
        }
    }

    fn into_rows(self) -> Vec<Row> {
        let Self { newest_progress, cancel, longest_lease, steps, is_sealed: _ } = self;
        let rows =
            [newest_progress.map(|(_, row)| row), cancel.map(|Cancel(row)| row), longest_lease.map(|(_, row)| row)];
        rows.into_iter().flatten().chain(steps).collect()
    }

    /// Returns the longest noted lease, in microseconds.
    pub fn lease(&self) -> i64 {
        self.longest_lease.as_ref().map_or(0, |(lease, _)| *lease)
    }

    /// Returns the request to cancel, if there is one.
    pub fn cancel(&self) -> Option<&Cancel> {
        self.cancel.as_ref()
    }

    /// Returns the steps of this attempt and of earlier ones: an object with a field for each. It is valid as long as
    /// this value and `before`.
    pub fn steps(&self, before: Option<Datum>) -> Option<Datum> {
        let done = self.steps.iter().filter_map(|row| row.get(column::BODY));
        jsonb::joined(before.into_iter().chain(done).collect())
    }

    /// True if this attempt or an earlier one has done a step.
    pub fn has_steps(&self, before: Option<Datum>) -> bool {
        before.is_some() || !self.steps.is_empty()
    }

    /// Hands progress and steps of this attempt to the next one. The datums are valid as long as this value.
    pub fn hand_on(&self, next: &mut New) {
        next.progress = self.progress().or(next.progress);
        next.steps = self.steps(next.steps);
    }

    /// Returns the last reported progress.
    pub fn progress(&self) -> Option<Datum> {
        self.newest_progress.as_ref().and_then(|(_, row)| row.get(column::BODY))
    }
}

/// A segment's notes, open for many questions.
pub struct Reader {
    table: Relation,
    index: Relation,
    is_empty: bool,
    snapshot: Snapshot,
}

impl Reader {
    /// Opens them.
    pub fn open(segment: u8, snapshot: Snapshot) -> Self {
        let oids = catalog::segment(segment);
        let table = Relation::read(oids.note);
        Self { is_empty: table.blocks() == 0, index: Relation::read_index(oids.note_id), table, snapshot }
    }

    /// True if the segment has notes now, and had none when this was opened.
    pub fn is_outdated(&self) -> bool {
        self.is_empty && self.table.blocks() > 0
    }

    /// Reads all notes of an attempt.
    pub fn summary(&self, id: i64) -> Summary {
        if self.is_empty { Summary::default() } else { summarize(&self.table, &self.index, id, self.snapshot) }
    }
}

/// Reads all notes of an attempt.
pub fn summary(segment: u8, id: i64) -> Summary {
    Reader::open(segment, Snapshot::Now).summary(id)
}

fn summarize(table: &Relation, index: &Relation, id: i64, snapshot: Snapshot) -> Summary {
    let mut summary = Summary::default();
    let mut scan = table.scan(index, &[Key::eq_i64(1, id)], snapshot);
    while scan.next().is_some() {
        summary.add(scan.row());
    }
    summary
}
