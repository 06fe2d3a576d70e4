//! `pg_queue_bridge` and `bridge/primary.sql` on two real servers: a primary without pg_queue, and a queue server.

mod arrivals;
mod clocks;
mod failures;
mod hostile;
mod outages;
mod pair;
mod restores;
mod rights;
mod storm;
mod surface;
