//! Takes pictures of each page in `target/tmp/dashboard`, in light and dark and on a phone, for people to look at.
//! `QUEUE_WEB_URL` names another dashboard, such as that of `make web` after an hour. `docs/pictures/dashboard.png` was
//! made in this way.

use std::path::Path;

use crate::browser::Browser;
use crate::place::{Web, place};
use crate::scene::scene;

/// The page does not scroll sideways, even if its tables do.
const FITS: &str = "return document.documentElement.scrollWidth <= window.innerWidth";

/// All figures are shown after the first answer.
const RATES: &str = "return ![...document.querySelectorAll('.tile .big')].some((number) => number.textContent === '')";

#[test]
fn each_page_fits_and_has_its_picture() {
    let (cluster, mut client) = place();
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &["--allow-actions"]);
    let mut pages = vec![
        ("overview", "#/".to_owned(), "Queues"),
        ("errors", "#/errors".to_owned(), "The jobs that died last"),
        ("schedules", "#/schedules".to_owned(), "Europe/Berlin"),
        ("workers", "#/workers".to_owned(), "Executors"),
        ("topics", "#/topics".to_owned(), "Bindings"),
        ("doctor", "#/doctor".to_owned(), "xmin_horizon"),
        ("audit", "#/audit".to_owned(), "What was done"),
    ];
    let site = std::env::var("QUEUE_WEB_URL").unwrap_or_else(|_| {
        pages.push(("queue", "#/queue?queue=mail&state=dead".to_owned(), "550 mailbox full"));
        pages.push(("stages", "#/queue?queue=orders".to_owned(), "check → pack → send"));
        pages.push(("flows", "#/flows?queue=reports".to_owned(), "found"));
        pages.push(("running", format!("#/job?job={}", scene.running), "58.3 %"));
        pages.push(("dead", format!("#/job?job={}", scene.dead), "9007199254740993"));
        pages.push(("flow", format!("#/job?job={}", scene.flow), "stock"));
        web.site()
    });
    let browser = Browser::open(&site, "#/");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
    for (look, width, height, is_dark) in [
        ("light", 1280, 860, false),
        ("dark", 1280, 860, true),
        ("phone", 390, 844, false),
        ("phone-dark", 390, 844, true),
    ] {
        browser.size(width, height, look.starts_with("phone"));
        browser.dark(is_dark);
        for (name, page, text) in &pages {
            browser.go("#/none");
            browser.go(page);
            browser.wait_shown(text);
            browser.wait_script("it has looked", "return !document.body.innerText.includes('Looking …')");
            browser.wait_script("rates are known", RATES);
            browser.wait_script(&format!("{name} fits ({look})"), FITS);
            let file = folder.join(format!("{name}-{look}.png"));
            browser.picture(&file);
            let bytes = std::fs::metadata(&file).expect("the picture").len();
            assert!(bytes > 10_000, "{}: nothing is on it: {bytes} bytes", file.display());
        }
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
