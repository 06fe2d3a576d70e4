"""procrastinate."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="procrastinate",
    script="peers/scripts/procrastinate_jobs.py",
    page="docs/coming-from/libraries.md",
    heading="procrastinate",
    living="SELECT id, args ->> 'label' FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    hasten="UPDATE procrastinate_jobs SET scheduled_at = now() WHERE status = 'todo' AND attempts > 0",
    stays={
        "running": "runs",
        "lock running": "runs",
        "lock behind": "its lock runs or stays",
        "behind a delay, first": "delayed",
        "behind a delay": "delayed",
        "two queues 1": "two queues",
        "two queues 2": "two queues",
    },
    differs={"runs fail retried": "the number of retries is in the code of the task; here the queue's counts"},
)
CASES = [Case(PEER.name, PEER.check)]
