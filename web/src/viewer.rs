//! The viewer: the name that a proxy or a password vouches for, and the role as which the database sees the viewer.
//!
//! Invariant: a role comes from the map, from a header that only the proxy can send, or from a session that began with
//! a password. It is never `none`, which would be the program's own role.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::options::{Auth, Options};

/// A session ends this long after the password was given.
const MAX_AGE: Duration = Duration::from_secs(12 * 3600);
/// A session also ends this long after its last request.
const MAX_IDLE: Duration = Duration::from_secs(2 * 3600);
/// If there are this many sessions, a new one begins only when another ends.
const MAX_SESSIONS: usize = 10_000;
/// If a user has this many sessions, a new one ends the session that was used least recently.
const MAX_SESSIONS_OF_A_USER: usize = 20;
/// The name of a viewer has at most this many bytes.
pub const MAX_NAME_BYTES: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Viewer {
    /// The name in the audit.
    pub name: String,
    /// The role. `None`: the program's own.
    pub role: Option<String>,
    /// True if a password was right for the role of this name. The viewer may look while that role may log in.
    pub has_logged_in: bool,
}

struct Session {
    viewer: Viewer,
    /// The index of its database on the command line.
    database: usize,
    begun: Instant,
    seen: Instant,
    /// Closed when the session ends.
    open: watch::Sender<()>,
}

/// Ends when the session ends.
pub struct UntilEnd {
    open: watch::Receiver<()>,
    at: Instant,
}

impl UntilEnd {
    /// Waits for the end of the session: by a logout, by its age, or because another session has replaced it.
    pub async fn wait(mut self) {
        let ended = async { while self.open.changed().await.is_ok() {} };
        drop(tokio::time::timeout_at(self.at.into(), ended).await);
    }
}

#[derive(Default)]
pub struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    /// Begins a session of a user whose password was right, and that looks as a role. Returns the value that the
    /// browser keeps.
    pub fn begin(&self, user: &str, role: &str, database: usize) -> Result<String> {
        let viewer = Viewer { name: user.to_owned(), role: Some(checked(role)?), has_logged_in: true };
        let mut noise = [0; 32];
        getrandom::fill(&mut noise).map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
        let token: String = noise.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.is_open(now));
        let of_user = |session: &Session| session.viewer == viewer && session.database == database;
        if sessions.values().filter(|session| of_user(session)).count() >= MAX_SESSIONS_OF_A_USER {
            let own = sessions.iter().filter(|(_, session)| of_user(session));
            if let Some(last) = own.min_by_key(|(_, session)| session.seen).map(|(token, _)| token.clone()) {
                sessions.remove(&last);
            }
        }
        if sessions.len() >= MAX_SESSIONS {
            return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "there are too many sessions"));
        }
        let open = watch::Sender::new(());
        sessions.insert(token.clone(), Session { viewer, database, begun: now, seen: now, open });
        Ok(token)
    }

    pub fn end(&self, token: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(token);
    }

    /// Returns a value that tells when the session ends. `None`: it has ended.
    pub fn until_end(&self, token: &str) -> Option<UntilEnd> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(token)?;
        Some(UntilEnd { open: session.open.subscribe(), at: session.begun + MAX_AGE })
    }

    fn find(&self, token: &str, database: usize) -> Option<Viewer> {
        let now = Instant::now();
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(token).filter(|session| session.is_open(now) && session.database == database)?;
        session.seen = now;
        Some(session.viewer.clone())
    }
}

impl Session {
    fn is_open(&self, now: Instant) -> bool {
        now - self.begun < MAX_AGE && now - self.seen < MAX_IDLE
    }
}

/// Returns the name of the cookie for a database. With https no other host and no path below can set it.
pub fn cookie_name(options: &Options, database: usize) -> String {
    let host = if options.https && options.prefix.is_empty() { "__Host-" } else { "" };
    format!("{host}pg_queue_web_{database}")
}

/// Returns the value of the cookie with the session for a database.
pub fn token<'a>(headers: &'a HeaderMap, options: &Options, database: usize) -> Option<&'a str> {
    let name = cookie_name(options, database);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies.flat_map(|line| line.split(';')).find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns the viewer that sends a request.
///
/// Errors: 401 if a password is missing; 403 if the proxy's secret is wrong, or it names a user that does not get in.
pub fn of_request(headers: &HeaderMap, options: &Options, sessions: &Sessions, database: usize) -> Result<Viewer> {
    match options.auth {
        Auth::None => Ok(Viewer { name: "local".to_owned(), role: None, has_logged_in: false }),
        Auth::Password => {
            token(headers, options, database).and_then(|token| sessions.find(token, database)).ok_or_else(unknown)
        }
        Auth::Proxy => {
            if let Some(secret) = &options.proxy_secret {
                let said = only(headers, "X-Proxy-Secret").unwrap_or_default();
                if !bool::from(said.as_bytes().ct_eq(secret.as_bytes())) {
                    return Err(Error::forbidden("the request does not come through the proxy"));
                }
            }
            let header = &options.proxy_header;
            let name = only(headers, header).filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES);
            let name =
                name.ok_or_else(|| Error::forbidden(format!("the proxy does not name the viewer, in {header}")))?;
            let role = match &options.roles {
                Some(roles) => roles.iter().find(|(known, _)| known == name).map(|(_, role)| role.as_str()),
                None => Some(name),
            };
            let role = role.ok_or_else(|| Error::forbidden(format!("no role is known for {name:?}")))?;
            Ok(Viewer { name: name.to_owned(), role: Some(checked(role)?), has_logged_in: false })
        }
    }
}

/// Returns a 401: there is no session.
pub fn unknown() -> Error {
    Error::new(StatusCode::UNAUTHORIZED, "log in with a role of the database")
}

/// Returns the value of a header that occurs exactly once. Of two, it is unknown which one the proxy has set.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Returns the name if SET ROLE takes it for a role. Errors: 403 otherwise.
fn checked(role: &str) -> Result<String> {
    if role.is_empty() || role.eq_ignore_ascii_case("none") || role.contains('\0') {
        return Err(Error::forbidden(format!("{role:?} is no role")));
    }
    Ok(role.to_owned())
}
