//! The example workers do what `examples/README.md` says of them, as seen from outside: each runs as a process of its
//! own against a real server, directly and through PgBouncer in transaction mode.
//!
//! The tutorials of `docs/tutorials` run from the first line to the last, each in an empty folder.
//!
//! A test of the workers has one server, and on it a *place* for each example and each way to connect: all go through
//! the same, side by side. `make examples` gets what they need; where something is missing the tests fail and say what.

mod language;
mod lives;
mod place;
mod split;
mod terminal;
mod tutorials;
