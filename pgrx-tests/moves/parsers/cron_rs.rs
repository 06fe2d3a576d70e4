//! Asks the crate cron when expressions match. See cron_parsers.py for the argument and the answers.

use std::str::FromStr as _;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

/// The crate wants seconds, so an expression of five fields gets second 0, as its users write it.
fn answer(text: &str, start: &str, count: usize) -> Result<Vec<String>, String> {
    let text = if text.split(' ').count() == 5 { format!("0 {text}") } else { text.to_owned() };
    let schedule = cron::Schedule::from_str(&text).map_err(|error| error.to_string())?;
    let start: DateTime<Utc> = start.parse().map_err(|_| "no time")?;
    Ok(schedule.after(&start).take(count).map(|at| at.to_rfc3339_opts(SecondsFormat::Secs, true)).collect())
}

fn main() {
    let cases: Vec<(String, String, String, String, usize)> =
        serde_json::from_str(&std::env::args().nth(1).expect("an argument")).expect("JSON");
    for (_, text, _, start, count) in cases {
        let answer = answer(&text, &start, count).map_or_else(|why| json!(format!("refused: {why}")), Value::from);
        println!("{answer}");
    }
}
