//! Each server is killed in turn under load. The test's own ledger has what clients were told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::scope;

use postgres::{Client, NoTls};
use queue_tests::sql::Sql;
use queue_tests::{StopAtEnd, error, wait};

use crate::peers::Peers;

/// What a client was told about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The client got no answer: the job may exist or not.
    Nothing,
    Enqueued,
}

struct Storm<'a> {
    peers: &'a Peers,
    next: AtomicI64,
    told: Mutex<BTreeMap<i64, Told>>,
    completed: AtomicU64,
    is_drained: AtomicBool,
    is_over: AtomicBool,
}

impl Storm<'_> {
    /// Opens a connection to the first server that answers, beginning with this one, as an application with several
    /// hosts does.
    fn connect(&self, first: usize) -> Option<Client> {
        let servers = &self.peers.servers;
        (0..servers.len()).find_map(|n| servers[(first + n) % servers.len()].config().dbname("app").connect(NoTls).ok())
    }

    /// Enqueues jobs one after the other. Two of three have a key, and their enqueue is repeated until it is
    /// acknowledged. The third has no key, and its enqueue is never repeated.
    fn produce(&self, number: usize) {
        let mut connection = None;
        // Tokens whose owner was away. They are tried again between others, as a forwarder does.
        let mut open = VecDeque::new();
        let mut turn = 0_u32;
        while !self.is_over.load(Ordering::Relaxed) && (!self.is_drained.load(Ordering::Relaxed) || !open.is_empty()) {
            let Some(client) = connection.as_mut() else {
                connection = self.connect(number);
                continue;
            };
            turn += 1;
            let again =
                if turn.is_multiple_of(4) || self.is_drained.load(Ordering::Relaxed) { open.pop_front() } else { None };
            let token = again.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
            let sql = match token % 3 {
                0 => format!("SELECT queue_cluster.enqueue('q', '{token}')"),
                1 => format!(
                    "SELECT queue_cluster.enqueue('q', '{token}', unique_key => 't{token}', unique_for => '1 hour')"
                ),
                _ => format!(
                    "SELECT queue_cluster.enqueue_batch('q', '[{{\"payload\": {token}, \"unique_key\": \"t{token}\", \
                        \"unique_for\": \"1 hour\"}}]')"
                ),
            };
            self.told.lock().expect("the ledger").entry(token).or_insert(Told::Nothing);
            match client.simple_query(&sql) {
                Ok(_) => {
                    self.told.lock().expect("the ledger").insert(token, Told::Enqueued);
                }
                Err(e) => {
                    let code = error::code(&e);
                    let is_of_outage = code.is_empty() || code.starts_with("08") || code.starts_with("57P");
                    assert!(is_of_outage, "{sql}: {}", error::describe(&e));
                    if token % 3 != 0 {
                        open.push_back(token);
                    }
                    // The connection breaks only if the killed server is at its other end.
                    if !code.starts_with("08") {
                        connection = None;
                    }
                }
            }
        }
    }

    /// Claims at home. Each transaction writes an effect and completes the job.
    fn work(&self, number: usize) {
        self.repeat(number, &["57P"], |client| {
            let claim = "SELECT id, payload::text FROM queue_cluster.claim('q', wait => '50 ms', steal => false)";
            if let Some(row) = client.query_opt(claim, &[])? {
                let (id, token): (i64, String) = (row.get(0), row.get(1));
                client.batch_execute(&format!(
                    "INSERT INTO effect VALUES ({token}); SELECT queue_cluster.complete({id})"
                ))?;
                self.completed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }

    /// Claims from any server. The result marks the job as stolen and is the only effect.
    fn steal(&self, number: usize) {
        self.repeat(number, &["57P", "08"], |client| {
            for row in client.query("SELECT id FROM queue_cluster.claim('q', 2, wait => '50 ms')", &[])? {
                let id: i64 = row.get(0);
                client.batch_execute(&format!("SELECT queue_cluster.complete({id}, '\"stolen\"')"))?;
                self.completed.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }

    /// Repeats `work` until the storm is over. After an error of these classes, which an outage causes, it opens
    /// another connection.
    fn repeat(&self, number: usize, of_outages: &[&str], work: impl Fn(&mut Client) -> Result<(), postgres::Error>) {
        let mut connection = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(client) = connection.as_mut() else {
                connection = self.connect(number);
                continue;
            };
            if let Err(e) = work(client) {
                let code = error::code(&e);
                let is_of_outage = of_outages.iter().any(|class| code.starts_with(class));
                assert!(code.is_empty() || code == "QJ001" || is_of_outage, "{}", error::describe(&e));
                connection = None;
            }
        }
    }
}

#[test]
fn servers_killed_in_turn_lose_and_double_no_job() {
    let peers = Peers::new(3);
    for n in 0..3 {
        let mut c = peers.connect(n);
        c.run("CREATE TABLE effect (token bigint)");
        c.run("SELECT queue.alter('q', lease => '2 s')");
    }
    let storm = Storm {
        peers: &peers,
        next: AtomicI64::new(1),
        told: Mutex::default(),
        completed: AtomicU64::new(0),
        is_drained: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    scope(|scope| {
        let (_over, _drained) = (StopAtEnd(&storm.is_over), StopAtEnd(&storm.is_drained));
        let producers = [0, 1, 2].map(|n| {
            let storm = &storm;
            scope.spawn(move || storm.work(n));
            scope.spawn(move || storm.steal(n));
            scope.spawn(move || storm.produce(n))
        });
        for round in 0..2 {
            for n in 0..3 {
                let work = |what: &str| {
                    let before = storm.completed.load(Ordering::Relaxed);
                    wait::until(what, || (storm.completed.load(Ordering::Relaxed) > before + 30).then_some(()));
                };
                work("all work");
                peers.servers[n].kill_server();
                if round == 1 {
                    peers.connect((n + 1) % 3).run(&format!("SELECT queue_cluster.mark_down('{}')", Peers::name(n)));
                }
                work("the others work");
                peers.servers[n].start_again();
                if round == 1 {
                    peers.connect((n + 1) % 3).run(&format!("SELECT queue_cluster.mark_up('{}')", Peers::name(n)));
                }
            }
        }
        storm.is_drained.store(true, Ordering::Relaxed);
        // Until they end, the producers may enqueue the jobs that were refused during an outage.
        producers.into_iter().for_each(|producer| producer.join().expect("a producer"));
        wait::until("all has ended", || {
            let living =
                (0..3).map(|n| peers.connect(n).count("SELECT FROM queue_internal.live() WHERE outcome IS NULL"));
            (living.sum::<usize>() == 0).then_some(())
        });
    });
    let told = storm.told.into_inner().expect("the ledger");
    // For each token: its jobs on any server, and its effects.
    let mut found: BTreeMap<i64, (u32, u32, u32)> = BTreeMap::new();
    for n in 0..3 {
        let mut c = peers.connect(n);
        for row in c.query("SELECT payload::text, state, result::text FROM queue.jobs", &[]).expect("the jobs") {
            let (token, state, result): (String, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
            assert_eq!(state, "completed", "{token}");
            let of_token = found.entry(token.parse().expect("a token")).or_default();
            of_token.0 += 1;
            of_token.1 += u32::from(result.is_some());
        }
        for token in c.column::<i64>("SELECT token FROM effect") {
            found.entry(token).or_default().2 += 1;
        }
    }
    let faults: Vec<String> = told
        .iter()
        .filter_map(|(token, told)| {
            let (jobs, stolen, effects) = found.remove(token).unwrap_or_default();
            let is_right = jobs <= 1 && stolen + effects == jobs && (jobs == 1 || *told == Told::Nothing);
            (!is_right)
                .then(|| format!("{token}: {told:?}, {jobs} jobs, {stolen} completed by a thief, {effects} effects"))
        })
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(found.is_empty(), "nobody has asked for {found:?}");
    let unknown = told.values().filter(|told| **told == Told::Nothing).count();
    eprintln!("{} tokens, {unknown} of them without an answer", told.len());
    for n in 0..3 {
        assert_eq!(peers.connect(n).count("SELECT FROM queue.check()"), 0, "server {n}");
    }
}
