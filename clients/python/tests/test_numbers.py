"""What Python does not read fails its job and no other."""

import pytest
from conftest import one, running, wait_state

from pg_queue import Worker, enqueue


@pytest.mark.parametrize("batched", [False, True])
def test_what_cannot_be_read_fails_its_job_and_no_other(conn, conninfo, batched):
    conn.execute("SELECT queue.alter('a', max_attempts => 1)")
    worker = Worker(conninfo)
    if batched:

        @worker.handler("a", batch=10)
        def handle_all(jobs):
            return None

    else:

        @worker.handler("a")
        def handle(job):
            return None

    numbers = "SELECT queue.enqueue('a', ('{\"n\": 1' || repeat('0', 5000) || '}')::jsonb)"
    jobs = [enqueue(conn, "a", 1), one(conn, numbers), enqueue(conn, "a", 2)]
    with running(worker):
        for job, state in zip(jobs, ["completed", "dead", "completed"]):
            wait_state(conn, job, state)
    assert "digits" in one(conn, "SELECT error FROM queue.job(%s)", jobs[1])
