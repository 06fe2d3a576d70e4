"""What a worker does with jobs and their ends, on a server that stays up."""

import asyncio
import logging
import threading
import time

import psycopg
import pytest
from conftest import one, roll_back_late, running, state, until, wait_state
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pg_queue import Advance, Fatal, RetryIn, Snooze, Stopped, Worker, enqueue, enqueue_many
from pg_queue.pool import hosts


def counts(conn, queue="a"):
    return dict(conn.execute("SELECT state, count(*) FROM queue.jobs WHERE queue_name = %s GROUP BY 1", [queue]))


@pytest.mark.parametrize("prefetch", [0, 50])
def test_thousands_each_once_with_its_effect(conn, conninfo, prefetch):
    ids = enqueue_many(conn, "a", [{"n": n} for n in range(1000)])
    worker = Worker(conninfo, concurrency=8, prefetch=prefetch)

    @worker.handler("a")
    def handle(job):
        with job.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])

    completed = [event.job_id for event in worker.drain() if event.kind == "completed"]
    assert sorted(completed) == ids
    assert sorted(job for (job,) in conn.execute("SELECT job_id FROM effect")) == ids
    assert counts(conn) == {"completed": 1000}


def test_what_returns_nothing_is_completed_by_the_claims(conn, conninfo):
    ids = enqueue_many(conn, "a", [{"n": n} for n in range(3000)])
    worker = Worker(conninfo, concurrency=20, prefetch=100)
    seen = []

    @worker.handler("a")
    async def handle(job):
        seen.append(job.job_id)

    begun = one(conn, "SELECT pg_current_xact_id()::text::bigint")
    events = worker.drain()
    assert sorted(seen) == ids
    assert sorted(event.job_id for event in events if event.kind == "completed") == ids
    assert counts(conn) == {"completed": 3000}
    assert one(conn, "SELECT pg_current_xact_id()::text::bigint") - begun < 600, "transactions for 3000 jobs"


def test_how_attempts_end(conn, conninfo):
    conn.execute("SELECT queue.create('staged', stages => '{x, y}')")
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        kind = job.payload["kind"]
        if kind == "retry" and job.attempt == 1:
            raise RetryIn(3600, "later")
        if kind == "fatal":
            raise Fatal("never")
        if kind == "snooze":
            raise Snooze(3600)
        if kind == "error":
            raise ValueError("a\0b\udc80")
        return {"set": {1}} if kind == "unserialisable" else {"bad": "\0"} if kind == "refused" else {"kind": kind}

    @worker.handler("staged")
    async def steps(job):
        return Advance(payload={"from": job.stage}) if job.stage == "x" else None

    kinds = ["result", "retry", "fatal", "snooze", "error", "unserialisable", "refused"]
    jobs = {kind: enqueue(conn, "a", {"kind": kind}, max_attempts=1 if kind[-1] in "rd" else 20) for kind in kinds}
    staged = enqueue(conn, "staged")
    worker.drain()
    found = {kind: conn.execute("SELECT state, result, error FROM queue.job(%s)", [jobs[kind]]).fetchone() for kind in kinds}
    assert found["result"] == ("completed", {"kind": "result"}, None)
    assert found["retry"] == ("retrying", None, "later")
    assert found["fatal"] == ("dead", None, "never")
    assert found["snooze"][0] == "scheduled"
    assert found["error"] == ("dead", None, "ValueError: ab?")
    assert found["unserialisable"][2] == "TypeError: Object of type set is not JSON serializable"
    assert found["refused"][2].startswith("result cannot be stored as jsonb")
    assert conn.execute("SELECT state, payload FROM queue.job(%s)", [staged]).fetchone() == ("completed", {"from": "x"})


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_handlers_that_raise_odd_things(conn, conninfo, kind):
    """Whatever a handler raises fails its attempt, and the worker goes on."""

    class Speechless(Exception):
        def __str__(self):
            raise ValueError("no words")

    class Wrapper(Exception):
        """As an exception of a driver that keeps another one's state."""

        sqlstate = "QJ001"

    odd = [SystemExit(3), Wrapper("no error of Postgres"), GeneratorExit(), StopIteration(1), StopAsyncIteration(), asyncio.CancelledError()]
    odd += [BaseException("base"), Speechless(), ValueError("x" * 100_000)]
    ids = [enqueue(conn, "a", number, max_attempts=1) for number in range(len(odd))]
    worker = Worker(conninfo)
    if kind == "def":
        odd[0] = KeyboardInterrupt()

        @worker.handler("a")
        def handle(job):
            raise odd[job.payload]
    else:

        @worker.handler("a")
        async def handle(job):
            raise odd[job.payload]

    worker.drain()
    found = {number: state(conn, job_id) for number, job_id in enumerate(ids)}
    assert set(found.values()) == {"dead"}, {repr(odd[n]): found[n] for n in found}


