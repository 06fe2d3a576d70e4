"""A worker as a process of its own, which tests stop and kill. Arguments: connection string, options as JSON."""

import json
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from pg_queue import Worker  # noqa: E402

logging.basicConfig(level=logging.INFO)
worker = Worker(sys.argv[1], **json.loads(sys.argv[2]))


@worker.handler("a", "b")
def handle(job):
    job.save_progress("begun")
    end = time.monotonic() + job.payload.get("seconds", 0)
    while time.monotonic() < end:
        if not job.payload.get("deaf"):
            job.check()
        time.sleep(0.01)
    with job.transaction() as tx:
        tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])


@worker.handler("loop")
async def on_loop(job):
    await job.save_progress("begun")
    time.sleep(job.payload["seconds"])  # in the way of all else


worker.run()
