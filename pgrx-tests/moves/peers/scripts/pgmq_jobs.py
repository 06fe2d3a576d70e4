"""pgmq: see ../peer.py for the verbs."""

import json
import sys
import threading
import time
from importlib.resources import files

import psycopg
from common import CONNINFO, begin, finish, is_quiet, say, seconds

# MyQueue and myqueue name the same table.
QUEUES = {"Emails": "read", "myqueue": "read", "fast": "read", "fifo": "read_grouped"}


def fill(conn):
    conn.execute((files("pgmq") / "sql/pgmq.sql").read_text())
    for name in ("Emails", "MyQueue", "myqueue", "fifo", "Ghost", "ghost"):
        conn.execute("SELECT pgmq.create(%s)", [name])
    conn.execute("SELECT pgmq.create_unlogged('fast')")
    conn.execute("SELECT pgmq.drop_queue('ghost')")

    def send(queue, label, headers=None, delay=0, **asked):
        conn.execute("SELECT pgmq.send(%s, %s, %s, %s::int)",
                     [queue, json.dumps({"label": label}), json.dumps(headers) if headers else None, delay])
        say(label=label, queue=queue.lower(), delay=delay or None, **asked)

    def read(queue, vt):
        return conn.execute("SELECT msg_id FROM pgmq.read(%s, %s::int, 1)", [queue, vt]).fetchone()[0]

    send("Emails", "running")
    read("Emails", 600)
    send("Emails", "archived")
    conn.execute("SELECT pgmq.archive('Emails', %s::bigint)", [read("Emails", 600)])
    send("Emails", "given back")
    conn.execute("SELECT pgmq.set_vt('Emails', %s::bigint, 0)", [read("Emails", 600)])
    send("Emails", "first")
    send("emails", "second", {"trace": "b7"})
    send("Emails", "late", delay=3600)
    send("Emails", "strange headers", [1])
    send("MyQueue", "upper")
    send("myqueue", "lower")
    send("fast", "unlogged")
    send("fifo", "head in flight", {"x-pgmq-group": "busy"}, lock="busy")
    read("fifo", 600)
    send("fifo", "behind", {"x-pgmq-group": "busy"}, lock="busy")
    for n in (1, 2, 3):
        send("fifo", f"grouped {n}", {"x-pgmq-group": "a"}, lock="a")
    for n in (1, 2):
        send("fifo", f"no group {n}", lock="none")


def work(concurrency):
    def serve(queue, how):
        with psycopg.connect(CONNINFO, autocommit=True) as conn:
            while not is_quiet(1):
                rows = conn.execute(f"SELECT msg_id, message FROM pgmq.{how}(%s, 600, 1)", [queue]).fetchall()
                for id, message in rows:
                    begin(message["label"], queue.lower())
                    time.sleep(seconds(concurrency))
                    finish(message["label"])
                    conn.execute("SELECT pgmq.delete(%s, %s::bigint)", [queue, id])
                time.sleep(0.02)

    threads = [threading.Thread(target=serve, args=one) for one in QUEUES.items() for _ in range(min(concurrency, 3))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


with psycopg.connect(CONNINFO, autocommit=True) as conn:
    if sys.argv[1] == "fill":
        fill(conn)
    elif sys.argv[1] == "late":
        conn.execute("""SELECT pgmq.send('Emails', '{"label": "later"}')""")
    else:
        work(int(sys.argv[2]))
