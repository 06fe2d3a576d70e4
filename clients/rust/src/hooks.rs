//! Calls the hooks of a codec, if there is one, for all that is stored and read.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use crate::codec::{Codec, CodecError, Context, ContextKind, Encoded};
use crate::outcome::Done;
use crate::sql::Json;

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

    /// Returns whether values are stored as they are.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
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
