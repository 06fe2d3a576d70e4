//! Claims that sleep: what wakes them, what ends them, where they refuse to sleep; `CALL queue.wait`.

use crate::shared::{self, *};

/// A session that sleeps in a statement. Its answer is the first column of the rows.
pub(super) struct Sleeper {
    pub(super) pid: i32,
    thread: JoinHandle<Result<Vec<i64>, postgres::Error>>,
}

impl Sleeper {
    /// Runs the statement in a new session. Returns when the session sleeps.
    pub(super) fn new(sql: &str) -> Self {
        Self::with(connect(), &mut connect(), sql)
    }

    /// Claims one job and waits as long as a test may take.
    pub(super) fn claiming(queue: &str) -> Self {
        Self::new(&format!("SELECT id FROM queue.claim('{queue}', wait => '1 minute')"))
    }

    pub(super) fn with(mut client: Client, observer: &mut Client, sql: &str) -> Self {
        client.run("SET pg_queue.max_wait = '1min'");
        let pid = client.pid();
        let sql = sql.to_owned();
        let thread = std::thread::spawn(move || {
            let rows = client.query(&sql, &[])?;
            Ok(rows.iter().map(|row| row.get(0)).collect())
        });
        wait_asleep(observer, pid);
        Self { pid, thread }
    }

    pub(super) fn assert_asleep(&self, client: &mut Client) {
        wait_asleep(client, self.pid);
        assert!(!self.thread.is_finished());
    }

    pub(super) fn is_awake(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns the answer, which must come long before the sleep would end by itself.
    pub(super) fn answer(self) -> Result<Vec<i64>, postgres::Error> {
        wait::within("the sleeper woke", Duration::from_secs(20), || self.is_awake().then_some(()));
        self.thread.join().unwrap()
    }

    pub(super) fn claimed(self) -> i64 {
        let ids = self.answer().unwrap();
        assert_eq!(ids.len(), 1, "{ids:?}");
        ids[0]
    }
}

fn attempt_of(client: &mut Client, job_id: i64) -> i64 {
    client.value(&format!("SELECT id FROM queue.job_attempts({job_id}) WHERE finished_at IS NULL"))
}

#[test]
fn a_commit_of_an_enqueue_wakes_a_claim() {
    let (mut client, q) = queue("");
    for enqueue in [
        format!("SELECT queue.enqueue('{q}')"),
        format!("SELECT queue.enqueue_many('{q}', ARRAY['1'::jsonb])"),
        format!("SELECT queue.enqueue_batch('{q}', '[{{}}]')"),
    ] {
        let sleeper = Sleeper::claiming(&q);
        client.run("BEGIN");
        let job: i64 = client.value(&enqueue);
        sleeper.assert_asleep(&mut connect());
        client.run("COMMIT");
        let id = sleeper.claimed();
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {id}")), job);
    }
}

#[test]
fn a_sleeping_claim_takes_all_that_a_batch_brings() {
    let (mut client, q) = queue("");
    let sleeper = Sleeper::new(&format!("SELECT id FROM queue.claim('{q}', 5, wait => '1 minute')"));
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[7]))"));
    assert_eq!(sleeper.answer().unwrap().len(), 5);
}

#[test]
fn a_rolled_back_claim_wakes_a_claim() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let endings: [fn(Client); 4] = [
        |mut other| other.run("ROLLBACK"),
        |mut other| other.run("ROLLBACK TO s; COMMIT"),
        |other| drop(other),
        |mut other| {
            let pid = other.pid();
            assert!(connect().value::<bool>(&format!("SELECT pg_terminate_backend({pid}, 10000)")));
        },
    ];
    for ending in endings {
        let id = attempt_of(&mut client, job);
        let mut other = connect();
        other.run("BEGIN; SAVEPOINT s");
        assert_eq!(other.claim(&q), id);
        let sleeper = Sleeper::claiming(&q);
        ending(other);
        assert_eq!(sleeper.claimed(), id);
        client.run(&format!("SELECT queue.release({id})"));
    }
}

