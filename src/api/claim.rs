//! `queue.claim`, `claim_any`: take the next attempts, or sleep until there are some.
//!
//! Taking happens in the frontier under a short lock; then the row is read by its place, the claim's key
//! is probed (a stale entry dies there), and the claims are inserted together. The transaction's end
//! decides: commit starts the leases, abort puts the attempts back.

use std::rc::Rc;

use pg_queue_core::frontier::{Claimer, GATE_LANES, Lanes, Ready, Take, WAIT_LANES, Wait};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::api::complete::complete_all;
use crate::api::{self, lease_us};
use crate::call::{Call, Interval, Rows, sql_function, text_datum};
use crate::error::{self, Error, Result};
use crate::hold::{self, Patience};
use crate::instance::{self, Catalog};
use crate::limits::Guest;
use crate::log::attempt::{Attempt, Reader};
use crate::log::claim::{self, Kind};
use crate::log::table::Probe;
use crate::permission::{self, Privilege};
use crate::queue::{self, Queue};
use crate::refill::{index_ready, refill};
use crate::transaction::{self, Step};
use crate::turn::Lent;
use crate::{dormant, guc, limits, shmem, sys};

sql_function!(pg_queue_claim, pg_finfo_pg_queue_claim => claim);
sql_function!(pg_queue_claim_any, pg_finfo_pg_queue_claim_any => claim_any);

/// Queues that one call may name.
const MOST_QUEUES: usize = 8;
/// Attempts taken in one hold of the lock.
const CHUNK: usize = 64;

/// What a worker asks for.
struct Wish {
    max_jobs: usize,
    lease: Option<i64>,
    worker: Option<String>,
    kind: Kind,
}

/// `queue.claim(queue_name, …)`.
fn claim(call: &Call) -> Result<Option<Datum>> {
    let name = call.required("queue_name", call.str(0))?;
    run(call, &[name])
}

/// `queue.claim_any(queue_names, …)`.
fn claim_any(call: &Call) -> Result<Option<Datum>> {
    let names = call.required("queue_names", call.text_array(0))?;
    let name = |(n, name): (usize, Option<String>)| name.ok_or_else(|| Error::null(&format!("queue_names[{}]", n + 1)));
    let names = names.into_iter().enumerate().map(name).collect::<Result<Vec<_>>>()?;
    if names.is_empty() || names.len() > MOST_QUEUES {
        return Err(Error::invalid(format!("queue_names must name 1 to {MOST_QUEUES} queues"))
            .detail(format!("It names {}.", names.len())));
    }
    run(call, &names)
}

fn run(call: &Call, names: &[impl AsRef<str>]) -> Result<Option<Datum>> {
    api::on_primary("claim")?;
    let max_jobs = call.i32(1).unwrap_or(1);
    if max_jobs < 1 {
        return Err(Error::invalid("max_jobs must be at least 1").detail(format!("It is {max_jobs}.")));
    }
    let wait = call.interval(2).map_or(0, Interval::us);
    if wait < 0 {
        return Err(Error::invalid("wait cannot be negative"));
    }
    let stage = call.text(4);
    let stage = stage.as_deref();
    let wish = Wish {
        max_jobs: max_jobs as usize,
        lease: call.interval(3).map(lease_us).transpose()?,
        worker: call.text(5),
        kind: if call.bool(6).unwrap_or(false) { Kind::Bound } else { Kind::Worker },
    };
    let rows = call.rows()?;
    let mut known = Known::now(names, stage, wait > 0)?;
    if let Some(completed) = call.i64_array(7) {
        dormant::refuse(&known.catalog)?;
        complete_all(&known.catalog, &completed)?;
    }
    // Who does not wait need not ask for the time.
    let deadline = if wait > 0 { sys::monotonic_us().saturating_add(longest_wait(wait)) } else { 0 };
    let mut sleeper: Option<Sleeper> = None;
    let mut stale_since = None;
    loop {
        let came = claim_first(&known, &wish, &rows)?;
        let Came::To(claimed) = came else {
            if is_in_vain(&mut stale_since) {
                return Ok(None);
            }
            known = Known::now(names, stage, wait > 0)?;
            continue;
        };
        // Who was woken hands the wake-up on only after he has looked: one job wakes one.
        drop(sleeper.take());
        if claimed > 0 || !may_sleep(deadline) {
            return Ok(None);
        }
        if let Some(mut waiting) = Sleeper::begin(&known)? {
            // Nobody would do what a client that has gone is given: it hands the wake-up on, and comes to its end.
            if !waiting.sleep(deadline) || sys::is_client_gone() {
                return Ok(None);
            }
            sleeper = Some(waiting);
        }
        // The world may have changed meanwhile: a queue altered, resumed, dropped.
        known = Known::now(names, stage, true)?;
    }
}

