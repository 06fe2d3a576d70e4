"""Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
commits.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Iterable, List, Literal, Mapping, Optional, Tuple, TypedDict

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from . import tracing
from .codec import Codec, encoded, encoded_async
from .outcomes import Duration, Upon, interval

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
    #: `start_by` and `start_within` in them, as text, say by when a worker must have claimed the job, or it expires.
    headers: Any
    upon: Optional[Upon]


class OwnOptions(EventOptions, total=False):
    """The options of a single job."""

    stage: Optional[str]
    max_attempts: Optional[int]
    lease: Optional[Duration]


class Options(OwnOptions, total=False):
    """The options of `queue.enqueue`. None means the default, as if the option were left out."""

    after: Optional[Iterable[int]]
    flow: Optional[int]
    task: Optional[str]


def enqueue(
    conn: Connection[Any],
    queue: str,
    payload: Any = {},
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> int:
    """Adds a job and returns its id. `codec`: encodes the payload."""
    return ids(conn, *_call("enqueue", queue, Jsonb(encoded(codec, [payload], queue)[0]), "jsonb", options))[0]


def enqueue_many(
    conn: Connection[Any],
    queue: str,
    payloads: Iterable[Any],
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> List[int]:
    """Adds one job for each payload, all with the same options, and returns their ids in the order of the payloads."""
    content = list(map(Jsonb, encoded(codec, payloads, queue)))
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
    content = Jsonb((await encoded_async(codec, [payload], queue))[0])
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
    content = list(map(Jsonb, await encoded_async(codec, payloads, queue)))
    return await ids_async(conn, *_call("enqueue_many", queue, content, "jsonb[]", options))


def _call(function: str, queue: str, content: Any, cast: str, options: Mapping[str, Any]) -> Tuple[str, List[Any]]:
    text, values = arguments(function, options)
    return f"SELECT * FROM queue.{function}(%s, %s::{cast}{text})", [queue, content, *values]


def arguments(
    function: str, options: Mapping[str, Any], known: Mapping[str, Any] = Options.__annotations__
) -> Tuple[str, List[Any]]:
    """Returns the given options as named arguments, with the caller's trace context in the headers."""
    unknown = options.keys() - known.keys()
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"delay", "unique_for", "lease"}:
        given[name] = interval(given[name])
    if "after" in given:
        given["after"] = list(given["after"])
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
