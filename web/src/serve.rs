//! Connections: how many there are, how long each may take for a request, and which of them must make room.
//!
//! Responsible for the limits of connections that no known viewer uses yet. Not responsible for what a viewer may hold
//! ([`crate::share`]).
//!
//! Invariants: a connection makes room for a new one if it has no request of a known viewer and has not just come. So
//! no number of half requests keeps others out. If the head of a request takes too long, or a peer reads too slowly,
//! the connection is closed.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, watch};
use tokio::time::{Sleep, sleep};
use tower_service::Service as _;

/// The head of a request, and the time between requests, take at most this long.
const MAX_HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection is closed if its peer takes nothing of the answer for this long.
const MAX_WRITE_TIME: Duration = Duration::from_secs(30);
/// The head of a request has at most this many bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// At most this many connections, even if the system lets the program open more files.
const MAX_CONNECTIONS: usize = 2_000;
/// This many files are reserved for the database and for everything else that the program opens.
const RESERVED_FILES: usize = 100;
/// One address of another machine has at most one in this many of all connections.
const PART_OF_AN_ADDRESS: usize = 4;

/// The open connections.
pub struct Door {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    last_id: u64,
    by_id: HashMap<u64, Connection>,
}

struct Connection {
    /// The peer's address. `None`: this machine, where a proxy may speak for many.
    address: Option<IpAddr>,
    /// Since when no known viewer is being answered. `None`: one is.
    idle_since: Option<Instant>,
    give_way: Arc<Notify>,
}

/// The connection of a request.
#[derive(Clone)]
pub struct Peer {
    door: Arc<Door>,
    id: u64,
    /// The address. `None`: this machine.
    pub address: Option<IpAddr>,
}

/// While this value exists, a known viewer is being answered, and the connection does not make room.
pub struct Busy(Peer);

impl Door {
    pub fn new() -> Arc<Self> {
        let files = max_files().unwrap_or(1024);
        let max = files.saturating_sub(RESERVED_FILES).clamp(16, MAX_CONNECTIONS);
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Lets a connection in. If there are too many, the one that has been idle longest must close. `None`: none is
    /// idle.
    fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<(Peer, Arc<Notify>)> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this = |connection: &Connection| address.is_some() && connection.address == address;
        if open.by_id.values().filter(|known| of_this(known)).count() >= (self.max / PART_OF_AN_ADDRESS).max(1) {
            open.make_room(of_this)?;
        }
        if open.by_id.len() >= self.max {
            open.make_room(|_| true)?;
        }
        open.last_id += 1;
        let (id, give_way) = (open.last_id, Arc::new(Notify::new()));
        open.by_id.insert(id, Connection { address, idle_since: Some(Instant::now()), give_way: give_way.clone() });
        Some((Peer { door: self.clone(), id, address }, give_way))
    }

    fn leave(&self, id: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).by_id.remove(&id);
    }
}

impl Open {
    fn make_room(&mut self, is_meant: impl Fn(&Connection) -> bool) -> Option<()> {
        let idle = self.by_id.iter().filter(|(_, known)| is_meant(known));
        let idle = idle.filter_map(|(id, known)| Some((known.idle_since?, *id)));
        let (_, id) = idle.min()?;
        self.by_id.remove(&id)?.give_way.notify_one();
        Some(())
    }
}

impl Peer {
    /// Notes that a known viewer is being answered.
    pub fn busy(&self) -> Busy {
        self.note(None);
        Busy(self.clone())
    }

