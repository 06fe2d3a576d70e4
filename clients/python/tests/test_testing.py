"""The helpers for the tests of applications."""

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


def test_time_passes_for_what_waits(conn, conninfo):
    soon, late = enqueue(conn, "a", delay=3600), enqueue(conn, "a", delay=7200)
    assert testing.advance_time(conn, 3600) == [soon]
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: None)
    assert [event.job_id for event in worker.drain() if event.kind == "completed"] == [soon]
    assert testing.advance_time(conn, 3600, queue="b") == []
    assert testing.advance_time(conn, 3600) == [late]


def test_a_database_of_its_own(pg_queue_database, conninfo):
    assert pg_queue_database != conninfo
    with psycopg.connect(pg_queue_database, autocommit=True) as conn:
        job_id = enqueue(conn, "a")
        worker = Worker(pg_queue_database)
        worker.handler("a")(lambda job: None)
        worker.drain()
        assert one(conn, "SELECT state FROM queue.job(%s)", job_id) == "completed"
