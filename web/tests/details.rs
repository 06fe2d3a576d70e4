//! Pages of one flow, job, queue or worker: why a job is held, which member failed, which jobs wait, how long it took.

use queue_tests::sql::Sql as _;
use queue_tests::wait;

use crate::browser::Browser;
use crate::place::{DATABASE, Web, place};

#[test]
fn a_flow_that_dead_members_hold_says_so() {
    let (cluster, mut client) = place();
    client.run(
        "SELECT queue.create('q', max_attempts => 1), queue.create('flows'), \
        queue.create('late', start_within => '1 ms')",
    );
    let members = "SELECT jsonb_agg(jsonb_build_object('task', 'm' || n)) FROM generate_series(1, 6) AS n";
    let flow: i64 =
        client.value(&format!("SELECT queue.enqueue_flow('q', ({members}), payload => '{{\"report\": 9}}')"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 3)");
    client.run("SELECT queue.fail(id, E'boom\\n  at line 7') FROM queue.claim('q', 2)");
    let tasks =
        "SELECT jsonb_agg(jsonb_build_object('task', 'm' || n, 'queue', 'late')) FROM generate_series(1, 2) AS n";
    let nothing: i64 = client.value(&format!("SELECT queue.enqueue_flow('flows', ({tasks}))"));
    wait::until("nothing of it ran", || (client.state(nothing) == "completed").then_some(()));
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/flows?queue=q");
    browser.wait_shown("by 2 dead, 1 waiting");
    browser.wait_shown("{\"report\": 9}");
    let bars = "return [...document.querySelectorAll('.flowbar rect')].map((e) => \
        `${e.getAttribute('class')} ${Math.round(parseFloat(e.getAttribute('width')))}`).join()";
    assert_eq!(browser.script(bars), "bar completed 50,bar dead 33");
    browser.go("#/flows?queue=flows");
    browser.wait_shown("completed, 0 of 2 ran");
    browser.wait_script("it is not green", "return !document.querySelector('main .badge.completed')");

    browser.go(&format!("#/job?job={flow}"));
    browser.wait_shown("by 2 dead, 1 waiting");
    // Dead members come first. Their traces are hidden.
    let states = "return [...document.querySelectorAll('.kin li .badge')].map((e) => e.innerText).join()";
    assert_eq!(browser.script(states), "dead,dead,ready,completed,completed,completed");
    assert!(!browser.shown().contains("line 7"));
    browser.press("Retry the dead");
    browser.wait_shown("Its 2 dead members run again.");
    browser.answer("Retry the dead");
    browser.wait_closed();
    browser.wait_shown("by 3 waiting");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'q' AND state = 'dead'"), 0);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn an_earlier_error_is_not_shown_as_the_current_one() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 2, backoff_base => '0')");
    let job = client.enqueue("q");
    let trace = "E'KeyError: card\\n  File \"worker.py\", line 12'";
    let failed = client.claim("q");
    client.run(&format!("SELECT queue.fail({failed}, {trace})"));
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=q&state=ready");
    let heads = "return [...document.querySelectorAll('main .panel h2')].map((e) => e.innerText).slice(0, 2).join()";
    let again = client.claim("q");
    client.run(&format!("SELECT queue.complete({again})"));
    browser.go(&format!("#/job?job={job}"));
    browser.wait_shown("Last error, attempt 1");
    assert_eq!(browser.script(heads), "Attempts,Last error, attempt 1");
    assert_eq!(
        browser.script("return document.querySelector('main .primary, main pre.wrong')"),
        serde_json::Value::Null
    );
    // The trace is folded.
    browser.wait_shown("KeyError: card");
    assert!(!browser.shown().contains("line 12"));
    browser.click("//main//summary[normalize-space()='Trace']");
    browser.wait_shown("line 12");
    browser.press("Retry");
    browser.answer("Retry");
    browser.wait_closed();
    for _ in 0..2 {
        let id = client.claim("q");
        client.run(&format!("SELECT queue.fail({id}, {trace})"));
    }
    browser.go("#/none");
    browser.go(&format!("#/job?job={job}"));
    browser.wait_shown("all jobs with this error");
    assert_eq!(browser.script(heads), "Error,Attempts");
    for page in ["#/queue?queue=q&state=dead", "#/errors"] {
        browser.go(page);
        browser.wait_shown("KeyError: card");
        assert!(!browser.shown().contains("line 12"), "{page}");
    }
    // Shows the times that the producer has set.
    let put_off: i64 = client.value(
        "SELECT queue.enqueue('q', unique_key => 'k', delay => '1 day', max_delay => '61 minutes', \
         start_within => '62 minutes')",
    );
    browser.go(&format!("#/job?job={put_off}"));
    browser.wait_shown("01:01:00");
    browser.wait_shown("01:02:00");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn idle_workers_and_queues_without_workers_are_shown() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('served'), queue.create('lonely'), queue.enqueue('lonely')");
    let mut worker = cluster
        .config()
        .dbname(DATABASE)
        .application_name("pg_queue worker node/0.4.0")
        .connect(postgres::NoTls)
        .unwrap();
    let _control = cluster
        .config()
        .dbname(DATABASE)
        .application_name("pg_queue worker node/0.4.0")
        .connect(postgres::NoTls)
        .unwrap();
    let pid = worker.pid();
    let token = worker.cancel_token();
    let sleeper = std::thread::spawn(move || {
        worker.run("SET pg_queue.max_wait = '10 min'");
        drop(worker.batch_execute("SELECT FROM queue.claim('served', wait => '5 minutes')"));
    });
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/workers");
    let row =
        format!("[...document.querySelectorAll('main tr')].find((e) => e.innerText.includes('{pid}'))?.innerText");
    browser.wait_script("it is idle", &format!("return /idle.*node.0\\.4\\.0.*served.*0/s.test({row})"));
    browser.wait_shown("between two claims: pg_queue worker node/0.4.0 (1).");
    browser.go("#/");
    browser.wait_shown("0 busy, 1 idle workers");
    browser.wait_script(
        "a queue without a worker is marked",
        "return [...document.querySelectorAll('main tr')].filter((e) => e.innerText.includes('no worker')).map((e) => \
            e.dataset.id).join() === '[\"lonely\",null]'",
    );
    token.cancel_query(postgres::NoTls).unwrap();
    sleeper.join().unwrap();
    browser.wait_shown("0 busy, 0 idle workers");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn some_jobs_are_ticked_and_changed() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q', to_jsonb(n)) FROM generate_series(1, 5) AS n");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=q&state=ready");
    for job in &jobs[1..3] {
        browser.click(&format!("//main//input[@aria-label='Select {job}']"));
    }
    browser.wait_shown("2 selected");
    browser.press("Cancel these");
    browser.fill("reason", "ticket 9");
    browser.answer("Cancel 2 jobs");
    browser.wait_closed();
    wait::until("they are cancelled", || (client.state(jobs[2]) == "cancelled").then_some(()));
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready'"), 3);
    browser.wait_shown("Undo: retry these");
    browser.wait_script("nothing is ticked", "return !document.body.innerText.includes('selected')");
    browser.go("#/queue?queue=q&state=cancelled");
    browser.click("//main//input[@aria-label='Select all that are shown']");
    browser.wait_shown("2 selected");
    browser.press("Retry these");
    browser.answer("Retry 2 jobs");
    wait::until("they are back", || (client.count("SELECT FROM queue.jobs WHERE state = 'ready'") == 5).then_some(()));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // A viewer without verbs has no checkboxes.
    drop(browser);
    let looks = Web::start(&cluster, &[]);
    let browser = Browser::open(&looks.site(), "#/queue?queue=q&state=ready");
    browser.wait_script("jobs are shown", "return document.querySelectorAll('main table.jobs tbody tr').length === 5");
    assert_eq!(browser.script("return document.querySelectorAll('main [type=checkbox]').length"), 0);
}

