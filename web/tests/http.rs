//! A client for HTTP/1.1 that sends exactly the headers of a test, even headers that no other client would send.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

/// An answer with its decoded body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the body of a successful answer.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Returns the message of a refused request.
    #[track_caller]
    pub fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// A TCP connection or a Unix socket.
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Where a dashboard listens.
#[derive(Debug, Clone)]
pub enum Address {
    Tcp(String),
    Unix(std::path::PathBuf),
}

impl Address {
    pub fn connect(&self) -> Box<dyn Stream> {
        let patience = Some(Duration::from_secs(60));
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("the dashboard");
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).expect("the dashboard's socket");
                stream.set_read_timeout(patience).unwrap();
                Box::new(stream)
            }
        }
    }

    fn host(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }

    /// Sends a request. These headers replace the default ones.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut reader = self.open(method, path, headers, body);
        let (status, headers) = head(&mut reader);
        let mut bytes = Vec::new();
        let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        if is_chunked {
            while let Some(chunk) = chunk(&mut reader) {
                bytes.extend(chunk);
            }
        } else {
            reader.read_to_end(&mut bytes).expect("the body");
        }
        Answer { status, headers, body: String::from_utf8(bytes).expect("a body in UTF-8") }
    }

    fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> BufReader<Box<dyn Stream>> {
        let length = body.len().to_string();
        let mut all = vec![("host", self.host()), ("connection", "close"), ("content-length", &length)];
        all.retain(|(name, _)| !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)));
        all.extend(headers);
        let head: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut stream = self.connect();
        // A server that refuses a request unread may reset the connection.
        drop(write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n{body}"));
        BufReader::new(stream)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    /// Sends a verb as the page does, with further headers.
    pub fn act(&self, verb: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
        self.send("POST", &format!("/api/act/{verb}"), &[&OURS[..], headers].concat(), &body.to_string())
    }

    /// Sends a request for the viewer that a proxy names.
    pub fn get_as(&self, user: &str, path: &str) -> Answer {
        self.send("GET", path, &[("x-remote-user", user)], "")
    }

    /// Opens the stream of events.
    pub fn events(&self, headers: &[(&str, &str)]) -> Events {
        self.events_or(headers).unwrap_or_else(|status| panic!("no events: {status}"))
    }

    /// Opens the stream of events, or returns the status with which it is refused.
    pub fn events_or(&self, headers: &[(&str, &str)]) -> Result<Events, u16> {
        let mut reader = self.open("GET", "/api/events", headers, "");
        match head(&mut reader) {
            (200, _) => Ok(Events { reader, rest: String::new() }),
            (status, _) => Err(status),
        }
    }

    /// Sends a request and closes the connection before the answer.
    pub fn send_and_go(&self, path: &str, headers: &[(&str, &str)]) {
        drop(self.open("GET", path, headers, ""));
    }
}

/// Headers that the page sends with each verb.
pub const OURS: [(&str, &str); 2] = [("content-type", "application/json"), ("x-pg-queue-web", "1")];

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line of the head");
    line.trim_end().to_owned()
}

fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let first = line(reader);
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut headers = Vec::new();
    loop {
        match line(reader).split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return (status.unwrap_or_else(|| panic!("no answer: {first:?}")), headers),
        }
    }
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let size = line(reader);
    let size = usize::from_str_radix(&size, 16).ok().filter(|size| *size > 0)?;
    let mut bytes = vec![0; size];
    reader.read_exact(&mut bytes).expect("a chunk");
    line(reader);
    Some(bytes)
}

/// Server-sent events.
pub struct Events {
    reader: BufReader<Box<dyn Stream>>,
    rest: String,
}

impl Events {
    /// Returns the kind and the data of the next event. `None`: the stream has ended.
    pub fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let found =
                    field("event: ").map(|kind| (kind, serde_json::from_str(&field("data: ").unwrap()).unwrap()));
                self.rest = rest.to_owned();
                if found.is_some() {
                    return found;
                }
                continue;
            }
            let bytes = chunk(&mut self.reader)?;
            self.rest.push_str(&String::from_utf8(bytes).expect("UTF-8"));
        }
    }
}
