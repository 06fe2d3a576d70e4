"""Flows: jobs that wait for any number of other jobs, their members. They are added in the caller's own transaction, as
all jobs are.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from . import checks, tracing
from .codec import Codec, encoded, encoded_async
from .enqueue import FlowOptions, TaskOptions, arguments, ids, ids_async

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
        **options: Unpack[TaskOptions],
    ) -> None:
        unknown = options.keys() - TaskOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"a task has no option {min(unknown)!r}")
        fields: Dict[str, Any] = {option: _text(value) for option, value in checks.options(options).items()}
        headers = tracing.inject(fields.get("headers"))
        if headers is not None:
            fields["headers"] = headers
        if queue is not None:
            fields["queue"] = checks.text(queue, "queue")
        if isinstance(after, str):
            raise TypeError(f"after is a list of names of tasks, not {after!r}: write [{after!r}]")
        fields.update(task=checks.text(name, "a task's name"), payload=checks.payload(payload), after=list(after))
        self.fields = fields


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
    **options: Unpack[FlowOptions],
) -> int:
    """Adds a flow and returns its id, which is a job id.

    `runs`: when its members have ended, the flow goes to its queue, and a worker runs it. `open`: it waits for `seal`,
    too. `fail_fast`: the first dead member cancels the others, and the flow is dead. `codec`: encodes the payloads of
    the flow and of its tasks.
    """
    checks.connection(conn, Connection)
    fields = _fields(tasks)
    content = encoded(codec, [checks.payload(payload)], queue)[0]
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
    **options: Unpack[FlowOptions],
) -> int:
    """`enqueue_flow` for an asyncio connection."""
    checks.connection(conn, AsyncConnection)
    fields = _fields(tasks)
    content = (await encoded_async(codec, [checks.payload(payload)], queue))[0]
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
    text, values = arguments("enqueue_flow", options, FlowOptions.__annotations__)
    sql = f"SELECT queue.enqueue_flow(%s, %s, %s, runs => %s, open => %s, fail_fast => %s{text})"
    return sql, [queue, Jsonb(tasks), Jsonb(payload), runs, open, fail_fast, *values]


def _fields(tasks: Iterable[Task]) -> List[Dict[str, Any]]:
    found = list(tasks)
    wrong = next((task for task in found if not isinstance(task, Task)), None)
    if wrong is not None:
        raise checks.refuse("each of tasks", "a pg_queue.Task", wrong)
    return [dict(task.fields) for task in found]


def _text(value: Any) -> Any:
    """Returns an option as it is written in JSON."""
    return value.isoformat() if isinstance(value, datetime) else value
