"""What a handler returns or raises to end an attempt in another way than by a result or an error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Optional, Sequence, Union

from .checks import Duration, interval

Upon = Literal["completed", "any", "failed", "ended", "overdue"]

StopReason = Literal["cancelled", "lost", "shutdown", "timeout"]


class RetryIn(Exception):
    """Fails the attempt. The job runs again after `delay` instead of the queue's backoff."""

    def __init__(self, delay: Duration, error: str = "") -> None:
        super().__init__(error or "to be retried")
        interval(delay)
        self.delay = delay


class Fatal(Exception):
    """Fails the job for good: it is dead, even if it has attempts left."""


class Snooze(Exception):
    """Releases the job, and does not count the attempt, because the job's time has not come. It runs again after
    `delay`.
    """

    def __init__(self, delay: Duration = 0) -> None:
        super().__init__("snoozed")
        interval(delay)
        self.delay = delay


class Throttle(Snooze):
    """Releases the job as `Snooze` does. Until then no worker starts a job of its queue, or of its group if `group`:
    for instance because a service has answered 429.

    `delay` may be the text of a header `Retry-After`: seconds or a date.
    """

    def __init__(self, delay: Union[Duration, str], group: bool = False) -> None:
        super().__init__(_retry_after(delay) if isinstance(delay, str) else delay)
        self.group = group


def _retry_after(header: str) -> float:
    """Returns the seconds from now on."""
    if header.strip().isdecimal():
        return float(header)
    at = parsedate_to_datetime(header)  # raises ValueError
    return max((at - datetime.now(timezone.utc)).total_seconds(), 0.0)


class AlreadyDone(Exception):
    """Raised by `transaction()` of a worker with `effects`: an earlier attempt has committed the effects. Let it pass:
    the worker completes the job.

    `job_ids`: the jobs whose effects are committed. The other jobs of a batch are released.
    """

    def __init__(self, *job_ids: int) -> None:
        super().__init__("its effects are committed already")
        self.job_ids = job_ids


class Stopped(Exception):
    """The handler is to stop: the job was cancelled, its lease is lost, or the time of the worker's shutdown or of the
    handler is over.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Advance:
    """Returned by a handler: the job goes on in the stage `stage` of its queue, by default in the next one.

    If `payload` is None, it keeps its payload.
    """

    stage: Optional[str] = None
    payload: Any = None
    delay: Duration = 0


@dataclass(frozen=True)
class Suspend:
    """Returned by a handler: the job is held until other jobs have ended. Then it goes on with the same attempt number.

    `after`: these jobs; None: the members of its own flow, which were enqueued with `flow=job.job_id`. `progress`: what
    the next run finds in `job.progress`; None: what this one has saved. `until`: when the job goes on at the latest.
    """

    after: Optional[Sequence[int]] = None
    upon: Upon = "ended"
    progress: Any = None
    until: Optional[datetime] = None
