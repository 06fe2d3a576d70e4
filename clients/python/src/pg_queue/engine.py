"""Runs a worker: it claims for all slots on one connection, and sends everything else on a second connection.

* The *claimer* (`claimer`) claims as many jobs as there is room for.
* The *control* (`control`) sends one heartbeat for all held attempts, and the ends that no claim has carried.
* A task runs one handler after the other until one waits, which then keeps the task. A `def` runs in a thread.

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
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Callable, List, Optional

import psycopg

from .attempt import BaseJob
from .claimer import Claimer
from .codec import PLAIN, Kind, UnknownCodec, later
from .control import GATHER
from .endings import Ending, raised, returned, riding, stopped
from .events import Event
from .held import Held
from .log import logger
from .outcomes import Advance, AlreadyDone, Snooze, Stopped, Suspend
from .pool import LOST, wait_set
from .settings import BaseWorker
from .texts import extra, text
from .threads import Call, Threads
from .watchdog import Watchdog

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
        self._hurry = asyncio.Event()
        self._threads = Threads(_is_over)
        self._starts = 0  # the calls of `_start`, and how often it was asked for

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

    # What starts jobs runs in a copy of this context: a job is not to see what hooks and other handlers have set.

    def _start_soon(self) -> None:
        if self._ready and not self._is_starting and not self._stopping.is_set():
            self._is_starting = True
            self._starts += 1
            self._loop.call_soon(self._start, context=self._context.copy())

    def _start(self) -> None:
        """Starts ready jobs, at most as many as run at the same time: between them the event loop has its turn. If no
        handler runs, then none has waited: one task runs them in turn.
        """
        self._is_starting = True
        self._starts += 1
        is_alone = not self._running() and not self._is_wary()
        for _ in range(self._worker.concurrency):
            group = self._next()
            if not group:
                break
            if not group[0].handler.is_async and all([held.job.is_plain for held in group]):
                self._call_in_thread(group)
                is_alone = False
                continue
            task = self._loop.create_task(self._run_in_turn(group) if is_alone else self._run(group))
            for held in group:
                held.task = task
            if is_alone:
                break
        self._is_starting = False
        # If a job ends the process, the attempts of jobs that have not begun would count.
        while self._ready and self._is_wary():
            held = self._ready.popleft()
            self._end(held, Ending(held.job, "release"))
        if is_alone or self._running() < self._worker.concurrency:
            self._start_soon()

    def _next(self) -> List[Held]:
        """Takes the job that starts next, or a batch. Returns nothing if none may start."""
        if not self._ready or self._running() >= self._worker.concurrency or self._stopping.is_set():
            return []
        held = self._ready.popleft()
        group = [held]
        if held.handler.batch is not None:
            group += self._others(held, held.handler.batch)
            for one in group:
                one.group = group[1:] and group  # no circle of one job, which costs a collection
        if held.handler.timeout is not None:
            for one in group:
                one.late_at = self._loop.time() + held.handler.timeout
            self._deadlines.set(held.late_at)
        return group

    def _stop_late(self, held: Held) -> None:
        """Stops a handler that takes too long. If it goes on for `GRACE` seconds, its attempt fails nevertheless, and
        it keeps its slot.
        """
        job, is_first = held.job, held.job.timeout is None
        held.late_at = self._loop.time() + GRACE if is_first else math.inf
        if is_first and not job.ended:
            job.timeout = held.handler.timeout
            self._stop_job(job.id, "timeout")
        elif job.stop_reason == "timeout" and not job.ended:
            held.is_over, held.beat_at, held.expires_at = True, math.inf, math.inf
            self._send(stopped(job))

    def _others(self, first: Held, batch: int) -> List[Held]:
        """Returns the jobs that the handler runs together with the first one: ready jobs of the same handler."""
        most = min(batch - 1, self._worker.concurrency - self._running())
        others = [held for held in self._ready if held.handler is first.handler][:most]
        for held in others:
            self._ready.remove(held)
        return others

    # A handler.

    async def _run_in_turn(self, group: List[Held]) -> None:
        """Runs jobs one after the other, as if each had a task of its own. The last one is the first whose handler
        waits, sets a context variable or cancels its task. While it waits, the event loop calls `_start` for the rest.
        """
        task: Any = asyncio.current_task()
        starts, context = self._starts, contextvars.copy_context()
        await self._run(group)
        for _ in range(self._worker.concurrency - 1):
            if self._starts != starts or getattr(task, "_must_cancel", True) or not _is_current(context):
                break
            group = self._next()
            if not group:
                break
            for held in group:
                held.task = task
            await self._run(group)

    async def _run(self, group: List[Held]) -> None:
        """Runs a job or a batch, for which the event loop has to wait: for the codec, or for the handler."""
        for held in group:
            if not held.job.is_plain or held.job.stop_reason is not None:
                group = await self._decoded(group)
                break
        if group and not group[0].handler.is_async:
            self._call_in_thread(group)
        elif group:
            self._begin(group)
            try:
                outcome = await group[0].handler.function(_argument(group))
            except BaseException as error:  # also SystemExit, which must not end the event loop
                outcome = error
                if isinstance(error, KeyboardInterrupt):
                    self._stop()
            self._finish_all(group, outcome)

    def _call_in_thread(self, group: List[Held]) -> None:
        context = contextvars.copy_context()
        context.run(self._begin, group)
        self._threads.call(
            Call(context, group[0].handler.function, _argument(group), partial(self._finish_all, group))
        )

    def _begin(self, group: List[Held]) -> None:
        for held in group:
            held.begun = self._loop.time()
            self._tell("started", held.job)

    def _finish_all(self, group: List[Held], outcome: Any) -> None:
        """Ends attempts by what their handler has returned or raised."""
        outcomes = [outcome] if group[0].handler.batch is None else _outcomes(group, outcome)
        if self._codec is PLAIN:
            for held, outcome in zip(group, outcomes):
                self._finish(held, outcome)
        else:
            task = self._loop.create_task(self._encode_all(group, outcomes))
            for held in group:
                held.task = task

    def _finish(self, held: Held, outcome: Any) -> None:
        job = held.job
        is_bare = outcome is None and not job.ended and not job.is_open  # so do most attempts end
        ending = Ending(job, "complete") if is_bare else self._ending(job, outcome)
        if held.begun:
            ending.seconds = self._loop.time() - held.begun
        if job.id in self._held:
            self._end(held, ending)

    async def _decoded(self, group: List[Held]) -> List[Held]:
        """Decodes what the jobs carry. Ends the jobs that cannot be read or are to stop, and returns the others."""
        for held in group:
            held.is_decoding = True
        for held in group:
            job = held.job
            try:
                if not job.is_plain:
                    await job._decode()
                job.check()
            except BaseException as error:
                if not isinstance(error, (UnknownCodec, Stopped, asyncio.CancelledError)):
                    self._begin([held])
                self._finish(held, error)
        for held in group:
            held.is_decoding = False
        return [held for held in group if held.job.id in self._held]

    async def _encode_all(self, group: List[Held], outcomes: List[Any]) -> None:
        for held, outcome in zip(group, outcomes):
            self._finish(held, await self._encoded(held.job, outcome))

    async def _encoded(self, job: BaseJob, outcome: Any) -> Any:
        """Returns what a handler has returned with its JSON as it is stored, or the error of the codec."""
        try:
            if isinstance(outcome, BaseException) or job.is_done or job.committed:
                return outcome
            if isinstance(outcome, Advance):
                return replace(outcome, payload=await self._stored(job, outcome.payload, "payload"))
            if isinstance(outcome, Suspend):
                return replace(outcome, progress=await self._stored(job, outcome.progress, "progress"))
            return await self._stored(job, outcome, "result")
        except BaseException as error:
            return error

    async def _stored(self, job: BaseJob, value: Any, kind: Kind) -> Any:
        return None if value is None else await later(self._codec.encode(value, job._context(kind)))

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
        job = held.job
        del self._held[job.id]
        self._suspects.discard(job.id)
        if held.is_over:
            pass  # its end is on the way
        elif job.committed:  # whatever the handler has done since then
            self._ride(held, ending.seconds)
        elif ending.kind == "none":
            self._settle(ending, "lost" if job.stop_reason == "lost" and not job.ended else None)
        elif ending.kind == "complete" and not self._linger:
            self._carry(ending)  # a claim that carries completions does not sleep, so it would not linger
        else:
            self._send(ending)
        if not self._is_starting:
            self._start_soon()
        if len(self._held) <= self._low_water:
            self._changed.set()

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
            held.beat_at = held.expires_at = math.inf
        if held.job.stop_reason in (reason, "lost") or is_ended:
            return
        logger.warning("%r is to stop: %s", held.job, reason, extra=extra(held.job))
        is_first = held.stopped_at is None
        held.stopped_at = held.stopped_at or self._loop.time()
        held.job.stop(reason)
        if held in self._ready:
            self._ready.remove(held)
            self._end(held, stopped(held.job))
        elif is_first and held.task is not None and self._is_group_over(held):
            # A task that has not begun would not learn of it. It looks at the reason itself.
            if held.is_decoding or held.begun and held.handler.is_async:
                held.task.cancel()

    def _is_group_over(self, held: Held) -> bool:
        """Returns whether all jobs of a batch are to stop. A job that could not be decoded is no longer held."""
        return all(one.job.stop_reason or one.job.id not in self._held for one in held.group)

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
            if held.task is not None and held.handler.is_async:
                # The handler has suppressed its cancellation, and `asyncio.run` would wait for it.
                asyncio.tasks._unregister_task(held.task)
        self._is_closing = True
        for ending in self._ended.values():
            if ending.rider is not None:
                ending.due = min(ending.due, self._loop.time() + GRACE)
        self._due.set()
        self._loop.call_later(FAREWELL, self._control.sever)
        await asyncio.wait({control}, timeout=FAREWELL + GRACE)
        for ending in [*self._ended.values(), *self._completed]:
            logger.error("%r: the server did not confirm its end", ending.job, extra=extra(ending.job))
        control.cancel()
        self._wake.cancel()
        self._deadlines.cancel()
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
            self._changed.clear()
            await wait_set(self._changed, min(0.1, seconds))


def _is_current(context: contextvars.Context) -> bool:
    """Returns whether the current context has the same values. Their own `==` may be slow, or raise an error."""
    now = contextvars.copy_context()
    for variable, value in now.items():
        if context.get(variable, context) is not value:
            return False
    return len(now) == len(context)


def _argument(group: List[Held]) -> Any:
    """Returns what the handler gets."""
    return group[0].job if group[0].handler.batch is None else [held.job for held in group]


def _outcomes(group: List[Held], outcome: Any) -> List[Any]:
    """Returns for each job of a batch what its handler has returned or raised."""
    jobs = [held.job for held in group]
    if isinstance(outcome, AlreadyDone):
        return [outcome if job.job_id in outcome.job_ids else Snooze() for job in jobs]
    if isinstance(outcome, BaseException):
        # What the server answers for each attempt says which one is lost.
        return [Snooze() if len(jobs) > 1 and _is_loss_of(jobs, outcome) else outcome] * len(jobs)
    return list(outcome)


def _is_over(argument: Any) -> bool:
    """Returns whether the handler of a job or a batch is to stop."""
    return all(job.stop_reason for job in (argument if isinstance(argument, list) else [argument]))


def _is_loss_of(jobs: List[BaseJob], error: BaseException) -> bool:
    """Returns whether the server says that one of these attempts is lost."""
    if not isinstance(error, psycopg.Error) or error.sqlstate != LOST:
        return False
    attempt = text(error).partition("\n")[0].rpartition(" ")[2]
    return attempt in [str(job.id) for job in jobs]
