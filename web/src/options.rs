//! The command line, and what it must not say: an open door.
//!
//! Invariant: no combination of options shows queues to another machine without asking for a name.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use lexopt::prelude::*;
use tokio_postgres::Config;

pub const HELP: &str = "\
A dashboard for pg_queue.

Usage: pg_queue_web [OPTIONS]

  --database CONNINFO   a database, as libpq writes it; may be given several times. What it does not say comes from
                        PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE
  --database-ca FILE    certificates of the authorities that vouch for the server
  --connections N       at most so many connections to each database; 4
  --listen ADDRESS      where browsers come to: HOST:PORT, or unix:PATH; 127.0.0.1:8432
  --auth MODE           how a viewer is known. none: everybody on this machine, with the program's own role; proxy: a
                        proxy says it in a header; password: name and password of a role of the database
  --proxy-header NAME   with --auth proxy: the header that has the name; X-Remote-User
  --proxy-secret FILE   with --auth proxy: what the proxy must send in X-Proxy-Secret; needed unless at a unix socket
  --roles FILE          lines NAME ROLE: as which role they look. Others do not get in. Without, the role has the name
  --allow-actions       retry, cancel, pause and so on, as far as the role may
  --hide payload        nobody sees what jobs carry: payload, headers, result, progress, steps, commands
  --show-payload-to ROLE  but this role does; may be given several times
  --host NAME           with --auth none: a further name by which browsers call it, beside localhost
  --https               browsers reach it by https, through a proxy: cookies are sent encrypted only
  --prefix PATH         the proxy has it below this path
  --frame-ancestors S   sites that may show it in a frame; none
  --once                print the overview as text, and end
  --help, --version
";

#[derive(Debug, Clone)]
pub enum Listen {
    Tcp(String),
    Unix(PathBuf),
}

#[derive(Debug, Clone)]
pub enum Auth {
    None,
    Proxy { header: String, secret: Option<String> },
    Password,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub databases: Vec<Config>,
    pub database_ca: Option<PathBuf>,
    pub connections: usize,
    pub listen: Listen,
    pub auth: Auth,
    /// Which name looks as which role; `None`: the role has the name.
    pub roles: Option<Vec<(String, String)>>,
    pub allow_actions: bool,
    pub hide_payload: bool,
    pub show_payload_to: Vec<String>,
    pub hosts: Vec<String>,
    pub https: bool,
    /// Empty, or a path with a slash before it and none behind.
    pub prefix: String,
    pub frame_ancestors: String,
    pub once: bool,
}

