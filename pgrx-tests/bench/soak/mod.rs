//! `make soak`: the same load for minutes, while a session keeps its snapshot open, so that nothing that dies can be
//! vacuumed away. What has to stay as it was: the rate, the time of a claim, the size of the logs.
//! `docs/benchmark.md` says how to read the answer.

mod articles;
mod contender;
mod drive;
mod judge;
mod ledger;
mod load;
pub mod options;
mod ours;
mod pgq;
mod report;
mod storage;

use std::time::Duration;

use postgres::Client;

use crate::server::Server;
use crate::{Result, charts, cpu};
use contender::Contender;
pub use drive::Soaked;
use load::Load;
use options::Options;

/// Runs the contenders one after the other. Whether pg_queue has reached all its targets.
pub fn run(options: &Options) -> Result<bool> {
    let mut all = Vec::new();
    if options.wants("ours") {
        let load = Load::new(options, false);
        begin("ours", options, options.length);
        all.push(("ours", soak(&ours::Ours::new(load, options.length)?, options, options.length)?));
    }
    if options.wants("articles") {
        begin("articles", options, options.contrast());
        all.push(("articles", soak(&articles::Articles::new()?, options, options.contrast())?));
    }
    if options.wants("pgq") {
        match pgq::Pgq::new(options.contrast())? {
            Some(pgq) => {
                begin("pgq", options, options.contrast());
                all.push(("pgq", soak(&pgq, options, options.contrast())?));
            }
            None => println!("\nPgQ is not there: left out"),
        }
    }
    report::print_summary(&all);
    if let Some(folder) = &options.charts {
        charts::of_soak(folder, &all, options.has_snapshot)?;
    }
    let Some((_, ours)) = all.iter().find(|(name, _)| *name == "ours") else { return Ok(true) };
    let targets = judge::judge(ours, options.rate);
    report::print_targets(&targets);
    Ok(targets.iter().all(|target| target.is_reached()))
}

/// A connection; its commits do not wait for the disk.
fn connect(server: &Server) -> Result<Client> {
    server.connect()
}

fn begin(name: &str, options: &Options, length: Duration) {
    println!("\n{name}: {} jobs offered in a second, for {} s", options.rate, length.as_secs());
}

fn soak(contender: &dyn Contender, options: &Options, length: Duration) -> Result<Soaked> {
    let noise = cpu::Noise::begin(vec![contender.server().postmaster()]);
    let soaked = drive::run(contender, Load::new(options, contender.is_plain()), length, options.has_snapshot);
    match &soaked {
        Ok(soaked) => report::print_end(soaked, noise.percent()),
        Err(_) => eprintln!("\nit failed; the end of its server's log:\n{}", contender.server().log_end()),
    }
    soaked
}
