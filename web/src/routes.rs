//! The site: which code answers which path, for which database and viewer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;

use crate::audit::Audit;
use crate::cache::{Cache, Key};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::login::Logins;
use crate::options::{Auth, Options};
use crate::poll::Polls;
use crate::serve::{Busy, Peer};
use crate::share::{Share, Shares};
use crate::viewer::{self, Sessions, Viewer};
use crate::{act, assets, guard, log, look};

/// The body of a verb may contain a payload, so it may be larger than that of a login. In bytes.
const MAX_BODY_BYTES: usize = 1 << 20;
const MAX_LOGIN_BYTES: usize = 8 << 10;
/// A body must arrive within this time.
const MAX_BODY_TIME: Duration = Duration::from_secs(10);

/// At most this many requests of one viewer are answered at a time, at most this many of them verbs. A document counts
/// until its end.
const MAX_REQUESTS_OF_A_VIEWER: usize = 50;
const MAX_VERBS_OF_A_VIEWER: usize = 8;
const MAX_DOCUMENTS_OF_A_VIEWER: usize = 2;
const MAX_DOCUMENTS: usize = 8;
/// After this time the program checks again whether a viewer may still look.
const ADMISSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub struct Site {
    pub options: Arc<Options>,
    databases: Vec<Arc<Database>>,
    sessions: Sessions,
    cache: Cache,
    pub polls: Arc<Polls>,
    audit: Audit,
    logins: Logins,
    requests: Arc<Shares<Viewer>>,
    verbs: Arc<Shares<Viewer>>,
    documents: Arc<Shares<Viewer>>,
}

/// A known viewer whose request is being answered.
struct Entered {
    viewer: Viewer,
    _share: Share<Viewer>,
    busy: Busy,
}

impl Site {
    pub fn new(options: Options) -> std::result::Result<Arc<Self>, String> {
        let mut databases: Vec<Arc<Database>> = Vec::new();
        for config in &options.databases {
            let name = config.get_dbname().unwrap_or("postgres");
            let is_taken = |name: &str| databases.iter().any(|known| known.name == name);
            let mut names = std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name} {n}")));
            let name = names.find(|name| !is_taken(name)).unwrap_or_default();
            databases.push(Arc::new(Database::new(config.clone(), name, &options)?));
        }
        Ok(Arc::new(Self {
            options: Arc::new(options),
            databases,
            sessions: Sessions::default(),
            cache: Cache::default(),
            polls: Polls::new(),
            audit: Audit::default(),
            logins: Logins::new(),
            requests: Shares::new(MAX_REQUESTS_OF_A_VIEWER, usize::MAX),
            verbs: Shares::new(MAX_VERBS_OF_A_VIEWER, usize::MAX),
            documents: Shares::new(MAX_DOCUMENTS_OF_A_VIEWER, MAX_DOCUMENTS),
        }))
    }

    /// Returns the database that a request names, or the first one, and its index.
    fn database(&self, query: &HashMap<String, String>) -> Result<(usize, &Arc<Database>)> {
        let Some(name) = query.get("db").filter(|name| !name.is_empty()) else { return Ok((0, &self.databases[0])) };
        let mut all = self.databases.iter().enumerate();
        all.find(|(_, known)| known.name == *name)
            .ok_or_else(|| Error::missing(format!("there is no database {name:?}")))
    }

    fn viewer(&self, headers: &HeaderMap, place: usize) -> Result<Viewer> {
        viewer::of_request(headers, &self.options, &self.sessions, place)
    }

    /// Lets in the viewer that sends a request, while it is answered.
    ///
    /// Errors: those of [`viewer::of_request`]; 403 if the role may not look any more; 429 if too many requests of the
    /// viewer are being answered.
    async fn enter(&self, headers: &HeaderMap, peer: &Peer, place: usize) -> Result<Entered> {
        let viewer = self.viewer(headers, place)?;
        let share = self.requests.take(viewer.clone()).ok_or_else(too_many)?;
        let busy = peer.busy();
        // This check comes before any stored answer is shown.
        if viewer.role.is_some() {
            let database = &self.databases[place];
            let question = key(place, &viewer, "admitted".to_owned());
            let admits = || async { database.admits(&viewer).await.map(|()| Bytes::new()) };
            self.cache.get(question, ADMISSION_CHECK_INTERVAL, admits).await?;
        }
        Ok(Entered { viewer, _share: share, busy })
    }

    /// True if payloads are hidden from the viewer.
    fn hides(&self, viewer: &Viewer) -> bool {
        let may_see = viewer.role.as_ref().is_some_and(|role| self.options.show_payload_to.contains(role));
        self.options.hide.is_some() && !may_see
    }
}

