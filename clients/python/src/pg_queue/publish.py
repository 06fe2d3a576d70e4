"""Publishes events, on the caller's own connection and in its transaction: each adds a job to each queue with a
matching binding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Tuple

from psycopg import AsyncConnection, Connection
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from . import checks
from .checks import Duration
from .codec import Codec, encoded, encoded_async
from .enqueue import EventOptions, arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PublishOptions(EventOptions, total=False):
    """The options of `queue.publish`. None means the default. Bindings and queues determine a job's other options.
    """

    mandatory: Optional[bool]


def publish(
    conn: Connection[Any],
    topic: str,
    payload: Any = {},
    key: str = "",
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[PublishOptions],
) -> Dict[str, int]:
    """Publishes an event. Returns the ids of its jobs by queue. With `mandatory`, it is an error (P0002) if there are
    none. `codec`: encodes the payload, under the name of the topic.
    """
    checks.connection(conn, Connection)
    content = encoded(codec, [checks.payload(payload)], topic)[0]
    with conn.cursor(row_factory=tuple_row) as cursor:
        return {queue: job for queue, job in cursor.execute(*_call(topic, content, key, options)).fetchall()}


async def publish_async(
    conn: AsyncConnection[Any],
    topic: str,
    payload: Any = {},
    key: str = "",
    *,
    codec: Optional[Codec] = None,
    **options: Unpack[PublishOptions],
) -> Dict[str, int]:
    """`publish` for an asyncio connection."""
    checks.connection(conn, AsyncConnection)
    content = (await encoded_async(codec, [checks.payload(payload)], topic))[0]
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(*_call(topic, content, key, options))
        return {queue: job for queue, job in await cursor.fetchall()}


def _call(topic: str, payload: Any, key: str, options: Mapping[str, Any]) -> Tuple[str, List[Any]]:
    text, values = arguments("publish", options, PublishOptions.__annotations__)
    values = [checks.text(topic, "topic"), Jsonb(payload), checks.text(key, "key"), *values]
    return f"SELECT queue_name, job_id FROM queue.publish(%s, %s, %s{text})", values
