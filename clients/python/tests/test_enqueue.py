"""Producers: in the caller's own transaction, with every option."""

import asyncio
from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from conftest import one
from psycopg.rows import dict_row

from pg_queue import enqueue, enqueue_async, enqueue_many, enqueue_many_async, publish, publish_async


def test_a_job_exists_if_and_only_if_the_transaction_commits(conn, conninfo):
    with psycopg.connect(conninfo) as producer:
        job = enqueue(producer, "a", {"n": 1})
        assert conn.execute("SELECT FROM queue.job(%s)", [job]).fetchone() is None
        producer.commit()
        assert one(conn, "SELECT payload FROM queue.job(%s)", job) == {"n": 1}
        job = enqueue(producer, "a", {"n": 2})
        producer.rollback()
    assert conn.execute("SELECT FROM queue.job(%s)", [job]).fetchone() is None


def test_every_option_arrives(conn):
    conn.execute("SELECT queue.create('staged', stages => '{x, y}')")
    now = datetime.now(timezone.utc)
    job = enqueue(
        conn,
        "staged",
        ["any", {"json": None}],
        priority=70000,
        run_at=now + timedelta(hours=1),
        unique_key="k",
        on_duplicate="replace",
        version=now,
        unique_for=60,
        group_key="g",
        stage="y",
        max_attempts=3,
        lease=timedelta(minutes=2),
        headers={"h": 1},
    )
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("SELECT * FROM queue.job(%s)", [job]).fetchone()
    assert row["payload"] == ["any", {"json": None}] and row["headers"] == {"h": 1}
    assert (row["priority"], row["run_at"], row["stage"]) == (70000, now + timedelta(hours=1), "y")
    assert (row["unique_key"], row["group_key"], row["max_attempts"]) == ("k", "g", 3)
    assert enqueue(conn, "staged", unique_key="k", version=now, on_duplicate="replace") == job
    assert enqueue(conn, "staged", unique_key="k") == job
    with pytest.raises(psycopg.errors.UniqueViolation):
        enqueue(conn, "staged", unique_key="k", on_duplicate="error")
    conn.execute("SELECT queue.reschedule(%s, now())", [job])
    lease = "SELECT lease_expires_at - clock_timestamp() FROM queue.claim('staged')"
    assert timedelta(minutes=1) < one(conn, lease) <= timedelta(minutes=2)
    job = enqueue(conn, "a", delay=0.5)
    assert one(conn, "SELECT run_at - enqueued_at FROM queue.job(%s)", job) == timedelta(seconds=0.5)
    assert one(conn, "SELECT payload FROM queue.job(%s)", enqueue(conn, "a")) == {}
    assert one(conn, "SELECT payload = 'null' FROM queue.job(%s)", enqueue(conn, "a", None))


def test_a_misspelt_option_is_an_error(conn):
    with pytest.raises(TypeError, match="prio"):
        enqueue(conn, "a", {}, prio=1)
    with pytest.raises(psycopg.errors.UndefinedObject):
        enqueue(conn, "nope")


def test_many_whatever_rows_the_connection_makes(conn, conninfo):
    ids = enqueue_many(conn, "a", ({"n": n} for n in range(3)), priority=2)
    assert len(ids) == 3 and ids == sorted(ids)
    assert [one(conn, "SELECT payload FROM queue.job(%s)", job)["n"] for job in ids] == [0, 1, 2]
    assert enqueue_many(conn, "a", []) == []
    with psycopg.connect(conninfo, row_factory=dict_row) as other:
        assert isinstance(enqueue(other, "a"), int)


def test_asyncio(conn, conninfo):
    async def produce():
        async with await psycopg.AsyncConnection.connect(conninfo) as producer:
            return [await enqueue_async(producer, "a", {"n": 1}), *await enqueue_many_async(producer, "a", [{}, {}])]

    assert [one(conn, "SELECT state FROM queue.job(%s)", job) for job in asyncio.run(produce())] == ["ready"] * 3


def test_an_event_is_a_job_in_each_queue_that_is_bound(conn, conninfo):
    conn.execute("SELECT queue.create_topic('orders'), queue.bind('orders', 'a'), queue.bind('orders', 'loop', 'order.*')")
    try:
        with psycopg.connect(conninfo, row_factory=dict_row) as producer:
            jobs = publish(producer, "orders", {"n": 1}, "order.placed", priority=4, headers={"h": 1}, delay=timedelta(hours=1))
            assert sorted(jobs) == ["a", "loop"]
            assert conn.execute("SELECT FROM queue.job(%s)", [jobs["a"]]).fetchone() is None
            producer.commit()
            for job in jobs.values():
                row = conn.execute("SELECT payload, priority, state, headers FROM queue.job(%s)", [job]).fetchone()
                assert row[:3] == ({"n": 1}, 4, "scheduled") and row[3]["h"] == 1
                assert (row[3]["event"]["topic"], row[3]["event"]["key"]) == ("orders", "order.placed")
            publish(producer, "orders", None)
            producer.rollback()
        assert list(publish(conn, "orders", unique_key="k")) == ["a"]
        conn.execute("SELECT queue.unbind('orders', 'a')")
        assert publish(conn, "orders") == {}
        with pytest.raises(psycopg.errors.NoDataFound):
            publish(conn, "orders", mandatory=True)
        with pytest.raises(TypeError, match="stage"):
            publish(conn, "orders", stage="x")

        async def produce():
            async with await psycopg.AsyncConnection.connect(conninfo) as producer:
                return await publish_async(producer, "orders", {}, "order.paid")

        assert list(asyncio.run(produce())) == ["loop"]
    finally:
        conn.execute("SELECT queue.drop('orders', force => true)")
