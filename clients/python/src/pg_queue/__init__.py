"""Producers and workers for pg_queue, the job queue inside PostgreSQL.

`enqueue` adds jobs in the caller's own transaction; a `Worker` runs them with handlers, `def` or `async def`.
The words are those of pg_queue: a *job* is run in *attempts*, each under a *lease*.
"""

from .enqueue import enqueue, enqueue_async, enqueue_many, enqueue_many_async
from .events import Event
from .job import AsyncJob, Job
from .outcomes import Advance, Fatal, RetryIn, Snooze, Stopped
from .worker import Worker

__all__ = [
    "Advance",
    "AsyncJob",
    "Event",
    "Fatal",
    "Job",
    "RetryIn",
    "Snooze",
    "Stopped",
    "Worker",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "enqueue_many_async",
]
