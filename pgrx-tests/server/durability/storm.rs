//! Short runs of the torture. Each run works on some kinds of queues, and afterwards all checkers compare what happened
//! with the promises. Not responsible for the long run with everything (`make torture`).

use std::process::Command;

use crate::shared::*;

/// Runs a preset for this number of seconds, or for `QUEUE_SOAK` seconds. A failed test prints the torture's output.
fn storm(preset: &str, seconds: u64) {
    let minutes = random::length(seconds).as_secs_f64() / 60.0;
    let output = Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(["--preset", preset, "--minutes", &minutes.to_string(), "--seed", &random::seed(preset).to_string()])
        .output()
        .expect("the torture");
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{preset}: see above");
}

#[test]
fn every_promise_holds_when_transactions_roll_back_and_connections_end() {
    storm("sessions", 5);
}

#[test]
fn every_promise_holds_when_the_server_crashes_again_and_again() {
    storm("crashes", 15);
}

#[test]
fn limits_hold_under_many_sessions() {
    storm("limits", 10);
}

#[test]
fn keys_and_conditions_hold_under_many_sessions() {
    storm("keys", 12);
}
