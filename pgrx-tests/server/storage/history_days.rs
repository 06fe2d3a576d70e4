//! When a day of history is dropped, and which sessions the drop waits for.

use queue_tests::installation::run;

use crate::shared::*;
use crate::storage::history::{ATTEMPTS, JOBS, SERVER, children, client_of, database, reclaim, varied};

/// Turns the only child table into one of yesterday. Returns its name.
fn make_old(client: &mut Client) -> String {
    let all = children(client);
    let [child] = &all[..] else { panic!("{all:?}") };
    let old: String =
        client.value("SELECT 'history_' || to_char((now() AT TIME ZONE 'UTC')::date - 1, 'YYYYMMDD') || '_0badcafe'");
    client.run(&format!("ALTER TABLE {child} RENAME TO {old}"));
    format!("queue_internal.{old}")
}

#[test]
fn a_day_that_is_over_is_dropped_once_no_session_reads_it_and_no_session_waits() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.retry({job})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    let old = make_old(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.successor"), 1);
    let mut reader = client_of(&mut client);
    reader.run("BEGIN; SELECT count(*) FROM queue_internal.history");
    // Another session does the duty, because a session checks only when it begins and once a day.
    let mut duty = client_of(&mut client);
    let start = Instant::now();
    let forgot = "SELECT did FROM queue.maintain() WHERE duty = 'forget_history'";
    for _ in 0..3 {
        let mut duty = client_of(&mut client);
        assert_eq!(duty.value::<i64>(forgot), 0);
        assert_eq!(client.count("SELECT FROM queue.jobs"), 1, "others read meanwhile");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "somebody waited");
    reader.run("COMMIT");
    // A dump also delays the drop.
    reader.run("BEGIN; LOCK TABLE pg_extension IN ACCESS SHARE MODE");
    assert_eq!(client_of(&mut client).value::<i64>(forgot), 0);
    reader.run("COMMIT");
    assert_eq!(children(&mut client), [old]);
    assert_eq!(duty.value::<i64>(forgot), 1);
    assert_eq!(children(&mut client), [""; 0]);
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
    assert_eq!(client.count("SELECT FROM queue_internal.successor"), 0);
    // The next ended job creates that day's table again.
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 1);
}

#[test]
fn jobs_that_wait_for_a_dead_job_are_skipped_when_its_day_is_dropped() {
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 1");
    let dead = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q')");
    let living = client.enqueue("q");
    let mut after = |jobs: &str, upon: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('q', after => '{{{jobs}}}', upon => '{upon}')"))
    };
    let held = after(&dead.to_string(), "completed");
    let both = after(&format!("{dead},{living}"), "ended");
    let late: i64 = after(&living.to_string(), "completed");
    reclaim(&mut client);
    assert_eq!(client.count(&format!("SELECT FROM queue_internal.history WHERE job_id = {dead}")), 1);
    assert_eq!((client.state(held), client.state(both)), ("held".into(), "held".into()));
    make_old(&mut client);
    let mut duty = client_of(&mut client);
    wait::until_true("the day goes", || {
        let forgot: i64 = duty.value("SELECT sum(did)::bigint FROM queue.maintain() WHERE duty = 'forget_history'");
        duty = client_of(&mut client);
        forgot == 1
    });
    assert_eq!(client.count(&format!("SELECT FROM queue.job({dead})")), 0);
    client.maintain_until(&format!("(SELECT state FROM queue.job({held})) = 'skipped'"));
    let error: String = client.value(&format!("SELECT error FROM queue.job({held})"));
    assert_eq!(error, format!("it was after job {dead}, which is known no more"));
    assert_eq!((client.state(both), client.state(late)), ("held".into(), "held".into()));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.maintain_until(&format!("(SELECT state FROM queue.job({both})) = 'ready'"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({late})) = 'ready'"));
    client.check();
}

#[test]
fn strange_settings_make_no_strange_children() {
    let (mut client, name) = database();
    client.run(
        "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler; CREATE SCHEMA evil;
        CREATE TABLE evil.history (id bigint); CREATE FUNCTION evil.int8(oid) RETURNS bigint LANGUAGE sql AS
        'SELECT 1::bigint';
        CREATE FUNCTION evil.pg_get_userbyid(oid) RETURNS name LANGUAGE sql AS 'SELECT NULL::name';
        CREATE FUNCTION evil.int8shr(bigint, integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1::bigint';
        CREATE OPERATOR evil.>> (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.int8shr)",
    );
    for setting in [
        "default_table_access_method = other",
        "search_path = evil, pg_catalog",
        "quote_all_identifiers = on",
        "DateStyle = 'German'",
        "timezone = 'Pacific/Kiritimati'",
        "IntervalStyle = 'iso_8601'",
        "row_security = off",
    ] {
        client.run(&format!("ALTER DATABASE {name} SET {setting}"));
    }
    let mut client = client_of(&mut client);
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q') FROM pg_catalog.generate_series(1, 3)");
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 3)");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 3);
    let odd = "SELECT FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
               WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r' AND a.amname <> 'heap'";
    assert_eq!(client.count(odd), 0);
    let day: String = client.value(
        "SELECT substr(relname, 9, 8) FROM pg_class JOIN pg_inherits ON inhrelid = oid \
        WHERE inhparent = 'queue_internal.history'::regclass",
    );
    let tomorrow: String = client.value("SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')");
    assert_eq!(day, tomorrow);
}

