//! Topics with many bindings: what it costs to find the few that match, to bind one more, and to know them all.

use std::fs;
use std::time::Instant;

use postgres::Client;

use crate::Result;
use crate::options::Options;
use crate::server::Server;
use crate::statistics::{median, quantile};

/// Bindings of the large topic.
const BINDINGS: usize = 20_000;

/// Measures, and prints each figure when it is there.
pub fn measure(options: &Options) -> Result<()> {
    let server = Server::with_extension()?;
    server.execute(&format!(
        "SELECT queue.create('q' || n) FROM generate_series(1, 3) AS n;
         SELECT queue.create_topic('few'), queue.create_topic('many');
         SELECT queue.bind('few', 'q1', 'shop.*.*'), queue.bind('few', 'q2'), queue.bind('few', 'q3', '#.sold');
         SELECT queue.bind('many', 'q2'), queue.bind('many', 'q3', '#.sold');
         SELECT count(queue.bind('many', 'q1', 'shop.' || n || '.*')) FROM generate_series(1, {BINDINGS} - 2) AS n"
    ))?;
    server.settle();
    println!("  {BINDINGS} bindings, of which 3 match");
    let mut client = server.connect()?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
    per_call(&mut client, "few", 1)?;
    let before = data_kb(pid)?;
    let begun = Instant::now();
    per_call(&mut client, "many", 1)?;
    let read_ms = begun.elapsed().as_secs_f64() * 1e3;
    println!("    a session reads all of them in {read_ms:.1} ms, into {:.1} MB", (data_kb(pid)? - before) / 1024.0);
    let calls = if options.quick { 2_000 } else { 20_000 };
    let (mut few, mut many): (Vec<f64>, Vec<f64>) = Default::default();
    for _ in 0..options.rounds {
        few.push(per_call(&mut client, "few", calls)?);
        many.push(per_call(&mut client, "many", calls)?);
    }
    let (few, many) = (median(&few), median(&many));
    println!(
        "    queue.route: {many:.2} us a call; of a topic with these 3 alone {few:.2} us: matching among all {:.2} us more",
        many - few
    );
    let (mut few, mut many): (Vec<f64>, Vec<f64>) = Default::default();
    for _ in 0..options.rounds {
        few.push(publishes(&mut client, "few", calls / 10)?);
        many.push(publishes(&mut client, "many", calls / 10)?);
    }
    let (few, many) = (median(&few), median(&many));
    println!("    queue.publish: {many:.1} us a call; of a topic with these 3 alone {few:.1} us");
    let mut binds = Vec::new();
    for n in 0..if options.quick { 50 } else { 500 } {
        let begun = Instant::now();
        client.execute(&format!("SELECT queue.bind('many', 'q1', 'late.{n}')"), &[])?;
        binds.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    println!(
        "    one more bind beside them, in the session that knows them: p50 {:.2} ms, p95 {:.2} ms",
        median(&binds),
        quantile(&binds, 0.95)
    );
    pgmq()
}

/// Microseconds of a call that finds the bindings of keys of which each is another.
fn per_call(client: &mut Client, topic: &str, calls: usize) -> Result<f64> {
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {calls}) AS n,
             LATERAL queue.route('{topic}', 'shop.' || 1 + n * 7919 % 19000 || '.sold')"
    );
    let begun = Instant::now();
    let rows: i64 = client.query_one(&sql, &[])?.try_get(0)?;
    let us = begun.elapsed().as_secs_f64() * 1e6 / calls as f64;
    if rows == 3 * calls as i64 { Ok(us) } else { Err(format!("{rows} bindings matched, and not 3 a call").into()) }
}

/// Microseconds of a publish, all in one transaction.
fn publishes(client: &mut Client, topic: &str, calls: usize) -> Result<f64> {
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {calls}) AS n,
             LATERAL queue.publish('{topic}', key => 'shop.' || 1 + n * 7919 % 19000 || '.sold')"
    );
    let begun = Instant::now();
    client.query_one(&sql, &[])?;
    Ok(begun.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

/// How much memory of its own a process has, in kB.
fn data_kb(pid: i32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("/proc tells no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The same look in pgmq, where it is installed.
fn pgmq() -> Result<()> {
    let server = Server::plain();
    let mut client = server.connect()?;
    if client.query_opt("SELECT FROM pg_available_extensions WHERE name = 'pgmq'", &[])?.is_none() {
        return Ok(());
    }
    client.batch_execute(&format!(
        "CREATE EXTENSION pgmq; SELECT pgmq.create('q' || n) FROM generate_series(1, 3) AS n;
         SELECT pgmq.bind_topic('#', 'q2'); SELECT pgmq.bind_topic('#.sold', 'q3');
         SELECT count(pgmq.bind_topic('shop.' || n || '.*', 'q1')) FROM generate_series(1, {BINDINGS} - 2) AS n; ANALYZE"
    ))?;
    let mut took = Vec::new();
    for n in 0..20 {
        let begun = Instant::now();
        client.query(&format!("SELECT FROM pgmq.test_routing('shop.{}.sold')", 1 + n * 7919 % 19_000), &[])?;
        took.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    println!("    pgmq.test_routing: {:.0} us a call", median(&took));
    Ok(())
}
