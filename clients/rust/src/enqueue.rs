//! Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
//! commits.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_postgres::GenericClient;
use tokio_postgres::error::Error;
use tokio_postgres::types::Type;

use crate::codec::{Codec, ContextKind};
use crate::hooks::Hooks;
use crate::sql::{Json, Parameters, interval, timestamp};
use crate::tracing;
use crate::upon::Upon;

/// What a call under the key of a living job does.
#[derive(Debug, Clone, Copy)]
enum OnDuplicate {
    Replace,
    Rerun,
    Error,
}

/// Ids of jobs.
type Ids = Vec<i64>;

/// The value of an option.
trait Given {
    /// Adds it to the parameters. Returns its number, and its cast in SQL.
    fn add(&self, parameters: &mut Parameters) -> (usize, &'static str);
    /// Returns it as a field of a task.
    fn json(&self) -> Value;
}

/// Values that the driver sends as they are.
macro_rules! plain {
    ($($kind:ty: $sql:ident, $json:expr;)*) => {$(
        impl Given for $kind {
            fn add(&self, parameters: &mut Parameters) -> (usize, &'static str) {
                (parameters.push(self.clone(), Type::$sql), "")
            }
            fn json(&self) -> Value {
                let json: fn(&Self) -> Value = $json;
                json(self)
            }
        }
    )*};
}
plain! {
    i32: INT4, |number| Value::from(*number);
    i64: INT8, |id| Value::from(*id);
    Ids: INT8_ARRAY, |ids| Value::from(ids.clone());
    String: TEXT, |text| Value::from(text.as_str());
    SystemTime: TIMESTAMPTZ, |time| Value::from(timestamp(*time));
}

/// Values that are sent as texts, with a cast.
macro_rules! texts {
    ($($kind:ty: $cast:literal, $text:expr;)*) => {$(
        impl Given for $kind {
            fn add(&self, parameters: &mut Parameters) -> (usize, &'static str) {
                let text: fn(&Self) -> String = $text;
                (parameters.push(text(self), Type::TEXT), $cast)
            }
            fn json(&self) -> Value {
                let text: fn(&Self) -> String = $text;
                Value::from(text(self))
            }
        }
    )*};
}
texts! {
    Duration: "::interval", |duration| interval(*duration);
    Upon: "", |upon| upon.name().to_owned();
    OnDuplicate: "", |word| format!("{word:?}").to_lowercase();
}

impl Given for Value {
    fn add(&self, parameters: &mut Parameters) -> (usize, &'static str) {
        (parameters.push(self.to_string(), Type::TEXT), "::jsonb")
    }
    fn json(&self) -> Value {
        self.clone()
    }
}

/// The method that sets an option.
macro_rules! setter {
    ($(#[$doc:meta])* $name:ident: OnDuplicate) => {};
    ($(#[$doc:meta])* $name:ident: String) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: impl Into<String>) -> Self {
            self.$name = Some($name.into());
            self
        }
    };
    ($(#[$doc:meta])* $name:ident: Ids) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: impl IntoIterator<Item = i64>) -> Self {
            self.$name = Some($name.into_iter().collect());
            self
        }
    };
    ($(#[$doc:meta])* $name:ident: $kind:ident) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: $kind) -> Self {
            self.$name = Some($name);
            self
        }
    };
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $kind:ident,)*) => {
        /// The options of `queue.enqueue`. The defaults are those of the function.
        #[derive(Debug, Clone, Default)]
        pub struct Options {
            $($name: Option<$kind>,)*
            pub(crate) codec: Hooks,
        }

        impl Options {
            $(setter! { $(#[$doc])* $name: $kind })*

            /// Returns the named arguments of a call, each after a comma. Adds their values to the parameters.
            pub(crate) fn arguments(&self, parameters: &mut Parameters) -> String {
                let given = Self { headers: tracing::inject(self.headers.clone()), ..self.clone() };
                let mut text = String::new();
                $(if let Some(value) = given.$name {
                    let (number, cast) = value.add(parameters);
                    text.push_str(&format!(", {} => ${number}{cast}", stringify!($name)));
                })*
                text
            }

            /// Returns the options as fields of an object, for `tasks`.
            pub(crate) fn fields(&self) -> Map<String, Value> {
                let given = Self { headers: tracing::inject(self.headers.clone()), ..self.clone() };
                let mut fields = Map::new();
                $(if let Some(value) = given.$name {
                    fields.insert(stringify!($name).to_owned(), value.json());
                })*
                fields
            }
        }
    };
}

options! {
    // options of jobs by language: made by `make generate`
    /// A job with a smaller priority runs first.
    priority: i32,
    /// The job does not run before this time has passed.
    delay: Duration,
    /// The job does not run before this time, which may be past. Not together with `delay`.
    run_at: SystemTime,
    /// A queue has at most one living job with this key.
    unique_key: String,
    /// What happens if a living job has the key: the call does nothing, the job gets its contents, the job runs once
/// more, or the call is an error.
    on_duplicate: OnDuplicate,
    /// A call whose version is not larger than the known version of the key does nothing, and returns the job's id.
    version: SystemTime,
    /// The key stays taken for this time from now, even if the job has ended.
    unique_for: Duration,
    /// The group in which the queue's limits per group count the job.
    group_key: String,
    /// The stage in which a new job begins. Another run of a job under its key begins in the first stage.
    stage: String,
    /// After this many counted attempts the job is dead.
    max_attempts: i32,
    /// How long a claim of the job lasts without a heartbeat.
    lease: Duration,
    /// An object that is kept beside the payload, for instance with a trace id.
    headers: Value,
    /// The job is held until these jobs have ended as `upon` says.
    after: Ids,
    /// What the job waits for, of the jobs in `after`: that all have completed, that one has completed, that one is
/// dead, that all have ended in any way, or that they have not ended by `run_at` or the end of `delay`.
    upon: Upon,
    /// The job becomes a member of this flow, which waits for it.
    flow: i64,
    /// The job's name in its flow.
    task: String,
    /// If no worker has claimed the job before this time, the job expires.
    start_by: SystemTime,
    /// If no worker has claimed the job within this time, which begins at `run_at` or at the end of `delay`, the job
/// expires. Not together with `start_by`.
    start_within: Duration,
    /// Calls under the key put the waiting job off at most this long after the first of them.
    max_delay: Duration,
    // end of options of jobs by language
}

impl Options {
    /// Returns options that are all at their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// A living job under the key gets this call's contents.
    pub fn or_replace(mut self) -> Self {
        self.on_duplicate = Some(OnDuplicate::Replace);
        self
    }

    /// A living job under the key runs once more.
    pub fn or_rerun(mut self) -> Self {
        self.on_duplicate = Some(OnDuplicate::Rerun);
        self
    }

    /// A living job under the key is an error, `23505`.
    pub fn or_error(mut self) -> Self {
        self.on_duplicate = Some(OnDuplicate::Error);
        self
    }

    /// Encodes the payload, and in a flow those of its tasks.
    pub fn codec(mut self, codec: impl Codec + 'static) -> Self {
        self.codec = Hooks::new(codec);
        self
    }
}

/// Adds a job and returns its id. If the payload cannot be written as JSON, that is an error of the driver.
pub async fn enqueue<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: impl Serialize,
    options: Options,
) -> Result<i64, Error> {
    let payload = options.codec.json(payload, ContextKind::Payload, queue);
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(payload.await, Type::JSONB);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue($1, $2{arguments})");
    Ok(client.query_typed_one(&sql, &parameters.list()).await?.get(0))
}

/// Adds one job for each payload, all with the same options, and returns their ids in the order of the payloads.
pub async fn enqueue_many<C: GenericClient + Sync, P: Serialize>(
    client: &C,
    queue: &str,
    payloads: impl IntoIterator<Item = P>,
    options: Options,
) -> Result<Vec<i64>, Error> {
    let payloads = payloads.into_iter().map(|payload| options.codec.json(payload, ContextKind::Payload, queue));
    let payloads: Vec<Json> = join_all(payloads.collect::<Vec<_>>()).await;
    let mut parameters = Parameters::default().with(queue.to_owned(), Type::TEXT).with(payloads, Type::JSONB_ARRAY);
    let arguments = options.arguments(&mut parameters);
    let sql = format!("SELECT queue.enqueue_many($1, $2{arguments})");
    Ok(client.query_typed(&sql, &parameters.list()).await?.iter().map(|row| row.get(0)).collect())
}
