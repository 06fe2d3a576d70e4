"""Runs a worker: claims for all slots on one connection, and tells the queue everything else on a second one.

* The *claimer* claims as many jobs as there is room for. What was completed without a result goes along as
  `completed`, so that a busy worker needs one transaction for both.
* The *control* sends one heartbeat for all that is held, and the ends that the claimer did not take along.
* A handler runs in a task of its own; a `def` in a thread.

An attempt is *held* from its claim until its handler has ended. The worker sends each end until the server has
answered, over as many connections as it takes. `busy` is no answer: another open transaction has the attempt. It may be
the handler's own, which the server is still rolling back. A worker that does not hear from the server for as long as
the lease lasts has lost it. All state belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Set, Tuple, cast

import psycopg
from psycopg import AsyncConnection

from . import tracing
from .batch import AsyncBatch, Batch
from .endings import Ending, span
from .events import Event, EventKind
from .held import Held
from .job import COLUMNS, AsyncJob, BaseJob, Job
from .outcomes import Advance, Fatal, RetryIn, Snooze, Stopped, Suspend, interval
from .pool import LOST, SILENCE, AsyncPool, Backoff, Gone, Link, Pool, connect, connect_async, hosts
from .threads import Threads
from .unreadable import Unreadable, keep
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .worker import Worker

logger = logging.getLogger("pg_queue.worker")

GATHER = 0.02
"""How long, in seconds, a completion waits for a claim to take it along."""

GRACE = 1.0
"""How long handlers have to heed `cancelled` when the worker's time is over."""

FAREWELL = 5.0
"""How long a worker that ends tries to tell the server what has ended."""

_MISSING = ("42704", "3F000", "42883")
"""The SQLSTATEs of a queue, and of a database without the extension."""

CLAIM = f"""
    SELECT {COLUMNS}, extract(epoch FROM lease_expires_at - clock_timestamp())::float8
    FROM queue.claim_any(%s::text[], max_jobs => %s, wait => %s, lease => %s::interval, stage => %s::text, worker => %s,
        session_bound => %s, completed => %s::bigint[])"""

EXTEND = "SELECT id, outcome, is_cancelled FROM queue.extend_many(%s::bigint[])"

END = "SELECT id, outcome, reason FROM queue.end_batch(%s::json)"

_AT_FAULT = ("22", "54")
"""The classes of SQLSTATEs that blame an end itself, which the server will never take: bad data, or too much."""


