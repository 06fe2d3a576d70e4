//! Waits for a job: decides whether a session may sleep, and how it sleeps and is woken.

use std::ops::RangeInclusive;
use std::rc::Rc;

use pg_queue_core::frontier::{Collect, WAIT_LANES, Wait};
use pg_queue_core::share;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::pin;
use crate::catalog::queue::{self, Queue};
use crate::error::{self, Error, Result};
use crate::job::notice;
use crate::job::refill::refill;
use crate::pg::fault::fault;
use crate::pg::{process, session, time, transaction};
use crate::restore;
use crate::shmem::here;
use crate::{guc, shmem};

/// A queue that a call claims from.
pub struct Wanted {
    pub queue_name: String,
    /// The stages. With `None` the call claims from all lanes of the queue.
    pub stages: Vec<Option<String>>,
}

impl Wanted {
    /// Returns the lanes of the wanted stages. Empty: all lanes of the queue. A stage that the queue does not have, yet
    /// or any more, is passed over, with a WARNING if the queue has another one of them.
    ///
    /// Errors: 22023 when the queue has none of the stages.
    fn lanes(&self, queue: &Queue) -> Result<Vec<i32>> {
        let mut lanes = Vec::new();
        let mut missing = None;
        for stage in self.stages.iter().flatten() {
            match queue.stage(stage) {
                Ok(lane) if !lanes.contains(&lane) => lanes.push(lane),
                Ok(_) => {}
                Err(error) => missing = Some(error),
            }
        }
        if self.stages.contains(&None) {
            lanes.clear();
        } else if lanes.is_empty()
            && let Some(error) = missing
        {
            return Err(error);
        }
        if let Some(error) = missing {
            notice::no_such_stage(queue, error);
        }
        Ok(lanes)
    }
}

/// The queues as this session knows them, and the number of changes that it knows.
pub struct ClaimScope {
    /// The queues, in the order of the names, each with the lanes of the wanted stages. Empty: all lanes of the queue.
    queues: Vec<(Rc<Queue>, Vec<i32>)>,
    /// True if the tables are being restored, so that no job can be found.
    pub is_dormant: bool,
    changes: u64,
    /// The number of changes of rights that this session knows.
    news: u64,
}

impl ClaimScope {
    /// Looks the queues up. It accepts invalidation messages first, because nothing else in the transaction may have
    /// done so and a pause must count immediately. A claim that will not sleep does not ask for the number of changes.
    ///
    /// Errors: 42704 when there is no queue of one of the names, 42501 when the user may not consume one, 22023 when
    /// none has one of the wanted stages, 53400 when they have too many lanes to sleep for.
    pub fn now(wanted: &[Wanted], may_sleep: bool) -> Result<Self> {
        let mut changes = 0;
        if may_sleep {
            // A change is announced before it is counted, so the messages accepted below include all changes counted
            // here.
            changes = shmem::with_instance(|_, instance| instance.changes).unwrap_or(0);
        }
        let news = permission::news();
        session::accept_invalidations();
        pin::renew()?;
        let named = wanted.iter().map(|one| queue::by_name(&one.queue_name)).collect::<Result<Vec<_>>>()?;
        named.iter().try_for_each(|queue| permission::check(queue, Privilege::Consume))?;
        named.iter().try_for_each(|queue| has_no_executor(queue))?;
        let (mut queues, mut without) = (Vec::new(), None);
        for (queue, one) in named.into_iter().zip(wanted) {
            match one.lanes(&queue) {
                Ok(lanes) => queues.push((queue, lanes)),
                Err(error) => without = Some((queue, error)),
            }
        }
        if let Some((queue, error)) = without {
            // The jobs of the other queues go on.
            if queues.is_empty() {
                return Err(error);
            }
            notice::no_such_stage(&queue, error);
        }
        let is_dormant = !restore::learn();
        let known = Self { queues, is_dormant, changes, news };
        if may_sleep {
            known.check_lanes()?;
        }
        Ok(known)
    }

    /// Checks the right to the claimed jobs again, because they may be of a transaction that has revoked that right.
    ///
    /// Errors: 42501. The rollback gives the claimed jobs back.
    pub fn check_again(&self) -> Result<()> {
        if !permission::has_news(self.news) {
            return Ok(());
        }
        fault!("claim.rechecked");
        permission::wait_for_news();
        self.each().try_for_each(|(queue, _)| permission::check(queue, Privilege::Consume))
    }