/// Queues as this session knows them, and as of which change.
pub struct Known {
    /// The instance.
    pub catalog: Rc<Catalog>,
    /// In the order of the names.
    pub queues: Vec<Rc<Queue>>,
    /// The lane that is wanted of each; `None`: all of all.
    stages: Option<Vec<i32>>,
    /// They are being restored: there is nothing to find.
    pub is_dormant: bool,
    changes: u64,
}

impl Known {
    /// Looks the queues up. In the middle of a transaction nothing else may have listened to what others have
    /// changed: a pause counts at once. Who will not sleep need not ask for the number of changes.
    ///
    /// Errors: 42704 when there is no queue of one of the names, 42501 when the user may not consume one, 22023 when one
    /// has no such stage, 53400 when they have too many to sleep for.
    pub fn now(names: &[impl AsRef<str>], stage: Option<&str>, may_sleep: bool) -> Result<Self> {
        let mut changes = 0;
        if may_sleep {
            let number = instance::current()?.number;
            // Changes are counted after they are announced, so what is counted here is heard of below.
            changes = shmem::with_instance(number, |_, instance| instance.changes).unwrap_or(0);
        }
        sys::accept_invalidations();
        let catalog = instance::current()?;
        let queues = names.iter().map(|name| queue::by_name(&catalog, name.as_ref())).collect::<Result<Vec<_>>>()?;
        queues.iter().try_for_each(|queue| permission::check(&catalog, queue, Privilege::Consume))?;
        let stages = stage.map(|stage| queues.iter().map(|queue| queue.stage(stage)).collect()).transpose()?;
        let is_dormant = !dormant::learn(&catalog);
        let known = Self { catalog, queues, stages, is_dormant, changes };
        if may_sleep {
            known.check_lanes()?;
        }
        Ok(known)
    }

    /// Each queue with the lanes that are wanted of it.
    pub fn each(&self) -> impl Iterator<Item = (&Queue, &[i32])> {
        self.queues.iter().enumerate().map(|(n, queue)| {
            let lanes = self.stages.as_ref().map_or(queue.lanes(), |lanes| std::slice::from_ref(&lanes[n]));
            (&**queue, lanes)
        })
    }

    fn check_lanes(&self) -> Result<()> {
        let lanes: usize = self.each().map(|(_, lanes)| lanes.len()).sum();
        if lanes <= WAIT_LANES {
            return Ok(());
        }
        Err(Error::new(error::LIMIT, "these queues have too many stages to wait for at once")
            .detail(format!("They have {lanes} lanes; a call can wait for {WAIT_LANES}. A queue with stages has one more lane than stages."))
            .hint("Name fewer queues, name a stage, or do not wait."))
    }
}

/// How long a call may sleep, in microseconds: as asked, at most pg_queue.max_wait, and a little less than
/// what statement_timeout leaves, so that it ends with an empty answer and not with an error.
pub fn longest_wait(wait: i64) -> i64 {
    const MARGIN: i64 = 20_000;
    let most = i64::from(guc::MAX_WAIT.get()) * 1_000;
    let left = sys::statement_deadline_us().map_or(i64::MAX, |at| at - sys::now_us() - MARGIN);
    wait.min(most).min(left).max(0)
}

