//! Another run of a job that is running: a producer who finds it so leaves a note about the running attempt, and
//! whoever ends that attempt makes the next one of it. Neither waits for the other, so a note may come too late for
//! him: then the background worker does it (`duty::serve_reruns`).
//!
//! What is owed follows from the logs. Calls under a key have numbers that ascend (`asked`); a note has that of its
//! call, an attempt that of the call whose payload it has. A note is *owed* when its number is larger than that of the
//! newest attempt under its key, and no note says that it was served: for the attempt that has served it may be
//! reclaimed first. So nothing is served twice, a newer payload is never replaced by an older one, and whoever looks
//! after a crash finds the same.
//!
//! Invariant: every committed note that is owed is known to memory, as a flag of the entry in `running` of the
//! attempt that it is about, or in `Instance::reruns`; or memory must look through the notes.

use std::rc::Rc;

use pg_queue_core::frontier::Frontier;
use pg_queue_core::id;
use pgrx::pg_sys;

use crate::api::fail;
use crate::error::Result;
use crate::hold::{Held, Patience};
use crate::instance::Catalog;
use crate::log::attempt::{self, Attempt, New, Reader};
use crate::log::note::{self, Rerun};
use crate::log::table::Probe;
use crate::log::unique::{Lookup, Newest};
use crate::log::{claim, outcome};
use crate::permission::Rights;
use crate::segment::Target;
use crate::shmem::{self, Instance};
use crate::transaction::{self, Step};
use crate::{hold, ids, jsonb, late, queue, sys};

/// Whether a call came after another one. Those of another node say nothing about that: theirs were long ago.
fn is_newer(asked: i64, than: i64) -> bool {
    id::node(asked) != id::node(than) || asked > than
}

/// A number for a call.
pub fn fresh_number(catalog: &Catalog) -> Result<i64> {
    let mut count = 0;
    ids::take(catalog, 1, |fresh| count = fresh)?;
    Ok(id::attempt(ids::node(), count, 0))
}

/// A transaction that has left a note was committed: tells whoever will see to it. Under the frontier's lock.
pub fn committed(frontier: &mut Frontier<'_>, instance: &mut Instance, id: i64) -> Option<*mut pg_sys::Latch> {
    if frontier.request_rerun(instance.number, id) { None } else { Some(late::rerun(instance, id)) }
}

/// An attempt's successor for another run, with a fresh id, and the segment to insert it into: it has the payload
/// and all else that was wanted, begins where jobs come in, and its attempts are counted from 1.
pub fn renewed(catalog: &Catalog, attempt: New, rerun: &Rerun) -> Result<(Target, New)> {
    let run_at = rerun.run_at.filter(|&at| at > sys::now_us());
    let (target, id) = fail::fresh(catalog, run_at)?;
    let queue = queue::by_lane(catalog, attempt.lane)?;
    let next = New {
        id,
        lane: queue.map_or(attempt.lane, |queue| queue.entry()),
        attempt: 1,
        run_at,
        priority: rerun.priority,
        payload_of: None,
        payload: Some(rerun.payload.unwrap_or_else(jsonb::empty_object)),
        headers: rerun.headers,
        version: rerun.version.or(attempt.version),
        max_attempts: rerun.max_attempts.or(attempt.max_attempts),
        lease: rerun.lease.or(attempt.lease),
        last_error: None,
        progress: None,
        asked: Some(rerun.asked),
        ..attempt
    };
    Ok((target, next))
}

/// For whoever ends a held attempt: makes the attempt that goes on with the job if another run was asked for. The
/// outcome names it then. That the outcome can be inserted was probed. Returns its id, and when it runs.
pub fn follow(catalog: &Rc<Catalog>, held: &Held) -> Result<Option<(i64, Option<i64>)>> {
    if held.entry.rerun == 0 {
        return Ok(None);
    }
    let Some(asked) = note::newest_rerun(catalog, held.home.segment, held.id) else { return Ok(None) };
    let attempt = fail::attempt_of(&mut Reader::new(catalog), held)?;
    let rerun = asked.rerun();
    if !is_newer(rerun.asked, attempt.asked()) {
        return Ok(None);
    }
    let (target, next) = renewed(catalog, attempt.copy(), &rerun)?;
    attempt::insert(catalog, &target, &[next])?;
    note::insert_served(catalog, held.home, held.id, rerun.asked);
    Ok(Some((next.id, next.run_at)))
}

/// Leaves a note about an attempt that somebody has. False: it has ended by now, and the note is there all the same.
pub fn ask(catalog: &Catalog, attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    let id = attempt.id();
    let mut home = attempt.home;
    let mut patience = Patience::default();
    let is_here = loop {
        if note::insert_rerun(catalog, home, id, rerun) {
            // Who moves it looks for notes after he has left his mark, this looks for the mark after the note: one of
            // the two sees the other.
            let seen = loop {
                let seen = [claim::probe, outcome::probe].map(|probe| probe(catalog, home.segment, id));
                if !seen.contains(&Probe::Moving) {
                    break seen;
                }
                if !patience.wait() {
                    return Err(crate::api::job::in_use(attempt.job_id()));
                }
            };
            if !seen.contains(&Probe::Moved) {
                break seen[1] != Probe::Committed;
            }
        }
        match Reader::new(catalog).by_id(id) {
            Some(now) => home = now.home,
            None => return Ok(false),
        }
    };
    transaction::remember(catalog.number, Step::RerunAsked { id });
    // At once, for this transaction may end the attempt itself. To others it makes no difference.
    shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id));
    Ok(is_here)
}

/// The newest wish for another run of a job that its newest attempt does not serve.
pub fn owed(catalog: &Catalog, newest: &Newest, about: &Attempt) -> Option<note::Asked> {
    let asked = note::newest_rerun(catalog, about.home.segment, about.id())?;
    is_newer(asked.rerun().asked, newest.attempt.asked()).then_some(asked)
}

/// Says that what was wanted after this attempt is done, or not wanted any more.
pub fn settle(catalog: &Catalog, about: &Attempt) -> bool {
    let asked = note::newest_rerun(catalog, about.home.segment, about.id());
    let Some(asked) = asked.map(|asked| asked.rerun().asked) else { return false };
    note::insert_served(catalog, about.home, about.id(), asked);
    true
}

/// Whether what is owed after another attempt is noted about this one, too.
pub fn is_noted(catalog: &Catalog, attempt: &Attempt, rerun: &Rerun) -> bool {
    let noted = note::newest_rerun(catalog, attempt.home.segment, attempt.id());
    noted.is_some_and(|noted| !is_newer(rerun.asked, noted.rerun().asked))
}

/// Whether a note about this attempt is owed, or may be when an open transaction has ended.
pub fn may_be_owed(catalog: &Catalog, about: &Attempt) -> bool {
    let Some(key) = about.unique_key() else { return false };
    let newest = note::newest_rerun_even_open(catalog, about.home.segment, about.id());
    let Some((asked, is_open)) = newest else { return false };
    let served_by = || Lookup::new(catalog).newest_beside(about.lane(), key);
    is_open || served_by().is_none_or(|newest| is_newer(asked.rerun().asked, newest.attempt.asked()))
}

/// Has the entry of a running attempt know that another run is wanted. False: it has none.
pub fn tell(catalog: &Catalog, id: i64) -> bool {
    if shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id)) {
        return true;
    }
    // The entry is made of the logs, with what the notes say; also for a producer, who need not be a worker.
    hold::look(catalog, id, &Rights::everything()).is_ok()
        && shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id))
}
