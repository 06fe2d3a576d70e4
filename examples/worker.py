#!/usr/bin/env python3
"""A worker of queue `greetings`, with psycopg 3. Connects as the variables PGHOST, PGDATABASE, … say."""

import signal
import sys
import threading
import time

import psycopg
from psycopg.rows import namedtuple_row

CLAIM = """
    SELECT id, job_id, payload, extract(epoch FROM lease_expires_at - clock_timestamp())::float8 / 3 AS beat
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


def heartbeat(job, ended, lost):
    """Extends the lease, on connections of its own, every third of it."""
    while not ended.wait(job.beat):
        try:
            with connect() as conn:
                if conn.execute("SELECT is_cancelled FROM queue.extend(%s)", [job.id]).fetchone().is_cancelled:
                    lost.set()
        except psycopg.Error:
            lost.set()


def run(conn, job):
    """Does one job and tells the queue how it ended."""
    ended, lost = threading.Event(), threading.Event()
    threading.Thread(target=heartbeat, args=(job, ended, lost)).start()

    def check():
        if stopping or lost.is_set():
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
            conn.execute("SELECT queue.fail(%s, %s)", [job.id, str(error)])  # without a connection: raises anew
    except psycopg.Error as error:
        if error.sqlstate != "QJ001":  # lost lease: the job is no longer ours, and what we wrote is rolled back
            raise
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
    except psycopg.OperationalError as error:
        print(error, file=sys.stderr)
        time.sleep(1)
