"""Flows: jobs that wait for any number of other jobs, their members. They are added in the caller's own transaction, as
all jobs are.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from . import tracing
from .codec import Codec, encoded, encoded_async
from .enqueue import Options, OwnOptions, arguments, ids, ids_async

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Task:
    """A member of a flow, with its name in the flow. `after`: the names of the tasks that it waits for.

    `queue`: the default is the flow's queue. The options are those of `enqueue`.
    """

    def __init__(
        self,
        name: str,
        payload: Any = {},
        *,
        queue: Optional[str] = None,
        after: Iterable[str] = (),
        **options: Unpack[OwnOptions],
    ) -> None:
        fields: Dict[str, Any] = {name: _text(name, value) for name, value in options.items() if value is not None}
        headers = tracing.inject(fields.get("headers"))
        if headers is not None:
            fields["headers"] = headers
        if queue is not None:
            fields["queue"] = queue
        self.fields = {**fields, "task": name, "payload": payload, "after": list(after)}


def enqueue_flow(
    conn: Connection[Any],
    queue: str,
    tasks: Iterable[Task] = (),
    payload: Any = {},
    *,
    runs: bool = False,
    open: bool = False,
    fail_fast: bool = False,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> int:
    """Adds a flow and returns its id, which is a job id.

    `runs`: when its members have ended, the flow goes to its queue, and a worker runs it. `open`: it waits for `seal`,
    too. `fail_fast`: the first dead member cancels the others, and the flow is dead. `codec`: encodes the payloads of
    the flow and of its tasks.
    """
    fields = [dict(task.fields) for task in tasks]
    content = encoded(codec, [payload], queue)[0]
    for one in fields:
        one["payload"] = encoded(codec, [one["payload"]], one.get("queue", queue))[0]
    return ids(conn, *_call(queue, fields, content, runs, open, fail_fast, options))[0]


async def enqueue_flow_async(
    conn: AsyncConnection[Any],
    queue: str,
    tasks: Iterable[Task] = (),
    payload: Any = {},
    *,
    runs: bool = False,
    open: bool = False,
    fail_fast: bool = False,
    codec: Optional[Codec] = None,
    **options: Unpack[Options],
) -> int:
    """`enqueue_flow` for an asyncio connection."""
    fields = [dict(task.fields) for task in tasks]
    content = (await encoded_async(codec, [payload], queue))[0]
    for one in fields:
        one["payload"] = (await encoded_async(codec, [one["payload"]], one.get("queue", queue)))[0]
    return (await ids_async(conn, *_call(queue, fields, content, runs, open, fail_fast, options)))[0]


def seal(conn: Connection[Any], flow: int) -> None:
    """Lets an open flow end when its members have ended."""
    conn.execute("SELECT queue.seal(%s)", [flow])


def resolve(conn: Connection[Any], flow: int, result: Any = None) -> None:
    """Completes an open flow without members: the event that it stands for has occurred. The result is stored as it is:
    encode it with the codec before.
    """
    conn.execute("SELECT queue.resolve(%s, %s)", [flow, Jsonb(result)])


def reject(conn: Connection[Any], flow: int, error: str) -> None:
    """Ends an open flow without members as dead: the event that it stands for has failed."""
    conn.execute("SELECT queue.reject(%s, %s)", [flow, error])


def _call(
    queue: str,
    tasks: List[Dict[str, Any]],
    payload: Any,
    runs: bool,
    open: bool,
    fail_fast: bool,
    options: Mapping[str, Any],
) -> Tuple[str, List[Any]]:
    text, values = arguments("enqueue_flow", options)
    sql = f"SELECT queue.enqueue_flow(%s, %s, %s, runs => %s, open => %s, fail_fast => %s{text})"
    return sql, [queue, Jsonb(tasks), Jsonb(payload), runs, open, fail_fast, *values]


_DURATIONS = {"delay", "unique_for", "lease"}


def _text(name: str, value: Any) -> Any:
    """Returns an option as it is written in JSON."""
    if name in _DURATIONS:
        return f"{value.total_seconds() if isinstance(value, timedelta) else value} seconds"
    return value.isoformat() if isinstance(value, datetime) else value
