"""pg-boss, of two versions: the tables differ."""

from dataclasses import replace

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="pg-boss",
    script="peers/scripts/pgboss.js",
    page="docs/coming-from/libraries.md",
    heading="pg-boss",
    living="SELECT name || ':' || id, data ->> 'label' FROM pgboss.job WHERE state < 'completed'",
    stays={
        "running": "runs",
        "one running": "runs",
        "twin running": "runs",
        "least priority": "priority",
        "one behind": "its lock runs or stays",
        "strict behind": "its lock runs or stays",
        "parent": "flow",
        "child": "flow",
    },
)
# 12.27 fetches a job whose key is taken and fails at the unique index. So it never reaches the keys behind it.
STUCK = "12.27 runs nothing behind a key whose job runs or has failed"
OLD = replace(
    PEER,
    name="pg-boss 12.27",
    script="peers/scripts/pgboss_12_27.js",
    differs={
        "order one, lock one free": STUCK,
        "order one, lock one none": STUCK,
        "order strict, lock strict a": STUCK,
    },
)
CASES = [Case(peer.name, peer.check) for peer in (PEER, OLD)]
