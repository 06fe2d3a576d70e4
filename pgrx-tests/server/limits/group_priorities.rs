//! Between groups a smaller priority comes first, whatever happens to their jobs.

use std::collections::HashMap;

use crate::limits::groups::{claim, complete, enqueue, names};
use crate::shared::*;

/// Claims until nothing is found. Returns the priorities of the jobs of each claim.
fn priorities(client: &mut Client, claim: &str) -> Vec<Vec<i32>> {
    let mut seen = Vec::new();
    let mut done: Vec<i64> = Vec::new();
    loop {
        let separately = !claim.contains("$1");
        let rows = if separately { client.query(claim, &[]) } else { client.query(claim, &[&done]) }.unwrap();
        if rows.is_empty() {
            return seen;
        }
        seen.push(rows.iter().map(|row| row.get("priority")).collect());
        done = rows.iter().map(|row| row.get("id")).collect();
        if separately {
            let sql = "SELECT FROM queue.complete_many($1) WHERE outcome = 'completed'";
            assert_eq!(client.query(sql, &[&done]).unwrap().len(), done.len());
        }
    }
}

/// The order depends neither on the number of waiting groups nor on the group that was served last.
#[test]
fn between_groups_a_smaller_priority_comes_first() {
    for limit in ["strict_order => true", "max_running_per_group => 1", "max_running_per_group => 3"] {
        for (most, completed) in [(1, ""), (5, ""), (1, ", completed => $1"), (5, ", completed => $1")] {
            let (mut client, queue) = queue(limit);
            let case = format!("{limit}, {most}{completed}");
            let claim = format!("SELECT id, priority FROM queue.claim('{queue}', {most}{completed})");
            // In the second round all groups are known.
            for _ in 0..2 {
                for (group, priority, jobs) in [("a", 0, 12), ("b", 1000, 6)] {
                    let group = if group == "a" { "'a'".to_owned() } else { format!("'{group}' || n") };
                    client.run(&format!(
                        "SELECT queue.enqueue('{queue}', priority => {priority}, group_key => {group})
                         FROM generate_series(1, {jobs}) AS n"
                    ));
                }
                let seen = priorities(&mut client, &claim);
                assert!(seen.iter().all(|rows| rows.is_sorted()), "{case}: {seen:?}");
                let all: Vec<i32> = seen.concat();
                assert_eq!(all.len(), 18, "{case}: {seen:?}");
                // Before a claim takes jobs of other groups, it takes all jobs that the first group may run.
                let per_claim = if limit.ends_with('3') { most.min(3) } else { 1 };
                let mut left = 12;
                for rows in &seen {
                    let first = rows.iter().filter(|&&priority| priority == 0).count();
                    assert_eq!(first, per_claim.min(left), "{case}: {seen:?}");
                    left -= first;
                }
            }
        }
    }
}

/// A job as its producer and its worker saw it. The effect of a call begins after the call has begun, and exists when
/// the call has returned.
struct Seen {
    group: u64,
    priority: i32,
    /// The time when its enqueue returned.
    committed: Instant,
    /// The claim that got the job.
    claim: usize,
    /// The claim that completed it, if any, and the time when the completing call returned.
    ended_by: Option<usize>,
    ended: Instant,
}

/// The begin and the return of a claim for one job, and the priority of that job.
struct Call {
    began: Instant,
    returned: Instant,
    priority: i32,
}

/// Asserts that no claim passes over a smaller priority. This counts if the job existed when the claim began, and if
/// its group had room before and after the claim.
fn check_order(jobs: &HashMap<i64, Seen>, calls: &[Call], limit: usize, case: &str) {
    let mut by_group: HashMap<u64, Vec<(&i64, &Seen)>> = HashMap::new();
    for (id, job) in jobs {
        by_group.entry(job.group).or_default().push((id, job));
    }
    for (nth, call) in calls.iter().enumerate() {
        // A session that serves a group leaves it if a more urgent job appears.
        let overlaps = |other: &&Call| other.began < call.returned && other.returned > call.began;
        let others = calls.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, other)| other);
        let most_urgent = others.filter(overlaps).map(|other| other.priority).min().unwrap_or(i32::MAX);
        for members in by_group.values() {
            // The claim's own completions make room for it.
            let runs = |job: &Seen| {
                calls[job.claim].began < call.returned && job.ended > call.began && job.ended_by != Some(nth)
            };
            if members.iter().filter(|(_, job)| runs(job)).count() >= limit {
                continue;
            }
            let passed_over = members.iter().find(|(_, job)| {
                job.priority < call.priority
                    && job.committed < call.began
                    && calls[job.claim].began > call.returned
                    && most_urgent >= job.priority
            });
            if let Some((id, job)) = passed_over {
                panic!(
                    "{case}: claim {nth} got priority {}, and passed over job {id} of priority {} and group {}",
                    call.priority, job.priority, job.group
                );
            }
        }
    }
}

