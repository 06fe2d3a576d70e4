//! `make soak`: applies the same load for minutes while a session keeps its snapshot open, so that vacuum can remove no
//! dead row. The rate, the duration of a claim and the size of the logs must stay as they were. `docs/benchmark.md`
//! explains the output.

mod contenders;
mod drive;
mod ledger;
mod load;
pub mod report;
mod storage;

use crate::error::Result;
use crate::options::Soak;
use crate::targets::{self, Target};
use crate::{charts, cpu};
use load::{Load, RATE};

/// Runs the contenders one after the other. Returns true if pg_queue has reached all its targets.
pub fn run(options: &Soak) -> Result<bool> {
    let mut all = Vec::new();
    for (name, length) in [("ours", options.length), ("articles", options.contrast()), ("pgq", options.contrast())] {
        if !options.wants(name) {
            continue;
        }
        println!("\n{name}: {RATE} jobs offered in a second, for {} s", length.as_secs());
        let Some(contender) = contenders::set_up(name, Load::new(options, false), length)? else {
            println!("  it is not there: left out");
            continue;
        };
        let noise = cpu::Noise::begin(vec![contender.server.cluster.postmaster_pid()]);
        let soaked =
            drive::run(&contender, Load::new(options, contenders::is_plain(&contender)), length, !options.no_snapshot)
                .inspect_err(|_| contender.server.print_log_end(name))?;
        report::print_end(&soaked, noise.seconds());
        all.push((name, soaked));
    }
    report::print_summary(&all);
    if let Some(folder) = &options.report.charts {
        charts::of_soak(folder, &all, !options.no_snapshot)?;
    }
    let ours = all.iter().find(|(name, _)| *name == "ours");
    let targets = ours.map_or(Vec::new(), |(_, ours)| report::judge(ours));
    targets::print(&targets);
    Ok(targets.iter().all(Target::is_met))
}
