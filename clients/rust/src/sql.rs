//! Statements with the types of their parameters. No statement is prepared, because a pooler in transaction mode uses
//! another connection for each transaction. JSON and intervals are sent as text, and the server casts them.

use std::error::Error;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// A value and its type, as the driver's `query_typed` takes them.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A list of parameters that owns its values.
#[derive(Default)]
pub(crate) struct Parameters(Vec<(Box<dyn ToSql + Sync + Send>, Type)>);

impl Parameters {
    /// Adds a parameter, and returns its number.
    pub fn push(&mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> usize {
        self.0.push((Box::new(value), kind));
        self.0.len()
    }

    pub fn with(mut self, value: impl ToSql + Sync + Send + 'static, kind: Type) -> Self {
        self.push(value, kind);
        self
    }

    pub fn list(&self) -> Vec<Parameter<'_>> {
        self.0.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
    }
}

/// Returns the text of an interval for Postgres.
pub(crate) fn interval(duration: Duration) -> String {
    format!("{} microseconds", duration.as_micros())
}

/// Returns the text of a time for Postgres, in UTC.
pub(crate) fn timestamp(time: SystemTime) -> String {
    const DAY: i128 = 86_400_000_000;
    let micros = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_micros() as i128,
        Err(before) => -(before.duration().as_micros() as i128),
    };
    let (days, rest) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
    // Years begin in March here, so that the leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * march + 2) / 5 + 1, if march < 10 { march + 3 } else { march - 9 });
    let year = year + era * 400 + i128::from(month <= 2);
    let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02}.{micros:06}+00")
}

/// A value as `jsonb`. If it cannot be written as JSON, sending it is an error.
#[derive(Debug)]
pub(crate) struct Json(Result<String, String>);

impl Json {
    pub fn of(value: impl Serialize) -> Self {
        Self(serde_json::to_string(&value).map_err(|error| error.to_string()))
    }

    pub fn value(&self) -> Value {
        self.0.as_ref().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns what stands for a value that cannot be written.
    pub fn error(error: &dyn Error) -> Self {
        Self(Err(error.to_string()))
    }
}

impl ToSql for Json {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&[1]); // the version of jsonb's binary form
        out.extend_from_slice(self.0.as_ref().map_err(String::clone)?.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_ages() {
        let at = |seconds: i64| {
            let length = Duration::from_secs(seconds.unsigned_abs());
            let epoch = SystemTime::UNIX_EPOCH;
            timestamp(if seconds < 0 { epoch - length } else { epoch + length })
        };
        assert_eq!(at(0), "1970-01-01 00:00:00.000000+00");
        assert_eq!(at(-1), "1969-12-31 23:59:59.000000+00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00.000000+00");
        assert_eq!(at(1_709_251_199), "2024-02-29 23:59:59.000000+00");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00.000000+00");
        assert_eq!(at(-2_203_891_200), "1900-03-01 00:00:00.000000+00");
    }
}
