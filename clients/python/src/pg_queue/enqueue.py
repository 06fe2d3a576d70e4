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

if TYPE_CHECKING:
    from typing_extensions import Unpack


# classes of options: made by `make generate`
class SharedOptions(TypedDict, total=False):
    """What all of the following have. None means the default, as if the option were left out."""

    #: A job with a smaller priority runs first.
    priority: Optional[int]
    #: The job does not run before this time has passed.
    delay: Optional[Duration]
    #: The job does not run before this time, which may be past. Not together with `delay`.
    run_at: Optional[datetime]
    #: A queue has at most one living job with this key.
    unique_key: Optional[str]
    #: What happens if a living job has the key: the call does nothing, the job gets its contents, the job runs
    #: once more, or the call is an error.
    on_duplicate: Optional[Literal["skip", "replace", "rerun", "error"]]
    #: A call whose version is not larger than the known version of the key does nothing, and returns the job's
    #: id.
    version: Optional[datetime]
    #: The key stays taken for this time from now, even if the job has ended.
    unique_for: Optional[Duration]
    #: The group in which the queue's limits per group count the job.
    group_key: Optional[str]
    #: An object that is kept beside the payload, for instance with a trace id.
    headers: Any
    #: What the job waits for, of the jobs in `after`: that all have completed, that one has completed, that one
    #: is dead, that all have ended in any way, or that they have not ended by `run_at` or the end of `delay`.
    upon: Optional[Literal["completed", "any", "failed", "ended", "overdue"]]
    #: If no worker has claimed the job before this time, the job expires.
    start_by: Optional[datetime]
    #: If no worker has claimed the job within this time, which begins at `run_at` or at the end of `delay`, the
    #: job expires. Not together with `start_by`.
    start_within: Optional[Duration]


class Options(SharedOptions, total=False):
    """The options of `queue.enqueue`."""

    #: The stage in which a new job begins. Another run of a job under its key begins in the first stage.
    stage: Optional[str]
    #: After this many counted attempts the job is dead.
    max_attempts: Optional[int]
    #: How long a claim of the job lasts without a heartbeat.
    lease: Optional[Duration]
    #: The job is held until these jobs have ended as `upon` says.
    after: Optional[Iterable[int]]
    #: The job becomes a member of this flow, which waits for it.
    flow: Optional[int]
    #: The job's name in its flow.
    task: Optional[str]
    #: Calls under the key put the waiting job off at most this long after the first of them.
    max_delay: Optional[Duration]


class FlowOptions(SharedOptions, total=False):
    """The options of `queue.enqueue_flow`."""

    #: The stage in which a new job begins. Another run of a job under its key begins in the first stage.
    stage: Optional[str]
    #: After this many counted attempts the job is dead.
    max_attempts: Optional[int]
    #: How long a claim of the job lasts without a heartbeat.
    lease: Optional[Duration]
    #: The job is held until these jobs have ended as `upon` says.
    after: Optional[Iterable[int]]
    #: The job becomes a member of this flow, which waits for it.
    flow: Optional[int]
    #: The job's name in its flow.
    task: Optional[str]


class TaskOptions(SharedOptions, total=False):
    """The options of a task."""

    #: The stage in which a new job begins. Another run of a job under its key begins in the first stage.
    stage: Optional[str]
    #: After this many counted attempts the job is dead.
    max_attempts: Optional[int]
    #: How long a claim of the job lasts without a heartbeat.
    lease: Optional[Duration]


class EventOptions(SharedOptions, total=False):
    """The options of `queue.publish`."""

    #: The job is held until these jobs have ended as `upon` says.
    after: Optional[Iterable[int]]
    #: The job becomes a member of this flow, which waits for it.
    flow: Optional[int]
    #: The job's name in its flow.
    task: Optional[str]
    #: Calls under the key put the waiting job off at most this long after the first of them.
    max_delay: Optional[Duration]
# end of classes of options


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
