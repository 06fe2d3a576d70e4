"""Producers and workers for pg_queue, the job queue inside PostgreSQL.

`enqueue` adds jobs in the caller's own transaction. A `Worker` runs them with handlers, `def` or `async def`. The terms
are those of pg_queue: a *job* is run in *attempts*, each under a *lease*.
"""

from .batch import AsyncBatch, Batch
from .codec import AesGcm, Codec, Context, UnknownCodec
from .enqueue import enqueue, enqueue_async, enqueue_many, enqueue_many_async
from .events import Event
from .flow import Task, enqueue_flow, enqueue_flow_async, reject, resolve, seal
from .job import AsyncJob, Input, Job
from .outcomes import Advance, AlreadyDone, Fatal, RetryIn, Snooze, Stopped, Suspend, Throttle
from .publish import publish, publish_async
from .version import __version__
from .worker import Worker

__all__ = [
    "Advance",
    "AesGcm",
    "AlreadyDone",
    "AsyncBatch",
    "AsyncJob",
    "Batch",
    "Codec",
    "Context",
    "Event",
    "Fatal",
    "Input",
    "Job",
    "RetryIn",
    "Snooze",
    "Stopped",
    "Suspend",
    "Task",
    "Throttle",
    "UnknownCodec",
    "Worker",
    "__version__",
    "enqueue",
    "enqueue_async",
    "enqueue_flow",
    "enqueue_flow_async",
    "enqueue_many",
    "enqueue_many_async",
    "publish",
    "publish_async",
    "reject",
    "resolve",
    "seal",
]
