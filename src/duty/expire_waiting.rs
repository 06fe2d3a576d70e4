//! Ends jobs that no worker has claimed by the time by which they had to start.
//!
//! Responsible for reading the attempts in the order of that time, and for ending them unrun. Not responsible for the
//! cursor (`core::expiry`), nor for flows whose members must be cancelled first (`duty::release`).
//!
//! Invariant: the cursor moves first, under the lock, and only then the logs are read. A commit behind it moves it
//! back. What an open transaction has is marked in memory. If that transaction rolls back, the cursor moves back.

use pg_queue_core::expiry::{Position, Span};
use pg_queue_core::frontier::{Owner, TakeOne};
use pg_queue_core::totals::End;

use crate::catalog::queue;
use crate::catalog::tables::attempt as column;
use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::cursor::{self, Cursor};
use crate::duty::{Duty, Memory, Work};
use crate::error::Result;
use crate::job::outcomes::Outcomes;
use crate::job::{flow, hold, take};
use crate::log::attempt::Attempt;
use crate::log::claim;
use crate::log::edge::{self, Edges, Ending};
use crate::log::outcome::{Kind, New};
use crate::log::segment;
use crate::log::tables::Tables;
use crate::pg::fault::fault;
use crate::pg::row::Columns;
use crate::pg::scan::{Key, Probe, Scan, Snapshot};
use crate::pg::{memory, process, session, time};
use crate::shmem::{self, here};
use crate::transaction::{self, ExpiryStep, FlowStep, Step};

/// The duty.
pub const DUTY: Duty = Duty { name: "expire_waiting", is_due: None, next_at, work: Work::Items(run) };

/// At most this many jobs are ended in one transaction.
const MAX_ENDS: i64 = 1_000;
/// At most this many attempts are looked at in one transaction.
const MAX_LOOKS: usize = 20_000;
/// Attempts taken in one hold of the lock.
const ATTEMPTS_PER_HOLD: usize = 64;
/// The duty looks again after this many microseconds if an open transaction has an attempt that memory does not know.
const RETRY_AFTER_US: i64 = 1_000_000;
/// After a look that leaves more, the background worker pauses for this many times as long as the look took, if workers
/// run jobs. So a burst of jobs that expire takes at most a quarter of a core from them.
const RESTS: i64 = 3;
/// The search for the next time skips at most this many claimed attempts.
const MAX_SKIPPED: usize = 64;

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.at_wall(memory.instance.expiry.next_at(memory.wall), memory.wall)
}

/// The cursor over the times by which attempts must start.
static CURSOR: cursor::Kind = cursor::Kind {
    go_back: |slot, from| slot.expiry.go_back(from),
    ends: |slot, next| {
        slot.expiry.ends(next);
        slot.expiry.next_at(i64::MAX) < i64::MAX
    },
};

/// Moves the cursor to now. Returns it with the span to read, and whether this look must leave time to workers.
fn advance() -> Option<(Cursor, Span, bool)> {
    let instance = here::number();
    let now = time::now_us();
    let (cursor, (span, is_beside)) = Cursor::advance(&CURSOR, |frontier, slot| {
        let span = slot.expiry.begin(now);
        // A session that calls queue.maintain() ends everything in one call.
        let is_beside = slot.worker.pid == session::pid() && frontier.running.next_deadline(slot.deadlines).is_some();
        if span.is_set_back {
            // What memory has dropped as expired may be claimed once more.
            frontier.invalidate(instance);
        }
        (span.from, (span, is_beside))
    })?;
    // Each session that is woken wakes the next one if it leaves jobs behind.
    if span.is_set_back
        && let Some(session) = shmem::with(|shared| shared.frontier.wake_any_lane(instance))
    {
        shmem::wake(session);
    }
    Some((cursor, span, is_beside))
}

fn run(care: &Care) -> Result<i64> {
    let began = time::now_us();
    let Some((mut cursor, span, is_beside)) = advance() else { return Ok(0) };
    transaction::register();
    let mut look = Look {
        from: span.from,
        care,
        ended: 0,
        has_step: false,
        left: None,
        rest: None,
        again: time::now_us().saturating_add(RETRY_AFTER_US),
    };
    let next = look.read(span)?;
    let (ended, left, rest, again) = (look.ended, look.left, look.rest, look.again);
    let now = time::now_us();
    let pause = if is_beside { RESTS * (now - began).max(0) } else { 0 };
    shmem::with_instance(|_, slot| {
        if let Some((at, id)) = left {
            slot.expiry.go_back_until((at, id.saturating_sub(1)), again);
        }
        if let Some(rest) = rest {
            slot.expiry.go_back_until(rest, now + pause);
        }
    });
    cursor.next = Some(next);
    Ok(ended)
}