#[test]
fn a_queue_shows_its_times_its_stages_and_its_dead_letters() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('bin')");
    client.run("SELECT queue.create('orders', stages => '{check,send}', dead_letter => 'bin')");
    client.run("SELECT queue.enqueue('orders', '{\"to\": \"ada\"}') FROM generate_series(1, 3)");
    client.run("SELECT queue.advance(id) FROM queue.claim('orders', 2)");
    client.run("SELECT queue.schedule('early', 'bin', cron => '0 8 * * *', timezone => 'Asia/Tokyo')");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=orders");
    let rows = |label: &str| {
        format!(
            "return ([...document.querySelectorAll('table')].find((t) => t.querySelector('caption')?.innerText.trim() \
                === '{label}' || t.className === '{label}')?.innerText.replace(/\\s+/g, ' ') ?? '')"
        )
    };
    browser.wait_script("stages have rows", &format!("{}.includes('check 1 0')", rows("rows")));
    browser.wait_script("times are shown", &format!("{}.includes('check: waited')", rows("quantiles")));
    browser.press("Last hour");
    browser.wait_script("of the hour", &format!("{}.includes('the last hour')", rows("quantiles")));
    browser.click("//main//dl//a[normalize-space()='bin']");
    browser.wait_shown("dead letters of orders");
    browser.go("#/");
    browser.wait_script(
        "it is marked",
        "return [...document.querySelectorAll('main tr')].find((e) => e.dataset.id === '[\"bin\",null]') \
            ?.innerText.includes('dead letters')",
    );
    // The search begins with payloads. Slots are in the schedule's time zone.
    browser.go("#/queue?queue=orders&state=ready&field=payload&op=contains&value=ada");
    browser.wait_shown("3 found");
    assert_eq!(browser.script("return document.querySelector('[name=field]').options[0].value"), "payload");
    browser.go("#/schedules");
    browser.wait_shown("Asia/Tokyo");
    let slots = "return [...document.querySelectorAll('.slots time')].map((e) => e.innerText.slice(-5)).join()";
    assert_eq!(browser.script(slots), "08:00,08:00,08:00");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
