//! Reads what a search looks for, as the jsonpath that `queue.search` and the verbs for many take.
//!
//! Invariant: if payloads are hidden from a viewer, a filter can only name fields that are shown. Otherwise the result
//! of a filter would reveal what payloads contain.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Result};

/// The fields that are shown wherever a job is shown.
const SHOWN_FIELDS: [&str; 8] = ["job_id", "stage", "worker", "error", "unique_key", "group_key", "task", "flow"];

/// Reads `filter`, a jsonpath, or `field`, `op` and `value`. `None`: all jobs. The field `payload` compares each text
/// and number in the payload.
///
/// Errors: 400 for an unknown field or comparison, 403 for a jsonpath if payloads are hidden.
pub fn of_query(query: &HashMap<String, String>, hides: bool) -> Result<Option<String>> {
    let said = |name: &str| query.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
    if let Some(filter) = said("filter") {
        if hides {
            return Err(Error::forbidden("payloads are hidden, and a filter of your own could tell what is in them"));
        }
        return Ok(Some(filter.to_owned()));
    }
    let (Some(field), Some(value)) = (said("field"), said("value")) else { return Ok(None) };
    // A string of JSON is also one of jsonpath.
    let text = Value::from(value).to_string();
    if field == "payload" && !hides {
        let found = match said("op").unwrap_or("equals") {
            "equals" => match value.parse::<serde_json::Number>() {
                Ok(number) => format!("@ == {text} || @ == {number}"),
                Err(_) => format!("@ == {text}"),
            },
            "starts" => format!("@ starts with {text}"),
            "contains" => format!("@ like_regex {text} flag \"q\""),
            op => return Err(Error::bad(format!("{op:?} is no comparison"))),
        };
        return Ok(Some(format!("exists($.payload.** ? ({found}))")));
    }
    if !SHOWN_FIELDS.contains(&field) {
        return Err(Error::bad(format!("jobs cannot be searched by {field:?}")));
    }
    if matches!(field, "job_id" | "flow") {
        let id: i64 = value.parse().map_err(|_| Error::bad(format!("{value:?} is no id")))?;
        return Ok(Some(format!("$.{field} == {id}")));
    }
    match said("op").unwrap_or("equals") {
        "equals" => Ok(Some(format!("$.{field} == {text}"))),
        "starts" => Ok(Some(format!("$.{field} starts with {text}"))),
        "contains" => Ok(Some(format!("$.{field} like_regex {text} flag \"q\""))),
        op => Err(Error::bad(format!("{op:?} is no comparison"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(pairs: &[(&str, &str)], hides: bool) -> Result<Option<String>> {
        of_query(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(), hides)
    }

    #[test]
    fn a_value_stays_a_value() {
        let found = filter(&[("field", "error"), ("op", "starts"), ("value", "a\" || $.payload.x == \"1")], true);
        assert_eq!(found.unwrap().unwrap(), r#"$.error starts with "a\" || $.payload.x == \"1""#);
        assert!(filter(&[("field", "payload"), ("value", "x")], true).is_err());
        assert!(filter(&[("field", "error || $.payload"), ("value", "x")], true).is_err());
        assert!(filter(&[("field", "job_id"), ("value", "1 || true")], true).is_err());
        assert!(filter(&[("field", "error"), ("op", "== 1 ||"), ("value", "x")], true).is_err());
    }

    #[test]
    fn values_in_payloads_are_compared() {
        let of = |op, value| filter(&[("field", "payload"), ("op", op), ("value", value)], false).unwrap().unwrap();
        assert_eq!(of("equals", "7"), r#"exists($.payload.** ? (@ == "7" || @ == 7))"#);
        assert_eq!(of("equals", "7\" || 1"), r#"exists($.payload.** ? (@ == "7\" || 1"))"#);
        assert_eq!(of("contains", "a.b"), r#"exists($.payload.** ? (@ like_regex "a.b" flag "q"))"#);
        assert!(filter(&[("field", "payload"), ("op", "=="), ("value", "7")], false).is_err());
    }

    #[test]
    fn hidden_payloads_have_no_filters() {
        assert!(filter(&[("filter", "$.payload.a == 1")], true).is_err());
        assert_eq!(filter(&[("filter", "$.payload.a == 1")], false).unwrap().unwrap(), "$.payload.a == 1");
        assert_eq!(filter(&[("filter", " ")], true).unwrap(), None);
    }
}
