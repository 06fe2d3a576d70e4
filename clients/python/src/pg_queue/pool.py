"""Connections: how the worker connects, when a connection counts as gone, and the pool for handlers' transactions.

The pool does not hand out a connection that the server has closed while it was idle. No statement of the worker itself
waits longer than its `patience`. So the worker also gives up a server that keeps its connections open but no longer
answers.
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
    # With these, a host that does not answer any more is noticed within half a minute.
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
"""The SQLSTATE for an attempt that the worker has lost."""

SILENCE = 60.0
"""If a server has not answered for this many seconds, beyond the requested wait, the worker gives it up."""

CANCEL = 2.0
"""How many seconds an attempt to cancel a statement may take."""

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
C = TypeVar("C", bound=AnyConnection)
T = TypeVar("T")


class Gone(Exception):
    """The connection is gone, or the server accepts no writes: the worker connects anew, maybe to another host."""


REMINDER = 60.0
"""After how many seconds a failure that persists is logged again."""


class Backoff:
    """The pauses between failing attempts, and how often failures are logged."""

    def __init__(self) -> None:
        self.failures = 0
        self._said: Dict[str, float] = {}

    def failed(self, what: str, error: Exception) -> float:
        """Returns the seconds until the next attempt. Logs the failure if it is a new one, or if it was last logged a
        minute ago.
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
    """Returns a connection string for each host, with the worker's defaults for parameters that `conninfo` leaves out.

    Each host gets its own, because older versions of psycopg give all hosts together the timeout of one. Hosts behind a
    silent one would never be tried.
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
        return [make_conninfo(**whole)]  # libpq reports the fault
    of_one = [{name: values[n % len(values)] for name, values in lists.items() if any(values)} for n in range(count)]
    return [make_conninfo(**{**whole, **one}) for one in of_one]


def _at(conninfo: str, error: psycopg.OperationalError) -> psycopg.OperationalError:
    """Returns the error with the host and port, which some versions of psycopg leave out."""
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the default host"
    port = given.get("port") or os.environ.get("PGPORT") or 5432
    return psycopg.OperationalError(f"{host}, port {port}: {error}")


def connect(attempts: List[str]) -> Connection[Any]:
    """Connects to the first of the hosts that accepts writes."""
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
    """Returns whether the connection, if there is one, is unusable after this error."""
    if conn is None or conn.closed or conn.broken or error.sqlstate in _GONE:
        return True
    return error.sqlstate is None and isinstance(error, psycopg.OperationalError)


def _is_usable(conn: AnyConnection) -> bool:
    """Returns whether an idle connection is still open. If the server has closed it, its socket is readable."""
    if conn.closed or conn.broken:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


def _is_reusable(conn: AnyConnection) -> bool:
    return not conn.closed and not conn.broken and conn.info.transaction_status == TransactionStatus.IDLE


class _Idle(Generic[C]):
    """The idle connections, kept for reuse until `close`."""

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
            conn.pgconn.finish()  # for both kinds of connection: `finish` awaits nothing

    def _discard(self, conn: C, error: psycopg.Error) -> None:
        """Closes a connection that is unusable after this error, such as one to a host that has become a standby."""
        if is_gone(conn, error):
            conn.pgconn.finish()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().pgconn.finish()


class Pool(_Idle["Connection[Any]"]):
    """Connections for handlers. It grows to the number in use at the same time."""

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        conn = self._take() or self._connect()
        try:
            yield conn
        except psycopg.Error as error:
            self._discard(conn, error)
            raise
        finally:
            self._give_back(conn)


class AsyncPool(_Idle["AsyncConnection[Any]"]):
    """The same for asyncio."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        conn = self._take() or await self._connect()
        try:
            yield conn
        except psycopg.Error as error:
            self._discard(conn, error)
            raise
        finally:
            self._give_back(conn)


class Link:
    """One connection, made when it is needed, and made again after it was lost."""

    def __init__(self, connect: Callable[[], Any], patience: Optional[float] = None) -> None:
        self._connect = connect
        self._patience = SILENCE if patience is None else patience
        self._loop = asyncio.get_running_loop()
        self._severed: asyncio.Future[None] = self._loop.create_future()
        self.conn: Optional[AsyncConnection[Any]] = None

    async def fetch(self, sql: str, parameters: List[Any]) -> List[Any]:
        """Runs a statement in a transaction of its own. Raises `Gone` if another connection is needed."""
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
        """Ends a statement without the server. Cancelling its task would not do: psycopg then asks the server to
        cancel, and waits for it.
        """
        conn = self.conn
        if conn is None or not _shut(conn):
            task.cancel()
        await asyncio.wait({task}, timeout=1)
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved, as nothing else reads it
        else:
            task.cancel()
        await self.close()

    def sever(self) -> None:
        """Lets the running statement, and all later ones, fail with `Gone`."""
        if not self._severed.done():
            self._severed.set_result(None)

    async def cancel(self) -> None:
        """Asks the server to cancel the running statement, if there is one."""
        conn = self.conn
        # libpq waits for the answer without a limit, and psycopg lets no other thread run meanwhile.
        if conn is None or not await _answers(conn):
            return
        done = asyncio.Event()

        def ask(conn: AsyncConnection[Any]) -> None:
            try:
                conn.cancel()
            except psycopg.Error:
                pass  # the statement ends by itself, when its wait is over
            try:
                self._loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the event loop has ended

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
    """Ends the connection as if the server had closed it."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return False
    return True


async def _answers(conn: AnyConnection) -> bool:
    """Returns whether the server answers on a new connection. For abstract sockets it returns true unchecked."""
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
        writer.write(struct.pack("!ii", 8, 80877103))  # an SSLRequest, which every server answers
        return bool(await asyncio.wait_for(reader.read(1), CANCEL))
    except (OSError, asyncio.TimeoutError):
        return False
    finally:
        writer.close()
