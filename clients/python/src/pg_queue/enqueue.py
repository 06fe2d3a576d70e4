"""Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
commits.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Iterable, List, Literal, Mapping, Optional, Tuple, TypedDict

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from . import checks, tracing
from .checks import Duration
from .codec import Codec, encoded, encoded_async
from .outcomes import Upon

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EventOptions(TypedDict, total=False):
    """The options of a single job, which publishing takes, too."""

    priority: Optional[int]
    delay: Optional[Duration]
    run_at: Optional[datetime]
    unique_key: Optional[str]
    on_duplicate: Optional[Literal["skip", "replace", "rerun", "error"]]
    version: Optional[datetime]
    unique_for: Optional[Duration]
    group_key: Optional[str]
    headers: Any
    upon: Optional[Upon]
    #: If no worker has claimed the job before this time, it expires.
    start_by: Optional[datetime]
    #: The same as a span, which begins when the job may run. Give one of the two.
    start_within: Optional[Duration]


class OwnOptions(EventOptions, total=False):
    """The options of a single job."""

    stage: Optional[str]
    max_attempts: Optional[int]
    lease: Optional[Duration]


class FlowOptions(OwnOptions, total=False):
    """The options of `queue.enqueue_flow`."""

    after: Optional[Iterable[int]]
    flow: Optional[int]
    task: Optional[str]


class Options(FlowOptions, total=False):
    """The options of `queue.enqueue`. None means the default, as if the option were left out."""

    #: With a `unique_key`: calls under it put the job off at most this long after the first of them.
    max_delay: Optional[Duration]


def enqueue(
    conn: Connection[Any],
    queue: str,
    payload: Any = {},
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> int:
    """Adds a job and returns its id. `codec`: encodes the payload."""
    checks.connection(conn, Connection)
    content = Jsonb(encoded(codec, [checks.payload(payload)], queue)[0])
    return ids(conn, *_call("enqueue", queue, content, "jsonb", options))[0]


def enqueue_many(
    conn: Connection[Any],
    queue: str,
    payloads: Iterable[Any],
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> List[int]:
    """Adds one job for each payload, all with the same options, and returns their ids in the order of the payloads."""
    checks.connection(conn, Connection)
    content = list(map(Jsonb, encoded(codec, checks.payloads(payloads), queue)))
    return ids(conn, *_call("enqueue_many", queue, content, "jsonb[]", options))


async def enqueue_async(
    conn: AsyncConnection[Any],
    queue: str,
    payload: Any = {},
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> int:
    """`enqueue` for an asyncio connection."""
    checks.connection(conn, AsyncConnection)
    content = Jsonb((await encoded_async(codec, [checks.payload(payload)], queue))[0])
    return (await ids_async(conn, *_call("enqueue", queue, content, "jsonb", options)))[0]


async def enqueue_many_async(
    conn: AsyncConnection[Any],
    queue: str,
    payloads: Iterable[Any],
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> List[int]:
    """`enqueue_many` for an asyncio connection."""
    checks.connection(conn, AsyncConnection)
    content = list(map(Jsonb, await encoded_async(codec, checks.payloads(payloads), queue)))
    return await ids_async(conn, *_call("enqueue_many", queue, content, "jsonb[]", options))


def _call(function: str, queue: str, content: Any, cast: str, options: Mapping[str, Any]) -> Tuple[str, List[Any]]:
    text, values = arguments(function, options)
    return f"SELECT * FROM queue.{function}(%s, %s::{cast}{text})", [checks.text(queue, "queue"), content, *values]


def arguments(
    function: str, options: Mapping[str, Any], known: Mapping[str, Any] = Options.__annotations__
) -> Tuple[str, List[Any]]:
    """Returns the given options as named arguments, with the caller's trace context in the headers."""
    unknown = options.keys() - known.keys()
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")
    given = checks.options(options)
    headers = tracing.inject(given.get("headers"))
    if headers is not None:
        given["headers"] = Jsonb(headers)
    text = "".join(f", {name} => %s{_CASTS.get(name, '')}" for name in given)
    return text, list(given.values())


_CASTS = {"after": "::bigint[]"}  # an empty list has no type


def ids(conn: Connection[Any], sql: str, parameters: List[Any]) -> List[int]:
    with conn.cursor(row_factory=_first) as cursor:
        return cursor.execute(sql, parameters).fetchall()


async def ids_async(conn: AsyncConnection[Any], sql: str, parameters: List[Any]) -> List[int]:
    async with conn.cursor(row_factory=_first) as cursor:
        await cursor.execute(sql, parameters)
        return await cursor.fetchall()


def _first(cursor: Any) -> Any:
    """A row factory that returns the first column of each row, whatever the connection's own row factory does."""
    return lambda values: values[0]
