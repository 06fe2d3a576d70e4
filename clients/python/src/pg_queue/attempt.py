"""What the worker and a handler share about a job: its columns, whether the handler is to stop, and what it has done.

Not responsible for what a handler can do with the job (`job`).
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import Any, Iterator, Optional, Set

from .codec import PLAIN, Codec, Context, Kind, later
from .outcomes import Stopped, StopReason

COLUMNS = (
    "id, job_id, queue_name, stage, payload, headers, attempt, max_attempts, priority, unique_key, group_key, "
    "progress, last_error, enqueued_at"
)
"""Columns of queue.claimed_job, in the order of the arguments of `BaseJob`."""


class BaseJob:
    """The common part of both kinds of jobs."""

    def __init__(
        self,
        id: int,
        job_id: int,
        queue: str,
        stage: Optional[str] = None,
        payload: Any = None,
        headers: Any = None,
        attempt: int = 1,
        max_attempts: int = 20,
        priority: int = 0,
        unique_key: Optional[str] = None,
        group_key: Optional[str] = None,
        progress: Any = None,
        last_error: Optional[str] = None,
        enqueued_at: Optional[datetime] = None,
        codec: Codec = PLAIN,
    ) -> None:
        self.id = id
        """The attempt's id. The attempt can be ended once."""
        self.job_id = job_id
        self.queue = queue
        self.stage = stage
        self.payload = payload
        self.headers = headers
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.priority = priority
        self.unique_key = unique_key
        self.group_key = group_key
        self.progress = progress
        """The progress that the last attempt, or this one, has reported."""
        self.last_error = last_error
        self.enqueued_at = enqueued_at
        self.stop_reason: Optional[StopReason] = None
        """Why the handler is to stop; None if it may go on."""
        self.stopping = False
        """True if the worker shuts down. The handler may go on until `stop_reason` is set."""
        self.unreadable: Optional[Exception] = None
        """Why the job's JSON could not be read. Then the handler is not called, and the attempt fails."""
        self._steps: Set[str] = set()  # those that have run in this attempt
        self.is_open = False
        """True while a transaction is open. For the worker."""
        self.kept: Any = None
        """The result of the last transaction. For the worker."""
        self.timeout: Optional[float] = None
        """The handler's time in seconds, when it is over. For the worker."""
        self.ended = False
        """True if the handler itself has ended the attempt. A handler that does so without this package's functions
        sets it.
        """
        self.is_done = False
        """True if `transaction()` has committed this end. Other transactions may have rolled back. For the worker."""
        self.in_step = 0
        """How many steps run. For the worker."""
        self.committed = False
        """True if the job's effects are committed on another server, and its completion with them. For the worker."""
        self.result: Any = None
        """The JSON of the result with which the handler has completed the job. For the worker."""
        self._codec = codec

    def __repr__(self) -> str:
        return f"<job {self.job_id} of {self.queue}, attempt {self.attempt} (id {self.id})>"

    @property
    def traceparent(self) -> Optional[str]:
        """The producer's trace context."""
        return self.headers.get("traceparent") if isinstance(self.headers, dict) else None

    def check(self) -> None:
        """Raises `Stopped` if the handler is to stop."""
        if self.stop_reason is not None:
            raise Stopped(self.stop_reason)

    @property
    def _may_wait(self) -> bool:
        """False if the job has a connection: others may wait for it."""
        return not self.is_open and not self.in_step

    @contextmanager
    def _step(self, name: str) -> Iterator[bool]:
        """Marks that a step runs. Returns whether it may wait for a connection."""
        self.check()
        if name in self._steps:
            advice = f'give each step a name of its own, such as "{name} 2"'
            raise ValueError(f'step "{name}" has already run in this attempt: {advice}')
        may_wait = self._may_wait
        self.in_step += 1
        try:
            yield may_wait
            self._steps.add(name)
        finally:
            self.in_step -= 1

    @contextmanager
    def _opened(self, result: Any) -> Iterator[None]:
        """Marks that a transaction is open."""
        self.check()
        if self.is_done:
            raise RuntimeError("this job has ended: job.transaction completes it, so call it once")
        if self.is_open:
            raise RuntimeError("a job.transaction of this job is open already: end it first")
        self.is_open, self.ended, self.kept = True, False, result
        try:
            yield
            self.is_done = self.ended
        except BaseException:
            self.ended = self.committed  # the transaction was rolled back
            raise
        finally:
            self.is_open = False

    def stop(self, reason: StopReason) -> None:
        """Tells the handler to stop. The first reason counts, but a lost lease replaces any other reason."""
        if self.stop_reason is None or reason == "lost":
            self.stop_reason = reason

    async def _decode(self) -> None:
        """Decodes what the job carries. For the worker."""
        self.payload = await later(self._codec.decode(self.payload, self._context("payload")))
        if self.progress is not None:
            self.progress = await later(self._codec.decode(self.progress, self._context("progress")))

    def _context(self, kind: Kind, queue: Optional[str] = None) -> Context:
        return Context(kind, queue or self.queue)
