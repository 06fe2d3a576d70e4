//! The command line. It must not open the dashboard to everyone.
//!
//! Invariant: no combination of options shows queues to another machine without asking for a name. No message repeats
//! what may hold a password: a connection string, or an argument in the wrong place.

use std::convert::Infallible;
use std::env::VarError;
use std::error::Error as _;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, ValueEnum};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::log;

#[derive(Debug, Clone)]
pub enum Listen {
    Tcp(String),
    Unix(PathBuf),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Auth {
    None,
    Proxy,
    Password,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Hidden {
    Payload,
}

/// Which name looks as which role.
pub type Roles = Vec<(String, String)>;

/// A dashboard for pg_queue.
#[derive(Debug, Clone, Parser)]
#[command(name = "pg_queue_web", version)]
pub struct Options {
    /// A connection string of libpq; may be given several times. Missing parts are read from
    /// PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE
    #[arg(long = "database", value_name = "CONNINFO", value_parser = connection, verbatim_doc_comment)]
    #[arg(default_value = "", hide_default_value = true)]
    pub databases: Vec<Config>,
    /// Certificates of the authorities that sign the database server's certificate
    #[arg(long, value_name = "FILE")]
    pub database_ca: Option<PathBuf>,
    /// The maximum number of connections to each database
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=100))]
    pub connections: usize,
    /// The address at which browsers connect: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8432", value_parser = listen)]
    pub listen: Listen,
    /// How the program finds a viewer's name. none: everybody on this machine looks as the
    /// program's own role; proxy: a proxy sends the name in a header; password: the viewer
    /// enters name and password of a role of the database
    #[arg(long, value_name = "MODE", default_value = "none", hide_possible_values = true, verbatim_doc_comment)]
    pub auth: Auth,
    /// With --auth proxy: the header that holds the name
    #[arg(long, value_name = "NAME", default_value = "X-Remote-User")]
    pub proxy_header: String,
    /// With --auth proxy: a file with the text that the proxy must send in X-Proxy-Secret;
    /// required unless --listen is a unix socket
    #[arg(long, value_name = "FILE", value_parser = secret_of, verbatim_doc_comment)]
    pub proxy_secret: Option<String>,
    /// A file of lines NAME ROLE: this name looks as this role, and other names are refused.
    /// Without the option, a name looks as the role of the same name
    #[arg(long, value_name = "FILE", value_parser = roles_of, verbatim_doc_comment)]
    pub roles: Option<Roles>,
    /// Allow retry, cancel, pause and other actions to viewers whose role may do them
    #[arg(long)]
    pub allow_actions: bool,
    /// payload: hide payload, headers, result, progress, steps and commands of jobs from
    /// all viewers
    #[arg(long, value_name = "WHAT", hide_possible_values = true, verbatim_doc_comment)]
    pub hide: Option<Hidden>,
    /// With --hide: this role sees them; may be given several times
    #[arg(long, value_name = "ROLE")]
    pub show_payload_to: Vec<String>,
    /// With --auth none: another host name, besides localhost, that browsers may use; may be
    /// given several times
    #[arg(long = "host", value_name = "NAME", value_parser = lower_case, verbatim_doc_comment)]
    pub hosts: Vec<String>,
    /// Browsers connect by https, through a proxy: cookies are sent only encrypted
    #[arg(long)]
    pub https: bool,
    /// The path below which the proxy shows the dashboard
    // Empty, or with a slash before it and none behind.
    #[arg(long, value_name = "PATH", value_parser = prefix, default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Sites that may show the dashboard in a frame
    #[arg(long, value_name = "S", value_parser = frame_ancestors, default_value = "'none'")]
    pub frame_ancestors: String,
    /// Print the overview as text, and exit
    #[arg(long)]
    pub once: bool,
}

/// Reads the command line. `None`: the answer was printed (`--help`).
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, String> {
    let options = match Options::try_parse_from(args) {
        Ok(options) => options,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return log::print(&e.to_string()).map(|()| None);
        }
        Err(e) => return Err(safe_text(&e)),
    };
    if !options.once {
        check_door(&options)?;
    }
    Ok(Some(options))
}

/// Returns what is wrong, without the argument itself.
fn safe_text(error: &clap::Error) -> String {
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) if option.starts_with('-') => option.split(' ').next().unwrap_or_default(),
        _ => "option for an argument",
    };
    match (error.kind(), error.source()) {
        (ErrorKind::ValueValidation, Some(why)) => format!("{option}: {why}"),
        (ErrorKind::UnknownArgument, _) => format!("there is no {option}; see --help"),
        (ErrorKind::TooManyValues, _) => format!("{option} has no value; see --help"),
        _ => {
            let text = error.to_string();
            let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim();
            format!("{}; see --help", text.replace("\n ", ""))
        }
    }
}

