//! Logins: a name and a password, which the database checks.
//!
//! Invariants: few passwords are tried at a time, and no permit is held during a pause. A wrong password is answered
//! after a pause, which is longer for a name or address with many wrong ones. Waiting logins are bounded for each
//! address and in total. Addresses with many wrong passwords take no room from others. No name is refused because of
//! what others have tried with it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::Semaphore;

use crate::database::Database;
use crate::error::{Error, Result};
use crate::share::Shares;

/// At most this many passwords are tried together.
const MAX_TRIES: usize = 4;
/// At most this many logins wait from one address, and in total. Logins of addresses with many wrong passwords, and
/// logins that pause, have separate room of the same size.
const MAX_WAITING_OF_AN_ADDRESS: usize = 150;
const MAX_WAITING: usize = 600;
/// A login waits at most this long for its turn.
const MAX_TURN_WAIT: Duration = Duration::from_secs(10);

/// The pause after a wrong password. It is long after `MANY_WRONG_PASSWORDS` wrong ones. The count
/// starts again if none came for `WRONG_PASSWORD_MEMORY`.
const WRONG_PASSWORD_PAUSE: Duration = Duration::from_secs(1);
const LONG_WRONG_PASSWORD_PAUSE: Duration = Duration::from_secs(5);
const MANY_WRONG_PASSWORDS: u32 = 10;
const WRONG_PASSWORD_MEMORY: Duration = Duration::from_secs(60);
/// At most this many names and addresses are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Longer names and passwords are wrong without a try: a name of PostgreSQL has at most 63 bytes.
const MAX_NAME_BYTES: usize = 63;
const MAX_PASSWORD_BYTES: usize = 1_000;

/// The name or address for which a wrong password is counted.
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
    /// Logins of addresses without many wrong passwords, until their password was tried.
    waiting: Arc<Shares<Option<IpAddr>>>,
    /// All other logins, until the end of their pause.
    suspected: Arc<Shares<Option<IpAddr>>>,
    wrong: Mutex<HashMap<Suspect, Wrong>>,
}

impl Logins {
    pub fn new() -> Self {
        Self {
            tries: Arc::new(Semaphore::new(MAX_TRIES)),
            waiting: Shares::new(MAX_WAITING_OF_AN_ADDRESS, MAX_WAITING),
            suspected: Shares::new(MAX_WAITING_OF_AN_ADDRESS, MAX_WAITING),
            wrong: Mutex::default(),
        }
    }

    /// Asks the database whether this is the password of a role that may log in. Pauses if it is not.
    ///
    /// Errors: 429 if too many logins wait; 503 if the server does not ask for passwords, or is not there.
    pub async fn is_right(
        &self,
        database: &Arc<Database>,
        address: Option<IpAddr>,
        user: &str,
        password: &str,
    ) -> Result<bool> {
        let name: String = user.chars().take(MAX_NAME_BYTES).collect();
        let address = address.map(network);
        let room = if self.is_suspect(address) { &self.suspected } else { &self.waiting };
        let share = room.take(address).ok_or_else(too_many)?;
        let is_possible = !user.is_empty()
            && user.len() <= MAX_NAME_BYTES
            && !password.is_empty()
            && password.len() <= MAX_PASSWORD_BYTES;
        if is_possible && self.try_password(database, user, password).await? {
            return Ok(true);
        }
        let pause = self.pause_of([Suspect::Name(name), Suspect::Address(address)]);
        drop(share);
        // Without room the login is refused immediately, because too many already pause.
        let _share = self.suspected.take(address).ok_or_else(too_many)?;
        tokio::time::sleep(pause).await;
        Ok(false)
    }

    /// True if an address recently had many wrong passwords.
    fn is_suspect(&self, address: Option<IpAddr>) -> bool {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let known = wrong.get(&Suspect::Address(address));
        known.is_some_and(|known| known.count >= MANY_WRONG_PASSWORDS && known.last.elapsed() < WRONG_PASSWORD_MEMORY)
    }

    async fn try_password(&self, database: &Arc<Database>, user: &str, password: &str) -> Result<bool> {
        let turn = tokio::time::timeout(MAX_TURN_WAIT, self.tries.clone().acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(too_many()) };
        let (database, user, password) = (database.clone(), user.to_owned(), password.to_owned());
        // The try runs to its end even if the browser has gone, because the server is busy with it until then.
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
            wrong.retain(|_, known| now - known.last < WRONG_PASSWORD_MEMORY);
        }
        let mut most = 0;
        for suspect in suspects {
            if wrong.len() >= MAX_REMEMBERED && !wrong.contains_key(&suspect) {
                // This many names within a minute are no typing errors.
                most = MANY_WRONG_PASSWORDS;
                continue;
            }
            let known = wrong.entry(suspect).or_insert(Wrong { count: 0, last: now });
            if now - known.last >= WRONG_PASSWORD_MEMORY {
                known.count = 0;
            }
            *known = Wrong { count: known.count.saturating_add(1), last: now };
            most = most.max(known.count);
        }
        if most >= MANY_WRONG_PASSWORDS { LONG_WRONG_PASSWORD_PAUSE } else { WRONG_PASSWORD_PAUSE }
    }
}

/// Returns what counts as one address. For IPv6 this is the network, because its owner has all addresses in it.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(of) if of.to_ipv4_mapped().is_none() => IpAddr::from((u128::from(of) >> 64 << 64).to_be_bytes()),
        other => other.to_canonical(),
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
        for _ in 1..MANY_WRONG_PASSWORDS {
            assert_eq!(logins.pause_of(of(0)), WRONG_PASSWORD_PAUSE);
        }
        assert_eq!(logins.pause_of(of(0)), LONG_WRONG_PASSWORD_PAUSE);
        assert_eq!(logins.pause_of(of(1)), WRONG_PASSWORD_PAUSE, "others");
        for n in 0..20_000 {
            logins.pause_of(of(n));
        }
        assert_eq!(logins.wrong.lock().unwrap().len(), MAX_REMEMBERED);
        assert_eq!(logins.pause_of(of(30_000)), LONG_WRONG_PASSWORD_PAUSE);
    }

    #[test]
    fn suspects_take_no_room_from_others() {
        let logins = Logins::new();
        let address = |n: u8| Some(IpAddr::from([10, 0, 0, n]));
        for n in 1..=6 {
            for _ in 0..MANY_WRONG_PASSWORDS {
                assert!(!logins.is_suspect(address(n)));
                logins.pause_of([Suspect::Name("ada".to_owned()), Suspect::Address(address(n))]);
            }
            assert!(logins.is_suspect(address(n)));
        }
        // Six suspects hold all the room that suspects may hold.
        let held: Vec<_> =
            (1..=6).flat_map(|n| (0..200).map(move |_| n)).filter_map(|n| logins.suspected.take(address(n))).collect();
        assert_eq!(held.len(), MAX_WAITING);
        assert!(!logins.is_suspect(address(7)), "another address, whatever was tried under the name");
        assert!(logins.waiting.take(address(7)).is_some());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
