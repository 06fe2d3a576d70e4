"""The adapter for clients/python: speaks the protocol of ../README.md. Argument: `def` or `async def`, the kind of
handlers.

The handlers are written once, as coroutines. Where they are to be a `def`, `drive` runs one in its thread: then no call
in it suspends.
"""

import asyncio
import base64
import inspect
import json
import logging
import queue
import sys
import threading
import time
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "python/src"))

import psycopg  # noqa: E402
from psycopg.conninfo import make_conninfo  # noqa: E402

import pg_queue  # noqa: E402
from pg_queue import Advance, AesGcm, Fatal, RetryIn, Snooze, Suspend, Task, Throttle, Worker  # noqa: E402

IS_ASYNC = sys.argv[1] == "async def"
writing = threading.Lock()
in_main = queue.SimpleQueue()


def say(**message):
    with writing:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class Log(logging.Handler):
    def emit(self, record):
        say(event="log", text=record.getMessage())


class Speechless(Exception):
    def __str__(self):
        raise ValueError("no words")


def drive(coroutine):
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a handler that is a def has suspended")


async def settled(value):
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(manager):
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


class Running:
    """A worker and its gates."""

    def __init__(self, call):
        self.name, self.gates, self.lock = call["worker"], set(), threading.Lock()
        names = ("seconds", "kind", "queue", "job_id", "attempt_id", "attempt", "error")
        tell = lambda event: say(event="worker", worker=self.name, **{name: getattr(event, name) for name in names})
        given = options(call)
        if IS_ASYNC and "codec" in given:
            given["codec"] = AsyncCodec(given["codec"])
        if "effects" in call:
            given["effects"] = conninfo(call["effects"])
        self.worker = Worker(conninfo(call["connection"]), on_event=tell, **given)
        for handler in call["handlers"]:
            more = {name: handler.get(name) for name in ("stage", "batch", "timeout")}
            self.worker.handler(handler["queue"], **more)(self.handler(handler))
        self.mode = call["mode"]

    def handler(self, handler):
        actions, is_batch = handler["do"], handler.get("batch") is not None
        if IS_ASYNC:

            async def handle(argument):
                return await Handling(self, list(argument) if is_batch else [argument], argument).all(actions)
        else:

            def handle(argument):
                return drive(Handling(self, list(argument) if is_batch else [argument], argument).all(actions))

        return handle

    def run(self):
        error = None
        try:
            if self.mode == "drain":
                self.worker.drain()
            else:
                self.worker.run()
        except Exception as raised:
            error = str(raised)
        say(event="ended", worker=self.name, error=error)