#[test]
fn every_way_for_a_job_to_become_ready_wakes_a_claim() {
    let (mut client, q) = queue("backoff_base => '0'");
    // For each case: a statement that makes the job wait ($1 is the attempt, $2 the job), and a statement that makes it
    // ready again.
    for (before, wake) in [
        ("SELECT", "SELECT queue.fail($1, 'boom')"),
        ("SELECT", "SELECT queue.fail($1, 'boom', retry_in => '0')"),
        ("SELECT", "SELECT queue.fail_many(ARRAY[$1], 'boom')"),
        ("SELECT", "SELECT queue.release($1)"),
        ("SELECT", "SELECT queue.release_many(ARRAY[$1])"),
        ("SELECT queue.complete($1)", "SELECT queue.retry($2)"),
        ("SELECT queue.fail($1, 'boom', fatal => true)", "SELECT queue.retry($2)"),
        ("SELECT queue.fail($1, 'boom', fatal => true)", "SELECT queue.retry_many(ARRAY[$2])"),
        ("SELECT queue.fail($1, 'boom', '1 day')", "SELECT queue.retry_many(ARRAY[$2])"),
        ("SELECT queue.release($1, '1 day')", "SELECT queue.reschedule_many(ARRAY[$2], now())"),
        ("SELECT", "SELECT queue.end_batch('[{\"fail\": {\"id\": $1, \"error\": \"boom\"}}]')"),
        ("SELECT", "SELECT queue.end_batch('[{\"release\": {\"id\": $1}}]')"),
        ("SELECT", "SELECT queue.end_batch('[{\"suspend\": {\"id\": $1, \"until\": \"epoch\"}}]')"),
        ("SELECT queue.cancel($2, force => true)", "SELECT queue.retry($2)"),
        ("SELECT queue.fail($1, 'boom', '1 day')", "SELECT queue.retry($2)"),
        ("SELECT queue.release($1, '1 day')", "SELECT queue.retry($2)"),
        ("SELECT queue.release($1, '1 day')", "SELECT queue.reschedule($2, now())"),
        ("SELECT queue.pause($3), queue.release($1)", "SELECT queue.resume($3)"),
        // The background worker acts later.
        ("SELECT", "SELECT queue.release($1, '300 ms')"),
        ("SELECT", "SELECT queue.fail($1, 'boom', '300 ms')"),
        ("SELECT", "SELECT queue.extend($1, '1 ms')"),
    ] {
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        let with = |sql: &str| {
            let typed = if sql.contains("end_batch") { id.to_string() } else { format!("{id}::bigint") };
            sql.replace("$1", &typed).replace("$2", &job.to_string()).replace("$3", &format!("'{q}'"))
        };
        client.run(&with(before));
        let sleeper = Sleeper::claiming(&q);
        client.run(&with(wake));
        let next = sleeper.claimed();
        assert_ne!(next, id, "{wake}");
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {next}")), job, "{wake}");
        client.run(&format!("SELECT queue.complete({next})"));
    }
}

#[test]
fn one_job_wakes_one_sleeper() {
    let (mut client, q) = queue("");
    let mut sleepers: Vec<Sleeper> = (0..4).map(|_| Sleeper::claiming(&q)).collect();
    while !sleepers.is_empty() {
        client.enqueue(&q);
        let awake = wait::until("one woke", || sleepers.iter().position(Sleeper::is_awake));
        sleepers.remove(awake).claimed();
        for sleeper in &sleepers {
            sleeper.assert_asleep(&mut client);
        }
    }
}

#[test]
fn as_many_sleepers_wake_as_there_are_jobs() {
    let (mut client, q) = queue("");
    let mut sleepers: Vec<Sleeper> = (0..12).map(|_| Sleeper::claiming(&q)).collect();
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[10]))"));
    let running = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = 'running'");
    wait::until_true("ten woke", || client.value::<i64>(&running) == 10);
    wait::until_true("ten sessions returned", || sleepers.iter().filter(|s| s.is_awake()).count() == 10);
    sleepers.retain(|s| !s.is_awake());
    for sleeper in &sleepers {
        sleeper.assert_asleep(&mut client);
    }
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[2]))"));
    for sleeper in sleepers {
        sleeper.claimed();
    }
}

