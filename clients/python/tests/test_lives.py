"""Workers, connections and servers come to an end, and no job is lost or has its effect twice."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from conftest import SCHEMA, one, running, state, until, wait_state

from pg_queue import Worker, enqueue, enqueue_many
from pg_queue.testing import Server


@contextmanager
def process(conninfo, **options):
    """A worker's process, which must not outlive the test."""
    program = [sys.executable, str(Path(__file__).with_name("worker_process.py"))]
    with subprocess.Popen([*program, conninfo, json.dumps(options)], stderr=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def effects(conn):
    return sorted(job for (job,) in conn.execute("SELECT job_id FROM effect"))


def backends(conn):
    sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return [pid for (pid,) in conn.execute(sql)]


def again(conninfo):
    """Connects once the server takes connections."""

    def attempt():
        try:
            return psycopg.connect(conninfo, autocommit=True)
        except psycopg.OperationalError:
            return None

    return until("the server takes connections", attempt)


def test_sigterm_ends_an_idle_worker_at_once(conn, conninfo):
    with process(conninfo, concurrency=2) as worker:
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
        until("it waits", lambda: one(conn, sleeps))
        begun = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert time.monotonic() - begun < 5, "the wait of ten seconds was not cancelled"


def test_sigterm_finishes_what_runs_and_gives_back_the_rest(conn, conninfo):
    short, *ahead = enqueue_many(conn, "a", [{"seconds": 1}] * 4)
    with process(conninfo, concurrency=1, prefetch=3) as worker:
        until("the first one runs", lambda: one(conn, "SELECT progress FROM queue.job(%s)", short) == "begun")
        assert one(conn, "SELECT count(*) FROM queue.attempts WHERE state = 'running'") == 4
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert state(conn, short) == "completed"
    assert conn.execute("SELECT state, attempt FROM queue.jobs WHERE job_id = ANY (%s)", [ahead]).fetchall() == [
        ("ready", 1)
    ] * 3


@pytest.mark.parametrize("deaf", [False, True])
def test_what_does_not_end_in_time_is_given_back(conn, conninfo, deaf):
    job_id = enqueue(conn, "a", {"seconds": 60, "deaf": deaf})
    with process(conninfo, shutdown_timeout=0.2) as worker:
        until("it runs", lambda: one(conn, "SELECT progress FROM queue.job(%s)", job_id) == "begun")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert conn.execute("SELECT state, attempt FROM queue.job(%s)", [job_id]).fetchone() == ("ready", 1)


def idle(conn):
    """Whether no claim sleeps."""
    sql = "SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
    return one(conn, sql)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_second_sigterm_ends_the_wait(conn, conninfo, deaf):
    job_id = enqueue(conn, "a", {"seconds": 60, "deaf": deaf})
    with process(conninfo) as worker:
        until("it runs", lambda: one(conn, "SELECT progress FROM queue.job(%s)", job_id) == "begun")
        worker.send_signal(signal.SIGTERM)
        until("it claims no more", lambda: idle(conn))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert conn.execute("SELECT state, attempt FROM queue.job(%s)", [job_id]).fetchone() == ("ready", 1)


def test_a_worker_without_progress_ends_its_process(conn, conninfo):
    job_id = enqueue(conn, "a", {"seconds": 60, "deaf": True})
    with process(conninfo, concurrency=1, heartbeat=0.1, stall_timeout=0.5) as worker:
        until("it runs", lambda: one(conn, "SELECT progress FROM queue.job(%s)", job_id) == "begun")
        assert worker.poll() is None  # as long as it holds its lease it may be deaf
        conn.execute("SELECT queue.cancel(%s, force => true)", [job_id])
        assert worker.wait(20) == 70
        assert "told to stop" in worker.stderr.read()
    job_id = enqueue(conn, "loop", {"seconds": 60})
    with process(conninfo, stall_timeout=0.5) as worker:
        assert worker.wait(20) == 70
        said = worker.stderr.read()
        assert "its event loop is blocked" in said and "in on_loop" in said, "where it stands"


def test_a_killed_worker_s_jobs_run_again(conn, conninfo):
    job_id = enqueue(conn, "b", {"seconds": 1})  # a lease of one second
    with process(conninfo, heartbeat=0.1) as worker:
        wait_state(conn, job_id, "running")
        worker.kill()
    with process(conninfo):
        wait_state(conn, job_id, "completed")
    assert conn.execute("SELECT job_id, attempt FROM effect").fetchall() == [(job_id, 2)]


def test_connections_that_end_under_running_handlers(conn, conninfo):
    ids = enqueue_many(conn, "b", [{}] * 300)
    worker = Worker(conninfo, concurrency=4, prefetch=4, heartbeat=0.2)

    @worker.handler("b")
    def handle(job):
        time.sleep(0.01)
        with job.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])

    with running(worker):
        for share in (30, 90, 150):
            until("some have been done", lambda: len(effects(conn)) > share)
            for pid in backends(conn):
                conn.execute("SELECT pg_terminate_backend(%s)", [pid])
        until("all are completed", lambda: len(effects(conn)) == 300, 60)
    assert effects(conn) == ids
    assert one(conn, "SELECT count(*) FROM queue.jobs WHERE state <> 'completed'") == 0


