//! Workers: they claim in all ways, and end attempts in all ways, correctly or not, in time or late.

use std::thread;
use std::time::Duration;

use postgres::Row;
use postgres::types::ToSql;
use serde_json::{Value, json};

use crate::flows;
use crate::held::{Held, refused};
use crate::ledger::{Claim, End, What, now, own_lease};
use crate::plan::{Kind, QUEUES, STAGES};
use crate::session::{Done, Session};

pub fn run(session: &mut Session<'_>) {
    let torture = session.torture;
    let mut held: Vec<Held> = Vec::new();
    session.go_on(|| torture.is_drained(), |session| step(session, &mut held));
}

fn step(session: &mut Session<'_>, held: &mut Vec<Held>) -> Done {
    if session.torture.is_calm() {
        return honest(session, held);
    }
    // Some attempts are kept for later, when their leases may have expired.
    if held.len() > 12 || (!held.is_empty() && session.random.percent(70)) {
        let count = session.random.between(1, 8) as usize;
        let some = held.split_off(held.len().saturating_sub(count));
        return end_some(session, &some);
    }
    if session.random.percent(35) {
        return in_one_transaction(session);
    }
    let mut new = Vec::new();
    if session.random.percent(4) {
        let name =
            session.torture.pick(&mut session.random, |kind| kind != Kind::Coming).map(|queue| QUEUES[queue].name);
        session.aside("wait", &format!("CALL queue.wait('{}', '200 ms')", name.unwrap_or("plain")))?;
    }
    if session.random.percent(4)
        && let Some((_, job)) = session.torture.some_job(&mut session.random)
    {
        session.aside("await", &format!("CALL queue.await({job}, '200 ms')"))?;
    }
    if session.random.percent(50) {
        let number = session.begin_alone();
        let from = now();
        let done = claim(session, &mut new, held, Some(number), true);
        session.end_alone(&done, from);
        done?;
    } else {
        let by_snapshot = session.begin()?;
        claim(session, &mut new, held, None, !by_snapshot)?;
        if session.random.percent(20) {
            let mut more = Vec::new();
            session.within_savepoint(50, |session| claim(session, &mut more, &mut Vec::new(), None, false))?;
        }
        if !session.end(15)? {
            new.clear();
        }
    }
    if new.is_empty() {
        thread::sleep(Duration::from_millis(session.random.below(10)));
    }
    held.append(&mut new);
    Ok(())
}

