"""How an attempt ends, as `queue.end_batch` reads it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Dict, Literal, Optional

from .events import EventKind
from .held import Held
from .job import BaseJob
from .outcomes import Advance, Duration, Suspend, interval

Kind = Literal["complete", "advance", "suspend", "fail", "release", "none"]

RETRY_PAUSE = 0.01
"""The pause in seconds before a busy attempt's end is sent again. It doubles each time, up to about a second."""

_EVENTS: Dict[Kind, EventKind] = {
    "complete": "completed",
    "advance": "advanced",
    "suspend": "suspended",
    "fail": "failed",
    "release": "released",
    "none": "completed",
}


class Ending:
    """How one attempt ends: the function that ends it, and its arguments except the id.

    `none`: the handler itself has ended the attempt, or its lease is lost. Raises an error if an argument cannot be
    written as JSON.
    """

    def __init__(self, job: BaseJob, kind: Kind, **arguments: Any) -> None:
        self.job = job
        self.id = job.id
        self.kind = kind
        self.arguments = arguments
        self.json = json.dumps({kind: {"id": job.id, **arguments}}, allow_nan=False)
        self.event = _EVENTS[kind]
        self.error: Optional[str] = arguments.get("error")
        self.seconds = 0.0
        self.due = 0.0
        """When the control sends it, by the event loop's clock."""
        self.pauses = 0
        """How often the worker has postponed it."""
        self.errors = 0
        """How often a call that contained it has failed."""
        self.rider: Optional[Held] = None
        """If the attempt is completed on another server: what the worker holds until the completion has arrived."""

    @property
    def is_plain(self) -> bool:
        """True if the next claim can carry it: a completion without a result that was not postponed."""
        is_bare = self.kind == "complete" and self.arguments["result"] is None
        return is_bare and not self.pauses and self.rider is None

    @property
    def is_last_resort(self) -> bool:
        """True if nothing else can be sent in its place when the server refuses it: a failure with the queue's own
        backoff.
        """
        return self.kind == "fail" and self.arguments.get("retry_in") is None

    def pause(self) -> float:
        """Postpones it. Returns the seconds until it is sent again."""
        self.pauses += 1
        return RETRY_PAUSE * 2.0 ** min(self.pauses - 1, 7)


def span(duration: Optional[Duration]) -> Optional[str]:
    """Returns the text of an interval for Postgres."""
    length = interval(duration)
    return None if length is None else f"{length // timedelta(microseconds=1)} microseconds"


def returned(job: BaseJob, result: Any) -> Ending:
    """Returns the end of an attempt whose handler has returned this. Raises an error if that is no JSON."""
    if job.ended:
        return Ending(job, "none")
    if isinstance(result, Advance):
        return Ending(job, "advance", stage=result.stage, payload=result.payload, delay=span(result.delay))
    if isinstance(result, Suspend):
        after = None if result.after is None else list(map(int, result.after))
        until = {} if result.until is None else {"until": result.until.isoformat()}
        return Ending(job, "suspend", after=after, upon=result.upon, progress=result.progress, **until)
    return Ending(job, "complete", result=result)


def stopped(job: BaseJob) -> Ending:
    """Returns the end of a stopped attempt: a release, which cancels a job that is to be cancelled. If the lease is
    lost, nothing is sent.
    """
    return Ending(job, "none" if job.stop_reason == "lost" else "release")


def riding(held: Held, seconds: float) -> Ending:
    """Returns the completion of an attempt that is completed on another server."""
    try:
        ending = Ending(held.job, "complete", result=held.job.result)
    except (TypeError, ValueError):  # the application has set another dumper for JSON, which wrote it
        ending = Ending(held.job, "complete", result=None)
    ending.rider, ending.seconds = held, seconds
    return ending
