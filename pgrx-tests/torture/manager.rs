//! Managers: they change jobs and queues while producers and workers use them, and end prepared transactions.

use std::thread;
use std::time::Duration;

use postgres::Row;

use crate::ledger::{What, now};
use crate::plan::{self, Kind, QUEUES};
use crate::session::{Done, Session};
use crate::{flows, topics};

pub fn run(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(|| torture.is_over(), step);
}

fn step(session: &mut Session<'_>) -> Done {
    thread::sleep(Duration::from_millis(session.random.below(120)));
    match session.random.below(20) {
        // The session does the worker's duties while the worker runs.
        0 => return session.aside("maintain", "SELECT FROM queue.maintain()").map(drop),
        1 => return tock(session),
        _ => {}
    }
    session.begin()?;
    let many = session.random.between(1, 3);
    for _ in 0..many {
        session.within_savepoint(15, change)?;
    }
    session.end(20).map(drop)
}

fn change(session: &mut Session<'_>) -> Done {
    let torture = session.torture;
    let Some((queue, job)) = torture.some_job(&mut session.random) else { return Ok(()) };
    let from = now();
    change_it(session, queue, job).inspect_err(|_| {
        session.note(What::Tried { job }, from, now());
        session.note(What::Queue { queue, verb: "tried" }, from, now());
    })
}

fn change_it(session: &mut Session<'_>, queue: usize, job: i64) -> Done {
    let is_coming = QUEUES[queue].kind == Kind::Coming;
    if QUEUES[queue].kind == Kind::Flowing && session.random.percent(30) {
        return flows::meddle(session, job);
    }
    match session.random.below(100) {
        0..5 => return change_many(session, queue, job),
        5..25 => {
            let is_forced = session.random.percent(40);
            let sql = "SELECT queue.cancel($1, 'torture', force => $2)";
            let (_, from, to) = session.call_of("cancel", sql, &[&job, &is_forced], is_coming)?;
            session.note(What::Cancelled { job, is_forced }, from, to);
        }
        25..45 => {
            let (_, from, to) = session.call_of("retry", "SELECT queue.retry($1)", &[&job], is_coming)?;
            session.note(What::Retried { job }, from, to);
        }
        45..65 => {
            let priority = session.random.between(-2, 2) as i32;
            let sql = "SELECT queue.reprioritize($1, $2)";
            let (_, from, to) = session.call_of("reprioritize", sql, &[&job, &priority], is_coming)?;
            session.note(What::Moved { job }, from, to);
        }
        65..80 => {
            let delay = session.random.one_of(&["0", "40 ms"]);
            let sql = "SELECT queue.reschedule($1, clock_timestamp() + $2::text::interval)";
            let (_, from, to) = session.call_of("reschedule", sql, &[&job, &delay], is_coming)?;
            session.note(What::Moved { job }, from, to);
        }
        80..85 => {
            let sql = "SELECT id, outcome, reason FROM queue.retry_many(ARRAY(
                           SELECT job_id FROM queue.search('mortal', states => '{dead}', max_jobs => 3)))";
            let (rows, from, to) = session.call("retry_many", sql, &[])?;
            session.note(What::RetriedDead { queue: position(Kind::Mortal) }, from, to);
            note_answers(session, "retry_many", &[], &rows, from, to);
        }
        // The checkers would not know of flows and members that a purge cancels.
        85..86 if QUEUES[queue].kind == Kind::Flowing => {}
        85..86 => return of_queue(session, queue, "purge", "SELECT queue.purge($1)"),
        86..92 => {
            of_queue(session, queue, "pause", "SELECT queue.pause($1)")?;
            return of_queue(session, queue, "resume", "SELECT queue.resume($1)");
        }
        92..93 => return of_queue(session, queue, "throttle", "SELECT queue.throttle($1, '20 ms')"),
        93..94 if matches!(QUEUES[queue].kind, Kind::Strict | Kind::Limited) => {
            let (group, weight) = (session.random.below(6), session.random.one_of(&["NULL", "0.2", "1", "7"]));
            let sql = session.random.one_of(&["weigh($1, 'g#', @)", "throttle($1, '20 ms', 'g#')"]);
            let sql = sql.replace('#', &group.to_string()).replace('@', weight);
            return of_queue(session, queue, "share", &format!("SELECT queue.{sql}"));
        }
        94..96 => {
            let change = session.random.one_of(QUEUES[queue].changes);
            return of_queue(session, queue, "alter", &format!("SELECT queue.alter($1, {change})"));
        }
        96..97 => return come_and_go(session),
        97..98 if topics::are_there(session) => return topics::rebind(session),
        // Slots and dead-letter copies are identified by headers, which the checkers need.
        _ if matches!(QUEUES[queue].kind, Kind::Morgue | Kind::Ticking) => {}
        _ => {
            let (_, from, to) = session.call_of("forget", "SELECT queue.forget($1)", &[&job], is_coming)?;
            session.note(What::Forgotten { job }, from, to);
        }
    }
    Ok(())
}

