//! Hundreds of names and texts that look like markup, scripts or addresses, in each field that users can fill. The page
//! must show them as text.

use queue_tests::sql::Sql as _;
use queue_tests::wait;
use serde_json::json;

use crate::browser::Browser;
use crate::place::{Web, encoded, place};

/// The page sets this if one of the texts runs as a script.
const RAN: &str = "window.ran=1";

/// Returns elements, texts that end their context, and texts that begin markup.
fn strange() -> Vec<String> {
    let before = [
        "",
        "\"",
        "'",
        "\">",
        "'>",
        "</td>",
        "</script>",
        "-->",
        "]]>",
        "</title>",
        "</textarea>",
        "</style>",
        "`",
        "{{",
        "\\\"",
        "%22%3E",
        "&quot;&gt;",
        "\u{0}",
    ];
    let inside = [
        "<script>RAN</script>",
        "<img src=x onerror=RAN>",
        "<svg onload=RAN>",
        "<svg><script>RAN</script></svg>",
        "<body onload=RAN>",
        "<iframe srcdoc='<script>parent.RAN</script>'>",
        "<iframe src=javascript:RAN>",
        "<a href=javascript:RAN autofocus onfocus=RAN>x</a>",
        "<input autofocus onfocus=RAN>",
        "<details open ontoggle=RAN>",
        "<video><source onerror=RAN>",
        "<math><mi xlink:href=javascript:RAN>",
        "<object data=javascript:RAN>",
        "<embed src=javascript:RAN>",
        "<link rel=stylesheet href=//evil.example>",
        "<base href=//evil.example/>",
        "<meta http-equiv=refresh content='0;javascript:RAN'>",
        "<form action=javascript:RAN><button>",
        "<style>@import '//evil.example'</style>",
        "<x onpointerenter=RAN>",
        " onmouseover=RAN x=",
        "javascript:RAN",
        "${RAN}",
        "<marquee onstart=RAN>",
        "<img src=x:x onerror=eval(atob('d2luZG93LnJhbj0x'))>",
        "&lt;script&gt;RAN&lt;/script&gt;",
        "<ScRiPt>RAN</sCrIpT>",
        "<script\u{b}>RAN</script>",
    ];
    let before = before.iter().filter(|text| !text.contains('\0'));
    let all: Vec<String> =
        before.flat_map(|b| inside.iter().map(move |i| format!("{b}{}", i.replace("RAN", RAN)))).collect();
    assert!(all.len() >= 470, "{}", all.len());
    // Characters that turn or break lines.
    let more = [
        "\u{202e}gnp.exe",
        "a\nb\tc\u{7}",
        "\u{feff}\u{200b}",
        "__proto__",
        "constructor",
        "'; DROP TABLE jobs; --",
        "../../api/act/pause",
        "%00%0d%0aSet-Cookie: a=b",
    ];
    all.into_iter().chain(more.map(str::to_owned)).collect()
}

/// True if no text has become markup or a script.
const CLEAN: &str = "return window.ran === undefined && document.scripts.length === 1
    && !document.querySelector('img, iframe, object, embed, base, video, marquee, math, details:not(.trace), \
        main style, main link, main meta, main [onload], main [onerror], main [onfocus]')
    && [...document.links].every((a) => a.protocol === location.protocol && a.host === location.host)";

#[test]
fn no_text_becomes_markup() {
    let (cluster, mut client) = place();
    let all = strange();
    client.run("SELECT queue.create('q', max_attempts => 5), queue.create('names', max_attempts => 1)");
    let mut jobs = Vec::new();
    for text in &all {
        let text = text.as_str();
        let row = client
            .query_one(
                "SELECT queue.enqueue('q', jsonb_build_object($1::text, $1::text), unique_key => $1, group_key => $1, \
                    headers => jsonb_build_object($1::text, $1::text))",
                &[&text],
            )
            .expect("a job");
        jobs.push(row.get::<_, i64>(0));
        client
            .execute(
                "SELECT queue.step_done(id, $1, to_jsonb($1::text)), queue.progress(id, to_jsonb($1::text)), \
                queue.fail(id, $1, fatal => true) FROM queue.claim('q', worker => $1)",
                &[&text],
            )
            .expect("an attempt");
        client.execute("SELECT queue.enqueue('names', to_jsonb($1::text))", &[&text]).expect("a job");
        client.execute("SELECT FROM queue.claim('names', worker => $1)", &[&text]).expect("a worker");
    }
    // Some of the texts are names of queues, stages, schedules and topics.
    let mut names: Vec<String> = Vec::new();
    for text in all.iter().step_by(17) {
        let name: String = text.chars().take(180).collect();
        client.execute("SELECT queue.create($1, stages => ARRAY[$1, 'two'])", &[&name]).expect("a queue");
        client
            .execute("SELECT queue.schedule($1, $1, to_jsonb($1::text), every => '1 hour')", &[&name])
            .expect("a schedule");
        client.execute("SELECT queue.create_topic('t ' || $1)", &[&name]).expect("a topic");
        client
            .execute("SELECT queue.bind('t ' || $1, 'q', '#', filter => '$.key == \"x\"')", &[&name])
            .expect("a binding");
        names.push(name);
    }
    let web = Web::start(&cluster, &["--allow-actions"]);
    for text in all.iter().step_by(40) {
        drop(web.act("pause_schedule", &json!({ "schedule": text, "reason": text }), &[]));
    }
    let browser = Browser::open(&web.site(), "#/");
    let name = &names[3];
    browser.wait_shown(name);
    let mut pages: Vec<String> = ["", "errors", "schedules", "workers", "flows?queue=q", "topics", "doctor", "audit"]
        .iter()
        .map(|page| format!("#/{page}"))
        .collect();
    pages.push("#/queue?queue=q&state=dead".to_owned());
    pages.push("#/queue?queue=names&state=running".to_owned());
    for name in names.iter().step_by(7) {
        pages.push(format!("#/queue?queue={}", encoded(name)));
        pages.push(format!("#/queue?queue=q&field=error&op=equals&value={}", encoded(name)));
    }
    for job in jobs.iter().step_by(45) {
        pages.push(format!("#/job?job={job}"));
    }
    // An address is also a text from outside.
    for text in all.iter().step_by(90) {
        pages.push(format!("#/{}", encoded(text)));
        pages.push(format!("#/job?job={}", encoded(text)));
    }
    for page in &pages {
        browser.go(page);
        browser.wait_script("it has looked", "return !document.body.innerText.includes('Looking …')");
        browser.wait_script(&format!("{page} is clean"), CLEAN);
    }
    // The page shows all 50 texts unchanged, and in full where the cell has room.
    browser.go("#/queue?queue=q&state=dead");
    let shown = wait::until("the list is there", || {
        let rows = browser.script("return [...document.querySelectorAll('td.wrong')].map((cell) => cell.textContent)");
        rows.as_array().filter(|rows| rows.len() == 50).cloned()
    });
    for cell in &shown {
        // A list shows the first line of an error.
        assert!(all.iter().filter_map(|text| text.split('\n').next()).any(|text| cell == text), "{cell}");
    }
    // The policy has blocked nothing. A blocked script would be a fault of the page.
    let complaints: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|line| !line.contains("status of 400") && !line.contains("status of 404"))
        .collect();
    assert_eq!(complaints, Vec::<String>::new());
}
