//! The state in shared memory that says whether an instance may be used, or its tables are being restored. `Restoring`
//! is the state during a restore.
//!
//! Responsible for the state and its last writer. Not responsible for the mirror that verbs read without a lock
//! (`awake`), nor for noticing and ending a restore (`crate::restore`).
//!
//! Invariant: a state changes only under the frontier's lock.

use std::fmt;

use pgrx::pg_sys;

use crate::guc;
use crate::pg::{role, session, syscache, time};

/// The states of an instance with regard to restores.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// No session has read `queue_internal.restoring` since the start.
    #[default]
    Unread = 0,
    /// The instance may be used.
    Awake,
    /// The tables are being restored, or it is not known that a restore is over.
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
        write!(f, "process {pid} of role \"{role}\" (application \"{application}\") on table queue_internal.{table}")
    }
}

/// A name of Postgres in shared memory: at most 64 bytes (NAMEDATALEN), padded with zero bytes.
#[derive(Clone, Copy, Debug)]
struct Name([u8; 64]);

impl Default for Name {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Name {
    /// Makes a name of a text. A longer text is cut.
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
    /// The state to which the instance returns if the open writers write nothing. `Restoring`: another transaction has
    /// written.
    pub before: State,
    /// The last foreign writer that was noticed. `pid` 0: there was none.
    pub writer: Writer,
    /// The number of open transactions with foreign writes.
    pub writers: u32,
    /// Counts the marks of foreign writes. A mark voids an adoption that began before it.
    pub marks: u64,
    /// The monotonic time at which the last writer ended.
    pub quiet_since: i64,
    /// The monotonic time before which another look whether the restore is over is not worthwhile.
    pub look_at: i64,
    /// True if the server's log already says why the restore does not end.
    pub is_told: bool,
    /// True if the server's log already says for which session the restore waits.
    pub is_busy_told: bool,
    /// True if entries of `running` may belong to rows that were deleted.
    pub is_suspect: bool,
}

impl RestoreState {
    /// True if the instance may be used.
    pub fn is_awake(&self) -> bool {
        self.state == State::Awake
    }

    /// Returns the number of open transactions with foreign writes. `None`: the instance is not dormant.
    pub fn writers(&self) -> Option<u32> {
        (self.state == State::Restoring).then_some(self.writers)
    }

    /// Returns the monotonic time at which a session should look whether the restore is over. `i64::MAX`: no such time;
    /// a change of state wakes the worker.
    pub fn look_at(&self) -> i64 {
        match self.state {
            State::Unread => i64::MIN,
            State::Restoring if self.writers == 0 => self.quiet_since.saturating_add(quiet_us()).max(self.look_at),
            State::Awake | State::Restoring => i64::MAX,
        }
    }

    /// Returns the last foreign writer that was noticed. `None`: none since the start of the server.
    pub fn writer(&self) -> Option<Writer> {
        (self.writer.pid != 0).then_some(self.writer)
    }

    /// Records that a transaction with foreign writes has ended. Returns true if nothing was written, so that the
    /// instance is back in its previous state. The caller holds the frontier's lock, and updates the mirror
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

/// Returns for how long no foreign write may come before a restore counts as over, in microseconds
/// (`pg_queue.restore_quiet`).
pub fn quiet_us() -> i64 {
    i64::from(guc::RESTORE_QUIET.get()) * 1_000_000
}
