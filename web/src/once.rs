//! `--once`: the overview as text, for a terminal.
//!
//! Invariant: no control character of a name reaches the terminal.

use std::fmt::Write as _;

use serde_json::Value;

use crate::database::{Database, MAX_LOOK_TIME};
use crate::options::Options;
use crate::viewer::Viewer;
use crate::{log, look};

/// The counts of the last whole minute, by queue.
const RATES: &str =
    "SELECT coalesce(json_object_agg(queue_name, json_build_array(enqueued, completed, failed)), '{}')::text FROM (
    SELECT queue_name, sum(enqueued) AS enqueued, sum(completed) AS completed, sum(failed + timed_out) AS failed
    FROM queue.activity(since => date_trunc('minute', now()) - interval '1 minute')
    WHERE starts_at < date_trunc('minute', now()) GROUP BY queue_name) AS a";

/// Looks at each database, and prints the overview.
pub async fn print(options: &Options) -> Result<(), String> {
    let viewer = Viewer { name: "once".to_owned(), role: None, has_logged_in: false };
    for config in &options.databases {
        let name = config.get_dbname().unwrap_or("postgres").to_owned();
        let database = Database::new(config.clone(), name, options)?;
        let look = async { Ok((look::overview(&database, &viewer).await?, database.look(&viewer, RATES, &[]).await?)) };
        let (overview, rates) = look.await.map_err(|e: crate::error::Error| {
            [Some(e.message), e.detail, e.hint].into_iter().flatten().collect::<Vec<_>>().join("\n")
        })?;
        let read = |text: &str| serde_json::from_str::<Value>(text).map_err(|e| e.to_string());
        log::print(&table(&database.name, &read(&overview)?, &read(&rates)?))?;
    }
    Ok(())
}

/// Returns the text of an overview.
fn table(database: &str, overview: &Value, rates: &Value) -> String {
    let mut text = String::new();
    let list = |name: &str| overview[name].as_array().cloned().unwrap_or_default();
    let lanes = list("lanes");
    let is_standby = overview["is_standby"] == true;
    let _ = writeln!(text, "{}{}", plain(database, 60), if is_standby { ", a standby" } else { "" });
    if overview["lanes"].is_null() {
        let _ = writeln!(text, "Counting takes longer than {} s here: no counts.", MAX_LOOK_TIME.as_secs());
    }
    let _ = writeln!(
        text,
        "\n{:<30} {:>10} {:>8} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>8}  OLDEST",
        "QUEUE", "READY", "RUNNING", "SCHEDULED", "RETRYING", "HELD", "DEAD", "IN/MIN", "DONE/MIN", "FAIL/MIN"
    );
    let mut last = None;
    for lane in &lanes {
        let queue = lane["queue"].as_str().unwrap_or_default();
        let name = match lane["stage"].as_str() {
            Some(stage) => format!("{queue} / {stage}"),
            None => queue.to_owned(),
        };
        // The rates are the queue's. They are shown with its first lane.
        let is_first = last.replace(queue.to_owned()).as_deref() != Some(queue);
        let rate = |n: usize| match rates[queue][n].as_i64() {
            Some(rate) if is_first => rate.to_string(),
            _ => "-".to_owned(),
        };
        let count = |name: &str| lane[name].as_i64().unwrap_or_default();
        let oldest = lane["oldest"].as_f64().map_or_else(String::new, age);
        let _ = writeln!(
            text,
            "{:<30} {:>10} {:>8} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>8}  {oldest}",
            plain(&name, 30),
            count("ready"),
            count("running"),
            count("scheduled"),
            count("retrying"),
            count("held"),
            count("dead"),
            rate(0),
            rate(1),
            rate(2),
        );
    }
    if overview["lanes"].is_null() {
        for queue in list("queues") {
            let _ = writeln!(text, "{}", plain(queue["queue"].as_str().unwrap_or_default(), 30));
        }
    }
    let workers = list("workers");
    let _ = writeln!(text, "\n{:<30} {:<20} {:>8} {:>8}  OLDEST", "WORKER", "QUEUE", "PID", "RUNNING");
    // A connection that is between two claims has no queue.
    for worker in workers.iter().filter(|worker| worker["queue"].is_string()) {
        let word = |name: &str, longest| plain(worker[name].as_str().unwrap_or("-"), longest);
        let name = if worker["worker"].is_string() { "worker" } else { "application" };
        let oldest = worker["oldest"].as_f64().map_or_else(String::new, age);
        let _ = writeln!(
            text,
            "{:<30} {:<20} {:>8} {:>8}  {oldest}",
            word(name, 30),
            word("queue", 20),
            worker["pid"].to_string(),
            worker["running"].to_string()
        );
    }
    text
}

/// Returns a name that a terminal can show, of at most `longest` characters. A name that is cut ends with "…".
fn plain(text: &str, longest: usize) -> String {
    // Characters that change the direction of text are replaced, too.
    let is_strange = |c: char| {
        c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut name: String = text.chars().map(|c| if is_strange(c) { ' ' } else { c }).take(longest).collect();
    if text.chars().nth(longest).is_some() {
        name.pop();
        name.push('…');
    }
    name
}

/// Returns seconds as people say them.
fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cut_name_says_so() {
        assert_eq!(plain("abcd", 4), "abcd");
        assert_eq!(plain("abcde", 4), "abc…");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let overview = json!({
            "is_standby": false, "queues": [], "workers": [{"worker": "w\u{1b}[31m\u{202e}", "queue": "q", "pid": 1,
                "running": 2, "oldest": 61}],
            "lanes": [{"queue": "a\u{1b}]0;x\u{7}\n", "stage": null, "ready": 1}],
        });
        let text = table("app", &overview, &json!({}));
        assert!(text.contains("1 min 1 s"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(!text.contains('\u{202e}'));
        assert_eq!(text.lines().count(), 7, "{text}");
    }
}
