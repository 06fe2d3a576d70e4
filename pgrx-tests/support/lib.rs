//! What the tests outside the server share: throw-away clusters, waiting for facts, reading errors.
//!
//! [`Cluster`] starts a private server, [`wait`] polls with a deadline (no test sleeps and hopes),
//! [`error`] takes a client-side error apart, [`golden`] drives `pg_regress` and
//! `pg_isolation_regress`. Helpers panic with what they were doing: they have no caller who could do
//! better than fail the test.

mod cluster;
pub mod error;
pub mod golden;
pub mod installation;
mod scratch;
pub mod wait;

pub use cluster::Cluster;
