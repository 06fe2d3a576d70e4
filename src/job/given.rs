//! The options of a job as a producer gives them: arguments of a call, or fields of JSON.
//!
//! Responsible for the one table of them (name and type), for reading each by its name from either, and for checking
//! all of them together. Not responsible for the range of a single one (`options`).
//!
//! Invariant: an option is checked in the same way, whether it is an argument or a field.

use std::borrow::Cow;

use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::error::{Error, Result};
use crate::job::headers;
use crate::job::options::{After, OnDuplicate, Options, Unique};
use crate::pg::argument::{Argument, kind, position};
use crate::pg::datum::{Interval, text_datum};
use crate::pg::function::Call;
use crate::pg::jsonb::{self, Value};
use crate::pg::stored_json;

/// How much of a wrong value an error shows.
const MAX_SHOWN_BYTES: usize = 100;

/// A `timestamptz`, in microseconds.
#[derive(Clone, Copy)]
pub struct Time(pub i64);

/// A `text` that is stored as it is.
#[derive(Clone, Copy)]
pub struct Key(pub Datum);

/// A `jsonb` that is stored.
#[derive(Clone, Copy)]
pub struct Json(pub Datum);

/// A `bigint[]`.
pub type Ids = Vec<Option<i64>>;

/// The type of an option.
trait Kind<'a>: Sized {
    /// From an argument. `None`: it is NULL or was not given.
    ///
    /// Errors: 22023 for JSON that is nested too deeply or too long.
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>>;

    /// From a field.
    ///
    /// Errors: 22023 when it is of another type.
    fn of_field(value: &Value, name: &str) -> Result<Self>;
}

/// The error for a field of another type.
fn wrong(value: &Value, name: &str, wanted: &str) -> Error {
    Error::invalid(format!("field \"{name}\" must be {wanted}"))
        .detail(format!("It is {}.", value.brief(MAX_SHOWN_BYTES)))
}

/// Reads a text in a field.
///
/// Errors: 22023 when it is not a text.
pub fn text_of_field(value: &Value, name: &str) -> Result<String> {
    value.as_str().ok_or_else(|| wrong(value, name, "a string"))
}

impl<'a> Kind<'a> for i32 {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.get(Argument::<kind::Integer>::at(n, name)))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        value.as_i32().ok_or_else(|| wrong(value, name, "an integer"))
    }
}

impl<'a> Kind<'a> for i64 {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.get(Argument::<kind::Bigint>::at(n, name)))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        value.as_i64().ok_or_else(|| wrong(value, name, "a job id"))
    }
}

impl<'a> Kind<'a> for Interval {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.get(Argument::<kind::Interval>::at(n, name)))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        value.as_str().and_then(|text| jsonb::interval(&text)).ok_or_else(|| {
            wrong(value, name, "an interval, as a string").hint(format!("For instance: \"{name}\": \"30 seconds\"."))
        })
    }
}

impl<'a> Kind<'a> for Time {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.get(Argument::<kind::Timestamp>::at(n, name)).map(Self))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        value.as_str().and_then(|text| jsonb::timestamp(&text)).map(Self).ok_or_else(|| {
            wrong(value, name, "a timestamp, as a string")
                .hint(format!("For instance: \"{name}\": \"2030-01-31 12:00:00+00\"."))
        })
    }
}

impl<'a> Kind<'a> for Key {
    fn of_argument(call: &'a Call, n: usize, _: &'static str) -> Result<Option<Self>> {
        Ok(call.raw(n).map(Self))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        text_of_field(value, name).map(|text| Self(text_datum(&text)))
    }
}

impl<'a> Kind<'a> for Cow<'a, str> {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.str(Argument::at(n, name)))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        text_of_field(value, name).map(Cow::Owned)
    }
}

impl<'a> Kind<'a> for Json {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.json(Argument::at(n, name))?.map(Self))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        let json = value.datum();
        stored_json::check(json, name)?;
        Ok(Self(json))
    }
}

