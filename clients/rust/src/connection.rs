//! Connections: how the worker connects, when a connection counts as gone, and the pool for handlers' transactions.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::DbError;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, NoTls, Row, Socket};

use crate::sql::Parameter;

/// If a server has not answered for this long, beyond the requested wait, the worker gives it up.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// The host has become a standby, or shuts down.
const GONE: [&str; 4] = ["25006", "57P01", "57P02", "57P03"];

/// How long a handler waits for a connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two attempts to connect for handlers that wait.
const RETRY: Duration = Duration::from_millis(200);

/// How long the pool keeps a connection that nobody uses.
const IDLE: Duration = Duration::from_secs(60);

/// For how long the pool makes and keeps no connection after the worker itself could not make one.
const SCARCE: Duration = Duration::from_secs(10);

const SILENT: &str = "the server has not answered";

/// The SQLSTATE for an attempt that the worker has lost.
pub(crate) const LOST: &str = "QJ001";

type Cancel = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A connection, and a function that cancels its running statement.
///
/// When it is dropped, the server gets a goodbye, but only after the statement that runs. Such a statement would go on,
/// and a claim take jobs for nobody: [`Self::abandon`] closes the socket.
pub(crate) struct Connection {
    client: Client,
    cancel: Cancel,
    task: AbortHandle,
}

impl Connection {
    /// Closes the socket without a goodbye.
    fn abandon(&self) {
        self.task.abort();
    }
}

/// Connects to the first of some hosts that accepts writes, and logs the server's notices at a level.
pub(crate) type Connector = Arc<dyn Fn(log::Level) -> BoxFuture<'static, Result<Connection, String>> + Send + Sync>;

/// Returns the connector of a configuration, with the worker's defaults for parameters that it leaves out.
pub(crate) fn connector<T>(config: &Config, tls: T) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let hosts = Arc::new(single_hosts(config));
    Arc::new(move |notices| {
        let (hosts, tls) = (hosts.clone(), tls.clone());
        Box::pin(async move {
            let mut failure = "there is no host to connect to".to_owned();
            for host in hosts.iter() {
                match timeout(SILENCE, connect(host, tls.clone(), notices)).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => failure = format!("{}: {}", place(host), text(&error)),
                    Err(_) => failure = format!("{}: {SILENT}", place(host)),
                }
            }
            Err(failure)
        })
    })
}

/// Returns the address of the only host of a configuration.
fn place(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let host = match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, Some(address)) => address.to_string(),
        (None, None) => "no host".to_owned(),
    };
    format!("{host}, port {port}")
}

/// Returns a configuration for each host, so that a cancel request goes to the connected host.
fn single_hosts(config: &Config) -> Vec<Config> {
    let hosts = config.get_hosts();
    let count = hosts.len().max(config.get_hostaddrs().len());
    let one_of = |number: usize| {
        let mut one = Config::new();
        config.get_user().map(|user| one.user(user));
        config.get_password().map(|password| one.password(password));
        config.get_dbname().map(|name| one.dbname(name));
        config.get_options().map(|options| one.options(options));
        let name = concat!("pg_queue worker rust/", env!("CARGO_PKG_VERSION"));
        one.application_name(config.get_application_name().unwrap_or(name));
        one.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
        one.channel_binding(config.get_channel_binding());
        match hosts.get(number) {
            Some(Host::Tcp(name)) => drop(one.host(name)),
            Some(Host::Unix(path)) => drop(one.host_path(path)),
            None => {}
        }
        config.get_hostaddrs().get(number).map(|address| one.hostaddr(*address));
        let ports = config.get_ports();
        ports.get(number).or(ports.first()).map(|port| one.port(*port));
        // With these, a host that does not answer any more is noticed within half a minute.
        one.connect_timeout(config.get_connect_timeout().copied().unwrap_or(Duration::from_secs(10)));
        one.tcp_user_timeout(config.get_tcp_user_timeout().copied().unwrap_or(Duration::from_secs(30)));
        one.keepalives(config.get_keepalives());
        one.keepalives_idle(config.get_keepalives_idle().min(Duration::from_secs(15)));
        one.keepalives_interval(config.get_keepalives_interval().unwrap_or(Duration::from_secs(5)));
        one.keepalives_retries(config.get_keepalives_retries().unwrap_or(3));
        let asked = config.get_target_session_attrs();
        let is_choice = count > 1 && asked == TargetSessionAttrs::Any;
        one.target_session_attrs(if is_choice { TargetSessionAttrs::ReadWrite } else { asked });
        one
    };
    (0..count).map(one_of).collect()
}