/// Producers and workers run at the same time. Some workers complete with the next claim.
#[test]
fn no_claim_passes_over_a_smaller_priority_whose_group_has_room() {
    const JOBS: usize = 600;
    const BACKLOG: usize = 200;
    let seed = random::seed("order of groups");
    for (limit, options) in
        [(1, "strict_order => true"), (1, "max_running_per_group => 1"), (2, "max_running_per_group => 2")]
    {
        let (mut client, queue) = queue(options);
        let case = format!("seed {seed}, {options}");
        let mut random = Random::new(seed);
        let enqueue = |client: &mut Client, random: &mut Random| {
            let (group, priority) = (random.below(30), random.between(-3, 3) as i32);
            let sql = format!("SELECT queue.enqueue('{queue}', priority => {priority}, group_key => 'g{group}')");
            let id: i64 = client.value(&sql);
            (id, group, priority, Instant::now())
        };
        let made: Mutex<Vec<_>> = Mutex::new((0..BACKLOG).map(|_| enqueue(&mut client, &mut random)).collect());
        let calls: Mutex<Vec<Call>> = Mutex::default();
        // Each job with the claim that got it.
        let claims: Mutex<Vec<(i64, usize)>> = Mutex::default();
        // Each job with the claim that completed it, if any, and the time.
        let ends: Mutex<Vec<(i64, Option<usize>, Instant)>> = Mutex::default();
        thread::scope(|scope| {
            for n in 0..2 {
                let (made, enqueue) = (&made, &enqueue);
                scope.spawn(move || {
                    let (mut client, mut random) = (connect(), Random::new(seed + 1 + n));
                    for _ in 0..(JOBS - BACKLOG) / 2 {
                        let job = enqueue(&mut client, &mut random);
                        made.lock().unwrap().push(job);
                    }
                });
            }
            for n in 0..4 {
                let (calls, claims, ends, queue, case) = (&calls, &claims, &ends, &queue, &case);
                scope.spawn(move || {
                    let (mut client, mut random) = (connect(), Random::new(seed + 10 + n));
                    // Attempts with their jobs.
                    let mut held: Vec<(i64, i64)> = Vec::new();
                    let deadline = Instant::now() + Duration::from_secs(60);
                    while ends.lock().unwrap().len() < JOBS {
                        assert!(Instant::now() < deadline, "{case}: {} have ended", ends.lock().unwrap().len());
                        let completed = if random.percent(50) { std::mem::take(&mut held) } else { Vec::new() };
                        let ids: Vec<i64> = completed.iter().map(|(id, _)| *id).collect();
                        let sql = format!("SELECT id, job_id, priority FROM queue.claim('{queue}', completed => $1)");
                        let began = Instant::now();
                        let rows = client.query(&sql, &[&ids]).unwrap();
                        let returned = Instant::now();
                        let mut nth = None;
                        if let [row] = &rows[..] {
                            let mut calls = calls.lock().unwrap();
                            nth = Some(calls.len());
                            calls.push(Call { began, returned, priority: row.get(2) });
                            claims.lock().unwrap().push((row.get(1), calls.len() - 1));
                            held.push((row.get(0), row.get(1)));
                        }
                        ends.lock().unwrap().extend(completed.iter().map(|(_, job)| (*job, nth, returned)));
                        if rows.is_empty() || held.len() > 3 {
                            for (id, job) in held.drain(..) {
                                client.run(&format!("SELECT queue.complete({id})"));
                                ends.lock().unwrap().push((job, None, Instant::now()));
                            }
                        }
                    }
                });
            }
        });
        let claims: HashMap<i64, usize> = claims.into_inner().unwrap().into_iter().collect();
        let ends = ends.into_inner().unwrap().into_iter().map(|(job, by, at)| (job, (by, at)));
        let ends: HashMap<i64, (Option<usize>, Instant)> = ends.collect();
        let jobs: HashMap<i64, Seen> = made
            .into_inner()
            .unwrap()
            .into_iter()
            .map(|(id, group, priority, committed)| {
                let (ended_by, ended) = ends[&id];
                (id, Seen { group, priority, committed, claim: claims[&id], ended_by, ended })
            })
            .collect();
        assert_eq!(jobs.len(), JOBS, "{case}");
        check_order(&jobs, &calls.into_inner().unwrap(), limit, &case);
    }
}

/// Both limits that make groups take turns.
const ONE_BY_ONE: [&str; 2] = ["strict_order => true", "max_running_per_group => 1"];

/// Claims and completes jobs one by one until none is left. Returns their priorities.
fn in_order(client: &mut Client, queue: &str) -> Vec<i32> {
    priorities(client, &format!("SELECT id, priority FROM queue.claim('{queue}')")).concat()
}

