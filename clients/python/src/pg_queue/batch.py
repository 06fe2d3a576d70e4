"""Several jobs of a queue that one handler runs together."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Generic, Iterator, List, Sequence, Tuple, TypeVar, overload

from psycopg import AsyncConnection, Connection

from .attempt import BaseJob
from .job import AsyncJob, Job
from .outcomes import Stopped
from .pool import check_open, run, run_async

J = TypeVar("J", bound=BaseJob)


class BaseBatch(Sequence[J], Generic[J]):
    """The jobs, the oldest first."""

    def __init__(self, jobs: List[J]) -> None:
        self._jobs = jobs

    @overload
    def __getitem__(self, index: int) -> J: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[J]: ...

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def check(self) -> None:
        """Raises `Stopped` if the handler is to stop one of the jobs."""
        for job in self._jobs:
            job.check()

    def _statement(self) -> Tuple[str, List[Any]]:
        sql = "SELECT FROM queue.complete_many(%s::bigint[]) WHERE outcome = 'completed'"
        return sql, [[job.id for job in self._jobs]]

    def _statement_there(self) -> Tuple[str, List[Any]]:
        """Returns the statement for the server of the effects, which does not know about leases."""
        self._set_ended()
        return "SELECT queue.complete_many(%s::bigint[])", [[job.id for job in self._jobs]]

    def _check_all(self, completed: Sequence[Any]) -> None:
        if len(completed) < len(self._jobs):
            raise Stopped("lost")

    def _set_ended(self, ended: bool = True) -> None:
        for job in self._jobs:
            job.ended = ended

    @contextmanager
    def _opened(self) -> Iterator[bool]:
        """Marks that a transaction of all jobs is open. Returns whether it may wait for a connection."""
        with ExitStack() as stack:
            for job in self._jobs:
                stack.enter_context(job._opened(None))
            yield not any(job.in_step for job in self._jobs)


class Batch(BaseBatch[Job]):
    """The jobs of a synchronous handler (`def`), which runs in a thread."""

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """A transaction on one of the worker's connections. When it ends, it completes all jobs of the batch.

        If the lease of one job is lost, the transaction rolls back, and the other jobs are released.

        If the worker has `effects`, the transaction is there. If an earlier attempt has committed effects of a job,
        this raises `AlreadyDone`: that job is completed, and the others are released.
        """
        effects = self[0]._effects
        with self._opened() as may_wait:
            if effects is not None:
                complete = lambda conn: run(conn, *self._statement_there())
                with effects.transaction(self._jobs, self[0].cancelled, complete) as conn:
                    yield conn
                return
            with self[0]._connection(may_wait) as conn, conn.transaction():
                yield conn
                check_open(conn)
                self._check_all(run(conn, *self._statement()))
                self._set_ended()  # before the commit: a heartbeat may learn of it first
                return
            self._set_ended(False)  # the block has raised psycopg.Rollback


class AsyncBatch(BaseBatch[AsyncJob]):
    """The jobs of an `async def` handler. When all of the jobs are to stop, its task is cancelled."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction on one of the worker's connections. When it ends, it completes all jobs of the batch.

        If the lease of one job is lost, the transaction rolls back, and the other jobs are released.

        If the worker has `effects`, the transaction is there. If an earlier attempt has committed effects of a job,
        this raises `AlreadyDone`: that job is completed, and the others are released.
        """
        async def complete(conn: AsyncConnection[Any]) -> None:
            await run_async(conn, *self._statement_there())

        effects = self[0]._effects
        with self._opened() as may_wait:
            if effects is not None:
                async with effects.transaction(self._jobs, complete) as conn:
                    yield conn
                return
            async with self[0]._connection(may_wait) as conn, conn.transaction():
                yield conn
                check_open(conn)
                self._check_all(await run_async(conn, *self._statement()))
                self._set_ended()  # before the commit: a heartbeat may learn of it first
                return
            self._set_ended(False)  # the block has raised psycopg.Rollback
