//! `CALL queue.wait`: its answer, how it sleeps, where it refuses to run.

use crate::shared::*;

#[test]
fn wait_says_whether_there_is_a_job() {
    let (mut client, q) = queue("");
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '20 ms')")));
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '0')")));
    client.enqueue(&q);
    for _ in 0..2 {
        assert!(client.value::<bool>(&format!("CALL queue.wait('{q}')")));
    }
    client.run(&format!("SELECT queue.pause('{q}')"));
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '20 ms')")));
    client.run(&format!("SELECT queue.resume('{q}')"));
    client.claim(&q);
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '20 ms')")));
    client.run(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    assert!(!client.value::<bool>(&format!("CALL queue.wait('{q}', '20 ms')")));
    for (call, code) in [
        (format!("CALL queue.wait('{q}', '-1 s')"), "22023"),
        ("CALL queue.wait('nowhere')".to_owned(), "42704"),
        ("CALL queue.wait(NULL)".to_owned(), "22004"),
    ] {
        client.refused(&call, code);
    }
}

#[test]
fn wait_sleeps_without_snapshot_and_lock_and_is_woken() {
    let (mut client, q) = queue("");
    let mut other = connect();
    other.run("SET pg_queue.max_wait = '1min'");
    let pid = other.pid();
    let sql = format!("CALL queue.wait('{q}', '1 minute')");
    let thread = std::thread::spawn(move || {
        let woken = other.value::<bool>(&sql);
        // The session still works.
        (woken, other.value::<i64>("SELECT count(*) FROM pg_class") > 0)
    });
    wait_asleep(&mut client, pid);
    let holds: bool = client.value(&format!(
        "SELECT backend_xmin IS NOT NULL OR backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = {pid}"
    ));
    assert!(!holds, "a snapshot");
    let locks: i64 =
        client.value(&format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND locktype <> 'virtualxid'"));
    assert_eq!(locks, 0);
    client.enqueue(&q);
    assert_eq!(thread.join().unwrap(), (true, true));
}

#[test]
fn wait_refuses_transaction_blocks_and_functions() {
    let (mut client, q) = queue("");
    client.run("BEGIN");
    client.refused(&format!("CALL queue.wait('{q}')"), "25001");
    client.run("ROLLBACK");
    client.run(&format!(
        "CREATE FUNCTION waiting_{q}() RETURNS boolean LANGUAGE plpgsql AS
         'DECLARE has boolean; BEGIN CALL queue.wait(''{q}'', ''10 ms'', has); RETURN has; END'"
    ));
    client.refused(&format!("SELECT waiting_{q}()"), "25001");
}

#[test]
fn wait_works_in_procedures_and_blocks_of_code() {
    let (mut client, q) = queue("");
    client.run(&format!("CREATE TABLE log_{q} (has boolean)"));
    let body = format!(
        "DECLARE has boolean;
         BEGIN
             FOR i IN 1..3 LOOP
                 CALL queue.wait('{q}', '10 ms', has);
                 INSERT INTO log_{q} VALUES (has);
                 COMMIT;
                 PERFORM queue.enqueue('{q}');
                 COMMIT;
             END LOOP;
             BEGIN
                 CALL queue.wait('{q}', '10 ms', has);
                 INSERT INTO log_{q} VALUES (has);
             EXCEPTION WHEN active_sql_transaction THEN
                 PERFORM count(*) FROM queue.jobs;
             END;
         END"
    );
    client.run(&format!("DO $$ {body} $$"));
    client.run(&format!("CREATE PROCEDURE p_{q}() LANGUAGE plpgsql AS $$ {body} $$"));
    client.run(&format!("CALL p_{q}()"));
    let said: Vec<bool> = client.column(&format!("SELECT has FROM log_{q}"));
    assert_eq!(said, [false, true, true, true, true, true]);
}
