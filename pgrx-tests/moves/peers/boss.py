"""pg-boss."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="pg-boss",
    script="peers/scripts/pgboss.js",
    page="docs/coming-from/libraries.md",
    heading="pg-boss",
    living="SELECT id, data ->> 'label' FROM pgboss.job WHERE state < 'completed'",
    stays={
        "running": "runs",
        "one running": "runs",
        "one behind": "runs",
        "strict behind": "failed",
        "parent": "flow",
        "child": "flow",
    },
)
CASES = [Case(PEER.name, PEER.check)]
