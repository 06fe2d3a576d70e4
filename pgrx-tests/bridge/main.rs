//! `pg_queue_bridge` and `bridge/primary.sql` on two real servers: a primary without pg_queue, and a queue server.

mod arrivals;
mod clocks;
mod failures;
mod hostile;
mod missing;
mod outages;
mod pair;
mod planted;
mod readiness;
mod restores;
mod rights;
mod silent;
mod storm;
mod surface;
mod waiting;