    fn note(&self, idle_since: Option<Instant>) {
        let mut open = self.door.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = open.by_id.get_mut(&self.id) {
            connection.idle_since = idle_since;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.note(Some(Instant::now()));
    }
}

/// Returns how many files the program may open. `None`: the system does not say.
fn max_files() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The source of connections.
pub trait Listener {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn next(&self) -> impl Future<Output = io::Result<(Self::Io, Option<IpAddr>)>> + Send;
}

impl Listener for TcpListener {
    type Io = tokio::net::TcpStream;
    async fn next(&self) -> io::Result<(Self::Io, Option<IpAddr>)> {
        let (stream, address) = self.accept().await?;
        Ok((stream, Some(address.ip().to_canonical()).filter(|address| !address.is_loopback())))
    }
}

impl Listener for UnixListener {
    type Io = tokio::net::UnixStream;
    async fn next(&self) -> io::Result<(Self::Io, Option<IpAddr>)> {
        Ok((self.accept().await?.0, None))
    }
}

/// Serves until `stopped`. Requests that are being answered then are answered to their end.
pub async fn serve(listener: impl Listener, router: Router, stopped: impl Future<Output = ()>) {
    let door = Door::new();
    let (stop, served) = (watch::Sender::new(()), watch::Sender::new(()));
    let mut stopped = pin!(stopped);
    loop {
        let accepted = tokio::select! {
            () = &mut stopped => break,
            accepted = listener.next() => accepted,
        };
        let Ok((io, address)) = accepted else {
            // No file is left, or the peer has gone. Neither ends the program.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Without room the connection is closed.
        let Some((peer, give_way)) = door.enter(address) else { continue };
        tokio::spawn(connection(io, peer, give_way, router.clone(), stop.subscribe(), served.subscribe()));
    }
    drop(listener);
    drop(stop);
    served.closed().await;
}

async fn connection(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    give_way: Arc<Notify>,
    router: Router,
    mut stop: watch::Receiver<()>,
    served: watch::Receiver<()>,
) {
    let (door, id) = (peer.door.clone(), peer.id);
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(peer.clone());
        router.clone().call(request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(MAX_HEAD_TIME).max_buf_size(MAX_HEAD_BYTES);
    let mut served_here = pin!(builder.serve_connection(TokioIo::new(Patient::new(io, MAX_WRITE_TIME)), service));
    let is_over = tokio::select! {
        _ = served_here.as_mut() => true,
        () = give_way.notified() => true,
        _ = stop.changed() => false,
    };
    if !is_over {
        served_here.as_mut().graceful_shutdown();
        tokio::select! { _ = served_here => {}, () = give_way.notified() => {} }
    }
    door.leave(id);
    drop(served);
}

/// A connection that fails if its peer takes nothing for some time.
struct Patient<T> {
    io: T,
    patience: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl<T> Patient<T> {
    fn new(io: T, patience: Duration) -> Self {
        Self { io, patience, waits: None }
    }

    fn bounded<R>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.waits = None;
            return done;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waits.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, to)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.io).poll_write(context, from);
        self.bounded(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_flush(context);
        self.bounded(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_shutdown(context);
        self.bounded(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.io).poll_write_vectored(context, from);
        self.bounded(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn the_longest_idle_gives_way_and_who_is_answered_does_not() {
        let door = Arc::new(Door { max: 3, open: Mutex::default() });
        let (first, _) = door.enter(None).unwrap();
        let (_, second) = door.enter(None).unwrap();
        let answered = first.busy();
        let (third, _) = door.enter(None).unwrap();
        let (fourth, _) = door.enter(None).unwrap();
        assert!(futures_util::FutureExt::now_or_never(second.notified()).is_some(), "the second gave way");
        let all = [third.busy(), fourth.busy()];
        assert!(door.enter(None).is_none(), "all are being answered");
        drop(answered);
        assert!(door.enter(None).is_some());
        drop(all);
    }

    #[test]
    fn an_address_has_its_part() {
        let door = Arc::new(Door { max: 8, open: Mutex::default() });
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let (own, _) = door.enter(None).unwrap();
        let kept: Vec<_> = (0..20).map(|_| door.enter(address).unwrap()).collect();
        let open = door.open.lock().unwrap();
        assert_eq!(open.by_id.len(), 3, "two of the address, and the other");
        assert!(open.by_id.contains_key(&own.id));
        drop(kept);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (mine, _theirs) = tokio::io::duplex(16);
        let mut mine = Patient::new(mine, Duration::from_millis(10));
        let failed = mine.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}
