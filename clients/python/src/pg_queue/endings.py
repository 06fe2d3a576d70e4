"""How an attempt ends, as `queue.end_batch` reads it."""

from __future__ import annotations

import asyncio
import json
import traceback
from typing import Any, Dict, Literal, Optional

from .attempt import BaseJob
from .checks import interval, job_ids
from .events import EventKind
from .held import Held
from .log import logger
from .outcomes import Advance, AlreadyDone, Fatal, RetryIn, Snooze, Stopped, Suspend, Throttle
from .pool import NoConnection
from .texts import extra, line, with_causes
from .threads import NoThread

Kind = Literal["complete", "advance", "suspend", "fail", "release", "none"]

LACK_PAUSE = 5.0
"""For how many seconds a job is released if there is no connection or no thread for its handler."""

MAX_TRACE = 4096
"""How many characters of the trace are kept with the error, the last ones."""

RETRY_PAUSE = 0.01
"""The pause in seconds before a busy attempt's end is sent again. It doubles each time, up to about a second,
or ten seconds after an error."""

EVENTS: Dict[Kind, EventKind] = {
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

    seconds = 0.0
    """How long the handler ran."""
    due = 0.0
    """When the control sends it, by the event loop's clock."""
    pauses = 0
    """How often the worker has postponed it."""
    errors = 0
    """How often a call for it alone has failed."""
    is_doubtful = False
    """True if the handler has ended the attempt, maybe in a transaction that has rolled back. The worker sends this end
    in any case. If the server answers that the attempt is lost, the handler's own end counts.
    """
    rider: Optional[Held] = None
    """If the attempt is completed on another server: what the worker holds until the completion has arrived."""
    _more = ""
    """The arguments as JSON, except the id."""

    def __init__(self, job: BaseJob, kind: Kind, **arguments: Any) -> None:
        self.job = job
        self.kind = kind
        self.arguments = arguments
        if arguments:
            self._more = f", {json.dumps(arguments, allow_nan=False)[1:-1]}"

    @property
    def json(self) -> str:
        """How `queue.end_batch` reads it."""
        return f'{{"{self.kind}": {{"id": {self.job.id}{self._more}}}}}'

    @property
    def result(self) -> str:
        """The result of a completion as JSON."""
        return self._more.partition(": ")[2] or "null"

    @property
    def is_last_resort(self) -> bool:
        """True if nothing else can be sent in its place when the server refuses it: a failure with the queue's own
        backoff.
        """
        return self.kind == "fail" and self.arguments.get("retry_in") is None

    def pause(self) -> float:
        """Postpones it. Returns the seconds until it is sent again."""
        self.pauses += 1
        return RETRY_PAUSE * 2.0 ** min(self.pauses - 1, 10 if self.errors else 7)


def returned(job: BaseJob, result: Any) -> Ending:
    """Returns the end of an attempt whose handler has returned this. Raises an error if that is no JSON."""
    if job.is_open:
        raise RuntimeError("the handler returned before its job.transaction had ended: await it")
    if job.is_done or job.committed:
        if result is not None and result is not job.kept:
            warn_of_result(job)
        return Ending(job, "none")
    ending = _returned(job, result)
    ending.is_doubtful = job.ended
    return ending


def warn_of_result(job: BaseJob) -> None:
    text = "%r: its handler has ended it and returned a result, which is not kept"
    logger.warning(text, job, extra=extra(job))


def _returned(job: BaseJob, result: Any) -> Ending:
    if isinstance(result, Advance):
        return Ending(job, "advance", stage=result.stage, payload=result.payload, delay=interval(result.delay))
    if isinstance(result, Suspend):
        after = None if result.after is None else job_ids(result.after)
        until = {} if result.until is None else {"until": result.until.isoformat()}
        return Ending(job, "suspend", after=after, upon=result.upon, progress=result.progress, **until)
    return Ending(job, "complete") if result is None else Ending(job, "complete", result=result)


def stopped(job: BaseJob) -> Ending:
    """Returns the end of a stopped attempt: a release, which cancels a job that is to be cancelled. If the lease is
    lost, nothing is sent.
    """
    if job.stop_reason == "timeout":
        return Ending(job, "fail", error=f"the handler has not ended within its timeout of {job.timeout:g} s")
    return Ending(job, "none" if job.stop_reason == "lost" else "release")


def raised(job: BaseJob, error: BaseException, keeps_trace: bool = False) -> Ending:
    """Returns the end of an attempt whose handler has raised this. `keeps_trace`: with the trace of an error."""
    if job.is_done or job.committed:
        logger.warning("%r has ended, and its handler has failed since: %s", job, line(error), exc_info=error)
        return Ending(job, "none")
    ending = _raised(job, error, keeps_trace)
    ending.is_doubtful = job.ended
    return ending


def _raised(job: BaseJob, error: BaseException, keeps_trace: bool) -> Ending:
    if isinstance(error, Stopped) or job.stop_reason and isinstance(error, asyncio.CancelledError):
        return stopped(job)
    if isinstance(error, AlreadyDone):
        return Ending(job, "complete")
    if isinstance(error, Throttle):
        what = "group" if error.group else "queue"
        return Ending(job, "release", delay=interval(error.delay), throttle=what)
    if isinstance(error, Snooze):
        return Ending(job, "release", delay=interval(error.delay))
    if isinstance(error, (NoConnection, NoThread)):
        what = "thread" if isinstance(error, NoThread) else "connection"
        reason = f"it lacks a {what}: {line(error)}"
        then = f"it is released for {LACK_PAUSE:.0f} seconds"
        logger.warning("%r lacks a %s: %s: %s", job, what, line(error), then, extra=extra(job))
        return Ending(job, "release", delay=interval(LACK_PAUSE), reason=reason)
    is_expected = isinstance(error, (RetryIn, Fatal))
    said = with_causes(error, is_expected)
    logger.warning("%r has failed: %s", job, said, exc_info=None if is_expected else error, extra=extra(job))
    retry_in = interval(error.delay) if isinstance(error, RetryIn) else None
    if keeps_trace and not is_expected:
        said = f"{said}\n{''.join(traceback.format_exception(type(error), error, error.__traceback__))[-MAX_TRACE:]}"
    return Ending(job, "fail", error=said, retry_in=retry_in, fatal=isinstance(error, Fatal))


def riding(held: Held, seconds: float) -> Ending:
    """Returns the completion of an attempt that is completed on another server."""
    try:
        ending = Ending(held.job, "complete", result=held.job.result)
    except (TypeError, ValueError):  # the application has set another dumper for JSON, which wrote it
        ending = Ending(held.job, "complete")
    ending.rider, ending.seconds = held, seconds
    return ending
