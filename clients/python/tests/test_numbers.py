"""JSON that Python cannot read fails its job and no other."""

import json

import psycopg.types.json
import pytest
from conftest import one, running, state, wait_state

from pg_queue import Worker, enqueue


@pytest.mark.parametrize("batched", [False, True])
def test_unreadable_json_fails_its_job_and_no_other(conn, conninfo, batched):
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


def test_an_error_of_the_json_loader_of_the_application_fails_its_job_and_no_other(conn, conninfo):
    conn.execute("SELECT queue.alter('a', max_attempts => 1)")
    jobs = [enqueue(conn, "a", {"amount": 1}), enqueue(conn, "a", {}), enqueue(conn, "a", {"amount": 2})]
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: None)
    psycopg.types.json.set_json_loads(lambda data: json.loads(data, object_hook=lambda found: found["amount"]))
    try:
        worker.drain()
    finally:
        psycopg.types.json.set_json_loads(json.loads)
    assert [state(conn, job) for job in jobs] == ["completed", "dead", "completed"]
    assert "amount" in one(conn, "SELECT error FROM queue.job(%s)", jobs[1])
