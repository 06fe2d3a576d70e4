//! On a phone with 390 pixels no page is cut off at its edge, and all buttons can be reached.

use queue_tests::sql::Sql as _;

use crate::browser::Browser;
use crate::place::{Web, place};
use crate::scene::scene;

/// Finds elements beyond the edge, or in a part that scrolls sideways. A cut text is allowed if it ends in ….
const CUT_OFF: &str = "
    const isShown = (e) => e.checkVisibility() && !e.closest('.hidden, .skip');
    const isCut = (e) => {
      const style = getComputedStyle(e), box = e.getBoundingClientRect();
      if (box.right > innerWidth + 0.5 || box.left < -0.5) return true;
      return style.overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1 && style.textOverflow !== 'ellipsis'
        && !e.matches('input, select, textarea');
    };
    return [...document.querySelectorAll('body *')].filter((e) => isShown(e) && isCut(e))
      .map((e) => `${e.tagName}.${e.getAttribute('class') ?? ''} ${e.textContent.slice(0, 40)}`);";

#[test]
fn nothing_is_cut_off() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let long = "a name of a queue that is longer than any phone is wide, and has no end";
    client.run(&format!(
        "SELECT queue.create('{long}', stages => '{{one stage of it,another}}', max_running => 1000000)"
    ));
    client.run(&format!("SELECT queue.enqueue('{long}', '{{}}')"));
    client.run("SELECT queue.create('wide', max_attempts => 1)");
    client.run(
        "SELECT queue.enqueue('wide', to_jsonb(repeat('x', 300)), unique_key => repeat('k', 150), group_key => 'g')",
    );
    client.run("SELECT queue.fail(id, repeat('unbreakable', 30)) FROM queue.claim('wide', worker => repeat('w', 60))");
    client.run("SELECT queue.enqueue('wide', to_jsonb(repeat('x', 300)))");
    client.run("SELECT FROM queue.claim('wide', worker => repeat('w', 60))");
    let dead: i64 = client.value("SELECT job_id FROM queue.jobs WHERE queue_name = 'wide' AND state = 'dead'");
    // The page with the widest top, which has a badge and buttons.
    for args in [&["--allow-actions"][..], &[]] {
        let web = Web::start(&cluster, args);
        let browser = Browser::open(&web.site(), "#/");
        browser.size(390, 844, true);
        for (page, text) in [
            ("#/".to_owned(), "a name of a queue"),
            ("#/errors".to_owned(), "try again later"),
            ("#/schedules".to_owned(), "Europe/Berlin"),
            ("#/workers".to_owned(), "reporter-1"),
            ("#/topics".to_owned(), "order.*"),
            ("#/doctor".to_owned(), "xmin_horizon"),
            ("#/audit".to_owned(), "What was done"),
            ("#/flows?queue=reports".to_owned(), "1 found"),
            ("#/queue?queue=mail&state=dead".to_owned(), "550 mailbox full"),
            ("#/queue?queue=wide&state=dead".to_owned(), "unbreakable"),
            ("#/queue?queue=wide&state=running".to_owned(), "wwww"),
            ("#/queue?queue=orders".to_owned(), "check → pack → send"),
            (format!("#/job?job={}", scene.running), "58.3 %"),
            (format!("#/job?job={}", scene.flow), "stock"),
            (format!("#/job?job={dead}"), "unbreakable"),
        ] {
            browser.go("#/none");
            browser.go(&page);
            browser.wait_shown(text);
            browser.wait_script("it has looked", "return !document.body.innerText.includes('Looking …')");
            let cut = browser.script(CUT_OFF);
            assert_eq!(cut, serde_json::json!([]), "{page}");
        }
        // The navigation shows its last page.
        assert_eq!(browser.script("return document.querySelector('#nav a:last-child').innerText"), "Audit");
    }
}

#[test]
fn all_buttons_can_be_reached() {
    let (cluster, mut client) = place();
    scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let browser = Browser::open(&web.site(), "#/");
    browser.size(390, 844, true);
    browser.go("#/errors");
    browser.click("//main//tr[contains(., '550 mailbox full')]//button");
    browser.wait_shown("5 jobs.");
    browser.answer("Retry 5");
    browser.wait_shown("5 retried.");
    browser.answer("Close");
    // Each value of a card has its name.
    browser.wait_script(
        "values have names",
        "return [...document.querySelectorAll('main td[data-title]')].some((cell) => getComputedStyle(cell, \
            '::before').content.includes('retrying'))",
    );
}
