//! A database: its few connections, and how a statement runs on one of them as a viewer.
//!
//! Invariants: a viewer's statement runs in a transaction that begins by setting the viewer's role, a fixed search_path
//! and time limits. All of them are local to the transaction, and nothing of it stays on the connection, which may be a
//! pooler's. Statements are constants, and a viewer's input is a parameter. The program does not wait for a server that
//! is connected but does not answer. One viewer has at most half of the connections. The viewer keeps a connection
//! until its statement has ended, even if the browser has gone.

use std::time::Duration;

use axum::http::StatusCode;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts, Transaction,
    TransactionBuilder,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Config, IsolationLevel, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};
use crate::options::{Auth, Options};
use crate::share::Turns;
use crate::tls;
use crate::viewer::Viewer;

/// The time limit of a query.
pub const MAX_LOOK_TIME: Duration = Duration::from_secs(2);
/// The time limit of a verb. Verbs for many jobs continue in a further call.
pub const MAX_VERB_TIME: Duration = Duration::from_secs(10);

/// A request waits at most this long for a connection.
const MAX_CONNECTION_WAIT: Duration = Duration::from_secs(5);
/// The program waits this much longer than the time limit that the server keeps.
const SERVER_LIMIT_MARGIN: Duration = Duration::from_secs(3);

/// The parameters of a statement: texts, which the statement casts.
pub type Params<'a> = &'a [Option<&'a str>];

/// How a transaction begins.
type Begin = for<'a> fn(TransactionBuilder<'a>) -> TransactionBuilder<'a>;

pub struct Database {
    /// The name that viewers see.
    pub name: String,
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// The address of the server, if viewers may know it: they have started this program themselves.
    place: Option<String>,
    pool: Pool,
    turns: Turns<Viewer>,
}

