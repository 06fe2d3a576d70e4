"""BullMQ on PostgreSQL."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="bullmq",
    script="peers/scripts/bullmq.js",
    page="docs/coming-from/brokers.md",
    heading="Move the waiting jobs of BullMQ on PostgreSQL",
    living="SELECT queue || ':' || id, data ->> 'label' FROM bullmq.job WHERE state NOT IN ('completed', 'failed')",
    stays={
        "running": "runs",
        "parent": "flow",
        "child": "flow",
        "scheduled": "job scheduler",
        "throttled 2": "an earlier job has its unique key",
        "long key": "unique_key must have at most",
        "many attempts": "max_attempts",
    },
)
CASES = [Case(PEER.name, PEER.check)]
