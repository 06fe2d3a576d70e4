"""What a worker knows about an attempt that it holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import List, Optional

from .attempt import BaseJob
from .settings import Route


@dataclass(eq=False)
class Held:
    """A claimed attempt whose handler has not ended."""

    job: BaseJob
    route: Route
    """Which handler runs it."""
    lease: float
    """The length of the lease, in seconds."""
    beat_at: float
    """When the next heartbeat is due, by the event loop's clock."""
    expiry: asyncio.TimerHandle
    """Stops the handler when no heartbeat has succeeded for the length of the lease."""
    task: Optional[asyncio.Task[None]] = None
    group: List[Held] = field(default_factory=list, repr=False)
    """The attempts that its handler runs together, including this one."""
    is_decoding: bool = False
    """True while the task waits for the codec: then it can be cancelled, also if the handler is a `def`."""
    limit: Optional[asyncio.TimerHandle] = None
    """Stops the handler when its time is over."""
    is_over: bool = False
    """True if the attempt has failed for its time, and its handler goes on."""
    errors: int = 0
    """How many heartbeats for it alone have failed since the last one that succeeded."""
    stopped_at: Optional[float] = None
    """Since when the handler should have ended."""
