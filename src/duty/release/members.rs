//! Decides from its members whether a flow has ended, and ends a flow before its members have.
//!
//! Any living member holds up a flow, and usually any dead one. So it is enough to know one such member. It is
//! *watched*: the filter contains it, so that its end hands it over. When it ends, the search continues behind all
//! members that have passed. Two members are watched. The end of the first one makes the search advance now and then.
//! The end of the newest one is looked at immediately, because it is the last one if jobs end in order.
//!
//! Invariant: a member is watched before the search that still finds it blocking the flow. The search holds the flow's
//! token (`job::flow`), so that no transaction adds a member that it does not see.

use pg_queue_core::after::judge::Held;
use pg_queue_core::after::{Fate, Upon};
use pg_queue_core::awaited::Awaited;

use crate::duty::release::changes::{EarlyEnd, Next};
use crate::duty::release::known;
use crate::duty::release::look::{LOOKS_PER_SEARCH, Look};
use crate::duty::release::work::look_later;
use crate::duty::serve_cancels;
use crate::error::{self, Result};
use crate::job::find::{self, Found};
use crate::job::held::Refusal;
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::job::{after, cancel, fail, flow};
use crate::log::attempt::Attempt;
use crate::log::edge::{self, Edge, Edges, Ending};
use crate::log::member::{self, Standing};
use crate::log::outcome::{self, Kind, New};
use crate::log::{history, note};
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::pg::time;
use crate::shmem;
use crate::transaction::{self, FlowStep};

/// How many attempts of members one search reads at most.
const MAX_ATTEMPTS_READ: usize = 5_000;
/// How many members are cancelled at most in one transaction.
const MAX_CANCELS: usize = 200;

impl Look {
    /// Returns the fate of a flow by its members, for a flow with this condition. `None`: it cannot be decided now, and
    /// the flow is looked at again.
    pub fn members(&mut self, flow: i64, upon: Upon) -> Result<Option<Fate>> {
        if upon == Upon::Failed && self.dead_member(flow)?.is_some() {
            return Ok(Some(Fate::Dead));
        }
        if !flow::try_close(flow) {
            self.changes.again.push(flow);
            return Ok(None);
        }
        if upon == Upon::Any && self.has_completed_member(flow) {
            known::forget_flow(flow);
            return Ok(Some(Fate::Completed));
        }
        fault!("release.searched");
        let found = member::find_blockers(flow, known::of(flow).passed, upon != Upon::Ended, MAX_ATTEMPTS_READ);
        self.looked += LOOKS_PER_SEARCH;
        known::remember(flow, |known| {
            known.passed = known.passed.max(found.passed);
            known.looked_at = time::monotonic_us();
        });
        if found.is_cut {
            look_later(flow, i64::MIN);
            return Ok(None);
        }
        let Some(first) = found.members.first() else {
            known::forget_flow(flow);
            // The last member may have completed or died after the search above.
            return Ok(Some(match upon {
                Upon::Any if !member::find_completed(flow, i64::MIN).has_completed => Fate::Cancelled,
                Upon::Failed if member::dead(flow).is_some() => Fate::Dead,
                _ => Fate::Completed,
            }));
        };
        if upon == Upon::Any {
            // All its members are watched.
            return Ok(Some(if first.standing == Standing::Dead { Fate::Dead } else { Fate::Living }));
        }
        let newest = member::newest_living(flow);
        known::remember(flow, |known| known.newest = newest);
        for job_id in [Some(first.job_id), newest].into_iter().flatten() {
            self.watch(flow, job_id, if job_id == first.job_id { first.standing } else { Standing::Living })?;
        }
        Ok(Some(if first.standing == Standing::Dead { Fate::Dead } else { Fate::Living }))
    }

