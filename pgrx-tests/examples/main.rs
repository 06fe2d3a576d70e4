//! Tests that the example workers do what `examples/README.md` says. Each runs as a process against a real server,
//! directly and through PgBouncer in transaction mode.
//!
//! The tutorials of `docs/tutorials` run from the first line to the last, each in an empty folder.
//!
//! A test of the workers has one server with a *place* for each example and each way to connect. All places do the same
//! at the same time. `make examples` gets the programs. If one is missing, the tests fail and name it.

mod language;
mod lives;
mod place;
mod split;
mod terminal;
mod tutorials;
