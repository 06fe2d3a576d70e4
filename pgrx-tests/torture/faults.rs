//! The saboteur: ends sessions, processes and servers, on a schedule made from the seed.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use queue_tests::random::Random;
use queue_tests::{Cluster, wait};

use crate::ledger::now;
use crate::place::{CLIENT, DATABASE};
use crate::shared::Torture;

/// Causes one fault after another until the time is over.
pub fn run(torture: &Torture) -> BTreeMap<String, u64> {
    let mut random = Random::new(torture.options.seed().wrapping_mul(1000).wrapping_add(999));
    let mut counts = BTreeMap::new();
    let mut next_crash = Instant::now() + Duration::from_secs(4);
    while !torture.is_over() {
        thread::sleep(Duration::from_millis(random.below(300)));
        let is_time = Instant::now() > next_crash;
        let fault = if is_time && torture.options.has("crashes") {
            let from = now();
            let fault = crash(torture, &mut random);
            torture.note_crash(from);
            if fault == "promotion" {
                torture.note_promotion(from);
            }
            next_crash = Instant::now() + Duration::from_millis(1500 + random.below(9000));
            fault
        } else {
            nuisance(torture, &mut random)
        };
        *counts.entry(fault.to_owned()).or_default() += 1;
    }
    counts
}

/// Ends sessions, but not the server.
fn nuisance(torture: &Torture, random: &mut Random) -> &'static str {
    let Some(mut client) = torture.place.connect("saboteur") else { return "no connection" };
    let sessions = format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{CLIENT}'");
    let worker = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue%'";
    let one = " ORDER BY random() LIMIT 1";
    let (fault, sql) = match random.below(10) {
        0..4 => ("terminate a client", format!("SELECT pg_terminate_backend(pid) FROM ({sessions}{one}) AS s")),
        4..6 => ("cancel a client", format!("SELECT pg_cancel_backend(pid) FROM ({sessions}{one}) AS s")),
        6 => ("terminate a worker", format!("SELECT pg_terminate_backend(pid) FROM ({worker}{one}) AS s")),
        7 => ("checkpoint", "CHECKPOINT".to_owned()),
        _ => {
            // A client that hangs for longer than some leases.
            if let Ok(Some(row)) = client.query_opt(&format!("{sessions}{one}"), &[]) {
                let (pid, primary) = (row.get::<_, i32>(0), torture.place.primary());
                if primary.signal_if_there("STOP", pid) {
                    thread::sleep(Duration::from_millis(random.below(600)));
                    primary.signal_if_there("CONT", pid);
                }
            }
            return "a client hangs";
        }
    };
    // The victim may have ended, and the server may have ended as well.
    let _ = client.simple_query(&sql);
    fault
}

/// Kills the server process that this statement selects. The server restarts.
fn kill(primary: &Cluster, sql: &str) {
    let row = primary.connect_to(DATABASE).query_opt(sql, &[]).expect("the processes");
    if let Some(pid) = row.map(|row| row.get::<_, i32>(0)).filter(|pid| primary.processes().contains(pid)) {
        primary.crash_if_there(pid);
    }
}

fn crash(torture: &Torture, random: &mut Random) -> &'static str {
    let place = &torture.place;
    let primary = place.primary();
    let fault = match random.below(12) {
        0..3 => {
            kill(
                &primary,
                &format!(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = '{CLIENT}' ORDER BY random() LIMIT 1"
                ),
            );
            "kill -9 a client's process"
        }
        3 => {
            kill(
                &primary,
                "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue%' ORDER BY random() LIMIT 1",
            );
            "kill -9 a worker"
        }
        4 => {
            kill(&primary, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
            "kill -9 the checkpointer"
        }
        5..7 => {
            primary.restart_immediate();
            "immediate restart"
        }
        7 => {
            primary.restart_killed();
            "kill -9 the server"
        }
        8 => {
            primary.restart();
            "fast restart"
        }
        _ if torture.options.has("promotions") => {
            drop(primary);
            return promote(torture, random);
        }
        _ => return "nothing",
    };
    primary.wait_ready();
    fault
}

fn promote(torture: &Torture, random: &mut Random) -> &'static str {
    let place = &torture.place;
    if !place.has_standby() {
        place.add_standby();
        // Most commits of this time wait for the standby.
        thread::sleep(Duration::from_millis(random.below(3000)));
    }
    let how = random.below(3);
    place.promote(|old| match how {
        0 => old.kill_server(),
        1 => old.stop_immediate(),
        _ => old.stop_fast(),
    });
    wait::within("the promoted server answers", Duration::from_secs(60), || place.connect("saboteur"));
    // In half of the cases there is a standby from now on, through the crashes that follow.
    if random.percent(50) {
        place.add_standby();
    }
    "promotion"
}
