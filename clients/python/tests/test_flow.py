"""Jobs after jobs: flows, members, suspended jobs, steps; batches."""

import asyncio
import threading
from datetime import datetime, timedelta, timezone

import psycopg
import pytest
from conftest import one, roll_back_late, running, state, until, wait_state
from psycopg.conninfo import make_conninfo

from pg_queue import (
    Advance,
    Fatal,
    RetryIn,
    Snooze,
    Suspend,
    Task,
    Worker,
    enqueue,
    enqueue_flow,
    enqueue_flow_async,
    enqueue_many,
    enqueue_many_async,
    reject,
    resolve,
    seal,
)


def effect(tx, job):
    return tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])


def effects(conn):
    return conn.execute("SELECT job_id, attempt FROM effect ORDER BY 1, 2").fetchall()


def test_flows(conn, conninfo):
    at = datetime(2096, 10, 2, 7, 6, 40, tzinfo=timezone.utc)
    tasks = [Task("first", {"n": 1}), Task("second", queue="b", after=["first"], priority=4, run_at=at, lease=60)]
    flow = enqueue_flow(conn, "a", tasks, {"report": 9}, open=True, delay=timedelta(0))
    third = enqueue(conn, "a", flow=flow, task="third", after=[])
    rows = conn.execute("SELECT queue_name, task, state, priority, run_at FROM queue.jobs ORDER BY job_id").fetchall()
    assert rows[1][:4] == ("a", "first", "ready", 0) and rows[2] == ("b", "second", "held", 4, at)
    assert rows[3][:3] == ("a", "third", "ready") and third > flow
    seal(conn, flow)
    after = enqueue(conn, "a", after=[flow], upon="ended")
    assert state(conn, after) == "held"

    approved, refused = enqueue_flow(conn, "a", open=True), enqueue_flow(conn, "a", open=True)
    resolve(conn, approved, {"by": "ada"})
    reject(conn, refused, "no")
    wait_state(conn, approved, "completed")
    wait_state(conn, refused, "dead")

    async def produce():
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as db:
            return await enqueue_flow_async(db, "a", [Task("only")], runs=True, fail_fast=True)

    assert state(conn, asyncio.run(produce())) == "held"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_job_splits_itself_and_waits_for_its_members(conn, conninfo, kind):
    worker = Worker(conninfo)
    if kind == "def":

        @worker.handler("a")
        def split(job):
            if job.progress is None:
                with job.transaction() as tx:
                    enqueue_many(tx, "b", [1, 2, 3], flow=job.job_id)
                    job.suspend(tx, progress=True)
                return None
            return sum(found.result for found in job.inputs() if found.state == "completed" and found.queue == "b")
    else:

        @worker.handler("a")
        async def split(job):
            if job.progress is None:
                async with job.transaction() as tx:
                    await enqueue_many_async(tx, "b", [1, 2, 3], flow=job.job_id)
                    await job.suspend(tx, progress=True)
                return None
            return sum(found.result for found in await job.inputs())

    @worker.handler("b")
    async def double(job):
        return job.payload * 2

    job_id = enqueue(conn, "a")
    with running(worker):
        wait_state(conn, job_id, "completed")
    assert one(conn, "SELECT result FROM queue.job(%s)", job_id) == 12


def test_a_handler_returns_that_it_waits(conn, conninfo):
    worker, events = Worker(conninfo), []
    worker.on_event = events.append

    @worker.handler("a")
    def waits(job):
        return "on" if job.progress else Suspend(after=[other], progress="waited")

    worker.handler("b")(lambda job: None)
    other = enqueue(conn, "b", delay=0.2)
    jobs = [enqueue(conn, "a"), enqueue(conn, "a")]
    with running(worker):
        for job_id in jobs:
            wait_state(conn, job_id, "completed")
    assert [one(conn, "SELECT result FROM queue.job(%s)", job_id) for job_id in jobs] == ["on", "on"]
    assert sum(event.kind == "suspended" for event in events) == 2


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_step_is_done_once(conn, conninfo, kind):
    worker, charged = Worker(conninfo), []
    if kind == "def":

        @worker.handler("a")
        def pay(job):
            def charge(tx):
                charged.append(job.attempt)
                effect(tx, job)
                return None if job.payload else {"receipt": 7}

            receipt = job.step("charge", charge)
            if job.attempt == 1:
                raise RetryIn(0)
            return [receipt]
    else:

        @worker.handler("a")
        async def pay(job):
            async def charge(tx):
                charged.append(job.attempt)
                await effect(tx, job)
                return None if job.payload else {"receipt": 7}

            receipt = await job.step("charge", charge)
            if job.attempt == 1:
                raise RetryIn(0)
            return [receipt]

    with_receipt, without = enqueue(conn, "a"), enqueue(conn, "a", True)
    with running(worker):
        wait_state(conn, with_receipt, "completed")
        wait_state(conn, without, "completed")
    results = [one(conn, "SELECT result FROM queue.job(%s)", job_id) for job_id in (with_receipt, without)]
    assert results == [[{"receipt": 7}], [None]]
    assert charged == [1, 1] and effects(conn) == [(with_receipt, 1), (without, 1)]