async fn connect<T>(config: &Config, tls: T, notices: log::Level) -> Result<Connection, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, mut connection) = config.connect(tls.clone()).await?;
    let token = client.cancel_token();
    // When the connection ends, the client's calls fail.
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                let hint = notice.hint().map(|hint| format!(" Hint: {hint}")).unwrap_or_default();
                log::log!(target: "pg_queue", notices, "{}{hint}", notice.message());
            }
        }
    });
    let config = config.clone();
    let cancel: Cancel = Arc::new(move || {
        let (token, config, tls) = (token.clone(), config.clone(), tls.clone());
        Box::pin(async move {
            // Without an answer the statement ends by itself, when its wait is over.
            let _ = timeout(Duration::from_secs(2), cancel(&token, &config, tls)).await;
        })
    });
    Ok(Connection { client, cancel, task: task.abort_handle() })
}

/// Asks the server to cancel the running statement. As in libpq, the request is not encrypted unless encryption is
/// required.
async fn cancel<T>(token: &CancelToken, config: &Config, tls: T) -> Result<(), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
{
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let address = config.get_hostaddrs().first().map(ToString::to_string);
    let host = match (config.get_ssl_mode(), config.get_hosts().first(), address) {
        (SslMode::Require, ..) => return token.cancel_query(tls).await,
        (_, Some(Host::Unix(path)), _) => {
            let Ok(stream) = UnixStream::connect(path.join(format!(".s.PGSQL.{port}"))).await else { return Ok(()) };
            return token.cancel_query_raw(Patient(stream), NoTls).await;
        }
        (_, _, Some(address)) => address,
        (_, Some(Host::Tcp(name)), None) => name.clone(),
        (_, None, None) => return Ok(()),
    };
    let Ok(stream) = TcpStream::connect((host, port)).await else { return Ok(()) };
    token.cancel_query_raw(Patient(stream), NoTls).await
}

/// A stream that the other side closes: `PgBouncer` 1.18 crashes if a client has gone before its request was passed on.
struct Patient<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            // Any end will do: the request was sent.
            if ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer)).is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Returns the message of the server, or of the driver.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    if let Some(said) = error.as_db_error() {
        return said.message().to_owned();
    }
    let (text, source) = (error.to_string(), error.source().map(ToString::to_string));
    match source.filter(|source| !text.contains(source.as_str())) {
        Some(source) => format!("{text}: {source}"),
        None => text,
    }
}

pub(crate) fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("", |code| code.code())
}

/// Returns whether the connection is unusable after this error. Only errors of the server leave it usable.
fn is_gone(client: &Client, error: &tokio_postgres::Error) -> bool {
    client.is_closed()
        || error
            .as_db_error()
            .is_none_or(|error| ["FATAL", "PANIC"].contains(&error.severity()) || GONE.contains(&error.code().code()))
}

/// Why a statement has failed.
pub(crate) struct Refusal {
    /// The SQLSTATE. Empty if the connection is gone, or if the server accepts no writes: the worker connects anew,
    /// maybe to another host.
    pub code: String,
    /// The message of the server with its hint, or of the driver.
    pub text: String,
}

impl Refusal {
    pub fn gone(text: impl Into<String>) -> Self {
        Self { code: String::new(), text: text.into() }
    }