#[test]
fn a_wake_up_goes_to_the_next_when_its_receiver_is_cancelled() {
    let (mut client, q) = queue("");
    let server = shared::server();
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        // Either session may be woken. In one of the rounds the woken session is the cancelled one.
        for cancelled in [0, 1] {
            let mut sleepers = vec![Sleeper::claiming(&q), Sleeper::claiming(&q)];
            // A stopped process gets the wake-up and the cancellation before it can act.
            for sleeper in &sleepers {
                server.signal("STOP", sleeper.pid);
            }
            let job = client.enqueue(&q);
            assert!(client.value::<bool>(&format!("SELECT {end}({})", sleepers[cancelled].pid)));
            for sleeper in &sleepers {
                server.signal("CONT", sleeper.pid);
            }
            sleepers.remove(cancelled).answer().unwrap_err();
            let id = sleepers.remove(0).claimed();
            assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {id}")), job);
        }
    }
}

#[test]
fn a_woken_sleeper_that_is_slow_does_not_keep_the_job_from_others() {
    let (mut client, q) = queue("");
    let sleeper = Sleeper::claiming(&q);
    shared::server().signal("STOP", sleeper.pid);
    client.enqueue(&q);
    client.claim(&q);
    shared::server().signal("CONT", sleeper.pid);
    sleeper.assert_asleep(&mut client);
    client.enqueue(&q);
    sleeper.claimed();
}

#[test]
fn cancel_and_terminate_end_a_sleep_at_once() {
    let (mut client, q) = queue("");
    for (end, code) in [("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01")] {
        for sql in [
            format!("SELECT id FROM queue.claim('{q}', wait => '1 minute')"),
            format!("SELECT id FROM queue.claim_any(ARRAY['{q}'], wait => '1 minute')"),
            format!("CALL queue.wait('{q}', '1 minute')"),
        ] {
            let sleeper = Sleeper::new(&sql);
            assert!(client.value::<bool>(&format!("SELECT {end}({})", sleeper.pid)));
            let e = sleeper.answer().unwrap_err();
            // The driver may see the closed connection before it reads the error.
            assert!(error::code(&e) == code || (code == "57P01" && e.is_closed()), "{sql}: {e:?}");
        }
    }
    // The terminated sessions have left the list of waiting sessions.
    let sleeper = Sleeper::claiming(&q);
    client.enqueue(&q);
    sleeper.claimed();
}

#[test]
fn a_fast_shutdown_does_not_wait_for_sleepers() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('q')");
    let sleepers: Vec<Sleeper> =
        ["SELECT id FROM queue.claim('q', wait => '1 minute')", "CALL queue.wait('q', '1 minute')"]
            .iter()
            .map(|sql| Sleeper::with(cluster.connect_to("app"), &mut client, sql))
            .collect();
    let begun = Instant::now();
    cluster.stop_fast();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for sleeper in sleepers {
        sleeper.answer().unwrap_err();
    }
}

#[test]
fn statement_timeout_gives_an_empty_answer_and_no_error() {
    let (mut client, q) = queue("");
    client.run("SET statement_timeout = '1 s'");
    for sql in [
        format!("SELECT FROM queue.claim('{q}', wait => '10 s')"),
        format!("SELECT FROM queue.claim_any(ARRAY['{q}'], wait => '10 s')"),
    ] {
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(client.count(&sql), 0);
            assert!(begun.elapsed() > Duration::from_millis(100), "{:?}", begun.elapsed());
        }
    }
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '10 s')")));
}

