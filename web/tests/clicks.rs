//! Each page and each verb in a browser, by mouse and by keyboard alone.

use fantoccini::key::Key;
use queue_tests::sql::Sql as _;
use queue_tests::wait;

use crate::browser::Browser;
use crate::place::{Web, place};
use crate::scene::scene;

#[test]
fn jobs_are_changed_by_clicks() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/");
    let mut until_state = |job: i64, state: &str| {
        wait::until(&format!("{job} is {state}"), || (client.state(job) == state).then_some(()))
    };

    // Goes from the overview to the queue's dead jobs, and to one of them.
    browser.click("//main//a[@class='deadly']");
    browser.wait_shown("550 mailbox full");
    browser.click(&format!("//main//a[normalize-space()='{}']", scene.dead));
    browser.wait_shown("9007199254740993");
    browser.press("Retry");
    browser.answer("Retry");
    until_state(scene.dead, "ready");
    browser.wait_closed();
    browser.press("Set priority");
    browser.fill("priority", "42");
    browser.answer("OK");
    browser.wait_closed();
    browser.press("Cancel");
    browser.fill("reason", "ticket 12");
    browser.answer("Cancel the job");
    until_state(scene.dead, "cancelled");
    browser.wait_shown("ticket 12 (local)");
    browser.press("Forget");
    browser.answer("Erase");
    browser.wait_closed();
    wait::until("it is erased", || {
        browser.shown().contains("9007199254740993").then_some(()).map_or(Some(()), |()| None)
    });

    browser.go(&format!("#/job?job={}", scene.scheduled));
    browser.wait_shown("bob@example.org");
    browser.press("Reschedule");
    browser.find("//dialog[@open]//input[@name='run_at']");
    browser.script("const at = document.querySelector('dialog [name=run_at]'); at.value = '2099-05-06T07:08';");
    browser.answer("OK");
    browser.wait_closed();
    browser.wait_shown("2099");
    browser.press("Run now");
    browser.answer("Run now");
    until_state(scene.scheduled, "ready");

    // A running job is asked to stop. It is ended only after a second click.
    browser.go(&format!("#/job?job={}", scene.running));
    browser.wait_shown("58.3 %");
    browser.wait_shown("extract");
    browser.press("Ask to stop");
    browser.answer("Ask to stop");
    browser.wait_closed();
    browser.press("End now");
    browser.answer("Yes, end it");
    browser.wait_shown(&format!("Really end job {}?", scene.running));
    until_state(scene.running, "running");
    browser.answer("End it now");
    until_state(scene.running, "cancelled");
    browser.go("#/audit");
    browser.wait_shown("forget");
    browser.wait_shown("ticket 12");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn queues_and_schedules_are_changed_by_clicks() {
    let (cluster, mut client) = place();
    scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=mail");
    let is = |client: &mut postgres::Client, what: &str| {
        let sql = format!("SELECT {what} FROM queue.queues WHERE queue_name = 'mail'");
        wait::until(what, || client.value::<bool>(&sql).then_some(()));
    };
    browser.press("Pause");
    browser.answer("Pause");
    is(&mut client, "is_paused");
    browser.press("Resume");
    is(&mut client, "NOT is_paused");
    browser.press("Change");
    browser.fill("max_running", "7");
    browser.fill("max_attempts", "");
    browser.answer("Change");
    is(&mut client, "max_running = 7 AND max_attempts = 20");
    browser.wait_closed();
    // If the server refuses a change, the dialog shows the server's message and stays open.
    browser.press("Change");
    browser.fill("lease", "a while");
    browser.answer("Change");
    browser.wait_shown("invalid input syntax for type interval");
    browser.answer("Cancel");
    browser.press("Enqueue");
    browser.fill("payload", "{\"n\": 12345678901234567890}");
    browser.answer("Enqueue");
    browser.wait_shown("12345678901234567890");
    let count = |client: &mut postgres::Client, state: &str| {
        client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = 'mail' AND state = '{state}'"))
    };

    // Retries the dead jobs of one error on the page of errors.
    browser.go("#/errors");
    browser.click("//main//tr[contains(., '550 mailbox full')]//button");
    browser.wait_shown("5 jobs.");
    browser.answer("Retry 5");
    browser.wait_shown("5 retried.");
    browser.answer("Close");
    assert_eq!(count(&mut client, "dead"), 4);
    // Cancels all waiting jobs and undoes that.
    let waiting = count(&mut client, "ready");
    browser.go("#/queue?queue=mail&state=ready");
    browser.press("Cancel all …");
    browser.fill("reason", "too many");
    browser.answer("Cancel");
    browser.wait_shown("cancelled.");
    browser.answer("Close");
    assert_eq!(count(&mut client, "ready"), 0);
    browser.press("Undo: retry these");
    wait::until("all are back", || (count(&mut client, "ready") == waiting).then_some(()));
    browser.press("Set priority of all …");
    browser.fill("priority", "9");
    browser.answer("Set priority");
    browser.wait_shown("changed.");
    browser.answer("Close");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE priority = 9 AND state = 'ready'"), waiting);

    // Searches, and changes the jobs found.
    browser.fill("value", "connection");
    browser.click("//form[@role='search']//button");
    browser.wait_shown("found");
    browser.go("#/queue?queue=mail&state=dead&field=error&op=starts&value=connection");
    browser.wait_shown("4 found");

    browser.go("#/schedules");
    browser.wait_shown("Europe/Berlin");
    browser.press("Run now");
    browser.answer("Run now");
    wait::until("it has run", || {
        (client.count("SELECT FROM queue.jobs WHERE headers ->> 'schedule' = 'nightly'") == 1).then_some(())
    });
    browser.press("Pause");
    browser.answer("Pause");
    wait::until("it is paused", || client.value::<bool>("SELECT is_paused FROM queue.schedules").then_some(()));
    browser.press("Resume");
    browser.answer("Resume");
    wait::until("it goes on", || (!client.value::<bool>("SELECT is_paused FROM queue.schedules")).then_some(()));
    browser.go("#/queue?queue=mail");
    browser.press("Purge");
    browser.answer("Cancel ");
    browser.wait_shown("cancelled.");
    assert_eq!(count(&mut client, "ready") + count(&mut client, "retrying") + count(&mut client, "scheduled"), 0);
    assert_eq!(browser.complaints().iter().filter(|line| !line.contains("status of 400")).count(), 0);
}

