//! What viewers read first: figures from the start, readable lengths of time, the first tab with jobs, links from an
//! error to its jobs, and a title and an icon that report failing checks.

use queue_tests::sql::Sql as _;
use serde_json::Value;

use crate::browser::Browser;
use crate::place::{Web, place};
use crate::scene::scene;

/// A script that records each text of a figure.
const WATCH: &str = "window.figures = [];
    new MutationObserver(() => { for (const e of document.querySelectorAll('.tile .big, .tab b, main td'))
    figures.push(e.textContent); })
      .observe(document, { childList: true, subtree: true, characterData: true });";

#[test]
fn the_first_figures_are_those_of_the_last_minute() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('warm'), queue.enqueue('warm')");
    client.wait_counted();
    scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/none");
    browser.before_each_page(WATCH);
    for (n, (page, name)) in [
        ("#/", "done a second"),
        ("#/queue?queue=mail", "completed a second"),
        ("#/queue?queue=orders", "stages done a second"),
    ]
    .into_iter()
    .enumerate()
    {
        // On a busy machine the page may take a minute.
        client.run("SELECT queue.complete(id) FROM queue.claim('mail')");
        client.run("SELECT queue.advance(id) FROM queue.claim('orders', stage => 'check')");
        browser.go(&format!("?{n}{page}"));
        browser.wait_shown("last hour");
        let figure = figure_of(name);
        // There is no more activity. The page shows the last minute first, and after some seconds the last seconds.
        browser.wait_script("the last minute is shown", &format!("return parseFloat({figure}) > 0"));
        let seen = browser.script("return [...new Set(figures)]");
        assert!(seen.as_array().unwrap().iter().all(|text| text != "–"), "{page}: {seen}");
        browser.wait_script("the last seconds are shown", &format!("return {figure} === '0'"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// If the server is slow, the page asks it seldom.
#[test]
fn rates_are_current_even_if_the_page_asks_seldom() {
    const ONE_OF_EIGHT: &str = "const Source = window.EventSource;
        window.EventSource = class extends Source {
            addEventListener(type, heard) {
                let looks = 0;
                super.addEventListener(type, (event) => {
                    if (type !== 'overview' || looks++ % 8 === 0) heard(event);
                });
            }
        };";
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 500)");
    client.wait_counted();
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/none");
    browser.before_each_page(ONE_OF_EIGHT);
    browser.go("?rare#/");
    browser.wait_shown("last hour");
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 500)");
    let figure = format!("parseFloat({})", figure_of("completed a second"));
    browser.wait_script("the rate is shown", &format!("return {figure} > 0"));
    browser.wait_script("the rate of the last seconds is shown", &format!("return {figure} === 0"));
}

/// Returns the script that reads the large figure of a tile.
fn figure_of(tile: &str) -> String {
    format!(
        "[...document.querySelectorAll('.tile')].find((tile) => \
            tile.innerText.startsWith('{tile}'))?.querySelector('.big').textContent"
    )
}

#[test]
fn stages_are_told_apart_from_jobs() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('plain'), queue.enqueue('plain')");
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/");
    browser.wait_shown("completed a second");
    client.run("SELECT queue.create('staged', stages => '{a,b}')");
    client.wait_counted();
    client.run("SELECT queue.enqueue('staged') FROM generate_series(1, 3)");
    client.run("SELECT queue.advance(id) FROM queue.claim('staged', 3)");
    browser.go("#/queue?queue=staged");
    browser.wait_shown("stages done a second");
    browser.wait_shown("stages done 3");
    browser.go("#/");
    browser.wait_shown("done a second");
    browser.wait_shown("jobs and stages done 3");
    // Each stage with activity has a chart of its own.
    let sparks = "return [...document.querySelectorAll('main tr')].filter((row) => /^staged/.test(row.innerText) && \
        row.querySelector('.spark')).length";
    browser.wait_script("each stage has its hour", &format!("{sparks} === 1"));
    client.run("SELECT queue.complete(id) FROM queue.claim('staged', 3, stage => 'b')");
    browser.go("?again#/");
    browser.wait_script("each stage has its hour", &format!("{sparks} === 2"));
}