def test_a_step_that_fails_leaves_nothing(conn, conninfo):
    worker = Worker(conninfo)

    @worker.handler("a")
    def pay(job):
        def charge(tx):
            effect(tx, job)
            if job.attempt == 1:
                raise RetryIn(0)

        job.step("charge", charge)

    job_id = enqueue(conn, "a")
    with running(worker):
        wait_state(conn, job_id, "completed")
    assert effects(conn) == [(job_id, 2)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_batches(conn, conninfo, kind):
    ids, sizes = enqueue_many(conn, "a", range(250)), []
    worker = Worker(conninfo, concurrency=100)
    if kind == "def":

        @worker.handler("a", batch=100)
        def handle(batch):
            sizes.append(len(batch))
            assert [job.payload for job in batch[:1]] == [batch[0].payload]
            with batch.transaction() as tx:
                for job in batch:
                    effect(tx, job)
    else:

        @worker.handler("a", batch=100)
        async def handle(batch):
            sizes.append(len(batch))
            async with batch.transaction() as tx:
                for job in batch:
                    await effect(tx, job)

    @worker.middleware
    def never(job, call):
        raise AssertionError("batches have none")

    events = worker.drain()
    assert sorted(event.job_id for event in events if event.kind == "completed") == ids
    assert effects(conn) == [(job_id, 1) for job_id in ids]
    assert sizes[0] == 100 and max(sizes) == 100 and sum(sizes) == 250


def test_each_of_a_batch_ends_in_its_own_way(conn, conninfo):
    conn.execute("SELECT queue.create('staged', stages => '{x, y}')")
    kinds = ["result", "none", "fatal", "retry", "snooze", "error", "unserialisable"]
    jobs = [enqueue(conn, "a", kind, max_attempts=20 if kind == "retry" else 1) for kind in kinds]
    staged = enqueue(conn, "staged")
    few = enqueue_many(conn, "b", range(2), max_attempts=1)
    worker = Worker(conninfo, concurrency=20)
    answers = {
        "result": {"a": 1},
        "none": None,
        "fatal": Fatal("never"),
        "retry": RetryIn(3600, "later"),
        "snooze": Snooze(3600),
        "error": ValueError("odd"),
        "unserialisable": {1},
    }

    @worker.handler("a", batch=20)
    def each(batch):
        return [answers[job.payload] for job in batch]

    @worker.handler("staged", batch=20)
    def steps(batch):
        return [Advance() if job.stage == "x" else None for job in batch]

    @worker.handler("b", batch=20)
    def forgets_one(batch):
        return [None] * (len(batch) - 1)

    worker.drain()
    states = ["completed", "completed", "dead", "retrying", "scheduled", "dead", "dead"]
    assert [state(conn, job_id) for job_id in jobs] == states
    assert one(conn, "SELECT error FROM queue.job(%s)", jobs[5]) == "ValueError: odd"
    assert state(conn, staged) == "completed"
    assert "must return" in one(conn, "SELECT error FROM queue.job(%s)", few[0])


def test_a_batch_gives_back_what_is_still_being_rolled_back(conn, conninfo):
    ids, begun, go = enqueue_many(conn, "a", range(3)), [], threading.Event()
    worker = Worker(make_conninfo(conninfo, application_name="batches"))

    @worker.handler("a", batch=10)
    def handle(batch):
        with batch.transaction() as tx:
            for job in batch:
                effect(tx, job)
            begun.append(batch[0].id)
            assert go.wait(20)

    with running(worker):
        until("it runs", lambda: begun)
        conn.execute("SELECT queue.cancel(%s, force => true)", [ids[1]])
        roll_back_late(conninfo, "batches", begun[0], go)
        wait_state(conn, ids[0], "completed")
        wait_state(conn, ids[2], "completed")
    assert effects(conn) == [(ids[0], 1), (ids[2], 1)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_batch_with_a_lost_job_is_done_by_none(conn, conninfo, kind):
    ids, worker, goes_on, begun = enqueue_many(conn, "a", range(3)), Worker(conninfo), [], []
    if kind == "def":

        @worker.handler("a", batch=10)
        def handle(batch):
            with batch.transaction() as tx:
                for job in batch:
                    effect(tx, job)
                begun.append(len(batch))
                until("it may go on", lambda: goes_on)
    else:

        @worker.handler("a", batch=10)
        async def handle(batch):
            async with batch.transaction() as tx:
                for job in batch:
                    await effect(tx, job)
                begun.append(len(batch))
                while not goes_on:
                    await asyncio.sleep(0.01)

    with running(worker):
        until("it runs", lambda: begun)
        conn.execute("SELECT queue.cancel(%s, force => true)", [ids[1]])
        goes_on.append(True)
        wait_state(conn, ids[0], "completed")
        wait_state(conn, ids[2], "completed")
    assert begun[0] == 3 and effects(conn) == [(ids[0], 1), (ids[2], 1)]
