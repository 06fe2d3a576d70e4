"""Effects on another server than the queue's, such as the primary of a bridge (docs/bridge.md).

Responsible for transactions there. Not responsible for what the worker does after the commit (`engine`).

Invariant: effects are committed once, however often a job runs. Each transaction first asks `queue.once_many`, which
lets one transaction with a job commit. The completion commits with the effects, and the bridge carries it to the queue
server.

If a transaction cannot begin, the job is not at fault: the worker tries again until the handler is to stop. If the
connection is lost during a commit, the worker asks `once_many` again, which says whether the transaction has committed.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, Optional, Sequence, Tuple

import psycopg
from psycopg import AsyncConnection, Connection

from .attempt import BaseJob
from .outcomes import AlreadyDone, Stopped
from .pool import (
    AnyConnection, AsyncPool, Backoff, Gone, Pool, check_open, connect, connect_async, hosts, is_gone, run, run_async,
)
from .texts import line

ONCE = "SELECT queue.once_many(%s::bigint[])"

_MISSING = ("42883", "3F000", "42501")
"""The SQLSTATEs of a database in which bridge/primary.sql has not run, or that does not let this role use it."""


class Effects:
    """Transactions for synchronous handlers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def transaction(
        self, jobs: Sequence[BaseJob], cancelled: threading.Event, complete: Callable[[Connection[Any]], object]
    ) -> Iterator[Connection[Any]]:
        """A transaction for the effects of these jobs. `complete` completes the jobs in it. `cancelled` ends a pause.
        """
        is_committing = is_committed = False
        try:
            with ExitStack() as stack:
                conn = self._begin(stack, jobs, cancelled)
                yield conn
                _check(jobs)
                check_open(conn)
                complete(conn)
                is_committing = True
            is_committed = is_committing  # the block itself may have rolled back
        except BaseException as error:
            is_committed = is_committing and self._is_done(jobs, cancelled)
            if not (is_committed and isinstance(error, psycopg.Error)):
                raise
        finally:
            _end(jobs, is_committed)

    def _begin(self, stack: ExitStack, jobs: Sequence[BaseJob], cancelled: threading.Event) -> Connection[Any]:
        """Begins a transaction, which ends with the stack. Raises `AlreadyDone` if effects are committed already."""
        backoff = Backoff()
        while True:
            _check_all(jobs)
            conn: Optional[Connection[Any]] = None
            try:
                with ExitStack() as trial:
                    waits = not any(job.in_step for job in jobs)
                    conn = trial.enter_context(self._pool.connection(lambda: _check_all(jobs), 0, waits))
                    trial.enter_context(conn.transaction())
                    _check_mine(jobs, run(conn, ONCE, [[job.job_id for job in jobs]]))
                    stack.enter_context(trial.pop_all())
                    return conn
            except psycopg.Error as error:
                cancelled.wait(backoff.failed("transaction", _reason(conn, error)))

    def _is_done(self, jobs: Sequence[BaseJob], cancelled: threading.Event) -> bool:
        """Returns whether the effects of these jobs are committed."""
        try:
            with ExitStack() as stack:
                self._begin(stack, jobs, cancelled)
                raise psycopg.Rollback
        except AlreadyDone:
            return True
        return False


class AsyncEffects:
    """Transactions for asyncio."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool

    async def check(self) -> None:
        """Raises RuntimeError if this can be no server for effects. A server that cannot be reached passes."""
        try:
            async with self._pool.connection(patience=0) as conn:
                await run_async(conn, ONCE, [[]])
        except psycopg.Error as error:
            if error.sqlstate in _MISSING:
                hint = "run bridge/primary.sql there, and SELECT queue_bridge.grant(role)"
                raise RuntimeError(f"the worker cannot start: effects: {line(error)}; {hint}") from error

    def close(self) -> None:
        self._pool.close()

    @asynccontextmanager
    async def transaction(
        self, jobs: Sequence[BaseJob], complete: Callable[[AsyncConnection[Any]], Awaitable[object]]
    ) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction for the effects of these jobs. `complete` completes the jobs in it."""
        is_committing = is_committed = False
        try:
            async with AsyncExitStack() as stack:
                conn = await self._begin(stack, jobs)
                yield conn
                _check(jobs)
                check_open(conn)
                await complete(conn)
                is_committing = True
            is_committed = is_committing  # the block itself may have rolled back
        except BaseException as error:
            is_committed = is_committing and await self._is_done(jobs)
            if not (is_committed and isinstance(error, psycopg.Error)):
                raise
        finally:
            _end(jobs, is_committed)

    async def _begin(self, stack: AsyncExitStack, jobs: Sequence[BaseJob]) -> AsyncConnection[Any]:
        """Begins a transaction, which ends with the stack. Raises `AlreadyDone` if effects are committed already."""
        backoff = Backoff()
        while True:
            _check_all(jobs)
            conn: Optional[AsyncConnection[Any]] = None
            try:
                async with AsyncExitStack() as trial:
                    waits = not any(job.in_step for job in jobs)
                    conn = await trial.enter_async_context(self._pool.connection(lambda: _check_all(jobs), 0, waits))
                    await trial.enter_async_context(conn.transaction())
                    _check_mine(jobs, await run_async(conn, ONCE, [[job.job_id for job in jobs]]))
                    await stack.enter_async_context(trial.pop_all())
                    return conn
            except psycopg.Error as error:
                await asyncio.sleep(backoff.failed("transaction", _reason(conn, error)))

    async def _is_done(self, jobs: Sequence[BaseJob]) -> bool:
        """Returns whether the effects of these jobs are committed."""
        try:
            async with AsyncExitStack() as stack:
                await self._begin(stack, jobs)
                raise psycopg.Rollback
        except AlreadyDone:
            return True
        return False


def connected(conninfo: Optional[str], limit: Optional[int]) -> Tuple[Optional[Effects], Optional[AsyncEffects]]:
    """Returns the effects of a worker, which connect when they are needed. None: the worker has no such server."""
    if conninfo is None:
        return None, None
    there = hosts(conninfo)
    pools = Pool(lambda: connect(there), limit), AsyncPool(lambda: connect_async(there), limit)
    return Effects(pools[0]), AsyncEffects(pools[1])


def _check_all(jobs: Sequence[BaseJob]) -> None:
    for job in jobs:
        job.check()


def _check_mine(jobs: Sequence[BaseJob], mine: Sequence[Any]) -> None:
    done = {job.job_id for job in jobs} - {row[0] for row in mine}
    if done:
        raise AlreadyDone(*done)


def _reason(conn: Optional[AnyConnection], error: psycopg.Error) -> Exception:
    return Gone(str(error)) if is_gone(conn, error) else error


def _check(jobs: Sequence[BaseJob]) -> None:
    """Raises `Stopped` if an attempt is lost, or has failed for its time. The other server does not know about it."""
    for job in jobs:
        if job.stop_reason in ("lost", "timeout"):
            raise Stopped(job.stop_reason)


def _end(jobs: Sequence[BaseJob], is_committed: bool) -> None:
    for job in jobs:
        job.ended = job.committed = job.committed or is_committed
