//! Several databases, and databases, extensions and queues that are dropped and created again with the same name. No
//! session sees jobs of another database or of an earlier life.

use std::sync::atomic::AtomicUsize;

use crate::shared::*;

#[test]
fn queues_of_the_same_name_in_other_databases_have_other_jobs() {
    let cluster = Cluster::new().start();
    let names = ["one", "two", "three"];
    for name in names {
        create(&mut cluster.create_database(name), "q", "");
    }
    thread::scope(|scope| {
        for name in names {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = cluster.connect_to(name);
                for n in 0..150 {
                    client.run(&format!("SELECT queue.enqueue('q', '\"{name}-{n}\"')"));
                    if n % 3 == 2 {
                        let got: Vec<String> = client.column("SELECT payload #>> '{}' FROM queue.claim('q', 2)");
                        assert!(got.len() == 2 && got.iter().all(|job| job.starts_with(name)), "{name}: {got:?}");
                    }
                }
            });
        }
    });
    for name in names {
        let mut client = cluster.connect_to(name);
        assert_eq!(client.count("SELECT FROM queue.claim('q', 100)"), 50);
        assert_eq!(client.count("SELECT FROM queue_internal.running_now()"), 150);
    }
    // The same attempt ids exist in all databases. An end acts in its own database only.
    let id: i64 = cluster.connect_to("one").value("SELECT min(id) FROM queue_internal.running_now()");
    cluster.connect_to("one").run(&format!("SELECT queue.complete({id})"));
    cluster.connect_to("two").run(&format!("SELECT queue.complete({id})"));
}

/// Sessions that enqueue, claim and complete in loops, and their errors.
struct Busy {
    is_over: AtomicBool,
    done: AtomicUsize,
    errors: Mutex<BTreeSet<String>>,
    /// The number of claimed jobs that belong to an earlier life.
    ghosts: AtomicUsize,
}

impl Busy {
    fn new() -> Self {
        Self {
            is_over: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            errors: Mutex::default(),
            ghosts: AtomicUsize::new(0),
        }
    }

    /// Enqueues, claims and completes until it is stopped. Table `life` says which life of the database it is. No job
    /// may belong to an earlier life.
    fn work(&self, cluster: &Cluster) {
        let mut client: Option<Client> = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let Some(open) = &mut client else {
                client = cluster.config().dbname("app").connect(NoTls).ok();
                continue;
            };
            if let Err(e) = self.round(open) {
                if e.is_closed() || error::code(&e).is_empty() {
                    client = None;
                } else {
                    let message = error::message(&e).replace(|c: char| c.is_ascii_digit(), "");
                    self.errors.lock().unwrap().insert(format!("{} {message}", error::code(&e)));
                }
            }
        }
    }

    fn round(&self, client: &mut Client) -> Result<(), postgres::Error> {
        client.query("SELECT queue.enqueue('q', to_jsonb((SELECT max(life) FROM public.life)))", &[])?;
        let sql =
            "SELECT c.id, (c.payload #>> '{}')::int < l.life FROM (SELECT max(life) AS life FROM public.life) AS l,
                   LATERAL queue.claim('q', 2, wait => '20 ms') AS c";
        for row in client.query(sql, &[])? {
            if row.get(1) {
                self.ghosts.fetch_add(1, Ordering::Relaxed);
            }
            client.query("SELECT queue.complete($1)", &[&row.get::<_, i64>(0)])?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_working(&self) {
        let before = self.done.load(Ordering::Relaxed);
        wait::until_true("the workers work", || self.done.load(Ordering::Relaxed) > before + 20);
    }
}

/// Runs `change` this many times while sessions work. Each of their errors must begin with one of these texts.
fn under_work(cluster: &Cluster, rounds: usize, allowed: &[&str], mut change: impl FnMut(usize)) {
    let busy = Busy::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| busy.work(cluster));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..rounds {
                busy.is_working();
                change(n + 2);
            }
            busy.is_working();
        }));
        busy.is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            eprintln!("errors seen: {:#?}", busy.errors.lock().unwrap());
            std::panic::resume_unwind(panic);
        }
    });
    let errors = busy.errors.into_inner().unwrap();
    let unclean: Vec<_> = errors.iter().filter(|e| !allowed.iter().any(|a| e.starts_with(a))).collect();
    assert!(unclean.is_empty(), "{unclean:#?}");
    assert_eq!(busy.ghosts.load(Ordering::Relaxed), 0, "jobs of an earlier life were claimed");
}

