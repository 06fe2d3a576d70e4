"""absurd."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="absurd",
    script="peers/scripts/absurd_jobs.py",
    page="docs/coming-from/durable.md",
    heading="Move the waiting tasks of absurd",
    living="""SELECT task_id, params ->> 'label' FROM absurd.t_default
        WHERE state IN ('pending', 'sleeping', 'running')""",
    stays={
        "running": "runs",
        "asleep": "has begun",
        "step done": "has begun",
        "awaits": "has begun",
        "max delay": "cancellation",
        "max duration": "cancellation",
    },
)
CASES = [Case(PEER.name, PEER.check)]
