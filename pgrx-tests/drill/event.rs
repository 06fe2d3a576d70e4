//! What befalls the primary.

/// What befalls the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Event {
    Switchover,
    KillServer,
    /// And the server that was promoted as well, soon after: while it may not have a synchronous standby yet.
    KillTwice,
    /// The synchronous standby, and soon after it the primary.
    KillBoth,
    /// And nothing starts it again before another server is promoted.
    KillPatroni,
    /// It reaches neither the other nodes nor their etcd; clients still reach it.
    CutOff,
    /// Nothing reaches it any more.
    CutOffFromAll,
    /// The whole node stands still, as a virtual machine that is paused, and goes on where it was.
    Freeze,
}

impl Event {
    pub fn name(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::KillServer => "kill -9 of the server",
            Self::KillTwice => "kill -9 of two primaries",
            Self::KillBoth => "kill -9 of standby, too",
            Self::KillPatroni => "kill -9 of Patroni",
            Self::CutOff => "cut off from the others",
            Self::CutOffFromAll => "cut off from all",
            Self::Freeze => "frozen",
        }
    }

    /// How many servers are promoted, one after the other.
    pub fn promotions(self) -> usize {
        if self == Self::KillTwice { 2 } else { 1 }
    }
}