/// Errors for a missing queue, function, schema or relation, or for a relation that was dropped while a session waited
/// for its lock.
const GONE: &[&str] = &["42704", "42883", "3F000", "42P01", "XX000 could not open relation with OID", "55006"];

#[test]
fn an_extension_dropped_and_created_under_work_begins_a_new_life() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("CREATE TABLE life (life int); INSERT INTO life VALUES (1)");
    create(&mut client, "q", "");
    under_work(&cluster, 4, GONE, |life| {
        if life % 2 == 0 {
            client.run("DROP EXTENSION pg_queue");
            client.run(&format!("INSERT INTO life VALUES ({life})"));
            client.run("CREATE EXTENSION pg_queue");
            create(&mut client, "q", "");
        } else {
            client.run(&format!(
                "BEGIN; DROP EXTENSION pg_queue; INSERT INTO life VALUES ({life}); CREATE EXTENSION pg_queue;
                 SELECT queue.create('q'); COMMIT"
            ));
        }
    });
}

#[test]
fn a_drop_and_create_of_the_extension_that_is_rolled_back_changes_nothing() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 hour'");
    let mut other = cluster.connect_to("app");
    other.run("SELECT queue.enqueue('q', '1'), queue.enqueue('q', '2'), queue.enqueue('q', '3')");
    let (first, second) = (other.claim("q"), other.claim("q"));
    client
        .run("BEGIN; DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue; SELECT queue.create('q'), queue.create('x')");
    client.run("SELECT queue.enqueue('x'); SELECT FROM queue.claim('x'); ROLLBACK");
    // Sessions that know the extension, new sessions and the worker go on.
    other.run(&format!("SELECT queue.complete({first})"));
    other.run("SELECT queue.enqueue('q', '4')");
    assert_eq!(client.column::<String>("SELECT payload::text FROM queue.claim('q')"), ["3"]);
    assert_eq!(other.column::<String>("SELECT payload::text FROM queue.claim('q')"), ["4"]);
    client.refused("SELECT queue.enqueue('x')", "42704");
    other.run(&format!("SELECT FROM queue.extend({second}, '100 ms')"));
    let again = wait::until("the worker ends leases", || {
        other.column::<String>("SELECT payload::text FROM queue.claim('q')").pop()
    });
    assert_eq!(again, "2");
    client.refused(&format!("SELECT queue.complete({second})"), "QJ001");
}

#[test]
fn a_database_dropped_and_created_under_work_begins_a_new_life() {
    // Memory has room for one database only.
    let cluster = Cluster::new().conf("pg_queue.max_databases = 1").start();
    let make = |life: usize| {
        let mut client = cluster.create_database("app");
        client.run(&format!("CREATE TABLE life (life int); INSERT INTO life VALUES ({life})"));
        wait::until("there is room", || client.batch_execute("SELECT queue.create('q')").ok());
    };
    make(1);
    let gone = [GONE, &["53400 too many databases", "3D000", "57P01"]].concat();
    under_work(&cluster, 3, &gone, |life| {
        cluster.connect().run("DROP DATABASE app WITH (FORCE)");
        make(life);
    });
}

#[test]
fn a_queue_dropped_and_created_under_work_begins_a_new_life() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("CREATE TABLE life (life int); INSERT INTO life VALUES (1)");
    create(&mut client, "q", "");
    under_work(&cluster, 6, &["42704", "55006", "QJ001"], |life| {
        client.run(&format!(
            "BEGIN; SELECT queue.drop('q', force => true); INSERT INTO life VALUES ({life}); \
                SELECT queue.create('q'); COMMIT"
        ));
    });
    // The workers leave some jobs, so a drop without force is refused. A refused drop changes nothing.
    client.enqueue("q");
    client.refused("SELECT queue.drop('q')", "55000");
}

#[test]
fn a_drop_and_an_enqueue_do_not_both_commit() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    let mut producer = cluster.connect_to("app");
    create(&mut client, "other", "");
    for forced in [false, true] {
        create(&mut client, "q", "");
        // The producer knows the queue. The queue is dropped while the producer's transaction is open.
        producer.run("SELECT queue.enqueue('q')");
        client.run("SELECT queue.purge('q')");
        producer.run("BEGIN; SELECT queue.enqueue('other')");
        client.run(&format!("SELECT queue.drop('q', force => {forced})"));
        let refused = producer.failure("SELECT queue.enqueue('q'); COMMIT");
        assert!(["42704", "55006"].contains(&refused.code.as_str()), "{refused:?}");
        producer.run("ROLLBACK");
    }
    create(&mut client, "q", "");
    producer.run("BEGIN; SELECT queue.enqueue('q')");
    client.refused("SELECT queue.drop('q')", "55000");
    client.run("SELECT queue.drop('q', force => true)");
    let refused = producer.failure("COMMIT");
    assert!(["42704", "55006"].contains(&refused.code.as_str()), "{refused:?}");
    create(&mut client, "q", "");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0, "a job of the dropped queue");
}

