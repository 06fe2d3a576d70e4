"""The claimer of a worker: it claims as many jobs as there is room for.

Its claims carry completions, so that a busy worker needs one transaction for both. They
name the queues and stages that have a handler, so that the worker gets no other jobs.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple, Type

import psycopg
from psycopg import AsyncConnection

from .attempt import COLUMNS, BaseJob
from .checks import interval
from .codec import PLAIN
from .control import Control
from .effects import connected
from .endings import Ending
from .events import Event
from .held import Held
from .job import AsyncJob, Job
from .log import logger
from .pool import SILENCE, AsyncPool, Backoff, Gone, Link, Pool, connect, connect_async, hosts, wait_set
from .reading import reader
from .ready import reach, refusal
from .settings import BaseWorker
from .texts import array, line, said

UNKNOWN_PAUSE = 30.0
"""For how many seconds a job is released if this worker does not have its codec or key."""

MAX_UNKNOWN = 1000
"""How many different codecs and keys the log names."""

REFUSALS = ("42704", "3F000", "42883", "42501", "22023")
"""The SQLSTATEs for a missing queue, stage, extension or privilege."""

TIMED_OUT = ("the lease expired", "the connection of the worker ended")
"""How the server says that the process with the last attempt may have died."""

CLAIM = f"""
    SELECT {COLUMNS}, date_part('epoch', lease_expires_at - clock_timestamp())
    FROM queue.claim_any(max_jobs => %s, wait => %s::interval, completed => %s::bigint[], results => %s::json,
        queue_names => %s::text[], stages => %s::text[], lease => %s::interval, worker => %s,
        disconnect => %s::interval"""
"""All parameters are text, which psycopg passes on: lists and intervals would take it longer. The last ones are the
same for all claims of a run.
"""


class Claimer(Control):
    """The part of a run of a worker that claims."""

    def __init__(self, worker: BaseWorker, drain: bool, watch: Optional[Callable[[Event], None]]) -> None:
        self._hosts = hosts(worker.conninfo)
        self._pool = Pool(lambda: connect(self._hosts), worker.max_connections)
        self._async_pool = AsyncPool(lambda: connect_async(self._hosts), worker.max_connections)
        self._effects, self._async_effects = connected(worker.effects, worker.max_connections)
        refused = lambda: self._make_room(True)
        self._claims = Link(self._connect_claims, worker.wait + SILENCE, refused, lambda: self._control.renew())
        control = Link(self._connect_control, None, refused, lambda: self._claims.renew())
        super().__init__(worker, watch, control)
        self._drain = drain
        self._handlers = {r: h.within(worker.middlewares, worker.timeout) for r, h in worker.handlers.items()}
        self._codec = worker.codec or PLAIN
        self._kinds: Dict[bool, Tuple[Type[BaseJob], Tuple[Any, ...]]] = {
            False: (Job, (self._codec, self._pool, self._effects, self._loop)),
            True: (AsyncJob, (self._codec, self._async_pool, self._async_effects, self._loop)),
        }
        self._linger = 0.0 if drain else worker.linger
        queues, stages = map(array, zip(*worker.handlers))
        self._statement = f"{CLAIM}, linger => %s::interval)" if self._linger else f"{CLAIM})"
        self._constants = [queues, stages, worker.lease, worker.name, interval(worker.disconnect)]
        self._constants += [interval(self._linger)] if self._linger else []
        self._unknown: Set[str] = set()  # what the log has said of jobs without a codec or key
        self._ready: Deque[Held] = deque()
        self._suspects: Set[int] = set()  # held attempts that may end the process
        self._low_water = max((worker.concurrency + worker.prefetch) // 2, worker.concurrency - 1)
        self._has_claimed = False  # a claim has succeeded, so the queues exist
        self._stopping = asyncio.Event()
        self._context = contextvars.copy_context()
        self._is_starting = False  # `_start` runs, or the event loop is about to call it

    def _start(self) -> None:
        raise NotImplementedError

    # Connections. No statement is prepared: a pooler in transaction mode uses another connection for each transaction.

    def _make_room(self, is_needed: bool) -> None:
        """Leaves connections to the worker itself, until it could make one."""
        self._pool.make_room(is_needed)
        self._async_pool.make_room(is_needed)

    async def _connect_control(self) -> AsyncConnection[Any]:
        conn = await connect_async(self._hosts)
        self._make_room(False)
        return conn

    async def _connect_claims(self) -> AsyncConnection[Any]:
        conn = await self._connect_control()
        conn.add_notice_handler(lambda notice: logger.warning("%s", said(notice)))
        self._tell("connected")
        return conn

    # Claims.

    async def _claim_all(self) -> None:
        backoff = Backoff()
        if self._async_effects:
            await self._async_effects.check()
        while not self._stopping.is_set():
            self._changed.clear()
            self._pool.prune()
            self._async_pool.prune()
            room = self._room()
            if room <= 0:
                await self._changed.wait()
                await asyncio.sleep(0)  # further jobs may end now, so that one claim replaces them all
                continue
            if self._control.conn is None and not await self._reach_control(backoff):
                continue
            completed, self._completed = self._completed, []
            # If an attempt ends during the claim, that may make a job ready that the claim does not see.
            is_idle = not self._held and not self._ended
            try:
                rows = await self._claim(room, completed)
            except (Gone, psycopg.Error) as error:
                for ending in completed:  # one of them may be the cause; the control finds out which
                    self._send(ending)
                if isinstance(error, psycopg.errors.QueryCanceled):
                    continue
                if not self._has_claimed and isinstance(error, psycopg.Error) and error.sqlstate in REFUSALS:
                    raise refusal(line(error)) from error
                await self._back_off(backoff, error)
                continue
            backoff.reset()
            self._has_claimed = True
            # An attempt that could not be completed has a row without a job.
            answers = {row[0]: json.loads(row[5]) for row in rows if row[1] is None}
            if answers or self._is_observed():
                for ending in completed:
                    answer = answers.get(ending.job.id, {"outcome": "completed", "reason": None})
                    self._answered(ending, answer["outcome"], answer["reason"])
            self._accept([row for row in rows if row[1] is not None])
            if not self._is_starting:
                self._context.copy().run(self._start)
            if self._drain and not rows and not completed:
                if is_idle:
                    return
                await self._changed.wait()

    async def _reach_control(self, backoff: Backoff) -> bool:
        """Connects the control. Returns false if it could not, or if the worker is to stop. Without a connection for
        heartbeats nothing is claimed: handlers may take all connections that the server has.
        """
        try:
            return await reach(self._control, self._stopping)
        except (Gone, psycopg.Error, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._has_claimed:
                raise
            await self._back_off(backoff, error)
            return False

    async def _back_off(self, backoff: Backoff, error: Exception) -> None:
        if isinstance(error, Gone):
            self._tell("disconnected", error=str(error))
        await wait_set(self._stopping, backoff.failed("claim", error))

    async def _claim(self, room: int, completed: List[Ending]) -> List[Any]:
        worker = self._worker
        # The first claim does not sleep: it finds out whether the queues exist.
        wait = worker.wait if self._has_claimed and not self._drain else 0.0
        if self._linger:
            # A full batch is not kept waiting for more jobs. A call that lingers has to wait.
            room, wait = min(room, worker.collected() or 1), max(wait, min(worker.wait, 0.001))
        ids = f"{{{','.join([str(ending.job.id) for ending in completed])}}}"
        results = None
        if any(ending.arguments for ending in completed):
            results = f"[{','.join([ending.result for ending in completed])}]"
        return await self._claims.fetch(self._statement, [room, interval(wait), ids, results, *self._constants])

    def _room(self) -> int:
        """Returns how many jobs to claim now. A worker that claims ahead waits until a round trip is worthwhile."""
        limit = self._worker.concurrency + (0 if self._is_wary() else self._worker.prefetch)
        taken = len(self._held) + len(self._due_ends(self._loop.time()))
        return limit - taken if taken < self._worker.concurrency or taken <= limit // 2 else 0

    def _is_wary(self) -> bool:
        """Returns whether a job is held that may end the process: none is claimed ahead beside it."""
        return self._worker.prefetch > 0 and bool(self._suspects)

    def _running(self) -> int:
        return len(self._held) - len(self._ready)

    def _accept(self, rows: List[Tuple[Any, ...]]) -> None:
        """Holds the claimed jobs, and makes them ready. The last column of a row is the length of the lease."""
        now, read = self._loop.time(), reader()
        for row in rows:
            handler = self._handlers.get((row[2], row[3])) or self._handlers[row[2], None]
            kind, shared = self._kinds[handler.is_async]
            job = kind(*row[:-1], *shared)
            job._read(read)
            if self._stopping.is_set():
                job.stopping = True
            if job.last_error in TIMED_OUT:
                self._suspects.add(job.id)
            lease = max(float(row[-1]), 0.001)  # the application may load float8 as another type
            self._held[job.id] = held = Held(job, handler, lease, now + self._beat(lease), now + lease)
            self._ready.append(held)
        if rows:
            shortest = max(float(min(row[-1] for row in rows)), 0.001)
            self._deadlines.set(now + shortest)
            self._wake.set(now + self._beat(shortest))

    def _for_another(self, job: BaseJob, error: str) -> Ending:
        """Returns the end of a job that another worker may run, but not this one. Logs each error once."""
        fails = self._worker.on_unknown == "fail"
        if error not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(error)
            then = "its jobs fail" if fails else f"its jobs are released for {UNKNOWN_PAUSE:.0f} seconds"
            logger.warning("%s: %s", error, then)
        if fails:
            return Ending(job, "fail", error=error)
        return Ending(job, "release", delay=interval(UNKNOWN_PAUSE), reason=error)
