//! The processes of the workers, and how one of them is killed.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use queue_tests::{Cluster, KilledAtEnd, wait};

use crate::producer::HOPELESS;

pub const DATABASE: &str = "demo";

/// A worker's process.
pub struct Worker {
    name: String,
    process: KilledAtEnd,
}

impl Worker {
    /// Starts a process. The first one will be the victim. The demo reads its output, which says which file it has
    /// claimed.
    pub fn start(cluster: &Cluster, number: usize) -> Self {
        let name = format!("worker-{number}");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        cluster.connect_env(&mut command);
        command.args(["worker", &name]).env("PGDATABASE", DATABASE).stdin(Stdio::null());
        command.stdout(if number == 1 { Stdio::piped() } else { Stdio::null() });
        Self { process: KilledAtEnd(command.spawn().expect("this program runs")), name }
    }

    fn pid(&self) -> i32 {
        self.process.id().try_into().expect("a process id")
    }

    /// The output of the victim.
    pub fn claims(&mut self) -> ChildStdout {
        self.process.stdout.take().expect("the victim's output, once")
    }

    /// Ends the process.
    pub fn end(&self, cluster: &Cluster) {
        cluster.signal("TERM", self.pid());
    }

    /// Waits for `busy` jobs and then kills the process, by SIGKILL, in the middle of one. Returns that job's id, or
    /// `None` if there were not enough jobs.
    pub fn kill_at_work(&self, cluster: &Cluster, claims: ChildStdout, busy: usize) -> Option<i64> {
        let mut client = cluster.connect_to(DATABASE);
        for _claim in BufReader::new(claims).lines().skip(busy) {
            // The process may be about to complete the job. So it is stopped first, and continues if it no longer holds
            // a job.
            cluster.signal("STOP", self.pid());
            wait::until("the server has done all that it was told", || {
                let sql = "SELECT FROM pg_stat_activity WHERE application_name = $1 AND state <> 'active'";
                client.query_opt(sql, &[&self.name]).expect("the sessions")
            });
            let sql = "SELECT job_id, payload->>'path' FROM queue.jobs WHERE state = 'running' AND worker = $1";
            let held = client.query_opt(sql, &[&self.name]).expect("the jobs");
            let held: Option<(i64, String)> = held.map(|job| (job.get(0), job.get(1)));
            if let Some((job, path)) = held.filter(|(_, path)| path != HOPELESS) {
                cluster.kill9(self.pid());
                println!("         {}, process {}, is killed with -9 at {path}", self.name, self.pid());
                return Some(job);
            }
            cluster.signal("CONT", self.pid());
        }
        None
    }
}
