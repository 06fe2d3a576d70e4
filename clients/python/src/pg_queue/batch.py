"""Several jobs of a queue that one handler runs at once."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Generic, Iterator, List, Sequence, Tuple, TypeVar, overload

from psycopg import AsyncConnection, Connection

from .job import AsyncJob, BaseJob, Job
from .outcomes import Stopped

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
        """Raises `Stopped` if one of them is to stop."""
        for job in self._jobs:
            job.check()

    def _statement(self) -> Tuple[str, List[Any]]:
        sql = "SELECT FROM queue.complete_many(%s::bigint[]) WHERE outcome = 'completed'"
        return sql, [[job.id for job in self._jobs]]

    def _check_all(self, completed: Sequence[Any]) -> None:
        if len(completed) < len(self._jobs):
            raise Stopped("lost")

    def _set_ended(self, is_ended: bool) -> None:
        for job in self._jobs:
            job.ended = is_ended


class Batch(BaseBatch[Job]):
    """The jobs of a handler that is a `def`, which runs in a thread."""

    @contextmanager
    def transaction(self) -> Iterator[Connection[Any]]:
        """A transaction on a connection of the worker's, which completes all of them at its end.

        If the lease of one is lost it is rolled back, and the others are given back.
        """
        self.check()
        with self[0]._connection() as conn:
            try:
                with conn.transaction():
                    yield conn
                    self._check_all(conn.execute(*self._statement()).fetchall())
                    self._set_ended(True)  # before the commit, of which a heartbeat may hear first
            except BaseException:
                self._set_ended(False)  # it was rolled back
                raise


class AsyncBatch(BaseBatch[AsyncJob]):
    """The jobs of a handler that is an `async def`. Its task is cancelled when all of them are to stop."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction on a connection of the worker's, which completes all of them at its end.

        If the lease of one is lost it is rolled back, and the others are given back.
        """
        self.check()
        async with self[0]._connection() as conn:
            try:
                async with conn.transaction():
                    yield conn
                    self._check_all(await (await conn.execute(*self._statement())).fetchall())
                    self._set_ended(True)  # before the commit, of which a heartbeat may hear first
            except BaseException:
                self._set_ended(False)  # it was rolled back
                raise