/// Refuses options that would let others in without asking for a name.
fn check_door(options: &Options) -> Result<(), String> {
    let is_here = match &options.listen {
        Listen::Unix(_) => true,
        Listen::Tcp(address) => {
            let is_loopback = |address: &SocketAddr| address.ip().is_loopback();
            match address.parse::<SocketAddr>() {
                Ok(address) => is_loopback(&address),
                Err(_) => match address.rsplit_once(':') {
                    Some(("localhost", port)) if port.parse::<u16>().is_ok() => true,
                    _ => {
                        return Err(format!(
                            "--listen {address}: an address and a port, such as 127.0.0.1:8432, or unix:PATH"
                        ));
                    }
                },
            }
        }
    };
    match options.auth {
        Auth::None if !is_here => Err("without authentication the program may listen only on this machine: \
            --listen 127.0.0.1:PORT, or --auth proxy, or --auth password"
            .to_owned()),
        Auth::Proxy if options.proxy_secret.is_none() && !matches!(options.listen, Listen::Unix(_)) => {
            Err("with --auth proxy, any client that reaches the port could send any name: \
            --proxy-secret FILE, or --listen unix:PATH"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Reads a connection string, completed from the environment.
fn connection(said: &str) -> Result<Config, String> {
    let mut config: Config = said
        .parse()
        .map_err(|e: tokio_postgres::Error| e.source().map_or_else(|| e.to_string(), ToString::to_string))?;
    let from = |name: &str| match std::env::var(name) {
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
        value => Ok(value.ok().filter(|value| !value.is_empty())),
    };
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        match from("PGHOST")? {
            Some(hosts) => {
                for host in hosts.split(',') {
                    config.host(host);
                }
            }
            None => match ["/var/run/postgresql", "/tmp"].iter().find(|dir| std::fs::read_dir(dir).is_ok()) {
                Some(dir) => drop(config.host_path(dir)),
                None => drop(config.host("localhost")),
            },
        }
    }
    if config.get_ports().is_empty()
        && let Some(ports) = from("PGPORT")?
    {
        for port in ports.split(',') {
            config.port(port.parse().map_err(|_| format!("PGPORT: {port} is no port"))?);
        }
    }
    if config.get_user().is_none()
        && let Some(user) = from("PGUSER")?
    {
        config.user(user);
    }
    if config.get_password().is_none()
        && let Some(password) = from("PGPASSWORD")?
    {
        config.password(password);
    }
    if config.get_dbname().is_none() {
        let name = from("PGDATABASE")?.or_else(|| config.get_user().map(str::to_owned));
        name.map(|name| config.dbname(name));
    }
    if !said.contains("sslmode")
        && let Some(mode) = from("PGSSLMODE")?
    {
        config.ssl_mode(match mode.as_str() {
            "disable" => SslMode::Disable,
            "allow" | "prefer" => SslMode::Prefer,
            "require" | "verify-ca" | "verify-full" => SslMode::Require,
            _ => return Err(format!("PGSSLMODE: {mode} is no sslmode")),
        });
    }
    // As in libpq, a socket of this machine has no TLS, whatever is asked.
    if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) && config.get_hostaddrs().is_empty() {
        config.ssl_mode(SslMode::Disable);
    }
    config.application_name("pg_queue_web");
    config.connect_timeout(std::time::Duration::from_secs(5));
    Ok(config)
}

fn secret_of(file: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let secret = text.trim().to_owned();
    if secret.len() < 16 { Err(format!("{file}: a secret has 16 characters or more")) } else { Ok(secret) }
}

/// Reads lines of a name and a role. `#` begins a comment.
fn roles_of(file: &str) -> Result<Roles, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(n, line)| match line.split_once(char::is_whitespace) {
            Some((name, role)) => Ok((name.to_owned(), role.trim().to_owned())),
            None => Err(format!("{file}, line {n}: a name and a role")),
        })
        .collect()
}

fn prefix(said: &str) -> Result<String, String> {
    let path = said.trim_end_matches('/');
    let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.~".contains(c));
    if path.is_empty() || path.starts_with('/') && is_plain && !path.contains("//") {
        Ok(path.to_owned())
    } else {
        Err(format!("{said} is no path such as /queues"))
    }
}

fn frame_ancestors(said: &str) -> Result<String, String> {
    if said.is_ascii() && !said.contains([';', ',', '\r', '\n']) {
        Ok(said.to_owned())
    } else {
        Err("sources as in a Content-Security-Policy, without ; and ,".to_owned())
    }
}

