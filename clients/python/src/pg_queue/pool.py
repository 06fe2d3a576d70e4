"""Connections: how the worker connects, when a connection counts as gone, and the pool for handlers' transactions.

The pool does not hand out a connection that the server has closed while it was idle. No statement of the worker itself
waits longer than its `patience`. So the worker also gives up a server that keeps its connections open but no longer
answers.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import select
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import (
    Any, AsyncIterator, Callable, Dict, Generic, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union,
    cast,
)

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from .log import logger
from .version import __version__

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

PATIENCE = 10.0
"""How many seconds a handler waits for a connection."""

RETRY = 0.2
"""The seconds between two attempts to connect for handlers that wait."""

IDLE = 60.0
"""How many seconds the pool keeps a connection that nobody uses."""

SCARCE = 10.0
"""For how many seconds the pool makes and keeps no connection after the worker itself could not make one."""

AnyConnection = Union[Connection[Any], AsyncConnection[Any]]
C = TypeVar("C", bound=AnyConnection)
T = TypeVar("T")


class Gone(Exception):
    """The connection is gone, or the server accepts no writes: the worker connects anew, maybe to another host."""


class NoConnection(psycopg.OperationalError):
    """No connection can be made for a handler: the server accepts no more, or this process has no more files."""


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
    defaults: Dict[str, Any] = dict(_DEFAULTS, fallback_application_name=f"pg_queue worker python/{__version__}")
    variables = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}
    lists = {name: str(given.get(name) or os.environ.get(variable) or "").split(",")
        for name, variable in variables.items()}
    count = max(len(lists["host"]), len(lists["hostaddr"]))
    if count > 1:
        defaults["target_session_attrs"] = "read-write"
    # A role or the environment can set another encoding, in which some jobs could not be read.
    whole = {**defaults, **given, "client_encoding": "UTF8"}
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


def check_open(conn: AnyConnection) -> None:
    """Raises an error if a handler has ended the transaction that was begun for it."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        advice = "job.transaction and job.step end it themselves"
        raise RuntimeError(f"the transaction was ended by a COMMIT or ROLLBACK: {advice}")


def run(conn: Connection[Any], sql: str, parameters: Sequence[Any]) -> List[Tuple[Any, ...]]:
    """Runs a statement of this package and returns its rows, whatever row factory the connection has."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(sql, parameters).fetchall()


async def run_async(conn: AsyncConnection[Any], sql: str, parameters: Sequence[Any]) -> List[Tuple[Any, ...]]:
    """The same for asyncio."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchall()


@contextmanager
def _restored(conn: AnyConnection) -> Iterator[None]:
    """Takes back what a block sets on a connection for its own statements: the connection is for other jobs too."""
    kept = {name: getattr(conn, name) for name in ("row_factory", "cursor_factory", "prepare_threshold")}
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(conn, name, value)


def _is_usable(conn: AnyConnection) -> bool:
    """Returns whether an idle connection is still open. If the server has closed it, its socket is readable."""
    if conn.closed or conn.broken:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


def _is_reusable(conn: AnyConnection) -> bool:
    return not conn.closed and not conn.broken and conn.info.transaction_status == TransactionStatus.IDLE


