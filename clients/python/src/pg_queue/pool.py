"""Connections: how the worker connects, when one is gone, and the few that handlers' transactions use in turn.

A connection that the server has closed while it was idle is not handed out. Nothing that the worker itself asks the
server waits longer than its `patience`: also a server that has fallen silent with its connections open is given up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import select
import socket
import struct
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Callable, Coroutine, Dict, Generic, Iterator, List, Optional, Set, TypeVar, Union

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

logger = logging.getLogger("pg_queue.worker")

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

LOST = "QJ001"
"""The SQLSTATE of an attempt that is not the worker's any more."""

SILENCE = 60.0
"""A server that has not answered for so many seconds, beyond what it was asked to wait, is given up."""

CANCEL = 2.0
"""How long, in seconds, one attempt to cancel a statement may take."""

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
C = TypeVar("C", bound=AnyConnection)
T = TypeVar("T")


class Gone(Exception):
    """The connection is no more, or leads to a server that takes no writes: connect anew, maybe to another host."""


REMINDER = 60.0
"""How often, in seconds, a failure is logged that goes on."""


class Backoff:
    """The pauses between attempts that fail, and how often that is logged."""

    def __init__(self) -> None:
        self.failures = 0
        self._said: Dict[str, float] = {}

    def failed(self, what: str, error: Exception) -> float:
        """Returns the seconds until the next attempt. Logs a failure that is another one than before, or goes on for a
        minute more.
        """
        text, now = " ".join(str(error).split()), time.monotonic()
        if now - self._said.get(text, -REMINDER) >= REMINDER:
            self._said[text] = now
            if isinstance(error, Gone):
                logger.warning("no connection for %ss, the worker tries again: %s", what, text)
            else:
                logger.error("a %s has failed, the worker tries again: %s", what, text)
        self.failures += 1
        return min(0.1 * 2.0 ** min(self.failures, 10), 10.0) * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
        self._said.clear()


def hosts(conninfo: str) -> List[str]:
    """A connection string for each host, with the worker's own defaults for what it does not say.

    Each by itself, since older versions of psycopg give all of them together the time that one may take: behind a host
    that is silent the others would never have a turn.
    """
    given = conninfo_to_dict(conninfo)
    defaults: Dict[str, Any] = dict(_DEFAULTS, fallback_application_name="pg_queue worker")
    variables = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}
    lists = {name: str(given.get(name) or os.environ.get(variable) or "").split(",")
        for name, variable in variables.items()}
    count = max(len(lists["host"]), len(lists["hostaddr"]))
    if count > 1:
        defaults["target_session_attrs"] = "read-write"
    whole = {**defaults, **given}
    if any(len(values) not in (1, count) for values in lists.values()):
        return [make_conninfo(**whole)]  # libpq says what is wrong with it
    of_one = [{name: values[n % len(values)] for name, values in lists.items() if any(values)} for n in range(count)]
    return [make_conninfo(**{**whole, **one}) for one in of_one]


def _at(conninfo: str, error: psycopg.OperationalError) -> psycopg.OperationalError:
    """The error with the server's place, which not all versions of psycopg tell."""
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the default host"
    port = given.get("port") or os.environ.get("PGPORT") or 5432
    return psycopg.OperationalError(f"{host}, port {port}: {error}")


def connect(attempts: List[str]) -> Connection[Any]:
    """Connects to the first of the hosts that takes writes."""
    errors: List[psycopg.OperationalError] = []
    for conninfo in attempts:
        try:
            return Connection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            errors.append(_at(conninfo, error))
    raise errors[0] if len(errors) == 1 else psycopg.OperationalError("; ".join(map(str, errors)))


async def connect_async(attempts: List[str]) -> AsyncConnection[Any]:
    """The same for asyncio."""
    errors: List[psycopg.OperationalError] = []
    for conninfo in attempts:
        try:
            return await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            errors.append(_at(conninfo, error))
    raise errors[0] if len(errors) == 1 else psycopg.OperationalError("; ".join(map(str, errors)))


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

    def __init__(self, connect: Callable[[], Any], patience: Optional[float] = None) -> None:
        self._connect = connect
        self._patience = SILENCE if patience is None else patience
        self._loop = asyncio.get_running_loop()
        self._severed: asyncio.Future[None] = self._loop.create_future()
        self.conn: Optional[AsyncConnection[Any]] = None

    async def fetch(self, sql: str, parameters: List[Any]) -> List[Any]:
        """Runs a statement in a transaction of its own. Raises `Gone` where that needs another connection."""
        try:
            conn = self.conn
            if conn is None:
                made: AsyncConnection[Any] = await self._unless_severed(self._connect(), None)
                conn = self.conn = made
            return await self._unless_severed(self._execute(conn, sql, parameters), self._patience)
        except psycopg.Error as error:
            if is_gone(self.conn, error):
                await self.close()
                raise Gone(str(error)) from error
            raise

    async def _execute(self, conn: AsyncConnection[Any], sql: str, parameters: List[Any]) -> List[Any]:
        cursor = await conn.execute(sql, parameters)
        return await cursor.fetchall()

    async def _unless_severed(self, work: Coroutine[Any, Any, T], patience: Optional[float]) -> T:
        task: asyncio.Task[T] = self._loop.create_task(work)
        waiting: Set[asyncio.Future[Any]] = {task, self._severed}
        try:
            await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon(task)
            raise
        if not task.done():
            await self._abandon(task)
            raise Gone("the server has not answered")
        return task.result()

    async def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Ends a statement without the server. Where a task is cancelled, psycopg asks the server to, and waits for it.
        """
        conn = self.conn
        if conn is None or not _shut(conn):
            task.cancel()
        await asyncio.wait({task}, timeout=1)
        if task.done() and not task.cancelled():
            task.exception()  # nobody else asks for it
        else:
            task.cancel()
        await self.close()

    def sever(self) -> None:
        """What runs, and all that follows, is answered by `Gone`."""
        if not self._severed.done():
            self._severed.set_result(None)

    async def cancel(self) -> None:
        """Asks the server to cancel the statement that runs, if one does."""
        conn = self.conn
        # libpq waits for an answer for ever, and psycopg lets no other thread run meanwhile.
        if conn is None or not await _answers(conn):
            return
        done = asyncio.Event()

        def ask(conn: AsyncConnection[Any]) -> None:
            try:
                conn.cancel()
            except psycopg.Error:
                pass  # it ends by itself, with its wait
            try:
                self._loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop has ended

        threading.Thread(target=ask, args=[conn], name="pg_queue-cancel", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), CANCEL)
        except asyncio.TimeoutError:
            pass

    async def close(self) -> None:
        conn, self.conn = self.conn, None
        if conn is not None:
            await conn.close()


def _shut(conn: AnyConnection) -> bool:
    """Has the connection end as if the server had closed it."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return False
    return True


async def _answers(conn: AnyConnection) -> bool:
    """Whether what listens at the other end does, as far as can be told."""
    host, port = conn.info.host, conn.info.port
    if host.startswith("@"):
        return True
    if host.startswith("/"):
        connecting = asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    else:
        connecting = asyncio.open_connection(conn.info.hostaddr or host, port)
    try:
        reader, writer = await asyncio.wait_for(connecting, CANCEL)
    except (OSError, asyncio.TimeoutError):
        return False
    try:
        writer.write(struct.pack("!ii", 8, 80877103))  # whether it would encrypt
        return bool(await asyncio.wait_for(reader.read(1), CANCEL))
    except (OSError, asyncio.TimeoutError):
        return False
    finally:
        writer.close()