def test_a_backend_that_is_killed_takes_all_others_along(conn, conninfo):
    job_id = enqueue(conn, "a", {})
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        with job.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])
            if job.attempt == 1:
                os.kill(tx.info.backend_pid, signal.SIGKILL)

    with running(worker):
        until("the server has gone down", lambda: _is_gone(conn))
        with again(conninfo) as conn:
            wait_state(conn, job_id, "completed")
            assert conn.execute("SELECT attempt FROM effect").fetchall() == [(2,)]


def _is_gone(conn):
    try:
        conn.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_connections_that_end_while_completions_are_gathered(conn, conninfo):
    """The claims take completions along when their connections end: each is told once more, and counts once. What was
    claimed on such a connection is given back, so that no lease has to end.
    """
    ids = enqueue_many(conn, "a", range(4000))
    worker = Worker(conninfo, concurrency=20, prefetch=100, session_bound=True)

    @worker.handler("a")
    async def handle(job):
        pass

    done = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'"
    with running(worker):
        for share in (300, 1200, 2500):
            until("some have been done", lambda: one(conn, done) > share)
            for pid in backends(conn):
                conn.execute("SELECT pg_terminate_backend(%s)", [pid])
        until("all are completed", lambda: one(conn, done) == len(ids), 60)
    assert one(conn, "SELECT count(*) FROM queue.attempts WHERE state = 'completed'") == len(ids)


def test_a_lease_that_is_lost_while_completions_are_gathered(conn, conninfo):
    ids, goes_on, lost = enqueue_many(conn, "a", range(20)), [], []
    worker = Worker(conninfo, concurrency=20, heartbeat=60)
    worker.on_event = lambda event: lost.append(event.job_id) if event.kind == "lost" else None

    @worker.handler("a")
    async def handle(job):
        while not goes_on:
            await asyncio.sleep(0.005)

    with running(worker):
        until("all run", lambda: one(conn, "SELECT bool_and(state = 'running') FROM queue.jobs"))
        conn.execute("SELECT queue.cancel(%s, force => true)", [ids[7]])
        goes_on.append(True)
        until("all have ended", lambda: one(conn, "SELECT bool_and(finished_at IS NOT NULL) FROM queue.jobs"))
        until("it is told", lambda: lost)
    assert lost == [ids[7]]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_under_load(pg_queue_server, conn, conninfo, mode):
    ids = enqueue_many(conn, "b", [{}] * 400)
    worker = Worker(conninfo, concurrency=4, prefetch=10)

    @worker.handler("b")
    async def handle(job):
        async with job.transaction() as tx:
            await tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])

    with running(worker):
        until("some have been done", lambda: len(effects(conn)) > 50)
        pg_queue_server.restart(mode)
        with again(conninfo) as conn:
            until("all have been done", lambda: len(effects(conn)) >= 400, 60)
            until("all are completed", lambda: one(conn, "SELECT count(*) FROM queue.jobs WHERE finished_at IS NULL") == 0)
            assert effects(conn) == ids


def test_several_hosts_and_a_promotion():
    with Server() as primary, Server(hot_standby="on") as standby:
        database = primary.create_database()
        with primary.connect(database) as conn:
            conn.execute(SCHEMA)
        primary.base_backup(standby)
        worker = Worker(primary.conninfo(database, host=f"{standby.dir},{primary.dir}"))

        @worker.handler("a")
        def handle(job):
            pass

        with running(worker):
            with primary.connect(database) as conn:
                wait_state(conn, enqueue(conn, "a"), "completed")
            primary.stop("immediate")
            standby.promote()
            with standby.connect(database) as conn:
                wait_state(conn, enqueue(conn, "a"), "completed")


