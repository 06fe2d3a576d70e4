//! Measures how groups share. Shows the started jobs of tenants with weights over time; the last tenant joins later.
//! Measures how soon the job of a quiet tenant is next behind the backlog of another tenant.

use std::time::Instant;

use postgres::Client;

use crate::bench::Bench;
use crate::charts;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::median;
use crate::targets::at_most;

/// Tenants with their weights. The last one joins when the others have started some of their jobs.
const TENANTS: [(&str, f64); 3] = [("weight 1", 1.0), ("weight 3", 3.0), ("weight 1, comes later", 1.0)];
const BATCH: usize = 100;
/// The number of jobs between two points of the chart.
const WINDOW: usize = 2_000;

fn fill(client: &mut Client, queue: &str, group: &str, jobs: usize) -> Result<()> {
    let enqueue = format!(
        "SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill('1'::jsonb, ARRAY[least(10000, $1::integer)]), \
            group_key => '{group}')"
    );
    let mut left = jobs as i32;
    while left > 0 {
        left -= client.query_one(&enqueue, &[&left])?.try_get::<_, i64>(0)? as i32;
    }
    Ok(())
}

/// The cell `shares`.
pub fn run(bench: &mut Bench) -> Result<()> {
    let server = Server::with_extension("pg_queue.max_running = 100000")?;
    let mut client = server.connect()?;
    over_time(bench, &mut client)?;
    behind_a_backlog(bench, &mut client)
}

fn over_time(bench: &mut Bench, client: &mut Client) -> Result<()> {
    let windows = bench.options.scale(40, 12);
    client.batch_execute("SELECT queue.create('shares', fair_share => 'jobs', retention => '0')")?;
    // The first claim reads the groups into memory.
    client.batch_execute("SELECT FROM queue.claim('shares')")?;
    for (tenant, weight) in TENANTS {
        client.batch_execute(&format!("SELECT queue.weigh('shares', '{tenant}', {weight})"))?;
    }
    let [(first, _), (second, _), (late, _)] = TENANTS;
    fill(client, "shares", first, windows * WINDOW)?;
    fill(client, "shares", second, windows * WINDOW)?;
    let claim = client.prepare("SELECT id, group_key FROM queue.claim('shares', $1)")?;
    let complete = client.prepare("SELECT count(*) FROM queue.complete_many($1)")?;
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = TENANTS.iter().map(|(tenant, _)| (*tenant, Vec::new())).collect();
    let (began, mut off) = (Instant::now(), Vec::new());
    for window in 0..windows {
        if window == windows / 3 {
            fill(client, "shares", late, windows * WINDOW / 3)?;
        }
        let mut started = [0_usize; TENANTS.len()];
        for _ in 0..WINDOW / BATCH {
            let rows = client.query(&claim, &[&(BATCH as i32)])?;
            for row in &rows {
                let group: &str = row.try_get(1)?;
                started[TENANTS.iter().position(|(tenant, _)| *tenant == group).unwrap_or_default()] += 1;
            }
            let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?;
            client.execute(&complete, &[&ids])?;
        }
        let (at, all) = (began.elapsed().as_secs_f64(), started.iter().sum::<usize>() as f64);
        let present = if window < windows / 3 { &TENANTS[..2] } else { &TENANTS[..] };
        let weights: f64 = present.iter().map(|(_, weight)| weight).sum();
        for (n, (_, weight)) in present.iter().enumerate() {
            let share = started[n] as f64 / all;
            lines[n].1.push((at, share * 100.0));
            off.push((share * weights / weight - 1.0).abs() * 100.0);
        }
    }
    let worst = off.iter().copied().fold(0.0, f64::max);
    println!("  shares of {WINDOW} jobs are off by {:.2} % (p50), {worst:.2} % at most", median(&off));
    bench.target("shares: off by %", &[worst], at_most(2.0));
    charts::of_shares(bench.options, &lines)
}

fn behind_a_backlog(bench: &mut Bench, client: &mut Client) -> Result<()> {
    let jobs = bench.options.scale(1_000_000, 100_000);
    client.batch_execute("SELECT queue.create('backlog', fair_share => 'jobs')")?;
    client.batch_execute("SELECT FROM queue.claim('backlog')")?;
    fill(client, "backlog", "loud", jobs)?;
    let claim = client.prepare("SELECT group_key FROM queue.claim('backlog')")?;
    let (mut places, mut times) = (Vec::new(), Vec::new());
    for n in 0..200 {
        fill(client, "backlog", &format!("quiet {n}"), 1)?;
        for place in 1.. {
            let began = Instant::now();
            let group: String = client.query_one(&claim, &[])?.try_get(0)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            if group != "loud" {
                places.push(f64::from(place));
                break;
            }
        }
    }
    let last = places.iter().copied().fold(0.0, f64::max);
    println!(
        "  behind {jobs} jobs of another tenant: place {} (p50), {last} at most; a claim takes {:.2} ms",
        median(&places),
        median(&times)
    );
    bench.target("shares: place of a quiet tenant's job", &[last], at_most(2.0));
    bench.target("shares: ms of a claim", &[median(&times)], at_most(1.0));
    Ok(())
}