class _Limited(Generic[C]):
    """Connections for handlers, at most `limit`. It grows to the number in use at the same time."""

    def __init__(self, connect: Callable[[], Any], limit: Optional[int] = None) -> None:
        self._connect = connect
        self._limit = math.inf if limit is None else limit
        self._lock = threading.Condition()
        self._idle: List[Tuple[C, float]] = []  # each with the time since when nobody has used it
        self._count = 0  # in use, idle, or being made
        self._scarce_until = -math.inf
        self._is_closed = False

    def _take(self) -> Optional[C]:
        while self._idle:
            conn, _ = self._idle.pop()
            if _is_usable(conn):
                return conn
            self._drop(conn)
        return None

    def _reserve(self) -> bool:
        """Returns whether a connection may be made."""
        may = self._count < self._limit and time.monotonic() >= self._scarce_until and not self._is_closed
        self._count += may
        return may

    def _is_over(self, end: float, waits: bool) -> bool:
        """Returns whether a handler has waited long enough."""
        return self._is_closed or time.monotonic() >= end and not (waits and self._count >= self._limit)

    def _drop(self, conn: Optional[C] = None) -> None:
        """Closes a connection; None: it was not made."""
        if conn is not None:
            conn.pgconn.finish()  # for both kinds of connection: `finish` awaits nothing
        self._count -= 1
        self._wake()

    def _wake(self) -> None:
        """Wakes a handler that waits for a connection. The caller has the lock."""
        self._lock.notify()

    def _give_back(self, conn: C) -> None:
        with self._lock:
            is_scarce = self._is_closed or time.monotonic() < self._scarce_until
            if is_scarce or not _is_reusable(conn):
                self._drop(conn)
            else:
                self._idle.append((conn, time.monotonic()))
                self._wake()

    def _discard(self, conn: C, error: psycopg.Error) -> None:
        """Closes a connection that is unusable after this error, such as one to a host that has become a standby."""
        if is_gone(conn, error):
            conn.pgconn.finish()

    def make_room(self, is_needed: bool) -> None:
        """Leaves connections to the worker itself, until it could make one."""
        with self._lock:
            self._scarce_until = time.monotonic() + SCARCE if is_needed else -math.inf
        if is_needed:
            self.prune(0)

    def prune(self, seconds: float = IDLE) -> None:
        """Closes connections that nobody has used for this long."""
        if not self._idle:
            return
        with self._lock:
            old = [conn for conn, since in self._idle if time.monotonic() - since >= seconds]
            self._idle = [one for one in self._idle if one[0] not in old]
            for conn in old:
                self._drop(conn)

    def close(self) -> None:
        self._is_closed = True
        self.prune(0)


_LACK = psycopg.OperationalError("no connection is free")


class Pool(_Limited["Connection[Any]"]):
    """Connections for handlers in threads."""

    @contextmanager
    def connection(
        self, check: Callable[[], None] = lambda: None, patience: float = PATIENCE, waits: bool = True
    ) -> Iterator[Connection[Any]]:
        """A connection, until the end of the block. `check` raises an error if the handler is to stop. Raises
        `NoConnection` if none can be made for `patience` seconds. `waits`: other handlers may use the connections for
        longer than that. A handler that has one itself must not wait for them: they may wait for it.
        """
        conn = self._wait(check, time.monotonic() + patience, waits)
        try:
            with _restored(conn):
                yield conn
        except psycopg.Error as error:
            self._discard(conn, error)
            raise
        finally:
            self._give_back(conn)

    def _wait(self, check: Callable[[], None], end: float, waits: bool) -> Connection[Any]:
        error = _LACK
        while True:
            with self._lock:
                conn, may = self._take(), False
                if conn is not None:
                    return conn
                may = self._reserve()
            if may:
                try:
                    made: Connection[Any] = self._connect()
                    return made
                except BaseException as failure:
                    with self._lock:
                        self._drop()
                    if not isinstance(failure, psycopg.OperationalError):
                        raise
                    error = failure
            if self._is_over(end, waits):
                raise NoConnection(str(error)) from error
            with self._lock:
                if not self._idle:
                    self._lock.wait(RETRY)
            check()


class AsyncPool(_Limited["AsyncConnection[Any]"]):
    """The same for asyncio."""

    def __init__(self, connect: Callable[[], Any], limit: Optional[int] = None) -> None:
        super().__init__(connect, limit)
        self._waiting: List[asyncio.Future[None]] = []

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
                break

    @asynccontextmanager
    async def connection(
        self, check: Callable[[], None] = lambda: None, patience: float = PATIENCE, waits: bool = True
    ) -> AsyncIterator[AsyncConnection[Any]]:
        conn = await self._wait(check, time.monotonic() + patience, waits)
        try:
            with _restored(conn):
                yield conn
        except psycopg.Error as error:
            self._discard(conn, error)
            raise
        finally:
            self._give_back(conn)

    async def _wait(self, check: Callable[[], None], end: float, waits: bool) -> AsyncConnection[Any]:
        error = _LACK
        while True:
            conn = self._take()
            if conn is not None:
                return conn
            if self._reserve():
                try:
                    made: AsyncConnection[Any] = await self._connect()
                    return made
                except BaseException as failure:
                    self._drop()
                    if not isinstance(failure, psycopg.OperationalError):
                        raise
                    error = failure
            if self._is_over(end, waits):
                raise NoConnection(str(error)) from error
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await asyncio.wait({future}, timeout=RETRY)
            finally:
                self._waiting.remove(future)
            check()