def test_a_completion_that_is_refused_fails_that_job_alone(conn, conninfo):
    conn.execute("SELECT queue.create('staged', stages => '{x, y}', max_attempts => 1)")
    bad, good = enqueue(conn, "staged"), enqueue_many(conn, "a", [{}] * 5)
    worker = Worker(conninfo)

    @worker.handler("staged", "a")
    async def forgets_to_advance(job):
        pass

    worker.drain()
    assert one(conn, "SELECT error FROM queue.job(%s)", bad).startswith('stage "x" is not the last of queue')
    assert [state(conn, job) for job in good] == ["completed"] * 5


def test_an_end_that_is_refused_keeps_no_other_from_ending(conn, conninfo):
    """All of them end together, in one call. That the server refuses one is its answer; with the odd stage the call is an
    error, and with the odd delay a failure is refused.
    """
    ends = {
        "result": ({"a": 1}, ("completed", {"a": 1}, None)),
        "zero": ({"bad": "\0"}, ("dead", None, "result cannot be stored as jsonb: It has a zero character, half of")),
        "nan": (float("nan"), ("dead", None, "ValueError: Out of range float values are not JSON compliant")),
        "stage": (Advance(stage="\udc80"), ("dead", None, "ends[0]: ")),
        "nowhere": (Advance(stage="z"), ("dead", None, 'queue "a" has no stage')),
        "retry": (RetryIn(-1, "too late"), ("dead", None, "too late")),
        "fatal": (Fatal("never"), ("dead", None, "never")),
        "snooze": (Snooze(3600), ("scheduled", None, None)),
    }
    jobs = {kind: enqueue(conn, "a", kind, max_attempts=1) for kind in ends}
    worker = Worker(conninfo)

    @worker.handler("a", batch=10)
    async def handle(jobs):
        return [ends[job.payload][0] for job in jobs]

    worker.drain()
    for kind, (_, (state, result, error)) in ends.items():
        found = conn.execute("SELECT state, result, error FROM queue.job(%s)", [jobs[kind]]).fetchone()
        assert found[:2] == (state, result) and str(found[2]).startswith(str(error)), (kind, found)


def test_an_end_is_sent_again_after_an_error_which_is_not_its_own(conn, conninfo):
    conn.execute("DROP ROLE IF EXISTS clerk")
    conn.execute("CREATE ROLE clerk LOGIN")
    conn.execute("SELECT queue.create('c'), queue.grant('a', 'clerk', 'consume'), queue.grant('c', 'clerk', 'consume')")
    jobs, go, events = [enqueue(conn, "a"), enqueue(conn, "c")], threading.Event(), []
    worker = Worker(make_conninfo(conninfo, user="clerk"), heartbeat=60, on_event=events.append)

    @worker.handler("a", "c")
    def handle(job):
        assert go.wait(20)
        return {"a": 1}

    with running(worker):
        for job_id in jobs:
            wait_state(conn, job_id, "running")
        conn.execute("SELECT queue.revoke('c', 'clerk', 'consume')")
        go.set()
        wait_state(conn, jobs[0], "completed")
        until("the other one is sent again", lambda: any(ending.pauses > 2 for ending in worker._engine._later))
        conn.execute("SELECT queue.grant('c', 'clerk', 'consume')")
        wait_state(conn, jobs[1], "completed")
    assert [event.kind for event in events if event.job_id] == ["started"] * 2 + ["completed"] * 2
    conn.execute("SELECT queue.drop('c', force => true), queue.revoke('a', 'clerk', 'consume')")
    conn.execute("DROP ROLE clerk")