pub fn router(site: Arc<Site>) -> Router {
    let page = || get(|headers: HeaderMap| async move { assets::serve("index.html", &headers) });
    let own = Router::new()
        .route(
            "/assets/{name}",
            get(|Path(name): Path<String>, headers: HeaderMap| async move { assets::serve(&name, &headers) }),
        )
        .route("/health", get(|| async { "ok\n" }))
        .route("/api/session", get(session))
        .route("/api/events", get(events))
        .route("/api/audit", get(audited))
        .route("/api/document", get(document))
        .route("/api/{what}", get(looked))
        .route("/api/act/{verb}", post(acted))
        .route("/login", post(login))
        .route("/logout", post(logout));
    let all = match site.options.prefix.as_str() {
        "" => own.route("/", page()),
        prefix => {
            let with_slash = format!("{prefix}/");
            let to = [(header::LOCATION, with_slash.clone())];
            let moved = get(|| async { (StatusCode::PERMANENT_REDIRECT, to) });
            Router::new().route(prefix, moved).route(&with_slash, page()).nest(prefix, own)
        }
    };
    let all = all.fallback(|| async { Error::missing("there is no such page") });
    all.layer(middleware::from_fn_with_state(site.options.clone(), guard::guard)).with_state(site)
}

type Said = Query<HashMap<String, String>>;

fn too_many() -> Error {
    Error::new(StatusCode::TOO_MANY_REQUESTS, "too many of your requests are being answered")
}

/// Returns the key of a viewer's question. If users have logged in, they do not share a role's answers, because one of
/// them may be locked out.
fn key(place: usize, viewer: &Viewer, question: String) -> Key {
    let user = viewer.has_logged_in.then_some(&viewer.name);
    Key { place, role: viewer.role.clone(), question: format!("{user:?} {question}") }
}

/// Reads a body. Errors: 408 if it takes too long, 413 if it is too long.
async fn read(body: Body, max: usize) -> Result<Bytes> {
    let read = tokio::time::timeout(MAX_BODY_TIME, axum::body::to_bytes(body, max)).await;
    let read = read.map_err(|_| Error::new(StatusCode::REQUEST_TIMEOUT, "the body takes too long"))?;
    read.map_err(|_| Error::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {max} bytes")))
}

fn json_of(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}

/// Returns what the page must know before it asks anything.
async fn session(State(site): State<Arc<Site>>, Query(query): Said, headers: HeaderMap) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = match site.viewer(&headers, place) {
        Ok(viewer) => Some(viewer),
        Err(e) if e.status == StatusCode::UNAUTHORIZED => None,
        Err(e) => return Err(e),
    };
    let names: Vec<&str> = site.databases.iter().map(|known| known.name.as_str()).collect();
    let told = json!({
        "version": env!("CARGO_PKG_VERSION"), "database": database.name, "databases": names,
        "auth": match site.options.auth {
            Auth::None => "none",
            Auth::Proxy => "proxy",
            Auth::Password => "password",
        },
        "user": viewer.as_ref().map(|viewer| &viewer.name),
        "role": viewer.as_ref().and_then(|viewer| viewer.role.as_ref()),
        "allow_actions": site.options.allow_actions,
        "hides_payload": viewer.as_ref().is_none_or(|viewer| site.hides(viewer)),
    });
    Ok(json_of(told.to_string()))
}

async fn events(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Query(query): Said,
    headers: HeaderMap,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let Entered { viewer, busy, .. } = site.enter(&headers, &peer, place).await?;
    let session = match viewer.has_logged_in {
        true => {
            let token = viewer::token(&headers, &site.options, place);
            Some(token.and_then(|token| site.sessions.until_end(token)).ok_or_else(viewer::unknown)?)
        }
        false => None,
    };
    let events = site.polls.events(place, database, &viewer, session)?;
    let fixed =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::HeaderName::from_static("x-accel-buffering"), "no")];
    // The connection is busy while the stream exists.
    let events = events.map(move |event| (&busy, event).1);
    Ok((fixed, Body::from_stream(events)).into_response())
}

async fn looked(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path(what): Path<String>,
    Query(query): Said,
    headers: HeaderMap,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let entered = site.enter(&headers, &peer, place).await?;
    let (viewer, hides) = (&entered.viewer, site.hides(&entered.viewer));
    let (question, age) = look::question(&what, &query)?;
    let ask = || async { look::ask(database, viewer, hides, &what, &query).await.map(Bytes::from) };
    let answer = site.cache.get(key(place, viewer, question), age, ask).await?;
    Ok(json_of(answer))
}

