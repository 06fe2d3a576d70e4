//! A throw-away prometheus-postgres-exporter beside a cluster, and the metrics that it shows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use queue_tests::{Cluster, KilledAtEnd, wait};

/// A metric with its labels, without the label `server` that the exporter adds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

impl Sample {
    pub fn new(name: &str, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self { name: name.to_owned(), labels: labels.collect() }
    }
}

/// The result of a scrape.
#[derive(Default)]
pub struct Shown {
    pub samples: BTreeMap<Sample, f64>,
    pub types: BTreeMap<String, String>,
}

pub struct Exporter {
    _process: KilledAtEnd,
    address: SocketAddr,
}

impl Exporter {
    /// Starts the exporter for these databases as the role of docs/monitoring.md. Waits until it answers.
    pub fn start(cluster: &Cluster, databases: &[&str], queries: &Path) -> Self {
        // The port is free now. If another program takes it first, the exporter ends and the wait for it fails.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        drop(listener);
        let dir = cluster.dir().display();
        let sources: Vec<String> = databases
            .iter()
            .map(|name| format!("host={dir} user=queue_monitor dbname={name} sslmode=disable"))
            .collect();
        let said = File::create(cluster.dir().join("exporter.log")).expect("a writable cluster folder");
        let mut command = Command::new("prometheus-postgres-exporter");
        cluster.connect_env(&mut command);
        command
            .env("DATA_SOURCE_NAME", sources.join(","))
            .arg(format!("--extend.query-path={}", queries.display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--disable-default-metrics", "--disable-settings-metrics"])
            .args(["--no-collector.bgwriter", "--no-collector.database"])
            .stdout(said.try_clone().expect("a second handle"))
            .stderr(said)
            .stdin(Stdio::null());
        let process = command
            .spawn()
            .expect("the exporter: run `make monitoring`, or as root: apt-get install prometheus-postgres-exporter");
        let exporter = Self { _process: KilledAtEnd(process), address };
        wait::until("the exporter answers", || TcpStream::connect(exporter.address).ok());
        exporter
    }

    /// Scrapes the exporter once.
    pub fn scrape(&self) -> Shown {
        let mut stream = TcpStream::connect(self.address).expect("the exporter");
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{answer}");
        let mut shown = Shown::default();
        for line in body.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                shown.types.insert(name.to_owned(), kind.to_owned());
            } else if let Some((sample, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) {
                shown.samples.insert(read(sample), value.parse().expect("a number"));
            }
        }
        assert_eq!(shown.samples[&Sample::new("pg_exporter_last_scrape_error", &[])], 0.0, "{body}");
        shown
    }
}

/// Reads a sample from its text. A label with an empty value counts as absent.
fn read(text: &str) -> Sample {
    let (name, rest) = text.split_once('{').unwrap_or((text, ""));
    let labels = rest.trim_end_matches('}').split("\",").filter_map(|pair| {
        let (name, value) = pair.split_once("=\"")?;
        let value = value.trim_end_matches('"');
        (name != "server" && !value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    });
    Sample { name: name.to_owned(), labels: labels.collect() }
}
