"""What a handler gets: the job, and what it can do with its attempt.

A handler that writes to the database should do so in `transaction()`: its writes and the completion commit together.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, List, Optional, Sequence, Tuple, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from .attempt import BaseJob
from .checks import Duration, interval, job_ids
from .codec import Kind, later, now
from .effects import AsyncEffects, Effects
from .outcomes import Upon
from .pool import AsyncPool, Pool, check_open, run, run_async

T = TypeVar("T")

STEP = "SELECT step IS NOT NULL, step FROM queue.step(%s, %s) AS step"  # JSON's null is a valid result
STEP_DONE = "SELECT queue.step_done(%s, %s, %s)"
INPUTS = "SELECT job_id, queue_name, task, state, result, error FROM queue.inputs(%s)"


@dataclass(frozen=True)
class Input:
    """The outcome of a job that this job waited for. If that job is no longer kept, only its id is there."""

    job_id: int
    queue: Optional[str]
    task: Optional[str]
    state: Optional[str]
    result: Any
    error: Optional[str]


def completion(attempt_id: int, result: Any) -> Tuple[str, List[Any]]:
    if result is None:
        return "SELECT queue.complete(%s)", [attempt_id]
    return "SELECT queue.complete(%s, %s)", [attempt_id, Jsonb(result)]


def loss(attempt_id: int) -> Tuple[str, List[Any]]:
    """Returns the query that has a row if the attempt has ended. An end in a savepoint may have been rolled back."""
    return "SELECT FROM queue.extend_many(%s::bigint[]) WHERE outcome = 'lost'", [[attempt_id]]


def advancement(attempt_id: int, stage: Optional[str], payload: Any, delay: Duration) -> Tuple[str, List[Any]]:
    content = None if payload is None else Jsonb(payload)
    return "SELECT queue.advance(%s, %s, %s, %s)", [attempt_id, stage, content, interval(delay)]


def suspension(
    attempt_id: int, after: Optional[Sequence[int]], upon: Upon, progress: Any, until: Optional[datetime]
) -> Tuple[str, List[Any]]:
    jobs = None if after is None else job_ids(after)
    content = None if progress is None else Jsonb(progress)
    arguments: List[Any] = [attempt_id, jobs, upon, content]
    if until is None:
        return "SELECT queue.suspend(%s, %s::bigint[], %s, %s)", arguments
    return "SELECT queue.suspend(%s, %s::bigint[], %s, %s, %s)", [*arguments, until]


class Job(BaseJob):
    """The job of a synchronous handler (`def`), which runs in a thread."""

    _pool: Optional[Pool]
    _effects: Optional[Effects]

    @property
    def cancelled(self) -> threading.Event:
        """Set when the handler is to stop; `stop_reason` says why. `cancelled.wait(5)` is a sleep that ends early then.
        """
        event: threading.Event = self._event(threading.Event)
        return event

    @contextmanager
    def transaction(self, result: Any = None) -> Iterator[Connection[Any]]:
        """A transaction on one of the worker's connections. When it ends, it completes the job, unless the block has
        ended it.

        If the worker has `effects`, the transaction is there. If an earlier attempt has committed the effects, this
        raises `AlreadyDone`.
        """
        with self._opened(result):
            if self._effects is not None:
                complete = lambda conn: None if self.ended else self.complete(conn, result)
                with self._effects.transaction([self], self.cancelled, complete) as conn:
                    yield conn
                return
            with self._connection(not self.in_step) as conn, conn.transaction():
                yield conn
                check_open(conn)
                if not self.ended or not run(conn, *loss(self.id)):
                    self.complete(conn, result)
                return
            self.ended = False  # the block has raised psycopg.Rollback

    def complete(self, conn: Connection[Any], result: Any = None) -> None:
        """Completes the job in the caller's own transaction."""
        self.result = self._encoded(result, "result")
        run(conn, *completion(self.id, self.result))
        self.ended = True

    def advance(
        self, conn: Connection[Any], stage: Optional[str] = None, payload: Any = None, delay: Duration = 0
    ) -> None:
        """Moves the job to another stage, in the caller's own transaction."""
        content = self._encoded(payload, "payload")
        run(conn, *advancement(self.id, stage, content, delay))
        self.ended = True

    def suspend(
        self,
        conn: Connection[Any],
        after: Optional[Sequence[int]] = None,
        upon: Upon = "ended",
        progress: Any = None,
        until: Optional[datetime] = None,
    ) -> None:
        """Lets the job wait for other jobs, in the caller's own transaction, as `Suspend` does."""
        run(conn, *suspension(self.id, after, upon, self._encoded(progress, "progress"), until))
        self.ended = True

    def step(self, name: str, function: Callable[[Connection[Any]], T]) -> T:
        """Returns the result of `function(conn)`, which runs once for all attempts. Its writes commit together with the
        note that the step is done and its result. The result must be JSON. Each step of an attempt has a name of its
        own.
        """
        with self._step(name) as may_wait, self._connection(may_wait) as conn, conn.transaction():
            ((is_done, kept),) = run(conn, STEP, [self.id, name])
            if is_done:
                result: T = now(self._codec.decode(kept, self._context("step")), self._loop)
            else:
                result = function(conn)
                check_open(conn)
                content = now(self._codec.encode(result, self._context("step")), self._loop)
                run(conn, STEP_DONE, [self.id, name, Jsonb(content)])
        return result

    def inputs(self) -> List[Input]:
        """Returns the outcomes of the jobs that this job was after, and of the members of its flow."""
        with self._connection(self._may_wait) as conn:
            found = [Input(*row) for row in run(conn, INPUTS, [self.id])]
        return [self._decoded(one) for one in found]

    def save_progress(self, progress: Any) -> None:
        """Stores what was done so far. The next attempt, if there is one, finds it in `progress`."""
        content = now(self._codec.encode(progress, self._context("progress")), self._loop)
        with self._connection(self._may_wait) as conn:
            run(conn, "SELECT queue.progress(%s, %s)", [self.id, Jsonb(content)])
        self.progress = progress

    def charge(self, used: int) -> None:
        """Says how much of the rates of a queue with `rate_cost` the job has used so far."""
        with self._connection(self._may_wait) as conn:
            run(conn, "SELECT queue.charge(%s, %s)", [self.id, used])

    def _encoded(self, value: Any, kind: Kind) -> Any:
        """Returns what is stored for a value; for None, which means that there is none, None."""
        return None if value is None else now(self._codec.encode(value, self._context(kind)), self._loop)

    def _decoded(self, found: Input) -> Input:
        if found.result is None:
            return found
        context = self._context("result", found.queue)
        return replace(found, result=now(self._codec.decode(found.result, context), self._loop))

    @contextmanager
    def _connection(self, may_wait: bool) -> Iterator[Connection[Any]]:
        if self._pool is None:
            raise RuntimeError("this job was not claimed by a worker")
        with self._pool.connection(self.check, waits=may_wait) as conn:
            yield conn


