//! Reads from /proc the CPU time of a server, of this program and of all other programs. Linux only: elsewhere all
//! figures are 0.

use std::fs;

/// Ticks per second in /proc: USER_HZ, 100 on every Linux.
const HZ: f64 = 100.0;

/// A process: its parent, and the seconds that it and its ended children have used.
struct Process {
    parent: i32,
    own: f64,
    waited_for: f64,
}

fn process(pid: &str) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may contain anything. Then follow state, parent, …
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let seconds = |n: usize| Some(fields.get(n)?.parse::<f64>().ok()? / HZ);
    // Ticks are coarse for a short turn. Most systems also report nanoseconds, for one thread; the server's processes
    // have one thread.
    let precise = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok();
    let precise = precise.and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).map(|ns| ns / 1e9);
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own: match precise {
            Some(precise) if pid != "self" => precise,
            _ => seconds(11)? + seconds(12)?,
        },
        waited_for: seconds(13)? + seconds(14)?,
    })
}

/// Returns the seconds that the postmaster, its children and its former children have used.
pub fn server_seconds(postmaster: i32) -> f64 {
    let Some(first) = process(&postmaster.to_string()) else { return 0.0 };
    let children: f64 = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| process(entry.file_name().to_str()?))
        .filter(|process| process.parent == postmaster)
        .map(|process| process.own)
        .sum();
    first.own + first.waited_for + children
}

/// Returns the seconds that a process has used.
pub fn process_seconds(pid: i32) -> f64 {
    process(&pid.to_string()).map_or(0.0, |process| process.own)
}

/// Returns the seconds of all processors of the machine: all of them, and those that were not idle.
fn machine_seconds() -> (f64, f64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let ticks: Vec<f64> = line.split_ascii_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    let all: f64 = ticks.iter().sum();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (all / HZ, (all - idle) / HZ)
}

/// Measures how quiet the machine is while contenders take turns.
pub struct Noise {
    postmasters: Vec<i32>,
    /// When it began: seconds of the machine's processors, and those that other programs had used.
    before: (f64, f64),
}

impl Noise {
    /// Begins to watch. Of our processes, only this program and these servers run.
    pub fn begin(postmasters: Vec<i32>) -> Self {
        let mut noise = Self { postmasters, before: (0.0, 0.0) };
        noise.before = noise.seconds();
        noise
    }

    /// Returns the seconds of the machine's processors since the beginning, and those that other programs have used.
    pub fn seconds(&self) -> (f64, f64) {
        let (all, busy) = machine_seconds();
        let own = process("self").map_or(0.0, |process| process.own + process.waited_for);
        let servers: f64 = self.postmasters.iter().map(|&pid| server_seconds(pid)).sum();
        (all - self.before.0, (busy - own - servers - self.before.1).max(0.0))
    }
}
