"""The worker's parts that only Python has: its exceptions, middleware, event loops, connection strings, logs.

clients/conformance tests the promises of all packages.
"""

import asyncio
import contextvars
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from conftest import SCHEMA, one, running, state, until, wait_state
from place import silent
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, tuple_row

from pg_queue import Worker, enqueue
from pg_queue.pool import hosts
from pg_queue.testing import Server


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_any_exception_fails_its_attempt_and_the_worker_goes_on(conn, conninfo, kind):
    class Wrapper(Exception):
        """Looks like an error of Postgres to code that reads `sqlstate` only."""

        sqlstate = "QJ001"

    class Unreadable(BaseException):
        def __str__(self):
            raise self

    odd = [SystemExit(3), Wrapper("no error of Postgres"), GeneratorExit(), StopIteration(1), StopAsyncIteration(),
        asyncio.CancelledError()]
    odd += [BaseException("base"), Unreadable()]
    ids = [enqueue(conn, "a", number, max_attempts=1) for number in range(len(odd))]
    worker = Worker(conninfo, concurrency=1)
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


def test_a_result_of_nan_fails_the_attempt(conn, conninfo):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: float("nan"))
    worker.drain()
    assert one(conn, "SELECT error FROM queue.job(%s)",
        job_id) == "ValueError: Out of range float values are not JSON compliant"


def test_log_records_name_the_job(conn, conninfo, caplog):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        raise ValueError("odd")

    worker.drain()
    record = next(record for record in caplog.records if "has failed" in record.getMessage())
    assert (record.queue, record.job_id, record.attempt) == ("a", job_id, 1) and record.exc_info


def test_the_signal_handlers_of_the_application_are_restored(conninfo):
    def mine(number, frame):
        pass

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, mine)
        worker = Worker(conninfo)
        worker.handler("a")(lambda job: None)
        worker.stop()
        worker.run()
        assert [signal.getsignal(number) for number in before] == [mine, mine]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_middleware_wraps_the_handlers_of_its_kind(conn, conninfo):
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

    @worker.handler("loop", batch=2)
    def all_of_them(batch):
        assert [job.payload for job in batch[:1]] == [{}] and len(batch) == 1

    jobs = [enqueue(conn, queue) for queue in ("a", "b", "loop")]
    worker.drain()
    assert said == ["outer", "inner"], "batches have none"
    assert [one(conn, "SELECT result FROM queue.job(%s)", job) for job in jobs] == [{"outer": 1}, {"on loop": 2}, None]


def test_context_variables_and_cancellations_of_a_handler_reach_no_other_job(conn, conninfo):
    # One task runs handlers that do not wait, one after the other.
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen = []
    worker = Worker(conninfo, concurrency=5)

    @worker.handler("a")
    async def handle(job):
        seen.append(tenant.get())
        if job.payload == 0:
            tenant.set("handler")
        elif job.payload == 1:
            asyncio.current_task().cancel()
        elif job.payload > 1:
            await asyncio.sleep(0)  # a cancellation would be raised here

    jobs = [enqueue(conn, "a", number) for number in range(5)]
    worker.drain()
    assert seen == ["nobody"] * 5
    assert [one(conn, "SELECT state FROM queue.job(%s)", job) for job in jobs] == ["completed"] * 5


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_context_variables_of_a_job_are_not_seen_by_the_next(conn, conninfo, kind):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    tenant.set("application")
    seen = []

    worker = Worker(conninfo, concurrency=1, prefetch=3)
    if kind == "def":

        @worker.middleware
        def around(job, call):
            seen.append(tenant.get())
            tenant.set(f"middleware {job.payload}")
            return call(job)

        @worker.handler("a")
        def handle(job):
            seen.append(tenant.get())
            tenant.set(f"handler {job.payload}")
    else:

        @worker.middleware
        async def around(job, call):
            seen.append(tenant.get())
            tenant.set(f"middleware {job.payload}")
            return await call(job)

        @worker.handler("a")
        async def handle(job):
            seen.append(tenant.get())
            tenant.set(f"handler {job.payload}")

    for number in range(3):
        enqueue(conn, "a", number)
    worker.drain()
    assert seen == [value for number in range(3) for value in ("application", f"middleware {number}")]
    assert tenant.get() == "application"


def test_serve_runs_within_the_event_loop_of_the_caller(conn, conninfo):
    worker = Worker(conninfo)

    @worker.handler("a")
    async def handle(job):
        worker.stop()
        return {"loop": True}

    job_id = enqueue(conn, "a")
    asyncio.run(asyncio.wait_for(worker.serve(), 20))
    assert state(conn, job_id) == "completed"


