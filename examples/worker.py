#!/usr/bin/env python3
"""A worker of queue `greetings`, with psycopg 3. Connects as the variables PGHOST, PGDATABASE, … say."""

import signal
import sys
import threading
import time
from types import SimpleNamespace

import psycopg
from psycopg.rows import namedtuple_row

CLAIM = """
    SELECT id, job_id, payload,
           greatest(extract(epoch FROM lease_expires_at - clock_timestamp()) / 3, 0.1)::float8 AS beat
    FROM queue.claim('greetings', wait => '5 seconds')"""

stopping = False


class GiveBack(Exception):
    """The job is not to be finished here: it was cancelled, its lease is lost, or this worker is to stop."""


def work(payload, check):
    """The job itself. A long one calls `check` now and then, which raises when it should stop."""
    for _ in range(payload.get("seconds", 0)):
        check()
        time.sleep(1)
    if not payload.get("name"):
        raise ValueError("nobody to greet")
    return f"Hello, {payload['name']}!"


def connect():
    # No prepared statements: a pooler in transaction mode has another connection for each transaction.
    return psycopg.connect(autocommit=True, prepare_threshold=None, row_factory=namedtuple_row)


def heartbeat(job, lease, ended):
    """Extends the lease, on connections of its own, every third of it."""
    while not ended.wait(job.beat):
        begun = time.monotonic()
        try:
            with connect() as conn:
                row = conn.execute("SELECT is_cancelled FROM queue.extend(%s)", [job.id]).fetchone()
                lease.until = 0 if row.is_cancelled else begun + 3 * job.beat
        except psycopg.Error as error:
            print(error, file=sys.stderr)
            if error.sqlstate == "QJ001":  # lost; after any other error there is time to try again
                lease.until = 0


def run(conn, job):
    """Does one job and tells the queue how it ended."""
    lease, ended = SimpleNamespace(until=time.monotonic() + 3 * job.beat), threading.Event()
    threading.Thread(target=heartbeat, args=(job, lease, ended), daemon=True).start()

    def check():
        if stopping or time.monotonic() > lease.until:
            raise GiveBack

    try:
        try:
            check()
            greeting = work(job.payload, check)
            with conn.transaction():  # what the job writes and its completion: both or neither
                conn.execute("INSERT INTO greeting VALUES (%s, %s)", [job.job_id, greeting])
                conn.execute("SELECT queue.complete(%s)", [job.id])
        except GiveBack:
            conn.execute("SELECT queue.release(%s)", [job.id])  # not counted; cancels a job that is to be cancelled
        except Exception as error:
            text = str(error).replace("\0", "")  # which Postgres does not take
            conn.execute("SELECT queue.fail(%s, %s)", [job.id, text])  # without a connection: raises anew
    except psycopg.Error as error:
        if error.sqlstate != "QJ001":
            raise
        print(error, file=sys.stderr)  # lost lease: the job is no longer ours, and what we wrote is rolled back
    finally:
        ended.set()


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
while not stopping:
    try:
        with connect() as conn:
            while not stopping:
                job = conn.execute(CLAIM).fetchone()
                if job:
                    run(conn, job)
    except psycopg.Error as error:
        print(error, file=sys.stderr)
        time.sleep(1)
