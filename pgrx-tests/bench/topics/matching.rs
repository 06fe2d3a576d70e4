//! Topics with many bindings: what it costs to find the few that match, to bind one more, and to know them all.

use std::fs;

use postgres::Client;
use queue_tests::sql::Sql;

use crate::bench::Bench;
use crate::drive::in_turns;
use crate::error::Result;
use crate::server::Server;
use crate::statistics::{median, quantile, us};

/// Bindings of the large topic.
const BINDINGS: usize = 20_000;

/// Measures, and prints each figure when it is there.
pub fn measure(bench: &mut Bench) -> Result<()> {
    let (rounds, calls) = (bench.options.rounds(), bench.options.scale(20_000, 2_000));
    let server = Server::with_extension("")?;
    server.execute_with(include_str!("../sql/topics/bindings.sql"), &[("bindings", &BINDINGS)])?;
    server.settle();
    let mut client = server.connect()?;
    let pid = client.pid();
    per_call(&mut client, "queue.route('few', ", 1, Some(3))?;
    let before = data_kb(pid)?;
    let read_ms = per_call(&mut client, "queue.route('many', ", 1, Some(3))? / 1e3;
    println!("    a session reads all of them in {read_ms:.1} ms, into {:.1} MB", (data_kb(pid)? - before) / 1024.0);
    let mut both = |call: &str, calls, rows| -> Result<[f64; 2]> {
        let call_of = |topic: &&str| call.replace("{}", topic);
        let us = in_turns(call, rounds, &["few", "many"], |topic| per_call(&mut client, &call_of(topic), calls, rows))?;
        Ok([median(&us[0]), median(&us[1])])
    };
    let [few, many] = both("queue.route('{}', ", calls, Some(3))?;
    let more = many - few;
    println!(
        "    queue.route: {many:.2} us a call; of a topic with these 3 alone {few:.2} us: matching among all {more:.2} \
         us more"
    );
    let [few, many] = both("queue.publish('{}', key => ", calls / 10, None)?;
    println!("    queue.publish: {many:.1} us a call; of a topic with these 3 alone {few:.1} us");
    let bind = |n| us(|| client.execute(&format!("SELECT queue.bind('many', 'q1', 'late.{n}')"), &[]));
    let binds = (0..bench.options.scale(500, 50)).map(bind).collect::<std::result::Result<Vec<_>, _>>()?;
    let [p50, p95] = [0.5, 0.95].map(|share| quantile(&binds, share) / 1e3);
    println!("    one more bind beside them, in the session that knows them: p50 {p50:.2} ms, p95 {p95:.2} ms");
    pgmq()
}

/// Microseconds of a call with keys of which each is another, all in one transaction. `rows`: what each call has to
/// return.
fn per_call(client: &mut Client, call: &str, calls: usize, rows: Option<usize>) -> Result<f64> {
    let sql = format!(
        "SELECT count(*) FROM generate_series(1, {calls}) AS n,
             LATERAL {call}'shop.' || 1 + n * 7919 % 19000 || '.sold')"
    );
    let mut got: i64 = 0;
    let took = us(|| client.query_one(&sql, &[]).and_then(|row| row.try_get(0)).map(|count| got = count))?;
    let is_right = rows.is_none_or(|rows| got as usize == rows * calls);
    if is_right { Ok(took / calls as f64) } else { Err(format!("{got} bindings matched").into()) }
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
    server.execute_with(include_str!("../sql/topics/pgmq-bindings.sql"), &[("bindings", &BINDINGS)])?;
    let mut client = server.connect()?;
    let look = |n| format!("SELECT FROM pgmq.test_routing('shop.{}.sold')", 1 + n * 7919 % 19_000);
    let took = (0..20).map(|n| us(|| client.query(&look(n), &[]))).collect::<std::result::Result<Vec<_>, _>>()?;
    println!("    pgmq.test_routing: {:.0} us a call", median(&took));
    Ok(())
}