    fn of(error: &tokio_postgres::Error) -> Self {
        let hint = error.as_db_error().and_then(DbError::hint).map(|hint| format!(" Hint: {hint}"));
        Self { code: code(error).to_owned(), text: text(error) + hint.as_deref().unwrap_or_default() }
    }

    /// Returns why a statement on this connection has failed.
    pub fn on(client: &Client, error: &tokio_postgres::Error) -> Self {
        if is_gone(client, error) { Self::gone(text(error)) } else { Self::of(error) }
    }

    pub fn is_gone(&self) -> bool {
        self.code.is_empty()
    }

    /// Returns whether the server has not answered in time.
    pub fn is_silent(&self) -> bool {
        self.is_gone() && self.text == SILENT
    }
}

/// One connection, made when it is needed, and made again after it was lost.
pub(crate) struct Link {
    connector: Connector,
    connection: Mutex<Option<Arc<Connection>>>,
    /// How long a statement may take.
    patience: Duration,
    severed: watch::Sender<bool>,
    given_up: Notify,
    /// The connections of handlers, which leave some to this one.
    pool: Arc<Pool>,
}

impl Link {
    pub fn new(connector: Connector, patience: Duration, pool: Arc<Pool>) -> Self {
        let (connection, severed) = (Mutex::new(None), watch::channel(false).0);
        Self { connector, connection, patience, severed, given_up: Notify::new(), pool }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<Connection>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a statement in a transaction of its own. If it has made a connection for that, it calls `on_connect`.
    pub async fn fetch(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        on_connect: &(dyn Fn() + Sync),
    ) -> Result<Vec<Row>, Refusal> {
        let mut severed = self.severed.subscribe();
        tokio::select! {
            biased;
            _ = severed.wait_for(|is_severed| *is_severed) => {
                self.abandon();
                Err(Refusal::gone("the worker has ended"))
            }
            () = self.given_up.notified() => {
                self.abandon();
                Err(Refusal::gone("the connection is given up"))
            }
            result = self.answer(sql, parameters, on_connect) => result,
        }
    }

    /// False if the connection was lost, or not made yet. A loss is known from the next statement on.
    pub fn is_open(&self) -> bool {
        self.current().is_some()
    }

    /// Gives the connection up: the running statement fails, and the next one connects anew.
    pub fn renew(&self) {
        self.given_up.notify_waiters();
        self.abandon();
    }

    /// Lets the running statement, and all later ones, fail.
    pub fn sever(&self) {
        self.severed.send_replace(true);
    }

    async fn answer(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        on_connect: &(dyn Fn() + Sync),
    ) -> Result<Vec<Row>, Refusal> {
        let known = self.current().clone();
        let connection = match known {
            Some(connection) => connection,
            None => {
                let made = (self.connector)(log::Level::Warn).await;
                self.pool.make_room(made.is_err());
                let made = Arc::new(made.map_err(Refusal::gone)?);
                *self.current() = Some(made.clone());
                on_connect();
                made
            }
        };
        match timeout(self.patience, connection.client.query_typed(sql, parameters)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => {
                let refusal = Refusal::on(&connection.client, &error);
                if refusal.is_gone() {
                    self.close();
                }
                Err(refusal)
            }
            Err(_) => {
                self.abandon();
                Err(Refusal::gone(SILENT))
            }
        }
    }

    /// Cancels the running statement, if there is one.
    pub async fn cancel(&self) {
        let current = self.current().clone();
        if let Some(connection) = current {
            (connection.cancel)().await;
        }
    }

    pub fn close(&self) {
        *self.current() = None;
    }

    /// As [`Self::close`], with a statement under way.
    pub fn abandon(&self) {
        if let Some(connection) = self.current().take() {
            connection.abandon();
        }
    }
}

/// How many connections each of the handlers' jobs has.
pub(crate) type Users = Vec<Arc<AtomicUsize>>;

/// Connections for handlers. It grows to the number in use at the same time.
pub(crate) struct Pool {
    connector: Connector,
    /// One for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// Wakes a handler that waits for a connection.
    freed: Notify,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// Each with the time since when nobody has used it.
    clients: Vec<(Client, Instant)>,
    scarce_until: Option<Instant>,
    is_closed: bool,
}

impl Idle {
    fn is_scarce(&self) -> bool {
        self.is_closed || self.scarce_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Pool {
    /// `limit`: how many connections handlers use at the same time.
    pub fn new(connector: Connector, limit: usize) -> Self {
        let permits = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { connector, permits, freed: Notify::new(), idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection for these users, whose connections are counted. The error says why none can be made for as
    /// long as `patience`. Other handlers may use the connections for longer than that. A handler that has one itself
    /// does not wait for them: they may wait for it.
    pub async fn take(self: &Arc<Self>, patience: Duration, users: Users) -> Result<Pooled, String> {
        let (end, mut failure) = (Instant::now() + patience, "no connection is free".to_owned());
        let may_wait = users.iter().all(|user| user.load(Ordering::Acquire) == 0);
        let pooled = |client, permit| {
            users.iter().for_each(|user| _ = user.fetch_add(1, Ordering::AcqRel));
            Pooled { client: Some(client), pool: self.clone(), users: users.clone(), _permit: permit }
        };
        loop {
            let permit = self.permits.clone().try_acquire_owned().ok();
            let is_full = permit.is_none();
            if let Some(permit) = permit {
                while let Some((client, _)) = { self.idle().clients.pop() } {
                    if !client.is_closed() {
                        return Ok(pooled(client, permit));
                    }
                }
                if !{ self.idle().is_scarce() } {
                    match (self.connector)(log::Level::Debug).await {
                        Ok(Connection { client, .. }) => return Ok(pooled(client, permit)),
                        Err(error) => failure = error,
                    }
                }
            }
            if Instant::now() >= end && !(may_wait && is_full) || self.idle().is_closed {
                return Err(failure);
            }
            let _ = timeout(RETRY, self.freed.notified()).await;
        }
    }

    /// Leaves connections to the worker itself, until it could make one.
    fn make_room(&self, is_needed: bool) {
        self.idle().scarce_until = is_needed.then(|| Instant::now() + SCARCE);
        if is_needed {
            self.idle().clients.clear();
        }
    }

    /// Closes connections that nobody has used for a while.
    fn prune(&self) {
        self.idle().clients.retain(|(_, since)| since.elapsed() < IDLE);
    }

    fn close(&self) {
        let mut idle = self.idle();
        idle.is_closed = true;
        idle.clients.clear();
    }
}

/// The pools of a worker: to the queue's server, and to that of the effects if that is another one.
#[derive(Clone)]
pub(crate) struct Pools {
    pub own: Arc<Pool>,
    pub effects: Option<Arc<Pool>>,
}

impl Pools {
    pub fn close(&self) {
        self.own.close();
        self.effects.iter().for_each(|pool| pool.close());
    }

    pub fn prune(&self) {
        self.own.prune();
        self.effects.iter().for_each(|pool| pool.prune());
    }
}

/// A connection of the pool. If it is dropped without `give_back`, it is closed, which rolls back.
pub(crate) struct Pooled {
    client: Option<Client>,
    pool: Arc<Pool>,
    users: Users,
    _permit: OwnedSemaphorePermit,
}

impl Pooled {
    /// Returns the connection to the pool. No transaction may be open.
    pub fn give_back(mut self) {
        let mut idle = self.pool.idle();
        if let Some(client) = self.client.take().filter(|_| !idle.is_scarce()) {
            idle.clients.push((client, Instant::now()));
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.users.iter().for_each(|user| _ = user.fetch_sub(1, Ordering::AcqRel));
        self.pool.freed.notify_one();
    }
}

impl Deref for Pooled {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("it is taken by what consumes it alone")
    }
}
