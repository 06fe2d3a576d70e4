"""The trace context in the headers of jobs, by OpenTelemetry's conventions. Does nothing if OpenTelemetry is not
installed.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any, Callable, ContextManager, Dict, List, Optional, Union

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


def traced(call: Callable[[Any], Any], is_async: bool) -> Callable[[Any], Any]:
    """Returns the handler `call`, which takes a job or a list of jobs, within a span of its own."""
    if trace is None:
        return call
    return partial(_traced_async if is_async else _traced, call)


def _traced(call: Callable[[Any], Any], argument: Any) -> Any:
    with _span(argument):
        return call(argument)


async def _traced_async(call: Callable[[Any], Any], argument: Any) -> Any:
    with _span(argument):
        return await call(argument)


def _span(argument: Union[BaseJob, List[BaseJob]]) -> ContextManager[Any]:
    """Returns the span of a job, whose parent is the producer's span, or of a batch, which has no parent."""
    job, headers = (argument[0], None) if isinstance(argument, list) else (argument, argument.headers)
    strings = headers.items() if isinstance(headers, dict) else ()
    context = propagate.extract({name: value for name, value in strings if isinstance(value, str)})
    attributes = {
        "messaging.system": "pg_queue",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.job_id),
    }
    span: ContextManager[Any] = trace.get_tracer("pg_queue").start_as_current_span(
        f"process {job.queue}", context=context, kind=trace.SpanKind.CONSUMER, attributes=attributes
    )
    return span