class Engine:
    """One run of a worker, from its first claim to the release of what is left."""

    def __init__(self, worker: Worker, drain: bool, watch: Optional[Callable[[Event], None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._drain = drain
        self._watch = watch
        self._calls = {queue: worker.bound(queue) for queue in worker.handlers}
        self._is_async = {queue: inspect.iscoroutinefunction(h) for queue, h in worker.handlers.items()}
        self._held: Dict[int, Held] = {}
        self._ready: Deque[Held] = deque()
        self._running = 0
        self._done: List[Ending] = []
        self._outbox: Dict[int, Ending] = {}  # what the control sends, or is sending
        self._later: Set[Ending] = set()  # put off, to be sent again; they take no slot
        self._stops = 0
        self._has_claimed = False  # the queues were there
        self._is_closing = False
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Event()  # for the claimer: there is room, or the end
        self._due = asyncio.Event()  # for the control: there is something to send
        self._threads = Threads()
        self._hosts = hosts(worker.conninfo)
        self._pool = Pool(lambda: connect(self._hosts))
        self._async_pool = AsyncPool(self._connect)
        self._claims = Link(self._connect_claims, worker.wait + SILENCE)
        self._control = Link(self._connect)

    def stop(self) -> None:
        """From any thread. The second call ends the wait for the handlers."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        self._stopping.set()
        self._changed.set()
        if self._stops > 1:
            self._hurry.set()
        for held in self._held.values():
            held.job.stopping = True

    async def serve(self) -> None:
        claimer = self._loop.create_task(self._claim_all())
        control = self._loop.create_task(self._control_all())
        stopped = self._loop.create_task(self._stopping.wait())
        limit = self._worker.stall_timeout
        watchdog = None if limit is None else Watchdog(self, limit)
        try:
            await asyncio.wait({claimer, control, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await asyncio.shield(self._loop.create_task(self._shut_down(claimer, control)))
            finally:
                stopped.cancel()
                if watchdog is not None:
                    watchdog.close()

    # Connections. No prepared statements: a pooler in transaction mode has another connection for each transaction.

    async def _connect(self) -> AsyncConnection[Any]:
        return await connect_async(self._hosts)

    async def _connect_claims(self) -> AsyncConnection[Any]:
        conn = await self._connect()
        conn.add_notice_handler(lambda notice: logger.warning("%s", notice.message_primary))
        keep(conn)
        self._tell(Event("connected"))
        return conn

    # The claimer.

    async def _claim_all(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            room = self._room()
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            completed, self._done = self._done, []
            # An end during the claim may make a job ready that the claim does not see.
            is_idle = not self._held and self._is_told()
            self._changed.clear()
            try:
                rows = await self._claim(room, [ending.id for ending in completed])
            except (Gone, psycopg.Error) as error:
                self._send(*completed)  # one of them may be the cause, which the control finds out
                if isinstance(error, psycopg.errors.QueryCanceled):
                    continue
                if not self._has_claimed and isinstance(error, psycopg.Error) and error.sqlstate in _MISSING:
                    raise RuntimeError(f"the worker cannot start: {_line(error)}") from error
                is_gone = isinstance(error, Gone)
                if backoff.is_news(_line(error)):
                    what = "no connection" if is_gone else "a claim has failed"
                    logger.log(logging.WARNING if is_gone else logging.ERROR, "%s, the worker tries again: %s", what,
                        _line(error))
                if is_gone:
                    self._tell(Event("disconnected", error=str(error)))
                await _wait(self._stopping, backoff.next())
                continue
            backoff.reset()
            self._has_claimed = True
            # What could not be completed has a row without a job.
            answers = {row[0]: row[5] for row in rows if row[1] is None}
            for ending in completed:
                answer = answers.get(ending.id, {"outcome": "completed", "reason": None})
                self._answered(ending, answer["outcome"], answer["reason"])
            for row in rows:
                if row[1] is not None:
                    self._accept(row)
            self._start()
            if self._drain and not rows and not completed:
                if is_idle:
                    return
                await self._changed.wait()

    async def _claim(self, room: int, completed: List[int]) -> List[Any]:
        worker = self._worker
        # The first claim does not sleep: it finds out whether the queues exist.
        wait = worker.wait if self._has_claimed and not self._drain else 0.0
        parameters = [list(worker.handlers), room, interval(wait), interval(worker.lease), worker.stage]
        return await self._claims.fetch(CLAIM, [*parameters, worker.name, worker.session_bound, completed])

    def _room(self) -> int:
        """How many jobs to claim now. One that claims ahead waits until it is worth the round trip."""
        limit = self._worker.concurrency + self._worker.prefetch
        held = self._running + len(self._ready) + len(self._outbox)
        return limit - held if held < self._worker.concurrency or held <= limit // 2 else 0

    def _is_told(self) -> bool:
        """Whether the server knows of all that has ended."""
        return not (self._done or self._outbox or self._later)

    def _accept(self, row: Tuple[Any, ...]) -> None:
        unreadable = next((value.error for value in row if isinstance(value, Unreadable)), None)
        columns: List[Any] = [None if isinstance(value, Unreadable) else value for value in row[:-1]]
        lease = max(row[-1], 0.001)
        queue: str = row[2]
        job: BaseJob
        if self._is_async[queue]:
            job = AsyncJob(*columns, pool=self._async_pool, on_stop=lambda: self._cancel(job.id))
        else:
            job = Job(*columns, pool=self._pool)
        job.unreadable = unreadable
        job.stopping = self._stopping.is_set()
        now = self._loop.time()
        expiry = self._loop.call_at(now + lease, self._stop_job, job.id, "lost")
        self._held[job.id] = held = Held(job, lease, now + self._beat(lease), expiry)
        self._ready.append(held)
        self._due.set()  # the control takes the new lease into account

    def _start(self) -> None:
        while self._ready and self._running < self._worker.concurrency and not self._stopping.is_set():
            held = self._ready.popleft()
            if held.job.stop_reason is not None:  # it was cancelled or lost before it began
                self._end(held, self._stopped(held.job))
                continue
            group = [held, *self._others(held)]
            self._running += len(group)
            task = self._loop.create_task(self._run(group))
            for held in group:
                held.task, held.group = task, group

    def _others(self, first: Held) -> List[Held]:
        """What the first one's handler runs together with it: ready jobs of the same queue, if it takes batches."""
        size = self._worker.batches.get(first.job.queue, 1)
        most = min(size, self._worker.concurrency - self._running) - 1
        others: List[Held] = []
        if most > 0 and first.job.unreadable is None:
            for held in list(self._ready):
                if held.job.queue == first.job.queue and held.job.unreadable is None and len(others) < most:
                    self._ready.remove(held)
                    others.append(held)
        return others

    # A handler.

    async def _run(self, group: List[Held]) -> None:
        jobs, begun = [held.job for held in group], self._loop.time()
        for job in jobs:
            self._tell(Event("started", job.queue, job.job_id, job.id, job.attempt))
        try:
            results = await self._call(jobs)
            endings = [self._ended(job, result) for job, result in zip(jobs, results)]
        except BaseException as error:  # also SystemExit, which is not to end the event loop
            if isinstance(error, KeyboardInterrupt):
                self._stop()
            if len(jobs) > 1 and isinstance(error, psycopg.Error) and error.sqlstate == LOST:
                error = Snooze()  # one is lost, which the server says of each
            endings = [self._ended(job, error) for job in jobs]
        finally:
            self._running -= len(jobs)
        for held, ending in zip(group, endings):
            ending.seconds = self._loop.time() - begun
            if held.job.id in self._held:
                self._end(held, ending)
        self._start()
        self._changed.set()

    async def _call(self, jobs: List[BaseJob]) -> List[Any]:
        """What the handler has returned for each of the jobs."""
        if jobs[0].unreadable is not None:
            raise jobs[0].unreadable
        queue = jobs[0].queue
        call, is_async = self._calls[queue], self._is_async[queue]
        is_batch = queue in self._worker.batches
        argument: Any = jobs[0]
        if is_batch:
            argument = AsyncBatch(cast(List[AsyncJob], jobs)) if is_async else Batch(cast(List[Job], jobs))
        with tracing.span(jobs[0], is_batch):
            result = await (call(argument) if is_async else self._threads.call(lambda: call(argument)))
        if not is_batch:
            return [result]
        if result is None:
            return [None] * len(jobs)
        if not isinstance(result, (list, tuple)) or len(result) != len(jobs):
            raise ValueError(f"a handler of {len(jobs)} jobs must return {len(jobs)} results or None")
        return list(result)

    def _ended(self, job: BaseJob, result: Any) -> Ending:
        try:
            return self._raised(job, result) if isinstance(result, BaseException) else self._returned(job, result)
        except Exception as error:  # such as a result that is no JSON
            return self._raised(job, error)

    @staticmethod
    def _returned(job: BaseJob, result: Any) -> Ending:
        if job.ended:
            return Ending(job, "none")
        if isinstance(result, Advance):
            return Ending(job, "advance", stage=result.stage, payload=result.payload, delay=span(result.delay))
        if isinstance(result, Suspend):
            after = None if result.after is None else list(map(int, result.after))
            return Ending(job, "suspend", after=after, upon=result.upon, progress=result.progress)
        return Ending(job, "complete", result=result)

    @staticmethod
    def _stopped(job: BaseJob) -> Ending:
        """A job that is to be cancelled is cancelled by its release. Of a lost one there is nothing to tell."""
        return Ending(job, "none" if job.stop_reason == "lost" else "release")

    def _raised(self, job: BaseJob, error: BaseException) -> Ending:
        if isinstance(error, Stopped) or job.stop_reason and isinstance(error, asyncio.CancelledError):
            return self._stopped(job)
        if isinstance(error, Snooze):
            return Ending(job, "release", delay=span(error.delay))
        if isinstance(error, psycopg.Error) and error.sqlstate == LOST:
            job.stop("lost")
            return self._stopped(job)
        is_expected = isinstance(error, (RetryIn, Fatal))
        text = _text(error) if is_expected else f"{type(error).__name__}: {_text(error)}"
        logger.warning("%r has failed: %s", job, text, exc_info=None if is_expected else error, extra=_extra(job))
        retry_in = span(error.delay) if isinstance(error, RetryIn) else None
        return Ending.failure(job, text, retry_in=retry_in, fatal=isinstance(error, Fatal))

    def _end(self, held: Held, ending: Ending) -> None:
        held.expiry.cancel()
        del self._held[held.job.id]
        if ending.kind == "none":
            self._settle(ending, "lost" if held.job.stop_reason == "lost" else None)
        elif ending.is_plain:
            if not self._done:
                self._loop.call_later(GATHER, self._due.set)
            self._done.append(ending)
        else:
            self._send(ending)

    def _stop_job(self, attempt_id: int, reason: Any) -> None:
        """Tells the handler to stop. One that has not begun ends at once."""
        held = self._held.get(attempt_id)
        if held is None or held.job.stop_reason in (reason, "lost"):
            return
        if reason == "lost" and held.job.ended:
            held.expiry.cancel()
            held.is_over = True
            return
        logger.warning("%r is to stop: %s", held.job, reason, extra=_extra(held.job))
        held.stopped_at = held.stopped_at or self._loop.time()
        held.job.stop(reason)
        if held.task is None and held in self._ready:
            self._ready.remove(held)
            self._end(held, self._stopped(held.job))
            self._changed.set()

    def _cancel(self, attempt_id: int) -> None:
        held = self._held.get(attempt_id)
        if held is not None and held.task is not None and all(one.job.stop_reason for one in held.group):
            held.task.cancel()

    def is_stuck(self, limit: float) -> bool:
        """Whether all slots are taken by handlers that should have ended so long ago. From any thread."""
        now = self._loop.time()
        late = [held for held in list(self._held.values()) if held.stopped_at and now - held.stopped_at >= limit]
        return len(late) >= self._running >= self._worker.concurrency

    # The control.

    async def _control_all(self) -> None:
        backoff = Backoff()
        while not (self._is_closing and self._is_told()):
            await self._until_due()
            try:
                await self._heartbeat()
                await self._flush()
                backoff.reset()
            except Gone as error:
                if backoff.is_news(_line(error)):
                    logger.warning("no connection for heartbeats, the worker tries again: %s", _line(error))
                await asyncio.sleep(backoff.next())

    async def _until_due(self) -> None:
        if self._outbox or self._done and self._is_closing:
            return
        beat_at = min((held.beat_at for held in self._beating()), default=None)
        await _wait(self._due, None if beat_at is None else max(beat_at - self._loop.time(), 0))
        self._due.clear()

    def _beating(self) -> List[Held]:
        return [held for held in self._held.values() if held.job.stop_reason != "lost" and not held.is_over]

    def _beat(self, lease: float) -> float:
        return min(lease / 3, self._worker.heartbeat)

    async def _heartbeat(self) -> None:
        begun, held_now = self._loop.time(), self._beating()
        if all(held.beat_at > begun for held in held_now):
            return
        try:
            rows = await self._control.fetch(EXTEND, [[held.job.id for held in held_now]])
        except psycopg.Error as error:
            logger.error("a heartbeat has failed: %s", error)
            for held in held_now:
                held.beat_at = max(held.beat_at, begun + min(1.0, self._beat(held.lease)))
            return
        for attempt_id, outcome, is_cancelled in rows:
            self._extended(attempt_id, begun, outcome)
            if is_cancelled or outcome == "lost":
                self._stop_job(attempt_id, "cancelled" if is_cancelled else "lost")

    def _extended(self, attempt_id: int, begun: float, outcome: str) -> None:
        """Starts the lease anew. A busy attempt does not expire: an open transaction is ending it, mostly the handler's
        own. The worker asks for it again soon.
        """
        held = self._held.get(attempt_id)
        if held is not None and outcome != "lost":
            held.expiry.cancel()
            held.expiry = self._loop.call_at(begun + held.lease, self._stop_job, attempt_id, "lost")
            beat = self._beat(held.lease)
            held.beat_at = begun + (min(1.0, beat) if outcome == "busy" else beat)

    def _send(self, *endings: Ending) -> None:
        self._outbox.update((ending.id, ending) for ending in endings)
        self._due.set()

    def _send_again(self, ending: Ending) -> None:
        self._later.remove(ending)
        self._send(ending)

    async def _flush(self) -> None:
        """Sends what has ended. After an error it sends each half, so that an end which is at fault keeps no other."""
        self._outbox.update((ending.id, ending) for ending in self._done)
        self._done.clear()
        batches = [list(self._outbox.values())]
        while any(batches):
            batch = batches.pop()
            try:
                rows = await self._control.fetch(END, [f"[{','.join(ending.json for ending in batch)}]"])
            except psycopg.Error as error:
                half = len(batch) // 2
                if half:
                    batches += [batch[half:], batch[:half]]
                    continue
                is_at_fault = (error.sqlstate or "")[:2] in _AT_FAULT
                rows = [(batch[0].id, "refused" if is_at_fault else "error", _line(error))]
            for attempt_id, outcome, reason in rows:
                self._answered(self._outbox.pop(attempt_id), outcome, reason)
            self._changed.set()

    def _answered(self, ending: Ending, outcome: str, reason: str) -> None:
        """Settles an end that the server has answered, or sends it again, or a failure in its place."""
        if outcome == "refused" or (outcome == "error" and not ending.pauses):
            logger.error("%r could not end by %r: %s", ending.job, ending.kind, reason, extra=_extra(ending.job))
        if outcome in ("busy", "error"):
            self._later.add(ending)
            self._loop.call_later(ending.pause(), self._send_again, ending)
        elif outcome == "refused" and not ending.is_last_resort:
            failure = Ending.failure(ending.job, ending.error or reason)
            failure.seconds = ending.seconds
            self._send(failure)
        else:
            self._settle(ending, "lost" if outcome in ("lost", "refused") else None)

    # What has happened.

    def _settle(self, ending: Ending, kind: Optional[EventKind] = None) -> None:
        """The server has answered: this attempt has ended, or was lost before."""
        job = ending.job
        kind = kind or ending.event
        if kind == "lost":
            logger.warning("%r: lost lease", job, extra=_extra(job))
        else:
            logger.debug("%r: %s", job, kind, extra=_extra(job))
        self._tell(Event(kind, job.queue, job.job_id, job.id, job.attempt, ending.seconds, ending.error))

    def _tell(self, event: Event) -> None:
        for hook in (self._watch, self._worker.on_event):
            if hook is not None:
                try:
                    hook(event)
                except Exception:
                    logger.exception("on_event has failed")

    # The end.

    async def _shut_down(self, claimer: asyncio.Task[None], control: asyncio.Task[None]) -> None:
        self._stopping.set()
        self._changed.set()
        end = self._loop.time() + FAREWELL
        while not claimer.done():
            # Early is as good as never: the server may not have begun with the claim. So again, until it has ended.
            await self._claims.cancel()
            await asyncio.wait({claimer}, timeout=0.2)
            if self._loop.time() > end:  # also the server does not answer
                self._claims.sever()
        while self._ready:
            held = self._ready.popleft()
            self._end(held, self._stopped(held.job))
        self._due.set()
        await self._wait_for_handlers(self._worker.shutdown_timeout, self._hurry)
        for attempt_id in list(self._held):
            self._stop_job(attempt_id, "shutdown")
        await self._wait_for_handlers(GRACE)
        for held in list(self._held.values()):  # threads that did not stop
            logger.warning("%r still runs; it is given back", held.job, extra=_extra(held.job))
            self._end(held, self._stopped(held.job))
        self._is_closing = True
        self._due.set()
        await asyncio.wait({control}, timeout=FAREWELL)
        if not control.done():
            self._control.sever()
            await asyncio.wait({control}, timeout=GRACE)
        for ending in [*self._done, *self._outbox.values(), *self._later]:
            logger.error("%r: the server was not told of its end", ending.job, extra=_extra(ending.job))
        control.cancel()
        self._threads.close()
        self._pool.close()
        self._async_pool.close()
        for link in (self._claims, self._control):
            await link.close()
        for task in (claimer, control):
            if task.done() and not task.cancelled():
                task.result()  # a fault of ours is raised

    async def _wait_for_handlers(self, seconds: float, hurry: Optional[asyncio.Event] = None) -> None:
        end = self._loop.time() + seconds
        while self._held and self._loop.time() < end and not (hurry and hurry.is_set()):
            tasks = {held.task for held in self._held.values() if held.task is not None}
            await asyncio.wait(tasks, timeout=min(0.1, seconds), return_when=asyncio.FIRST_COMPLETED)


async def _wait(event: asyncio.Event, seconds: Optional[float]) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        pass


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"its message could not be read: {type(failure).__name__}"


def _line(error: BaseException) -> str:
    """A message of several lines, such as one with a hint, in one."""
    return " ".join(_text(error).split())


def _extra(job: BaseJob) -> Dict[str, Any]:
    """For structured logs."""
    return {"queue": job.queue, "job_id": job.job_id, "attempt_id": job.id, "attempt": job.attempt}