/// Returns a whole document, such as a payload, as a file.
async fn document(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Query(query): Said,
    headers: HeaderMap,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let entered = site.enter(&headers, &peer, place).await?;
    let share = site.documents.take(entered.viewer.clone()).ok_or_else(too_many)?;
    let text = look::ask(database, &entered.viewer, site.hides(&entered.viewer), "document", &query).await?;
    let fixed = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"job.json\""),
    ];
    // The document is sent in parts, so that the share is held until the browser has received all of it.
    let rest = (Bytes::from(text), share, entered);
    let parts = stream::unfold(rest, |(mut rest, share, entered)| async move {
        let part = rest.split_to(rest.len().min(64 << 10));
        (!part.is_empty()).then_some((Ok::<_, std::convert::Infallible>(part), (rest, share, entered)))
    });
    Ok((fixed, Body::from_stream(parts)).into_response())
}

async fn audited(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Query(query): Said,
    headers: HeaderMap,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let entered = site.enter(&headers, &peer, place).await?;
    let viewer = &entered.viewer;
    let observed = database.look(viewer, look::OBSERVED, &[]).await?;
    let observed: HashSet<String> = serde_json::from_str(&observed).unwrap_or_default();
    Ok(json_of(site.audit.shown(&database.name, viewer, &observed, site.hides(viewer)).to_string()))
}

async fn acted(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path(verb): Path<String>,
    Query(query): Said,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let entered = site.enter(&headers, &peer, place).await?;
    let share = site.verbs.take(entered.viewer.clone()).ok_or_else(too_many)?;
    let given: Fields = fields::of_body(&read(body, MAX_BODY_BYTES).await?, act::is_field)?;
    let database = database.clone();
    // The verb runs to its end and is logged even if the browser has gone.
    let task = tokio::spawn({
        let site = site.clone();
        async move {
            let viewer = &entered.viewer;
            let done = act::act(&database, viewer, site.hides(viewer), &site.audit, &verb, given).await;
            if done.is_ok() {
                site.cache.clear(place);
            }
            drop((share, entered));
            done
        }
    });
    let done = task.await.map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(json_of(done?))
}

async fn login(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Query(query): Said,
    body: Body,
) -> Result<Response> {
    if !matches!(site.options.auth, Auth::Password) {
        return Err(Error::missing("nobody logs in here"));
    }
    let (place, database) = site.database(&query)?;
    let said = fields::of_body(&read(body, MAX_LOGIN_BYTES).await?, |name| matches!(name, "user" | "password"))?;
    let text = |name| said.get(name).map(String::as_str).unwrap_or_default();
    let (user, password) = (text("user"), text("password"));
    let role = match &site.options.roles {
        Some(roles) => roles.iter().find(|(known, _)| known == user).map(|(_, role)| role.as_str()),
        None => Some(user),
    };
    // With a map, the name is the role with the password, and it looks as another role.
    let is_right = site.logins.is_right(database, peer.address, user, password).await?;
    let Some(role) = role.filter(|_| is_right) else {
        let user: String = user.chars().take(viewer::MAX_NAME_BYTES).collect();
        let deed = json!({ "verb": "login", "user": user, "database": database.name, "error": "refused" });
        log::say(format_args!("audit {deed}"));
        return Err(Error::new(StatusCode::UNAUTHORIZED, "name or password is wrong"));
    };
    let token = site.sessions.begin(user, role, place)?;
    let deed = json!({ "verb": "login", "user": user, "role": role, "database": database.name });
    log::say(format_args!("audit {deed}"));
    Ok(with_cookie(&site, place, &token, ""))
}

async fn logout(State(site): State<Arc<Site>>, Query(query): Said, headers: HeaderMap) -> Result<Response> {
    let (place, _) = site.database(&query)?;
    if let Some(token) = viewer::token(&headers, &site.options, place) {
        site.sessions.end(token);
    }
    Ok(with_cookie(&site, place, "", "; Max-Age=0"))
}

fn with_cookie(site: &Site, place: usize, token: &str, more: &str) -> Response {
    let name = viewer::cookie_name(&site.options, place);
    let secure = if site.options.https { "; Secure" } else { "" };
    let cookie = format!("{name}={token}; Path={}/; HttpOnly; SameSite=Strict{secure}{more}", site.options.prefix);
    ([(header::CONTENT_TYPE, "application/json"), (header::SET_COOKIE, &cookie)], "{}").into_response()
}