def test_a_stop_before_the_run_ends_one_run(conn, conninfo):
    worker, _ = idle_worker(conninfo)
    worker.stop()
    worker.run()
    job_id = enqueue(conn, "a")
    with running(worker):  # the stop has ended the first run only
        wait_state(conn, job_id, "completed")


def test_each_host_has_a_connection_string_of_its_own(monkeypatch):
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


@pytest.mark.parametrize("count", [0, 1])
def test_no_job_fails_if_the_system_has_no_more_threads(conn, conninfo, monkeypatch, count):
    """If the worker has no thread, it releases its jobs. If it has one, the jobs wait for that. It can stop in both
    cases.
    """
    start, started = threading.Thread.start, []

    def limited(thread):
        if thread.name.startswith("pg_queue-"):
            if len(started) == count:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    jobs = [enqueue(conn, "a", max_attempts=1) for _ in range(3)]
    worker = Worker(conninfo, concurrency=3)
    worker.handler("a")(lambda job: time.sleep(0.1))
    with running(worker):
        for job_id in jobs:
            wait_state(conn, job_id, "completed" if count else "retrying")
        # The worker without a thread must not claim the jobs again while it stops.
        conn.execute("SELECT queue.reschedule_many(%s, now() + interval '1 hour')", [jobs])
    monkeypatch.undo()
    conn.execute("SELECT queue.reschedule_many(%s, now())", [jobs])
    worker.drain()
    assert {state(conn, job_id) for job_id in jobs} == {"completed"}


def test_a_job_that_its_handler_has_completed_is_not_reported_as_lost(conn, conninfo):
    """The worker thinks that the lease is lost, as after a long pause of its process. The server has not ended it."""
    seen = []
    job_id = enqueue(conn, "a")
    worker = Worker(conninfo, on_event=lambda event: seen.append(event.kind))

    @worker.handler("a")
    def handle(job):
        with job.transaction():
            job.stop("lost")

    worker.drain()
    assert state(conn, job_id) == "completed" and "lost" not in seen and "completed" in seen


def test_each_process_of_a_worker_has_a_name_of_its_own(monkeypatch):
    worker, named = Worker(), Worker(name="n")
    first = worker.name
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as after a fork
    assert worker.name != first and worker.name.endswith(":1") and named.name == "n"


BLOCKED = """
import sys, time
sys.path.insert(0, {source!r})
from pg_queue import Worker
worker = Worker({conninfo!r}, stall_timeout=0.5)

@worker.handler("loop")
async def on_loop(job):
    time.sleep(60)  # blocks the event loop

worker.run()
"""


def test_a_blocked_event_loop_ends_the_process(conn, conninfo):
    enqueue(conn, "loop")
    program = BLOCKED.format(source=str(Path(__file__).parents[1] / "src"), conninfo=conninfo)
    found = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, timeout=30)
    assert found.returncode == 70
    assert "its event loop is blocked" in found.stderr and "in on_loop" in found.stderr, "the stack of the handler"


def test_the_last_message_of_the_watchdog_goes_to_no_file_of_the_application(conn, conninfo, tmp_path):
    """If a process starts without stderr, the first file that it opens gets the descriptor of stderr."""
    enqueue(conn, "loop")
    opens = f"own = open({str(tmp_path / 'own')!r}, 'w')\n"
    program = opens + BLOCKED.format(source=str(Path(__file__).parents[1] / "src"), conninfo=conninfo)
    shell = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program]
    assert subprocess.run(shell, timeout=30).returncode == 70
    assert (tmp_path / "own").read_text() == ""


def idle_worker(conninfo, **options):
    """Returns a worker with a handler that does nothing, and a list to which it adds the kinds of its events."""
    worker, met = Worker(conninfo, **options), []
    worker.on_event = lambda event: met.append(event.kind)
    worker.handler("a")(lambda job: None)
    return worker, met


def test_a_worker_leaves_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr("pg_queue.pool.SILENCE", 1.0)
    monkeypatch.setattr("pg_queue.claimer.SILENCE", 1.0)
    with Server() as primary, Server(hot_standby="on") as standby:
        database = primary.create_database()
        with primary.connect(database) as conn:
            conn.execute(SCHEMA)
        primary.base_backup(standby)
        hosts = primary.conninfo(database, host=f"{primary.dir},{standby.dir}", connect_timeout=2)
        worker, met = idle_worker(hosts, wait=0.5)
        with running(worker):
            with primary.connect(database) as conn:
                wait_state(conn, enqueue(conn, "a"), "completed")
            with silent(primary):
                until("the worker has disconnected", lambda: "disconnected" in met)
                standby.promote()
                with standby.connect(database) as conn:
                    wait_state(conn, enqueue(conn, "a"), "completed")