#[test]
fn the_dashboard_can_be_used_by_keyboard_alone() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/");
    browser.wait_shown("reporter-1");
    for (key, title) in [
        ('e', "last died"),
        ('s', "next slots"),
        ('w', "Executors"),
        ('t', "Bindings"),
        ('d', "xmin_horizon"),
        ('a', "What was done"),
        ('o', "Queues"),
    ] {
        browser.keys(&format!("g{key}"));
        browser.wait_shown(title);
    }
    browser.keys("?");
    browser.wait_shown("next row, row before");
    browser.key(Key::Escape);
    browser.wait_closed();
    // Goes to the first queue and to its first job.
    browser.wait_shown("reporter-1");
    browser.keys("j");
    assert_eq!(browser.focus(), "mail");
    browser.keys("j");
    assert_eq!(browser.focus(), "orders / check");
    browser.keys("k");
    browser.key(Key::Enter);
    browser.wait_shown("Settings");
    // Tab leads to the first button, which opens a dialog. The dialog's button then has the focus.
    let tab_to = |label: &str| {
        for _ in 0..80 {
            if browser.focus() == label {
                return;
            }
            browser.key(Key::Tab);
        }
        panic!("Tab does not lead to {label:?}");
    };
    tab_to("Pause");
    browser.key(Key::Enter);
    browser.find("//dialog[@open]");
    tab_to("Pause");
    browser.key(Key::Enter);
    wait::until("it is paused", || {
        client.value::<bool>("SELECT is_paused FROM queue.queues WHERE queue_name = 'mail'").then_some(())
    });
    browser.wait_closed();
    // Goes to a job by its number.
    browser.keys("go");
    browser.wait_shown("reporter-1");
    browser.keys("/");
    browser.keys(&scene.completed.to_string());
    browser.key(Key::Enter);
    browser.wait_shown("4711");
    // A pause stops the page's requests.
    browser.script("document.activeElement.blur()");
    browser.keys("p");
    browser.wait_shown("paused");
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web%' \
        AND query_start > now() - interval '2 seconds'";
    wait::until("nothing is asked", || (client.value::<i64>(sessions) == 0).then_some(()));
    browser.keys("p");
    wait::until("it is live", || browser.shown().contains("live").then_some(()));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_viewer_logs_in_and_out() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada LOGIN PASSWORD 'right'; CREATE ROLE program LOGIN NOINHERIT; GRANT ada TO program");
    client.run("SELECT queue.create('hers'), queue.create('theirs'); SELECT queue.grant('hers', 'ada', 'observe')");
    let hba = cluster.data().join("pg_hba.conf");
    let trusting = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("local all ada scram-sha-256\n{trusting}")).unwrap();
    cluster.reload();
    let web = Web::start(&cluster, &["--database", "user=program dbname=app", "--auth", "password", "--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/");
    browser.wait_shown("with a role of database app");
    browser.fill("user", "ada");
    browser.fill("password", "wrong");
    browser.click("//main//form//button");
    browser.wait_shown("name or password is wrong");
    browser.fill("password", "right");
    browser.click("//main//form//button");
    browser.wait_shown("hers");
    assert!(!browser.shown().contains("theirs"));
    assert_eq!(browser.script("return document.cookie"), "", "no script reads the session");
    browser.click("//header//button[normalize-space()='Log out']");
    browser.wait_shown("with a role of database app");
}

#[test]
fn a_dashboard_without_allow_actions_has_no_buttons_for_verbs() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &["--hide", "payload"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=mail&state=dead");
    browser.wait_shown("550 mailbox full");
    browser.wait_shown("read-only");
    let buttons = "return [...document.querySelectorAll('main button')].filter((b) => b.offsetParent).map((b) => \
        b.innerText).join()";
    assert_eq!(browser.script(buttons), "Last hour,Search");
    assert!(!browser.shown().contains("ada@example.org"));
    browser.go(&format!("#/job?job={}", scene.dead));
    browser.wait_shown("hidden");
    assert_eq!(browser.script(buttons), "");
    browser.go("#/job?job=999999999983");
    browser.wait_shown("there is no job 999999999983");
}
