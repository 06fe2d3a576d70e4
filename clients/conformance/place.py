"""The environment of a scenario: servers, a pooler, processes of adapters, and waiting for a fact.

Responsible for starting and ending them. Not responsible for what a scenario does (`run`).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent
sys.path.insert(0, str(CLIENTS / "python/src"))

import psycopg  # noqa: E402

DEADLINE = 40.0
"""How many seconds a step waits for its fact."""

POOLED = "6432"
"""The port of the pooler; the server's is 5432."""

SCHEMA = """
    SELECT queue.drop(queue_name, force => true) FROM queue.queues WHERE queue_name !~ '^queue_bridge_';
    DROP TABLE IF EXISTS effect;
    CREATE TABLE effect (job_id bigint NOT NULL, attempt int NOT NULL);
    SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
    SELECT queue.create('b', backoff_base => '100 ms', lease => '2 seconds');
    SELECT queue.create('staged', stages => '{x, y}', max_attempts => 1);
"""


ALLOWED = """
    SELECT queue_bridge.allow('shop', queue_name) FROM queue.queues WHERE queue_name !~ '^queue_bridge_';
    SELECT queue_bridge.contact('shop');
"""

THERE = """
    DROP TABLE IF EXISTS effect;
    CREATE TABLE effect (job_id bigint NOT NULL, attempt int NOT NULL);
    TRUNCATE queue_bridge.effect;
"""


CANCEL = 80877102
"""Bytes 4 to 8 of a cancel request."""


class Proxy:
    """Forwards connections to a server. It answers no cancel request, and leaves its connection open."""

    def __init__(self, server):
        self.path = str(server.dir / ".s.PGSQL.5432")
        self.kept = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for one in [self.listener, *self.kept]:
            one.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.kept.append(client)
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client):
        with suppress(OSError):
            first = client.recv(8, socket.MSG_WAITALL)
            if int.from_bytes(first[4:], "big") == CANCEL:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.path)
            self.kept.append(server)
            server.sendall(first)
            threading.Thread(target=self._pump, args=[server, client], daemon=True).start()
            self._pump(client, server)

    def _pump(self, source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class Failed(Exception):
    """A scenario's expectation was not met."""


def until(what, condition, seconds=DEADLINE, progress=lambda: None):
    """Waits until the condition returns a true value, and returns it. `what`: a text, or a function that returns one.

    The deadline starts again whenever `progress` returns another value, for slow machines.
    """
    end, last = time.monotonic() + seconds, progress()
    while True:
        found = condition()
        if found:
            return found
        if progress() != last:
            end, last = time.monotonic() + seconds, progress()
        if time.monotonic() > end:
            raise Failed(f"not within {seconds:.0f} seconds: {what() if callable(what) else what}")
        time.sleep(0.02)


@contextmanager
def silent(server):
    """Stops all processes of the server: its connections stay open, and it answers none.

    The postmaster stops first and goes on last. Otherwise it would start and remove processes meanwhile.
    """
    first = int((server.dir / "data/postmaster.pid").read_text().split()[0])
    os.kill(first, signal.SIGSTOP)
    until("the postmaster has stopped", lambda: Path(f"/proc/{first}/stat").read_text().split(") ")[1][0] == "T")
    children = list(map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split()))
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in [*children, first]:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def dead_log(kind):
    """Opens a stderr that accepts no line: on a `full` disk, or a pipe with a `closed` or idle (`unread`) reader."""
    with ExitStack() as stack:
        if kind == "full":
            writer = open("/dev/full", "wb", buffering=0)
        else:
            reader, writer = [open(end, mode, buffering=0) for end, mode in zip(os.pipe(), ("rb", "wb"))]
            stack.callback(reader.close)
        stack.callback(writer.close)
        if kind == "closed":
            reader.close()
        if kind == "unread":
            os.set_blocking(writer.fileno(), False)
            while writer.write(bytes(1 << 16)):
                pass
            os.set_blocking(writer.fileno(), True)
        yield writer


