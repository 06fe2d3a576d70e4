//! Codecs: what is stored of payloads, results, progress and steps, so that the server need not see them.
//!
//! `AesGcm`, with the feature `aes-gcm`, encrypts. docs/encryption.md describes what it stores, byte by byte, and
//! clients/conformance/codec.json has examples.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;

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

impl<C: Codec + ?Sized> Codec for Arc<C> {
    fn encode<'a>(&'a self, value: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        (**self).encode(value, context)
    }

    fn decode<'a>(&'a self, stored: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        (**self).decode(stored, context)
    }
}
