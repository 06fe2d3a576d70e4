//! Producers and workers for [pg_queue], the job queue inside PostgreSQL, with tokio-postgres.
//!
//! [`enqueue()`] adds jobs in the caller's own transaction. A [`Worker`] runs them with handlers. The terms are those
//! of pg_queue: a *job* is run in *attempts*, each under a *lease*. README.md shows all of it.
//!
//! [pg_queue]: https://crates.io/crates/pg-queue-client

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "aes-gcm")]
mod aes;
mod backoff;
mod batch;
mod claimer;
mod codec;
mod connection;
mod control;
mod effects;
mod endings;
mod engine;
mod enqueue;
mod event;
mod flow;
mod hooks;
mod job;
mod outcome;
mod publish;
mod ready;
mod settings;
mod shared;
mod sql;
mod state;
#[cfg(feature = "testing")]
pub mod testing;
mod tracing;
mod upon;
mod watchdog;
mod worker;

#[cfg(feature = "aes-gcm")]
pub use aes::AesGcm;
pub use batch::{Batch, BatchTransaction, Each};
pub use codec::{Codec, CodecError, Context, ContextKind};
pub use enqueue::{Options, enqueue, enqueue_many};
pub use event::{Event, EventKind};
pub use flow::{Flow, Task, enqueue_flow, reject, resolve, seal};
/// What the hooks of a [`Codec`] return: `Box::pin(async move { … })`.
pub use futures_util::future::BoxFuture;
pub use job::{Input, Job, JobTransaction, OpenStep, Step};
pub use outcome::{Advance, Done, Failure, Fatal, RetryIn, Snooze, StopReason, Stopped, Suspend, Throttle};
pub use publish::{Publish, publish};
pub use settings::{Next, OnUnknown, WorkerError};
pub use upon::Upon;
pub use worker::{Stopper, Worker};