fn listen(said: &str) -> Result<Listen, Infallible> {
    Ok(said.strip_prefix("unix:").map_or_else(|| Listen::Tcp(said.to_owned()), |path| Listen::Unix(path.into())))
}

fn lower_case(said: &str) -> Result<String, Infallible> {
    Ok(said.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Option<Options>, String> {
        parse(std::iter::once("pg_queue_web").chain(args.iter().copied()).map(OsString::from))
    }

    #[test]
    fn an_open_door_is_refused() {
        for listen in ["0.0.0.0:1", "[::]:1", "192.168.0.1:80", "[::ffff:10.0.0.1]:80"] {
            let refused = parsed(&["--listen", listen]).unwrap_err();
            assert!(refused.contains("without authentication"), "{listen}: {refused}");
            let refused = parsed(&["--listen", listen, "--auth", "proxy"]).unwrap_err();
            assert!(refused.contains("--proxy-secret"), "{listen}: {refused}");
            assert!(parsed(&["--listen", listen, "--auth", "password"]).unwrap().is_some());
        }
        assert!(parsed(&["--listen", "127.0.0.1:1", "--auth", "proxy"]).is_err(), "others of this machine reach it");
        assert!(parsed(&["--listen", "unix:/tmp/x", "--auth", "proxy"]).unwrap().is_some());
        for listen in ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/x", "127.9.9.9:1"] {
            assert!(parsed(&["--listen", listen]).unwrap().is_some(), "{listen}");
        }
        // A name that is resolved elsewhere may be any address.
        assert!(parsed(&["--listen", "example.com:80"]).is_err());
        assert!(parsed(&["--listen", "localhost.evil:80"]).is_err());
    }

    #[test]
    fn no_message_repeats_a_password() {
        for args in [
            &["--database", "postgres://u:secret@h:x/d"][..],
            &["--database=password=secret sslmode=none"],
            &["postgres://u:secret@h/d"],
            &["--once", "postgres://u:secret@h/d"],
            &["--once=postgres://u:secret@h/d"],
            &["--", "postgres://u:secret@h/d"],
            &["--databse=postgres://u:secret@h/d"],
            &["--databse", "postgres://u:secret@h/d"],
            &["--database", "password=secret", "--listen"],
            &["--connections", "1", "--connections", "2", "--database", "password=secret"],
        ] {
            let refused = parsed(args).unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn a_message_names_the_option() {
        for (args, message) in [
            (&["--connections", "101"][..], "--connections: 101 is not in 1..=100"),
            (&["--prefix", "a"], "--prefix: a is no path such as /queues"),
            (&["--database", "port=x"], "--database: invalid value for option `port`"),
            (&["--roles", "/none"], "--roles: /none: No such file or directory (os error 2)"),
            (
                &["--auth", "x"],
                "invalid value 'x' for '--auth <MODE>' [possible values: none, proxy, password]; see --help",
            ),
            (&["--listen"], "a value is required for '--listen <ADDRESS>' but none was supplied; see --help"),
            (&["--datbase"], "there is no --datbase; see --help"),
            (&["--https=1"], "--https has no value; see --help"),
            (&["x"], "there is no option for an argument; see --help"),
            (
                &["--prefix", "/a", "--prefix", "/b"],
                "the argument '--prefix <PATH>' cannot be used multiple times; see --help",
            ),
        ] {
            assert_eq!(parsed(args).unwrap_err(), message);
        }
    }

    #[test]
    fn what_may_be_repeated_is_collected() {
        let args = [
            "--database",
            "dbname=a",
            "--database",
            "dbname=b",
            "--host",
            "A",
            "--host",
            "b",
            "--show-payload-to",
            "r",
            "--show-payload-to",
            "s",
        ];
        let options = parsed(&args).unwrap().unwrap();
        let names: Vec<_> = options.databases.iter().filter_map(Config::get_dbname).collect();
        assert_eq!(
            (names, options.hosts, options.show_payload_to.len()),
            (vec!["a", "b"], vec!["a".into(), "b".into()], 2)
        );
        assert_eq!(parsed(&[]).unwrap().unwrap().databases.len(), 1);
        assert!(parsed(&["--help"]).unwrap().is_none() && parsed(&["-V"]).unwrap().is_none());
    }

    #[test]
    fn what_goes_into_headers_is_checked() {
        assert!(parsed(&["--frame-ancestors", "'self'; script-src *"]).is_err());
        assert!(parsed(&["--prefix", "/a b"]).is_err());
        assert!(parsed(&["--prefix", "a"]).is_err());
        assert_eq!(parsed(&["--prefix", "/a/b/"]).unwrap().unwrap().prefix, "/a/b");
    }
}