    /// Returns whether a member of a flow has completed. If none has, watches all members, so that the end of each
    /// hands it over. The caller has closed the flow.
    fn has_completed_member(&mut self, flow: i64) -> bool {
        /// At most this many members are watched in one hold of the lock.
        const MEMBERS_PER_HOLD: usize = 256;
        let known::Completions::NoneTo(above) = known::of(flow).completions else { return true };
        let found = member::find_completed(flow, above);
        for members in found.open.chunks(MEMBERS_PER_HOLD) {
            let watch = |awaited: &mut Awaited| members.iter().for_each(|job| awaited.watch(*job));
            shmem::with_awaited(|awaited, _| watch(awaited));
        }
        // A member may have completed before it was watched.
        let has = found.has_completed || member::find_completed(flow, above).has_completed;
        let completions = if has { known::Completions::Some } else { known::Completions::NoneTo(found.last) };
        known::remember(flow, |known| known.completions = completions);
        self.looked += LOOKS_PER_SEARCH;
        has
    }

    /// Watches a member, so that its end hands it over. Then checks whether it has already ended.
    fn watch(&mut self, flow: i64, job_id: i64, standing: Standing) -> Result<()> {
        shmem::with_awaited(|awaited, _| awaited.watch(job_id));
        let was = if standing == Standing::Dead { Fate::Dead } else { Fate::Living };
        if after::fate(job_id)?.fate != was {
            look_later(flow, i64::MIN);
        }
        Ok(())
    }

    /// Returns a dead member of a flow. `None`: there is none.
    pub fn dead_member(&mut self, flow: i64) -> Result<Option<i64>> {
        match known::of(flow).deaths {
            known::Deaths::None => return Ok(None),
            known::Deaths::One(job_id) if Upon::Failed.is_met_by(after::fate(job_id)?.fate) => {
                return Ok(Some(job_id));
            }
            known::Deaths::One(_) | known::Deaths::Unknown => {}
        }
        let dead = member::dead(flow);
        known::remember(flow, |known| known.deaths = dead.map_or(known::Deaths::None, known::Deaths::One));
        Ok(dead)
    }

    fn note_ending(&mut self, attempt: &Attempt, ending: &Ending) {
        let (id, job_id) = (attempt.id(), attempt.job_id());
        self.changes.note(attempt.home, id, job_id, |home| edge::insert_ending(home, id, job_id, ending));
    }

    /// Cancels the members of a flow that must end, as many as fit into a transaction. When none lives any more, the
    /// flow ends now.
    fn end_flow(&mut self, flow: i64, ending: &Ending) -> Result<EarlyEnd> {
        if !flow::try_close(flow) {
            self.changes.again.push(flow);
            return Ok(EarlyEnd::UnderWay);
        }
        // The search skips members that have ended before: a wide flow has many of them.
        let found = member::find_blockers(flow, known::of(flow).passed, false, MAX_ATTEMPTS_READ);
        known::remember(flow, |known| known.passed = known.passed.max(found.passed));
        if found.is_cut {
            look_later(flow, i64::MIN);
            return Ok(EarlyEnd::UnderWay);
        }
        let living = member::living(flow, found.passed, MAX_CANCELS);
        let reason = match ending.dead {
            Some(dead) => format!("its flow {flow} has failed: job {dead} is dead"),
            None if ending.is_expired => format!("its flow {flow} has expired"),
            None => ending.reason.clone().unwrap_or_else(|| format!("its flow {flow} is cancelled")),
        };
        let mut has_changed = false;
        for &job_id in &living {
            match self.cancel_member(flow, job_id, ending, fail::cut(&reason))? {
                Some(changes) => has_changed |= changes,
                None => break,
            }
        }
        if let Some(&first) = living.first() {
            if has_changed {
                look_later(flow, i64::MIN);
            } else {
                self.watch(flow, first, Standing::Living)?;
            }
            return Ok(EarlyEnd::UnderWay);
        }
        let words = match (ending.dead, &ending.reason) {
            (Some(dead), reason) => {
                Some(format!("job {dead} is dead: {}", reason.as_deref().unwrap_or("no error is kept")))
            }
            (None, reason) => reason.clone(),
        };
        let words = words.map(|words| fail::cut(&words).to_owned());
        Ok(EarlyEnd::Now(match ending.dead {
            Some(_) => Next::Die(words.unwrap_or_default()),
            None if ending.is_expired => Next::Expire,
            None => Next::Cancel(words),
        }))
    }