/// Claims and completes the remaining jobs at the end of the run.
fn honest(session: &mut Session<'_>, held: &mut Vec<Held>) -> Done {
    let mut all = std::mem::take(held);
    for queue in 0..QUEUES.len() {
        session.begin_at("READ COMMITTED")?;
        claim_of(session, &[queue], 20, None, &mut all, &mut Vec::new(), None, "0", None)?;
        session.commit()?;
        if !all.is_empty() {
            session.begin_at("READ COMMITTED")?;
            for one in std::mem::take(&mut all) {
                session.within_savepoint(0, |session| finish(session, &one))?;
            }
            session.commit()?;
        }
    }
    thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Claims in one of several ways.
fn claim(
    session: &mut Session<'_>,
    new: &mut Vec<Held>,
    held: &mut Vec<Held>,
    witness: Option<i64>,
    may_wait: bool,
) -> Done {
    let torture = session.torture;
    let Some(first) = torture.pick(&mut session.random, |_| true) else { return Ok(()) };
    let random = &mut session.random;
    let mut queues = vec![first];
    // A queue that is sometimes dropped is claimed alone, because an error about one queue fails the whole claim.
    if random.percent(15) && QUEUES[first].kind != Kind::Coming {
        queues.extend(torture.pick(random, |kind| kind != Kind::Coming).filter(|queue| *queue != first));
    }
    let many = random.one_of(&[1, 1, 1, 3, 10, 40]);
    let lease = random.one_of(&[None, None, Some(200_000), Some(1_000_000), Some(5_000_000)]);
    let wait = if may_wait { random.one_of(&["0", "0", "30 ms", "1 s"]) } else { "0" };
    let disconnect = random.one_of(&[None, None, None, None, Some(0), Some(100_000)]);
    // Attempts that wait to be completed are completed with the claim.
    let passing: Vec<Held> = if random.percent(25) {
        let (completable, rest) = std::mem::take(held).into_iter().partition(is_last);
        *held = rest;
        completable
    } else {
        Vec::new()
    };
    let mut passing = passing;
    claim_of(session, &queues, many, lease, new, &mut passing, witness, wait, disconnect)
}

/// True if `complete` may end the attempt: a queue with stages allows it only in the last stage.
fn is_last(one: &Held) -> bool {
    one.stage.is_none() || one.stage.as_deref() == STAGES.last().copied()
}

#[expect(clippy::too_many_arguments, reason = "they are those of queue.claim")]
fn claim_of(
    session: &mut Session<'_>,
    queues: &[usize],
    many: i32,
    lease: Option<i64>,
    new: &mut Vec<Held>,
    passing: &mut Vec<Held>,
    witness: Option<i64>,
    wait: &str,
    disconnect: Option<i64>,
) -> Done {
    let names: Vec<&str> = queues.iter().map(|queue| QUEUES[*queue].name).collect();
    let completed: Option<Vec<i64>> = (!passing.is_empty()).then(|| passing.iter().map(|one| one.attempt).collect());
    let jobs: Vec<i64> = passing.iter().map(|one| one.job).collect();
    let [interval, span] = [lease, disconnect].map(|time| time.map(|micros| format!("{micros} microseconds")));
    let worker = format!("client {}", session.number);
    let (verb, from_what) = if names.len() == 1 {
        ("claim", "queue.claim(($1::text[])[1],")
    } else {
        ("claim_any", "queue.claim_any($1::text[],")
    };
    // A batch is collected from one lane.
    let may_linger = wait == "1 s" && names.len() == 1 && QUEUES[queues[0]].kind != Kind::Staged;
    let linger = if may_linger { ", linger => '20 ms'" } else { "" };
    let mut sql = format!(
        "SELECT id, job_id, queue_name, stage, payload ->> 'token' AS token, priority, group_key, attempt, headers
         FROM {from_what} max_jobs => $2, wait => $3::text::interval, lease => $4::text::interval, worker => $5,
             disconnect => $6::text::interval, completed => $7{linger})"
    );
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&names, &many, &wait, &interval, &worker, &span, &completed];
    // The witness and the completions come after the claim, because a claim sleeps only in a transaction that has
    // written nothing.
    let mut writes = Vec::new();
    writes.extend(witness.map(|number| format!("w AS (INSERT INTO witness VALUES ({number}))")));
    if !passing.is_empty() {
        params.push(&jobs);
        writes.push(format!("c AS ({sql})"));
        writes.push(
            "e AS (INSERT INTO effect SELECT p.attempt, p.job FROM unnest($7, $8::bigint[]) AS p (attempt, job)
                   WHERE NOT EXISTS (SELECT FROM c WHERE c.job_id IS NULL AND c.id = p.attempt))"
                .to_owned(),
        );
        sql = "SELECT * FROM c".to_owned();
    }
    if !writes.is_empty() {
        sql = format!("WITH {} {sql}", writes.join(", "));
    }
    let is_coming = queues.iter().any(|queue| QUEUES[*queue].kind == Kind::Coming);
    let called = now();
    let answer = session.call_of(verb, &sql, &params, is_coming);
    let (rows, from, to) = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            session.note(What::ClaimLost { queues: queues.to_vec() }, called, now());
            for one in passing.drain(..).filter(|_| failure.is_lost) {
                let what = What::Ended { attempt: one.attempt, job: one.job, end: End::CompletedPerhaps };
                session.note(what, called, now());
            }
            return Err(failure);
        }
    };
    let (jobless, rows): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.get::<_, Option<i64>>("job_id").is_none());
    for row in jobless {
        let (attempt, headers): (i64, Value) = (row.get("id"), row.get("headers"));
        let outcome = headers["outcome"].as_str().unwrap_or_default();
        let Some(at) = passing.iter().position(|one| one.attempt == attempt) else {
            session.torture.find(format!("{verb} has answered {headers} for {attempt}, which it was not given"));
            continue;
        };
        let one = passing.remove(at);
        note_refusal(session, verb, &one, outcome, headers["reason"].as_str(), to);
    }
    for one in passing.drain(..) {
        session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Completed }, from, to);
        session.torture.add_waiting(-1);
    }
    for row in rows {
        let claim = read_claim(session, row, lease, disconnect);
        new.push(Held {
            attempt: claim.attempt,
            job: claim.job,
            queue: claim.queue,
            stage: claim.stage.clone(),
            is_flow: claim.token.starts_with(flows::MARK),
        });
        session.note(What::Claimed(claim), from, to);
    }
    Ok(())
}

