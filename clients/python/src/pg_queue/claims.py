"""The statement of a worker's claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Tuple

from .job import COLUMNS
from .checks import interval

if TYPE_CHECKING:
    from .worker import Worker

CLAIM = f"""
    SELECT {COLUMNS}, extract(epoch FROM lease_expires_at - clock_timestamp())::float8
    FROM queue.claim_any(%s::text[], max_jobs => %s, wait => %s, lease => %s::interval, stage => %s::text, worker => %s,
        disconnect => %s::interval, completed => %s::bigint[]"""


def claim(worker: Worker, room: int, sleeps: bool, linger: float, completed: List[int]) -> Tuple[str, List[Any]]:
    """Returns the statement of a claim for up to `room` jobs, and its parameters."""
    wait = worker.wait if sleeps else 0.0
    sql = f"{CLAIM})"
    more: List[Any] = []
    if linger:
        # A full batch is not kept waiting for more jobs. A call that lingers has to wait.
        room, wait = min(room, worker.collected() or 1), max(wait, min(worker.wait, 0.001))
        sql, more = f"{CLAIM}, linger => %s)", [interval(linger)]
    parameters = [worker.queues(), room, interval(wait), interval(worker.lease), worker.stage]
    return sql, [*parameters, worker.name, interval(worker.disconnect), completed, *more]
