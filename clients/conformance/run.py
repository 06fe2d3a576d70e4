#!/usr/bin/env python3
"""Runs the scenarios of `scenarios/*.json` with the adapter of each package, on throw-away servers. README.md is the
page.

Responsible for the steps of scenarios and what they expect. Not responsible for servers and processes (`place`), nor
for what a handler does: the adapters do that. Invariant: a step waits for a fact with a deadline, never for time to
pass.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue

from place import Adapter, CLIENTS, Failed, HERE, Pair, Place, Proxy, Worker, dead_log, silent, until
import psycopg  # noqa: E402
from pg_queue import AesGcm, Context  # noqa: E402
from pg_queue.testing import Server  # noqa: E402


NAMED = re.compile(r"@(\w+)(?:\[(\d+)\])?")
"""A name in a step's arguments."""

VECTORS = json.loads((HERE / "codec.json").read_text())
"""Values that each package has encoded. The other packages decode them."""


class Run:
    """One scenario with one adapter."""

    numbers = itertools.count(1)

    def __init__(self, scenario, adapter, place):
        self.scenario, self.adapter, self.place = scenario, adapter, place
        self.values = {"role": place.role, "name": f"{place.role}_{next(self.numbers)}", "dir": str(place.server.dir),
            **VECTORS["keys"], **{f"by_{one['by']}": one["stored"] for one in VECTORS["encoded"]
                if (one["kind"], one["name"]) == ("payload", "a")}, **scenario["values"]}
        self.workers, self.sessions, self.expects_error = {}, {}, set()
        self.first_log, self.cleanup = len(adapter.logs), ExitStack()

    # `@name` and `@name[2]` stand for a value that an earlier step has stored under the name.

    def fill(self, value):
        """Replaces the names in a step's arguments."""
        if isinstance(value, dict):
            return {NAMED.sub(self._text, name): self.fill(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.fill(one) for one in value]
        if isinstance(value, str):
            whole = NAMED.fullmatch(value)
            if whole and whole[1] in self.values:
                return self._value(whole)
            return NAMED.sub(self._text, value)
        return value

    def _value(self, match):
        found = self.values[match[1]]
        return found[int(match[2])] if match[2] else found

    def _text(self, match):
        if match[1] not in self.values:
            return match[0]
        found = self._value(match)
        return ",".join(map(str, found)) if isinstance(found, list) else str(found)

    def one(self, sql, session=None):
        """Returns the last row of a statement: its value, the list of its values, or None without a row."""
        conn = self.sessions[session]
        cursor = conn.execute(sql)
        rows = cursor.fetchall() if cursor.description else []
        if not rows:
            return None
        row = list(rows[-1])
        return row[0] if len(row) == 1 else row

    def perform(self):
        with self.cleanup:
            self.sessions[None] = self.place.again()
            self.cleanup.callback(lambda: [conn.close() for conn in self.sessions.values()])
            self.cleanup.callback(self.place.stop_pooler)
            self.place.prepare()
            if isinstance(self.place, Pair):
                self.values["primary"] = str(self.place.primary.dir)
                self.values["server"] = str(self.place.server.dir)
                self.sessions["primary"] = self.place.connect_primary()
            self.cleanup.callback(self.end_workers)
            for number, step in enumerate(self.scenario["steps"], 1):
                try:
                    self.step(self.fill(step))
                except Exception as error:
                    said = "".join(f"\n    {line[:300]}" for line in self.adapter.logs[self.first_log:][-15:])
                    kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
                    happened = {name: (one.kinds()[-20:], one.notes[-20:], one.ended) for name,
                        one in self.workers.items()}
                    what = f"step {number}, {json.dumps(step)[:200]}: {kind}{error}"
                    raise Failed(f"{what}\n    {happened}{said}") from error

    def step(self, step):
        (verb, argument), *more = step.items()
        getattr(self, f"do_{verb}")(argument, **dict(more))

    def end_workers(self):
        """Stops the workers that still run; immediately if the scenario has failed. An error of a worker fails the
        scenario.
        """
        has_failed = sys.exc_info()[0] is not None
        if self.adapter.process.poll() is not None:
            return
        for name, worker in self.workers.items():
            for _ in range(1 + has_failed):
                if worker.ended is None:
                    self.adapter.call("stop", worker=worker.name)
            until(f"worker {name} has ended", lambda worker=worker: worker.ended)
            if worker.ended["error"] and name not in self.expects_error:
                raise Failed(f"worker {name} has ended with {worker.ended['error']}")

    def connection(self, more):
        """Returns the hosts of a connection in the form of the protocol."""
        hosts = more.pop("hosts", [str(self.place.server.dir)])
        given = {"user": "postgres", "dbname": self.place.name, "port": "5432", **more}
        given = {name: value for name, value in given.items() if value is not None}
        return [{"host": host, **given} for host in hosts]

    def compare(self, what, found, expected, progress=lambda: None):
        """Waits until the found value is as expected."""
        last = []

        def holds():
            last[:] = [found()]
            return matches(last[0], expected)

        until(lambda: f"{what} is {str(last[0])[:600]!r}, and not {str(expected)[:600]}", holds, progress=progress)

    # The steps. Each is a verb of a scenario, and README.md says what it does.

    def do_enqueue(self, job, **more):
        if isinstance(job.get("payloads"), int):
            job["payloads"] = list(range(job["payloads"]))
        self.produce("enqueue", job, **more)

    def do_produce(self, call, **more):
        ((name, arguments),) = call.items()
        self.produce(name, arguments, **more)

    def produce(self, name, arguments, error=None, **more):
        kept = more.pop("as", None)
        answer = self.adapter.call(name, connection=self.connection(arguments.pop("connection", {})), **arguments)
        if error is not None:
            if not matches(answer.get("sqlstate") or answer.get("error"), {"matches": error}):
                raise Failed(f"{name} was answered by {answer}")
            return
        if "result" not in answer:
            raise Failed(f"{name} was answered by {answer}")
        if kept:
            self.values[kept] = answer["result"]

    def do_start(self, settings, worker="worker", mode="serve"):
        name = f"{worker}-{next(self.numbers)}"
        connection = self.connection({"application_name": worker, **settings.get("connection", {})})
        handlers = []
        for queue, one in settings["handlers"].items():
            one = one if isinstance(one, dict) else {"do": one}
            common = {"queue": queue, **{key: one[key] for key in one if key not in ("do", "stages")}}
            handlers += [{**common, "do": one["do"]}] if "do" in one else []
            handlers += [{**common, "stage": stage, "do": do} for stage, do in one.get("stages", {}).items()]
        self.workers[worker] = self.adapter.workers[name] = Worker(name)
        more = {"connection": connection, "options": settings.get("options", {}), "handlers": handlers, "mode": mode}
        if "effects" in settings:
            primary = {"hosts": [self.values["primary"]], "application_name": worker}
            more["effects"] = self.connection({**primary, **settings["effects"]})
        answer = self.adapter.call("start", worker=name, **more)
        if "error" in answer:
            self.workers[worker].ended = {"error": answer["error"]}

    def do_drain(self, settings, worker="worker"):
        self.do_start(settings, worker, "drain")
        self.do_ended(None, worker)

    def do_stop(self, is_awaited, worker="worker"):
        self.adapter.call("stop", worker=self.workers[worker].name)
        if is_awaited:
            self.do_ended(None, worker)

    def do_ended(self, error, worker="worker"):
        self.expects_error.add(worker)
        one = self.workers[worker]
        self.compare(f"the end of {worker}", lambda: (one.ended or {"error": "none"})["error"], error,
            lambda: len(one.happened))

    def do_go(self, gate, worker="worker"):
        self.adapter.call("go", worker=self.workers[worker].name, gate=gate)

    def do_sql(self, sql, session=None, begin=False, **more):
        """Runs a statement. With `begin`, it opens a transaction before, and leaves it open."""
        if session not in self.sessions:
            self.sessions[session] = self.place.connect()
        conn = self.sessions[session]

        def answer():
            try:
                if begin:
                    conn.execute("BEGIN")
                return [self.one(sql, session)]
            except psycopg.errors.ObjectInUse:
                # The claim of a running attempt may still be committing. Try again.
                conn.rollback()
        (found,) = until(sql, answer)
        if "as" in more:
            self.values[more["as"]] = found

    def do_lingers(self, _, worker="worker"):
        """Waits until the worker's claim sleeps. The first claim does not sleep: it checks that the queues exist."""
        ours = f"datname = current_database() AND application_name = '{worker}' AND query ~ 'linger'"
        sleeps = "state = 'active' AND wait_event_type = 'Extension' AND clock_timestamp() - query_start > '1 s'"
        self.do_until(f"SELECT count(*) = 1 FROM pg_stat_activity WHERE {ours} AND {sleeps}")

    def do_until(self, sql, session=None, **expected):
        # The deadline starts again with each completed job: a busy machine may need long for hundreds of jobs.
        self.compare(sql, lambda: self.one(sql, session), expected or {"is": True}, self.completed)

    def completed(self):
        """Returns how many jobs the workers have completed."""
        return sum(event["kind"] == "completed" for one in self.workers.values() for event in list(one.happened))

    def do_check(self, sql, session=None, **expected):
        found = self.one(sql, session)
        if not matches(found, expected or {"is": True}):
            raise Failed(f"{str(found)[:600]!r} is not {str(expected)[:600]}")

    def do_decoded(self, sql, kind, name, **expected):
        """Compares a value that the adapter has encoded. The Python package decodes it."""
        keys = {key: base64.b64decode(text) for key, text in VECTORS["keys"].items()}
        found = AesGcm(keys, "k1", strict=True).decode(self.one(sql), Context(kind, name))
        if not matches(found, expected):
            raise Failed(f"{str(found)[:600]!r} is not {str(expected)[:600]}")

    def do_state(self, states):
        for jobs, state in states.items():
            for job in jobs.split(","):
                self.do_job(job, state=state)

    def do_tries(self, count, worker="worker"):
        """Waits until the worker has begun this number of claims."""
        ours = f"datname = current_database() AND application_name = '{worker}' AND query ~ 'claim_any'"
        sql, seen = f"SELECT max(query_start)::text FROM pg_stat_activity WHERE {ours}", set()
        until(f"{count} claims", lambda: seen.add(self.one(sql)) or len(seen) >= count)

    def do_job(self, job, **expected):
        """Waits until columns of `queue.job` have these values."""
        for name, value in expected.items():
            wanted = value if isinstance(value, dict) and "matches" in value else {"is": value}
            sql = f"SELECT {name} FROM queue.job({job})"
            self.compare(f"{name} of job {job}", lambda sql=sql: self.one(sql), wanted)

    def do_events(self, kinds, worker="worker"):
        self.compare("events", self.workers[worker].kinds, {"is": kinds})

    def do_count(self, kind, worker="worker", **expected):
        found = lambda: sum(event["kind"] == kind for event in self.workers[worker].happened)
        if "as" in expected:
            self.values[expected["as"]] = found()
        else:
            self.compare(f"{kind} events", found, expected)

    def do_told(self, kind, worker="worker", **expected):
        """Compares the sorted job ids of the events of a kind."""
        happened = self.workers[worker].happened
        jobs = lambda: sorted(event["job_id"] for event in happened if event["kind"] == kind)
        self.compare(f"the jobs of {kind} events", jobs, expected)

    def do_notes(self, notes, worker="worker", sorted=False):
        found = lambda: sorted_json(self.workers[worker].notes) if sorted else list(self.workers[worker].notes)
        self.compare("notes", found, {"is": notes})

    def do_stops(self, reasons, worker="worker"):
        self.compare("reasons to stop", lambda: list(self.workers[worker].stops), {"is": reasons})

    def do_most(self, most, worker="worker"):
        """Compares the largest number of handlers that ran together: between their notes `in` and `out`."""
        now, found = 0, 0
        for note in self.workers[worker].notes:
            now += {"in": 1, "out": -1}.get(note, 0)
            found = max(found, now)
        if found != most:
            raise Failed(f"{found} ran together")

    def do_log(self, text, times=1):
        """Compares how many log lines of the scenario match. It waits for the first one, unless `times` is 0."""
        lines = lambda: [line for line in self.adapter.logs[self.first_log:] if re.search(text, line)]
        if times:
            until(f"a log line {text}", lines)
        if len(lines()) != times:
            raise Failed(f"logged: {lines()}")

    # The steps about processes and servers.

    def do_signal(self, name):
        self.adapter.process.send_signal(getattr(signal, f"SIG{name}"))

    def do_exit(self, status):
        until("the adapter has ended", lambda: self.adapter.process.poll() is not None)
        if self.adapter.process.returncode != status:
            raise Failed(f"status {self.adapter.process.returncode}")
        self.adapter.reader.join(10)

    def do_again(self, log):
        """Replaces the process of the adapter by a new one."""
        stderr = None if log is True else self.cleanup.enter_context(dead_log(log))
        self.adapter = Adapter(self.adapter.command, stderr)
        self.first_log = 0
        self.workers.clear()
        self.cleanup.callback(self.adapter.close)
        self.cleanup.callback(self.end_workers)

    def do_terminate(self, _):
        """Ends all other connections to the database."""
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database()"
        self.one(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}")

    def do_kill(self, sql):
        """Kills the backend whose process id the statement returns, so that the whole server restarts."""
        os.kill(until("there is such a backend", lambda: self.one(sql)), signal.SIGKILL)

        def is_down():
            try:
                self.one("SELECT 1")
            except psycopg.OperationalError:
                return True
            return False

        until("the server has gone down", is_down)
        self.sessions[None] = self.place.again()

    def do_restart(self, mode):
        self.place.server.restart(mode)
        self.sessions[None] = self.place.again()

    def do_down(self, mode):
        """Stops the primary."""
        self.place.primary.stop(mode)
        self.cleanup.callback(self.do_up, True)

    def do_up(self, _):
        """Starts the primary, unless it runs."""
        if not (self.place.primary.dir / "data/postmaster.pid").exists():
            self.place.primary.start()
        self.sessions["primary"] = self.place.connect_primary()

    def do_silence(self, _):
        """Stops the server's processes until the scenario ends."""
        self.cleanup.enter_context(silent(self.place.server))

    def do_pooler(self, mode):
        """Starts PgBouncer in this mode, after it has killed a running one."""
        if self.place.pooler is not None and self.place.pooler.poll() is not None:
            raise Failed("PgBouncer has ended by itself")
        self.place.stop_pooler()
        self.place.start_pooler(mode)

    def do_proxy(self, _):
        """Starts a proxy that answers no cancel request. `@proxy` is its port on 127.0.0.1."""
        proxy = Proxy(self.place.server)
        self.cleanup.callback(proxy.close)
        self.values["proxy"] = str(proxy.port)

    def do_standby(self, which):
        """Starts a standby of the `server` or of the `primary`. `@standby` is its folder."""
        self.standby = self.cleanup.enter_context(Server(hot_standby="on"))
        getattr(self.place, which).base_backup(self.standby)
        self.values["standby"] = str(self.standby.dir)

    def do_promote(self, which):
        """Stops the server or the primary. The promoted standby replaces it until the scenario ends."""
        first = getattr(self.place, which)
        first.stop("immediate")
        self.standby.promote()
        self._take_over(which, self.standby)

        def back():
            self.end_workers()
            first.start()
            self._take_over(which, first)

        self.cleanup.callback(back)

    def _take_over(self, which, server):
        setattr(self.place, which, server)
        if which == "server":
            self.sessions[None] = self.place.again()
        else:
            self.sessions["primary"] = self.place.connect_primary()


def sorted_json(values):
    return sorted(values, key=json.dumps)


def matches(found, expected):
    """Returns whether a value is as expected: `is`, `matches` a pattern, is `less` or `more`. None: it is null."""
    if expected is None:
        return found is None
    if isinstance(expected, str):
        return re.search(expected, str(found)) is not None
    ((how, value),) = expected.items()
    if how == "is":
        return found == value and isinstance(found, bool) == isinstance(value, bool)
    if how == "matches":
        return isinstance(found, str) and re.search(value, found) is not None
    return found is not None and (found < value if how == "less" else found > value)


def scenarios(pattern):
    """Returns the scenarios whose names match, each case as a scenario of its own."""
    found = {}
    for file in sorted((HERE / "scenarios").glob("*.json")):
        for scenario in json.loads(file.read_text()):
            for case, values in scenario.get("cases", {"": {}}).items():
                needs = set(scenario.get("needs", [])) | set(values.get("needs", []))
                name = f"{scenario['name']}[{case}]" if case else scenario["name"]
                if name in found:
                    raise ValueError(f"two scenarios {name}")
                found[name] = {**scenario, "name": name, "values": values, "needs": needs}
    return [scenario for name, scenario in found.items() if re.search(pattern, name)]


class Suite:
    """All scenarios with one adapter: most run side by side on the shared server, some on servers of their own."""

    SIDE_BY_SIDE, ALONE = 5, 2
    """How many scenarios run side by side on the shared server, and how many on servers of their own."""

    def __init__(self, name, command, chosen, shared):
        self.name, self.command, self.chosen, self.shared = name, command, chosen, shared
        self.passed, self.skipped, self.failures, self.times = 0, [], [], []
        self.lock = threading.Lock()

    def run(self):
        adapter = Adapter(self.command)
        self.skipped = [one for one in self.chosen if one["needs"] - adapter.has - {"server", "pair", "process"}]
        chosen = [one for one in self.chosen if one not in self.skipped]
        threads = []

        def queued(needs):
            queue = SimpleQueue()
            for one in chosen:
                if one["needs"] & {"server", "pair"} == needs:
                    queue.put(one)
            return queue

        shared = [(queued(set()), self._shared)]
        alone = [(queued({"server"}), self._own), (queued({"pair"}), self._pair)]
        for works, count in [(shared, self.SIDE_BY_SIDE), (alone, self.ALONE)]:
            threads += [threading.Thread(target=self._work_all, args=(adapter, works)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        adapter.close()

    def _work_all(self, adapter, works):
        for queue, borrow in works:
            self._work(adapter, queue, borrow)

    def _work(self, adapter, queue, borrow):
        place = None
        with ExitStack() as stack:
            while True:
                try:
                    scenario = queue.get_nowait()
                except Empty:
                    return
                place = place or borrow(stack)
                self._perform(scenario, adapter, place)

    def _shared(self, stack):
        return self.shared()

    def _own(self, stack):
        return Place(stack.enter_context(Server()), 0)

    def _pair(self, stack):
        server = stack.enter_context(Server(wal_retrieve_retry_interval="100ms"))
        primary = stack.enter_context(Server(shared_preload_libraries="", wal_level="logical"))
        return Pair(server, primary, 0)

    def _perform(self, scenario, adapter, place):
        begun, own = time.monotonic(), None
        try:
            if "process" in scenario["needs"]:
                own = Adapter(self.command)
            Run(scenario, own or adapter, place).perform()
            with self.lock:
                self.passed += 1
        except Exception as error:
            text = str(error) if isinstance(error, Failed) else traceback.format_exc()
            with self.lock:
                self.failures.append(scenario["name"])
                print(f"FAILED {self.name}: {scenario['name']}: {text}", flush=True)
        finally:
            if own:
                own.close()
            self.times.append((time.monotonic() - begun, scenario["name"]))


def adapters(target):
    """Returns the commands of the adapters in this repository that can run here."""
    found = {
        "python": [sys.executable, str(HERE / "adapters/python.py"), "def"],
        "python-async": [sys.executable, str(HERE / "adapters/python.py"), "async def"],
        "rust": [str(target / "debug/examples/conformance")],
    }
    if (target / "clients/modules").exists():  # prepare-clients says why not
        found["node"] = ["node", str(HERE / "adapters/node.js")]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of adapters: python, python-async, node, rust; all unless given")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=COMMAND", help="one more adapter")
    parser.add_argument("--only", default="", metavar="PATTERN", help="the scenarios whose names match")
    parser.add_argument("--target", type=Path, default=CLIENTS.parent / "target", help="cargo's folder")
    parser.add_argument("--slow", type=int, default=0, metavar="N", help="show the N slowest scenarios")
    options = parser.parse_args()
    more = {name: shlex.split(command) for name, command in (one.split("=", 1) for one in options.adapter)}
    known = adapters(options.target)
    commands = {name: {**known, **more}[name] for name in options.names or (more or known)}
    chosen = scenarios(options.only)
    numbers = itertools.count(1)
    with Server(max_connections=300, **{"pg_queue.max_databases": 32}) as server:
        making = threading.Lock()

        def shared():
            with making:
                return Place(server, next(numbers))

        suites = [Suite(name, command, chosen, shared) for name, command in commands.items()]
        threads = [threading.Thread(target=suite.run) for suite in suites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for suite in suites:
        failed, skipped = len(suite.failures), len(suite.skipped)
        print(f"conformance of {suite.name}: {suite.passed} passed, {failed} failed, {skipped} do not apply")
        for seconds, name in sorted(suite.times, reverse=True)[: options.slow]:
            print(f"  {seconds:6.1f} s {name}")
        if suite.passed + len(suite.failures) + len(suite.skipped) < len(chosen):
            print(f"{suite.name} has not run all scenarios")
            suite.failures.append("all")
    return 1 if any(suite.failures for suite in suites) else 0


if __name__ == "__main__":
    sys.exit(main())
