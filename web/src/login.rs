//! Logins: a name and a password, which the database is asked about.
//!
//! Invariants: few passwords are tried at a time, and no permit is held while somebody pauses. A wrong password is answered
//! after a pause, which is longer for a name or address with many wrong ones. Who waits is bounded, for each address, for each
//! name and in all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::share::Shares;

/// So many passwords are tried at once.
const TRIES: usize = 4;
/// So many logins wait, for their turn or in their pause: from one address, under one name, in all.
const MAX_WAITING_OF_AN_ADDRESS: usize = 150;
const MAX_WAITING_OF_A_NAME: usize = 300;
const MAX_WAITING: usize = 600;
/// A login waits at most so long for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after a wrong password, and where so many were wrong within the time.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(5);
const MANY_WRONG: u32 = 10;
const WRONG_COUNT_FOR: Duration = Duration::from_secs(60);
/// So many names and addresses are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Longer ones are wrong without being tried: a name of PostgreSQL has at most 63 bytes.
const MAX_NAME_BYTES: usize = 63;
const MAX_PASSWORD_BYTES: usize = 1_000;

/// Who is held to have typed a wrong password.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Suspect {
    Name(String),
    /// `None`: this machine.
    Address(Option<IpAddr>),
}

struct Wrong {
    count: u32,
    last: Instant,
}

pub struct Logins {
    tries: Arc<Semaphore>,
    by_name: Arc<Shares<String>>,
    by_address: Arc<Shares<Option<IpAddr>>>,
    wrong: Mutex<HashMap<Suspect, Wrong>>,
}

impl Logins {
    pub fn new() -> Self {
        Self {
            tries: Arc::new(Semaphore::new(TRIES)),
            by_name: Shares::new(MAX_WAITING_OF_A_NAME, MAX_WAITING),
            by_address: Shares::new(MAX_WAITING_OF_AN_ADDRESS, MAX_WAITING),
            wrong: Mutex::default(),
        }
    }

    /// Asks the database whether this is the password of a role that may log in, and pauses if it is not.
    ///
    /// Errors: 429 too many wait, 503 the server does not ask for passwords, or is not there.
    pub async fn is_right(
        &self,
        database: &Arc<Database>,
        address: Option<IpAddr>,
        user: &str,
        password: &str,
    ) -> Result<bool> {
        let name: String = user.chars().take(MAX_NAME_BYTES).collect();
        // Held to the end, also over the pause.
        let shares = (self.by_address.take(address), self.by_name.take(name.clone()));
        let (Some(_of_address), Some(_of_name)) = shares else { return Err(too_many()) };
        let is_possible = !user.is_empty()
            && user.len() <= MAX_NAME_BYTES
            && !password.is_empty()
            && password.len() <= MAX_PASSWORD_BYTES;
        if is_possible && self.try_it(database, user, password).await? {
            return Ok(true);
        }
        tokio::time::sleep(self.pause_of([Suspect::Name(name), Suspect::Address(address)])).await;
        Ok(false)
    }

    async fn try_it(&self, database: &Arc<Database>, user: &str, password: &str) -> Result<bool> {
        let turn = tokio::time::timeout(PATIENCE, self.tries.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(too_many()) };
        let (database, user, password) = (database.clone(), user.to_owned(), password.to_owned());
        // To its end, also where the browser has gone: the server is busy with it that long.
        let task = tokio::spawn(async move {
            let known = database.knows(&user, &password).await;
            drop(turn);
            known
        });
        task.await.map_err(|e| Error::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?
    }

    /// Notes a wrong password. Returns how long to pause.
    fn pause_of(&self, suspects: [Suspect; 2]) -> Duration {
        let now = Instant::now();
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() + suspects.len() > MAX_REMEMBERED {
            wrong.retain(|_, known| now - known.last < WRONG_COUNT_FOR);
        }
        let mut most = 0;
        for suspect in suspects {
            if wrong.len() >= MAX_REMEMBERED && !wrong.contains_key(&suspect) {
                // So many names within a minute are no typing errors.
                most = MANY_WRONG;
                continue;
            }
            let known = wrong.entry(suspect).or_insert(Wrong { count: 0, last: now });
            if now - known.last >= WRONG_COUNT_FOR {
                known.count = 0;
            }
            *known = Wrong { count: known.count.saturating_add(1), last: now };
            most = most.max(known.count);
        }
        if most >= MANY_WRONG { LONG_PAUSE } else { PAUSE }
    }
}

fn too_many() -> Error {
    Error::new(StatusCode::TOO_MANY_REQUESTS, "too many logins are waiting").hint("Try again in a few seconds.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_wrong_ones_pause_longer_and_what_is_remembered_is_bounded() {
        let logins = Logins::new();
        let of = |n: u32| [Suspect::Name(format!("{n}")), Suspect::Address(Some(IpAddr::from(n.to_be_bytes())))];
        for _ in 1..MANY_WRONG {
            assert_eq!(logins.pause_of(of(0)), PAUSE);
        }
        assert_eq!(logins.pause_of(of(0)), LONG_PAUSE);
        assert_eq!(logins.pause_of(of(1)), PAUSE, "others");
        for n in 0..20_000 {
            logins.pause_of(of(n));
        }
        assert_eq!(logins.wrong.lock().unwrap().len(), MAX_REMEMBERED);
        assert_eq!(logins.pause_of(of(30_000)), LONG_PAUSE);
    }
}
