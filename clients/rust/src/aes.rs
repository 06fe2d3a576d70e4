//! The codec `aes-gcm/1`. docs/encryption.md describes what it stores, byte by byte.

use std::collections::HashMap;
use std::fmt;

use aes_gcm::aead::{Aead as _, Generate as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::codec::{Codec, CodecError, Context, Encoded, is_id};

const NAME: &str = "aes-gcm/1";

const NONCE_BYTES: usize = 12;

type Nonce = aes_gcm::aead::Nonce<Aes256Gcm>;

/// Encrypts with AES-256-GCM.
#[derive(Clone)]
pub struct AesGcm {
    ciphers: HashMap<String, Aes256Gcm>,
    current: String,
    strict: bool,
    accepts: HashMap<String, Vec<String>>,
}

impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME} with key {}", self.current)
    }
}

impl AesGcm {
    /// Returns a codec that encrypts with this key, under its id.
    ///
    /// # Panics
    ///
    /// As [`Self::key`].
    pub fn new(id: impl Into<String>, key: &[u8; 32]) -> Self {
        let current = id.into();
        let (ciphers, accepts) = Default::default();
        Self { ciphers, current: current.clone(), strict: false, accepts }.key(current, key)
    }

    /// Adds a key that decrypts, so that keys can be rotated.
    ///
    /// # Panics
    ///
    /// If the id has more than 100 characters, or others than those of ASCII from `!` to `~`.
    pub fn key(mut self, id: impl Into<String>, key: &[u8; 32]) -> Self {
        let id = id.into();
        assert!(is_id(&id), "the id {id:?} of a key must have at most 100 characters, of ASCII from ! to ~");
        self.ciphers.insert(id, Aes256Gcm::new(key.into()));
        self
    }

    /// Refuses values that are not encrypted. Default: they are read as they are, as long as producers without the
    /// codec exist.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Lets a queue accept values of other queues and topics: of a topic that it is bound to, and of a queue whose dead
    /// jobs are copied to it.
    pub fn accepts<N: Into<String>>(mut self, queue: &str, others: impl IntoIterator<Item = N>) -> Self {
        self.accepts.entry(queue.to_owned()).or_default().extend(others.into_iter().map(Into::into));
        self
    }

    fn encrypt(&self, nonce: &Nonce, value: &Value, context: &Context) -> Result<Value, CodecError> {
        let failed = |_| CodecError::Failed(format!("{context} is too long to encrypt"));
        let (text, aad) = (value.to_string(), associated(context, &context.name));
        let payload = Payload { msg: text.as_bytes(), aad: &aad };
        let sealed = self.ciphers[&self.current].encrypt(nonce, payload).map_err(failed)?;
        let data = STANDARD.encode([nonce.as_slice(), &sealed].concat());
        Ok(json!({"codec": NAME, "key": self.current, "data": data}))
    }

    fn decrypt(&self, stored: Value, context: &Context) -> Result<Value, CodecError> {
        let Some(Encoded { codec, key, data }) = Encoded::read(&stored) else {
            let refused = || CodecError::Failed(format!("{context} is not encrypted"));
            return if self.strict { Err(refused()) } else { Ok(stored) };
        };
        if codec != NAME {
            return Err(CodecError::Unknown(format!("no codec {codec} for {context}")));
        }
        let Some(cipher) = self.ciphers.get(key) else {
            return Err(CodecError::Unknown(format!("no key {key} of codec {codec} for {context}")));
        };
        let data = STANDARD.decode(data).unwrap_or_default();
        let accepted = self.accepts.get(&context.name).into_iter().flatten();
        let text = data.split_first_chunk::<NONCE_BYTES>().and_then(|(nonce, msg)| {
            let opened =
                |name: &String| cipher.decrypt(nonce.into(), Payload { msg, aad: &associated(context, name) }).ok();
            std::iter::once(&context.name).chain(accepted).find_map(opened)
        });
        let text =
            text.ok_or_else(|| CodecError::Failed(format!("{context} is not what key {key} has encrypted for it")))?;
        serde_json::from_slice(&text).map_err(|error| CodecError::Failed(format!("{context} cannot be read: {error}")))
    }
}