async def wait_set(event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, for at most this time."""
    try:
        await asyncio.wait_for(event.wait(), None if seconds == math.inf else seconds)
    except asyncio.TimeoutError:
        pass


class Link:
    """One connection, made when it is needed, and made again after it was lost."""

    def __init__(
        self,
        connect: Callable[[], Any],
        patience: Optional[float] = None,
        refused: Callable[[], None] = lambda: None,
        silent: Callable[[], None] = lambda: None,
    ) -> None:
        """`refused` is called if no connection can be made, and `silent` if the server has not answered in time."""
        self._connect = connect
        self._refused, self._silent = refused, silent
        self._patience = SILENCE if patience is None else patience
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._is_severed = False
        self._is_given_up = False  # what runs is not to wait for the server any more
        self._making: Optional[asyncio.Task[Any]] = None
        self.conn: Optional[AsyncConnection[Any]] = None

    async def fetch(self, sql: str, parameters: List[Any]) -> List[Any]:
        """Runs a statement in a transaction of its own, after those before it. Raises `Gone` if another connection is
        needed.
        """
        async with self._turn:
            self._is_given_up = self._is_severed
            timer: Optional[asyncio.TimerHandle] = None
            try:
                conn = self.conn or await self._made()
                if self._is_given_up:
                    raise psycopg.OperationalError
                timer = self._loop.call_later(self._patience, self._fall_silent)
                # In binary, because psycopg reads times as text in one DateStyle only.
                cursor = await conn.execute(sql, parameters, binary=True)
                return await cursor.fetchall()
            except psycopg.Error as error:
                if self._is_given_up or is_gone(self.conn, error):
                    await self.close()
                    raise Gone("the server has not answered" if self._is_given_up else str(error)) from error
                raise
            finally:
                if timer is not None:
                    timer.cancel()

    async def _made(self) -> AsyncConnection[Any]:
        """Connects, in a task of its own, which `_give_up` cancels."""
        self._making = task = self._loop.create_task(self._connect())
        try:
            await asyncio.wait({task})
            made: AsyncConnection[Any] = task.result()
        except psycopg.Error:
            self._refused()
            raise
        except asyncio.CancelledError:
            task.cancel()
            if not self._is_given_up:
                raise
            raise psycopg.OperationalError from None
        finally:
            self._making = None
        self.conn = made
        return made

    async def unless_set(self, stopping: asyncio.Event, sql: str) -> Any:
        """Returns the first row of a statement. None: `stopping` was set meanwhile. Raises as `fetch`."""
        reached = self._loop.create_task(self.fetch(sql, []))
        stopped = self._loop.create_task(stopping.wait())
        await asyncio.wait({reached, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not reached.done():
            reached.add_done_callback(lambda task: task.cancelled() or task.exception())  # marks it as retrieved
            return None
        return reached.result()[0]

    def _fall_silent(self) -> None:
        self._give_up()
        self._silent()

    def _give_up(self) -> None:
        """Ends what runs without the server. Cancelling a statement would not do: psycopg then asks the server to
        cancel, and waits for it.
        """
        self._is_given_up = True
        if self._making is not None:
            self._making.cancel()
        elif self.conn is not None:
            _shut(self.conn)

    def renew(self) -> None:
        """Gives the connection up: the running statement fails with `Gone`, and the next one connects anew."""
        if self._turn.locked():
            self._give_up()
        elif self.conn is not None:
            conn, self.conn = self.conn, None
            conn.pgconn.finish()

    def sever(self) -> None:
        """Lets the running statement, and all later ones, fail with `Gone`."""
        self._is_severed = True
        self._give_up()

    async def cancel(self) -> None:
        """Asks the server to cancel the running statement, if there is one."""
        conn = self.conn
        if conn is None:
            return
        given: Any = psycopg  # of any version
        if hasattr(given, "capabilities") and given.capabilities.has_cancel_safe():
            try:
                await cast(Any, conn).cancel_safe(timeout=CANCEL)
            except psycopg.Error:
                pass  # the statement ends by itself, when its wait is over
            return
        # libpq before 17 waits for the answer without a limit.
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

        try:
            threading.Thread(target=ask, args=[conn], name="pg_queue-cancel", daemon=True).start()
        except RuntimeError:
            return  # the system has no more threads
        await wait_set(done, CANCEL)

    async def close(self) -> None:
        conn, self.conn = self.conn, None
        if conn is not None:
            await conn.close()


def _shut(conn: AnyConnection) -> None:
    """Ends the connection as if the server had closed it."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is closed already
