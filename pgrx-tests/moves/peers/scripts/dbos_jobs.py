"""DBOS: see ../peer.py for the verbs."""

import json
import os
import sys
import time

import common
import psycopg
from common import CONNINFO, begin, finish, is_quiet, say, seconds
from dbos import DBOS, SetEnqueueOptions

URL = f"postgresql://postgres@localhost:5432/{os.environ['PGDATABASE']}?host={os.environ['PGHOST']}"
QUEUES = ("mail", "Mail", "grouped")
concurrency = int(sys.argv[2]) if len(sys.argv) > 2 else 1
DBOS(config={"name": "moves", "system_database_url": URL, "run_admin_server": False, "log_level": "CRITICAL",
             "application_version": "1", "executor_id": "one"})


@DBOS.workflow(name="work")
def work_on(label):
    begin(label)
    time.sleep(seconds(concurrency))
    finish(label)


@DBOS.step()
def step():
    return 1


@DBOS.workflow(name="long")
def long(label):
    step()
    DBOS.sleep(3600)


def register():
    for name in ("mail", "Mail"):
        DBOS.register_queue(name, worker_concurrency=concurrency, polling_interval_sec=0.1)
    DBOS.register_queue("grouped", partition_concurrency=1, polling_interval_sec=0.1)


def fill(conn):
    DBOS.listen_queues([])
    DBOS.launch()
    register()

    def enqueue(label, queue="mail", delay=None, key=None, group=None, priority=None, lock=None):
        time.sleep(0.003)  # workflows of one millisecond may be in any order
        until = int((time.time() + delay) * 1000) if delay else None
        conn.execute(
            "SELECT dbos.enqueue_workflow('work', %s, named_args => %s::json, deduplication_id => %s::text,"
            " queue_partition_key => %s::text, priority => %s::int, delay_until_epoch_ms => %s::bigint)",
            [queue, json.dumps({"label": label}), key, group, priority, until])
        say(label=label, queue=queue, delay=delay, key=key, lock=lock)

    enqueue("first")
    enqueue("second")
    enqueue("priority 2", priority=2)
    enqueue("priority 1", priority=1)
    enqueue("late", delay=3600)
    enqueue("keyed", key="k")
    enqueue("case", queue="Mail")
    enqueue("fail fresh")
    for n in (1, 2, 3):
        enqueue(f"grouped {n}", queue="grouped", group="a", lock="a")
    enqueue("other group", queue="grouped", group="b")
    with SetEnqueueOptions(priority=1):
        DBOS.enqueue_workflow("mail", work_on, "pickled")
    say(label="pickled", queue="mail")
    DBOS.start_workflow(long, "running")
    say(label="running", queue="mail")
    conn.execute("INSERT INTO dbos.queues (name, rate_limit_max, rate_limit_period_sec, partition_rate_limit_max,"
                 " partition_rate_limit_period_sec, partition_queue) VALUES ('rates', 100, 3600, 5, 1, true)")
    enqueue("two rates", queue="rates", group="a")
    for label, more in (("timed", "timeout_ms => 60000"), ("deadline", "deadline_epoch_ms => 2e12::bigint"),
                        ("told", "workflow_id => 'told'")):
        conn.execute(f"SELECT dbos.enqueue_workflow('work', 'mail', named_args => %s::json, {more})",
                     [json.dumps({"label": label})])
        say(label=label, queue="mail")
    conn.execute("SELECT dbos.send_message('told', '{}'::json)")
    enqueue("cancelled")
    find = "SELECT workflow_uuid FROM dbos.workflow_input WHERE inputs LIKE %s"
    DBOS.cancel_workflow(conn.execute(find, ['%"cancelled"%']).fetchone()[0])
    time.sleep(0.5)


def work():
    DBOS.launch()
    register()
    common.last = time.monotonic()
    while not is_quiet(1.5):
        time.sleep(0.05)


with psycopg.connect(CONNINFO, autocommit=True) as conn:
    if sys.argv[1] == "fill":
        fill(conn)
    elif sys.argv[1] == "late":
        conn.execute("""SELECT dbos.enqueue_workflow('work', 'mail', named_args => '{"label": "later"}')""")
    else:
        work()
# A sleeping workflow would delay an orderly exit.
os._exit(0)
