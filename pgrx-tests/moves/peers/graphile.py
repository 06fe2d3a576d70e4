"""graphile-worker."""

from peers.peer import Peer
from place import Case

LABEL = '''substring(payload::text FROM '"label": ?"([^"]*)"')'''
PEER = Peer(
    name="graphile-worker",
    script="peers/scripts/graphile.js",
    page="docs/coming-from/libraries.md",
    heading="graphile-worker",
    living=f"""SELECT id, {LABEL} FROM graphile_worker._private_jobs
        WHERE attempts < max_attempts OR locked_at IS NOT NULL""",
    hasten="UPDATE graphile_worker._private_jobs SET run_at = now() WHERE attempts > 0 AND attempts < max_attempts",
    stays={
        "running": "runs",
        "serial running": "runs",
        "serial behind": "its lock runs or stays",
        "nul": "no jsonb",
        "infinite": "run_at must be finite",
        "huge number": "no jsonb",
    },
)
CASES = [Case(PEER.name, PEER.check)]
