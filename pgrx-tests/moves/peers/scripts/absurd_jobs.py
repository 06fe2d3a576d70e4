"""absurd, by the functions that its SDK calls: see ../peer.py for the verbs."""

import json
import sys
import time

import psycopg
from absurdctl import BUNDLED_SCHEMA_SQL
from common import CONNINFO, begin, say, seconds

QUEUE = "default"


def fill(conn):
    conn.execute(BUNDLED_SCHEMA_SQL)
    conn.execute("SELECT absurd.create_queue(%s)", [QUEUE])

    def spawn(label, delay=None, key=None, **options):
        if key:
            options["idempotency_key"] = key
        conn.execute("SELECT absurd.spawn_task(%s, 'work', %s, %s)",
                     [QUEUE, json.dumps({"label": label}), json.dumps(options)])
        say(label=label, queue=QUEUE, delay=delay, key=key)

    def claim():
        return conn.execute("SELECT run_id, task_id FROM absurd.claim_task('default', 'w', 3600, 1)").fetchone()

    def fail(run, retry_at):
        conn.execute(f"SELECT absurd.fail_run('default', %s, '{{}}', {retry_at})", [run])

    spawn("running")
    claim()
    spawn("done")
    conn.execute("SELECT absurd.complete_run('default', %s, '1')", [claim()[0]])
    spawn("dead", max_attempts=1)
    fail(claim()[0], "NULL")
    spawn("cancelled")
    conn.execute("SELECT absurd.cancel_task('default', %s)", [conn.execute(
        "SELECT task_id FROM absurd.t_default WHERE params ->> 'label' = 'cancelled'").fetchone()[0]])
    spawn("late", delay=3600)
    fail(claim()[0], "now() + interval '1 hour'")
    spawn("asleep")
    conn.execute("SELECT absurd.schedule_run('default', %s, now() + interval '1 hour')", [claim()[0]])
    spawn("step done")
    run, task = claim()
    conn.execute("SELECT absurd.set_task_checkpoint_state('default', %s, 'charge', '1', %s)", [task, run])
    fail(run, "now() + interval '1 hour'")
    spawn("awaits")
    run, task = claim()
    conn.execute("SELECT absurd.await_event('default', %s, %s, 'wait', 'paid')", [task, run])
    spawn("fail retried", max_attempts=3)
    fail(claim()[0], "NULL")
    spawn("first")
    spawn("second")
    spawn("keyed", key="k")
    spawn("headers", headers={"trace": "b7"})
    spawn("fail fresh", max_attempts=2)
    spawn("max delay", cancellation={"max_delay": 3600})
    spawn("max duration", cancellation={"max_duration": 3600})


def work(conn):
    while row := conn.execute("SELECT run_id, params FROM absurd.claim_task(%s, 'w', 30, 1)", [QUEUE]).fetchone():
        label = row[1]["label"]
        begin(label)
        time.sleep(seconds(1))
        say(end=label)
        if label.startswith("fail"):
            conn.execute("SELECT absurd.fail_run(%s, %s, '{}', NULL)", [QUEUE, row[0]])
        else:
            conn.execute("SELECT absurd.complete_run(%s, %s, '1')", [QUEUE, row[0]])


with psycopg.connect(CONNINFO, autocommit=True) as conn:
    if sys.argv[1] == "fill":
        fill(conn)
    elif sys.argv[1] == "late":
        conn.execute("""SELECT absurd.spawn_task('default', 'work', '{"label": "later"}')""")
    else:
        work(conn)
