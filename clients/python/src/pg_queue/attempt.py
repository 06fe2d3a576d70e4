"""What the worker and a handler share about a job: its columns, whether the handler is to stop, and what it has done.

Not responsible for what a handler can do with the job (`job`).
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Callable, FrozenSet, Iterator, Optional

from .codec import PLAIN, Codec, Context, Kind, is_encoded, later
from .outcomes import Stopped, StopReason

COLUMNS = (
    "id, job_id, queue_name, stage, payload::text, headers::text, attempt, max_attempts, priority, unique_key, "
    "group_key, progress::text, last_error, enqueued_at"
)
"""Columns of queue.claimed_job, in the order of the arguments of `BaseJob`. `_read` reads those that are JSON."""


class _State:
    """What the handler has done, and whether it is to stop. Most jobs keep these defaults."""

    stop_reason: Optional[StopReason] = None
    """Why the handler is to stop; None if it may go on."""
    stopping = False
    """True if the worker shuts down. The handler may go on until `stop_reason` is set."""
    ended = False
    """True if the handler itself has ended the attempt, maybe in a transaction that has rolled back. A handler that
    ends it without this package's functions sets it.
    """

    # For the worker.
    unreadable: Optional[Exception] = None
    """Why the job's JSON could not be read. Then the handler is not called, and the attempt fails."""
    is_plain = True
    """False if a codec has to decode what the job carries, or it cannot be read. Most workers have no codec, and most
    values have not the form of an encoded one.
    """
    is_open = False
    """True while a transaction is open."""
    kept: Any = None
    """The result of the last transaction."""
    timeout: Optional[float] = None
    """The handler's time in seconds, when it is over."""
    is_done = False
    """True if `transaction()` has committed this end. Other transactions may have rolled back."""
    in_step = 0
    """How many steps run."""
    committed = False
    """True if the job's effects are committed on another server, and its completion with them."""
    result: Any = None
    """The JSON of the result with which the handler has completed the job."""
    _steps: FrozenSet[str] = frozenset()
    """The steps that have run in this attempt."""
    _cancelled: Any = None
    """The event `cancelled`, if the handler has asked for it."""


@dataclass(eq=False, repr=False)
class BaseJob(_State):
    """The common part of both kinds of jobs."""

    id: int
    """The attempt's id. The attempt can be ended once."""
    job_id: int
    queue: str
    stage: Optional[str] = None
    payload: Any = None
    headers: Any = None
    attempt: int = 1
    max_attempts: int = 20
    priority: int = 0
    unique_key: Optional[str] = None
    group_key: Optional[str] = None
    progress: Any = None
    """The progress that the last attempt, or this one, has reported."""
    last_error: Optional[str] = None
    enqueued_at: Optional[datetime] = None
    _codec: Codec = PLAIN
    _pool: Any = None
    _effects: Any = None
    _loop: Optional[asyncio.AbstractEventLoop] = None

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
            self._steps |= {name}
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
        # Another thread may ask for the event now. It stores the event first, and then looks at the reason.
        if self._cancelled is not None:
            self._cancelled.set()

    def _event(self, kind: Callable[[], Any]) -> Any:
        """Returns the event `cancelled`, which is made when the handler asks for it."""
        if self._cancelled is None:
            event = self.__dict__.setdefault("_cancelled", kind())  # threads may ask for it at the same time
            if self.stop_reason is not None:
                event.set()
        return self._cancelled

    def _read(self, read: Callable[[str], Any]) -> None:
        """Reads the columns that are JSON, and still text."""
        try:
            self.payload = read(self.payload)
            if self.headers is not None:
                self.headers = read(self.headers)
            if self.progress is not None:
                self.progress = read(self.progress)
            if self._codec is not PLAIN or is_encoded(self.payload) or is_encoded(self.progress):
                self.is_plain = False
        except Exception as error:  # the application may have set a function of its own that reads JSON
            self.unreadable, self.is_plain = error, False

    async def _decode(self) -> None:
        """Decodes what the job carries. Raises the error of JSON that could not be read."""
        if self.unreadable is not None:
            raise self.unreadable
        self.payload = await later(self._codec.decode(self.payload, self._context("payload")))
        if self.progress is not None:
            self.progress = await later(self._codec.decode(self.progress, self._context("progress")))

    def _context(self, kind: Kind, queue: Optional[str] = None) -> Context:
        return Context(kind, queue or self.queue)
