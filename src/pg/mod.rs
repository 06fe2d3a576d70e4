//! The fence: calls of Postgres and of the system as safe functions. Nothing in here knows what a queue is.
//!
//! Responsible for every `unsafe` call that is neither a change of shared memory (`shmem`) nor a callback
//! (`transaction::callbacks`, `worker`, the macro in `api`). Not responsible for what the tables mean (`log`).
//!
//! Invariant: each `unsafe` block says why it is sound.

pub mod argument;
pub mod background;
pub mod btree;
pub mod budget;
pub mod call;
pub mod client;
pub mod datum;
pub mod descriptor;
pub mod emptying;
pub mod fault;
pub mod function;
pub mod jsonb;
pub mod jsonpath;
pub mod lock;
pub mod memory;
pub mod open;
pub mod parameter;
pub mod pass_on;
pub mod portal;
pub mod process;
pub mod raw;
pub mod relcache;
pub mod role;
pub mod routine;
pub mod row;
pub mod scan;
pub mod sequence;
pub mod session;
pub mod shape;
pub mod snapshot;
pub mod statement_log;
pub mod stored_json;
pub mod syscache;
pub mod table;
pub mod time;
pub mod time_limit;
pub mod transaction;
pub mod trigger;
pub mod unbound;
pub mod unguarded;
pub mod zone;