    /// Returns the scope of one queue, for the process that runs its jobs in the server. No right is checked.
    pub fn of_queue(queue: &Rc<Queue>) -> Self {
        let is_dormant = !restore::learn();
        Self { queues: vec![(Rc::clone(queue), Vec::new())], is_dormant, changes: 0, news: 0 }
    }

    /// Returns each queue with its wanted lanes.
    pub fn each(&self) -> impl Iterator<Item = (&Queue, &[i32])> {
        self.queues.iter().map(|(queue, lanes)| (&**queue, if lanes.is_empty() { queue.lanes() } else { lanes }))
    }

    fn check_lanes(&self) -> Result<()> {
        let lanes: usize = self.each().map(|(_, lanes)| lanes.len()).sum();
        if lanes <= WAIT_LANES {
            return Ok(());
        }
        Err(Error::new(error::LIMIT, "these queues have too many stages to wait for at the same time")
            .detail(format!(
                "They have {lanes} lanes; a call can wait for {WAIT_LANES}. A queue with stages has one \
                more lane than stages."
            ))
            .hint("Name fewer queues, name stages, or do not wait."))
    }
}

/// Checks that workers may claim from a queue.
///
/// Errors: 55000 if its jobs run in the server.
fn has_no_executor(queue: &Queue) -> Result<()> {
    if queue.executor.is_none() {
        return Ok(());
    }
    Err(Error::new(error::WRONG_STATE, format!("jobs of queue \"{}\" run in the server", queue.name))
        .detail("It has an executor, so no session claims from it.")
        .hint("Use another queue for workers."))
}

/// Returns how long a call may sleep, in microseconds: the requested time, at most pg_queue.max_wait, and a little less
/// than statement_timeout leaves. So the call ends with an empty answer and not with an error.
pub fn longest_wait(wait: i64) -> i64 {
    within_statement(wait.min(i64::from(guc::MAX_WAIT.get()) * 1_000))
}

/// Returns how long a call that holds nothing may sleep: the requested time, but a tenth less than statement_timeout
/// leaves. A busy machine wakes a session late.
pub fn within_statement(wait: i64) -> i64 {
    const MARGIN_US: RangeInclusive<i64> = 20_000..=500_000;
    let Some(deadline) = time::statement_deadline_us() else { return wait.max(0) };
    let left = deadline - time::now_us();
    wait.min(left - (left / 10).clamp(*MARGIN_US.start(), *MARGIN_US.end())).max(0)
}

/// Returns whether the call may go on sleeping: time is left, this transaction has not written, and its snapshot would
/// see the job.
pub fn may_sleep(deadline: i64) -> bool {
    is_before(deadline) && !transaction::has_xid() && !transaction::uses_one_snapshot()
}

/// Returns whether a deadline on the monotonic clock lies in the future.
pub fn is_before(deadline: i64) -> bool {
    time::monotonic_us() < deadline
}

/// This session's places in the lists of waiting sessions. On every way out, a wake-up that leaves jobs behind goes to
/// the next session.
pub struct Waiter(());

