//! A model of a cluster of 64 servers, for what two cores cannot show: how even the load is, and how long jobs wait, when the
//! producers are not even. `make bench-cluster` prints it with the costs that it has measured; `bench simulate PATH` draws it.
//!
//! The model: each server has producers, whose rates are skewed, and as many workers as each other one. A job takes a worker a
//! while. A job without a key is on the server of its producer; one with a key is on the owner of its slot, of 1,024. A worker
//! takes the oldest job at home; if there is none it asks three other servers, the one where it last found a job and two by chance, and naps at home, where a job that
//! arrives wakes it; then it asks again. Costs are CPU of the servers, by what was measured.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::fmt::Write as _;

use queue_tests::random::Random;

use crate::{Result, statistics};

/// What was measured.
pub struct Costs {
    /// CPU of the servers for a job at home, in milliseconds.
    pub job_ms: f64,
    /// What a job with a foreign key costs besides.
    pub foreign_ms: f64,
    /// How long a thief naps.
    pub nap_ms: f64,
}

const SERVERS: usize = 64;
const SLOTS: u64 = 1024;
/// Of each server.
const WORKERS: usize = 8;
/// How long a job takes its worker, in the mean.
const WORK_MS: f64 = 50.0;
/// How many servers a thief asks in one go.
const ASKS: usize = 3;
const SECONDS: f64 = 40.0;
/// What is not counted, as the queues fill.
const WARM_UP_MS: f64 = 10_000.0;

/// A situation.
#[derive(Clone, Copy)]
struct Case {
    /// The rate of the n-th producer is as 1 / n^skew.
    skew: f64,
    /// How much of all workers' time there is work for.
    load: f64,
    /// The share of jobs that have a key.
    keyed: f64,
    steals: bool,
}

/// What came of it.
struct Found {
    wait_ms: Vec<f64>,
    stolen: f64,
    /// The CPU of the server that has most to do, of the mean of all.
    busiest: f64,
}

/// What happens next, in microseconds; ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives {
        producer: usize,
    },
    /// A worker has done its job.
    Ends {
        worker: usize,
    },
    /// A worker's nap is over, if it still sleeps since then.
    Wakes {
        worker: usize,
        since: u64,
    },
}

struct Model<'a> {
    case: Case,
    costs: &'a Costs,
    chance: Random,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// When each job of a server came.
    ready: Vec<VecDeque<u64>>,
    /// Workers that sleep at home.
    asleep: Vec<BTreeSet<usize>>,
    since: Vec<u64>,
    /// Where each worker has stolen last.
    victim: Vec<usize>,
    rates: Vec<f64>,
    cpu: Vec<f64>,
    wait_ms: Vec<f64>,
    stolen: u64,
}

