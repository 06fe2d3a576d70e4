//! Flows: they are made with members, extended and sealed by other sessions, and resolved from outside. Also jobs that
//! wait for jobs that they have made, and steps.

use serde_json::json;

use crate::held::{Held, refused};
use crate::ledger::{End, Job, Micros, OwnFlow, What, now, token};
use crate::plan::QUEUES;
use crate::session::{Done, Session};

/// The prefix of a flow's token: it does not suspend itself for its members.
pub const MARK: &str = "flow-";

/// The longest time, in microseconds, until which a suspended job waits for its members.
pub const MAX_WAIT_US: i64 = 1_000_000;

/// The names of steps.
const STEPS: [&str; 3] = ["fetch", "cut", "send"];

fn base(session: &mut Session<'_>) -> String {
    format!("{:012x}", session.random.next() & 0xffff_ffff_ffff)
}

/// Makes a flow and some of its members in the open deal.
pub fn make(session: &mut Session<'_>, queue: usize) -> Done {
    let random = &mut session.random;
    let (runs, is_fail_fast) = (random.percent(50), random.percent(25));
    let own = OwnFlow { runs, is_fail_fast, is_any: !is_fail_fast && random.percent(30) };
    let is_open = random.percent(25);
    let members = random.below(6) as usize;
    let in_flow = random.percent(15);
    let flow = if in_flow { session.torture.some_flow(&mut session.random) } else { None };
    let token = token(&format!("{MARK}{}", base(session)), 0, None);
    let sql = "SELECT queue.enqueue_flow($1, payload => $2, runs => $3, open => $4, fail_fast => $5, flow => $6,
                    upon => $7)";
    let payload = json!({ "token": token });
    let called = now();
    let upon = if own.is_any { "any" } else { "completed" };
    let params: [&(dyn postgres::types::ToSql + Sync); 7] =
        [&QUEUES[queue].name, &payload, &own.runs, &is_open, &own.is_fail_fast, &flow, &upon];
    let (rows, from, to) = session.call("enqueue_flow", sql, &params).inspect_err(|_| {
        session.note(What::EnqueueLost { queue, key: None, tokens: vec![token.clone()] }, called, now());
    })?;
    let Some(id) = rows.first().map(|row| row.get(0)) else { return Ok(()) };
    session.note(What::Enqueued(Job { flow, own_flow: Some(own), ..Job::plain(id, queue, token) }), from, to);
    session.torture.remember(queue, id);
    session.torture.remember_flow(id);
    add(session, queue, id, members)
}

/// Adds members to a flow in the open deal.
fn add(session: &mut Session<'_>, queue: usize, flow: i64, members: usize) -> Done {
    let base = base(session);
    let tokens: Vec<String> = (0..members).map(|n| token(&base, n, None)).collect();
    let payloads: Vec<serde_json::Value> = tokens.iter().map(|token| json!({ "token": token })).collect();
    let called = now();
    let sql = "SELECT queue.enqueue_many($1, $2, flow => $3)";
    let answer = session.call("enqueue_many", sql, &[&QUEUES[queue].name, &payloads, &flow]);
    let (rows, from, to) = answer.inspect_err(|_| {
        session.note(What::EnqueueLost { queue, key: None, tokens: tokens.clone() }, called, now());
    })?;
    for (row, token) in rows.iter().zip(tokens) {
        let id = row.get(0);
        session.torture.remember(queue, id);
        session.note(What::Enqueued(Job { flow: Some(flow), ..Job::plain(id, queue, token) }), from, to);
    }
    session.torture.add_waiting(rows.len() as i64);
    Ok(())
}

/// Changes a flow as managers do. An event may end a flow, whatever its members do.
pub fn meddle(session: &mut Session<'_>, job: i64) -> Done {
    let (verb, sql) = session.random.one_of(&[
        ("seal", "SELECT queue.seal($1)"),
        ("seal", "SELECT queue.seal($1)"),
        ("resolve", "SELECT queue.resolve($1, '{\"by\": \"torture\"}')"),
        ("reject", "SELECT queue.reject($1, 'torture')"),
    ]);
    let (_, from, to) = session.call(verb, sql, &[&job])?;
    if verb != "seal" {
        session.note(What::Tried { job }, from, to);
    }
    Ok(())
}

/// Makes jobs from a running job, which waits for them or until a time.
pub fn suspend(session: &mut Session<'_>, one: &Held) -> Done {
    let members = session.random.between(1, 3) as usize;
    add(session, one.queue, one.job, members)?;
    let random = &mut session.random;
    let until = random.percent(40).then(|| now() + random.below(MAX_WAIT_US as u64) as Micros);
    let sql = "SELECT queue.suspend($1, until => 'epoch'::timestamptz + $2::bigint * interval '1 microsecond')";
    let answer = session.call("suspend", sql, &[&one.attempt, &until]);
    let (_, from, to) = refused(session, one, answer)?;
    session.note(What::Ended { attempt: one.attempt, job: one.job, end: End::Suspended { until } }, from, to);
    Ok(())
}

/// Looks up whether a step is done, and sometimes does it.
pub fn step(session: &mut Session<'_>, one: &Held) -> Done {
    let name = session.random.one_of(&STEPS);
    let answer = session.call("step", "SELECT queue.step($1, $2) IS NOT NULL", &[&one.attempt, &name]);
    let (rows, from, to) = refused(session, one, answer)?;
    let is_done = rows.first().is_some_and(|row| row.get(0));
    session.note(What::StepSeen { job: one.job, name, is_done }, from, to);
    if !is_done && session.random.percent(70) {
        let sql = "SELECT queue.step_done($1, $2, '{\"done\": true}')";
        let answer = session.call("step_done", sql, &[&one.attempt, &name]);
        let (_, from, to) = refused(session, one, answer)?;
        session.note(What::StepDone { job: one.job, name }, from, to);
    }
    Ok(())
}