/// Whether the call may sleep on: there is time left, and this transaction has not written and would see
/// what it waits for.
fn may_sleep(deadline: i64) -> bool {
    sys::monotonic_us() < deadline && !sys::has_xid() && !sys::uses_one_snapshot()
}

/// A session that stands in the lists of those who wait. However it leaves, a wake-up that leaves jobs
/// behind goes to the next.
pub struct Sleeper(());

impl Sleeper {
    /// Begins to wait; `None` when there is something to look at first.
    ///
    /// Errors: 53400 when shared memory has no room for one of the lanes.
    pub fn begin(known: &Known) -> Result<Option<Self>> {
        let lanes: Vec<(i32, bool)> =
            known.each().flat_map(|(q, lanes)| lanes.iter().map(|&lane| (lane, q.is_paused))).collect();
        let closed: Vec<(i32, bool)> = lanes.iter().map(|&(lane, _)| (lane, true)).collect();
        let number = known.catalog.number;
        let mut worker = None;
        let answer = shmem::with_instance(number, |frontier, instance| {
            let is_news = instance.changes != known.changes;
            let lanes = if instance.dormancy.is_awake() { &lanes } else { &closed };
            let answer = if is_news { Wait::Look } else { frontier.wait(sys::session(), number, lanes) };
            // The worker opens gates that a rate has closed.
            let at = frontier.next_opening().filter(|_| answer == Wait::Sleep);
            worker = at.and_then(|at| transaction::plan(instance, at));
            answer
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        match answer.unwrap_or(Wait::Look) {
            Wait::Sleep => Ok(Some(Self(()))),
            Wait::Look => Ok(None),
            Wait::NoLane => Err(lanes_full()),
        }
    }

    /// Sleeps until woken (true) or until the deadline, on the monotonic clock.
    pub fn sleep(&mut self, deadline: i64) -> bool {
        loop {
            if shmem::with(|shared| shared.frontier.is_woken(sys::session())) {
                return true;
            }
            let left = deadline - sys::monotonic_us();
            if left <= 0 {
                return false;
            }
            sys::sleep((left + 999) / 1_000);
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(next) = shmem::with(|shared| shared.frontier.stop_waiting(sys::session())) {
            shmem::wake(next);
        }
    }
}

fn lanes_full() -> Error {
    Error::new(error::LIMIT, "too many queues are waited for at once")
        .detail(format!("Shared memory has room for {} lanes.", guc::MAX_LANES.get()))
        .hint("Raise pg_queue.max_lanes and restart the server.")
}

/// What a look for jobs came to.
enum Came {
    /// So many were claimed.
    To(usize),
    /// To nothing so far. The settings are to be read anew before it goes on: two calls that know other limits of a queue
    /// make its gate anew in turns, each of them undoing what the other has found.
    Stale,
}

/// Whether it is time to give up: somebody else may have settings of his own for as long as he likes.
fn is_in_vain(since: &mut Option<i64>) -> bool {
    /// Microseconds; a refill that passes very many attempts is done with that much sooner.
    const AT_MOST: i64 = 10_000_000;
    let now = sys::monotonic_us();
    sys::check_for_interrupts();
    now.saturating_sub(*since.get_or_insert(now)) > AT_MOST
}

/// Claims from the first queue that has jobs.
fn claim_first(known: &Known, wish: &Wish, rows: &Rows) -> Result<Came> {
    for (queue, lanes) in known.each().filter(|(queue, _)| !queue.is_paused) {
        match claim_from(&known.catalog, queue, lanes, wish, rows)? {
            Came::To(0) => {}
            came => return Ok(came),
        }
    }
    Ok(Came::To(0))
}

fn claim_from(catalog: &Rc<Catalog>, queue: &Queue, lanes: &[i32], wish: &Wish, rows: &Rows) -> Result<Came> {
    /// So many turns bring something, or the end.
    const TURNS: usize = 64;
    let guest = Guest::of(catalog, queue)?;
    let mut turns = 0;
    let mut taking = Taking::new(catalog, queue, lanes, wish, rows);
    let mut claimed = 0;
    while claimed < wish.max_jobs {
        turns += 1;
        if turns > TURNS && claimed == 0 && guest.is_some() {
            return Ok(Came::Stale);
        }
        let mut chunk = [Ready::default(); CHUNK];
        let want = (wish.max_jobs - claimed).min(CHUNK);
        let claimer = guest.as_ref().map(Guest::claimer);
        let Some(Took { answer, lane, due_to }) = taking.take(claimer.as_ref(), &mut chunk[..want]) else { break };
        match answer {
            Take::Some { taken, .. } => claimed += taking.claim(&chunk[..taken])?,
            Take::Turn(turn) => {
                let Some(claimer) = &claimer else { break };
                let taken = Lent::new(catalog, lane, claimer, turn, due_to).serve(&mut chunk[..want]);
                taking.remember(&[lane; CHUNK], &chunk[..taken]);
                claimed += taking.claim(&chunk[..taken])?;
                sys::check_for_interrupts();
            }
            Take::Refill => refill(catalog, lane)?,
            Take::Index => index_ready(catalog, lane),
            Take::Refilling => wait_for_refill(catalog, lane)?,
            Take::Empty => taking.lanes.done(lane),
            Take::Full if claimed == 0 => return Err(hold::running_full()),
            Take::NoLane if claimed == 0 => return Err(lanes_full()),
            Take::NoGate if claimed == 0 => return Err(limits::gates_full()),
            Take::Closed | Take::Full | Take::NoLane | Take::NoGate => break,
        }
    }
    for lane in taking.to_refill {
        refill(catalog, lane)?;
    }
    Ok(Came::To(claimed))
}

/// What one hold of the lock came to.
struct Took {
    answer: Take,
    /// Of an answer other than `Some`.
    lane: i32,
    /// Up to when jobs were due then.
    due_to: i64,
}

/// Sleeps until somebody's refill of the lane has ended. He reads and waits for nobody, so this is short.
fn wait_for_refill(catalog: &Catalog, lane: i32) -> Result<()> {
    /// Should the refiller be lost, look again after this many microseconds.
    const AT_MOST: i64 = 1_000_000;
    let (next, answer) = shmem::with(|shared| {
        if !shared.frontier.is_refilling(catalog.number, lane) {
            return (None, None);
        }
        // A wake-up for another lane, which brought this call here, is not to be forgotten.
        let next = shared.frontier.stop_waiting(sys::session());
        (next, Some(shared.frontier.wait(sys::session(), catalog.number, &[(lane, false)])))
    });
    if let Some(next) = next {
        shmem::wake(next);
    }
    match answer {
        Some(Wait::Sleep) => {
            Sleeper(()).sleep(sys::monotonic_us() + AT_MOST);
            Ok(())
        }
        Some(Wait::NoLane) => Err(lanes_full()),
        Some(Wait::Look) | None => Ok(()),
    }
}

/// The claims of one call from one queue: what it has open.
struct Taking<'a> {
    catalog: &'a Rc<Catalog>,
    queue: &'a Queue,
    lanes: Lanes,
    /// Lanes of which less than half is left in memory.
    to_refill: Vec<i32>,
    wish: &'a Wish,
    rows: &'a Rows,
    reader: Reader<'a>,
    writers: [Option<claim::Writer>; SEGMENTS],
    queue_name: Datum,
    default_lease: i64,
    /// With all that is on the move, together.
    patience: Patience,
}

impl<'a> Taking<'a> {
    fn new(catalog: &'a Rc<Catalog>, queue: &'a Queue, lanes: &[i32], wish: &'a Wish, rows: &'a Rows) -> Self {
        Self {
            catalog,
            queue,
            lanes: Lanes::new(lanes),
            to_refill: Vec::new(),
            wish,
            rows,
            reader: Reader::new(catalog),
            writers: std::array::from_fn(|_| None),
            queue_name: text_datum(&queue.name),
            default_lease: wish.lease.unwrap_or(queue.lease),
            patience: Patience::short(),
        }
    }

    /// Takes attempts in the frontier and remembers to give them back. `None`: there is nothing in any lane.
    fn take(&mut self, claimer: Option<&Claimer<'_>>, out: &mut [Ready]) -> Option<Took> {
        transaction::reserve(out.len());
        let (session, pid, number) = (sys::session(), sys::pid(), self.catalog.number);
        let mut of_lane = [0; CHUNK];
        let mut low = [0; GATE_LANES];
        let mut lows = 0;
        let lanes = &mut self.lanes;
        // A turn that is told is to be served: not together with others.
        let is_one_by_one = claimer.is_some_and(|claimer| claimer.limits.group > 0);
        let mut worker = None;
        // Under the same lock: what a restore brings in is not handed out.
        let took = shmem::with_instance(number, |frontier, instance| {
            if !instance.dormancy.is_awake() {
                return None;
            }
            let mut all = 0;
            loop {
                let (lane, up_to) = lanes.next(frontier, number)?;
                let answer = frontier.take_to(number, lane, session, pid, claimer, up_to, &mut out[all..]);
                let due_to = instance.due_to;
                let took = |answer| Some(Took { answer, lane, due_to });
                let Take::Some { taken, refill } = answer else {
                    // Others may sleep there since before it was closed: the worker opens it for them.
                    if answer == Take::Closed
                        && let Some(at) = frontier.next_opening()
                    {
                        worker = transaction::plan(instance, at);
                    }
                    // What was taken comes first; the next hold of the lock sees the same.
                    return took(if all > 0 { Take::Some { taken: all, refill: false } } else { answer });
                };
                of_lane[all..all + taken].fill(lane);
                all += taken;
                if refill && !low[..lows].contains(&lane) {
                    low[lows] = lane;
                    lows += 1;
                }
                if all == out.len() || lanes.is_one() || is_one_by_one {
                    return took(Take::Some { taken: all, refill: false });
                }
            }
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        // The instance is gone: the refill says so.
        let took = took.unwrap_or(Some(Took { answer: Take::Refill, lane: self.queue.lane, due_to: 0 }))?;
        if let Take::Some { taken, .. } = took.answer {
            self.remember(&of_lane, &out[..taken]);
            let new = low[..lows].iter().filter(|lane| !self.to_refill.contains(lane)).copied();
            let new: Vec<i32> = new.collect();
            self.to_refill.extend(new);
        }
        Some(took)
    }

    /// Each attempt with its lane.
    fn remember(&self, lanes: &[i32; CHUNK], taken: &[Ready]) {
        let (lease, bound) = (self.default_lease, self.wish.kind == Kind::Bound);
        let step = |(&lane, ready): (&i32, &Ready)| Step::Taken { id: ready.id, lane, lease, bound };
        transaction::remember_all(self.catalog.number, lanes.iter().zip(taken).map(step));
    }

    /// Claims what was taken. Returns how many were really there.
    fn claim(&mut self, taken: &[Ready]) -> Result<usize> {
        let mut found = Vec::with_capacity(taken.len());
        for ready in taken {
            let Some(attempt) = self.reader.fetch_now(ready) else {
                hold::drop_stale(self.catalog, ready.id);
                continue;
            };
            let place = attempt.ready().place;
            if place != ready.place {
                // It has moved since the frontier was told; who ends it asks there.
                shmem::with(|shared| shared.frontier.relocate(self.catalog.number, ready.id, place));
            }
            let lease = match (self.wish.lease, attempt.lease()) {
                (None, Some(own)) => {
                    transaction::set_lease(ready.id, own.us());
                    own.us()
                }
                _ => self.default_lease,
            };
            found.push((attempt, lease));
        }
        let now = sys::now_us();
        let lost = self.insert(&mut found, now);
        for (attempt, lease) in &found {
            if !lost.contains(&attempt.id()) {
                self.add_row(attempt, now.saturating_add(*lease))?;
            }
        }
        sys::check_for_interrupts();
        Ok(found.len() - lost.len())
    }

    /// Inserts the claims, a segment's all at once. Returns those that were claimed before.
    fn insert(&mut self, found: &mut [(Attempt, i64)], now: i64) -> Vec<i64> {
        let wish = self.wish;
        let used = found.iter().fold(0u32, |used, (attempt, _)| used | 1 << attempt.home.segment);
        let mut met = Vec::new();
        for segment in (0..SEGMENTS as u8).filter(|segment| used >> segment & 1 != 0) {
            let claims = found.iter().filter(|(attempt, _)| attempt.home.segment == segment);
            let claims: Vec<(i64, i64)> = claims.map(|(attempt, lease)| (attempt.id(), *lease)).collect();
            let taken = self.writer(segment).insert(&claims, now, wish.kind, wish.worker.as_deref());
            met.extend(taken.into_iter().map(|n| claims[n].0));
        }
        if met.is_empty() {
            return met;
        }
        let mut lost = Vec::new();
        for (attempt, lease) in found.iter_mut().filter(|(attempt, _)| met.contains(&attempt.id())) {
            if self.follow(attempt, *lease, now) {
                continue;
            }
            if self.writer(attempt.home.segment).probe(attempt.id()) != Probe::Committed {
                // Whose row it met may roll back, and others meet ours until this transaction ends.
                let (lane, ready) = (attempt.lane(), attempt.ready());
                transaction::remember(self.catalog.number, Step::Missed { lane, ready });
            }
            hold::drop_stale(self.catalog, attempt.id());
            lost.push(attempt.id());
        }
        lost
    }

    /// Needs no look at the generation: while the frontier lends us the attempt and the reader has its segment
    /// open, the segment is not truncated.
    fn writer(&mut self, segment: u8) -> &claim::Writer {
        self.writers[segment as usize].get_or_insert_with(|| claim::Writer::open(self.catalog, segment))
    }

    /// Claims an attempt that has moved, where it is now. False: it has not moved, or is lost.
    fn follow(&mut self, attempt: &mut Attempt, lease: i64, now: i64) -> bool {
        let id = attempt.id();
        loop {
            match self.writer(attempt.home.segment).probe(id) {
                Probe::Committed | Probe::InProgress => return false,
                Probe::Moving if self.patience.wait() => continue,
                Probe::Moving => return false,
                // Who was in the way has rolled back.
                Probe::Absent => {}
                Probe::Moved => match self.reader.by_id(id) {
                    Some(now) => *attempt = now,
                    None => return false,
                },
            }
            let place = attempt.ready().place;
            shmem::with(|shared| shared.frontier.relocate(self.catalog.number, id, place));
            let wish = self.wish;
            let writer = self.writer(attempt.home.segment);
            if writer.insert(&[(id, lease)], now, wish.kind, wish.worker.as_deref()).is_empty() {
                return true;
            }
        }
    }

    /// Adds a row of type `queue.claimed_job`.
    fn add_row(&mut self, attempt: &Attempt, expires_at: i64) -> Result<()> {
        let (queue, queue_name, rows) = (self.queue, self.queue_name, self.rows);
        let stage = queue.stage_of(attempt.lane()).map(text_datum);
        self.reader.payload(attempt, |payload| {
            rows.add_options(&[
                Some(attempt.id().into()),
                Some(attempt.job_id().into()),
                Some(queue_name),
                stage,
                payload,
                attempt.headers(),
                Some(attempt.attempt().into()),
                Some(attempt.max_attempts().unwrap_or(queue.max_attempts).into()),
                Some(attempt.priority().into()),
                attempt.unique_key(),
                attempt.group_key(),
                attempt.progress(),
                attempt.last_error(),
                Some(attempt.enqueued_at().into()),
                Some(expires_at.into()),
            ])
        })
    }
}