#[test]
fn max_wait_limits_every_sleep() {
    let (mut client, q) = queue("");
    client.run("SET pg_queue.max_wait = '50 ms'");
    let begun = Instant::now();
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', wait => '1 hour')")), 0);
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '1 hour')")));
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}')")));
    assert!(begun.elapsed() > Duration::from_millis(150) && begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_claim_does_not_wait_in_a_transaction_that_has_written_or_sees_an_old_snapshot() {
    let (mut client, q) = queue("");
    client.run("SET pg_queue.max_wait = '1min'");
    for begin in
        ["BEGIN; SELECT txid_current()", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE"]
    {
        let begun = Instant::now();
        client.run(begin);
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', wait => '1 minute')")), 0);
        assert_eq!(client.count(&format!("SELECT FROM queue.claim_any(ARRAY['{q}'], wait => '1 minute')")), 0);
        client.run("COMMIT");
        assert!(begun.elapsed() < Duration::from_secs(20), "{begin}: {:?}", begun.elapsed());
    }
    // A claim that completes an attempt has written.
    client.enqueue(&q);
    let id = client.claim(&q);
    let begun = Instant::now();
    let sql = format!("SELECT FROM queue.claim('{q}', wait => '1 minute', completed => ARRAY[{id}]::bigint[])");
    assert_eq!(client.count(&sql), 0);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(client.value::<String>(&format!("SELECT state FROM queue.attempts WHERE id = {id}")), "completed");
}

#[test]
fn a_transaction_that_has_only_begun_can_sleep() {
    let (mut client, q) = queue("");
    let mut other = connect();
    other.run("BEGIN");
    let sleeper = Sleeper::with(other, &mut client, &format!("SELECT id FROM queue.claim('{q}', wait => '1 minute')"));
    client.enqueue(&q);
    sleeper.claimed();
    // The session ended without a commit, so the claim is undone.
    wait::until_true("the job is back", || client.count(&format!("SELECT FROM queue.claim('{q}')")) == 1);
}

#[test]
fn a_claim_that_finds_a_job_does_not_sleep() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    client.run("SET pg_queue.max_wait = '1min'");
    let begun = Instant::now();
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10, wait => '1 minute')")), 1);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn claim_any_takes_from_the_first_queue_that_has_jobs() {
    let (mut client, first) = queue("");
    let (_, second) = queue("");
    let (_, third) = queue("");
    let sql = format!("SELECT queue_name FROM queue.claim_any(ARRAY['{first}', '{second}', '{third}'])");
    client.enqueue(&third);
    client.enqueue(&second);
    client.enqueue(&first);
    // Priority orders the jobs of one queue, and does not order queues.
    client.run(&format!("SELECT queue.enqueue('{third}', priority => -10)"));
    for expected in [&first, &second, &third, &third] {
        assert_eq!(&client.value::<String>(&sql), expected);
    }
    assert_eq!(client.count(&sql), 0);
    client.enqueue(&second);
    client.run(&format!("SELECT queue.pause('{second}')"));
    client.enqueue(&third);
    assert_eq!(client.value::<String>(&sql), third);
    assert_eq!(client.count(&sql), 0);
    client.run(&format!("SELECT queue.resume('{second}')"));
    assert_eq!(client.value::<String>(&sql), second);
}

#[test]
fn claim_any_sleeps_for_all_its_queues() {
    let names: Vec<String> = (0..8).map(|_| queue("").1).collect();
    let mut client = connect();
    for name in &names {
        let list = names.join("', '");
        let sleeper = Sleeper::new(&format!("SELECT id FROM queue.claim_any(ARRAY['{list}'], wait => '1 minute')"));
        let job = client.enqueue(name);
        let id = sleeper.claimed();
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {id}")), job);
    }
}

#[test]
fn claim_any_takes_one_to_eight_queues_that_exist() {
    let (mut client, q) = queue("");
    for (list, code) in [
        ("'{}'".to_owned(), "22023"),
        ("'{a,b,c,d,e,f,g,h,i}'".to_owned(), "22023"),
        (format!("array_fill('{q}'::text, ARRAY[265])"), "22023"),
        (format!("ARRAY['{q}', NULL]"), "22004"),
        ("NULL".to_owned(), "22004"),
        (format!("ARRAY['{q}', 'nowhere']"), "42704"),
    ] {
        client.refused(&format!("SELECT * FROM queue.claim_any({list})"), code);
    }
    // Naming a queue twice changes nothing, neither for a claim that finds a job nor for one that sleeps.
    let sql = format!("SELECT id FROM queue.claim_any(array_fill('{q}'::text, ARRAY[9]), wait => '1 minute')");
    let sleeper = Sleeper::new(&sql);
    client.enqueue(&q);
    sleeper.claimed();
    client.enqueue(&q);
    assert_eq!(client.count(&sql), 1);
}

#[test]
fn a_pause_keeps_sleepers_asleep_and_a_resume_wakes_as_many_as_there_are_jobs() {
    let (mut client, q) = queue("");
    let sleepers: Vec<Sleeper> = (0..3).map(|_| Sleeper::claiming(&q)).collect();
    client.run(&format!("SELECT queue.pause('{q}')"));
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[3]))"));
    for sleeper in &sleepers {
        sleeper.assert_asleep(&mut client);
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    client.run(&format!("SELECT queue.resume('{q}')"));
    for sleeper in sleepers {
        sleeper.claimed();
    }
}

