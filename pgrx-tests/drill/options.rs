//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::event::Event;

/// Fails over: three servers under Patroni, whose primaries are killed and cut off under load.
#[derive(Parser)]
#[command(name = "drill")]
pub struct Options {
    /// How often the primary is killed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub kills: usize,
    /// This event alone; several in their order
    #[arg(long, value_name = "EVENT")]
    pub only: Vec<Event>,
    /// How often all the events befall, one round after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// The folder with Patroni's Python package; without, the system's
    #[arg(long, value_name = "DIR")]
    pub patroni: Option<PathBuf>,
    /// Patroni starts beside the server that it left behind, as without the unit's ExecStartPre: under Patroni 3.0 jobs
    /// are lost
    #[arg(long)]
    pub no_fence: bool,
    /// The servers' folders stay
    #[arg(long)]
    pub keep: bool,
}
