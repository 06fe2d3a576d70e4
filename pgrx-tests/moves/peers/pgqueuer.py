"""pgqueuer."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="pgqueuer",
    script="peers/scripts/pgqueuer_jobs.py",
    page="docs/coming-from/libraries.md",
    heading="pgqueuer",
    living="SELECT id, convert_from(payload, 'UTF8') FROM pgqueuer WHERE status IN ('queued', 'picked')",
    stays={"running": "runs"},
)
CASES = [Case(PEER.name, PEER.check)]