def test_a_completion_is_lost_that_goes_along_with_a_claim(conn, conninfo):
    job_id, begun, go, events = enqueue(conn, "a"), [], threading.Event(), []
    # With one slot the next claim takes along what returns nothing.
    worker = Worker(make_conninfo(conninfo, application_name="lost"), concurrency=1, heartbeat=60, on_event=events.append)

    @worker.handler("a")
    def handle(job):
        begun.append(job.id)
        assert go.wait(20)

    sent = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lost' AND query ~ 'end_batch'"
    with running(worker):
        until("it runs", lambda: begun)
        conn.execute("SELECT queue.cancel(%s, force => true)", [job_id])
        go.set()
        until("it has ended", lambda: len([event for event in events if event.job_id]) == 2)
        assert one(conn, sent) == 0, "the claim has told it"
    assert [event.kind for event in events if event.job_id] == ["started", "lost"]


def test_an_error_rolls_back_what_the_handler_wrote(conn, conninfo):
    job_id = enqueue(conn, "a")
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        with job.transaction({"attempt": job.attempt}) as tx:
            tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])
            if job.attempt == 1:
                raise ValueError("once")

    with running(worker):
        wait_state(conn, job_id, "completed")
    assert conn.execute("SELECT attempt FROM effect").fetchall() == [(2,)]
    assert one(conn, "SELECT result FROM queue.job(%s)", job_id) == {"attempt": 2}


def test_heartbeats_keep_a_long_job(conn, conninfo):
    jobs = enqueue_many(conn, "b", [{}] * 2)  # a lease of one second
    worker = Worker(conninfo, concurrency=1, prefetch=1)

    @worker.handler("b")
    def handle(job):
        time.sleep(1.5)

    with running(worker):
        for job_id in jobs:
            wait_state(conn, job_id, "completed")
    assert conn.execute("SELECT max(attempt), count(*) FROM queue.attempts").fetchone() == (1, 2)


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("force, reason", [(False, "cancelled"), (True, "lost")])
def test_a_handler_is_told_of_a_cancel_and_of_a_lost_lease(conn, conninfo, kind, force, reason):
    told, job_id, events = [], enqueue(conn, "a"), []
    worker = Worker(conninfo, heartbeat=0.1, on_event=events.append)

    if kind == "def":

        @worker.handler("a")
        def handle(job):
            assert job.cancelled.wait(20)
            try:
                job.check()
            except Stopped as stopped:
                told.append(stopped.reason)
                raise
    else:

        @worker.handler("a")
        async def handle(job):
            try:
                await asyncio.sleep(20)
            finally:
                told.append(job.stop_reason)

    with running(worker):
        wait_state(conn, job_id, "running")
        conn.execute("SELECT queue.cancel(%s, force => %s)", [job_id, force])
        until("the handler was told", lambda: told)
    assert told == [reason]
    assert state(conn, job_id) == "cancelled"
    assert [event.kind for event in events if event.job_id] == ["started", "lost" if force else "released"]


def test_the_transaction_of_a_lost_lease_is_rolled_back(conn, conninfo, caplog):
    job_id, goes_on = enqueue(conn, "a"), threading.Event()
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        with job.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])
            assert goes_on.wait(20)

    with running(worker):
        wait_state(conn, job_id, "running")
        conn.execute("SELECT queue.cancel(%s, force => true)", [job_id])
        goes_on.set()
        until("it is logged", lambda: "lost lease" in caplog.text)
    assert one(conn, "SELECT count(*) FROM effect") == 0
    record = next(record for record in caplog.records if "lost lease" in record.getMessage())
    assert (record.queue, record.job_id) == ("a", job_id)


