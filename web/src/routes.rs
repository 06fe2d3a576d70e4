//! The site: which path is answered by what, for which database and viewer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::cache::Cache;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::options::{Auth, Options};
use crate::poll::Polls;
use crate::viewer::{self, Sessions, Viewer};
use crate::{act, assets, guard, look};

/// A body has at most so many bytes: a payload to enqueue.
const LARGEST: usize = 1 << 20;

/// So many passwords are tried at once, and a wrong one takes so long.
const LOGINS: usize = 2;
const WRONG: Duration = Duration::from_secs(1);

pub struct Site {
    pub options: Options,
    databases: Vec<Arc<Database>>,
    sessions: Sessions,
    cache: Cache,
    pub polls: Arc<Polls>,
    audit: Audit,
    logins: Semaphore,
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
            options,
            databases,
            sessions: Sessions::default(),
            cache: Cache::default(),
            polls: Polls::new(),
            audit: Audit::default(),
            logins: Semaphore::new(LOGINS),
        }))
    }

    /// The database that a request names, else the first, and its place.
    fn database(&self, query: &HashMap<String, String>) -> Result<(usize, &Arc<Database>)> {
        let Some(name) = query.get("db").filter(|name| !name.is_empty()) else { return Ok((0, &self.databases[0])) };
        let mut all = self.databases.iter().enumerate();
        all.find(|(_, known)| known.name == *name)
            .ok_or_else(|| Error::missing(format!("there is no database {name:?}")))
    }

    fn viewer(&self, headers: &HeaderMap, place: usize) -> Result<Viewer> {
        viewer::of_request(headers, &self.options, &self.sessions, place)
    }

    /// Whether payloads are hidden from the viewer.
    fn hides(&self, viewer: &Viewer) -> bool {
        let may_see = viewer.role.as_ref().is_some_and(|role| self.options.show_payload_to.contains(role));
        self.options.hide_payload && !may_see
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
    all.layer(DefaultBodyLimit::max(LARGEST))
        .layer(middleware::from_fn_with_state(site.clone(), guard::guard))
        .with_state(site)
}

type Said = Query<HashMap<String, String>>;

fn json_of(text: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.into()).into_response()
}

/// What the page has to know before it asks anything.
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
        "auth": match site.options.auth { Auth::None => "none", Auth::Proxy { .. } => "proxy", Auth::Password => "password" },
        "user": viewer.as_ref().map(|viewer| &viewer.name), "role": viewer.as_ref().and_then(|viewer| viewer.role.as_ref()),
        "allow_actions": site.options.allow_actions,
        "hides_payload": viewer.as_ref().is_none_or(|viewer| site.hides(viewer)),
    });
    Ok(json_of(told.to_string()))
}

async fn events(State(site): State<Arc<Site>>, Query(query): Said, headers: HeaderMap) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = site.viewer(&headers, place)?;
    let events = site.polls.events(place, database, &viewer)?;
    let fixed =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::HeaderName::from_static("x-accel-buffering"), "no")];
    Ok((fixed, Body::from_stream(events)).into_response())
}

async fn looked(
    State(site): State<Arc<Site>>,
    Path(what): Path<String>,
    Query(query): Said,
    headers: HeaderMap,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = site.viewer(&headers, place)?;
    let hides = site.hides(&viewer);
    let sorted: BTreeMap<&String, &String> = query.iter().collect();
    let user = viewer.has_logged_in.then_some(&viewer.name);
    let key = (place, viewer.role.clone(), format!("{what} {user:?} {sorted:?}"));
    let age = look::age(&what, &query);
    let answer = site
        .cache
        .get(key, age, || async { look::ask(database, &viewer, hides, &what, &query).await.map(Bytes::from) });
    Ok(json_of(answer.await?))
}

/// A payload and so on, whole, as a file.
async fn document(State(site): State<Arc<Site>>, Query(query): Said, headers: HeaderMap) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = site.viewer(&headers, place)?;
    let text = look::ask(database, &viewer, site.hides(&viewer), "document", &query).await?;
    let fixed = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"job.json\""),
    ];
    Ok((fixed, text).into_response())
}

async fn audited(State(site): State<Arc<Site>>, Query(query): Said, headers: HeaderMap) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = site.viewer(&headers, place)?;
    let observed = database.look(&viewer, look::OBSERVED, &[]).await?;
    let observed: HashSet<String> = serde_json::from_str(&observed).unwrap_or_default();
    Ok(json_of(site.audit.shown(&database.name, &viewer, &observed, site.hides(&viewer)).to_string()))
}

fn object(body: &Bytes) -> Result<Map<String, Value>> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(Error::bad("the body has to be an object of JSON")),
    }
}

async fn acted(
    State(site): State<Arc<Site>>,
    Path(verb): Path<String>,
    Query(query): Said,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response> {
    let (place, database) = site.database(&query)?;
    let viewer = site.viewer(&headers, place)?;
    let fields = object(&body)?;
    let database = database.clone();
    // To its end and its line in the log, also where the browser has gone.
    let task = tokio::spawn({
        let site = site.clone();
        async move {
            let hides = site.hides(&viewer);
            let done = act::act(&database, &viewer, hides, &site.audit, &verb, &fields).await;
            site.cache.clear();
            done
        }
    });
    let done = task.await.map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(json_of(done?))
}

async fn login(State(site): State<Arc<Site>>, Query(query): Said, body: Bytes) -> Result<Response> {
    if !matches!(site.options.auth, Auth::Password) {
        return Err(Error::missing("nobody logs in here"));
    }
    let (place, database) = site.database(&query)?;
    let fields = object(&body)?;
    let text = |name| fields.get(name).and_then(Value::as_str).filter(|text| !text.contains('\0')).unwrap_or_default();
    let (user, password) = (text("user"), text("password"));
    let Ok(_one) = site.logins.acquire().await else { return Err(Error::bad("the program ends")) };
    let role = match &site.options.roles {
        Some(roles) => roles.iter().find(|(known, _)| known == user).map(|(_, role)| role.as_str()),
        None => Some(user),
    };
    // With a map the name is that of the role with the password, and looks as another.
    let is_right = !user.is_empty() && !password.is_empty() && database.knows(user, password).await?;
    let Some(role) = role.filter(|_| is_right) else {
        tokio::time::sleep(WRONG).await;
        eprintln!(
            "pg_queue_web: audit {}",
            json!({ "verb": "login", "user": user, "database": database.name, "error": "refused" })
        );
        return Err(Error::new(StatusCode::UNAUTHORIZED, "name or password is wrong"));
    };
    let token = site.sessions.begin(user, role, place)?;
    eprintln!(
        "pg_queue_web: audit {}",
        json!({ "verb": "login", "user": user, "role": role, "database": database.name })
    );
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