impl Model<'_> {
    /// Exponentially distributed, in microseconds.
    fn after(&mut self, mean_ms: f64) -> u64 {
        let uniform = (self.chance.below(1 << 53) as f64 + 1.0) / (1_u64 << 53) as f64;
        self.now + (-uniform.ln() * mean_ms * 1000.0) as u64
    }

    fn counts(&self) -> bool {
        self.now as f64 >= WARM_UP_MS * 1000.0
    }

    fn run(mut self) -> Found {
        for producer in 0..SERVERS {
            let at = self.after(1000.0 / self.rates[producer]);
            self.events.push(Reverse((at, Event::Arrives { producer })));
        }
        for worker in 0..SERVERS * WORKERS {
            self.sleep(worker);
        }
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = at;
            if at as f64 > SECONDS * 1e6 {
                break;
            }
            match event {
                Event::Arrives { producer } => self.arrive(producer),
                Event::Ends { worker } => self.look(worker),
                Event::Wakes { worker, since } => {
                    if self.since[worker] == since && self.asleep[worker / WORKERS].remove(&worker) {
                        self.look(worker);
                    }
                }
            }
        }
        let mean = self.cpu.iter().sum::<f64>() / SERVERS as f64;
        Found {
            stolen: self.stolen as f64 / self.wait_ms.len().max(1) as f64,
            busiest: self.cpu.iter().copied().fold(0.0, f64::max) / mean,
            wait_ms: self.wait_ms,
        }
    }

    fn arrive(&mut self, producer: usize) {
        let at = self.after(1000.0 / self.rates[producer]);
        self.events.push(Reverse((at, Event::Arrives { producer })));
        let is_keyed = (self.chance.below(1_000_000) as f64) < self.case.keyed * 1e6;
        let server = if is_keyed { self.chance.below(SLOTS) as usize % SERVERS } else { producer };
        if server != producer {
            // Half of it is the caller's.
            self.cpu[producer] += self.costs.foreign_ms / 2.0;
            self.cpu[server] += self.costs.foreign_ms / 2.0;
        }
        self.cpu[server] += self.costs.job_ms;
        self.ready[server].push_back(self.now);
        if let Some(worker) = self.asleep[server].pop_first() {
            self.take(worker, server);
        }
    }

    /// A worker that has nothing to do looks at home, then elsewhere, then sleeps.
    fn look(&mut self, worker: usize) {
        let home = worker / WORKERS;
        if !self.ready[home].is_empty() {
            return self.take(worker, home);
        }
        for ask in 0..if self.case.steals { ASKS } else { 0 } {
            // First where it has found one before.
            let other = if ask == 0 { self.victim[worker] } else { self.chance.below(SERVERS as u64) as usize };
            if !self.ready[other].is_empty() {
                self.victim[worker] = other;
                self.stolen += u64::from(self.counts());
                self.cpu[home] += self.costs.foreign_ms;
                return self.take(worker, other);
            }
        }
        self.sleep(worker);
    }

    fn take(&mut self, worker: usize, server: usize) {
        let came = self.ready[server].pop_front().expect("a job");
        if self.counts() {
            self.wait_ms.push((self.now - came) as f64 / 1000.0);
        }
        let at = self.after(WORK_MS);
        self.events.push(Reverse((at, Event::Ends { worker })));
    }

    fn sleep(&mut self, worker: usize) {
        self.since[worker] = self.now;
        self.asleep[worker / WORKERS].insert(worker);
        let at = self.now + (self.costs.nap_ms * 1000.0) as u64;
        self.events.push(Reverse((at, Event::Wakes { worker, since: self.now })));
    }
}

fn simulate(case: Case, costs: &Costs) -> Found {
    let weights: Vec<f64> = (1..=SERVERS).map(|n| (n as f64).powf(-case.skew)).collect();
    let all: f64 = weights.iter().sum();
    let rate = case.load * (SERVERS * WORKERS) as f64 * 1000.0 / WORK_MS;
    let model = Model {
        case,
        costs,
        chance: Random::new(64),
        now: 0,
        events: BinaryHeap::new(),
        ready: vec![VecDeque::new(); SERVERS],
        asleep: vec![BTreeSet::new(); SERVERS],
        since: vec![0; SERVERS * WORKERS],
        victim: (0..SERVERS * WORKERS).map(|worker| (worker + 1) % SERVERS).collect(),
        rates: weights.iter().map(|weight| weight / all * rate).collect(),
        cpu: vec![0.0; SERVERS],
        wait_ms: Vec::new(),
        stolen: 0,
    };
    model.run()
}

const SKEWS: [f64; 3] = [0.0, 0.3, 0.6];
const LOADS: [f64; 5] = [0.3, 0.5, 0.7, 0.8, 0.9];

/// Prints what becomes of 64 servers.
pub fn print(costs: &Costs) {
    println!(
        "{SERVERS} servers, {WORKERS} workers each, jobs of {WORK_MS:.0} ms, simulated: waits in ms; the busiest server's CPU, of the mean"
    );
    println!("  skew  load  keyed      p50     p99  stolen  busiest    p99 without stealing");
    for skew in SKEWS {
        for (load, keyed) in [(0.5, 0.0), (0.8, 0.0), (0.9, 0.0), (0.8, 0.5), (0.8, 1.0)] {
            let case = Case { skew, load, keyed, steals: true };
            let found = simulate(case, costs);
            let alone = simulate(Case { steals: false, ..case }, costs);
            println!(
                "  {skew:4.1}  {load:4.1}  {keyed:5.1}  {:7.1} {:7.1}  {:5.1}%  {:7.2}  {:9.1}",
                statistics::quantile(&found.wait_ms, 0.5),
                statistics::quantile(&found.wait_ms, 0.99),
                100.0 * found.stolen,
                found.busiest,
                statistics::quantile(&alone.wait_ms, 0.99)
            );
        }
    }
}

