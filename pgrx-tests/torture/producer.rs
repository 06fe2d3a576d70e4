//! Producers: they enqueue in all forms, in transactions of any isolation level, with savepoints, and roll back or
//! prepare some of them.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::ledger::{Job, Micros, What, now, token};
use crate::plan::{Kind, QUEUES, STAGES};
use crate::session::{Done, Session};
use crate::{flows, topics};

/// The number of waiting jobs above which producers pause.
const BACKLOG: i64 = 500;

pub fn run(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(|| torture.is_over(), step);
}

fn step(session: &mut Session<'_>) -> Done {
    if session.torture.waiting() > BACKLOG {
        thread::sleep(Duration::from_millis(10));
        return Ok(());
    }
    // The pause lets consumers keep up, even in a build without optimisation.
    thread::sleep(Duration::from_millis(session.random.below(20)));
    if session.random.percent(30) {
        let number = session.begin_alone();
        let from = now();
        let done = enqueue(session, Some(number));
        session.end_alone(&done, from);
        return done;
    }
    session.begin()?;
    enqueue(session, None)?;
    if session.random.percent(30) {
        session.within_savepoint(40, |session| enqueue(session, None))?;
        if session.random.percent(30) {
            enqueue(session, None)?;
        }
    }
    if session.random.percent(6) {
        return session.end_in_two_phases();
    }
    session.end(15).map(drop)
}

/// Returns a predecessor: mostly a job of this transaction, sometimes any job.
fn predecessor(session: &mut Session<'_>) -> Option<i64> {
    let own: Vec<i64> = session.enqueued().collect();
    if !own.is_empty() && session.random.percent(70) {
        return Some(session.random.one_of(&own));
    }
    let torture = session.torture;
    torture.some_job(&mut session.random).map(|(_, job)| job)
}

