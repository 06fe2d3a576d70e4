//! The trace context goes from the producer to the handler. OpenTelemetry has one state a process, so this test has a
//! program of its own.

mod support;

use opentelemetry::trace::{SpanKind, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use pg_queue_client::{Failure, Job, Options, enqueue};
use serde_json::{Value, json};
use support::Database;

#[tokio::test]
async fn a_handler_runs_in_a_child_span_of_the_producer() {
    let db = Database::new().await;
    // Without a context enqueue adds no header.
    let id = enqueue(&db.client, "b", json!({}), Options::new()).await.unwrap();
    assert_eq!(db.one::<Option<Value>>("SELECT headers FROM queue.job($1)", &[&id]).await, None);

    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());
    let tracer = global::tracer("test");
    let request = Context::current_with_span(tracer.start("request"));
    let trace = request.span().span_context().trace_id().to_string();
    let options = || Options::new().headers(json!({"mine": 1}));
    let id = {
        use opentelemetry::trace::FutureExt as _;
        enqueue(&db.client, "a", json!({}), options()).with_context(request.clone()).await.unwrap()
    };
    request.span().end();

    let handler = |job: Job| async move {
        let inner = Context::current().span().span_context().trace_id().to_string();
        assert_eq!(job.headers.as_ref().and_then(|headers| headers["mine"].as_i64()), Some(1));
        Ok::<Value, Failure>(json!([inner, job.traceparent()]))
    };
    db.worker().handler("a", handler).drain().await.unwrap();
    let result: Value = db.one("SELECT result FROM queue.job($1)", &[&id]).await;
    assert_eq!(result[0], trace);
    assert_eq!(result[1].as_str().map(|parent| parent.contains(&trace)), Some(true));
    let spans = exporter.get_finished_spans().unwrap();
    let span = spans.iter().find(|span| span.name == "process a").expect("the handler's span");
    assert_eq!(span.span_kind, SpanKind::Consumer);
    assert!(span.attributes.iter().any(|attribute| attribute.key.as_str() == "messaging.system"));
}
