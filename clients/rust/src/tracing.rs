//! The trace context in the headers of jobs, by OpenTelemetry's conventions. Does nothing without the feature
//! `opentelemetry`.

#[cfg(feature = "opentelemetry")]
mod with {
    use std::collections::HashMap;
    use std::future::Future;

    use opentelemetry::trace::{FutureExt as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
    use opentelemetry::{Context, KeyValue, global};
    use serde_json::{Map, Value};

    use crate::outcome::Failure;
    use crate::shared::Facts;

    /// Returns the headers with the current trace context (`traceparent`), unless they have one already, or there is
    /// none.
    pub(crate) fn inject(headers: Option<Value>) -> Option<Value> {
        let fields = match &headers {
            None => Map::new(),
            Some(Value::Object(fields)) if !fields.contains_key("traceparent") => fields.clone(),
            Some(_) => return headers,
        };
        let mut carrier = HashMap::new();
        global::get_text_map_propagator(|propagator| propagator.inject_context(&Context::current(), &mut carrier));
        if carrier.is_empty() {
            return headers;
        }
        let mut fields = fields;
        fields.extend(carrier.into_iter().map(|(name, value)| (name, Value::from(value))));
        Some(Value::Object(fields))
    }

    /// Runs a handler within a span of its own. Its parent is the producer's span; the span of a batch has no parent.
    pub(crate) async fn within<T>(
        job: Facts,
        headers: Option<Value>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let carrier: HashMap<String, String> = match headers {
            Some(Value::Object(fields)) => fields
                .into_iter()
                .filter_map(|(name, value)| value.as_str().map(|value| (name, value.to_owned())))
                .collect(),
            _ => HashMap::new(),
        };
        let parent = global::get_text_map_propagator(|propagator| propagator.extract(&carrier));
        let tracer = global::tracer("pg_queue");
        let span = tracer
            .span_builder(format!("process {}", job.queue))
            .with_kind(SpanKind::Consumer)
            .with_attributes([
                KeyValue::new("messaging.system", "pg_queue"),
                KeyValue::new("messaging.operation.type", "process"),
                KeyValue::new("messaging.operation.name", "process"),
                KeyValue::new("messaging.destination.name", job.queue.to_string()),
                KeyValue::new("messaging.message.id", job.job_id.to_string()),
            ])
            .start_with_context(&tracer, &parent);
        let context = parent.with_span(span);
        let result = work.with_context(context.clone()).await;
        if let Err(failure @ (Failure::Retry { .. } | Failure::Fatal(_))) = &result {
            context.span().set_status(Status::error(format!("{failure:?}")));
        }
        context.span().end();
        result
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod with {
    use std::future::Future;

    use serde_json::Value;

    use crate::outcome::Failure;
    use crate::shared::Facts;

    pub(crate) fn inject(headers: Option<Value>) -> Option<Value> {
        headers
    }

    pub(crate) async fn within<T>(
        _: Facts,
        _: Option<Value>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        work.await
    }
}

pub(crate) use with::{inject, within};