/// One segment's attempts in the order of time and id.
struct Source<'a> {
    tables: &'a Tables,
    scan: Scan<'a>,
    /// True if the scan reads only the rest of the first time.
    is_first: bool,
    from: i64,
    head: Option<Position>,
}

impl<'a> Source<'a> {
    fn new(tables: &'a Tables, (at, id): Position) -> Self {
        // No b-tree condition says "(start_by, id) > (a, b)" without a walk.
        let keys = [Key::at(1, at), Key::gt_i64(2, id)];
        let scan = tables.attempt.scan(tables.by_start_by(), &keys, Snapshot::Now);
        let mut source = Self { tables, scan, is_first: true, from: at, head: None };
        source.advance();
        source
    }

    fn advance(&mut self) {
        loop {
            while self.scan.next().is_some() {
                // This transaction has inserted it. Its commit moves the cursor back.
                if !self.scan.is_own() {
                    let row = self.scan.current();
                    self.head = Some((row.i64(column::START_BY), row.i64(column::ID)));
                    return;
                }
            }
            if !std::mem::take(&mut self.is_first) {
                self.head = None;
                return;
            }
            let keys = [Key::after(1, self.from)];
            self.scan = self.tables.attempt.scan(self.tables.by_start_by(), &keys, Snapshot::Now);
        }
    }
}

/// What one transaction does.
struct Look<'a> {
    from: Position,
    care: &'a Care,
    ended: i64,
    /// True if the step is recorded that a rollback undoes.
    has_step: bool,
    /// The first attempt that has to be looked at again, by the time `again`.
    left: Option<Position>,
    again: i64,
    /// The last attempt that was read, if more may have expired behind it.
    rest: Option<Position>,
}

