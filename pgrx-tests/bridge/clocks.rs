//! The clock of a primary jumps. Nothing is emptied too early, and calls that have arrived are passed over.

use std::path::PathBuf;

use queue_tests::sql::Sql;
use queue_tests::{Cluster, installation, integrity, wait};

use crate::pair::{Pair, prepared_by};

/// Returns the path of the library that shows a process another time (Debian's package `libfaketime`).
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    let mut found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|path| path.exists())
        .expect("libfaketime is installed (pgrx-tests/scripts/prepare-web does it on Debian)")
}

/// A pair whose primary has a clock of its own.
struct Clock {
    pair: Pair,
    file: PathBuf,
}

impl Clock {
    /// Connects a pair. The primary's clock shows a time some minutes after a full hour.
    fn new() -> Self {
        let primary = Cluster::new();
        let file = primary.dir().join("clock");
        let primary = prepared_by(primary, |primary| {
            std::fs::write(&file, "+0").expect("the file of the clock");
            let mut start = primary.command("pg_ctl");
            start.args(["start", "-w", "-D"]).arg(primary.data()).arg("-l").arg(primary.dir().join("log"));
            start.env("LD_PRELOAD", library()).env("FAKETIME_TIMESTAMP_FILE", &file);
            start.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            installation::output(&mut start);
        });
        let pair = Pair::of(primary).connected();
        Self { pair, file }
    }

    /// Sets the clock of the primary to this number of minutes after a full hour of some day.
    fn set(&self, minutes: i64) {
        std::fs::write(&self.file, format!("{:+}", offset(minutes))).expect("the file of the clock");
    }
}

/// Returns how many seconds the clock is ahead of the real one.
fn offset(minutes: i64) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the time").as_secs();
    minutes * 60 - i64::try_from(now % 3600).expect("seconds")
}

#[test]
fn a_clock_that_goes_back_empties_nothing_too_early_and_loses_no_job() {
    let clock = Clock::new();
    let pair = &clock.pair;
    let (mut app, mut server) = (pair.app(), pair.server());
    let mut owner = pair.primary_as("owner");
    let mut jobs = 0_i64;
    // The clock goes an hour back and forward, a day forward and back, and half an hour forward and back.
    for minutes in [5, -55, 5, 24 * 60 + 5, 5, 35, 5] {
        clock.set(minutes);
        app.run("SELECT queue.enqueue('q') FROM generate_series(1, 10)");
        jobs += 10;
        pair.wait_arrived();
        for _ in 0..4 {
            assert_eq!(pair.contact(), None);
        }
        let kept = owner.value::<i64>("SELECT count(*) FROM queue_bridge.outbox WHERE verb = 'e'");
        assert_eq!(kept, jobs, "calls of the last seconds are kept, {minutes}");
        let said = "SELECT concat_ws(' ', copied, known, renumbered, phantoms) FROM queue_bridge.repair('shop')";
        let said = server.value::<String>(said);
        assert!(said.ends_with(" 0 0"), "{minutes}: {said}");
        pair.wait_arrived();
    }
    let found = server.value::<String>("SELECT format('%s %s', count(*), count(DISTINCT job_id)) FROM queue.jobs");
    assert_eq!(found, format!("{jobs} {jobs}"));
    wait::until("all jobs can be claimed, whatever the clock there says", || {
        server.run("SELECT queue.complete(id) FROM queue.claim('q', 100)");
        (server.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'") == jobs).then_some(())
    });
    integrity::check(&mut server);
}

#[test]
fn calls_that_arrived_before_the_clock_went_back_a_day_are_known() {
    let clock = Clock::new();
    let pair = &clock.pair;
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run(
        "SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#'); SELECT queue_bridge.allow('shop', 't')",
    );
    assert_eq!(pair.contact(), None);
    for (n, minutes) in [-24 * 60, -48 * 60, 2 * 60].into_iter().enumerate() {
        clock.set(minutes);
        app.run("SELECT queue.publish('t'), queue.enqueue('q', unique_key => 'k')");
        pair.wait_arrived();
        server.run("SELECT queue.complete(id) FROM queue.claim('q', 100)");
        for _ in 0..2 {
            assert_eq!(pair.contact(), None);
        }
        server.run("SELECT queue_bridge.repair('shop')");
        pair.wait_arrived();
        assert_eq!(server.count("SELECT FROM queue.jobs"), 2 * (n + 1), "{minutes}");
    }
}
