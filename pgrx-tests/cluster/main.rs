//! `pg_queue_cluster` on three and four servers: calls go where they belong, fail as they do at home, and no key lives
//! twice.
//!
//! `make test-cluster` puts PL/Proxy into the server under test. Without it these tests fail, so cargo runs them only
//! when they are asked for.

mod hangs;
mod outages;
mod peers;
mod privileges;
mod rebalance;
mod routes;
mod storm;
mod surface;
