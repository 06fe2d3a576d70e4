"""Events that a worker passes to its `on_event` hook, for metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

EventKind = Literal[
    "started", "completed", "advanced", "suspended", "failed", "released", "lost", "connected", "disconnected"
]


@dataclass(frozen=True)
class Event:
    """An event. The worker reports the end of each attempt once, when the server has confirmed it.

    `connected` and `disconnected` are about the worker's own connection; all others have a job.
    """

    kind: EventKind
    queue: str = ""
    job_id: int = 0
    attempt_id: int = 0
    attempt: int = 0
    seconds: float = 0.0
    """How long the handler ran."""
    error: Optional[str] = None
