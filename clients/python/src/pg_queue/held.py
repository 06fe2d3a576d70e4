"""What a worker knows of an attempt that it holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import List, Optional

from .job import BaseJob


@dataclass(eq=False)
class Held:
    """A claimed attempt whose handler has not ended."""

    job: BaseJob
    lease: float
    """Its length, in seconds."""
    beat_at: float
    """When the next heartbeat is due, by the loop's clock."""
    expiry: asyncio.TimerHandle
    """Ends it when no heartbeat has come through for the length of the lease."""
    task: Optional[asyncio.Task[None]] = None
    group: List[Held] = field(default_factory=list, repr=False)
    """Those that its handler runs at once, itself among them."""
    stopped_at: Optional[float] = None
    """Since when the handler should have ended."""
