//! The events that hit the primary.

/// The events that hit the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Event {
    Switchover,
    KillServer,
    /// The primary ends, and soon afterwards the promoted server, which may not have a synchronous standby yet.
    KillTwice,
    /// The synchronous standby ends, and soon afterwards the primary.
    KillBoth,
    /// The primary ends. It is not started again before another server is promoted.
    KillPatroni,
    /// The primary reaches neither the other nodes nor their etcd. Clients still reach it.
    CutOff,
    /// Nobody reaches the primary.
    CutOffFromAll,
    /// The whole node stands still, as a paused virtual machine does, and continues later.
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

    /// Returns how many servers are promoted, one after the other.
    pub fn promotions(self) -> usize {
        if self == Self::KillTwice { 2 } else { 1 }
    }
}
