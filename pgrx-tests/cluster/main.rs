//! `pg_queue_cluster` on three and four servers: calls go to the right server and fail as they do at home, and no key
//! has two living jobs.
//!
//! `make test-cluster` puts PL/Proxy into the server under test. Without it these tests fail, so cargo runs them only
//! on request.

mod hangs;
mod outages;
mod peers;
mod privileges;
mod rebalance;
mod routes;
mod storm;
mod surface;