fn read_claim(session: &Session<'_>, row: &Row, lease: Option<i64>, disconnect: Option<i64>) -> Claim {
    let name: &str = row.get("queue_name");
    let queue = QUEUES.iter().position(|queue| queue.name == name).expect("a queue of ours");
    session.torture.remember(queue, row.get("job_id"));
    let token = row.get::<_, Option<String>>("token").unwrap_or_default();
    // A dead-letter copy does not have the job's lease.
    let own = own_lease(&token).filter(|_| QUEUES[queue].kind != Kind::Morgue);
    // A forgotten job keeps its own lease, but its contents no longer name it.
    let unsaid = if token.is_empty() { 200_000 } else { 3_000_000 };
    Claim {
        attempt: row.get("id"),
        job: row.get("job_id"),
        queue,
        stage: row.get("stage"),
        token,
        priority: row.get("priority"),
        group: row.get("group_key"),
        number: row.get("attempt"),
        disconnect,
        lease: lease.or(own).unwrap_or(unsaid),
    }
}

/// Claims a job, writes its effect and completes it in one transaction.
fn in_one_transaction(session: &mut Session<'_>) -> Done {
    let by_snapshot = session.begin()?;
    let mut new = Vec::new();
    if session.random.percent(30) {
        session.within_savepoint(50, |session| {
            claim(session, &mut new, &mut Vec::new(), None, false)?;
            end_each(session, &new)
        })?;
        new.clear();
    }
    claim(session, &mut new, &mut Vec::new(), None, !by_snapshot)?;
    if session.random.percent(30) {
        session.within_savepoint(50, |session| end_each(session, &new))?;
    } else {
        end_each(session, &new)?;
    }
    session.end(20).map(drop)
}

/// Ends these attempts in one transaction, or separately, or not at all.
fn end_some(session: &mut Session<'_>, some: &[Held]) -> Done {
    match session.random.below(10) {
        // The worker waits until the lease expires.
        0 => Ok(()),
        1..4 => {
            for one in some {
                let number = session.begin_alone();
                let from = now();
                let done = finish_alone(session, one, number);
                session.end_alone(&done, from);
                done.or_else(|failure| if failure.is_lost { Err(failure) } else { Ok(()) })?;
            }
            Ok(())
        }
        _ => {
            session.begin()?;
            if session.random.percent(40) {
                end_many(session, some)?;
            } else {
                end_each(session, some)?;
            }
            session.end(15).map(drop)
        }
    }
}