@contextmanager
def silent(server):
    """All of the server's processes stand still: its connections are there, and nobody answers.

    The first one stops first and goes on last: it would start others, and remove those that have ended, meanwhile.
    """
    first = int((server.dir / "data/postmaster.pid").read_text().split()[0])
    os.kill(first, signal.SIGSTOP)
    until("it stands still", lambda: Path(f"/proc/{first}/stat").read_text().split(") ")[1][0] == "T")
    children = list(map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split()))
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in [*children, first]:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_ends_without_a_server_that_answers(pg_queue_server, conn, conninfo, busy):
    job_id = enqueue(conn, "a", {"seconds": 60}) if busy else None
    with process(conninfo, concurrency=2, heartbeat=0.1) as worker:
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
        until("it waits", lambda: one(conn, sleeps) and (not busy or state(conn, job_id) == "running"))
        with silent(pg_queue_server):
            worker.send_signal(signal.SIGTERM)
            worker.send_signal(signal.SIGINT)
            assert worker.wait(40) == 0


def idle_worker(conninfo, **options):
    """A worker whose jobs do nothing, and a list that gets the kinds of its events."""
    worker, met = Worker(conninfo, **options), []
    worker.on_event = lambda event: met.append(event.kind)
    worker.handler("a")(lambda job: None)
    return worker, met


def test_a_server_that_falls_silent_is_left_for_another(monkeypatch):
    monkeypatch.setattr("pg_queue.pool.SILENCE", 1.0)
    monkeypatch.setattr("pg_queue.engine.SILENCE", 1.0)
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
                until("it has noticed", lambda: "disconnected" in met)
                standby.promote()
                with standby.connect(database) as conn:
                    wait_state(conn, enqueue(conn, "a"), "completed")


def test_a_long_wait_is_no_silence(conn, conninfo, monkeypatch):
    monkeypatch.setattr("pg_queue.engine.SILENCE", 0.5)
    worker, met = idle_worker(conninfo, wait=5)
    with running(worker):
        wait_state(conn, enqueue(conn, "a", delay=2), "completed")
    assert met.count("connected") == 1 and "disconnected" not in met


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_behind_pgbouncer(pg_queue_server, conn, conninfo, tmp_path, mode):
    program = shutil.which("pgbouncer", path=f"/usr/sbin:{os.environ['PATH']}")
    assert program, "there is no PgBouncer: run `make clients`, or as root: apt-get install pgbouncer"
    file = pg_queue_server.dir / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n* = host={pg_queue_server.dir} port=5432 user=postgres\n[pgbouncer]\nlisten_port = 6432\n"
        f"unix_socket_dir = {pg_queue_server.dir}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 8\n"
        "server_round_robin = 1\nserver_reset_query_always = 1\nmax_client_conn = 50\n"
    )
    account = ["--user=postgres"] if os.geteuid() == 0 else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def start():
        return subprocess.Popen([program, "--quiet", *account, str(file)], **quiet)

    pooler = start()
    pooled = conninfo + " port=6432"
    try:
        again(pooled).close()
        ids = enqueue_many(conn, "b", [{}] * 100)
        worker = Worker(pooled, concurrency=3, heartbeat=0.1, session_bound=mode == "session")
        cancelled = []

        @worker.handler("a")
        def wait(job):
            cancelled.append(job.cancelled.wait(20))
            job.check()

        @worker.handler("b")
        def handle(job):
            with job.transaction() as tx:
                tx.execute("INSERT INTO effect VALUES (%s, %s)", [job.job_id, job.attempt])

        with running(worker):
            until("some have been done", lambda: len(effects(conn)) > 30)
            pooler.kill()  # and it comes back
            pooler.wait()
            (pg_queue_server.dir / ".s.PGSQL.6432").unlink()
            pooler = start()
            until("all have been done", lambda: len(effects(conn)) == 100)
            job_id = enqueue(conn, "a")
            wait_state(conn, job_id, "running")
            conn.execute("SELECT queue.cancel(%s)", [job_id])
            wait_state(conn, job_id, "cancelled")
            begun = time.monotonic()
        assert time.monotonic() - begun < 5, "the waiting claim was not cancelled"
        assert effects(conn) == ids and cancelled == [True]
    finally:
        assert pooler.poll() is None, "PgBouncer has ended by itself"
        pooler.kill()
        pooler.wait()
