//! Topics: an event has a job in each queue that is bound to its key, and in no other queue. If a binding comes and
//! goes, an event has all of its copies or none.

use serde_json::json;

use crate::ledger::{Job, What, now, token};
use crate::plan::{BINDINGS, Binding, KEYS, Kind, QUEUES, TOPIC};
use crate::session::{Done, Session};

/// True if this run publishes. Copies go to several queues, so none may be left out.
pub fn are_there(session: &Session<'_>) -> bool {
    let options = &session.torture.options;
    options.only.is_empty() && options.has("topics") && BINDINGS.iter().all(|binding| options.has(binding.queue))
}

fn position(name: &str) -> usize {
    QUEUES.iter().position(|queue| queue.name == name).expect("a queue that is bound")
}

/// Makes one call of `publish` or `publish_many`. `witness`: the call is a deal of its own.
pub fn publish(session: &mut Session<'_>, witness: Option<i64>) -> Done {
    let random = &mut session.random;
    let is_many = random.percent(20);
    let events = if is_many { random.between(1, 6) as usize } else { 1 };
    let keys: Vec<&str> = (0..events).map(|_| random.one_of(KEYS)).collect();
    let groups: Vec<String> = keys.iter().map(|_| format!("g{}", random.below(6))).collect();
    let priority = if random.percent(50) { 0 } else { random.between(-2, 2) as i32 };
    // Jobs of queues with strict order have no delays in these runs.
    let has_key = |b: &Binding| keys.iter().any(|key| b.keys.contains(key));
    let is_strict = BINDINGS.iter().any(|b| QUEUES[position(b.queue)].kind == Kind::Strict && has_key(b));
    let delay = if is_strict { None } else { random.one_of(&[None, None, None, Some("20 ms"), Some("300 ms")]) };
    let base = format!("{:012x}", random.next() & 0xffff_ffff_ffff);
    let tokens: Vec<String> = (0..events).map(|n| token(&base, n, None)).collect();
    let payloads: Vec<_> = tokens.iter().zip(&groups).map(|(token, group)| payload(session, token, group)).collect();
    let (verb, sql) = if is_many {
        (
            "publish_many",
            "SELECT ordinal, queue_name, job_id FROM queue.publish_many($1, $2, $3,
                 priority => $4, delay => $5::text::interval)",
        )
    } else {
        (
            "publish",
            "SELECT 1, queue_name, job_id FROM queue.publish($1, ($2::jsonb[])[1], ($3::text[])[1],
                 priority => $4, delay => $5::text::interval)",
        )
    };
    let called = now();
    let sql = witnessed(sql, witness);
    let (rows, from, to) = match session.call(verb, &sql, &[&TOPIC, &payloads, &keys, &priority, &delay]) {
        Ok(answer) => answer,
        Err(failure) => {
            for (key, token) in keys.into_iter().zip(tokens) {
                session.note(What::PublishLost { key, token }, called, now());
            }
            return Err(failure);
        }
    };
    let jobs: Vec<(usize, String, i64)> =
        rows.iter().map(|row| (row.get::<_, i32>(0) as usize - 1, row.get(1), row.get(2))).collect();
    for (n, key) in keys.iter().enumerate() {
        let names: Vec<String> = jobs.iter().filter(|job| job.0 == n).map(|job| job.1.clone()).collect();
        if let Some(wrong) = wrong(key, &names) {
            session.torture.find(format!("{verb} with the key {key:?} {wrong}: {names:?}"));
        }
    }
    session.torture.add_waiting(jobs.len() as i64);
    for (n, name, id) in jobs {
        let queue = position(&name);
        session.torture.remember(queue, id);
        let is_grouped = matches!(QUEUES[queue].kind, Kind::Strict | Kind::Limited);
        let job = Job {
            priority,
            group: is_grouped.then(|| groups[n].clone()),
            is_due: delay.is_none(),
            ..Job::plain(id, queue, tokens[n].clone())
        };
        session.note(What::Enqueued(job), from, to);
    }
    Ok(())
}

/// Returns how a set of queues differs from the queues of the key.
pub fn wrong(key: &str, names: &[String]) -> Option<String> {
    let count = |queue: &str| names.iter().filter(|name| *name == queue).count();
    let binding = BINDINGS.iter().find(|binding| {
        let is_bound = binding.keys.contains(&key);
        match count(binding.queue) {
            0 => is_bound && binding.is_sure,
            1 => !is_bound,
            _ => true,
        }
    });
    if let Some(binding) = binding {
        return Some(format!("has {} jobs in {}", count(binding.queue), binding.queue));
    }
    let stranger = names.iter().find(|name| BINDINGS.iter().all(|binding| binding.queue != **name))?;
    Some(format!("has a job in {stranger}, which is not bound"))
}

fn payload(session: &mut Session<'_>, token: &str, group: &str) -> serde_json::Value {
    // Some payloads are so large that they are stored once for all copies.
    let ballast = if session.random.percent(30) { "x".repeat(3000) } else { String::new() };
    json!({"token": token, "group": group, "ballast": ballast})
}

fn witnessed(sql: &str, witness: Option<i64>) -> String {
    match witness {
        Some(number) => format!("WITH w AS (INSERT INTO witness VALUES ({number})) {sql}"),
        None => sql.to_owned(),
    }
}

/// Removes a binding and adds it again while publishers run.
pub fn rebind(session: &mut Session<'_>) -> Done {
    let unsure: Vec<_> = BINDINGS.iter().filter(|binding| !binding.is_sure && binding.on_full == "keep").collect();
    let binding = session.random.one_of(&unsure);
    let is_coming = QUEUES[position(binding.queue)].kind == Kind::Coming;
    if session.random.percent(50) {
        return session.call_of("bind", &binding.sql(), &[], is_coming).map(drop);
    }
    session.call_of("unbind", "SELECT queue.unbind($1, $2)", &[&TOPIC, &binding.queue], is_coming).map(drop)
}
