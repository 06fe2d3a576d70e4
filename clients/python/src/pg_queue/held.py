"""What a worker knows about an attempt that it holds."""

from __future__ import annotations

import asyncio
import math
from typing import Optional, Sequence

from .attempt import BaseJob
from .handlers import Handler


class Held:
    """A claimed attempt whose handler has not ended. Times are those of the event loop's clock."""

    begun = 0.0
    """When its handler was called."""
    task: Optional[asyncio.Task[None]] = None
    """The task that runs it. None: it is ready, or a thread runs it."""
    group: Sequence[Held] = ()
    """The attempts of its batch, including this one."""
    is_decoding = False
    """True while the task waits for the codec: then it can be cancelled, also if the handler is a `def`."""
    late_at = math.inf
    """When the handler's time is over, or the time that it has to stop then."""
    is_over = False
    """True if the attempt has failed for its time, and its handler goes on."""
    errors = 0
    """How many heartbeats for it alone have failed since the last one that succeeded."""
    stopped_at: Optional[float] = None
    """Since when the handler should have ended."""

    def __init__(self, job: BaseJob, handler: Handler, lease: float, beat_at: float, expires_at: float) -> None:
        self.job = job
        self.handler = handler
        self.lease = lease
        """The length of the lease, in seconds."""
        self.beat_at = beat_at
        """When the next heartbeat is due."""
        self.expires_at = expires_at
        """When the handler is to stop because no heartbeat has succeeded for the length of the lease."""

    @property
    def json(self) -> str:
        """Its heartbeat, as `queue.end_batch` reads it."""
        return f'{{"extend": {{"id": {self.job.id}}}}}'
