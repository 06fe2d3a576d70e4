//! CPU time of a server, of this program and of everyone else, from /proc. Linux only: elsewhere all is 0.

use std::fs;

/// Ticks per second in /proc: USER_HZ, 100 on every Linux.
const HZ: f64 = 100.0;

/// The fields of `/proc/PID/stat` that count.
struct Stat {
    parent: i32,
    own: u64,
    waited_for: u64,
}

fn stat(pid: &str) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; then: state, parent, …
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: number(11)? + number(12)?,
        waited_for: number(13)? + number(14)?,
    })
}

/// What the postmaster, its children and its former children have used, in seconds.
pub fn server_seconds(postmaster: i32) -> f64 {
    let Some(first) = stat(&postmaster.to_string()) else { return 0.0 };
    let children: u64 = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| stat(entry.file_name().to_str()?))
        .filter(|stat| stat.parent == postmaster)
        .map(|stat| stat.own)
        .sum();
    (first.own + first.waited_for + children) as f64 / HZ
}

/// What all processors of the machine have done, in seconds: all, and all but idling.
fn machine_seconds() -> (f64, f64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<f64> = line.split_ascii_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let all: f64 = ticks.iter().sum();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (all / HZ, (all - idle) / HZ)
}

/// How quiet the machine is while contenders take turns.
pub struct Noise {
    postmasters: Vec<i32>,
    all: f64,
    others: f64,
}

impl Noise {
    /// Begins to watch. Nothing else of ours runs than this program and these servers.
    pub fn begin(postmasters: Vec<i32>) -> Self {
        let (all, others) = Self::look(&postmasters);
        Self { postmasters, all, others }
    }

    /// How much of the machine others have used since.
    pub fn percent(&self) -> f64 {
        let (all, others) = Self::look(&self.postmasters);
        100.0 * (others - self.others).max(0.0) / (all - self.all).max(0.01)
    }

    fn look(postmasters: &[i32]) -> (f64, f64) {
        let (all, busy) = machine_seconds();
        let own = stat("self").map_or(0.0, |stat| (stat.own + stat.waited_for) as f64 / HZ);
        let servers: f64 = postmasters.iter().map(|&pid| server_seconds(pid)).sum();
        (all, busy - own - servers)
    }
}