/// Makes one call of one form of enqueue. `witness`: the call is a deal of its own.
fn enqueue(session: &mut Session<'_>, witness: Option<i64>) -> Done {
    if session.random.percent(10) && topics::are_there(session) {
        return topics::publish(session, witness);
    }
    let Some(queue) = session.torture.pick(&mut session.random, |kind| !matches!(kind, Kind::Morgue | Kind::Ticking))
    else {
        return Ok(());
    };
    let kind = QUEUES[queue].kind;
    if kind == Kind::Flowing && witness.is_none() && session.random.percent(60) {
        return flows::make(session, queue);
    }
    let flow = if kind == Kind::Flowing { session.torture.some_flow(&mut session.random) } else { None };
    let random = &mut session.random;
    let priority = if random.percent(50) { 0 } else { random.between(-2, 2) as i32 };
    let delay = match kind {
        Kind::Strict => None,
        _ => random.one_of(&[None, None, None, None, Some("20 ms"), Some("300 ms"), Some("2 s")]),
    };
    let group = match kind {
        Kind::Strict | Kind::Limited => Some(format!("g{}", random.below(6))),
        _ => None,
    };
    let key = match kind {
        Kind::Keyed => random.percent(90),
        Kind::Versioned | Kind::Timed => true,
        _ => false,
    }
    .then(|| format!("k{}", random.below(12)));
    let on_duplicate = match kind {
        Kind::Versioned => random.one_of(&["replace", "rerun"]),
        Kind::Timed => random.one_of(&["skip", "replace", "error"]),
        _ => random.one_of(&["skip", "replace", "rerun", "rerun", "error"]),
    };
    // Some older versions come after newer ones.
    let version = (kind == Kind::Versioned).then(|| now() - random.one_of(&[0, 0, 100_000, 2_000_000]));
    let unique_for = (kind == Kind::Timed).then(|| random.one_of(&[100_000, 500_000, 2_000_000]));
    // Another call may change the lease of a job with a key.
    let lease = (key.is_none() && random.percent(10)).then(|| random.one_of(&[200_000, 1_000_000, 5_000_000]));
    let mut after = Vec::new();
    if kind == Kind::Chained {
        for _ in 0..session.random.below(4) {
            after.extend(predecessor(session).filter(|job| !after.contains(job)));
        }
    }
    let random = &mut session.random;
    let upon = random.one_of(&["completed", "completed", "any", "failed", "ended"]);
    // Without predecessors the server refuses other values.
    let upon = if after.is_empty() { "completed" } else { upon };
    let stage = (kind == Kind::Staged && random.percent(15)).then(|| random.one_of(&STAGES));
    let many = match (key.is_some(), random.below(10)) {
        (true, _) | (_, 0..7) => 1,
        (_, 7) => random.between(1, 60),
        _ => random.between(1, 12),
    };
    let base = format!("{:012x}", random.next() & 0xffff_ffff_ffff);
    let tokens: Vec<String> = (0..many as usize).map(|n| token(&base, n, lease)).collect();
    // Some payloads are so large that they are stored once for all attempts.
    let ballast = if random.percent(3) { "x".repeat(3000) } else { String::new() };
    let payload = |(n, token)| json!({"token": token, "ballast": ballast, "cost": 1 + n % 5});
    let payloads: Vec<serde_json::Value> = tokens.iter().enumerate().map(payload).collect();
    let form = random.below(3);
    let duplicate = if key.is_some() { on_duplicate } else { "skip" };
    let (verb, sql) = match (many, form) {
        (1, 0 | 1) => (
            "enqueue",
            "SELECT queue.enqueue($1, ($2::jsonb[])[1], priority => $3, delay => $4::text::interval, group_key => $5,
                 unique_key => $6, on_duplicate => $7, stage => $8,
                 version => 'epoch'::timestamptz + $9::bigint * interval '1 microsecond',
                 unique_for => $10::text::interval, lease => $11::text::interval, after => $12, upon => $13,
                 flow => $14) AS id",
        ),
        (_, 2) => (
            "enqueue_batch",
            "SELECT queue.enqueue_batch($1, (SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('payload', p,
                 'priority', $3::int, 'delay', $4::text, 'group_key', $5::text, 'unique_key', $6::text,
                 'on_duplicate', CASE WHEN $6::text IS NOT NULL THEN $7::text END,
                 'stage', $8::text, 'version', 'epoch'::timestamptz + $9::bigint * interval '1 microsecond',
                 'unique_for', $10::text, 'lease', $11::text,
                 'after', $12::bigint[], 'upon', $13::text, 'flow', $14::bigint)) ORDER BY n)
                 FROM unnest($2::jsonb[]) WITH ORDINALITY AS u(p, n))) AS id",
        ),
        _ => (
            "enqueue_many",
            "SELECT queue.enqueue_many($1, $2, priority => $3, delay => $4::text::interval, group_key => $5,
                 unique_key => $6, on_duplicate => $7, stage => $8,
                 version => 'epoch'::timestamptz + $9::bigint * interval '1 microsecond',
                 unique_for => $10::text::interval, lease => $11::text::interval, after => $12, upon => $13,
                 flow => $14) AS id",
        ),
    };
    let sql = match witness {
        Some(number) => format!("WITH w AS (INSERT INTO witness VALUES ({number})) {sql}"),
        None => sql.to_owned(),
    };
    let [stays, own] = [unique_for, lease].map(|time| time.map(|micros: Micros| format!("{micros} microseconds")));
    let given = (!after.is_empty()).then_some(&after);
    let called = now();
    let answer = session.call_of(
        verb,
        &sql,
        &[
            &QUEUES[queue].name,
            &payloads,
            &priority,
            &delay,
            &group,
            &key,
            &duplicate,
            &stage,
            &version,
            &stays,
            &own,
            &given,
            &upon,
            &flow,
        ],
        kind == Kind::Coming,
    );
    let (rows, from, to) = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            session.note(What::EnqueueLost { queue, key, tokens }, called, now());
            return Err(failure);
        }
    };
    if rows.len() != tokens.len() {
        session.torture.find(format!("{verb} of {} jobs has returned {} ids", tokens.len(), rows.len()));
    }
    for (row, token) in rows.iter().zip(tokens) {
        let id = row.get(0);
        session.torture.remember(queue, id);
        let job = Job {
            id,
            queue,
            token,
            priority,
            group: group.clone(),
            key: key.clone(),
            is_due: delay.is_none() && after.is_empty(),
            renews: matches!(duplicate, "replace" | "rerun"),
            version,
            unique_for,
            after: after.clone(),
            upon,
            flow,
            own_flow: None,
        };
        session.note(What::Enqueued(job), from, to);
    }
    session.torture.add_waiting(rows.len() as i64);
    Ok(())
}