impl Codec for AesGcm {
    fn encode<'a>(&'a self, value: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        Box::pin(async move { self.encrypt(&Nonce::generate(), &value, context) })
    }

    fn decode<'a>(&'a self, stored: Value, context: &'a Context) -> BoxFuture<'a, Result<Value, CodecError>> {
        Box::pin(async move { self.decrypt(stored, context) })
    }
}

/// Returns the additional authenticated data. No name of Postgres contains a zero character.
fn associated(context: &Context, name: &str) -> Vec<u8> {
    ["pg_queue", NAME, context.kind.name(), name].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ContextKind;
    use futures_util::FutureExt as _;

    /// What each package has encrypted: a file that the conformance scenarios read, too.
    fn vectors() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/codec.json");
        serde_json::from_slice(&std::fs::read(path).expect("the repository has it")).expect("JSON")
    }

    fn codec(vectors: &Value) -> AesGcm {
        let key = |id: &str| {
            let bytes = STANDARD.decode(vectors["keys"][id].as_str().expect("a text")).expect("base64");
            <[u8; 32]>::try_from(bytes).expect("32 bytes")
        };
        AesGcm::new("k1", &key("k1")).key("k2", &key("k2"))
    }

    fn list<'a>(vectors: &'a Value, name: &str) -> &'a Vec<Value> {
        vectors[name].as_array().filter(|list| !list.is_empty()).expect("a list that is not empty")
    }

    fn context(vector: &Value) -> Context {
        let kinds = [ContextKind::Payload, ContextKind::Result, ContextKind::Progress, ContextKind::Step];
        let kind = kinds.into_iter().find(|kind| vector["kind"] == kind.name()).expect("a kind");
        Context { kind, name: vector["name"].as_str().expect("a name").to_owned() }
    }

    fn decoded(codec: &AesGcm, vector: &Value) -> Result<Value, CodecError> {
        codec.decode(vector["stored"].clone(), &context(vector)).now_or_never().expect("it does not wait")
    }

    #[test]
    fn the_bytes_are_exactly_these() {
        let vectors = vectors();
        for vector in list(&vectors, "exact") {
            let hex = vector["nonce"].as_str().expect("a text");
            let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).expect("hexadecimal");
            let nonce: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            let nonce = Nonce::try_from(&*nonce).expect("96 bits");
            let stored = codec(&vectors).encrypt(&nonce, &vector["value"], &context(vector));
            assert_eq!(stored.as_ref(), Ok(&vector["stored"]));
        }
    }

    #[test]
    fn what_each_package_has_encrypted_is_read() {
        let vectors = vectors();
        let strict = codec(&vectors).strict();
        for vector in list(&vectors, "encoded") {
            assert_eq!(decoded(&strict, vector).as_ref(), Ok(&vector["value"]), "by {}", vector["by"]);
        }
    }

    #[test]
    fn what_is_not_authentic_is_refused() {
        let vectors = vectors();
        for vector in list(&vectors, "refused") {
            let error = decoded(&codec(&vectors), vector).expect_err("it is refused");
            let is_unknown = matches!(error, CodecError::Unknown(_));
            assert_eq!(is_unknown, vector["error"] == "unknown", "{}", vector["why"]);
        }
    }

    #[test]
    fn plain_values_are_read_unless_the_codec_is_strict() {
        let vectors = vectors();
        for plain in list(&vectors, "plain") {
            let vector = json!({"kind": "payload", "name": "a", "stored": plain});
            assert_eq!(decoded(&codec(&vectors), &vector).as_ref(), Ok(plain));
            let refused = CodecError::Failed("the payload of a is not encrypted".into());
            assert_eq!(decoded(&codec(&vectors).strict(), &vector), Err(refused));
        }
    }

    #[test]
    #[should_panic(expected = "of a key must have at most 100 characters")]
    fn an_id_that_would_break_a_line_of_the_log_is_refused() {
        let _ = AesGcm::new("k1", &[0; 32]).key("k\n2", &[0; 32]);
    }

    #[test]
    fn each_value_has_a_nonce_of_its_own() {
        let (vectors, context) = (vectors(), Context { kind: ContextKind::Payload, name: "a".into() });
        let codec = codec(&vectors);
        let encoded = || codec.encode(Value::Null, &context).now_or_never().expect("it does not wait");
        let nonces =
            (0..1000).map(|_| encoded().expect("it is short")["data"].as_str().map(|data| data[..16].to_owned()));
        assert_eq!(nonces.collect::<std::collections::HashSet<_>>().len(), 1000);
    }
}
