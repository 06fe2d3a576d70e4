//! Whether an instance may be used, or its tables are being restored: the state in shared memory. `Restoring` is the
//! state during a restore.
//!
//! Responsible for the state and its last writer. Not responsible for the mirror that verbs read without a lock
//! (`awake`), nor for noticing and ending a restore (`restore`).
//!
//! Invariant: a state changes under the frontier's lock only.

use std::fmt;

use pgrx::pg_sys;

use crate::guc;
use crate::pg::{role, session, syscache, time};

/// Whether an instance may be used.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// No session has read `queue.restoring` since the start.
    #[default]
    Unread = 0,
    /// It may be used.
    Awake,
    /// Its tables are being restored, or were and the restore is not known to be over.
    Restoring,
}

/// The session of a foreign write, described for an administrator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writer {
    pid: i32,
    role: Name,
    application: Name,
    table: Name,
}

impl Writer {
    /// Describes this session, which writes to this table. Must run in a transaction.
    pub fn this_session(table: pg_sys::Oid) -> Self {
        Self {
            pid: session::pid(),
            role: Name::of(&role::session_role()),
            application: Name::of(&session::application_name()),
            table: Name::of(&syscache::table_name(table).unwrap_or_default()),
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, role, application, table } = self;
        write!(f, "process {pid} of role \"{role}\" (application \"{application}\") on table queue.{table}")
    }
}

/// A name of Postgres's, in shared memory: at most 64 bytes (NAMEDATALEN), filled up with zero bytes.
#[derive(Clone, Copy, Debug)]
struct Name([u8; 64]);

impl Default for Name {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Name {
    /// Makes a name of a text. A longer one is cut off.
    fn of(text: &str) -> Self {
        let mut name = Self::default();
        let fits = name.0.len().min(text.len());
        name.0[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        name
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..end]))
    }
}

/// The state of an instance with regard to foreign writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreState {
    pub state: State,
    /// The state that returns if the open writers write nothing. If other transactions have written, it is `Restoring`.
    pub before: State,
    /// The foreign writer that was noticed last. Its `pid` is 0 if there was none.
    pub writer: Writer,
    /// The number of open transactions with foreign writes.
    pub writers: u32,
    /// Counts the marks of foreign writes, so that an adoption that began before one is void.
    pub marks: u64,
    /// The monotonic time at which the last of the writers ended.
    pub quiet_since: i64,
    /// The monotonic time before which it is not worthwhile to look again whether the restore is over.
    pub look_at: i64,
    /// Whether the server's log already says why the restore does not end.
    pub is_told: bool,
    /// Whether the server's log already says for which session the restore waits.
    pub is_busy_told: bool,
    /// Whether entries of `running` may belong to rows that are gone.
    pub is_suspect: bool,
}

impl RestoreState {
    /// Whether the instance may be used.
    pub fn is_awake(&self) -> bool {
        self.state == State::Awake
    }

    /// Returns the number of open transactions with foreign writes. `None` if the instance is not dormant.
    pub fn writers(&self) -> Option<u32> {
        (self.state == State::Restoring).then_some(self.writers)
    }

    /// Returns when, on the monotonic clock, a session should look whether the restore is over. `i64::MAX`: there is no
    /// such time; a change of state wakes the worker.
    pub fn look_at(&self) -> i64 {
        match self.state {
            State::Unread => i64::MIN,
            State::Restoring if self.writers == 0 => self.quiet_since.saturating_add(quiet_us()).max(self.look_at),
            State::Awake | State::Restoring => i64::MAX,
        }
    }

    /// Returns the foreign writer that was noticed last. `None` if there was none since the start of the server.
    pub fn writer(&self) -> Option<Writer> {
        (self.writer.pid != 0).then_some(self.writer)
    }

    /// Records that a transaction with foreign writes has ended. Returns whether the instance is again in the state of
    /// before, since nothing was written. The caller holds the frontier's lock, and updates the mirror
    /// (`words::awake`).
    pub fn writer_ended(&mut self, has_written: bool) -> bool {
        self.writers = self.writers.saturating_sub(1);
        self.quiet_since = time::monotonic_us();
        if has_written {
            self.before = State::Restoring;
        }
        let is_over = self.state == State::Restoring && self.writers == 0 && self.before != State::Restoring;
        if is_over {
            self.state = self.before;
        }
        is_over
    }
}

/// Returns how long no foreign write may come before a restore counts as over, in microseconds
/// (`pg_queue.restore_quiet`).
pub fn quiet_us() -> i64 {
    i64::from(guc::RESTORE_QUIET.get()) * 1_000_000
}