#[test]
fn a_drop_without_room_in_memory_leaves_no_queue_closed() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    let mut other = cluster.connect_to("app");
    client.run("SELECT queue.create('q' || n) FROM generate_series(1, 124) AS n");
    create(&mut client, "staged", "stages => '{a, b, c}'");
    // Each transaction drops as many lanes as it may, which is half of the remaining ones. Each queue has two.
    let mut droppers = Vec::new();
    for queues in ["1, 64", "65, 96", "97, 112", "113, 120", "121, 124"] {
        let mut dropper = cluster.connect_to("app");
        dropper.run(&format!("BEGIN; SELECT queue.drop('q' || n) FROM generate_series({queues}) AS n"));
        droppers.push(dropper);
    }
    // Eight lanes remain, so a transaction may drop four. This queue has five.
    other.refused("SELECT queue.drop('staged')", "53400");
    other.run("SELECT queue.enqueue('staged')");
    other.run("SELECT queue.enqueue('staged', stage => 'a')");
    droppers.iter_mut().for_each(|dropper| dropper.run("COMMIT"));
    assert_eq!(other.count("SELECT FROM queue.claim('staged', 10)"), 2);
    other.run("SELECT queue.drop('staged', force => true)");
}

#[test]
fn a_standby_refuses_verbs_and_shows_jobs_until_it_is_promoted() {
    let (primary, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    for _ in 0..5 {
        client.enqueue("q");
    }
    let running = client.claim("q");
    let standby = primary.standby();
    standby.wait_replayed(&primary);
    let mut client = standby.connect_to("app");
    for verb in [
        "SELECT queue.create('x')",
        "SELECT queue.enqueue('q')",
        "SELECT FROM queue.claim('q')",
        "SELECT FROM queue.claim('q', wait => '1 s')",
        "CALL queue.wait('q')",
        "CALL queue.await(31)",
        &format!("SELECT queue.complete({running})"),
        &format!("SELECT FROM queue.complete_many('{{{running}}}')"),
        &format!("SELECT queue.fail({running}, 'no')"),
        &format!("SELECT queue.release({running})"),
        &format!("SELECT queue.extend({running})"),
        &format!("SELECT queue.progress({running}, '1')"),
        "SELECT queue.cancel(31)",
        "SELECT queue.purge('q')",
        "SELECT queue.pause('q')",
        "SELECT queue.drop('q')",
        "SELECT FROM queue.maintain()",
        "SELECT queue.adopt()",
    ] {
        let refused = client.failure(verb);
        assert_eq!(refused.code, "25006", "{verb}: {refused:?}");
    }
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'"), 4);
    assert_eq!(client.value::<i64>("SELECT running FROM queue.stats"), 1);
    assert_eq!(client.count("SELECT * FROM queue.queues"), 1);
    for view in ["attempts", "errors", "workers"] {
        client.run(&format!("SELECT * FROM queue.{view}"));
    }

    standby.promote();
    wait::until_true("it is a primary", || !client.value::<bool>("SELECT pg_is_in_recovery()"));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 4);
    client.run(&format!("SELECT queue.complete({running})"));
    client.run("SELECT queue.enqueue('q', delay => '300 ms')");
    wait::within("the worker starts what is due", Duration::from_secs(20), || {
        client.column::<i64>("SELECT id FROM queue.claim('q')").pop()
    });
    create(&mut client, "x", "");
}

#[test]
fn a_copy_has_the_jobs_of_the_original_and_runs_them_too() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue_many('q', ARRAY['1', '2', '3']::jsonb[])");
    let attempt: i64 = client.claim("q");
    client.run(&format!("SELECT queue.complete({attempt})"));
    drop(client);
    cluster.connect().run("CREATE DATABASE copy TEMPLATE app");
    for name in ["app", "copy"] {
        let mut client = cluster.connect_to(name);
        let left: Vec<i64> = client.column("SELECT job_id FROM queue.claim('q', 10)");
        assert_eq!(left, jobs[1..], "{name}");
        client.run("SELECT queue.complete(id) FROM queue.attempts WHERE state = 'running'");
        assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'completed'"), 3, "{name}");
    }
}
