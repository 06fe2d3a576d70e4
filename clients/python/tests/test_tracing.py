"""The trace context goes from the producer to the handler."""

from conftest import one

from pg_queue import Worker, enqueue, tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_of_the_producer_is_passed_through(conn, conninfo):
    job_id = enqueue(conn, "a", headers={"traceparent": PARENT})
    assert one(conn, "SELECT headers FROM queue.job(%s)", job_id) == {"traceparent": PARENT}
    seen, worker = [], Worker(conninfo)
    worker.handler("a")(lambda job: seen.append(job.traceparent))
    worker.drain()
    assert seen == [PARENT]


def test_a_handler_runs_in_a_span_of_the_producers_trace(conn, conninfo):
    if tracing.trace is None:  # without OpenTelemetry enqueue adds no header
        assert one(conn, "SELECT headers FROM queue.job(%s)", enqueue(conn, "a")) is None
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("test").start_as_current_span("request") as span:
        enqueue(conn, "a", headers={"mine": 1})
        trace_id = format(span.get_span_context().trace_id, "032x")
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        assert job.headers["mine"] == 1 and trace_id in job.traceparent
        inner = trace.get_current_span().get_span_context().trace_id
        return format(inner, "032x")

    worker.drain()
    assert one(conn, "SELECT result FROM queue.jobs WHERE queue_name = 'a'") == trace_id
    process = next(span for span in exporter.get_finished_spans() if span.name == "process a")
    assert process.attributes["messaging.system"] == "pg_queue" and process.kind is trace.SpanKind.CONSUMER