@pytest.mark.parametrize(
    "kind, event, end",
    [
        ("nothing", "completed", ("completed", None, None)),
        ("result", "completed", ("completed", {"a": 1}, None)),
        ("fatal", "failed", ("dead", None, "never")),
        ("snooze", "released", ("scheduled", None, None)),
    ],
)
def test_what_an_open_transaction_is_in_the_way_of_is_told_again(conn, conninfo, kind, event, end):
    job_id, begun, go, events = enqueue(conn, "a"), [], threading.Event(), []
    # With one slot the next claim takes along what returns nothing.
    worker = Worker(make_conninfo(conninfo, application_name=kind), concurrency=1, on_event=events.append)

    @worker.handler("a")
    def handle(job):
        begun.append(job.id)
        assert go.wait(20)
        if kind == "fatal":
            raise Fatal("never")
        if kind == "snooze":
            raise Snooze(3600)
        return {"a": 1} if kind == "result" else None

    def ends():
        return [event.kind for event in events if event.job_id]

    with running(worker):
        until("it runs", lambda: begun)
        roll_back_late(conninfo, kind, begun[0], go)
        until("it has ended", lambda: len(ends()) == 2)
    assert ends() == ["started", event]
    assert conn.execute("SELECT state, result, error FROM queue.job(%s)", [job_id]).fetchone() == end


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_heartbeat_leaves_alone_a_handler_that_has_yet_to_commit(conn, conninfo, kind):
    job_id, go, events = enqueue(conn, "b"), threading.Event(), []  # a lease of one second
    worker = Worker(conninfo, heartbeat=0.1, on_event=events.append)
    if kind == "def":

        @worker.handler("b")
        def handle(job):
            with job.transaction() as tx:
                tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])
                job.complete(tx)
                assert go.wait(20)
    else:

        @worker.handler("b")
        async def handle(job):
            async with job.transaction() as tx:
                await tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])
                await job.complete(tx)
                while not go.is_set():
                    await asyncio.sleep(0.01)

    late = "SELECT max(clock_timestamp() - claimed_at) > '2.5 seconds' FROM queue.attempts WHERE state = 'running'"
    with running(worker):
        until("the lease would be over", lambda: one(conn, late))
        go.set()
        wait_state(conn, job_id, "completed")
    assert conn.execute("SELECT * FROM effect").fetchall() == [(job_id, 1)]
    assert "lost" not in [event.kind for event in events]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_that_outlives_its_transaction_is_told_of_by_its_answer(conn, conninfo, kind):
    """What was to end the job was rolled back with the rest: what the handler returns ends it."""
    conn.execute("CREATE TABLE IF NOT EXISTS later (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    job_id, worker = enqueue(conn, "a"), Worker(conninfo)
    if kind == "def":

        @worker.handler("a")
        def handle(job):
            try:
                with job.transaction() as tx:
                    tx.execute("INSERT INTO later VALUES (1), (1)")  # refused by the commit
            except psycopg.errors.UniqueViolation:
                return {"refused": True}
    else:

        @worker.handler("a")
        async def handle(job):
            try:
                async with job.transaction() as tx:
                    await tx.execute("INSERT INTO later VALUES (1), (1)")
            except psycopg.errors.UniqueViolation:
                return {"refused": True}

    worker.drain()
    assert conn.execute("SELECT state, result FROM queue.job(%s)", [job_id]).fetchone() == ("completed", {"refused": True})


def test_progress_reaches_the_next_attempt(conn, conninfo):
    found = []
    worker = Worker(conninfo)

    @worker.handler("a")
    def sync(job):
        found.append(job.progress)
        if job.attempt == 1:
            job.save_progress({"pages": 12})
            raise RetryIn(0)

    @worker.handler("b")
    async def on_loop(job):
        found.append(job.progress)
        if job.attempt == 1:
            await job.save_progress({"pages": 12})
            raise RetryIn(0)
        async with job.transaction({"done": True}) as tx:
            await tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])

    jobs = [enqueue(conn, "a"), enqueue(conn, "b")]
    with running(worker):
        for job_id in jobs:
            wait_state(conn, job_id, "completed")
    assert sorted(map(str, found)) == ["None", "None", "{'pages': 12}", "{'pages': 12}"]
    assert one(conn, "SELECT result FROM queue.job(%s)", jobs[1]) == {"done": True}


