"""The trace context in the headers of jobs, by OpenTelemetry's conventions. Does nothing if OpenTelemetry is not
installed.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import Any, Dict, Iterator, Optional

from .attempt import BaseJob

propagate: Any
trace: Any
try:
    propagate, trace = import_module("opentelemetry.propagate"), import_module("opentelemetry.trace")
except ImportError:
    propagate = trace = None


def inject(headers: Optional[Any]) -> Optional[Any]:
    """Returns the headers with the current trace context (`traceparent`), unless they have one already, or there is
    none.
    """
    if trace is None or not isinstance(headers, (dict, type(None))) or "traceparent" in (headers or {}):
        return headers
    carrier: Dict[str, str] = {}
    propagate.inject(carrier)
    return {**(headers or {}), **carrier} if carrier else headers


@contextmanager
def span(job: BaseJob, is_batch: bool = False) -> Iterator[None]:
    """Runs a handler within a span of its own. Its parent is the producer's span; the span of a batch has no parent."""
    if trace is None:
        yield
        return
    headers = job.headers if isinstance(job.headers, dict) and not is_batch else {}
    context = propagate.extract({name: value for name, value in headers.items() if isinstance(value, str)})
    attributes = {
        "messaging.system": "pg_queue",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.job_id),
    }
    tracer = trace.get_tracer("pg_queue")
    with tracer.start_as_current_span(
        f"process {job.queue}", context=context, kind=trace.SpanKind.CONSUMER, attributes=attributes
    ):
        yield
