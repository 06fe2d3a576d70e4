//! Another run of a job that is running: a producer that finds it so leaves a note about the running attempt, and the
//! session that ends that attempt makes the next one. Neither waits for the other; a note that comes too late is served
//! by the background worker (`duty::serve_reruns`).
//!
//! Calls under a key have ascending numbers (`asked`); a note has the number of its call, an attempt that of the call
//! whose payload it has. A note is *owed* if its number is larger than that of the newest attempt under its key, and no
//! note says that it was served: the attempt that has served it may be reclaimed first. So nothing is served twice, a
//! newer payload is never replaced by an older one, and a look after a crash finds the same. Invariant: memory knows
//! every committed note that is owed, as a flag of the attempt's entry in `running` or in `Instance::reruns`; or it
//! must look through the notes.

use std::rc::Rc;

use pg_queue_core::id;

use crate::catalog::permission::Rights;
use crate::catalog::{Catalog, ids, queue};
use crate::error::Result;
use crate::job::held::{Held, Refusal};
use crate::job::hold::Noted;
use crate::job::{find, hold, next_attempt};
use crate::log::attempt::{self, Attempt, New};
use crate::log::note::{self, Rerun};
use crate::log::reader::Reader;
use crate::log::segment::{Home, Target};
use crate::log::unique::{Lookup, Newest};
use crate::pg::scan::Probe;
use crate::pg::{jsonb, time};
use crate::shmem;
use crate::transaction::{self, Step};

/// Whether a call came after another one. Numbers of another node tell nothing about that; their calls were long ago.
fn is_newer(asked: i64, than: i64) -> bool {
    id::node(asked) != id::node(than) || asked > than
}

/// A number for a call.
pub fn fresh_number(catalog: &Catalog) -> Result<i64> {
    let mut count = 0;
    ids::take(catalog, 1, |fresh| count = fresh)?;
    Ok(id::attempt(ids::node(), count, 0))
}

/// Returns an attempt's successor for another run, with a fresh id, and the segment to insert it into. It has the
/// payload and all else that was requested, begins where jobs come in, and its attempts are counted from 1.
pub fn renewed(catalog: &Catalog, attempt: New, rerun: &Rerun) -> Result<(Target, New)> {
    let run_at = rerun.run_at.filter(|&at| at > time::now_us());
    let (target, id) = next_attempt::fresh(catalog, run_at)?;
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
        run_as: rerun.run_as,
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

/// Makes the attempt that goes on with the job of a held attempt, if another run was requested. Returns its id, which
/// the outcome names, and when it runs. The caller has probed that the outcome can be inserted.
pub fn follow(catalog: &Rc<Catalog>, held: &Held) -> std::result::Result<Option<(i64, Option<i64>)>, Refusal> {
    if held.entry.rerun == 0 {
        return Ok(None);
    }
    let Some(asked) = note::newest_rerun(catalog, held.home.segment, held.id) else { return Ok(None) };
    let attempt = next_attempt::row_of(catalog, &mut Reader::new(catalog), held)?;
    let rerun = asked.rerun();
    if !is_newer(rerun.asked, attempt.asked()) {
        return Ok(None);
    }
    let (target, next) = renewed(catalog, attempt.copy(), &rerun)?;
    attempt::insert(catalog, &target, &[next])?;
    note::insert_served(catalog, held.home, held.id, rerun.asked);
    Ok(Some((next.id, next.run_at)))
}

/// Leaves a note about an attempt that is taken. False: it has ended by now, and the note is there all the same.
pub fn ask(catalog: &Catalog, attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    let id = attempt.id();
    let probe = |home: Home| hold::probe_both(catalog, home, id);
    let insert = |home| note::insert_rerun(catalog, home, id, rerun);
    let is_here = match hold::note_where_it_is(catalog, id, attempt.home, insert, probe) {
        Noted::Here(outcome) => outcome != Probe::Committed,
        Noted::Moving => return Err(find::in_use(attempt.job_id())),
        Noted::Gone => return Ok(false),
    };
    transaction::record(catalog.number, Step::RerunAsked { id });
    // At once, as this transaction may end the attempt itself. To other sessions it makes no difference.
    shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id));
    Ok(is_here)
}

/// Returns the newest request for another run of a job that its newest attempt does not serve.
pub fn owed(catalog: &Catalog, newest: &Newest, about: &Attempt) -> Option<note::Asked> {
    let asked = note::newest_rerun(catalog, about.home.segment, about.id())?;
    is_newer(asked.rerun().asked, newest.attempt.asked()).then_some(asked)
}

/// Notes that the run that was requested after this attempt is made, or not needed any more.
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

/// Whether another run was requested after the attempt with this id, and is not made yet.
pub fn is_owed_after(catalog: &Rc<Catalog>, id: i64) -> bool {
    Reader::new(catalog).by_id(id).is_some_and(|attempt| may_be_owed(catalog, &attempt))
}

/// Flags the entry of a running attempt: another run is requested. False: it has no entry.
pub fn tell(catalog: &Catalog, id: i64) -> bool {
    if shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id)) {
        return true;
    }
    // The entry is made from the logs and the notes; also for a producer, which need not be a worker.
    hold::check_claimed(catalog, id, &Rights::everything()).is_ok()
        && shmem::with(|shared| shared.frontier.request_rerun(catalog.number, id))
}