/// Ends each attempt by its own call. A failed end is undone by its savepoint.
fn end_each(session: &mut Session<'_>, some: &[Held]) -> Done {
    for one in some {
        session.within_savepoint(3, |session| {
            if session.random.percent(15) {
                extend(session, one)?;
            }
            if session.random.percent(10) {
                session.call("progress", "SELECT queue.progress($1, '{\"half\": true}')", &[&one.attempt])?;
            }
            if session.random.percent(10) && has_steps(one) {
                flows::step(session, one)?;
            }
            let may_wait = QUEUES[one.queue].kind == Kind::Flowing && !one.is_flow;
            match session.random.below(100) {
                23..45 if may_wait => flows::suspend(session, one),
                0..12 => fail(session, one),
                12..20 => release(session, one),
                // The worker keeps the attempt.
                20..23 => Ok(()),
                _ => finish(session, one),
            }
        })?;
    }
    Ok(())
}

/// True if steps are noted for jobs of the attempt's queue. Jobs of these queues do not run again under the same id.
fn has_steps(one: &Held) -> bool {
    matches!(
        QUEUES[one.queue].kind,
        Kind::Plain | Kind::Strict | Kind::Limited | Kind::Staged | Kind::Chained | Kind::Flowing
    )
}

/// Completes the attempt and writes its effect. Advances the job if there is another stage.
fn finish(session: &mut Session<'_>, one: &Held) -> Done {
    if !is_last(one) {
        return advance(session, one);
    }
    let answer = session.call_of(
        "complete",
        "SELECT queue.complete($1, '{\"ok\": true}')",
        &[&one.attempt],
        QUEUES[one.queue].kind == Kind::Coming,
    );
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Completed }, from, to);
    session.torture.add_waiting(-1);
    session.call("effect", "INSERT INTO effect VALUES ($1, $2)", &[&one.attempt, &one.job])?;
    Ok(())
}

/// Does what `finish` does, in one statement that is a deal of its own.
fn finish_alone(session: &mut Session<'_>, one: &Held, witness: i64) -> Done {
    let (verb, end, effect) = if is_last(one) {
        let effect = format!(", e AS (INSERT INTO effect VALUES ({}, {}))", one.attempt, one.job);
        ("complete", End::Completed, effect)
    } else {
        ("advance", End::Advanced, String::new())
    };
    let sql = format!("WITH w AS (INSERT INTO witness VALUES ({witness})){effect} SELECT queue.{verb}($1)");
    let called = now();
    let answer = session.call_of(verb, &sql, &[&one.attempt], QUEUES[one.queue].kind == Kind::Coming);
    if answer.as_ref().is_err_and(|failure| failure.is_lost) {
        // The end counts if the witness exists.
        session.note(What::Ended { attempt: one.attempt, job: one.job, end }, called, now());
    }
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end }, from, to);
    session.torture.add_waiting(-i64::from(end == End::Completed));
    Ok(())
}

fn advance(session: &mut Session<'_>, one: &Held) -> Done {
    // The job advances to any stage, even an earlier one, as long as the run is not ending.
    let stage = (!session.torture.is_calm() && session.random.percent(20)).then(|| session.random.one_of(&STAGES));
    let sql = "SELECT queue.advance($1, $2)";
    let answer = session.call("advance", sql, &[&one.attempt, &stage]);
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Advanced }, from, to);
    Ok(())
}

fn fail(session: &mut Session<'_>, one: &Held) -> Done {
    let retry = session.random.one_of(&[None, Some("0"), Some("15 ms"), Some("150 ms")]);
    let is_fatal = match QUEUES[one.queue].kind {
        Kind::Mortal => session.random.percent(30),
        Kind::Flowing => session.random.percent(20),
        _ => false,
    };
    let sql = "SELECT queue.fail($1, 'torture', retry_in => $2::text::interval, fatal => $3)";
    let answer =
        session.call_of("fail", sql, &[&one.attempt, &retry, &is_fatal], QUEUES[one.queue].kind == Kind::Coming);
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Failed }, from, to);
    Ok(())
}