impl Waiter {
    /// Begins to wait. `None`: the caller must look for jobs first. If `linger` is larger than 0, the caller calls
    /// [`Self::collect`] when it was woken.
    ///
    /// Errors: 53400 when shared memory has no room for one of the lanes.
    pub fn begin(known: &ClaimScope, linger: i64) -> Result<Option<Self>> {
        let lanes: Vec<(i32, bool)> =
            known.each().flat_map(|(q, lanes)| lanes.iter().map(|&lane| (lane, q.is_paused))).collect();
        let closed: Vec<(i32, bool)> = lanes.iter().map(|&(lane, _)| (lane, true)).collect();
        fault!("wait.begun");
        let number = here::number();
        let begun = time::monotonic_us();
        let mut worker = None;
        let answer = shmem::with_instance(|frontier, instance| {
            let is_news = instance.changes != known.changes;
            let lanes = if instance.restore.is_awake() { &lanes } else { &closed };
            let answer = if is_news { Wait::Look } else { frontier.wait(session::session(), number, lanes, linger) };
            if answer == Wait::Sleep {
                frontier.sessions.note_sleeper(session::session(), session::pid(), begun);
            }
            // The worker opens gates that a rate has closed.
            let at = frontier.next_opening().filter(|_| answer == Wait::Sleep);
            worker = at.and_then(|at| instance.worker.wake_by(at));
            answer
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        match answer.unwrap_or(Wait::Look) {
            Wait::Sleep => {
                let waiter = Self(());
                fault!("wait.listed");
                Ok(Some(waiter))
            }
            Wait::Look => Ok(None),
            Wait::NoLane => Err(lanes_full()),
        }
    }

    /// Sleeps if the only lane of `known` has jobs, but fewer than `want`, and the first one of them has not been ready
    /// for `linger` microseconds; no longer than to `deadline`, on the monotonic clock. `waiter` is the session's place
    /// if it was woken, and keeps it. `None`: the session has not slept, and must look for jobs now. Otherwise returns
    /// whether it must look again, with the settings of then; if not, another session collects, or the client has gone.
    ///
    /// Errors: as [`refill`].
    pub fn collect(
        known: &ClaimScope,
        want: u32,
        linger: i64,
        deadline: i64,
        waiter: &mut Option<Self>,
    ) -> Result<Option<bool>> {
        let number = here::number();
        let Some((queue, &[lane])) = known.each().next() else { return Ok(None) };
        if queue.is_paused || known.is_dormant {
            return Ok(None);
        }
        fault!("collect.before");
        loop {
            let answer = shmem::with_instance(|frontier, instance| {
                if instance.changes != known.changes {
                    return None;
                }
                if !instance.restore.is_awake() {
                    return Some(Collect::Take);
                }
                let now = time::monotonic_us();
                let answer = frontier.collect(session::session(), number, lane, want, linger, now);
                if matches!(answer, Collect::Sleep { .. }) {
                    frontier.sessions.note_sleeper(session::session(), session::pid(), now);
                }
                Some(answer)
            });
            let Some(answer) = answer.unwrap_or(Some(Collect::Take)) else { return Ok(Some(true)) };
            match answer {
                Collect::Read => refill(lane)?,
                Collect::Sleep { due, next } => {
                    let waiter = waiter.get_or_insert_with(|| Self(()));
                    next.into_iter().for_each(shmem::wake);
                    fault!("collect.listed");
                    let is_woken = waiter.sleep(due.map_or(deadline, |due| due.min(deadline)));
                    return Ok(Some((is_woken || due.is_some()) && !process::is_client_gone()));
                }
                Collect::Take => return Ok(None),
            }
        }
    }

    /// Sleeps until the session is woken, until the deadline on the monotonic clock, or until the client has gone.
    /// Returns true if it was woken.
    pub fn sleep(&mut self, deadline: i64) -> bool {
        loop {
            if shmem::with(|shared| shared.frontier.sessions.is_woken(session::session())) {
                return true;
            }
            let left = deadline - time::monotonic_us();
            if left <= 0 {
                return false;
            }
            if !process::sleep_for_client((left + 999) / 1_000) {
                return false;
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(next) = shmem::with(|shared| shared.frontier.stop_waiting(session::session())) {
            shmem::wake(next);
        }
    }
}

pub fn lanes_full() -> Error {
    Error::new(error::LIMIT, "too many queues are waited for at the same time")
        .detail(format!(
            "Shared memory has room for {} lanes; the sessions of a database may wait for {} times what is free.",
            guc::MAX_LANES.get(),
            share::ALPHA
        ))
        .hint("Raise pg_queue.max_lanes and restart the server.")
}

/// Sleeps until another session's refill of the lane has ended. A refill reads and waits for nothing, so this is short.
pub fn wait_for_refill(lane: i32) -> Result<()> {
    /// If the refilling session is lost, this session checks again after this many microseconds.
    const LOOK_AGAIN_AFTER_US: i64 = 1_000_000;
    let (next, answer) = shmem::with(|shared| {
        if !shared.frontier.is_refilling(here::number(), lane) {
            return (None, None);
        }
        // A wake-up for another lane, which brought this call here, must not be forgotten.
        let next = shared.frontier.stop_waiting(session::session());
        (next, Some(shared.frontier.wait(session::session(), here::number(), &[(lane, false)], 0)))
    });
    if let Some(next) = next {
        shmem::wake(next);
    }
    match answer {
        Some(Wait::Sleep) => {
            Waiter(()).sleep(time::monotonic_us() + LOOK_AGAIN_AFTER_US);
            Ok(())
        }
        Some(Wait::NoLane) => Err(lanes_full()),
        Some(Wait::Look) | None => Ok(()),
    }
}