impl<'a> Kind<'a> for Ids {
    fn of_argument(call: &'a Call, n: usize, name: &'static str) -> Result<Option<Self>> {
        Ok(call.get(Argument::<kind::Bigints>::at(n, name)))
    }
    fn of_field(value: &Value, name: &str) -> Result<Self> {
        let of = |value: &Value| if value.is_null() { Some(None) } else { value.as_i64().map(Some) };
        let ids = jsonb::elements(value.datum()).and_then(|ids| ids.iter().map(of).collect());
        ids.ok_or_else(|| wrong(value, name, "an array of job ids"))
    }
}

/// Makes the struct and its readers of the table of options.
macro_rules! options {
    ($($name:ident: $kind:ty,)*) => {
        /// The positions of the options among a verb's arguments.
        pub struct Positions {
            $($name: usize,)*
        }

        impl Positions {
            /// Returns the positions by the names of a verb's arguments, which may lack some options.
            pub const fn of(names: &[&str]) -> Self {
                Self { $($name: position(names, stringify!($name)),)* }
            }
        }

        /// The options that a producer has given. `None`: the default.
        #[derive(Default)]
        pub struct Given<'a> {
            $(pub $name: Option<$kind>,)*
        }

        impl<'a> Given<'a> {
            /// The names of all options.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Reads the arguments of a call.
            ///
            /// Errors: 22023 for JSON that is nested too deeply or too long.
            pub fn of_call(call: &'a Call, at: &Positions) -> Result<Self> {
                Ok(Self { $($name: Kind::of_argument(call, at.$name, stringify!($name))?,)* })
            }

            /// Reads a field. A null counts as left out. Returns false if there is no option of that name.
            ///
            /// Errors: 22023 when it is of another type.
            pub fn set(&mut self, name: &str, value: &Value) -> Result<bool> {
                match name {
                    $(stringify!($name) if value.is_null() => {})*
                    $(stringify!($name) => self.$name = Some(Kind::of_field(value, name)?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }
        }
    };
}

options! {
    // options of jobs: made by `make generate`
    priority: i32,
    delay: Interval,
    run_at: Time,
    unique_key: Key,
    on_duplicate: Cow<'a, str>,
    version: Time,
    unique_for: Interval,
    group_key: Key,
    stage: Cow<'a, str>,
    max_attempts: i32,
    lease: Interval,
    headers: Json,
    after: Ids,
    upon: Cow<'a, str>,
    flow: i64,
    task: Key,
    start_by: Time,
    start_within: Interval,
    max_delay: Interval,
    // end of options of jobs
}

impl Given<'_> {
    /// Checks the options and converts them. `queue`: the job's queue. `None`: the queue is not known here, and a stage
    /// is refused.
    ///
    /// Errors: 22023 and 22004 for values out of range or in contradiction.
    pub fn check(self, queue: Option<&Queue>, now: i64) -> Result<Options> {
        let mut options = Options {
            priority: self.priority.unwrap_or(0),
            headers: self.headers.map(|Json(headers)| headers),
            lane: self.stage.zip(queue).map(|(stage, queue)| queue.stage(&stage)).transpose()?,
            flow: self.flow,
            ..Options::default()
        };
        options.set_group_key(self.group_key.map(|Key(key)| key))?;
        let has_time = self.delay.is_some() || self.run_at.is_some();
        options.set_start(self.delay, self.run_at.map(|Time(at)| at), now)?;
        let on_duplicate = self.on_duplicate.map_or(Ok(OnDuplicate::Skip), |name| OnDuplicate::parse(&name))?;
        let (key, version) = (self.unique_key.map(|Key(key)| key), self.version.map(|Time(version)| version));
        options.unique = Unique::new(key, on_duplicate, version, self.unique_for, now)?;
        headers::check(options.headers)?;
        options.set_timing(self.start_by.map(|Time(at)| at), self.start_within, self.max_delay)?;
        options.set_max_attempts(self.max_attempts)?;
        options.set_lease(self.lease)?;
        options.after = After::new(self.after, self.upon.as_deref(), has_time)?;
        options.set_task(self.task.map(|Key(name)| name))?;
        if let Some(queue) = queue {
            options.note_group(queue);
        }
        Ok(options)
    }
}