    /// Ends a member, or asks its worker to stop. Returns true if there was anything to do. `None`: memory has no room
    /// for more in this transaction.
    fn cancel_member(&mut self, flow: i64, job_id: i64, ending: &Ending, reason: &str) -> Result<Option<bool>> {
        let Ok(Found::Here(job)) = find::find_settled(job_id) else { return Ok(Some(true)) };
        if job.outcome.is_some() {
            return Ok(Some(true));
        }
        let attempt = &job.attempt;
        let error = Some(text_datum(reason));
        if !job.is_claimed {
            if flow::is_flow(attempt) && after::is_held(attempt.lane())? {
                let edges = Edges::open(attempt.home.segment);
                if edges.is_some_and(|edges| edges.ending_of(attempt.id()).is_some()) {
                    return Ok(Some(false));
                }
                let nested = Ending {
                    is_forced: ending.is_forced,
                    dead: None,
                    is_expired: false,
                    reason: Some(reason.to_owned()),
                };
                self.note_ending(attempt, &nested);
                transaction::record(FlowStep::Awaited { job_id, mark: None });
                return Ok(Some(true));
            }
            match take::take_waiting(attempt) {
                Ok(TakeWaiting::Taken) => {
                    end_unrun(attempt, New { error, ..New::of(attempt.id(), Kind::Cancelled) })?;
                    return Ok(Some(true));
                }
                Ok(TakeWaiting::Running) => {}
                Ok(TakeWaiting::InUse | TakeWaiting::Stale) => {
                    self.changes.again.push(flow);
                    return Ok(Some(false));
                }
                Err(error) if error.code == error::LIMIT => {
                    self.changes.again.push(flow);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        if !ending.is_forced {
            if serve_cancels::is_requested(attempt) {
                return Ok(Some(false));
            }
            return match cancel::ask(attempt, note::Cancel::new_body(Some(reason))) {
                Ok(()) => Ok(Some(true)),
                Err(Refusal::Lost(_) | Refusal::Busy(_)) => {
                    self.changes.again.push(flow);
                    Ok(Some(false))
                }
                Err(Refusal::Unfit(error) | Refusal::Wrong(error)) => Err(error),
            };
        }
        match cancel::end_claimed(attempt.id(), error) {
            Ok(()) => Ok(Some(true)),
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => {
                self.changes.again.push(flow);
                Ok(Some(false))
            }
            Err(Refusal::Unfit(error) | Refusal::Wrong(error)) => Err(error),
        }
    }

    /// Acts on a flow that ends before its members are asked: one that must end, or has a death that ends it.
    pub fn end_early(&mut self, held: &Held, attempt: &Attempt, edges: &Edges, own: &[Edge]) -> Result<EarlyEnd> {
        let Some(own) = flow::own_edge(own).filter(|_| !held.is_left()) else { return Ok(EarlyEnd::No) };
        if let Some(ending) = edges.ending_of(attempt.id()) {
            return self.end_flow(attempt.job_id(), &ending);
        }
        let dead = if own.is_fail_fast { self.dead_member(own.job_id)? } else { None };
        let Some(dead) = dead else { return Ok(EarlyEnd::No) };
        let ending = Ending { is_forced: false, dead: Some(dead), is_expired: false, reason: error_of(dead) };
        self.note_ending(attempt, &ending);
        look_later(attempt.job_id(), i64::MIN);
        Ok(EarlyEnd::UnderWay)
    }
}

/// Returns the error with which a job died.
fn error_of(job_id: i64) -> Option<String> {
    let error = match find::find_settled(job_id).ok()? {
        Found::Here(job) => outcome::error_of(job.attempt.home.segment, job.attempt.id()),
        Found::Past(past) => past.get(history::column::ERROR).map(crate::pg::datum::text),
    };
    error.map(|error| fail::cut(&error).to_owned())
}
