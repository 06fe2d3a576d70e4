"""pgmq."""

from peers.peer import Peer
from place import Case

QUEUES = ("emails", "myqueue", "fast", "fifo")
PEER = Peer(
    name="pgmq",
    script="peers/scripts/pgmq_jobs.py",
    page="docs/coming-from/pgmq.md",
    heading="Move the waiting messages",
    living=" UNION ALL ".join(f"SELECT '{one}:' || msg_id, message ->> 'label' FROM pgmq.q_{one}" for one in QUEUES),
    repeated=1,
    stays={
        "running": "being read",
        "head in flight": "being read",
        "behind": "its lock runs or stays",
        "strange headers": "no object",
    },
    says=["ghost,0,its table is gone"],
    differs={"lock none": "read_grouped takes messages without the header as one group; here they are in none"},
)
CASES = [Case(PEER.name, PEER.check)]