def test_a_long_sleep_of_a_claim_keeps_its_connection(conn, conninfo, monkeypatch):
    monkeypatch.setattr("pg_queue.claimer.SILENCE", 0.5)
    worker, met = idle_worker(conninfo, wait=5)
    with running(worker):
        wait_state(conn, enqueue(conn, "a", delay=2), "completed")
    assert met.count("connected") == 1 and "disconnected" not in met


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_a_handler_sets_on_its_connection_is_not_kept(conn, conninfo, kind):
    first, second = enqueue(conn, "a", priority=0), enqueue(conn, "a", priority=1)
    worker, found = Worker(conninfo, concurrency=1, max_connections=1), []

    def change(there):
        found.append((there.row_factory, there.cursor_factory))
        there.row_factory, there.cursor_factory = dict_row, type("Other", (there.cursor_factory,), {})
        return 1

    async def change_async(there):
        return change(there)

    def handle(job):
        assert job.step("1", change) == 1
        with job.transaction() as there:
            change(there)
            if job.job_id == second:
                job.complete(there)

    async def handle_async(job):
        assert await job.step("1", change_async) == 1
        async with job.transaction() as there:
            change(there)
            if job.job_id == second:
                await job.complete(there)

    worker.handler("a")(handle if kind == "def" else handle_async)
    worker.drain()
    assert [state(conn, job_id) for job_id in (first, second)] == ["completed"] * 2
    assert len(found) == 4 and set(found) == {found[0]} and found[0][0] is tuple_row


@pytest.mark.parametrize("error", [KeyError("tenant"), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_log_that_fails_keeps_no_attempt_from_ending(conn, conninfo, kind, error, capfd):
    ids = [enqueue(conn, "a", max_attempts=1) for _ in range(3)]
    worker = Worker(conninfo, concurrency=3)

    def refuse(record):
        raise error

    def handle(job):
        raise ValueError("odd")

    async def handle_async(job):
        raise ValueError("odd")

    worker.handler("a")(handle if kind == "def" else handle_async)
    logger = logging.getLogger("pg_queue.worker")
    logger.addFilter(refuse)
    try:
        worker.drain()
    finally:
        logger.removeFilter(refuse)
    assert [state(conn, job_id) for job_id in ids] == ["dead"] * 3
    assert "the log has failed at '%r has failed: %s'" in capfd.readouterr().err


def test_log_records_name_the_line_that_logs(conn, conninfo, caplog):
    enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: 1 / 0)
    worker.drain()
    assert {record.filename for record in caplog.records} == {"endings.py"}


@pytest.mark.parametrize("error", [ValueError("odd"), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_that_fails_changes_nothing(conn, conninfo, caplog, kind, error):
    ids = [enqueue(conn, "a", max_attempts=1) for _ in range(3)]
    found = []

    def hook(event):
        found.append(event.kind)
        raise error

    async def handle_async(job):
        pass

    worker = Worker(conninfo, concurrency=2, on_event=hook)
    worker.handler("a")((lambda job: None) if kind == "def" else handle_async)
    worker.drain()
    assert [state(conn, job_id) for job_id in ids] == ["completed"] * 3
    assert sorted(found) == ["completed"] * 3 + ["connected"] + ["started"] * 3
    assert caplog.text.count("on_event has failed") == len(found)


def test_the_application_may_load_numbers_in_its_own_way(conn, conninfo):
    class Loader(psycopg.adapt.Loader):
        format = psycopg.pq.Format.BINARY

        def load(self, data):
            return Decimal(struct.unpack("!d", data)[0])

    job_id = enqueue(conn, "a")
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: None)
    oid = psycopg.adapters.types["float8"].oid
    was = psycopg.adapters.get_loader(oid, Loader.format)
    psycopg.adapters.register_loader(oid, Loader)
    try:
        worker.drain()
    finally:
        psycopg.adapters.register_loader(oid, was)
    assert state(conn, job_id) == "completed"


def test_a_batch_is_cancelled_though_one_of_its_jobs_could_not_be_decoded(conn, conninfo):
    unknown = enqueue(conn, "a", {"codec": "x", "key": "k", "data": "d"})
    ids = [enqueue(conn, "a") for _ in range(2)]
    worker, found = Worker(conninfo, heartbeat=0.1), []

    @worker.handler("a", batch=3)
    async def handle(batch):
        found.append(len(batch))
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            found.append([job.stop_reason for job in batch])
            raise

    with running(worker):
        until("the batch runs", lambda: found)
        for job_id in ids:
            conn.execute("SELECT queue.cancel(%s)", [job_id])
        until("the batch is cancelled", lambda: len(found) == 2)
        for job_id in ids:
            wait_state(conn, job_id, "cancelled")
    assert found == [2, ["cancelled"] * 2]
    assert state(conn, unknown) == "retrying"
