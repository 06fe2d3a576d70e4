"""One throw-away server with a database. Each test gets new queues in it.

Tests wait for facts with a deadline (`until`), never for time to pass.
"""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[2] / "conformance")]
from place import until  # noqa: E402

pytest_plugins = ["pg_queue.pytest_plugin"]

SCHEMA = """
    SELECT queue.drop(queue_name, force => true) FROM queue.queues;
    SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
    SELECT queue.create('loop');
    SELECT queue.create('b', backoff_base => '100 ms', lease => '1 second');
"""


@pytest.fixture(scope="session")
def pg_queue_schema():
    return SCHEMA


@pytest.fixture
def conninfo(pg_queue_server, pg_queue_shared_database):
    """The connection string of the database, with new queues."""
    with psycopg.connect(pg_queue_shared_database, autocommit=True) as conn:
        conn.execute(SCHEMA)
    return pg_queue_shared_database


@pytest.fixture
def conn(conninfo):
    with psycopg.connect(conninfo, autocommit=True) as conn:
        yield conn


def state(conn, job_id):
    return conn.execute("SELECT state FROM queue.job(%s)", [job_id]).fetchone()[0]


def wait_state(conn, job_id, wanted):
    until(f"job {job_id} is {wanted}", lambda: state(conn, job_id) == wanted)


def one(conn, sql, *parameters):
    return conn.execute(sql, parameters).fetchone()[0]


@contextmanager
def running(worker):
    """Runs the worker in a thread, and stops it at the end. An error of the worker fails the test."""
    errors = []

    def run():
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until("the worker runs", lambda: worker._engine or errors)
        yield thread
    finally:
        worker.stop()
        thread.join(30)
    assert not errors, errors
    assert not thread.is_alive()
