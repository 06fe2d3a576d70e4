"""The control of a worker: it sends one heartbeat for all held attempts, and the ends that no claim has carried.

The worker sends each end until the server has answered, over new connections if necessary. `busy` does not count as an
answer: another open transaction has the attempt. It may be the handler's own, which the server is still rolling back.

If the server refuses a call, the control splits it, by queue and then in halves, until each faulty attempt is alone.
Invariant: between two calls for faulty parts there is one for the attempts without a known fault, if that is due.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import psycopg

from .alarm import Alarm
from .attempt import BaseJob
from .endings import EVENTS, RETRY_PAUSE, Ending, warn_of_result
from .events import Event, EventKind
from .held import Held
from .log import logger
from .pool import Backoff, Gone, Link
from .settings import BaseWorker
from .texts import extra, line

GATHER = 0.02
"""How many seconds a completion waits for a claim to carry it."""

LATE = 1.0
"""If a timer is later than this, in seconds, the event loop was blocked."""

REPORT = "SELECT id, outcome, reason FROM queue.end_batch(%s::json)"

_AT_FAULT = ("22", "54")
"""The classes of SQLSTATEs for an end that the server will never accept: invalid data, or too much data."""


class Control:
    """The part of a run of a worker that sends heartbeats and ends."""

    def __init__(self, worker: BaseWorker, watch: Optional[Callable[[Event], None]], control: Link) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._watch = watch
        self._control = control
        self._held: Dict[int, Held] = {}
        self._ended: Dict[int, Ending] = {}  # ends without an answer, except those in `_completed` and in a claim
        self._completed: List[Ending] = []  # completions, which the next claim carries
        self._carry_until = math.inf  # when the control sends `_completed` instead
        self._parts: Dict[int, int] = {}  # the part of each attempt after errors; others are in part 0
        self._longest_beat = min((worker.disconnect or math.inf) / 3, worker.heartbeat)
        self._is_closing = False
        self._changed = asyncio.Event()  # wakes the claimer: there is room, or the worker stops
        self._due = asyncio.Event()  # wakes the control: there is something to send
        self._wake = Alarm(self._loop, self._due.set)
        self._deadlines = Alarm(self._loop, self._look_at_deadlines)

    def _stop_job(self, attempt_id: int, reason: Any) -> None:
        raise NotImplementedError

    def _stop_late(self, held: Held) -> None:
        raise NotImplementedError

    def _due_ends(self, now: float) -> List[Ending]:
        """Returns the ends that the control has to send, or is sending. Ends that wait for a claim, and postponed ends,
        take no slot.
        """
        return [ending for ending in self._ended.values() if ending.due <= now]

    async def _control_all(self) -> None:
        backoff = Backoff()
        while self._ended or self._completed or not self._is_closing:
            await self._until_due()
            try:
                await self._report()
                backoff.reset()
            except Gone as error:
                await asyncio.sleep(min(backoff.failed("heartbeat", error), self._beat(math.inf)))

    async def _until_due(self) -> None:
        self._due.clear()
        times = [held.beat_at for held in self._held.values()]
        for ending in self._ended.values():
            times += [ending.due, ending.rider.beat_at] if ending.rider else [ending.due]
        times += [self._carry_until] if self._completed else []
        self._wake.set(min(times, default=math.inf))
        await self._due.wait()

    def _beat(self, lease: float) -> float:
        # The server may find out at any time that a connection has broken, also long after the worker has another one.
        return min(lease / 3, self._longest_beat)

    def _look_at_deadlines(self) -> None:
        """Stops the handlers whose time is over, or whose leases have expired because no heartbeat has succeeded."""
        now, held = self._loop.time(), list(self._held.values())
        late = max((now - one.expires_at for one in held), default=0)
        if late > LATE:
            logger.warning("the event loop was blocked for %.1f seconds: no heartbeat was sent", late)
        for one in held:
            if one.expires_at <= now:
                self._stop_job(one.job.id, "lost")
            if one.late_at <= now:
                self._stop_late(one)
        self._deadlines.set(min((min(one.expires_at, one.late_at) for one in self._held.values()), default=math.inf))

    def _ride_on(self, attempt_id: int, outcome: str, begun: float) -> None:
        """A completion that rides back has arrived when the attempt cannot be extended any more."""
        ending = self._ended.get(attempt_id)
        if ending is None or ending.rider is None:
            return
        if outcome == "lost":
            del self._ended[attempt_id]
            self._settle(ending)
            self._changed.set()
        else:
            ending.rider.beat_at = begun + min(max(ending.pause(), GATHER), self._beat(ending.rider.lease))

    def _send(self, ending: Ending, delay: float = 0.0) -> None:
        ending.due = self._loop.time() + delay
        self._ended[ending.job.id] = ending
        self._wake.set(ending.due)

    def _carry(self, ending: Ending) -> None:
        """Leaves a completion to the next claim. If there is none for `GATHER` seconds, the control sends it."""
        if not self._completed:
            self._carry_until = self._loop.time() + GATHER
            self._wake.set(self._carry_until)
        self._completed.append(ending)

    async def _report(self) -> None:
        """Extends all leases if a heartbeat is due, and sends the ends that are due: those of part 0, in which no fault
        is known, and those of one other part. The other parts take turns.
        """
        while self._completed and self._carry_until <= self._loop.time():
            self._send(self._completed.pop(0))
        begun = self._loop.time()
        self._parts = {one: part for one, part in self._parts.items() if one in self._held or one in self._ended}
        parts: Dict[int, List[Union[Held, Ending]]] = {}
        entries: List[Union[Held, Ending]] = [*self._extended(begun), *self._due_ends(begun)]
        for entry in entries:
            parts.setdefault(self._part(entry.job.id), []).append(entry)
        for part in sorted(parts)[:2]:
            await self._report_part(parts[part], begun)

    def _part(self, attempt_id: int) -> int:
        return self._parts.get(attempt_id, 0)

    def _split(self, entries: Sequence[Union[Held, Ending]]) -> None:
        """Makes parts of a part that the server has refused: one for each queue, or two halves. They are sent after all
        other parts.
        """
        new, half = max(self._parts.values(), default=0) + 1, (len(entries) + 1) // 2
        queues = sorted({entry.job.queue for entry in entries})
        for n, entry in enumerate(entries):
            self._parts[entry.job.id] = new + (queues.index(entry.job.queue) if len(queues) > 1 else n // half)

    async def _report_part(self, entries: Sequence[Union[Held, Ending]], begun: float) -> None:
        """Sends heartbeats and ends in one call. If the server refuses it, splits the part."""
        try:
            rows = await self._control.fetch(REPORT, [f"[{','.join(entry.json for entry in entries)}]"])
        except psycopg.Error as error:
            self._split(entries)
            if len(entries) > 1:
                return
            is_at_fault = isinstance(entries[0], Ending) and (error.sqlstate or "")[:2] in _AT_FAULT
            rows = [(entries[0].job.id, "refused" if is_at_fault else "error", line(error))]
        else:
            for entry in entries:
                self._parts.pop(entry.job.id, None)
        ended = {entry.job.id for entry in entries if isinstance(entry, Ending)}
        for attempt_id, outcome, reason in rows:
            if attempt_id in ended:
                self._answered(self._ended.pop(attempt_id), outcome, reason)
            else:
                self._beaten(attempt_id, outcome, reason, begun)
        if ended:
            self._changed.set()

    def _extended(self, now: float) -> List[Held]:
        """Returns the attempts to extend now: all of a part, if one of them is due."""
        riders = [ending.rider for ending in self._ended.values() if ending.due > now]
        held = [one for one in [*self._held.values(), *riders] if one is not None and not one.is_over]
        due = {self._part(one.job.id) for one in held if one.beat_at <= now}
        return [one for one in held if self._part(one.job.id) in due]

    def _beaten(self, attempt_id: int, outcome: str, reason: str, begun: float) -> None:
        """Handles the answer to a heartbeat. A busy attempt does not expire: an open transaction is ending it, mostly
        the handler's own. The worker extends it again soon, and also after an error, which does not renew the lease.
        """
        held = self._held.get(attempt_id)
        if held is None:
            self._ride_on(attempt_id, outcome, begun)
            return
        beat = self._beat(held.lease)
        held.errors = held.errors + 1 if outcome == "error" else 0
        if held.errors == 2:
            logger.error("%r could not be extended: %s", held.job, reason, extra=extra(held.job))
        pause = min(1.0, beat) if outcome == "busy" else beat
        held.beat_at = begun + (RETRY_PAUSE * 2.0 ** min(held.errors, 10) if outcome == "error" else pause)
        if outcome not in ("lost", "error"):
            held.expires_at = begun + held.lease
        if outcome in ("cancelling", "lost"):
            self._stop_job(attempt_id, "cancelled" if outcome == "cancelling" else "lost")

    def _answered(self, ending: Ending, outcome: str, reason: str) -> None:
        """Handles the server's answer for an end: finishes it, sends it again, or sends a failure in its place."""
        ending.errors += outcome == "error"
        if outcome == "refused" or (outcome == "error" and ending.errors == 2):
            logger.error("%r could not end by %r: %s", ending.job, ending.kind, reason, extra=extra(ending.job))
        if outcome in ("busy", "error"):
            self._send(ending, ending.pause())
        elif outcome == "refused" and not ending.is_last_resort:
            failure = Ending(ending.job, "fail", error=ending.arguments.get("error") or reason)
            failure.seconds = ending.seconds
            self._send(failure)
        elif outcome in ("lost", "refused") and ending.rider is None:
            if ending.is_doubtful and ending.arguments.get("result") is not None:
                warn_of_result(ending.job)
            self._settle(ending, "completed" if ending.is_doubtful else "lost")
        else:
            self._settle(ending)

    # Events.

    def _is_observed(self) -> bool:
        """Returns whether a hook or the log wants to know of each end. Both may be set while the worker runs."""
        return bool(self._watch or self._worker.on_event or logger.isEnabledFor(logging.DEBUG))

    def _settle(self, ending: Ending, kind: Optional[EventKind] = None) -> None:
        """Reports that the server has answered: this attempt has ended, or its lease was lost."""
        job = ending.job
        kind = kind or EVENTS[ending.kind]
        if kind == "lost":
            logger.warning("%r: lost lease", job, extra=extra(job))
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("%r: %s", job, kind, extra=extra(job))
        self._tell(kind, job, ending.seconds, ending.arguments.get("error"))

    def _tell(
        self, kind: EventKind, job: Optional[BaseJob] = None, seconds: float = 0.0, error: Optional[str] = None
    ) -> None:
        if self._watch is None and self._worker.on_event is None:
            return
        of_job = (job.queue, job.job_id, job.id, job.attempt) if job else ("", 0, 0, 0)
        event = Event(kind, *of_job, seconds, error)
        for hook in (self._watch, self._worker.on_event):
            if hook is not None:
                try:
                    hook(event)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:  # also CancelledError, which would end the worker
                    logger.exception("on_event has failed")
