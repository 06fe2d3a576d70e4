"""What the scripts of the peers for Python share: printing, and the handler of all jobs."""

import json
import os
import time

CONNINFO = f"host={os.environ['PGHOST']} user=postgres dbname={os.environ['PGDATABASE']}"
URL = f"postgresql://postgres@localhost/{os.environ['PGDATABASE']}?host={os.environ['PGHOST']}"
last = time.monotonic()


def say(**fields):
    line = json.dumps({name: value for name, value in fields.items() if value is not None})
    os.write(1, f"{line}\n".encode())  # in one piece: handlers are threads


def begin(label, queue=None):
    """Notes that a job has begun."""
    global last
    last = time.monotonic()
    say(run=label, queue=queue)


def finish(label):
    """Notes that a job has ended, and fails as its label asks."""
    global last
    last = time.monotonic()
    say(end=label)
    if label.startswith("fail"):
        raise RuntimeError("asked to fail")


def seconds(concurrency):
    """How long a handler takes."""
    return 0.2 if concurrency > 1 else 0.05


def is_quiet(wait):
    """Returns whether no job has begun or ended for this many seconds."""
    return time.monotonic() - last > wait
