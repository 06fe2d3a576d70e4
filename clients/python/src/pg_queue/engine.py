"""Runs a worker: it claims for all slots on one connection, and sends everything else on a second connection.

* The *claimer* (`claimer`) claims as many jobs as there is room for.
* The *control* (`control`) sends one heartbeat for all held attempts, and the ends that no claim has carried.
* Each handler runs in a task of its own; a `def` runs in a thread.

An attempt is *held* from its claim until its handler has ended. The worker sends each end until the server has
answered, over new connections if necessary. `busy` does not count as an answer: another open transaction has the
attempt. It may be the handler's own, which the server is still rolling back. If the server does not answer for the
length of the lease, the worker has lost the lease. Only the event loop's thread uses the state.

An attempt whose completion is committed on another server *rides back*: it is extended until the completion has
arrived. If that takes too long, the worker sends the completion itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Callable, List, Optional, cast

import psycopg

from . import tracing
from .attempt import BaseJob
from .batch import AsyncBatch, Batch
from .claimer import Claimer
from .codec import PLAIN, Kind, UnknownCodec, is_encoded, later
from .control import GATHER
from .endings import Ending, raised, returned, riding, stopped
from .events import Event
from .held import Held
from .job import AsyncJob, Job
from .outcomes import Advance, AlreadyDone, Snooze, Stopped, Suspend
from .pool import LOST
from .settings import BaseWorker, Route
from .texts import extra, text
from .threads import Threads
from .watchdog import Watchdog

logger = logging.getLogger("pg_queue.worker")

GRACE = 1.0
"""How many seconds handlers have to react to `cancelled` after a timeout."""

MAX_RIDE = 30.0
"""How many seconds a completion may ride back, unless the lease is shorter."""

FAREWELL = 5.0
"""How long a worker that shuts down tries to send the last ends."""


class Engine(Claimer):
    """One run of a worker, from its first claim to the release of the remaining jobs."""

    def __init__(self, worker: BaseWorker, drain: bool, watch: Optional[Callable[[Event], None]]) -> None:
        super().__init__(worker, drain, watch)
        self._calls = {route: worker.bound(route) for route in worker.handlers}
        self._hurry = asyncio.Event()
        self._threads = Threads()
        self._context = contextvars.copy_context()

    def stop(self) -> None:
        """Any thread may call it. A second call ends the wait for the handlers."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._changed.set()
        for held in self._held.values():
            held.job.stopping = True

    async def serve(self) -> None:
        claimer = self._loop.create_task(self._claim_all())
        control = self._loop.create_task(self._control_all())
        for task in (claimer, control):
            task.add_done_callback(lambda _: self._stopping.set())
        limit = self._worker.stall_timeout
        with nullcontext() if limit is None else Watchdog(self.is_stuck, limit):
            try:
                await self._stopping.wait()
            finally:
                await asyncio.shield(self._loop.create_task(self._shut_down(claimer, control)))

    def _start(self) -> None:
        while self._ready and self._running() < self._worker.concurrency and not self._stopping.is_set():
            held = self._ready.popleft()
            group = [held, *self._others(held)]
            # A job's end starts the next one, which is not to see what a handler has set.
            task = self._context.copy().run(self._task, group)
            for held in group:
                held.task, held.group = task, group
            self._limit(group)
        # If a job ends the process, the attempts of jobs that have not begun would count.
        if self._ready and self._is_wary():
            waiting = list(self._ready)
            self._ready.clear()
            for held in waiting:
                self._end(held, Ending(held.job, "release"))

    def _limit(self, group: List[Held]) -> None:
        """Lets the attempts fail if their handler takes too long. If it goes on although it was told to stop, they fail
        nevertheless, and it keeps its slots.
        """
        limit = self._worker.timeouts.get(group[0].route, self._worker.timeout)
        if limit is None:
            return
        for held in group:
            held.job.timeout = limit
            held.limit = self._loop.call_later(limit, self._stop_late, held)

    def _stop_late(self, held: Held) -> None:
        if held.job.id in self._held and not held.job.ended:
            self._stop_job(held.job.id, "timeout")
            held.limit = self._loop.call_later(GRACE, self._fail_late, held)

    def _fail_late(self, held: Held) -> None:
        if held.job.id in self._held and not held.job.ended and held.job.stop_reason == "timeout":
            held.is_over, held.beat_at = True, math.inf
            held.expiry.cancel()
            self._send(stopped(held.job))

    def _task(self, group: List[Held]) -> asyncio.Task[None]:
        return self._loop.create_task(self._run(group))

    def _others(self, first: Held) -> List[Held]:
        """Returns the jobs that the handler runs together with the first one: ready jobs of the same handler, if it
        takes batches.
        """
        route = first.route
        if route not in self._worker.batches:
            return []
        most = min(self._worker.batches[route] - 1, self._worker.concurrency - self._running())
        others = [held for held in self._ready if held.route == route][:most]
        for held in others:
            self._ready.remove(held)
        return others

    # A handler.

    async def _run(self, group: List[Held]) -> None:
        group, begun = await self._decoded(group), self._loop.time()
        jobs = [held.job for held in group]
        for job in jobs:
            self._tell(Event("started", job.queue, job.job_id, job.id, job.attempt))
        try:
            results = await self._call(jobs, group[0].route) if jobs else []
        except BaseException as error:  # also SystemExit, which must not end the event loop
            if isinstance(error, KeyboardInterrupt):
                self._stop()
            if len(jobs) > 1 and _is_loss_of(jobs, error):
                error = Snooze()  # what the server answers for each says which one is lost
            results = [error] * len(jobs)
            if len(jobs) > 1 and isinstance(error, AlreadyDone):
                results = [error if job.job_id in error.job_ids else Snooze() for job in jobs]
        for held, result in zip(group, results):
            ending = self._ending(held.job, await self._encoded(held.job, result))
            ending.seconds = self._loop.time() - begun
            if held.job.id in self._held:
                self._end(held, ending)
        self._start()
        self._changed.set()

    async def _decoded(self, group: List[Held]) -> List[Held]:
        """Decodes what the jobs carry. Ends the jobs that cannot be read, and returns the others."""
        for held in group:
            held.is_decoding = True
        for held in group:
            job = held.job
            try:
                if job.unreadable is not None:
                    raise job.unreadable
                # Most workers have no codec, and most values have not the form of an encoded one.
                if self._codec is not PLAIN or is_encoded(job.payload) or is_encoded(job.progress):
                    await job._decode()
                job.check()
            except BaseException as error:
                if not isinstance(error, (UnknownCodec, Stopped, asyncio.CancelledError)):
                    self._tell(Event("started", job.queue, job.job_id, job.id, job.attempt))
                if job.id in self._held:
                    self._end(held, self._ending(job, error))
        rest = [held for held in group if held.job.id in self._held]
        for held in rest:
            held.group, held.is_decoding = rest, False
        return rest

    async def _encoded(self, job: BaseJob, result: Any) -> Any:
        """Returns what a handler has returned with its JSON as it is stored, or the error of the codec."""
        try:
            if isinstance(result, BaseException) or job.ended:
                return result
            if isinstance(result, Advance):
                return replace(result, payload=await self._stored(job, result.payload, "payload"))
            if isinstance(result, Suspend):
                return replace(result, progress=await self._stored(job, result.progress, "progress"))
            return await self._stored(job, result, "result")
        except BaseException as error:
            return error

    async def _stored(self, job: BaseJob, value: Any, kind: Kind) -> Any:
        return None if value is None else await later(self._codec.encode(value, job._context(kind)))

    async def _call(self, jobs: List[BaseJob], route: Route) -> List[Any]:
        """Calls the handler. Returns its result for each of the jobs."""
        call, is_async = self._calls[route], self._is_async[route]
        is_batch = route in self._worker.batches
        argument: Any = jobs[0]
        if is_batch:
            argument = AsyncBatch(cast(List[AsyncJob], jobs)) if is_async else Batch(cast(List[Job], jobs))
        is_over = lambda: all(job.stop_reason for job in jobs)
        with tracing.span(jobs[0], is_batch):
            result = await (call(argument) if is_async else self._threads.call(lambda: call(argument), is_over))
        if not is_batch:
            return [result]
        if result is None:
            return [None] * len(jobs)
        if not isinstance(result, (list, tuple)) or len(result) != len(jobs):
            raise ValueError(f"a handler of {len(jobs)} jobs must return {len(jobs)} results or None")
        return list(result)

    def _ending(self, job: BaseJob, result: Any) -> Ending:
        """Returns how the attempt ends, from what its handler has returned or raised."""
        try:
            if isinstance(result, BaseException):
                return self._raised(job, result)
            return returned(job, result)
        except Exception as error:  # such as a result that is not JSON
            return self._raised(job, error)

    def _raised(self, job: BaseJob, error: BaseException) -> Ending:
        return self._for_another(job, text(error)) if isinstance(error, UnknownCodec) else raised(
            job, error, self._worker.trace
        )

    def _end(self, held: Held, ending: Ending) -> None:
        held.expiry.cancel()
        if held.limit is not None:
            held.limit.cancel()
        del self._held[held.job.id]
        if held.is_over:  # its end is on the way
            return
        if held.job.committed:  # whatever the handler has done since then
            self._ride(held, ending.seconds)
        elif ending.kind == "none":
            self._settle(ending, "lost" if held.job.stop_reason == "lost" and not held.job.ended else None)
        else:
            # A claim that completes does not sleep, so a claim that lingers carries no ends.
            self._send(ending, GATHER if ending.is_plain and not self._linger else 0)

    def _ride(self, held: Held, seconds: float) -> None:
        """Extends an attempt until its completion has arrived from the other server."""
        ending = riding(held, seconds)
        held.beat_at = self._loop.time() + GATHER
        self._send(ending, min(held.lease, MAX_RIDE))
        self._due.set()

    def _stop_job(self, attempt_id: int, reason: Any) -> None:
        """Tells the handler to stop. If it has not begun, the attempt ends immediately."""
        held = self._held.get(attempt_id)
        if held is None:
            return
        is_ended = reason == "lost" and held.job.ended  # the handler has ended the attempt, and goes on
        if reason == "lost":  # the lease has expired
            held.expiry.cancel()
            held.beat_at = math.inf
        if held.job.stop_reason in (reason, "lost") or is_ended:
            return
        logger.warning("%r is to stop: %s", held.job, reason, extra=extra(held.job))
        is_first = held.stopped_at is None
        held.stopped_at = held.stopped_at or self._loop.time()
        held.job.stop(reason)
        if held.task is None:
            self._ready.remove(held)
            self._end(held, stopped(held.job))
            self._changed.set()
        elif is_first and all(one.job.stop_reason for one in held.group):
            if self._is_async[held.route] or held.is_decoding:
                held.task.cancel()

    def is_stuck(self, limit: float) -> bool:
        """Returns whether all slots are taken by handlers that should have ended at least `limit` seconds ago. Any
        thread may call it.
        """
        now = self._loop.time()
        late = [held for held in list(self._held.values()) if held.stopped_at and now - held.stopped_at >= limit]
        return len(late) >= self._running() >= self._worker.concurrency

    # The end.

    async def _shut_down(self, claimer: asyncio.Task[None], control: asyncio.Task[None]) -> None:
        self._stopping.set()
        self._changed.set()
        self._loop.call_later(FAREWELL, self._claims.sever)  # in case the server does not answer
        while not claimer.done():
            # If the server has not begun the claim, it ignores the request. So the request is repeated until the claim
            # has ended.
            await self._claims.cancel()
            await asyncio.wait({claimer}, timeout=0.2)
        while self._ready:
            held = self._ready.popleft()
            self._end(held, stopped(held.job))
        await self._wait_for_handlers(self._worker.shutdown_timeout, self._hurry)
        for attempt_id in list(self._held):
            self._stop_job(attempt_id, "shutdown")
        await self._wait_for_handlers(GRACE)
        for held in list(self._held.values()):  # their handlers did not stop
            logger.warning("%r is still running; it is released", held.job, extra=extra(held.job))
            self._end(held, stopped(held.job))
            if held.task is not None and self._is_async[held.route]:
                # The handler has suppressed its cancellation, and `asyncio.run` would wait for it.
                asyncio.tasks._unregister_task(held.task)
        self._is_closing = True
        for ending in self._ended.values():
            if ending.rider is not None:
                ending.due = min(ending.due, self._loop.time() + GRACE)
        self._due.set()
        self._loop.call_later(FAREWELL, self._control.sever)
        await asyncio.wait({control}, timeout=FAREWELL + GRACE)
        for ending in self._ended.values():
            logger.error("%r: the server did not confirm its end", ending.job, extra=extra(ending.job))
        control.cancel()
        self._threads.close()
        self._pool.close()
        self._async_pool.close()
        for effects in (self._effects, self._async_effects):
            if effects is not None:
                effects.close()
        for link in (self._claims, self._control):
            await link.close()
        for task in (claimer, control):
            if task.done() and not task.cancelled():
                task.result()  # raises an error of the worker's own code

    async def _wait_for_handlers(self, seconds: float, hurry: Optional[asyncio.Event] = None) -> None:
        end = self._loop.time() + seconds
        while self._held and self._loop.time() < end and not (hurry and hurry.is_set()):
            tasks = {held.task for held in self._held.values() if held.task is not None}
            await asyncio.wait(tasks, timeout=min(0.1, seconds), return_when=asyncio.FIRST_COMPLETED)


def _is_loss_of(jobs: List[BaseJob], error: BaseException) -> bool:
    """Returns whether the server says that one of these attempts is lost."""
    if not isinstance(error, psycopg.Error) or error.sqlstate != LOST:
        return False
    attempt = text(error).partition("\n")[0].rpartition(" ")[2]
    return attempt in [str(job.id) for job in jobs]
