"""The worker of compose.yaml. Connects as PGHOST, … say."""

import logging

from pg_queue import Job, Worker

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
worker = Worker(stall_timeout=60)


@worker.handler("greetings")
def greet(job: Job) -> None:
    with job.transaction() as conn:
        conn.execute("INSERT INTO greeting VALUES (%s, %s)", [job.job_id, f"Hello, {job.payload['name']}!"])


worker.run()