fn release(session: &mut Session<'_>, one: &Held) -> Done {
    let delay = match QUEUES[one.queue].kind {
        Kind::Strict => "0",
        _ => session.random.one_of(&["0", "0", "30 ms"]),
    };
    let sql = "SELECT queue.release($1, $2::text::interval)";
    let answer = session.call_of("release", sql, &[&one.attempt, &delay], QUEUES[one.queue].kind == Kind::Coming);
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Released }, from, to);
    Ok(())
}

fn extend(session: &mut Session<'_>, one: &Held) -> Done {
    let length = session.random.one_of(&[300_000_i64, 1_000_000, 6_000_000]);
    let sql = "SELECT (extract(epoch FROM lease_expires_at) * 1000000)::bigint
               FROM queue.extend($1, $2::text::interval)";
    let interval = format!("{length} microseconds");
    let called = now();
    let answer = session.call_of("extend", sql, &[&one.attempt, &interval], QUEUES[one.queue].kind == Kind::Coming);
    if answer.as_ref().is_err_and(|failure| failure.is_lost) {
        session.note(What::ExtendLost { attempt: one.attempt, length }, called, now());
    }
    let (rows, from, to) = refused(session, one, answer)?;
    if let Some(until) = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
        session.note(What::Extended { attempt: one.attempt, until, length }, from, to);
    }
    Ok(())
}

fn extend_many(session: &mut Session<'_>, some: &[Held]) -> Done {
    let ids: Vec<i64> = some.iter().map(|one| one.attempt).collect();
    let sql = "SELECT id, (extract(epoch FROM lease_expires_at) * 1000000)::bigint, outcome, reason
               FROM queue.extend_many($1, '1 s')";
    let called = now();
    let answer = session.call_of("extend_many", sql, &[&ids], true);
    if answer.as_ref().is_err_and(|failure| failure.is_lost) {
        for &attempt in &ids {
            session.note(What::ExtendLost { attempt, length: 1_000_000 }, called, now());
        }
    }
    let (rows, from, to) = answer?;
    for (row, one) in answered(session, "extend_many", &rows, some) {
        let outcome: &str = row.get("outcome");
        match row.get(1) {
            Some(until) if outcome == "extended" => {
                session.note(What::Extended { attempt: one.attempt, until, length: 1_000_000 }, from, to);
            }
            _ => note_refusal(session, "extend_many", one, outcome, row.get("reason"), to),
        }
    }
    Ok(())
}

/// Returns each answer of a verb for many with its attempt. There must be one answer for each attempt.
fn answered<'a>(session: &Session<'_>, verb: &str, rows: &'a [Row], some: &'a [Held]) -> Vec<(&'a Row, &'a Held)> {
    let mut left: Vec<&Held> = some.iter().collect();
    let mut pairs = Vec::new();
    for row in rows {
        let attempt: i64 = row.get(0);
        match left.iter().position(|one| one.attempt == attempt) {
            Some(at) => pairs.push((row, left.remove(at))),
            None => {
                session.torture.find(format!("{verb} has answered for {attempt}, which it was not given: {some:?}"))
            }
        }
    }
    if !left.is_empty() {
        session.torture.find(format!("{verb} has not answered for {left:?}"));
    }
    pairs
}

/// Notes that a verb for many could not end an attempt. Here no end is refused for its arguments.
fn note_refusal(session: &mut Session<'_>, verb: &str, one: &Held, outcome: &str, reason: Option<&str>, time: i64) {
    let is_known = match outcome {
        "lost" => {
            session.note(What::Refused { attempt: one.attempt }, time, time);
            true
        }
        "busy" => true,
        // The queue's stages may have changed.
        "refused" => QUEUES[one.queue].kind == Kind::Coming,
        _ => false,
    };
    if !is_known || reason.is_none_or(str::is_empty) {
        session.torture.find(format!("{verb} has answered {outcome} for {one:?}, with the reason {reason:?}"));
    }
}

