"""The helpers for the tests of applications."""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from conftest import one

from pg_queue import Worker, enqueue, testing


def test_a_transaction_sees_what_it_has_enqueued_and_rolls_back(conninfo, pg_queue_transaction):
    enqueue(pg_queue_transaction, "a", {"to": 7, "kind": "digest"}, priority=5)
    found = testing.assert_enqueued(pg_queue_transaction, "a", {"to": 7}, count=1, priority=5)
    assert found[0]["payload"] == {"to": 7, "kind": "digest"}
    testing.refute_enqueued(pg_queue_transaction, "a", {"to": 8})
    testing.refute_enqueued(pg_queue_transaction, "a", {"to": 7}, priority=6)
    with pytest.raises(AssertionError, match="1 found.*digest"):
        testing.assert_enqueued(pg_queue_transaction, "a", {"to": 7}, count=2)
    with pytest.raises(TypeError, match="prio"):
        testing.assert_enqueued(pg_queue_transaction, "a", prio=5)


def test_the_transaction_of_the_test_before_was_rolled_back(pg_queue_transaction):
    with pytest.raises(AssertionError, match="It has: none"):
        testing.assert_enqueued(pg_queue_transaction, "a")


def test_advance_time_makes_jobs_ready(conn, conninfo):
    soon, late = enqueue(conn, "a", delay=3600), enqueue(conn, "a", delay=7200)
    assert testing.advance_time(conn, 3600) == [soon]
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: None)
    assert [event.job_id for event in worker.drain() if event.kind == "completed"] == [soon]
    assert testing.advance_time(conn, 3600, queue="b") == []
    assert testing.advance_time(conn, 3600) == [late]


def test_a_test_can_have_a_database_of_its_own(pg_queue_database, conninfo):
    assert pg_queue_database != conninfo
    with psycopg.connect(pg_queue_database, autocommit=True) as conn:
        job_id = enqueue(conn, "a")
        worker = Worker(pg_queue_database)
        worker.handler("a")(lambda job: None)
        worker.drain()
        assert one(conn, "SELECT state FROM queue.job(%s)", job_id) == "completed"


def test_a_server_ends_with_its_program():
    program = "import os, pg_queue.testing as t; s = t.Server(); print(s.dir, flush=True); os.kill(os.getpid(), 9)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -9
    folder, end = Path(ended.stdout.strip()), time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < end, f"{folder} is still there"
        time.sleep(0.05)


def test_a_server_can_be_closed_twice_and_beside_a_forked_process():
    server = testing.Server()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[60])
    child.start()
    try:
        begun = time.monotonic()
        server.close()
        assert time.monotonic() - begun < 20 and not server.dir.exists()
        server.close()
    finally:
        child.terminate()