#[test]
fn lengths_of_time_are_shown_in_readable_form() {
    let (cluster, mut client) = place();
    client.run(
        "SELECT queue.create('q', backoff_base => '3 s', rate_limit => 7, rate_period => '90 s', retention => '-1')",
    );
    client.run("SELECT queue.schedule('often', 'q', every => '1 hour')");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/queue?queue=q");
    for text in ["5 min", "3 s to 1 day", "7 in 1 min 30 s", "for ever; dead 90 days"] {
        browser.wait_shown(text);
    }
    // An interval of PostgreSQL has seconds after its minutes; a time of day on the page has none.
    let intervals = browser.script("return (document.body.innerText.match(/\\d+:\\d\\d:\\d\\d/g) ?? []).join()");
    assert_eq!(intervals, "");
    // Viewers type intervals in the same form.
    browser.press("Change");
    browser.wait_script("it is there", "return document.querySelector('dialog [name=lease]')?.value === '5 min'");
    assert_eq!(browser.script("return document.querySelector('dialog [name=retention]').value"), "-1");
    browser.fill("lease", "2 min 30 s");
    browser.fill("rate_cost", "$.headers.tokens");
    browser.fill("fair_share", "jobs");
    browser.answer("Change");
    browser.wait_closed();
    browser.wait_shown("2 min 30 s");
    let kept: String =
        client.value("SELECT concat_ws(' ', lease, retention, rate_period, rate_cost, fair_share) FROM queue.queues");
    assert_eq!(kept, "00:02:30 -00:00:01 00:01:30 $.headers.tokens jobs");
    browser.go("#/schedules");
    browser.wait_shown("every 1 h");
}

#[test]
fn a_tab_with_jobs_opens() {
    let (cluster, mut client) = place();
    scene(&mut client);
    client.run("SELECT queue.create('bad', max_attempts => 1), queue.create('empty')");
    client.run("SELECT queue.enqueue('bad') FROM generate_series(1, 13)");
    client.run("SELECT queue.fail(id, 'no way') FROM queue.claim('bad', 13)");
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/queue?queue=bad");
    let open = |browser: &Browser| {
        browser.script("return document.querySelector('.tab[aria-current]')?.innerText.split('\\n')[0].trim()")
    };
    browser.wait_shown("no way");
    assert_eq!(open(&browser), "dead");
    for (queue, tab) in [("mail", "ready"), ("empty", "ready")] {
        browser.go(&format!("#/queue?queue={queue}"));
        browser.wait_script("a tab is open", "return Boolean(document.querySelector('.tab[aria-current]'))");
        assert_eq!(open(&browser), tab, "{queue}");
    }
    // The tab of the address opens even if it is empty.
    browser.go("#/queue?queue=bad&state=ready");
    browser.wait_shown("No ready jobs.");
    assert_eq!(open(&browser), "ready");
}

#[test]
fn an_error_leads_to_its_jobs() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/errors");
    browser.click("//main//tr[contains(., '550 mailbox full')]//td[@data-title='dead']//a");
    browser.wait_shown("5 found");
    browser.go("#/errors");
    browser.click("//main//tr[contains(., 'try again later')]//td[@data-title='retrying']//a");
    browser.wait_shown("9 found");
    browser.go("#/errors");
    browser.click("//main//a[normalize-space()='connection refused']");
    browser.wait_shown("4 found");
    browser.go(&format!("#/job?job={}", scene.dead));
    browser.click("//main//a[normalize-space()='all jobs with this error']");
    browser.wait_shown("5 found");
}

#[test]
fn title_and_icon_report_failing_checks() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let web = Web::start(&cluster, &[]);
    let browser = Browser::open(&web.site(), "#/doctor");
    browser.wait_shown("xmin_horizon");
    let tab = |browser: &Browser| -> (String, String) {
        let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
        let icon = browser.script("return document.querySelector('link[rel=icon]').getAttribute('href')");
        (text(browser.script("return document.title")), text(icon))
    };
    assert_eq!(tab(&browser), ("Doctor · app · pg_queue".to_owned(), "assets/icon.svg".to_owned()));
    client.run("CREATE ROLE lost; SELECT queue.grant('q', 'lost', 'observe'); ALTER ROLE lost RENAME TO found");
    browser.go("?again#/errors");
    browser.wait_script("the title says so", "return document.title.startsWith('⚠')");
    let told = ("⚠ 1 check not well · Errors · app · pg_queue".to_owned(), "assets/icon-ill.svg".to_owned());
    assert_eq!(tab(&browser), told);
    assert!(web.get("/assets/icon-ill.svg").body.contains("<svg"));
    // Each page marks a failing check of the doctor, and the overview names the check.
    browser.wait_script("the navigation says so", "return document.querySelector('#nav .sick').innerText === '1'");
    browser.go("#/");
    browser.wait_shown("One check of the doctor is not well");
    browser.wait_shown("roles");
    client.run("SELECT queue.revoke('q', 'lost', 'observe')");
    browser.go("?well#/");
    browser.wait_shown("No worker has a job or waits for one.");
    browser.wait_script(
        "all is well",
        "return !document.title.startsWith('⚠') && document.querySelector('#nav .sick').hidden",
    );
    // The title also reports a database that does not answer.
    cluster.stop_fast();
    browser.wait_script("the title says so", "return document.title.startsWith('⚠ no answer')");
    assert_eq!(tab(&browser).1, "assets/icon-ill.svg");
}
