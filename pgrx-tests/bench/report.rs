//! Prints what was measured.

use crate::delayed::{Burst, Delayed, Done, Spread};
use crate::direct::Comparison;
use crate::drive::Sample;
use crate::plan::{Results, Who};
use crate::statistics::{median, quantile};
use crate::targets::{Bound, Target};

fn median_of(samples: &[Sample], figure: fn(&Sample) -> f64) -> f64 {
    median(&samples.iter().map(figure).collect::<Vec<_>>())
}

/// The figures; behind each its ratio to those that the cell's others are held against.
pub fn print_cells(results: &Results) {
    /// Name, where it comes from, decimals.
    type Figure = (&'static str, fn(&Sample) -> f64, usize);
    const FIGURES: [Figure; 3] =
        [("jobs/s", Sample::rate, 0), ("CPU s/1,000", Sample::cpu, 4), ("WAL B/job", Sample::wal, 0)];
    for (cell, rows) in &results.0 {
        println!("\n{}: {}", cell.name, cell.title);
        print!("{:20}", "");
        FIGURES.iter().for_each(|(name, ..)| print!("{name:>14}{:>8}", "ratio"));
        println!();
        let base = [Who::Floor, Who::Shallow, Who::Still, Who::Plain, Who::Ours]
            .into_iter()
            .find(|who| rows.iter().any(|(other, _)| who == other));
        for (who, samples) in rows {
            print!("  {:18}", who.name());
            for (_, figure, digits) in FIGURES {
                let ratios = base.map_or(Vec::new(), |base| results.ratios(cell.name, (*who, base), figure));
                print!("{:>14.digits$}{:>8.2}", median_of(samples, figure), median(&ratios));
            }
            println!();
        }
    }
}

/// How long sleeping workers took to have their jobs.
pub fn print_wake(waits: &[f64]) {
    let at = |share| quantile(waits, share);
    println!("\nwake: from sending a job to a sleeping worker's having it");
    println!("  p50 {:.0} us, p95 {:.0} us, p99 {:.0} us, {} jobs", at(0.5), at(0.95), at(0.99), waits.len());
}

/// Access methods against plans.
pub fn print_direct(comparisons: &[Comparison]) {
    println!("\ndirect: many calls in one statement, us per call");
    println!("{:44}{:>10}{:>12}{:>10}", "", "ours", "kept plan", "ratio");
    for Comparison { what, direct, plan } in comparisons {
        println!("  {what:42}{direct:>10.2}{plan:>12.2}{:>10.2}", direct / plan);
    }
}

/// How delayed jobs fared.
pub fn print_delayed(delayed: &Delayed) {
    for Spread { way, jobs, seconds, lateness, cpu } in &delayed.spread {
        let at = |share| quantile(lateness, share);
        println!("\n{}: {jobs} jobs falling due within {seconds} s, {}", crate::delayed::DUE, way.name);
        println!(
            "  late by p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms; {cpu:.4} CPU s/1,000",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    for Burst { way, jobs, delayed, undelayed } in &delayed.burst {
        println!("\n{}: {jobs} jobs all due at once, {}", crate::delayed::BURST, way.name);
        for (name, done) in [("delayed", delayed), ("without a delay", undelayed)] {
            let of = |figure: fn(&Done) -> f64| median(&done.iter().map(figure).collect::<Vec<_>>());
            println!("  {name:18}{:>10.0} jobs/s{:>10.4} CPU s/1,000", of(|done| done.rate), of(|done| done.cpu));
        }
    }
    if let Some(idle) = &delayed.idle {
        println!("\n{}: an idle server for {:.0} s", crate::delayed::IDLE, idle.seconds);
        for (name, cost) in [("with jobs due next year", idle.far), ("with none", idle.none)] {
            let (cpu, wal, ids) = (cost.cpu_seconds * 1e3, cost.wal_bytes, cost.transaction_ids);
            println!("  {name:24}{cpu:>8.1} ms of CPU, {wal} bytes of WAL, {ids} transaction ids");
        }
    }
}

/// A line per target: goals are not counted as failures.
pub fn print_targets(targets: &[Target]) {
    if targets.is_empty() {
        return;
    }
    println!("\ntargets: median [smallest, largest of the rounds]");
    for target in targets {
        let word = match (target.is_reached(), target.is_goal) {
            (true, _) => "PASS",
            (false, false) => "FAIL",
            (false, true) => "goal",
        };
        let (relation, bound) = match target.bound {
            Bound::AtLeast(bound) => ("at least", bound),
            Bound::AtMost(bound) => ("at most", bound),
        };
        let digits = if bound < 100.0 { 2 } else { 0 };
        println!(
            "  {word}  {:46}{:>9.digits$}  {relation} {bound:.digits$}  [{:.digits$}, {:.digits$}]",
            target.what, target.value, target.range.0, target.range.1,
        );
    }
}
