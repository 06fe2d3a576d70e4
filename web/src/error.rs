//! Errors, and how a browser gets them: a status, and JSON with the server's own words.
//!
//! Invariant: an error contains no text of a connection string, and no password.

use std::error::Error as _;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use deadpool_postgres::{PoolError, TimeoutType};
use serde_json::json;

/// An error answer.
#[derive(Debug, Clone)]
pub struct Error {
    pub status: StatusCode,
    /// The SQLSTATE. Empty: the error is not from Postgres.
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, code: String::new(), message: message.into(), detail: None, hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// 400: the request is malformed.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 404.
    pub fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 504: the database seems to be there, but does not answer.
    pub fn silent() -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "the database does not answer")
    }

    /// Returns the body that a browser gets.
    pub fn json(&self) -> String {
        json!({ "error": {
            "code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint,
        }})
        .to_string()
    }
}

/// Returns the status for a SQLSTATE.
fn status(code: &str) -> StatusCode {
    match code {
        "42501" | "28000" | "28P01" => StatusCode::FORBIDDEN,
        "42704" | "P0002" => StatusCode::NOT_FOUND,
        "57014" => StatusCode::GATEWAY_TIMEOUT,
        "25006" | "53400" | "40001" | "40P01" | "55P03" | "23505" | "QJ001" => StatusCode::CONFLICT,
        "57P01" | "57P02" | "57P03" | "53300" => StatusCode::SERVICE_UNAVAILABLE,
        _ => match code.get(..2) {
            Some("22" | "42" | "0A") => StatusCode::BAD_REQUEST,
            Some("55") => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        },
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(e: tokio_postgres::Error) -> Self {
        if let Some(said) = e.as_db_error() {
            let code = said.code().code().to_owned();
            // An error of the extension has a hint. An error that Postgres raises before has none.
            let may_see_nothing =
                code == "42501" && said.hint().is_none() && said.message().starts_with("permission denied");
            // If the extension was not created in the database, the schema, a view or a function is missing.
            let is_ours = said.message().contains("queue.") || said.message().contains("\"queue\"");
            if matches!(code.as_str(), "3F000" | "42P01" | "42883") && is_ours {
                return Self {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    message: "the database has no extension pg_queue, or another version of it".to_owned(),
                    detail: Some(said.message().to_owned()),
                    hint: Some("Run CREATE EXTENSION pg_queue, or ALTER EXTENSION pg_queue UPDATE.".to_owned()),
                    code,
                };
            }
            let grant = "A role sees the queues that it may observe: SELECT queue.grant('QUEUE', 'ROLE', 'observe').";
            return Self {
                status: status(&code),
                message: said.message().to_owned(),
                detail: said.detail().map(str::to_owned),
                hint: said.hint().or(may_see_nothing.then_some(grant)).map(str::to_owned),
                code,
            };
        }
        let why = e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

impl From<PoolError> for Error {
    fn from(e: PoolError) -> Self {
        match e {
            PoolError::Backend(e) => e.into(),
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => Self::silent(),
            PoolError::Timeout(TimeoutType::Wait) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "all connections to the database are busy")
            }
            e => Self::new(StatusCode::SERVICE_UNAVAILABLE, e.to_string()),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "application/json")], self.json()).into_response()
    }
}