#[test]
fn a_job_of_a_waiting_group_runs_by_its_changed_priority() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        let mut last = HashMap::new();
        for group in ["a", "b", "c"] {
            enqueue(&mut client, &queue, group, 0);
            last.insert(group, [enqueue(&mut client, &queue, group, 5), enqueue(&mut client, &queue, group, 6)]);
        }
        // All groups have a running job, so their other jobs wait for a turn.
        let running = claim(&mut client, &queue, 10);
        assert_eq!(names(&running), ["a", "b", "c"]);
        client.run(&format!("SELECT queue.reprioritize({}, -7)", last["b"][1]));
        client.run(&format!("SELECT queue.reprioritize({}, 9)", last["a"][0]));
        complete(&mut client, &running);
        assert_eq!(in_order(&mut client, &queue), [-7, 5, 5, 6, 6, 9], "{options}");
    }
}

#[test]
fn a_released_job_comes_before_larger_priorities_of_other_groups() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        for (group, priority) in [("a", 1), ("a", 4), ("b", 2), ("b", 2), ("c", 0), ("c", 3)] {
            enqueue(&mut client, &queue, group, priority);
        }
        let running = claim(&mut client, &queue, 10);
        assert_eq!(running.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["c", "a", "b"], "{options}");
        for (_, id) in &running[..2] {
            client.run(&format!("SELECT queue.release({id})"));
        }
        complete(&mut client, &running[2..]);
        assert_eq!(in_order(&mut client, &queue), [0, 1, 2, 3, 4], "{options}");
    }
}

/// A failed job comes before a smaller priority of its own group, but not before one of another group.
#[test]
fn a_strict_group_has_the_priority_of_its_failed_job() {
    let (mut client, queue) = queue("strict_order => true");
    enqueue(&mut client, &queue, "a", 5);
    let failed = client.claim(&queue);
    enqueue(&mut client, &queue, "a", -1);
    for (group, priority) in [("b", 3), ("b", 6), ("c", 4), ("c", 7)] {
        enqueue(&mut client, &queue, group, priority);
    }
    client.run(&format!("SELECT queue.fail({failed}, 'no', retry_in => '0')"));
    assert_eq!(in_order(&mut client, &queue), [3, 4, 5, -1, 6, 7]);
}

/// A claim without a stage takes the job with the smallest priority of all stages.
#[test]
fn between_groups_of_all_stages_a_smaller_priority_comes_first() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(&format!("stages => '{{x, y}}', {options}"));
        for (group, priority) in [("a", 1), ("b", 3), ("c", 5), ("a", 0), ("b", 2), ("c", 6)] {
            enqueue(&mut client, &queue, group, priority);
        }
        // One job of each group advances to the second stage, where the groups are separate.
        let running = claim(&mut client, &queue, 10);
        assert_eq!(names(&running), ["a", "b", "c"]);
        for (_, id) in &running {
            client.run(&format!("SELECT queue.advance({id})"));
        }
        let mut seen: Vec<(i32, String)> = Vec::new();
        loop {
            let rows = client.query(&format!("SELECT priority, stage, id FROM queue.claim('{queue}')"), &[]).unwrap();
            let [row] = &rows[..] else { break };
            let (priority, stage, id): (i32, String, i64) = (row.get(0), row.get(1), row.get(2));
            let verb = if stage == "x" { "advance" } else { "complete" };
            client.run(&format!("SELECT queue.{verb}({id})"));
            seen.push((priority, stage));
        }
        let seen: Vec<String> = seen.iter().map(|(priority, stage)| format!("{priority}{stage}")).collect();
        assert_eq!(seen, ["0y", "1x", "1y", "2y", "3x", "3y", "5y", "6x", "6y"], "{options}");
    }
}

/// The group whose turn it is has lost its first job, so its next job has a larger priority than memory says.
#[test]
fn a_claim_that_completes_takes_the_next_job_of_that_group_before_larger_priorities() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        enqueue(&mut client, &queue, "g", 0);
        enqueue(&mut client, &queue, "h", 0);
        let running = claim(&mut client, &queue, 2);
        assert_eq!(names(&running), ["g", "h"]);
        enqueue(&mut client, &queue, "g", 3);
        let first = enqueue(&mut client, &queue, "h", 0);
        enqueue(&mut client, &queue, "h", 5);
        // Memory knows both groups and their waiting jobs.
        assert_eq!(claim(&mut client, &queue, 1), []);
        let of = |name: &str| running.iter().find(|(n, _)| n == name).unwrap().1;
        client.run(&format!("SELECT queue.complete({})", of("h")));
        client.run(&format!("SELECT queue.cancel({first})"));
        let sql = format!("SELECT priority FROM queue.claim('{queue}', completed => ARRAY[{}]::bigint[])", of("g"));
        assert_eq!(client.value::<i32>(&sql), 3, "{options}");
        assert_eq!(in_order(&mut client, &queue), [5], "{options}");
    }
}