impl Look<'_> {
    /// Ends what has expired in a span. Returns the time before which nothing else expires behind what was read.
    fn read(&mut self, span: Span) -> Result<i64> {
        let mut tables = Tables::open_all(segment::inhabited());
        tables.retain(|tables| !tables.is_empty());
        let mut sources: Vec<Source<'_>> = tables.iter().map(|tables| Source::new(tables, span.from)).collect();
        let (mut looks, mut skipped) = (0, 0);
        let mut chunk: Vec<Attempt> = memory::list(ATTEMPTS_PER_HOLD);
        let mut next = i64::MAX;
        while let Some(source) = sources.iter_mut().filter(|source| source.head.is_some()).min_by_key(|s| s.head) {
            let Some((at, id)) = source.head else { break };
            let claim = source.tables.claim_of(id);
            if at > span.to {
                if claim.is_some() && skipped < MAX_SKIPPED {
                    skipped += 1;
                    source.advance();
                    continue;
                }
                next = at;
                break;
            }
            match claim {
                Some(true) => {}
                Some(false) => self.meets_open(at, id),
                None => chunk.push(Attempt::new(source.scan.row(), source.tables.home)),
            }
            source.advance();
            looks += 1;
            if chunk.len() == ATTEMPTS_PER_HOLD {
                self.end_all(&mut chunk)?;
                process::check_for_interrupts();
            }
            if looks == MAX_LOOKS || self.ended + chunk.len() as i64 >= MAX_ENDS {
                self.end_all(&mut chunk)?;
                self.rest = Some((at, id));
                return Ok(i64::MAX);
            }
        }
        self.end_all(&mut chunk)?;
        Ok(next)
    }

    /// Notes an attempt that an open transaction has, for the case that it rolls back.
    fn meets_open(&mut self, at: i64, id: i64) {
        let number = here::number();
        let is_known = shmem::with_instance(|frontier, slot| {
            let is_marked = frontier.running.mark_late(number, id);
            if is_marked {
                slot.expiry.marks(at);
            }
            is_marked || frontier.entry(number, id).is_some()
        });
        if is_known != Some(true) {
            self.leaves(at, id);
        }
    }

    fn leaves(&mut self, at: i64, id: i64) {
        self.left = Some(self.left.map_or((at, id), |left| left.min((at, id))));
    }

    fn end_all(&mut self, chunk: &mut Vec<Attempt>) -> Result<()> {
        if chunk.is_empty() {
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_step, true) {
            transaction::record(ExpiryStep::Ends { from: self.from });
        }
        let attempts = std::mem::take(chunk);
        let care = self.care;
        for some in attempts.chunks(care.together(attempts.len())) {
            let what = || format!("job {} could not be ended as expired", some[0].job_id());
            if care.serve(what, || self.end(some))?.is_none() {
                some.iter().for_each(|one| self.leaves(one.start_by().unwrap_or_default(), one.id()));
                self.again = self.again.max(time::now_us().saturating_add(PUT_OFF_US));
            }
        }
        Ok(())
    }

    /// Ends attempts that have expired.
    ///
    /// Errors: 55006 if an open transaction has inserted an outcome meanwhile, 53400 when `running` is full.
    fn end(&mut self, attempts: &[Attempt]) -> Result<()> {
        let mut waiting: Vec<&Attempt> = memory::list(attempts.len());
        for attempt in attempts {
            match queue::by_lane(attempt.lane())? {
                None => {}
                Some(queue) if flow::is_flow(attempt) && queue.is_held(attempt.lane()) => self.end_flow(attempt),
                Some(_) => waiting.push(attempt),
            }
        }
        let taken = self.take(&waiting);
        fault!("expire_waiting.taken");
        let mut outcomes = Outcomes::new();
        for &attempt in &self.claim(taken) {
            outcomes.add_unrun(attempt.home, New::of(attempt.id(), Kind::Expired));
            let end = End { outcome: Kind::Expired.char(), has_next: false };
            transaction::record(Step::EndCounted { lane: attempt.lane(), end });
            self.ended += 1;
        }
        outcomes.insert()
    }

    /// Asks for the end of a flow, whose members are cancelled first.
    fn end_flow(&mut self, attempt: &Attempt) {
        let (id, job_id) = (attempt.id(), attempt.job_id());
        let edges = Edges::open(attempt.home.segment);
        if edges.is_some_and(|edges| edges.ending_of(id).is_some()) {
            return;
        }
        let ending = Ending { is_forced: false, dead: None, is_expired: true, reason: None };
        flow::hold_open(job_id);
        let insert = |home| edge::insert_ending(home, id, job_id, &ending);
        match hold::note_held(id, attempt.home, insert) {
            hold::Noted::Here(Probe::Absent) => {
                transaction::record(FlowStep::Awaited { job_id, mark: None });
                self.ended += 1;
            }
            _ => self.leaves(attempt.start_by().unwrap_or_default(), id),
        }
    }

    /// Takes attempts in memory, in one hold of the lock. Returns those that this transaction has then.
    fn take<'a>(&mut self, attempts: &[&'a Attempt]) -> Vec<&'a Attempt> {
        let number = here::number();
        transaction::reserve(attempts.len());
        let owner = Owner { session: session::session(), pid: session::pid() };
        let mut taken = memory::list(attempts.len());
        let mut left = memory::list(attempts.len());
        shmem::with_instance(|frontier, slot| {
            for &attempt in attempts {
                let (ready, at) = (attempt.ready(), attempt.start_by().unwrap_or_default());
                let is_due = attempt.run_at().is_none_or(|at| at <= slot.due.to);
                let root = &mut slot.deadlines;
                match frontier.take_one(root, number, attempt.lane(), owner, ready, is_due) {
                    TakeOne::Taken => taken.push(attempt),
                    TakeOne::Busy if frontier.running.mark_late(number, ready.id) => slot.expiry.marks(at),
                    // A worker has claimed it a moment ago, or memory will learn of its end.
                    TakeOne::Busy | TakeOne::Full => left.push((at, ready.id)),
                }
            }
        });
        left.into_iter().for_each(|(at, id)| self.leaves(at, id));
        let step = |attempt: &&Attempt| Step::EndedUnrun { id: attempt.id(), lane: attempt.lane() };
        transaction::record_all(taken.iter().map(step));
        taken
    }

    /// Inserts the claims of taken attempts. Returns those that no other transaction has claimed.
    fn claim<'a>(&mut self, taken: Vec<&'a Attempt>) -> Vec<&'a Attempt> {
        let (now, mut claimed) = (time::now_us(), memory::list(taken.len()));
        for of_home in taken.chunk_by(|a, b| a.home == b.home) {
            let Some(first) = of_home.first() else { continue };
            let ids: Vec<claim::New> = of_home.iter().map(|attempt| claim::New::plain(attempt.id(), 0)).collect();
            let writer = claim::Writer::open_home(first.home);
            let lost = writer.map(|writer| writer.insert(&ids, now, claim::Kind::System, None));
            for (n, &attempt) in of_home.iter().enumerate() {
                if lost.as_ref().is_some_and(|lost| !lost.contains(&n)) {
                    claimed.push(attempt);
                } else {
                    // It has moved, or is claimed. The next look sees which.
                    take::forget_taken(attempt.id());
                    self.leaves(attempt.start_by().unwrap_or_default(), attempt.id());
                }
            }
        }
        claimed
    }
}
