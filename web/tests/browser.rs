//! A browser: Debian's chromium, without a window, driven by chromium-driver. `pgrx-tests/scripts/prepare-web` installs
//! both.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use fantoccini::key::Key;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use queue_tests::wait;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// How long something may take to appear. Only a failing test waits this long. On a busy machine a query may take 2 s,
/// and the page then rests for 98 s.
const PATIENCE: Duration = Duration::from_secs(150);

pub struct Browser {
    driver: Child,
    /// The browser's own files. Each browser begins with an empty folder and removes it.
    profile: PathBuf,
    runtime: Runtime,
    client: Client,
    site: String,
}

/// A command that only chromium-driver has.
#[derive(Debug)]
struct Chromium(&'static str, Value);

impl WebDriverCompatibleCommand for Chromium {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

/// Starts chromedriver. Returns the process, its port and the rest of its output.
fn start_driver() -> Option<(Child, u16, Lines<BufReader<ChildStdout>>)> {
    let mut driver = Command::new("chromedriver")
        .args(["--port=0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver, which pgrx-tests/scripts/prepare-web installs");
    let mut said = BufReader::new(driver.stdout.take().expect("what it says")).lines();
    let port = said.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse::<u16>().ok()
    });
    if port.is_none() {
        driver.wait().expect("the end of chromedriver");
    }
    Some((driver, port?, said))
}

impl Browser {
    /// Opens a page of a dashboard.
    pub fn open(site: &str, page: &str) -> Self {
        let profile = std::env::temp_dir().join(format!(
            "pg_queue-browser-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&profile).expect("a folder for the browser");
        // chromedriver picks a port that is free for IPv6. If the port is in use for IPv4, chromedriver ends.
        let (driver, port, said) = (0..10).find_map(|_| start_driver()).expect("the port of chromedriver");
        // Reads the rest of its output, so that it never blocks.
        std::thread::spawn(move || said.for_each(drop));
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--lang=en",
            &format!("--user-data-dir={}", profile.display()),
        ]
        .map(str::to_owned);
        let wanted = json!({ "goog:chromeOptions": { "args": args }, "goog:loggingPrefs": { "browser": "ALL" } });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
            builder.capabilities(wanted.as_object().expect("an object").clone());
            builder.connect(&format!("http://127.0.0.1:{port}")).await
        });
        let client = client.expect("chromium");
        let browser = Self { driver, profile, runtime, client, site: site.to_owned() };
        browser.size(1280, 860, false);
        browser.go(page);
        browser
    }

    fn run<T>(&self, what: impl Future<Output = Result<T, CmdError>>) -> T {
        self.runtime.block_on(what).unwrap_or_else(|e| panic!("{e:?}\n{}", self.shown()))
    }

    fn chromium(&self, command: &'static str, body: Value) -> Value {
        self.run(self.client.issue_cmd(Chromium(command, body)))
    }

    fn protocol(&self, method: &str, params: &Value) {
        self.chromium("goog/cdp/execute", json!({ "cmd": method, "params": params }));
    }

    pub fn size(&self, width: u32, height: u32, is_phone: bool) {
        self.protocol(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone }),
        );
    }

    pub fn dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        self.protocol(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] }),
        );
    }

    /// Goes to a page, such as `#/errors`, as if its address were typed.
    pub fn go(&self, page: &str) {
        self.run(self.client.goto(&format!("{}{page}", self.site)));
    }

    /// Makes the browser run a script before those of each page that is loaded later.
    pub fn before_each_page(&self, script: &str) {
        self.protocol("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": script }));
    }

    /// Returns the text of the page.
    pub fn shown(&self) -> String {
        let text = self.runtime.block_on(self.client.execute("return document.body.innerText", vec![]));
        text.ok().and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    }

    pub fn script(&self, script: &str) -> Value {
        self.run(self.client.execute(script, vec![]))
    }

    /// Waits until the page shows this text.
    pub fn wait_shown(&self, text: &str) {
        self.wait(&format!("the page shows {text:?}"), || self.shown().contains(text));
    }

    pub fn wait_script(&self, what: &str, script: &str) {
        self.wait(what, || self.script(script) == true);
    }

    /// Waits for a condition. A failure shows the page's text and its complaints.
    fn wait(&self, what: &str, fact: impl Fn() -> bool) {
        let seen = || format!("The page shows:\n{}\nComplaints: {:?}", self.shown(), self.complaints());
        wait::within_or_say(what, PATIENCE, || fact().then_some(()), seen);
    }

    /// Waits for an element.
    pub fn find(&self, xpath: &str) -> Element {
        let found = self.client.wait().at_most(PATIENCE).for_element(Locator::XPath(xpath));
        self.runtime.block_on(found).unwrap_or_else(|e| panic!("{xpath}: {e:?}\n{}", self.shown()))
    }

    /// Clicks the element as soon as it can be clicked.
    pub fn click(&self, xpath: &str) {
        wait::within(&format!("{xpath} can be clicked"), PATIENCE, || {
            self.runtime.block_on(self.find(xpath).click()).ok()
        });
    }

    /// Clicks a button of the page.
    pub fn press(&self, label: &str) {
        self.click(&format!("//main//button[normalize-space()={}]", quoted(label)));
    }

    /// Clicks a button of the dialog.
    pub fn answer(&self, label: &str) {
        self.click(&format!(
            "//dialog[@open]//button[starts-with(normalize-space(), {})][not(@disabled)]",
            quoted(label)
        ));
    }

    /// Fills a field of the dialog or of the page. Starts again if the page redraws it meanwhile.
    pub fn fill(&self, name: &str, text: &str) {
        let path = format!("//*[@name={}]", quoted(name));
        wait::within(&format!("{path} can be filled"), PATIENCE, || {
            let field = self.find(&path);
            self.runtime
                .block_on(async {
                    field.clear().await?;
                    field.send_keys(text).await
                })
                .ok()
        });
    }

    /// Waits until no dialog is open.
    pub fn wait_closed(&self) {
        self.wait_script("the dialog is closed", "return !document.querySelector('dialog[open]')");
    }

    /// Presses keys as a person does. Each key goes to the element that has the focus at that moment. If the element
    /// were looked up first, the page could redraw before the key comes.
    pub fn keys(&self, keys: &str) {
        let keys = keys.chars().fold(KeyActions::new("keyboard".to_owned()), |keys, value| {
            keys.then(KeyAction::Down { value }).then(KeyAction::Up { value })
        });
        self.run(self.client.perform_actions(keys));
    }

    pub fn key(&self, key: Key) {
        self.keys(&String::from(char::from(key)));
    }

    /// Returns the name of the focused element, as people would call it.
    pub fn focus(&self) -> String {
        self.script(
            "return document.activeElement.innerText || document.activeElement.name || document.activeElement.tagName",
        )
        .as_str()
        .unwrap_or_default()
        .to_owned()
    }

    /// Returns the browser's complaints since the last call.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.chromium("se/log", json!({ "type": "browser" }));
        let lines = log.as_array().cloned().unwrap_or_default();
        lines.iter().filter(|line| line["level"] == "SEVERE").map(|line| line["message"].to_string()).collect()
    }

    pub fn picture(&self, file: &Path) {
        let png = self.run(self.client.screenshot());
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder for pictures");
        std::fs::write(file, png).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.runtime.block_on(self.client.clone().close()));
        drop(self.driver.kill());
        drop(self.driver.wait());
        drop(std::fs::remove_dir_all(&self.profile));
    }
}

/// Returns the text as a string of XPath.
fn quoted(text: &str) -> String {
    assert!(!text.contains('\''), "{text}");
    format!("'{text}'")
}
