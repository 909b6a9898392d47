//! A browser that tests drive: Chromium by chromedriver, with the few commands of the WebDriver protocol that are needed here.
//!
//! It runs in a network namespace that contains only the server, so that a page that needs other servers cannot work.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ferroute_testing::NetNs;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The name under which the protocol returns an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The port of chromedriver. Each namespace has its own.
const PORT: u16 = 9515;

/// Maximum time of each wait, which is generous because tests run on busy machines.
const LIMIT: Duration = Duration::from_secs(60);

/// The keys that tests press, in the protocol's encoding.
pub(crate) const ARROW_RIGHT: &str = "\u{e014}";
pub(crate) const ARROW_LEFT: &str = "\u{e012}";
pub(crate) const ARROW_DOWN: &str = "\u{e015}";
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const TAB: &str = "\u{e004}";

/// A browser with one page. It ends when it is dropped.
pub(crate) struct Browser<'a> {
    namespace: &'a NetNs,
    driver: Child,
    session: String,
    /// Files of the browser, which are deleted after it has ended.
    _files: TempDir,
}

impl<'a> Browser<'a> {
    /// Starts a browser whose user prefers this language.
    #[track_caller]
    pub(crate) fn start(namespace: &'a NetNs, language: &str) -> Self {
        let mut command = Command::new("chromedriver");
        let files = tempfile::tempdir().unwrap();
        command.arg(format!("--port={PORT}")).env("TMPDIR", files.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = namespace.run(|| command.spawn()).expect("this test requires chromedriver (make test-ui)");
        let mut browser = Self { namespace, driver, session: String::new(), _files: files };
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"];
        let options = json!({ "args": arguments, "prefs": { "intl.accept_languages": language } });
        let wanted = json!({
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let body = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.poll("a session", |browser| browser.request("POST", "/session", &body).ok());
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser.resize(1400, 900);
        browser
    }

    /// Sends a command to chromedriver and returns its value.
    fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let error = |error: io::Error| format!("chromedriver: {error}");
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let mut stream = self.namespace.run(|| TcpStream::connect(at)).map_err(error)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(error)?;
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {}", body.len());
        write!(stream, "{head}\r\n\r\n{body}").map_err(error)?;
        let body = read_body(BufReader::new(stream)).map_err(error)?;
        let value: Value = serde_json::from_slice(&body).map_err(|error| format!("chromedriver: {error}"))?;
        match value["value"]["error"].as_str() {
            Some(kind) => Err(format!("{kind}: {}", value["value"]["message"])),
            None => Ok(value["value"].clone()),
        }
    }

    fn session(&self, command: &str, body: &Value) -> Result<Value, String> {
        self.request("POST", &format!("/session/{}/{command}", self.session), body)
    }

    #[track_caller]
    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.session("goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).unwrap()
    }

    /// Polls until there is a value.
    #[track_caller]
    fn poll<T>(&self, what: &str, poll: impl Fn(&Self) -> Option<T>) -> T {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(value) = poll(self) {
                return value;
            }
            if Instant::now() > end {
                let page = self.try_run("return document.body.innerText").unwrap_or_default();
                panic!("no {what} at {:?} in:\n{page}\n{:?}", self.try_run("return location.href"), self.console());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sets the size of the page.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets whether the user prefers a dark page.
    pub(crate) fn prefer_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Opens an address.
    #[track_caller]
    pub(crate) fn open(&self, url: &str) {
        self.session("url", &json!({ "url": url })).unwrap();
    }

    /// Loads the page again.
    #[track_caller]
    pub(crate) fn reload(&self) {
        self.session("refresh", &json!({})).unwrap();
    }

    fn try_run(&self, script: &str) -> Result<Value, String> {
        self.session("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script in the page and returns its result.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Value {
        self.try_run(script).unwrap()
    }

    /// Waits until the result of a script is not null, false, 0 or the empty string.
    #[track_caller]
    pub(crate) fn wait_for(&self, script: &str) -> Value {
        let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != 0;
        self.poll(script, |browser| browser.try_run(script).ok().filter(is_set))
    }

    /// Waits until an element contains a text, and returns all its text.
    #[track_caller]
    pub(crate) fn wait_text(&self, selector: &str, text: &str) -> String {
        let (selector, text) = (json!(selector), json!(text));
        let script = format!(
            "const all = [...document.querySelectorAll({selector})].map((one) => one.innerText).join('\\n'); \
             return all.includes({text}) && all"
        );
        self.wait_for(&script).as_str().unwrap().to_owned()
    }

    /// Returns the number of elements.
    #[track_caller]
    pub(crate) fn count(&self, selector: &str) -> u64 {
        self.run(&format!("return document.querySelectorAll({}).length", json!(selector))).as_u64().unwrap()
    }

    /// Waits for an element, and performs a command on it. It is looked up again if the page was drawn again in the
    /// meantime.
    #[track_caller]
    fn element(&self, selector: &str, command: &str, body: &Value) {
        self.poll(&format!("{command} of {selector}"), |browser| {
            let found = browser.session("element", &json!({ "using": "css selector", "value": selector })).ok()?;
            let id = found[ELEMENT].as_str()?;
            browser.session(&format!("element/{id}/{command}"), body).ok()
        });
    }

    /// Clicks an element like a user: it must be visible, and must not be covered.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.element(selector, "click", &json!({}));
    }

    /// Unfolds an element `details`. Its summary moves while answers are drawn above it, so a click of a user may miss it.
    #[track_caller]
    pub(crate) fn unfold(&self, selector: &str) {
        self.wait_for(&format!(
            "const details = document.querySelector({});
             if (details && !details.open) details.querySelector('summary').click();
             return details?.open",
            json!(selector)
        ));
    }

    /// Types into an element.
    #[track_caller]
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        self.element(selector, "value", &json!({ "text": text }));
    }

    /// Replaces the text of a field.
    #[track_caller]
    pub(crate) fn enter(&self, selector: &str, text: &str) {
        self.element(selector, "clear", &json!({}));
        self.type_into(selector, text);
    }

    /// Keeps a picture of the page for people to look at.
    #[track_caller]
    pub(crate) fn keep_picture(&self, name: &str) {
        let picture = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        let decoded = decode_base64(picture["data"].as_str().unwrap());
        let directory = pictures();
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{name}.png")), decoded).unwrap();
    }

    /// Returns the errors and warnings in the browser's console.
    fn console(&self) -> Vec<String> {
        let entries = self.session("se/log", &json!({ "type": "browser" })).unwrap_or_default();
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().filter(|entry| entry["level"] != "INFO").map(|entry| entry["message"].to_string()).collect()
    }

    /// Asserts that the browser has reported no error, except those that contain this text, and that all requests were sent to
    /// the server.
    #[track_caller]
    pub(crate) fn assert_clean(&self, url: &str, expected: Option<&str>) {
        let errors: Vec<_> =
            self.console().into_iter().filter(|error| expected.is_none_or(|text| !error.contains(text))).collect();
        assert_eq!(errors, Vec::<String>::new());
        let origin = url.split_once('#').map_or(url, |(origin, _)| origin);
        let entries = self.session("se/log", &json!({ "type": "performance" })).unwrap();
        let messages = entries.as_array().unwrap().iter().map(|entry| entry["message"].as_str().unwrap());
        let messages = messages.map(|message| serde_json::from_str::<Value>(message).unwrap()["message"].clone());
        let requests: Vec<String> = messages
            .filter(|message| message["method"] == "Network.requestWillBeSent")
            .map(|message| message["params"]["request"]["url"].as_str().unwrap().to_owned())
            .filter(|request| !request.starts_with("blob:") && !request.starts_with("data:"))
            .collect();
        assert!(!requests.is_empty());
        let external: Vec<_> = requests.iter().filter(|request| !request.starts_with(origin)).collect();
        assert!(external.is_empty(), "{external:?}");
    }
}

impl Drop for Browser<'_> {
    /// Ends the browser, and then its driver.
    fn drop(&mut self) {
        if !self.session.is_empty() {
            _ = self.request("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        _ = self.driver.kill();
        _ = self.driver.wait();
    }
}

/// Reads a response and returns its body. The server does not close the connection.
fn read_body(mut stream: impl BufRead) -> io::Result<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// The directory of pictures: `ui-screenshots` in the target directory.
fn pictures() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("ui-screenshots")
}

fn decode_base64(text: &str) -> Vec<u8> {
    data_encoding::BASE64.decode(text.as_bytes()).unwrap()
}
