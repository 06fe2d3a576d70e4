//! Runs `docs/recipes/queue-top.sql` without its last line, which would never end.

use queue_tests::Cluster;

use crate::read;

#[test]
fn queue_top_shows_rates_in_its_second_output() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    for sql in [
        "SELECT queue.create('mail'), queue.create('video', stages => '{fetch, encode}')",
        "SELECT queue.enqueue('mail'), queue.enqueue('mail'), queue.enqueue('mail'), queue.enqueue('video')",
        r"SELECT queue.fail(id, E'no route\n\x1b[31mto host', fatal => true) FROM queue.claim('mail')",
        "SELECT id FROM queue.claim('mail', worker => 'mailer 1')",
    ] {
        client.batch_execute(sql).unwrap();
    }
    let script = read("docs/recipes/queue-top.sql");
    let (once, _) = script.split_once("\\watch :seconds").expect("the last line looks again and again");
    // `\g` alone repeats the statement.
    let looks = cluster.psql_in("app", &format!("\\set errors 5\n{once}\\g\nSELECT pg_sleep(0.1);\n{once}\\g\n"));
    let looks: Vec<Vec<&str>> = looks.split("\x1b[H\x1b[2J").skip(1).map(|look| look.lines().collect()).collect();
    assert_eq!(looks.len(), 2, "{looks:?}");
    for (look, rate) in looks.iter().zip(["-", "0.0"]) {
        let words = |head: &str| -> Vec<&str> {
            let line = look.iter().find(|line| line.starts_with(head));
            line.unwrap_or_else(|| panic!("{head}: {look:?}")).split_whitespace().collect()
        };
        assert_eq!(words("mail ")[1..9], ["1", "1", "0", "0", "1", rate, rate, rate], "{look:?}");
        assert_eq!(words("video / fetch")[3..5], ["1", "0"], "{look:?}");
        assert_eq!(words("mailer 1")[2], "mail", "{look:?}");
        assert!(
            look.iter().any(|line| line.starts_with("mail ") && line.ends_with("no route  [31mto host")),
            "{look:?}"
        );
    }
}