#[test]
fn a_dropped_queue_wakes_all_sleepers_that_wait_for_it() {
    let (mut client, q) = queue("");
    let sleepers: Vec<Sleeper> = (0..3)
        .map(|_| Sleeper::claiming(&q))
        .chain([Sleeper::new(&format!("CALL queue.wait('{q}', '1 minute')"))])
        .collect();
    client.run(&format!("SELECT queue.drop('{q}')"));
    for sleeper in sleepers {
        let e = sleeper.answer().unwrap_err();
        assert_eq!(error::code(&e), "42704", "{e:?}");
    }
}

#[test]
fn a_dropped_extension_wakes_all_sleepers() {
    let database = Database::new();
    let mut client = database.connect();
    client.run("SELECT queue.create('a'), queue.create('b')");
    let mut observer = connect();
    let sleepers: Vec<Sleeper> = ["a", "a", "b"]
        .iter()
        .map(|q| {
            let sql = format!("SELECT id FROM queue.claim('{q}', wait => '1 minute')");
            Sleeper::with(database.connect(), &mut observer, &sql)
        })
        .collect();
    client.run("DROP EXTENSION pg_queue");
    for sleeper in sleepers {
        sleeper.answer().unwrap_err();
    }
}

#[test]
fn a_sleeping_claim_holds_no_lock() {
    let (mut client, q) = queue("");
    let sleeper = Sleeper::claiming(&q);
    let locks: i64 = client
        .value(&format!("SELECT count(*) FROM pg_locks WHERE pid = {} AND locktype <> 'virtualxid'", sleeper.pid));
    assert_eq!(locks, 0);
    client.enqueue(&q);
    sleeper.claimed();
}

#[test]
fn a_lifted_limit_wakes_a_session_in_queue_wait() {
    for (options, lifted) in [
        ("rate_limit => 1, rate_period => '1 hour'", "rate_limit => 100"),
        ("rate_limit => 1, rate_period => '1 hour'", "reset => '{rate_limit}'"),
        ("rate_limit => 1, rate_period => '1 hour'", "rate_period => '1 ms'"),
        ("max_running => 1", "max_running => 5"),
        ("max_running => 1", "reset => '{max_running}'"),
        ("max_running_per_group => 1", "max_running_per_group => 2"),
        ("max_running_per_group => 1", "reset => '{max_running_per_group}'"),
        ("strict_order => true", "strict_order => false"),
    ] {
        let (mut client, q) = queue(options);
        client.run(&format!("SELECT queue.enqueue('{q}', group_key => 'g'), queue.enqueue('{q}', group_key => 'g')"));
        client.claim(&q);
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
        let waits = format!("CALL queue.wait('{q}', '5 s')");
        // A session that slept before, and a session that comes later.
        let sleeper = asleep::<bool>(&mut client, connect(), waits.as_str());
        client.run(&format!("SELECT queue.alter('{q}', {lifted})"));
        assert_eq!(sleeper.join().unwrap(), [true], "{options}, {lifted}: it sleeps on");
        assert!(client.value::<bool>(&waits), "{options}, {lifted}");
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 1, "{options}, {lifted}");
    }
}

#[test]
fn a_worker_killed_while_it_waits_gets_no_job() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    shared::create(&mut client, "q", "");
    let claim = "SELECT FROM queue.claim('q', wait => '60 s')";
    let mut psql = cluster.command("psql").args(["-X", "-d", "app", "-c", claim]).spawn().unwrap();
    let pid: i32 = wait::until("it has begun", || {
        client.column(&format!("SELECT pid FROM pg_stat_activity WHERE query = $${claim}$$ AND state = 'active'")).pop()
    });
    wait_asleep(&mut client, pid);
    psql.kill().unwrap();
    psql.wait().unwrap();
    let job_id = client.enqueue("q");
    // The wake-up is passed on to the next session.
    let mut other = cluster.connect_to("app");
    let claimed: Vec<i64> = other.column("SELECT job_id FROM queue.claim('q', wait => '20 s')");
    assert_eq!(claimed, [job_id]);
}
