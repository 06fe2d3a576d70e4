//! Prints slots, for comparison with other programs: `cargo run -p pg_queue_core --example slots`.
//!
//! Reads lines `zone;from;how many;cron expression` and writes one line for each: the slots after `from`, or an error.
//! A negative number asks for the slots at and before `from`. Times are seconds since 1970.

use std::io::{BufRead, Write};

use pg_queue_core::schedule::{Cron, Plan, Zone};

const EPOCH: i64 = 946_684_800;

fn answer(line: &str) -> Result<String, String> {
    let [zone, from, count, cron] =
        line.splitn(4, ';').collect::<Vec<_>>().try_into().map_err(|_| "a line has four parts")?;
    let from: i64 = from.parse().map_err(|_| "no time")?;
    let count: i64 = count.parse().map_err(|_| "no number")?;
    let zone = Zone::find(zone).ok_or("no zone")?;
    let plan = Plan::cron(Cron::parse(cron).map_err(|error| error.to_string())?, zone);
    let from = (from - EPOCH) * 1_000_000;
    let wanted = count.unsigned_abs() as usize;
    let slots: Vec<i64> = match count {
        0.. => plan.between(from, i64::MAX).take(wanted).collect(),
        _ => plan.between(i64::MIN, from).rev().take(wanted).collect(),
    };
    let texts: Vec<String> = slots.iter().map(|slot| (slot / 1_000_000 + EPOCH).to_string()).collect();
    Ok(texts.join(" "))
}

fn main() -> std::io::Result<()> {
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&line?).unwrap_or_else(|error| format!("error: {error}"));
        writeln!(output, "{answer}")?;
    }
    output.flush()
}