def test_middleware_is_around_the_handlers_of_its_kind(conn, conninfo):
    said = []
    worker = Worker(conninfo)

    @worker.middleware
    def outer(job, call):
        said.append("outer")
        return {"outer": call(job)}

    @worker.middleware
    def inner(job, call):
        said.append("inner")
        return call(job)

    @worker.middleware
    async def on_loop(job, call):
        return {"on loop": await call(job)}

    @worker.handler("a")
    def sync(job):
        return 1

    @worker.handler("b")
    async def coroutine(job):
        return 2

    jobs = [enqueue(conn, "a"), enqueue(conn, "b")]
    worker.drain()
    assert said == ["outer", "inner"]
    assert [one(conn, "SELECT result FROM queue.job(%s)", job) for job in jobs] == [{"outer": 1}, {"on loop": 2}]


def test_no_more_run_at_once_than_asked(conn, conninfo):
    enqueue_many(conn, "a", [{}] * 40)
    worker, lock, now, most = Worker(conninfo, concurrency=3, prefetch=5), threading.Lock(), set(), []

    @worker.handler("a")
    def handle(job):
        with lock:
            now.add(job.id)
            most.append(len(now))
        time.sleep(0.01)
        with lock:
            now.remove(job.id)

    worker.drain()
    assert max(most) == 3 and len(most) == 40


def test_within_an_event_loop(conn, conninfo):
    worker = Worker(conninfo)

    @worker.handler("a")
    async def handle(job):
        worker.stop()
        return {"loop": True}

    job_id = enqueue(conn, "a")
    asyncio.run(asyncio.wait_for(worker.serve(), 20))
    assert state(conn, job_id) == "completed"


def test_each_host_is_tried_by_itself(monkeypatch):
    def seen(conninfo):
        names = ("host", "hostaddr", "port", "target_session_attrs")
        return [tuple(conninfo_to_dict(one).get(name) for name in names) for one in hosts(conninfo)]

    for variable in ("PGHOST", "PGHOSTADDR", "PGPORT"):
        monkeypatch.delenv(variable, raising=False)
    assert seen("") == [(None, None, None, None)]
    assert seen("host=a port=6") == [("a", None, "6", None)]
    assert seen("host=a,b port=6,7") == [("a", None, "6", "read-write"), ("b", None, "7", "read-write")]
    assert seen("hostaddr=1.1.1.1,1.1.1.2 port=6 target_session_attrs=any") == [
        (None, "1.1.1.1", "6", "any"),
        (None, "1.1.1.2", "6", "any"),
    ]
    assert len(seen("host=a,b,c port=6,7")) == 1  # which libpq refuses
    monkeypatch.setenv("PGHOST", "a,b")
    assert [host for host, *_ in seen("port=6")] == ["a", "b"]
    assert [host for host, *_ in seen("host=c")] == ["c"]


def test_what_cannot_work_is_refused_at_once(conninfo):
    worker = Worker(conninfo)
    with pytest.raises(ValueError):
        worker.run()
    with pytest.raises(ValueError):
        Worker(concurrency=0)
    worker.handler("a")(print)
    with pytest.raises(ValueError):
        worker.handler("a")(print)
    with pytest.raises(ValueError):
        worker.handler(*"bcdefghi")(print)