class AsyncJob(BaseJob):
    """The job of an `async def` handler. When the handler is to stop, its task is cancelled."""

    _pool: Optional[AsyncPool]
    _effects: Optional[AsyncEffects]

    @property
    def cancelled(self) -> asyncio.Event:
        """Set when the handler is to stop; `stop_reason` says why."""
        event: asyncio.Event = self._event(asyncio.Event)
        return event

    @asynccontextmanager
    async def transaction(self, result: Any = None) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction on one of the worker's connections. When it ends, it completes the job, unless the block has
        ended it.

        If the worker has `effects`, the transaction is there. If an earlier attempt has committed the effects, this
        raises `AlreadyDone`.
        """
        async def complete(conn: AsyncConnection[Any]) -> None:
            if not self.ended:
                await self.complete(conn, result)

        with self._opened(result):
            if self._effects is not None:
                async with self._effects.transaction([self], complete) as conn:
                    yield conn
                return
            async with self._connection(not self.in_step) as conn, conn.transaction():
                yield conn
                check_open(conn)
                if not self.ended or not await run_async(conn, *loss(self.id)):
                    await self.complete(conn, result)
                return
            self.ended = False  # the block has raised psycopg.Rollback

    async def complete(self, conn: AsyncConnection[Any], result: Any = None) -> None:
        """Completes the job in the caller's own transaction."""
        self.result = await self._encoded(result, "result")
        await run_async(conn, *completion(self.id, self.result))
        self.ended = True

    async def advance(
        self, conn: AsyncConnection[Any], stage: Optional[str] = None, payload: Any = None, delay: Duration = 0
    ) -> None:
        """Moves the job to another stage, in the caller's own transaction."""
        content = await self._encoded(payload, "payload")
        await run_async(conn, *advancement(self.id, stage, content, delay))
        self.ended = True

    async def suspend(
        self,
        conn: AsyncConnection[Any],
        after: Optional[Sequence[int]] = None,
        upon: Upon = "ended",
        progress: Any = None,
        until: Optional[datetime] = None,
    ) -> None:
        """Lets the job wait for other jobs, in the caller's own transaction, as `Suspend` does."""
        await run_async(conn, *suspension(self.id, after, upon, await self._encoded(progress, "progress"), until))
        self.ended = True

    async def step(self, name: str, function: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Returns the result of `await function(conn)`, which runs once for all attempts. Its writes commit together
        with the note that the step is done and its result. The result must be JSON. Each step of an attempt has a name
        of its own.
        """
        with self._step(name) as may_wait:
            async with self._connection(may_wait) as conn, conn.transaction():
                ((is_done, kept),) = await run_async(conn, STEP, [self.id, name])
                if is_done:
                    result: T = await later(self._codec.decode(kept, self._context("step")))
                else:
                    result = await function(conn)
                    check_open(conn)
                    content = await later(self._codec.encode(result, self._context("step")))
                    await run_async(conn, STEP_DONE, [self.id, name, Jsonb(content)])
        return result

    async def inputs(self) -> List[Input]:
        """Returns the outcomes of the jobs that this job was after, and of the members of its flow."""
        async with self._connection(self._may_wait) as conn:
            found = [Input(*row) for row in await run_async(conn, INPUTS, [self.id])]
        return [await self._decoded(one) for one in found]

    async def save_progress(self, progress: Any) -> None:
        """Stores what was done so far. The next attempt, if there is one, finds it in `progress`."""
        content = await later(self._codec.encode(progress, self._context("progress")))
        async with self._connection(self._may_wait) as conn:
            await run_async(conn, "SELECT queue.progress(%s, %s)", [self.id, Jsonb(content)])
        self.progress = progress

    async def charge(self, used: int) -> None:
        """Says how much of the rates of a queue with `rate_cost` the job has used so far."""
        async with self._connection(self._may_wait) as conn:
            await run_async(conn, "SELECT queue.charge(%s, %s)", [self.id, used])

    async def _encoded(self, value: Any, kind: Kind) -> Any:
        """Returns what is stored for a value; for None, which means that there is none, None."""
        return None if value is None else await later(self._codec.encode(value, self._context(kind)))

    async def _decoded(self, found: Input) -> Input:
        if found.result is None:
            return found
        context = self._context("result", found.queue)
        return replace(found, result=await later(self._codec.decode(found.result, context)))

    @asynccontextmanager
    async def _connection(self, may_wait: bool) -> AsyncIterator[AsyncConnection[Any]]:
        if self._pool is None:
            raise RuntimeError("this job was not claimed by a worker")
        async with self._pool.connection(self.check, waits=may_wait) as conn:
            yield conn
