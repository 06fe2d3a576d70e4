//! One look a second for all browsers of a role. The overview is pushed to each as a server-sent event.
//!
//! Invariants: while no browser is connected, nothing runs. After a look comes a pause 49 times as long, so that all
//! looks of a role but the first take at most a fiftieth of one processor. A viewer that may not look any more is told
//! so within two seconds, and its streams end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use futures_util::stream::{self, Stream};
use tokio::sync::watch;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::look;
use crate::share::Shares;
use crate::viewer::{UntilEnd, Viewer};

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a look is this many times as long as the look.
const PAUSES_PER_LOOK: u32 = 49;
/// A proxy may close a connection without data after some time, so an empty event comes this often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A stream ends at this age. Then the browser comes again, and its rights are checked again.
const MAX_AGE: Duration = Duration::from_secs(300);
/// At most this many streams are open, in total and for each viewer.
const MAX_STREAMS: usize = 2_000;
const MAX_STREAMS_OF_A_VIEWER: usize = 50;

/// The index of the database, the role, and the user that has logged in.
type Role = (usize, Option<String>, Option<String>);

/// An event as it is sent.
#[derive(Clone)]
struct Event {
    text: Bytes,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The database has answered, or has refused.
    Answered,
    /// The database could not be reached.
    Unanswered,
    /// The viewer may not look any more. The streams end.
    Last,
}

/// The last event. `None`: there was no event yet.
type Events = watch::Sender<Option<Event>>;

pub struct Polls {
    running: Mutex<HashMap<Role, Arc<Events>>>,
    streams: Arc<Shares<Viewer>>,
    stopped: watch::Sender<bool>,
}

pub type EventStream = Pin<Box<dyn Stream<Item = std::result::Result<Bytes, Infallible>> + Send>>;

impl Polls {
    pub fn new() -> Arc<Self> {
        let streams = Shares::new(MAX_STREAMS_OF_A_VIEWER, MAX_STREAMS);
        Arc::new(Self { running: Mutex::default(), streams, stopped: watch::Sender::new(false) })
    }

    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Returns when the program must end.
    pub fn until_stopped(&self) -> Shared<BoxFuture<'static, ()>> {
        let mut stopped = self.stopped.subscribe();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }.boxed().shared()
    }

    /// Returns the events for a browser. The last event, if there is one, comes immediately. If there is a session, the
    /// events end with it.
    ///
    /// Errors: 429 if too many streams are open.
    pub fn events(
        self: &Arc<Self>,
        place: usize,
        database: &Arc<Database>,
        viewer: &Viewer,
        session: Option<UntilEnd>,
    ) -> Result<EventStream> {
        let share = self.streams.take(viewer.clone()).ok_or_else(|| {
            Error::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "too many browsers are looking")
                .hint(format!("A viewer has at most {MAX_STREAMS_OF_A_VIEWER} open pages, all of them {MAX_STREAMS}."))
        })?;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
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
        let until = Instant::now() + MAX_AGE;
        let stopped = self.until_stopped();
        let ended = async move {
            let session = async {
                match session {
                    Some(session) => session.wait().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { () = stopped => {}, () = session => {}, () = tokio::time::sleep_until(until.into()) => {} }
        };
        let ended = ended.boxed().shared();
        let begun = Some((receiver, ended, share));
        Ok(Box::pin(stream::unfold(begun, |state| async {
            let (mut receiver, ended, share) = state?;
            let next = tokio::time::timeout(KEEP_ALIVE, async {
                loop {
                    receiver.changed().await.ok()?;
                    if let Some(event) = receiver.borrow_and_update().clone() {
                        return Some(event);
                    }
                }
            });
            let event = tokio::select! {
                () = ended.clone() => return None,
                event = next => event,
            };
            match event {
                Ok(Some(event)) if event.outcome == Outcome::Last => Some((Ok(event.text), None)),
                Ok(Some(event)) => Some((Ok(event.text), Some((receiver, ended, share)))),
                Ok(None) => None,
                Err(_) => Some((Ok(Bytes::from_static(b":\n\n")), Some((receiver, ended, share)))),
            }
        })))
    }

    /// Looks while any browser is connected.
    async fn poll(self: Arc<Self>, role: Role, events: Arc<Events>, database: Arc<Database>, viewer: Viewer) {
        let mut is_first = true;
        loop {
            let begun = Instant::now();
            let event = event(&database, &viewer).await;
            // The first look also connects and plans, so it says nothing about the others.
            let taken = if std::mem::take(&mut is_first) { Duration::ZERO } else { begun.elapsed() };
            let pause = LOOK_INTERVAL.max(taken * PAUSES_PER_LOOK);
            let mut outcome = event.outcome;
            events.send_replace(Some(event));
            let rest = async {
                let until = Instant::now() + pause;
                loop {
                    tokio::time::sleep_until(until.min(Instant::now() + LOOK_INTERVAL).into()).await;
                    if Instant::now() >= until {
                        return;
                    }
                    // During a long pause this checks whether the viewer may still look, and whether the database
                    // answers.
                    match database.admits(&viewer).await {
                        Ok(()) if outcome == Outcome::Unanswered => return,
                        Ok(()) => {}
                        Err(e) => {
                            let trouble = trouble(&e);
                            outcome = trouble.outcome;
                            events.send_replace(Some(trouble));
                        }
                    }
                }
            };
            // Whether a next viewer finds this loop or must start another one is decided under the lock.
            tokio::select! {
                () = rest => {}
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

/// Returns the result of a look, or its error, as an event.
async fn event(database: &Database, viewer: &Viewer) -> Event {
    match look::overview(database, viewer).await {
        // A line feed would end the data. JSON has none within strings.
        Ok(json) => {
            let text = format!("event: overview\ndata: {}\n\n", json.replace('\n', " "));
            Event { text: text.into(), outcome: Outcome::Answered }
        }
        Err(e) => trouble(&e),
    }
}

fn trouble(e: &Error) -> Event {
    let outcome = match (e.code.is_empty(), e.status) {
        // This program itself does not let the viewer look. A right that the database refuses may be granted soon.
        (true, axum::http::StatusCode::FORBIDDEN) => Outcome::Last,
        (true, _) => Outcome::Unanswered,
        (false, _) => Outcome::Answered,
    };
    Event { text: format!("event: trouble\ndata: {}\n\n", e.json()).into(), outcome }
}
