//! Topics with many bindings: what it costs to find the few that match, to bind one more, and to know them all.

use std::fs;
use std::time::Instant;

use postgres::Client;

use crate::bench::Bench;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::{median, median_of, quantile, us};

/// Bindings of the large topic.
const BINDINGS: usize = 20_000;

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let (rounds, calls) = (bench.options.rounds(), bench.options.scale(20_000, 2_000));
    let server = Server::with_extension("")?;
    server.execute(&format!(
        "SELECT queue.create('q' || n) FROM generate_series(1, 3) AS n;
         SELECT queue.create_topic('few'), queue.create_topic('many');
         SELECT queue.bind('few', 'q1', 'shop.*.*'), queue.bind('few', 'q2'), queue.bind('few', 'q3', '#.sold');
         SELECT queue.bind('many', 'q2'), queue.bind('many', 'q3', '#.sold');
         SELECT count(queue.bind('many', 'q1', 'shop.' || n || '.*')) FROM generate_series(1, {BINDINGS} - 2) AS n"
    ))?;
    server.settle();
    let mut client = server.connect()?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
    let mut routes = |topic, calls| per_call(&mut client, "queue.route('{}', ", topic, calls, Some(3));
    routes("few", 1)?;
    let before = data_kb(pid)?;
    let read_ms = us(|| routes("many", 1))? / 1e3;
    println!("    a session reads all of them in {read_ms:.1} ms, into {:.1} MB", (data_kb(pid)? - before) / 1024.0);
    let [few, many] = in_turns(rounds, |topic| routes(topic, calls))?;
    println!(
        "    queue.route: {many:.2} us a call; of a topic with these 3 alone {few:.2} us: \
            matching among all {:.2} us more",
        many - few
    );
    let publishes = |topic| per_call(&mut client, "queue.publish('{}', key => ", topic, calls / 10, None);
    let [few, many] = in_turns(rounds, publishes)?;
    println!("    queue.publish: {many:.1} us a call; of a topic with these 3 alone {few:.1} us");
    let mut binds = Vec::new();
    for n in 0..bench.options.scale(500, 50) {
        let bind = format!("SELECT queue.bind('many', 'q1', 'late.{n}')");
        binds.push(us(|| client.execute(&bind, &[]))? / 1e3);
    }
    println!(
        "    one more bind beside them, in the session that knows them: p50 {:.2} ms, p95 {:.2} ms",
        median(&binds),
        quantile(&binds, 0.95)
    );
    pgmq()
}

/// Medians of what is measured of the two topics.
fn in_turns(rounds: usize, mut of: impl FnMut(&'static str) -> Result<f64>) -> Result<[f64; 2]> {
    let both = (0..rounds).map(|_| Ok((of("few")?, of("many")?))).collect::<Result<Vec<_>>>()?;
    Ok([median_of(&both, |both| both.0), median_of(&both, |both| both.1)])
}

/// Microseconds of a call with keys of which each is another, all in one transaction. `rows`: what each call has to
/// return.
fn per_call(client: &mut Client, call: &str, topic: &str, calls: usize, rows: Option<i64>) -> Result<f64> {
    let call = call.replace("{}", topic);
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {calls}) AS n,
             LATERAL {call}'shop.' || 1 + n * 7919 % 19000 || '.sold')"
    );
    let begun = Instant::now();
    let got: i64 = client.query_one(&sql, &[])?.try_get(0)?;
    let us = begun.elapsed().as_secs_f64() * 1e6 / calls as f64;
    if rows.is_none_or(|rows| got == rows * calls as i64) {
        Ok(us)
    } else {
        Err(format!("{got} bindings matched").into())
    }
}

/// How much memory of its own a process has, in kB.
fn data_kb(pid: i32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("/proc tells no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The same look in pgmq, where it is installed.
fn pgmq() -> Result<()> {
    let Some(server) = Server::with_peer("pgmq")? else { return Ok(()) };
    let mut client = server.connect()?;
    client.batch_execute(&format!(
        "SELECT pgmq.create('q' || n) FROM generate_series(1, 3) AS n;
         SELECT pgmq.bind_topic('#', 'q2'); SELECT pgmq.bind_topic('#.sold', 'q3');
         SELECT count(pgmq.bind_topic('shop.' || n || '.*', 'q1')) FROM generate_series(1, {BINDINGS} - 2) AS n;
         ANALYZE"
    ))?;
    let mut took = Vec::new();
    for n in 0..20 {
        let look = format!("SELECT FROM pgmq.test_routing('shop.{}.sold')", 1 + n * 7919 % 19_000);
        took.push(us(|| client.query(&look, &[]))?);
    }
    println!("    pgmq.test_routing: {:.0} us a call", median(&took));
    Ok(())
}
