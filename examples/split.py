#!/usr/bin/env python3
"""One job, many workers: adds up numbers of queue `totals` in parts. Connects as the variables PGHOST, PGDATABASE, …
say.

A job makes a member for each part, and is suspended; it goes on when they have ended. Steps let a retry skip what is
done. How a worker sends heartbeats, is cancelled and stops, is shown by worker.py.
"""

import json
import sys

import psycopg
from psycopg.rows import namedtuple_row

CLAIM = "SELECT id, job_id, queue_name, payload FROM queue.claim_any('{parts,totals}', wait => '5 seconds')"


def split(conn, job):
    """Makes a job for each part, once, and gives the job back until they have ended."""
    numbers, size = job.payload["numbers"], 100
    parts = [json.dumps({"numbers": numbers[n : n + size]}) for n in range(0, len(numbers), size)]
    with conn.transaction():  # the parts, the step and the wait: all of it or nothing
        conn.execute("SELECT queue.enqueue_many('parts', %s::jsonb[], flow => %s)", [parts, job.job_id])
        conn.execute("SELECT queue.step_done(%s, 'split', to_jsonb(%s::integer))", [job.id, len(parts)])
        conn.execute("SELECT queue.suspend(%s, upon => 'completed')", [job.id])


def run(conn, job):
    if job.queue_name == "parts":
        conn.execute("SELECT queue.complete(%s, to_jsonb(%s::bigint))", [job.id, sum(job.payload["numbers"])])
    elif conn.execute("SELECT queue.step(%s, 'split') IS NULL AS is_new", [job.id]).fetchone().is_new:
        split(conn, job)
    else:
        total = "SELECT coalesce(sum(result::bigint), 0) FROM queue.inputs(%s)"
        conn.execute(f"SELECT queue.complete(%s, to_jsonb(({total})))", [job.id, job.id])


with psycopg.connect(autocommit=True, prepare_threshold=None, row_factory=namedtuple_row) as conn:
    while True:
        job = conn.execute(CLAIM).fetchone()
        if job:
            try:
                run(conn, job)
            except (KeyError, TypeError, psycopg.Error) as error:
                print(error, file=sys.stderr)
                if getattr(error, "sqlstate", None) != "QJ001":  # lost: the job is no longer ours
                    conn.execute("SELECT queue.fail(%s, %s)", [job.id, str(error)])