/// Changes this job and others by one call. The call is made even if some cannot be changed.
fn change_many(session: &mut Session<'_>, queue: usize, job: i64) -> Done {
    let mut jobs = vec![(queue, job)];
    for _ in 0..session.random.between(1, 6) {
        // A job may occur twice.
        jobs.extend(session.torture.some_job(&mut session.random));
    }
    let mut ids: Vec<i64> = jobs.iter().map(|(_, job)| *job).collect();
    let (verb, sql) = session.random.one_of(&[
        ("cancel_many", "queue.cancel_many($1, 'torture')"),
        ("cancel_many", "queue.cancel_many($1, 'torture', force => true)"),
        ("retry_many", "queue.retry_many($1)"),
        ("reprioritize_many", "queue.reprioritize_many($1, 1)"),
        ("reschedule_many", "queue.reschedule_many($1, clock_timestamp() + '20 ms')"),
    ]);
    let called = now();
    let answer = session.call_of(verb, &format!("SELECT id, outcome, reason FROM {sql}"), &[&ids], true);
    let (rows, from, to) = answer.inspect_err(|_| {
        for &(queue, job) in &jobs {
            session.note(What::Tried { job }, called, now());
            session.note(What::Queue { queue, verb: "tried" }, called, now());
        }
    })?;
    let mut answered: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    answered.sort_unstable();
    ids.sort_unstable();
    if answered != ids {
        session.torture.find(format!("{verb} of {ids:?} has answered for {answered:?}"));
    }
    note_answers(session, verb, &jobs, &rows, from, to);
    Ok(())
}

/// Notes the answers of a verb for many. `jobs` has the known queues of jobs.
fn note_answers(session: &mut Session<'_>, verb: &str, jobs: &[(usize, i64)], rows: &[Row], from: i64, to: i64) {
    for row in rows {
        let (job, outcome, reason): (i64, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
        let what = match outcome {
            "cancelled" | "cancelling" => What::Cancelled { job, is_forced: true },
            "retried" => What::Retried { job },
            "reprioritized" | "rescheduled" => What::Moved { job },
            "missing" | "busy" | "refused" | "full" => What::Tried { job },
            _ => {
                session.torture.find(format!("{verb} has answered {outcome} for {job}"));
                continue;
            }
        };
        if reason.is_some() != matches!(what, What::Tried { .. }) {
            session.torture.find(format!("{verb} has answered {outcome} for {job}, with the reason {reason:?}"));
        }
        if reason.is_some()
            && let Some(&(queue, _)) = jobs.iter().find(|(_, other)| *other == job)
        {
            session.note(What::Queue { queue, verb: "tried" }, from, to);
        }
        session.note(what, from, to);
    }
}

/// Changes a schedule. Its slots may then be missed, but not doubled.
fn tock(session: &mut Session<'_>) -> Done {
    let (verb, sql) = session.random.one_of(&[
        ("schedule", "SELECT queue.schedule('tock', 'ticking', every => '300 ms')"),
        ("schedule", "SELECT queue.schedule('tock', 'ticking', cron => '* * * * * *', overlap => false)"),
        ("pause_schedule", "SELECT queue.pause_schedule('tock')"),
        ("resume_schedule", "SELECT queue.resume_schedule('tock')"),
        ("run_schedule", "SELECT queue.run_schedule('tock')"),
        ("unschedule", "SELECT queue.unschedule('tock')"),
    ]);
    session.aside(verb, sql).map(drop)
}

fn position(kind: Kind) -> usize {
    QUEUES.iter().position(|queue| queue.kind == kind).expect("a queue of each kind")
}

fn of_queue(session: &mut Session<'_>, queue: usize, verb: &'static str, sql: &str) -> Done {
    let is_coming = QUEUES[queue].kind == Kind::Coming;
    let (_, from, to) = session.call_of(verb, sql, &[&QUEUES[queue].name], is_coming)?;
    session.note(What::Queue { queue, verb }, from, to);
    Ok(())
}

/// Drops the queue that comes and goes, and creates it again.
fn come_and_go(session: &mut Session<'_>) -> Done {
    let queue = position(Kind::Coming);
    if !session.torture.options.has(QUEUES[queue].name) {
        return Ok(());
    }
    of_queue(session, queue, "drop", "SELECT queue.drop($1, force => true)")?;
    let (_, from, to) = session.call_of("create", &plan::create(&QUEUES[queue]), &[], true)?;
    session.note(What::Queue { queue, verb: "create" }, from, to);
    // The queue's bindings were dropped with it.
    for binding in plan::BINDINGS.iter().filter(|binding| binding.queue == QUEUES[queue].name) {
        session.call_of("bind", &binding.sql(), &[], true)?;
    }
    Ok(())
}

/// Ends prepared transactions, some of them after a while.
pub fn notary(session: &mut Session<'_>) {
    let torture = session.torture;
    session.go_on(
        || torture.is_drained(),
        |session| {
            thread::sleep(Duration::from_millis(50));
            let sql = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";
            for row in session.aside("look at prepared", sql)? {
                if torture.is_calm() || session.random.percent(15) {
                    let gid: &str = row.get(0);
                    let end = session.random.one_of(&["COMMIT", "COMMIT", "ROLLBACK"]);
                    session.aside("end prepared", &format!("{end} PREPARED '{gid}'"))?;
                }
            }
            Ok(())
        },
    );
}
