//! The library that the tests outside the server share: throw-away clusters, waiting, reading errors.
//!
//! [`Cluster`] starts a private server, [`wait`] polls with a deadline (no test sleeps and hopes), [`sql`] has short
//! methods for statements, [`error`] takes a client-side error apart, [`random`] gives random numbers with a seed,
//! [`integrity`] checks all tables and indexes with amcheck, [`pooler`] puts PgBouncer before a server, [`golden`]
//! drives `pg_regress` and `pg_isolation_regress`, [`markdown`] takes pages of documentation apart. Helpers panic and
//! say what they were doing: no caller could do better than fail the test.

mod cluster;
pub mod error;
pub mod fault;
pub mod golden;
pub mod installation;
pub mod integrity;
pub mod markdown;
pub mod pooler;
pub mod random;
mod scratch;
pub mod sql;
mod stop;
pub mod wait;

pub use cluster::Cluster;
pub use fault::Fault;
pub use stop::{KilledAtEnd, StopAtEnd};

/// An artificial earlier version of the extension. `xtask earlier` makes it from this one.
pub const EARLIER: &str = "0.0.1";
