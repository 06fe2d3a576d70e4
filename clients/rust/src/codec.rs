//! Codecs: what is stored of payloads, results, progress and steps, so that the server need not see them.
//!
//! `AesGcm`, with the feature `aes-gcm`, encrypts. docs/encryption.md describes what it stores, byte by byte, and
//! clients/conformance/codec.json has examples.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use crate::outcome::Done;
use crate::sql::Json;

/// Encodes and decodes what is stored of payloads, results, progress and steps.
pub trait Codec: Send + Sync {
    /// Returns the JSON that is stored for a value.
    fn encode<'a>(&'a self, value: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>>;

    /// Returns the value.
    fn decode<'a>(&'a self, stored: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>>;
}

/// What a value is, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// What it is.
    pub kind: ContextKind,
    /// The queue, or the topic for the payload of an event.
    pub name: String,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextKind {
    /// The payload of a job or an event.
    Payload,
    /// The result of a job.
    Result,
    /// The progress of a job.
    Progress,
    /// The result of a step.
    Step,
}

impl ContextKind {
    /// Returns its name: `payload`, `result`, `progress` or `step`.
    pub fn name(self) -> &'static str {
        match self {
            ContextKind::Payload => "payload",
            ContextKind::Result => "result",
            ContextKind::Progress => "progress",
            ContextKind::Step => "step",
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of {}", self.kind.name(), self.name)
    }
}

/// Why a value could not be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodecError {
    /// This worker has no codec or no key for the value. The job is released, as a job without a handler is.
    Unknown(String),
    /// The attempt fails.
    Failed(String),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CodecError::Unknown(text) | CodecError::Failed(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for CodecError {}

/// The parts of an encoded value.
pub(crate) struct Encoded<'a> {
    pub codec: &'a str,
    #[cfg_attr(not(feature = "aes-gcm"), expect(dead_code, reason = "no codec of this crate reads it"))]
    pub key: &'a str,
    #[cfg_attr(not(feature = "aes-gcm"), expect(dead_code, reason = "no codec of this crate reads it"))]
    pub data: &'a str,
}

impl<'a> Encoded<'a> {
    /// Reads stored JSON. `None`: it does not have the form of an encoded value.
    pub fn read(stored: &'a Value) -> Option<Self> {
        let parts = stored.as_object().filter(|parts| parts.len() == 3)?;
        let part = |name| parts.get(name).and_then(Value::as_str);
        let id = |name| part(name).filter(|id| is_id(id));
        Some(Self { codec: id("codec")?, key: id("key")?, data: part("data")? })
    }
}

/// Returns whether a text looks like the name of a codec or key. The log shows them.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() <= 100 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The codec of a worker or producer. Without one, values are stored as they are, and encoded values are left to other
/// workers.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Option<Arc<dyn Codec>>);

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "codec" } else { "no codec" })
    }
}

impl Hooks {
    pub fn new(codec: impl Codec + 'static) -> Self {
        Self(Some(Arc::new(codec)))
    }

    /// Returns what is stored for a value. Sending it is an error if it cannot be encoded. A result of null is none.
    pub fn json(&self, value: impl Serialize, kind: ContextKind, name: &str) -> BoxFuture<'static, Json> {
        if self.0.is_none() {
            let json = Json::of(value);
            return Box::pin(async { json });
        }
        let (hooks, value, name) = (self.clone(), serde_json::to_value(value), name.to_owned());
        Box::pin(async move {
            match value {
                Ok(Value::Null) if kind == ContextKind::Result => Json::of(()),
                Ok(value) => hooks.encode(value, kind, &name).await.map_or_else(|error| Json::error(&error), Json::of),
                Err(error) => Json::error(&error),
            }
        })
    }

    pub async fn json_if(&self, value: Option<Value>, kind: ContextKind, name: &str) -> Option<Json> {
        match value {
            Some(value) => Some(self.json(value, kind, name).await),
            None => None,
        }
    }

    /// Returns what a handler has returned, with its JSON as it is stored.
    pub async fn done(&self, mut done: Done, queue: &str) -> Result<Done, CodecError> {
        let (value, kind) = match &mut done {
            Done::Complete(result) => (Some(result).filter(|result| !result.is_null()), ContextKind::Result),
            Done::Advance(advance) => (advance.payload.as_mut(), ContextKind::Payload),
            Done::Suspend(suspend) => (suspend.progress.as_mut(), ContextKind::Progress),
        };
        if let Some(value) = value {
            *value = self.encode(std::mem::take(value), kind, queue).await?;
        }
        Ok(done)
    }

    pub async fn encode(&self, value: Value, kind: ContextKind, name: &str) -> Result<Value, CodecError> {
        match &self.0 {
            Some(codec) => codec.encode(value, &Context { kind, name: name.to_owned() }).await,
            None => Ok(value),
        }
    }

    pub async fn decode(&self, stored: Value, kind: ContextKind, name: &str) -> Result<Value, CodecError> {
        let context = || Context { kind, name: name.to_owned() };
        match (&self.0, Encoded::read(&stored)) {
            (Some(codec), _) => codec.decode(stored, &context()).await,
            (None, Some(Encoded { codec, .. })) => {
                Err(CodecError::Unknown(format!("no codec {codec} for {}", context())))
            }
            (None, None) => Ok(stored),
        }
    }
}

impl<C: Codec + ?Sized> Codec for Arc<C> {
    fn encode<'a>(&'a self, value: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        (**self).encode(value, context)
    }

    fn decode<'a>(&'a self, stored: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        (**self).decode(stored, context)
    }
}
