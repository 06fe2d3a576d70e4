//! A job is not held up by jobs of a dropped queue.

use crate::shared::*;

/// How a job waits for another one.
const WAYS: [&str; 4] = ["after", "flow", "suspended after", "suspended for members"];
const UPONS: [&str; 5] = ["completed", "any", "failed", "ended", "overdue"];
/// The state of the job in the dropped queue.
const MEMBERS: [&str; 5] = ["ready", "scheduled", "running", "held", "dead"];
/// When the other predecessor completes.
const OTHERS: [&str; 3] = ["none", "before", "later"];
/// How the queue is dropped.
const DROPS: [&str; 4] = ["drop", "purge, drop", "purge and drop together", "drop with another queue"];

/// A job that waits for a job of a queue that is dropped.
#[derive(Clone, Copy, Debug)]
struct Case {
    way: &'static str,
    upon: &'static str,
    member: &'static str,
    other: &'static str,
    drop: &'static str,
}

impl Case {
    /// Returns all cases. The ways to drop are varied in one case only.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for way in WAYS {
            // `queue.suspend` has no upon => 'overdue'.
            for upon in UPONS.into_iter().filter(|upon| !way.starts_with("suspended") || *upon != "overdue") {
                for member in MEMBERS {
                    for other in OTHERS {
                        for drop in DROPS.into_iter().filter(|drop| *drop == "drop" || other == "none") {
                            cases.push(Self { way, upon, member, other, drop });
                        }
                    }
                }
            }
        }
        cases
    }

    /// Returns the state of the waiting job according to docs/workflows.md.
    fn expected(&self) -> &'static str {
        let met = if self.way == "flow" { "completed" } else { "ready" };
        let (has_completed, has_died) = (self.other != "none", self.member == "dead");
        match self.upon {
            "completed" | "ended" if self.has_members() => met,
            "ended" => met,
            "completed" => "skipped",
            "any" if has_completed => met,
            "failed" if has_died => met,
            _ => "skipped",
        }
    }

    fn has_members(&self) -> bool {
        matches!(self.way, "flow" | "suspended for members")
    }

    /// Makes the jobs. Returns the waiting job.
    fn prepare(&self, client: &mut Client, x: &str) -> i64 {
        create(client, x, "max_attempts => 1, lease => '1 hour'");
        let overdue = if self.upon == "overdue" { ", delay => '1 hour'" } else { "" };
        let parent: Option<(i64, i64)> = self.way.starts_with("suspended").then(|| {
            client.enqueue("parents");
            client.row("SELECT id, job_id FROM queue.claim('parents')")
        });
        client.run("BEGIN");
        let flow: Option<i64> = match self.way {
            "flow" => Some(client.value(&format!("SELECT queue.enqueue_flow('q', upon => '{}'{overdue})", self.upon))),
            "suspended for members" => parent.map(|(_, job)| job),
            _ => None,
        };
        let of = flow.map_or(String::new(), |flow| format!(", flow => {flow}"));
        let doing = match self.member {
            "scheduled" => ", delay => '1 hour'".to_owned(),
            "held" => format!(", after => ARRAY[{}]", client.enqueue("q")),
            _ => String::new(),
        };
        let member: i64 = client.value(&format!("SELECT queue.enqueue('{x}'{of}{doing})"));
        let other: Option<i64> =
            (self.other != "none").then(|| client.value(&format!("SELECT queue.enqueue('{}'{of})", self.other)));
        let both = other.map_or(format!("ARRAY[{member}]"), |other| format!("ARRAY[{member}, {other}]"));
        let upon = self.upon;
        let waits = match (self.way, parent) {
            ("after", _) => {
                client.value(&format!("SELECT queue.enqueue('q', after => {both}, upon => '{upon}'{overdue})"))
            }
            ("suspended after", Some((id, job))) => {
                client.run(&format!("SELECT queue.suspend({id}, {both}, '{upon}')"));
                job
            }
            ("suspended for members", Some((id, job))) => {
                client.run(&format!("SELECT queue.suspend({id}, upon => '{upon}')"));
                job
            }
            _ => flow.unwrap(),
        };
        client.run("COMMIT");
        if matches!(self.member, "running" | "dead") {
            let id = client.claim(x);
            if self.member == "dead" {
                client.run(&format!("SELECT queue.fail({id}, 'no')"));
            }
        }
        waits
    }

    fn drop(&self, client: &mut Client, x: &str) {
        let drop = format!("SELECT queue.drop('{x}', force => true)");
        match self.drop {
            "purge, drop" => {
                client.run(&format!("SELECT queue.purge('{x}')"));
                client.run(&drop);
            }
            "purge and drop together" => client.run(&format!("BEGIN; SELECT queue.purge('{x}'); {drop}; COMMIT")),
            "drop with another queue" => client.run(&format!(
                "BEGIN; SELECT queue.create('{x}_too'), queue.enqueue('{x}_too'); {drop}; SAVEPOINT s; \
                 SELECT queue.drop('{x}_too', force => true); ROLLBACK TO s; COMMIT"
            )),
            _ => client.run(&drop),
        }
    }
}

/// Tries all cases. If `crashes` is true, the server crashes after the drops and before the worker serves them.
fn try_all(crashes: bool) {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.max_lanes = 4096").start_with_database("app");
    if crashes {
        client.switch_worker_off();
    }
    for queue in ["q", "parents", "before", "later"] {
        create(&mut client, queue, "lease => '1 hour'");
    }
    let cases: Vec<(String, Case)> =
        Case::all().into_iter().enumerate().map(|(n, case)| (format!("x{n}"), case)).collect();
    let jobs: Vec<i64> = cases.iter().map(|(x, case)| case.prepare(&mut client, x)).collect();
    client.work_off("before", 10_000);
    cases.iter().for_each(|(x, case)| case.drop(&mut client, x));
    client.work_off("later", 10_000);
    if crashes {
        drop(client);
        cluster.restart_killed();
        client = cluster.connect_to("app");
        client.run("ALTER DATABASE app RESET pg_queue.worker");
        client = cluster.connect_to("app");
    }
    wait::until_empty("all have ended as they should", || {
        let states = cases.iter().zip(&jobs).map(|((_, case), job)| (case, client.state(*job)));
        let wrong = states.filter(|(case, state)| *state != case.expected());
        wrong.map(|(case, state)| format!("{case:?}: {state}, not {}", case.expected())).collect()
    });
    client.check();
}

#[test]
fn a_member_whose_queue_is_dropped_holds_nothing_up() {
    try_all(false);
}

#[test]
fn a_member_whose_queue_is_dropped_holds_nothing_up_after_a_crash_before_the_release() {
    try_all(true);
}

#[test]
fn a_dead_member_of_a_removed_stage_can_still_be_retried() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "stages => '{a,b}', max_attempts => 1");
    create(&mut client, "f", "");
    let flow: i64 = client.value("SELECT queue.enqueue_flow('f', '[{\"queue\": \"q\"}]')");
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q')");
    client.run("SELECT queue.alter('q', stages => '{b}')");
    stays(&mut client, flow, "held");
    client.run(&format!("SELECT queue.retry({flow})"));
    client.work_off("q", 1);
    becomes(&mut client, flow, "completed");
}