class Handling:
    """One call of a handler, with a job or a batch."""

    def __init__(self, running, jobs, argument):
        self.running, self.jobs, self.argument = running, jobs, argument
        self.job, self.step, self.inputs, self.is_batch = jobs[0], None, None, argument is not jobs[0]

    def fill(self, value):
        if isinstance(value, dict):
            return {name: self.fill(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.fill(one) for one in value]
        if isinstance(value, str) and value.startswith("$"):
            own = {"$step": self.step, "$inputs": self.inputs, "$size": len(self.jobs)}
            return own[value] if value in own else getattr(self.job, value[1:])
        return value

    async def all(self, actions, tx=None):
        """Runs the actions until one of them is an end, and returns what that returns."""
        for action in actions:
            condition = action.get("if", {})
            if all(getattr(self.job, name) == value for name, value in condition.items()):
                name = next(name for name in action if name != "if")
                is_end, result = await getattr(self, f"do_{name}")(self.fill_of(name, action), tx)
                if is_end:
                    return result
        return None

    def fill_of(self, name, action):
        # Nested actions are filled when they run.
        return {key: value if key in ("do", "transaction", "else", "each", "if") else self.fill(value) for key,
            value in action.items()}

    # The actions that end the handler.

    async def do_return(self, action, tx):
        return True, action["return"]

    async def do_fail(self, action, tx):
        cause = ValueError(action["cause"]) if "cause" in action else None
        raise ValueError(action["fail"]) from cause

    async def do_fail_unreadably(self, action, tx):
        raise Speechless

    async def do_return_unserialisable(self, action, tx):
        return True, {1}

    async def do_fatal(self, action, tx):
        raise Fatal(action["fatal"])

    async def do_retry_in(self, action, tx):
        raise RetryIn(action["retry_in"], action.get("error", ""))

    async def do_snooze(self, action, tx):
        raise Snooze(action["snooze"])

    async def do_throttle(self, action, tx):
        raise Throttle(action["throttle"], group=action.get("group", False))

    async def do_advance(self, action, tx):
        if tx is None:
            return True, Advance(**action["advance"])
        await settled(self.job.advance(tx, **action["advance"]))
        return False, None

    async def do_suspend(self, action, tx):
        suspend = dict(action["suspend"])
        if "until" in suspend:
            suspend["until"] = datetime.now(timezone.utc) + timedelta(seconds=suspend["until"])
        if tx is None:
            return True, Suspend(**suspend)
        await settled(self.job.suspend(tx, **suspend))
        return False, None

    async def do_each(self, action, tx):
        return True, [await self.of_one(job, action["each"]) for job in self.jobs]

    async def of_one(self, job, actions):
        try:
            return await Handling(self.running, [job], job).all(actions)
        except Exception as error:
            return error

    # The other actions of a handler.

    async def do_note(self, action, tx):
        say(event="note", worker=self.running.name, value=action["note"])
        return False, None

    async def do_wait(self, action, tx):
        is_deaf = action.get("deaf", False)
        try:
            while action["wait"] not in self.running.gates:
                try:
                    if IS_ASYNC:
                        await asyncio.sleep(0.005)
                    else:
                        time.sleep(0.005)
                        if not is_deaf and all(job.stop_reason for job in self.jobs):
                            self.argument.check()
                except asyncio.CancelledError:
                    if not is_deaf:
                        raise
        except BaseException:
            say(event="stopped", worker=self.running.name, reason=self.job.stop_reason)
            raise
        return False, None

    async def do_progress(self, action, tx):
        await settled(self.job.save_progress(action["progress"]))
        return False, None

    async def do_charge(self, action, tx):
        await settled(self.job.charge(action["charge"]))
        return False, None

    async def do_read_inputs(self, action, tx):
        found = sorted(await settled(self.job.inputs()), key=lambda one: one.job_id)
        self.inputs = [{"queue": one.queue, "task": one.task, "state": one.state, "result": one.result,
            "error": one.error} for one in found]
        return False, None

    async def do_step(self, action, tx):
        async def work(conn):
            await self.all(action.get("do", []), conn)
            return action.get("result")

        self.step = await settled(self.job.step(action["step"], work if IS_ASYNC else lambda conn: drive(work(conn))))
        return False, None

    async def do_transaction(self, action, tx):
        try:
            manager = self.argument.transaction() if self.is_batch else self.job.transaction(action.get("result"))
            async with entered(manager) as conn:
                await self.all(action["transaction"], conn)
        except psycopg.Error:
            if "else" not in action:
                raise
            return True, await self.all(action["else"])
        return False, None

    async def do_complete(self, action, tx):
        await settled(self.job.complete(tx))
        return False, None

    async def do_sql(self, action, tx):
        for job in self.jobs:
            await settled(tx.execute(action["sql"].format(job_id=job.job_id, id=job.id, attempt=job.attempt)))
        return False, None

    async def do_enqueue(self, action, tx):
        many = pg_queue.enqueue_many_async if IS_ASYNC else pg_queue.enqueue_many
        job = action["enqueue"]
        await settled(many(tx, job["queue"], job["payloads"], **options(job)))
        return False, None


def conninfo(connection):
    first = dict(connection[0], host=",".join(one["host"] for one in connection))
    return make_conninfo(**first)


class AsyncCodec:
    """A codec whose hooks are awaited."""

    def __init__(self, codec):
        self.codec = codec

    async def encode(self, value, context):
        await asyncio.sleep(0)
        return self.codec.encode(value, context)

    async def decode(self, stored, context):
        await asyncio.sleep(0)
        return self.codec.decode(stored, context)


def options(call):
    found = dict(call.get("options", {}))
    if "codec" in found:
        keys = {key: base64.b64decode(text) for key, text in found["codec"]["keys"].items()}
        found["codec"] = AesGcm(**{**found["codec"], "keys": keys})
    for name in ("run_at", "version", "start_by"):
        if name in found:
            found[name] = datetime.fromtimestamp(found[name], timezone.utc)
    return found


def task(fields):
    fields = dict(fields)
    return Task(fields.pop("task"), **options({"options": fields}))


PRODUCERS = {
    "enqueue": lambda conn, call: (
        pg_queue.enqueue_many(conn, call["queue"], call["payloads"], **options(call))
        if "payloads" in call
        else pg_queue.enqueue(conn, call["queue"], *([call["payload"]] if "payload" in call else []), **options(call))
    ),
    "publish": lambda conn, call: pg_queue.publish(conn, call["topic"], call["payload"], **options(call)),
    "enqueue_flow": lambda conn, call: pg_queue.enqueue_flow(
        conn,
        call["queue"],
        map(task, call.get("tasks", [])),
        call.get("payload", {}),
        **options({"options": call.get("flow", {})}),
    ),
    "seal": lambda conn, call: pg_queue.seal(conn, call["flow"]),
    "resolve": lambda conn, call: pg_queue.resolve(conn, call["flow"], call["result"]),
    "reject": lambda conn, call: pg_queue.reject(conn, call["flow"], call["error"]),
}


def produce(call):
    with psycopg.connect(conninfo(call["connection"])) as conn:
        result = PRODUCERS[call["call"]](conn, call)
        if call.get("rollback"):
            conn.rollback()
        return result


workers = {}


def perform(call):
    name = call["call"]
    if name == "start":
        running = workers[call["worker"]] = Running(call)
        if running.mode == "run":
            in_main.put(running.run)
        else:
            threading.Thread(target=running.run, daemon=True).start()
    elif name == "stop":
        workers[call["worker"]].worker.stop()
    elif name == "go":
        workers[call["worker"]].gates.add(call["gate"])
    else:
        return produce(call)
    return None


def answer(call):
    try:
        say(id=call["id"], result=perform(call))
    except Exception as error:
        say(id=call["id"], error=str(error) or type(error).__name__, sqlstate=getattr(error, "sqlstate", None))


def read():
    for line in sys.stdin:
        call = json.loads(line)
        if call["call"] in PRODUCERS:
            threading.Thread(target=answer, args=(call,), daemon=True).start()
        else:
            answer(call)
    in_main.put(None)


logging.getLogger("pg_queue").addHandler(Log())
logging.getLogger("pg_queue").propagate = False
say(event="hello", has=["surrogates", "unserialisable", "integers", "deaf", "trace", "untyped", "status"])
threading.Thread(target=read, daemon=True).start()
# A worker that handles signals needs the main thread, and the process ends with it.
work = in_main.get()
if work is not None:
    work()