class Adapter:
    """A process of an adapter. Its events go to the scenario that has started the worker."""

    def __init__(self, command, stderr=None):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            text=True, encoding="utf-8")
        self.logs, self.workers, self.answers = [], {}, {}
        self.ids, self.lock, self.has = itertools.count(1), threading.Lock(), None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        until(f"{command} says hello", lambda: self.has is not None)

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            event = message.get("event")
            if event is None:
                self.answers.pop(message["id"]).put(message)
            elif event == "hello":
                self.has = set(message.get("has", []))
            elif event == "log":
                self.logs.append(message["text"])
            else:
                self.workers[message["worker"]].take(message)

    def call(self, name, **arguments):
        """Returns the answer of the adapter: `{"result": …}` or `{"error": …, "sqlstate": …}`."""
        number, answer = next(self.ids), SimpleQueue()
        self.answers[number] = answer
        with self.lock:
            self.process.stdin.write(json.dumps({"id": number, "call": name, **arguments}) + "\n")
            self.process.stdin.flush()
        try:
            return answer.get(timeout=DEADLINE)
        except Empty:
            raise Failed(f"the adapter has not answered {name}") from None

    def close(self):
        self.process.kill()
        self.process.wait()


class Worker:
    """The events of one worker in a scenario."""

    def __init__(self, name):
        self.name = name
        self.happened, self.notes, self.stops = [], [], []
        self.ended = None

    def take(self, message):
        event = message["event"]
        if event == "note":
            self.notes.append(message["value"])
        elif event == "stopped":
            self.stops.append(message["reason"])
        elif event == "ended":
            self.ended = message
        else:
            self.happened.append(message)

    def kinds(self):
        """Returns the kinds of the jobs' events, sorted by attempt: events of different attempts come in any order."""
        told = [event for event in self.happened if event.get("job_id")]
        return [event["kind"] for event in sorted(told, key=lambda event: event["attempt_id"])]


class Place:
    """A server with a database for one scenario at a time."""

    def __init__(self, server, number):
        self.server, self.role = server, f"clerk_{number}"
        self.name = server.create_database()
        self.pooler = None

    def conninfo(self):
        return self.server.conninfo(self.name)

    def connect(self):
        return psycopg.connect(self.conninfo(), autocommit=True)

    def again(self):
        """Connects as soon as the server takes connections."""

        def attempt():
            try:
                return self.connect()
            except psycopg.OperationalError:
                return None

        return until("the server takes connections", attempt)

    def prepare(self):
        """Makes the queues and tables of a scenario."""
        with self.again() as conn:
            conn.execute(SCHEMA)

    def start_pooler(self, mode):
        program = shutil.which("pgbouncer", path=f"/usr/sbin:{os.environ['PATH']}")
        if not program:
            raise Failed("there is no PgBouncer: run `make clients`, or as root: apt-get install pgbouncer")
        folder, file = self.server.dir, self.server.dir / "pgbouncer.ini"
        (folder / f".s.PGSQL.{POOLED}").unlink(missing_ok=True)
        file.write_text(
            f"[databases]\n* = host={folder} port=5432 user=postgres\n[pgbouncer]\nlisten_port = {POOLED}\n"
            f"unix_socket_dir = {folder}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 8\n"
            "server_round_robin = 1\nserver_reset_query_always = 1\nmax_client_conn = 50\n"
        )
        account = ["--user=postgres"] if os.geteuid() == 0 else []
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.pooler = subprocess.Popen([program, "--quiet", *account, str(file)], **quiet)

        def answers():
            try:
                psycopg.connect(self.server.conninfo(self.name, port=POOLED)).close()
                return True
            except psycopg.OperationalError:
                return False

        until("PgBouncer takes connections", answers)

    def stop_pooler(self):
        if self.pooler is not None:
            self.pooler.kill()
            self.pooler.wait()
            self.pooler = None


class Pair(Place):
    """A queue server and its primary, connected by the bridge: docs/bridge.md. Their databases have the same name."""

    def __init__(self, server, primary, number):
        super().__init__(server, number)
        self.primary = primary
        with primary.connect() as conn:
            conn.execute(f"CREATE DATABASE {self.name}")
        with self.connect_primary() as conn:
            conn.execute((CLIENTS.parent / "bridge/primary.sql").read_text())
        with self.connect() as conn:
            conn.execute("CREATE EXTENSION pg_queue_bridge CASCADE")
            conn.execute("SELECT queue_bridge.connect('shop', %s)", [primary.conninfo(self.name, port=5432)])

    def connect_primary(self):
        return self.primary.connect(self.name)

    def prepare(self):
        super().prepare()
        with self.connect() as conn, self.connect_primary() as there:
            there.execute(THERE)
            conn.execute("ALTER SUBSCRIPTION queue_bridge_shop ENABLE")
            conn.execute(ALLOWED)
            streams = "SELECT state = 'streaming' FROM queue_bridge.sources"
            until("the bridge streams", lambda: conn.execute(streams).fetchone()[0])
