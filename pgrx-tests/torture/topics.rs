//! Topics: what is published has a job in each queue that is bound to such a key, and in no other; bindings that come
//! and go have theirs or not, as a whole.

use serde_json::json;

use crate::ledger::{Job, What, now, token};
use crate::plan::{BINDINGS, KEYS, Kind, QUEUES, TOPIC};
use crate::session::{Done, Session};

/// Whether this run publishes: the copies go to several queues, so only if none is left out.
pub fn are_there(session: &Session<'_>) -> bool {
    let options = &session.torture.options;
    options.only.is_empty() && options.has("topics") && BINDINGS.iter().all(|binding| options.has(binding.queue))
}

fn position(name: &str) -> usize {
    QUEUES.iter().position(|queue| queue.name == name).expect("a queue that is bound")
}

/// One call of `publish` or `publish_many`. `witness`: it is a deal of its own.
pub fn publish(session: &mut Session<'_>, witness: Option<i64>) -> Done {
    if session.random.percent(20) {
        return publish_many(session, witness);
    }
    let random = &mut session.random;
    let key = random.one_of(KEYS);
    let priority = if random.percent(50) { 0 } else { random.between(-2, 2) as i32 };
    let group = format!("g{}", random.below(6));
    // Strict order has no delays in these runs.
    let is_strict = BINDINGS.iter().any(|b| QUEUES[position(b.queue)].kind == Kind::Strict && b.keys.contains(&key));
    let delay = if is_strict { None } else { random.one_of(&[None, None, None, Some("20 ms"), Some("300 ms")]) };
    let base = format!("{:012x}", random.next() & 0xffff_ffff_ffff);
    let token = token(&base, 0, None);
    let payload = payload(session, &token, &group);
    let sql = "SELECT queue_name, job_id FROM queue.publish($1, $2, $3, priority => $4, delay => $5::text::interval)";
    let sql = witnessed(sql, witness);
    let called = now();
    let answer = session.call("publish", &sql, &[&TOPIC, &payload, &key, &priority, &delay]);
    let (rows, from, to) = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            session.note(What::PublishLost { key, token }, called, now());
            return Err(failure);
        }
    };
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    if let Some(wrong) = wrong(key, &names) {
        session.torture.find(format!("publish with the key {key:?} {wrong}: {names:?}"));
    }
    for (row, name) in rows.iter().zip(&names) {
        let (queue, id) = (position(name), row.get(1));
        session.torture.remember(queue, id);
        let is_grouped = matches!(QUEUES[queue].kind, Kind::Strict | Kind::Limited);
        let job = Job {
            priority,
            group: is_grouped.then(|| group.clone()),
            is_due: delay.is_none(),
            ..Job::plain(id, queue, token.clone())
        };
        session.note(What::Enqueued(job), from, to);
    }
    session.torture.add_waiting(rows.len() as i64);
    Ok(())
}

/// How a set of queues is not that of the key.
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
    // Large enough to be written once for all copies, now and then.
    let ballast = if session.random.percent(30) { "x".repeat(3000) } else { String::new() };
    json!({"token": token, "group": group, "ballast": ballast})
}

fn witnessed(sql: &str, witness: Option<i64>) -> String {
    match witness {
        Some(number) => format!("WITH w AS (INSERT INTO witness VALUES ({number})) {sql}"),
        None => sql.to_owned(),
    }
}

/// Several events at once. The answer says how many jobs there are, and not which.
fn publish_many(session: &mut Session<'_>, witness: Option<i64>) -> Done {
    let many = session.random.between(1, 6) as usize;
    let base = format!("{:012x}", session.random.next() & 0xffff_ffff_ffff);
    let (mut keys, mut tokens, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..many {
        let token = token(&base, n, None);
        let group = format!("g{}", session.random.below(6));
        payloads.push(payload(session, &token, &group));
        keys.push(session.random.one_of(KEYS));
        tokens.push(token);
    }
    let sql = witnessed("SELECT queue.publish_many($1, $2, $3)", witness);
    let called = now();
    let answer = session.call("publish_many", &sql, &[&TOPIC, &payloads, &keys]);
    let to = now();
    // Which jobs they are is known of none of them.
    for (key, token) in keys.iter().zip(tokens) {
        session.note(What::PublishLost { key, token }, called, to);
    }
    let (rows, ..) = answer?;
    let made: i64 = rows.first().map_or(0, |row| row.get(0));
    let count = |is_wanted: &dyn Fn(bool) -> bool| {
        let bound =
            |key: &&str| BINDINGS.iter().filter(|b| is_wanted(b.is_sure) && b.keys.contains(key)).count() as i64;
        keys.iter().map(bound).sum::<i64>()
    };
    let (least, most) = (count(&|is_sure| is_sure), count(&|_| true));
    if !(least..=most).contains(&made) {
        session
            .torture
            .find(format!("publish_many with the keys {keys:?} has made {made} jobs, not {least} to {most}"));
    }
    session.torture.add_waiting(made);
    Ok(())
}

/// A binding that comes and goes, under the hands of those that publish.
pub fn rebind(session: &mut Session<'_>) -> Done {
    let unsure: Vec<_> = BINDINGS.iter().filter(|binding| !binding.is_sure && binding.on_full == "keep").collect();
    let binding = session.random.one_of(&unsure);
    let is_coming = QUEUES[position(binding.queue)].kind == Kind::Coming;
    if session.random.percent(50) {
        return session.call_of("bind", &binding.sql(), &[], is_coming).map(drop);
    }
    session.call_of("unbind", "SELECT queue.unbind($1, $2)", &[&TOPIC, &binding.queue], is_coming).map(drop)
}
