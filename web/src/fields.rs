//! The fields of a request's body, each as a text.
//!
//! Invariants: if a value is no text, the field has the JSON as it was sent, digit by digit. An unknown field takes no
//! memory.

use std::collections::HashMap;

use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::{Error, Result};

/// Fields with a value that is neither null nor empty.
pub type Fields = HashMap<String, String>;

/// Reads a JSON object. Leaves out fields for which `is_known` is false.
///
/// Errors: 400 if it is no object, or a text has a character of value 0.
pub fn of_body(body: &[u8], is_known: impl Fn(&str) -> bool) -> Result<Fields> {
    let fields = Rest(body).object(is_known);
    let fields = fields.ok_or_else(|| Error::bad("the body has to be an object of JSON"))?;
    match fields.values().any(|value| value.contains('\0')) {
        true => Err(Error::bad("text cannot have a character of value 0")),
        false => Ok(fields),
    }
}

/// The part that is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn object(&mut self, is_known: impl Fn(&str) -> bool) -> Option<Fields> {
        let mut fields = Fields::new();
        self.sign(b"{")?;
        let mut is_first = true;
        while self.sign(b"}").is_none() {
            if !std::mem::take(&mut is_first) {
                self.sign(b",")?;
            }
            let (name, _): (String, _) = self.value()?;
            self.sign(b":")?;
            let (_, json): (IgnoredAny, _) = self.value()?;
            if !is_known(&name) || matches!(json, b"null" | b"\"\"") {
                fields.remove(&name);
                continue;
            }
            let text = match json.first() {
                Some(b'"') => serde_json::from_slice(json).ok()?,
                _ => String::from_utf8(json.to_vec()).ok()?,
            };
            fields.insert(name, text);
        }
        self.sign(b"").filter(|()| self.0.is_empty())?;
        Some(fields)
    }

    /// Skips white space and then a sign.
    fn sign(&mut self, sign: &[u8]) -> Option<()> {
        let rest = self.0.trim_ascii_start();
        self.0 = rest.strip_prefix(sign)?;
        Some(())
    }

    /// Reads a value. Returns it and its JSON.
    fn value<T: DeserializeOwned>(&mut self) -> Option<(T, &'a [u8])> {
        self.sign(b"")?;
        let mut values = serde_json::Deserializer::from_slice(self.0).into_iter();
        let value = values.next()?.ok()?;
        let (json, rest) = self.0.split_at(values.byte_offset());
        self.0 = rest;
        Some((value, json))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<Vec<(String, String)>> {
        let mut fields: Vec<_> = of_body(body.as_bytes(), |name| name != "x").ok()?.into_iter().collect();
        fields.sort();
        Some(fields)
    }

    #[test]
    fn values_stay_as_they_were_sent() {
        let found = read(
            r#" { "n" : 1970670598291982290123.10 , "o":{"a":[1e400,"}"]}, "t":"a\"\u00e9" ,
                "x":[1],"y":null,"z":"","b":true} "#,
        );
        let found = found.unwrap();
        let expected =
            [("b", "true"), ("n", "1970670598291982290123.10"), ("o", r#"{"a":[1e400,"}"]}"#), ("t", "a\"é")];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(read("{}"), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in [
            "",
            "1",
            "[]",
            "{",
            "{}x",
            "{\"a\":1,}",
            "{,}",
            "{\"a\" 1}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":01}",
            "{a:1}",
            "{\"a\":\"\\u0000\"}",
        ] {
            assert_eq!(read(body), None, "{body}");
        }
    }
}