#[test]
fn history_is_dumped_restored_and_dropped_with_the_extension() {
    let (mut client, name) = database();
    client.run("DO $$ BEGIN CREATE ROLE historian SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END $$");
    client.run("DROP EXTENSION pg_queue; SET ROLE historian; CREATE EXTENSION pg_queue; RESET ROLE");
    varied(&mut client, "q");
    reclaim(&mut client);
    let owners =
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace";
    assert_eq!(client.column::<String>(owners), ["historian"], "all belongs to the extension's owner");
    let child = children(&mut client);
    assert_eq!(child.len(), 2, "{child:?}");
    let (jobs, attempts) = (client.column::<String>(JOBS), client.column::<String>(ATTEMPTS));

    let file = SERVER.dir().join("history-dump").display().to_string();
    run(SERVER.command("pg_dump").args(["-Fc", "-f", &file, &name]));
    let copy = format!("{name}_copy");
    SERVER.connect().run(&format!("CREATE DATABASE {copy}"));
    SERVER.connect().run(&format!("ALTER DATABASE {copy} SET pg_queue.worker = off"));
    run(SERVER.command("pg_restore").args(["-e", "-d", &copy, &file]));
    let mut copied = SERVER.connect_to(&copy);
    copied.run("SELECT queue.adopt()");
    assert_eq!(children(&mut copied), child);
    // The lease of the running job begins anew, so it differs.
    let without_lease =
        |rows: &[String]| -> Vec<String> { rows.iter().filter(|row| !row.contains("\"running\"")).cloned().collect() };
    assert_eq!(without_lease(&copied.column(JOBS)), without_lease(&jobs));
    assert_eq!(copied.column::<String>(ATTEMPTS), attempts);
    let dead: i64 = copied.value("SELECT job_id FROM queue.jobs WHERE state = 'dead' AND error = 'three'");
    assert_eq!(copied.count(&format!("SELECT FROM queue.job({dead})")), 1);
    // Jobs that end in the copied database go to the same history.
    copied.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    reclaim(&mut copied);
    assert_eq!(copied.count(JOBS), jobs.len());

    for client in [&mut client, &mut copied] {
        let loose = "SELECT FROM pg_inherits AS i WHERE inhparent = 'queue_internal.history'::regclass AND
                     (SELECT count(*) FROM pg_depend AS d WHERE d.objid = i.inhrelid AND d.deptype = 'x') <> 1";
        assert_eq!(client.count(loose), 0, "children that hang on the extension not once");
        client.run("DROP EXTENSION pg_queue");
        assert_eq!(client.count("SELECT FROM pg_namespace WHERE nspname = 'queue'"), 0);
        assert_eq!(client.count("SELECT FROM pg_class WHERE relname LIKE 'history\\_%'"), 0);
        client.run("CREATE EXTENSION pg_queue");
    }
}

#[test]
fn a_lock_on_history_keeps_nobody_but_the_copy() {
    let (mut client, name) = database();
    create(&mut client, "q", "lease => '1 s', max_attempts => 100");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("ALTER DATABASE {name} RESET pg_queue.worker"));
    let already = SERVER.log().len();
    // This worker knows the old extension.
    client.run("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue");
    create(&mut client, "q", "lease => '300 ms', max_attempts => 100");
    // The lock is taken before there is anything to copy, because the worker may be quick.
    let mut holder = client_of(&mut client);
    holder.run("BEGIN; LOCK TABLE queue_internal.history IN SHARE MODE");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    wait::within("it is to be copied", Duration::from_secs(20), || {
        (client.count("SELECT FROM queue_internal.segment_log WHERE state = 'd'") > 0).then_some(())
    });
    client.enqueue("q");
    let mut late = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let id: i64 = client.value("SELECT id FROM queue.claim('q', wait => '10 s')");
        late.push(start.elapsed());
        assert!(id > 0);
        thread::sleep(Duration::from_millis(50));
    }
    // If the worker waited for the lock, leases would end late each time. On a busy machine one of them may end late.
    late.sort_unstable();
    assert!(late[2] < Duration::from_millis(1800), "leases ended late: {late:?}");
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 0);
    holder.run("COMMIT");
    wait::within("it is copied", Duration::from_secs(20), || {
        (client.count("SELECT FROM queue_internal.history WHERE outcome = 'c'") > 0).then_some(())
    });
    let log = SERVER.log().split_off(already);
    assert!(!log.contains("lock timeout"), "{log}");
}

#[test]
fn a_day_that_cannot_be_dropped_does_not_keep_others() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    let old = make_old(&mut client);
    client.run(&format!("CREATE VIEW mine AS SELECT * FROM {old}"));
    let other = old.replace("0badcafe", "1badcafe");
    client.run(&format!("CREATE TABLE {other} () INHERITS (queue_internal.history)"));
    let mut duty = client_of(&mut client);
    wait::until_true("the other one is dropped", || {
        duty.run("SELECT FROM queue.maintain()");
        !children(&mut client).contains(&other)
    });
    assert_eq!(children(&mut client), std::slice::from_ref(&old));
    client.run("DROP VIEW mine");
    let mut duty = client_of(&mut client);
    wait::until_true("and then this one", || {
        duty.run("SELECT FROM queue.maintain()");
        children(&mut client).is_empty()
    });
}
