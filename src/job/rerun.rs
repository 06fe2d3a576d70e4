//! Another run of a running job. A producer that finds the job running leaves a note about the running attempt, and the
//! session that ends that attempt makes the next one. Neither waits for the other. The background worker serves notes
//! that come too late (`duty::serve_reruns`).
//!
//! Calls under a key have ascending numbers (`asked`). A note has the number of its call, and an attempt has the number
//! of the call whose payload it has. A note is *owed* if its number is larger than that of the newest attempt under its
//! key, and no other note says that it was served. The second condition is needed because the attempt that has served
//! the note may be reclaimed first. So no note is served twice, an older payload never replaces a newer one, and a
//! search after a crash finds the same notes. Invariant: memory knows every committed note that is owed, as a flag of
//! the attempt's entry in `running` or in `Missed::reruns`. If it does not know them, the notes must be searched.

use pg_queue_core::id;

use crate::catalog::permission::Rights;
use crate::catalog::{ids, queue};
use crate::error::Result;
use crate::job::held::{Held, Refusal};
use crate::job::hold::Noted;
use crate::job::{find, hold, next_attempt, start_by, timing};
use crate::log::attempt::{Attempt, New};
use crate::log::note::{self, Rerun};
use crate::log::reader::Reader;
use crate::log::segment::{Home, Target};
use crate::log::unique::{Lookup, Newest};
use crate::pg::scan::Probe;
use crate::pg::{jsonb, time};
use crate::shmem::{self, here};
use crate::transaction::{self, Step};

/// Returns whether a call came after another one. Numbers of different nodes cannot be compared, but calls on another
/// node were long ago.
fn is_newer(asked: i64, than: i64) -> bool {
    id::node(asked) != id::node(than) || asked > than
}

/// Returns the number for a call.
pub fn fresh_number() -> Result<i64> {
    let mut count = 0;
    ids::take(1, |fresh| count = fresh)?;
    Ok(id::attempt(ids::node(), count, 0))
}

/// Returns the attempt of another run, with a fresh id, and the segment to insert it into. It has the requested payload
/// and options, begins in the first stage, and its attempts are counted from 1.
pub fn renewed(attempt: New, rerun: &Rerun) -> Result<(Target, New)> {
    let run_at = rerun.run_at.filter(|&at| at > time::now_us());
    let (target, id) = next_attempt::fresh(run_at)?;
    let queue = queue::by_lane(attempt.lane)?;
    let now = time::now_us();
    let own = timing::start_by(rerun.timing);
    let next = New {
        id,
        start_by: queue.as_ref().and_then(|queue| start_by::of_new(queue, own, run_at, now)),
        lane: queue.map_or(attempt.lane, |queue| queue.entry()),
        attempt: 1,
        run_at,
        priority: rerun.priority,
        payload_of: None,
        payload: Some(rerun.payload.unwrap_or_else(jsonb::empty_object)),
        headers: rerun.headers,
        timing: rerun.timing,
        run_as: rerun.run_as.map(|role| role.name),
        run_as_id: rerun.run_as.map(|role| role.id),
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

/// Makes the next run of the job of a held attempt, if a run was requested. Returns the id of the new attempt, which
/// the outcome names, and its time. The caller has checked that the outcome can be inserted.
pub fn follow(held: &Held) -> std::result::Result<Option<(i64, Option<i64>)>, Refusal> {
    if held.entry.rerun == 0 {
        return Ok(None);
    }
    let Some(asked) = note::newest_rerun(held.home.segment, held.id) else { return Ok(None) };
    let attempt = next_attempt::row_of(&mut Reader::new(), held)?;
    let rerun = asked.rerun();
    if !is_newer(rerun.asked, attempt.call()) {
        return Ok(None);
    }
    let (target, next) = renewed(attempt.copy(), &rerun)?;
    next_attempt::insert(held, &target, next)?;
    note::insert_served(held.home, held.id, rerun.asked);
    Ok(Some((next.id, next.run_at)))
}

/// Leaves a note about a taken attempt. Returns false if the attempt has ended meanwhile. The note exists in both
/// cases.
pub fn ask(attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    let id = attempt.id();
    let probe = |home: Home| hold::probe_both(home, id);
    let insert = |home| note::insert_rerun(home, id, rerun);
    let is_here = match hold::note_where_it_is(id, attempt.home, insert, probe) {
        Noted::Here(outcome) => outcome != Probe::Committed,
        Noted::Moving => return Err(find::in_use(attempt.job_id())),
        Noted::Gone => return Ok(false),
    };
    transaction::record(Step::RerunAsked { id });
    // The flag is set before the commit, because this transaction may end the attempt itself. To other sessions it
    // makes no difference.
    shmem::with(|shared| shared.frontier.running.request_rerun(here::number(), id));
    Ok(is_here)
}

/// Returns the newest request for another run in the notes of `about`, unless the job's newest attempt serves it.
pub fn owed(newest: &Newest, about: &Attempt) -> Option<note::Asked> {
    let asked = note::newest_rerun(about.home.segment, about.id())?;
    is_newer(asked.rerun().asked, newest.attempt.call()).then_some(asked)
}

/// Inserts a note that the requested run was made or is no longer needed. Returns false if no run was requested.
pub fn mark_served(about: &Attempt) -> bool {
    let asked = note::newest_rerun(about.home.segment, about.id());
    let Some(asked) = asked.map(|asked| asked.rerun().asked) else { return false };
    note::insert_served(about.home, about.id(), asked);
    true
}

/// Returns whether this attempt has a note of the same request, or of a newer one.
pub fn is_noted(attempt: &Attempt, rerun: &Rerun) -> bool {
    let noted = note::newest_rerun(attempt.home.segment, attempt.id());
    noted.is_some_and(|noted| !is_newer(rerun.asked, noted.rerun().asked))
}

/// Returns whether a note about this attempt is owed, or may be owed after an open transaction has ended.
pub fn may_be_owed(about: &Attempt) -> bool {
    let Some(key) = about.unique_key() else { return false };
    let newest = note::newest_rerun_even_open(about.home.segment, about.id());
    let Some((asked, is_open)) = newest else { return false };
    let served_by = || Lookup::new().newest_beside(about.lane(), key);
    is_open || served_by().is_none_or(|newest| is_newer(asked.rerun().asked, newest.attempt.call()))
}

/// Returns whether another run was requested during the attempt with this id and was not made yet.
pub fn is_owed_after(id: i64) -> bool {
    Reader::new().by_id(id).is_some_and(|attempt| may_be_owed(&attempt))
}

/// Flags the entry of a running attempt for another run. Returns false if it has no entry.
pub fn flag_running(id: i64) -> bool {
    if shmem::with(|shared| shared.frontier.running.request_rerun(here::number(), id)) {
        return true;
    }
    // The check makes the entry from the logs and the notes. It uses all rights, because the producer need not be a
    // worker.
    hold::check_claimed(id, &Rights::everything()).is_ok()
        && shmem::with(|shared| shared.frontier.running.request_rerun(here::number(), id))
}
