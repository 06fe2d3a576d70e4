"""absurd."""

from peers.peer import Peer
from place import Case

LIVING = "SELECT task_id, params ->> 'label' FROM absurd.{} WHERE state IN ('pending', 'sleeping', 'running')"
PEER = Peer(
    name="absurd",
    script="peers/scripts/absurd_jobs.py",
    page="docs/coming-from/durable.md",
    heading="Move the waiting tasks of absurd",
    living=" UNION ALL ".join(LIVING.format(one) for one in ("t_task", '"t_Task"')),
    repeated=1,
    stays={
        "running": "runs",
        "asleep": "has begun",
        "step done": "has begun",
        "awaits": "has begun",
        "max duration": "max_duration",
    },
)
CASES = [Case(PEER.name, PEER.check)]