/// Ends these attempts by one call of a verb for many.
fn end_many(session: &mut Session<'_>, some: &[Held]) -> Done {
    if session.random.percent(40) {
        return end_batch(session, some);
    }
    let (some, stuck): (Vec<Held>, Vec<Held>) = some.iter().cloned().partition(is_last);
    for one in &stuck {
        session.within_savepoint(0, |session| advance(session, one))?;
    }
    let ids: Vec<i64> = some.iter().map(|one| one.attempt).collect();
    let (verb, sql, end) = match session.random.below(10) {
        0 => ("fail_many", "queue.fail_many($1, 'torture', retry_in => '10 ms')", End::Failed),
        1 => ("release_many", "queue.release_many($1)", End::Released),
        2 => return extend_many(session, &some),
        _ => ("complete_many", "queue.complete_many($1)", End::Completed),
    };
    let (rows, from, to) = session.call_of(verb, &format!("SELECT id, outcome, reason FROM {sql}"), &[&ids], true)?;
    for (row, one) in answered(session, verb, &rows, &some) {
        note_answer(session, verb, row, one, end, from, to)?;
    }
    Ok(())
}

/// Ends these attempts by one call, each in a different way.
fn end_batch(session: &mut Session<'_>, some: &[Held]) -> Done {
    let mut planned = Vec::new();
    let mut ends = Vec::new();
    for one in some {
        let id = one.attempt;
        let (end, object) = match session.random.below(10) {
            0 => (End::Failed, json!({ "fail": { "id": id, "error": "torture", "retry_in": "10 ms" } })),
            1 => (End::Failed, json!({ "fail": { "id": id, "error": "torture" } })),
            2 => (End::Released, json!({ "release": { "id": id } })),
            _ if !is_last(one) => (End::Advanced, json!({ "advance": { "id": id } })),
            3 => (End::Completed, json!({ "complete": { "id": id, "result": { "ok": true } } })),
            _ => (End::Completed, json!({ "complete": { "id": id } })),
        };
        planned.push(end);
        ends.push(object);
    }
    let sql = "SELECT id, outcome, reason FROM queue.end_batch($1)";
    let (rows, from, to) = session.call_of("end_batch", sql, &[&Value::Array(ends)], true)?;
    for (row, one) in answered(session, "end_batch", &rows, some) {
        let end = some.iter().zip(&planned).find(|(other, _)| other.attempt == one.attempt).map(|(_, end)| *end);
        note_answer(session, "end_batch", row, one, end.expect("an end for each"), from, to)?;
    }
    Ok(())
}

/// Notes the answer of a verb for many about one attempt. Only a confirmed completion has its effect.
fn note_answer(session: &mut Session<'_>, verb: &str, row: &Row, one: &Held, end: End, from: i64, to: i64) -> Done {
    let (attempt, job) = (one.attempt, one.job);
    let (outcome, reason): (&str, Option<&str>) = (row.get("outcome"), row.get("reason"));
    let is_done = match end {
        End::Completed => outcome == "completed",
        End::Failed => ["failed", "dead", "cancelled"].contains(&outcome),
        End::Released => ["released", "cancelled"].contains(&outcome),
        End::Advanced => ["advanced", "cancelled"].contains(&outcome),
        End::Suspended { .. } => ["suspended", "cancelled"].contains(&outcome),
        End::CompletedPerhaps => false,
    };
    if !is_done {
        note_refusal(session, verb, one, outcome, reason, to);
        return Ok(());
    }
    if reason.is_some() {
        session.torture.find(format!("{verb} has answered {outcome} for {one:?}, with the reason {reason:?}"));
    }
    session.note(What::Ended { attempt, job, end }, from, to);
    session.note(What::Answered { attempt, outcome: outcome.to_owned() }, from, to);
    if end == End::Completed {
        session.torture.add_waiting(-1);
        session.call("effect", "INSERT INTO effect VALUES ($1, $2)", &[&attempt, &job])?;
    }
    Ok(())
}
