"""DBOS."""

from peers.peer import Peer
from place import Case

PEER = Peer(
    name="dbos",
    script="peers/scripts/dbos_jobs.py",
    page="docs/coming-from/durable.md",
    heading="Move the waiting workflows of DBOS",
    living="""SELECT workflow_uuid, CASE WHEN serialization = 'portable_json'
            THEN i.inputs::jsonb #>> '{namedArgs,label}'
            WHEN name = 'long' THEN 'running' ELSE 'pickled' END
        FROM dbos.workflow_status JOIN dbos.workflow_input AS i USING (workflow_uuid)
        WHERE status IN ('ENQUEUED', 'DELAYED', 'PENDING')""",
    stays={
        "running": "has begun",
        "pickled": "no JSON",
        "timed": "timeout",
        "deadline": "timeout",
        "told": "messages",
        "two rates": "does not exist",
    },
    differs={"runs fail fresh": "an exception ends a workflow of DBOS; here the job is retried"},
)
CASES = [Case(PEER.name, PEER.check)]
