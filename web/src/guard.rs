//! Checks each request: it must come from this site's own pages, and it may change something only if actions are
//! allowed.
//!
//! Invariant: every answer has the headers that keep a browser from running or framing foreign content.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{Error, Result};
use crate::options::{Auth, Options};

/// The header that no form of another site can send.
pub const OWN_HEADER: &str = "x-pg-queue-web";

pub async fn guard(State(options): State<Arc<Options>>, request: Request<Body>, next: Next) -> Response {
    let mut response = match check(&options, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(e) => {
            let is_not_allowed = e.status == StatusCode::METHOD_NOT_ALLOWED;
            let mut response = e.into_response();
            if is_not_allowed {
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            response
        }
    };
    harden(response.headers_mut(), &options);
    response
}

fn check(options: &Options, method: &Method, path: &str, headers: &HeaderMap) -> Result<()> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    // Otherwise a page of another site could read everything, if that site's name were made to lead here.
    if matches!(options.auth, Auth::None) && !is_ours(host, &options.hosts) {
        return Err(Error::new(StatusCode::MISDIRECTED_REQUEST, format!("{host:?} is not a name of this dashboard"))
            .hint("It is called localhost or 127.0.0.1; --host NAME adds another name."));
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let is_session = path.ends_with("/login") || path.ends_with("/logout");
    if !options.allow_actions && !is_session {
        return Err(Error::new(StatusCode::METHOD_NOT_ALLOWED, "this dashboard only shows")
            .hint("It was started without --allow-actions."));
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_foreign = || Error::forbidden("the request does not come from a page of this dashboard");
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
        return Err(is_foreign());
    }
    if let Some(origin) = text("origin") {
        let from = origin.split_once("://").map(|(_, from)| from);
        if from.is_none_or(|from| !from.eq_ignore_ascii_case(host)) {
            return Err(is_foreign());
        }
    }
    let is_json =
        text("content-type").is_some_and(|kind| kind.split(';').next().map(str::trim) == Some("application/json"));
    if text(OWN_HEADER).is_none() || !is_json {
        return Err(is_foreign());
    }
    Ok(())
}

/// True if a Host header names this machine, or one of the names in `hosts`.
fn is_ours(host: &str, hosts: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "localhost" | "127.0.0.1" | "[::1]") || hosts.contains(&name)
}

fn harden(headers: &mut HeaderMap, options: &Options) {
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
            manifest-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors {}; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        options.frame_ancestors
    );
    let policy = HeaderValue::from_str(&policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if options.frame_ancestors == "'none'" {
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_ours() {
        for host in ["localhost", "localhost:8432", "127.0.0.1:1", "[::1]:8432", "LOCALHOST:1", "queues.lan:80"] {
            assert!(is_ours(host, &["queues.lan".to_owned()]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8432",
            "localhost.evil.example",
            "127.0.0.1.evil",
            "127.0.0.2",
            "localhost:x",
        ] {
            assert!(!is_ours(host, &["queues.lan".to_owned()]), "{host}");
        }
    }
}
