//! One look a second for all browsers of a role: what the overview shows, pushed to each as a server-sent event.
//!
//! Invariants: while nobody looks, nothing runs; a look that takes long is repeated after fifty times as long, so that all
//! looks of a role take at most a fiftieth of one processor.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use futures_util::stream::{self, Stream};
use tokio::sync::watch;

use crate::database::{Database, LOOK};
use crate::error::{Error, Result};
use crate::look;
use crate::viewer::Viewer;

const EVERY: Duration = Duration::from_secs(1);
/// So many times the time of a look is the pause behind it.
const REST: u32 = 49;
/// A proxy may close a connection on which nothing comes for long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Then the browser comes anew, and has to be let in anew.
const LONGEST: Duration = Duration::from_secs(300);
/// So many browsers look at once.
const MOST: usize = 2_000;

/// The database's place, the role, and the user that has logged in.
type Role = (usize, Option<String>, Option<String>);
/// Events as they go out. `None`: there was none yet.
type Events = watch::Sender<Option<Bytes>>;

pub struct Polls {
    running: Mutex<HashMap<Role, Arc<Events>>>,
    stopped: watch::Sender<bool>,
}

pub type EventStream = Pin<Box<dyn Stream<Item = std::result::Result<Bytes, Infallible>> + Send>>;

impl Polls {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { running: Mutex::default(), stopped: watch::Sender::new(false) })
    }

    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Returns when the program is to end.
    pub fn until_stopped(&self) -> Shared<BoxFuture<'static, ()>> {
        let mut stopped = self.stopped.subscribe();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }.boxed().shared()
    }

    /// Returns the events for a browser: the last one at once, if there is one.
    ///
    /// Errors: 503 too many are looking.
    pub fn events(self: &Arc<Self>, place: usize, database: &Arc<Database>, viewer: &Viewer) -> Result<EventStream> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.values().map(|events| events.receiver_count()).sum::<usize>() >= MOST {
            return Err(Error::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "too many browsers are looking"));
        }
        let user = viewer.has_logged_in.then(|| viewer.name.clone());
        let role = (place, viewer.role.clone(), user.clone());
        let events = running.entry(role.clone()).or_insert_with(|| {
            let events = Arc::new(Events::new(None));
            let viewer = Viewer {
                name: user.unwrap_or_else(|| "poll".to_owned()),
                role: viewer.role.clone(),
                has_logged_in: viewer.has_logged_in,
            };
            tokio::spawn(self.clone().poll(role, events.clone(), database.clone(), viewer));
            events
        });
        let mut receiver = events.subscribe();
        receiver.mark_changed();
        let (stopped, until) = (self.until_stopped(), Instant::now() + LONGEST);
        Ok(Box::pin(stream::unfold((receiver, stopped), move |(mut receiver, stopped)| async move {
            let next = tokio::time::timeout(KEEP_ALIVE, async {
                loop {
                    receiver.changed().await.ok()?;
                    if let Some(event) = receiver.borrow_and_update().clone() {
                        return Some(event);
                    }
                }
            });
            let event = tokio::select! {
                () = stopped.clone() => return None,
                () = tokio::time::sleep_until(until.into()) => return None,
                event = next => event,
            };
            match event {
                Ok(Some(event)) => Some((Ok(event), (receiver, stopped))),
                Ok(None) => None,
                Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), (receiver, stopped))),
            }
        })))
    }

    /// Looks as long as somebody does.
    async fn poll(self: Arc<Self>, role: Role, events: Arc<Events>, database: Arc<Database>, viewer: Viewer) {
        loop {
            let begun = Instant::now();
            let event = event(&database, &viewer).await;
            let pause = EVERY.max(begun.elapsed() * REST);
            events.send_replace(Some(event));
            // The next viewer has to begin it anew, or finds it here: decided under the lock.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = events.closed() => {}
            }
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if events.receiver_count() == 0 || *self.stopped.borrow() {
                running.remove(&role);
                return;
            }
        }
    }
}

/// A look, or why there is none, as an event.
async fn event(database: &Database, viewer: &Viewer) -> Bytes {
    let mut found = database.look_in(viewer, LOOK, "UTC", look::OVERVIEW, &[]).await;
    // On a standby, and after a start, counts are counted. All else can be shown.
    if found.as_ref().is_err_and(|e| e.code == "57014") {
        found = database.look_in(viewer, LOOK, "UTC", look::OVERVIEW_UNCOUNTED, &[]).await;
    }
    match found {
        // An end of line would end the data; within strings JSON has none.
        Ok(json) => format!("event: overview\ndata: {}\n\n", json.replace('\n', " ")).into(),
        Err(e) => format!("event: trouble\ndata: {}\n\n", e.json()).into(),
    }
}
