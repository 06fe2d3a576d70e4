"""The producers' parts that only Python has: types of options and rows, asyncio. The rest is in clients/conformance."""

import asyncio
from datetime import datetime, timedelta, timezone

import psycopg
from conftest import one
from psycopg.rows import dict_row

from pg_queue import Task, enqueue, enqueue_async, enqueue_flow_async, enqueue_many, enqueue_many_async
from pg_queue import publish_async
from pg_queue.checks import interval


def test_options_take_datetime_and_timedelta(conn):
    at = datetime(2096, 10, 2, 7, 6, 40, tzinfo=timezone.utc)
    job = enqueue(conn, "a", run_at=at, lease=timedelta(minutes=2), unique_key="k", unique_for=timedelta(hours=1),
        on_duplicate="replace", version=at)
    assert one(conn, "SELECT run_at FROM queue.job(%s)", job) == at
    conn.execute("SELECT queue.reschedule(%s, now())", [job])
    lease = "SELECT lease_expires_at - clock_timestamp() FROM queue.claim('a')"
    assert timedelta(minutes=1) < one(conn, lease) <= timedelta(minutes=2)
    # Postgres counts a day by the calendar, in which it may have 23 hours.
    for delay in timedelta(hours=24), 86_400:
        assert interval(delay) == "86400000000 microseconds"
    job = enqueue(conn, "a", delay=timedelta(seconds=0.5))
    assert one(conn, "SELECT run_at - enqueued_at FROM queue.job(%s)", job) == timedelta(seconds=0.5)


def test_any_row_factory_of_the_connection_works(conn, conninfo):
    ids = enqueue_many(conn, "a", ({"n": n} for n in range(3)), priority=2)
    assert [one(conn, "SELECT payload FROM queue.job(%s)", job)["n"] for job in ids] == [0, 1, 2]
    with psycopg.connect(conninfo, row_factory=dict_row) as other:
        assert isinstance(enqueue(other, "a"), int)


def test_the_functions_for_asyncio_enqueue_the_same_jobs(conn, conninfo):
    conn.execute("SELECT queue.create_topic('orders'), queue.bind('orders', 'loop')")
    task = Task("only", lease=timedelta(minutes=2), delay=60, run_at=None)

    async def produce():
        async with await psycopg.AsyncConnection.connect(conninfo, row_factory=dict_row) as producer:
            jobs = [await enqueue_async(producer, "a", {"n": 1}), *await enqueue_many_async(producer, "a", [{}, {}])]
            jobs += (await publish_async(producer, "orders", {}, "order.paid")).values()
            return [*jobs, await enqueue_flow_async(producer, "b", [task], runs=True, fail_fast=True)]

    try:
        states = [one(conn, "SELECT state FROM queue.job(%s)", job) for job in asyncio.run(produce())]
        assert states == ["ready"] * 4 + ["held"]
        assert one(conn, "SELECT state FROM queue.jobs WHERE task = 'only'") == "scheduled"
    finally:
        conn.execute("SELECT queue.drop('orders', force => true)")