/// Reads the command line. `None`: all is said (`--help`).
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, String> {
    let mut options = Options {
        databases: Vec::new(),
        database_ca: None,
        connections: 4,
        listen: Listen::Tcp("127.0.0.1:8432".to_owned()),
        auth: Auth::None,
        roles: None,
        allow_actions: false,
        hide_payload: false,
        show_payload_to: Vec::new(),
        hosts: Vec::new(),
        https: false,
        prefix: String::new(),
        frame_ancestors: "'none'".to_owned(),
        once: false,
    };
    let (mut mode, mut header, mut secret) = ("none".to_owned(), "X-Remote-User".to_owned(), None);
    let mut parser = lexopt::Parser::from_iter(args);
    let say = |e: lexopt::Error| format!("{e}; see --help");
    while let Some(arg) = parser.next().map_err(say)? {
        let name = match arg {
            Long(name) => name.to_owned(),
            Short('h') => "help".to_owned(),
            Short('V') => "version".to_owned(),
            other => return Err(say(other.unexpected())),
        };
        let mut value = || parser.value().and_then(|value| value.string()).map_err(say);
        match name.as_str() {
            "database" => options.databases.push(connection(&value()?)?),
            "database-ca" => options.database_ca = Some(value()?.into()),
            "connections" => {
                let said = value()?;
                let number = said.parse().ok().filter(|n| (1..=100).contains(n));
                options.connections = number.ok_or_else(|| format!("--connections {said}: from 1 to 100"))?;
            }
            "listen" => {
                let said = value()?;
                options.listen = match said.strip_prefix("unix:") {
                    Some(path) => Listen::Unix(path.into()),
                    None => Listen::Tcp(said),
                };
            }
            "auth" => mode = value()?,
            "proxy-header" => header = value()?,
            "proxy-secret" => secret = Some(secret_of(&value()?)?),
            "roles" => options.roles = Some(roles_of(&value()?)?),
            "allow-actions" => options.allow_actions = true,
            "hide" => match value()?.as_str() {
                "payload" => options.hide_payload = true,
                other => return Err(format!("--hide {other}: only payload can be hidden")),
            },
            "show-payload-to" => options.show_payload_to.push(value()?),
            "host" => options.hosts.push(value()?.to_ascii_lowercase()),
            "https" => options.https = true,
            "prefix" => options.prefix = prefix(&value()?)?,
            "frame-ancestors" => options.frame_ancestors = frame_ancestors(value()?)?,
            "once" => options.once = true,
            "help" => {
                print!("{HELP}");
                return Ok(None);
            }
            "version" => {
                println!("pg_queue_web {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            other => return Err(format!("there is no --{other}; see --help")),
        }
    }
    options.auth = match mode.as_str() {
        "none" => Auth::None,
        "proxy" => Auth::Proxy { header, secret },
        "password" => Auth::Password,
        other => return Err(format!("--auth {other}: none, proxy or password")),
    };
    if options.databases.is_empty() {
        options.databases.push(connection("")?);
    }
    if !options.once {
        check_door(&options)?;
    }
    Ok(Some(options))
}

/// Refuses what would let others in that were not asked for a name.
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
    match &options.auth {
        Auth::None if !is_here => Err("without authentication it listens on this machine only: \
            --listen 127.0.0.1:PORT, or --auth proxy, or --auth password"
            .to_owned()),
        Auth::Proxy { secret: None, .. } if !matches!(options.listen, Listen::Unix(_)) => {
            Err("with --auth proxy anything that reaches the port could say any name: \
            --proxy-secret FILE, or --listen unix:PATH"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// A connection string, completed from the environment.
fn connection(said: &str) -> Result<Config, String> {
    let mut config: Config = said.parse().map_err(|e: tokio_postgres::Error| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        format!("--database: {why}")
    })?;
    let from = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        match from("PGHOST") {
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
        && let Some(ports) = from("PGPORT")
    {
        for port in ports.split(',') {
            config.port(port.parse().map_err(|_| format!("PGPORT: {port} is no port"))?);
        }
    }
    if config.get_user().is_none()
        && let Some(user) = from("PGUSER")
    {
        config.user(user);
    }
    if config.get_password().is_none()
        && let Some(password) = from("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_dbname().is_none() {
        let name = from("PGDATABASE").or_else(|| config.get_user().map(str::to_owned));
        name.map(|name| config.dbname(name));
    }
    if !said.contains("sslmode")
        && let Some(mode) = from("PGSSLMODE")
    {
        use tokio_postgres::config::SslMode;
        config.ssl_mode(match mode.as_str() {
            "disable" => SslMode::Disable,
            "allow" | "prefer" => SslMode::Prefer,
            _ => SslMode::Require,
        });
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

/// Lines of a name and a role; `#` begins a comment.
fn roles_of(file: &str) -> Result<Vec<(String, String)>, String> {
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
        Err(format!("--prefix {said}: a path such as /queues"))
    }
}

fn frame_ancestors(said: String) -> Result<String, String> {
    if said.is_ascii() && !said.contains([';', ',', '\r', '\n']) {
        Ok(said)
    } else {
        Err("--frame-ancestors: sources as in a Content-Security-Policy, without ; and ,".to_owned())
    }
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
        // A name that is looked up elsewhere may be any address.
        assert!(parsed(&["--listen", "example.com:80"]).is_err());
        assert!(parsed(&["--listen", "localhost.evil:80"]).is_err());
    }

    #[test]
    fn what_goes_into_headers_is_checked() {
        assert!(parsed(&["--frame-ancestors", "'self'; script-src *"]).is_err());
        assert!(parsed(&["--prefix", "/a b"]).is_err());
        assert!(parsed(&["--prefix", "a"]).is_err());
        assert_eq!(parsed(&["--prefix", "/a/b/"]).unwrap().unwrap().prefix, "/a/b");
    }
}