impl Database {
    pub fn new(mut config: Config, name: String, options: &Options) -> std::result::Result<Self, String> {
        let tls = tls::connector(&mut config, options.database_ca.as_deref())?;
        let recycle = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &tls {
            Some(tls) => Manager::from_config(config.clone(), tls.clone(), recycle),
            None => Manager::from_config(config.clone(), NoTls, recycle),
        };
        let pool = Pool::builder(manager)
            .max_size(options.connections)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(MAX_CONNECTION_WAIT),
                create: Some(MAX_CONNECTION_WAIT),
                recycle: Some(MAX_CONNECTION_WAIT),
            })
            .build()
            .map_err(|e| e.to_string())?;
        // Without authentication there is only one viewer.
        let for_each =
            if matches!(options.auth, Auth::None) { options.connections } else { (options.connections / 2).max(1) };
        let place = matches!(options.auth, Auth::None).then(|| place(&config));
        Ok(Self { name, config, tls, place, pool, turns: Turns::new(for_each) })
    }

    /// Runs a query as the viewer, in a transaction that cannot write. Returns its only value: JSON.
    pub async fn look(&self, viewer: &Viewer, sql: &'static str, params: Params<'_>) -> Result<String> {
        self.look_in(viewer, "UTC", sql, params).await
    }

    /// As [`Database::look`], in a time zone.
    pub async fn look_in(&self, viewer: &Viewer, zone: &str, sql: &'static str, params: Params<'_>) -> Result<String> {
        self.answer(viewer, |begin| begin.read_only(true), MAX_LOOK_TIME, zone, sql, params).await
    }

    /// Checks that the viewer may look at all. Errors: 403 if it may not, or not any more.
    pub async fn admits(&self, viewer: &Viewer) -> Result<()> {
        self.look(viewer, "SELECT 'true'", &[]).await.map(drop)
    }

    /// Runs a verb as the viewer, in a separate transaction. Returns its only value: JSON.
    pub async fn act(&self, viewer: &Viewer, sql: &'static str, params: Params<'_>) -> Result<String> {
        let begin: Begin = |begin| begin.isolation_level(IsolationLevel::ReadCommitted);
        self.answer(viewer, begin, MAX_VERB_TIME, "UTC", sql, params).await
    }

    /// Runs a statement as the viewer, in a transaction of this kind. Returns its only value: JSON.
    async fn answer(
        &self,
        viewer: &Viewer,
        begin: Begin,
        bound: Duration,
        zone: &str,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<String> {
        let (user, zone, params) = (viewer.clone(), zone.to_owned(), owned(params));
        let work = self.run(viewer, bound, move |client| {
            async move {
                let transaction = begin(client.build_transaction()).start().await?;
                become_viewer(&transaction, &user, bound, &zone).await?;
                let value = value(&transaction, sql, &params).await?;
                transaction.commit().await?;
                Ok(value)
            }
            .boxed()
        });
        work.await
    }

    /// Runs work on one of the connections, to its end even if the caller has gone. The statement continues in the
    /// server, and the next one on the connection would wait for it.
    async fn run<T: Send + 'static>(
        &self,
        viewer: &Viewer,
        bound: Duration,
        work: impl for<'a> FnOnce(&'a mut Object) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let turn = tokio::time::timeout(MAX_CONNECTION_WAIT, self.turns.wait(viewer)).await;
        let turn = turn.map_err(|_| {
            Error::new(StatusCode::TOO_MANY_REQUESTS, "you have too much running here")
                .hint("One viewer has at most half of the connections to the database (--connections).")
        })?;
        let mut client = self.pool.get().await.map_err(|e| self.unreachable(e))?;
        let task = tokio::spawn(async move {
            let done = within(bound, work(&mut client)).await;
            let done = put_back(client, done);
            drop(turn);
            done
        });
        task.await.map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?
    }

    /// Adds the address of the server to the error, if the server is not there.
    fn unreachable(&self, e: PoolError) -> Error {
        let is_silent = match &e {
            PoolError::Backend(e) => e.as_db_error().is_none(),
            PoolError::Timeout(kind) => matches!(kind, TimeoutType::Create),
            _ => false,
        };
        let e = Error::from(e);
        match &self.place {
            Some(place) if is_silent => {
                let message = format!("no connection to {place}: {}", e.message);
                Error { message, ..e }
            }
            _ => e,
        }
    }

    /// True if this is the password of a role that may log in.
    ///
    /// Errors: 503 if the server does not ask for passwords, or is not there.
    pub async fn knows(&self, role: &str, password: &str) -> Result<bool> {
        if !self.lets_in(role, password).await? {
            return Ok(false);
        }
        // If the server trusts every client, anyone could look as any role.
        let mut noise = [0; 16];
        getrandom::fill(&mut noise).map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
        let wrong: String = noise.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.lets_in(role, &wrong).await? {
            return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "the database does not ask for passwords").hint(
                "Its pg_hba.conf lets this program in as any role: with --auth password it has to say scram-sha-256.",
            ));
        }
        Ok(true)
    }

    async fn lets_in(&self, role: &str, password: &str) -> Result<bool> {
        let mut config = self.config.clone();
        config.user(role).password(password);
        let tried = tokio::time::timeout(MAX_CONNECTION_WAIT, async {
            match &self.tls {
                Some(tls) => config.connect(tls.clone()).await.map(drop),
                None => config.connect(NoTls).await.map(drop),
            }
        });
        match tried.await.map_err(|_| Error::silent())? {
            Ok(()) => Ok(true),
            // A text that cannot be a password is no fault of the server.
            Err(e) if e.as_db_error().is_none_or(|said| said.code().code().starts_with("28")) && !is_gone(&e) => {
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns the hosts and ports of a connection string.
fn place(config: &Config) -> String {
    use tokio_postgres::config::Host;
    let names = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(dir) => dir.display().to_string(),
    });
    let addresses = config.get_hostaddrs().iter().map(ToString::to_string);
    let hosts: Vec<String> = if config.get_hosts().is_empty() { addresses.collect() } else { names.collect() };
    let port = |n: usize| config.get_ports().get(n).or(config.get_ports().first()).copied().unwrap_or(5432);
    let all: Vec<String> = hosts.iter().enumerate().map(|(n, host)| format!("{host}, port {}", port(n))).collect();
    all.join(", or ")
}

/// Waits for work that the server bounds. `None`: the server has not kept the bound.
async fn within<T>(bound: Duration, work: impl Future<Output = Result<T>>) -> Option<Result<T>> {
    tokio::time::timeout(bound + SERVER_LIMIT_MARGIN, work).await.ok()
}

/// Returns a connection to the pool. If the server did not answer, closes the connection, because the next statement on
/// it would wait as well.
fn put_back<T>(client: Object, done: Option<Result<T>>) -> Result<T> {
    done.unwrap_or_else(|| {
        drop(Object::take(client));
        Err(Error::silent())
    })
}

/// True if the connection itself has failed.
fn is_gone(e: &tokio_postgres::Error) -> bool {
    use std::error::Error as _;
    e.is_closed() || e.source().is_some_and(|source| source.is::<std::io::Error>())
}

/// Sets the viewer's role and limits. This is the first statement of each transaction.
async fn become_viewer(transaction: &Transaction<'_>, viewer: &Viewer, bound: Duration, zone: &str) -> Result<()> {
    // Without a role the program's own stays.
    const SQL: &str = "SELECT set_config('search_path', 'pg_catalog', true),
        CASE WHEN $1::text IS NOT NULL THEN set_config('role', $1, true) END,
        set_config('statement_timeout', $2, true), set_config('lock_timeout', '1s', true),
        set_config('idle_in_transaction_session_timeout', '10s', true), set_config('TimeZone', $3, true),
        set_config('application_name', $4, true), set_config('IntervalStyle', 'postgres', true),
        set_config('DateStyle', 'ISO', true),
        (SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'),
        $5::text IS NULL OR EXISTS (SELECT FROM pg_roles WHERE rolname = $5 AND rolcanlogin
        AND coalesce(rolvaliduntil > now(), true))";
    let bound = bound.as_millis().to_string();
    let name = format!("pg_queue_web/{}", viewer.name);
    let user = viewer.has_logged_in.then_some(viewer.name.as_str());
    let params = [viewer.role.as_deref(), Some(&bound), Some(zone), Some(&name), user];
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = params.iter().map(|p| (p as _, Type::TEXT)).collect();
    match transaction.query_typed_one(SQL, &typed).await {
        Ok(row) if row.try_get(row.len() - 1)? => check_version(row.try_get(row.len() - 2)?),
        Ok(_) => Err(Error::forbidden(format!("role \"{}\" may not log in any more", viewer.name))),
        Err(e) => {
            let e = Error::from(e);
            // The role does not exist, or the program is not a member of it.
            Err(
                if viewer.role.is_some()
                    && matches!(e.code.as_str(), "22023" | "42501" | "42704")
                    && e.message.contains("role")
                {
                    Error::forbidden(format!("cannot look as role \"{}\"", viewer.role.as_deref().unwrap_or_default()))
                        .hint(format!("{}. The program's own role has to be a member of it.", e.message))
                } else {
                    e
                },
            )
        }
    }
}

/// Checks that the extension is in the database, and no older than this program. A query for columns that an older one
/// does not have would fail with an error that does not say so.
///
/// Errors: 503.
fn check_version(found: Option<&str>) -> Result<()> {
    let release = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    };
    let (major, minor) = release(env!("CARGO_PKG_VERSION"));
    let unusable = |message: String| Error::new(StatusCode::SERVICE_UNAVAILABLE, message);
    match found {
        None => Err(unusable("the database has no extension pg_queue".to_owned())
            .hint("Run CREATE EXTENSION pg_queue in the database.")),
        Some(found) if release(found) < (major, minor) => {
            Err(unusable(format!("the extension pg_queue is {found}, and this dashboard needs {major}.{minor}"))
                .hint("Run ALTER EXTENSION pg_queue UPDATE in the database."))
        }
        Some(_) => Ok(()),
    }
}

fn owned(params: Params<'_>) -> Vec<Option<String>> {
    params.iter().map(|param| param.map(str::to_owned)).collect()
}

async fn value(transaction: &Transaction<'_>, sql: &'static str, params: &[Option<String>]) -> Result<String> {
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = params.iter().map(|p| (p as _, Type::TEXT)).collect();
    // The statement has no name, because a pooler may give the next transaction another connection.
    let row = transaction.query_typed_opt(sql, &typed).await?;
    match row {
        Some(row) => Ok(row.try_get::<_, Option<String>>(0)?.unwrap_or_else(|| "null".to_owned())),
        None => Ok("null".to_owned()),
    }
}
