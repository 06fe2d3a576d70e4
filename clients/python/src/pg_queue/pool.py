"""Connections: how the worker connects, when one is gone, and the few that handlers' transactions use in turn.

A connection that the server has closed while it was idle is not handed out.
"""

from __future__ import annotations

import select
from contextlib import asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Callable, Dict, Generic, Iterator, List, Optional, TypeVar, Union

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

_DEFAULTS = {
    # A host that has fallen silent is noticed within half a minute.
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30000,
}

_GONE = {
    "25006",  # the host has become a standby
    "57P01",  # it shuts down
    "57P02",
    "57P03",
}

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
C = TypeVar("C", bound=AnyConnection)


class Gone(Exception):
    """The connection is no more, or leads to a server that takes no writes: connect anew, maybe to another host."""


def with_defaults(conninfo: str) -> str:
    """The connection string with the worker's own defaults for what it does not say."""
    given = conninfo_to_dict(conninfo)
    defaults: Dict[str, Any] = dict(_DEFAULTS, fallback_application_name="pg_queue worker")
    hosts = str(given.get("host") or given.get("hostaddr") or "")
    if "," in hosts:
        defaults["target_session_attrs"] = "read-write"
    return make_conninfo(**{**defaults, **given})


def is_gone(conn: Optional[AnyConnection], error: psycopg.Error) -> bool:
    """Whether the connection, if there is one, is of no more use after this error."""
    if conn is None or conn.closed or conn.broken or error.sqlstate in _GONE:
        return True
    return error.sqlstate is None and isinstance(error, psycopg.OperationalError)


def _is_usable(conn: AnyConnection) -> bool:
    """Whether an idle connection is still there: one that the server has closed has something to read."""
    if conn.closed or conn.broken:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


def _is_reusable(conn: AnyConnection) -> bool:
    return not conn.closed and not conn.broken and conn.info.transaction_status == TransactionStatus.IDLE


class _Idle(Generic[C]):
    """The connections that nobody uses, kept for the next ones until `close`."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._idle: List[C] = []

    def _take(self) -> Optional[C]:
        while self._idle:
            conn = self._idle.pop()
            if _is_usable(conn):
                return conn
            conn.pgconn.finish()
        return None

    def _give_back(self, conn: C) -> None:
        if _is_reusable(conn):
            self._idle.append(conn)
        else:
            conn.pgconn.finish()  # of both kinds: closing awaits nothing

    def close(self) -> None:
        while self._idle:
            self._idle.pop().pgconn.finish()


class Pool(_Idle["Connection[Any]"]):
    """As many connections as are used at once."""

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        conn = self._take() or self._connect()
        try:
            yield conn
        finally:
            self._give_back(conn)


class AsyncPool(_Idle["AsyncConnection[Any]"]):
    """The same for asyncio."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        conn = self._take() or await self._connect()
        try:
            yield conn
        finally:
            self._give_back(conn)


class Link:
    """One connection that is made when it is needed, and again when it was lost."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self.conn: Optional[AsyncConnection[Any]] = None

    async def fetch(self, sql: str, parameters: List[Any]) -> List[Any]:
        """Runs a statement in a transaction of its own. Raises `Gone` where that needs another connection."""
        try:
            if self.conn is None:
                self.conn = await self._connect()
            cursor = await self.conn.execute(sql, parameters)
            return await cursor.fetchall()
        except psycopg.Error as error:
            if is_gone(self.conn, error):
                await self.close()
                raise Gone(str(error)) from error
            raise

    def cancel(self) -> None:
        """Cancels the statement that runs, if one does; from another thread, since it connects."""
        conn = self.conn
        if conn is not None:
            try:
                conn.cancel()
            except psycopg.Error:
                pass  # it ends by itself, with its wait

    async def close(self) -> None:
        conn, self.conn = self.conn, None
        if conn is not None:
            await conn.close()