/// Draws the longest waits by load and skew, with and without thieves.
pub fn draw(costs: &Costs) -> Result<String> {
    const COLOURS: [&str; 3] = ["#2a7", "#27c", "#c52"];
    // 1 ms to 100 s, by powers of ten.
    let y = |ms: f64| 250.0 - 44.0 * ms.max(1.0).log10();
    let x = |load: f64| 60.0 + (load - 0.3) / 0.6 * 420.0;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 300\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"720\" height=\"300\" fill=\"#fff\"/>\n",
    );
    for (power, label) in ["1 ms", "10 ms", "0.1 s", "1 s", "10 s"].iter().enumerate() {
        let at = y(10_f64.powi(power as i32));
        writeln!(
            svg,
            "<line x1=\"60\" x2=\"480\" y1=\"{at}\" y2=\"{at}\" stroke=\"#ddd\"/><text x=\"52\" y=\"{}\" text-anchor=\"end\">{label}</text>",
            at + 4.0
        )?;
    }
    for load in LOADS {
        writeln!(svg, "<text x=\"{}\" y=\"270\" text-anchor=\"middle\">{:.0} %</text>", x(load), load * 100.0)?;
    }
    svg += "<text x=\"270\" y=\"290\" text-anchor=\"middle\">of all workers' time there is work</text>\n<text x=\"60\" y=\"20\">99 of 100 jobs wait no longer</text>\n";
    for (number, skew) in SKEWS.into_iter().enumerate() {
        for steals in [true, false] {
            let points = LOADS.map(|load| {
                let found = simulate(Case { skew, load, keyed: 0.0, steals }, costs);
                format!("{:.0},{:.0}", x(load), y(statistics::quantile(&found.wait_ms, 0.99)))
            });
            let dash = if steals { "" } else { " stroke-dasharray=\"5 4\"" };
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}/>",
                points.join(" "),
                COLOURS[number]
            )?;
            let at = 60 + 22 * (2 * number + usize::from(!steals));
            let what = format!("skew {skew}, {}", if steals { "with stealing" } else { "without" });
            writeln!(
                svg,
                "<line x1=\"500\" x2=\"530\" y1=\"{at}\" y2=\"{at}\" stroke=\"{}\" stroke-width=\"2\"{dash}/><text x=\"538\" y=\"{}\">{what}</text>",
                COLOURS[number],
                at + 4
            )?;
        }
    }
    svg += "</svg>\n";
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { job_ms: 0.1, foreign_ms: 0.15, nap_ms: 500.0 };

    /// Without skew and stealing each server is a queue with eight workers, whose mean wait Erlang's formula tells.
    #[test]
    fn a_server_by_itself_waits_as_erlang_says() {
        let found = simulate(Case { skew: 0.0, load: 0.8, keyed: 0.0, steals: false }, &COSTS);
        let (workers, load) = (WORKERS as f64, 0.8 * WORKERS as f64);
        let mut term = 1.0;
        let mut sum = 1.0;
        for n in 1..WORKERS {
            term *= load / n as f64;
            sum += term;
        }
        let last = term * load / workers * workers / (workers - load);
        let expected = last / (sum + last) * WORK_MS / (workers - load);
        let mean = found.wait_ms.iter().sum::<f64>() / found.wait_ms.len() as f64;
        assert!((mean / expected - 1.0).abs() < 0.1, "{mean} instead of {expected}");
        assert_eq!(found.stolen, 0.0);
    }

    #[test]
    fn thieves_even_out_what_producers_do_not() {
        let case = Case { skew: 0.6, load: 0.7, keyed: 0.0, steals: true };
        let (with, without) = (simulate(case, &COSTS), simulate(Case { steals: false, ..case }, &COSTS));
        let p99 = |found: &Found| statistics::quantile(&found.wait_ms, 0.99);
        assert!(
            with.stolen > 0.05 && p99(&with) * 10.0 < p99(&without),
            "{} {} {}",
            with.stolen,
            p99(&with),
            p99(&without)
        );
    }
}
