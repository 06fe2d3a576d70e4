"""Mistakes of users, and their errors: an expression, and a pattern for the error that it raises."""

import asyncio
import datetime
import numbers
import re
import sys

import psycopg
import pytest
from psycopg.types.json import Jsonb

import pg_queue
from pg_queue import Worker, enqueue

CONNECTION = r"the first argument is a psycopg.Connection, not of type \w+: within Django's atomic\(\) that is"
LENGTH = r"\w+ is a timedelta or a number of seconds, not "

MISTAKES = [
    # Connections.
    ('enqueue("emails", {"to": "a"})', CONNECTION),
    ('enqueue(None, "emails")', CONNECTION),
    ("enqueue(conn.cursor(), 'a')", CONNECTION),
    ('enqueue_many(object(), "a", [])', CONNECTION),
    ('publish(object(), "t")', CONNECTION),
    ('enqueue_flow(object(), "a")', CONNECTION),
    ("asyncio.run(pg_queue.enqueue_async(conn, 'a'))", "for this connection there is the function without _async"),
    # Queues and payloads.
    ("enqueue(conn, 7)", "queue is a str, not 7"),
    ("enqueue(conn, ['a'])", "queue is a str, not of type list"),
    ("publish(conn, None)", "topic is a str, not None"),
    ("publish(conn, 't', {}, 7)", "key is a str, not 7"),
    ("enqueue_many(conn, 'a', {'a': 1})", r"payloads is a list of payloads, not dict: write \[payload\]"),
    ("enqueue_many(conn, 'a', 'abc')", r"payloads is a list of payloads, not str: write \[payload\]"),
    ("enqueue_many(conn, 'a', 7)", r"payloads is a list of payloads, not int: write \[payload\]"),
    ("enqueue(conn, 'a', object())", "not JSON serializable"),
    # Options.
    ("enqueue(conn, 'a', delay='5 minutes')", LENGTH + "'5 minutes'"),
    ("enqueue(conn, 'a', delay=float('nan'))", LENGTH + "nan"),
    ("enqueue(conn, 'a', unique_for='1 hour')", LENGTH + "'1 hour'"),
    ("enqueue(conn, 'a', lease=[])", LENGTH + "of type list"),
    ("enqueue(conn, 'a', run_at=1700000000)", "run_at is a datetime, not 1700000000"),
    ("enqueue(conn, 'a', run_at='tomorrow')", "run_at is a datetime, not 'tomorrow'"),
    ("enqueue(conn, 'a', run_at=datetime.date.today())", "run_at is a datetime, not of type date"),
    ("enqueue(conn, 'a', unique_key=7)", "unique_key is a str, not 7"),
    ("enqueue(conn, 'a', group_key=7)", "group_key is a str, not 7"),
    ("enqueue(conn, 'a', priority=1.5)", "priority is an int, not 1.5"),
    ("enqueue(conn, 'a', priority='high')", "priority is an int, not 'high'"),
    ("enqueue(conn, 'a', priority=True)", "priority is an int, not True"),
    ("enqueue(conn, 'a', max_attempts='5')", "max_attempts is an int, not '5'"),
    ("enqueue(conn, 'a', after=31)", r"after is a list of job ids, not 31: write \[job_id\]"),
    ("enqueue(conn, 'a', after='31')", r"after is a list of job ids, not '31': write \[job_id\]"),
    ("enqueue(conn, 'a', after=['31'])", "each of after is an int, not '31'"),
    ("enqueue(conn, 'a', headers='x')", "headers is a dict, not 'x'"),
    ("enqueue(conn, 'a', headers=[1])", "headers is a dict, not of type list"),
    ("enqueue(conn, 'a', start_within='5 minutes')", LENGTH + "'5 minutes'"),
    ("enqueue(conn, 'a', start_by=5)", "start_by is a datetime, not 5"),
    ("enqueue(conn, 'a', start_witin=5)", "unexpected keyword argument 'start_witin'"),
    ("enqueue(conn, 'a', prio=1)", "unexpected keyword argument 'prio'"),
    ("publish(conn, 't', stage='x')", "unexpected keyword argument 'stage'"),
    ("publish(conn, 't', mandatory='yes')", "mandatory is a bool, not 'yes'"),
    ("Snooze('5 minutes')", LENGTH + "'5 minutes'"),
    ("RetryIn(float('nan'))", LENGTH + "nan"),
    # Flows.
    ("enqueue_flow(conn, 'a', [{'task': 'x'}])", "each of tasks is a pg_queue.Task, not of type dict"),
    ("enqueue_flow(conn, 'a', ['x'])", "each of tasks is a pg_queue.Task, not 'x'"),
    ("Task('b', after='a')", r"after is a list of names of tasks, not 'a': write \['a'\]"),
    ("enqueue_flow(conn, 'a', max_delay=1)", "unexpected keyword argument 'max_delay'"),
    ("Task('b', prio=1)", "a task has no option 'prio'"),
    ("Task('b', max_delay=1)", "a task has no option 'max_delay'"),
    ("Task('b', delay='1 h')", LENGTH + "'1 h'"),
    ("Task({'to': 'a'})", "a task's name is a str, not of type dict"),
    # Workers.
    ("Worker({'dbname': 'app'})", "conninfo is a str such as .* not of type dict"),
    ("Worker(conn)", "conninfo is a str such as .* not of type Connection"),
    ("Worker('', concurrency='10')", "concurrency is an int of at least 1, not '10'"),
    ("Worker('', concurrency=0)", "concurrency is an int of at least 1, not 0"),
    ("Worker('', prefetch=-1)", "prefetch is an int of at least 0, not -1"),
    ("Worker('', max_connections=0)", "max_connections is an int of at least 1, not 0"),
    ("Worker('', wait=-1)", "wait is a number of seconds, not -1"),
    ("Worker('', wait='10 s')", "wait is a number of seconds, not '10 s'"),
    ("Worker('', heartbeat=0)", "heartbeat is a number of seconds above 0, not 0"),
    ("Worker('', stall_timeout=0)", "stall_timeout is a number of seconds above 0, not 0"),
    ("Worker('', timeout=0)", "timeout is a number of seconds above 0, not 0"),
    ("worker.handler('a', timeout=0)", "timeout is a number of seconds above 0, not 0"),
    ("Worker('', timeout='1 min')", "timeout is a number of seconds, not '1 min'"),
    ("Worker('', lease='5 minutes')", LENGTH + "'5 minutes'"),
    ("Worker('').handler('a', stage=['a'])", "stage is a str, not of type list"),
    ("Worker('', disconnect='10 s')", "disconnect is a number of seconds, not '10 s'"),
    ("Worker('', on_unknown='drop')", "on_unknown must be 'release' or 'fail', not 'drop'"),
    ("Worker('', codec='aes')", "codec is an object with the methods encode, decode, not 'aes'"),
    ("Worker('', on_event=7)", "on_event is an object with the methods __call__, not 7"),
    ("Worker('', retries=3)", "unexpected keyword argument 'retries'"),
    ("worker.handler(len)", 'name the queues of the handler, such as @worker.handler\\("emails"\\)'),
    ("worker.handler()", 'name the queues of the handler, such as @worker.handler\\("emails"\\)'),
    ("(own := Worker('')).handler('a')(len) and own.handler('a')(len)", "queue 'a' has a handler"),
    ("worker.handler('a', batch=0)", "batch is an int of at least 1, not 0"),
    ("worker.handler('a', timeout='1 min')", "timeout is a number of seconds, not '1 min'"),
    ("Worker('').run()", "a worker needs a handler"),
]

HANDLERS = [
    ("[job.step('charge', lambda conn: 1) for _ in range(3)]", 'step "charge" has already run in this attempt'),
    ("Suspend(after=31)", r"after is a list of job ids, not 31: write \[job_id\]"),
    ("job.suspend(conn, after=31)", r"after is a list of job ids, not 31: write \[job_id\]"),
    ("Snooze('5 minutes')", LENGTH),
    ("{1, 2}", "not JSON serializable"),
    ("float('nan')", "not JSON compliant"),
]


@pytest.mark.parametrize("mistake,said", MISTAKES)
def test_the_error_says_what_to_do(conn, mistake, said):
    names = {**vars(pg_queue), "conn": conn, "worker": Worker(""), "pg_queue": pg_queue}
    with pytest.raises((TypeError, ValueError), match=said):
        eval(mistake, {**names, "asyncio": asyncio, "datetime": datetime})
    assert not names["worker"].handlers


@pytest.mark.parametrize("mistake,said", HANDLERS)
def test_the_error_of_the_attempt_says_what_to_do(conn, conninfo, mistake, said):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        return eval(mistake, {**vars(pg_queue), "job": job, "conn": conn})

    worker.drain()
    state, error = conn.execute("SELECT state, error FROM queue.job(%s)", [job_id]).fetchone()
    assert state == "dead" and re.search(said, error), error


def test_a_middleware_that_does_not_call_the_handler_fails_the_attempt(conn, conninfo):
    ids = [enqueue(conn, "a", max_attempts=1), enqueue(conn, "b", max_attempts=1)]
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        pass

    @worker.handler("b")
    async def handle_async(job):
        pass

    @worker.middleware
    def around(job, call):
        pass

    @worker.middleware
    async def around_async(job, call):
        pass

    worker.drain()
    for job_id in ids:
        state, error = conn.execute("SELECT state, error FROM queue.job(%s)", [job_id]).fetchone()
        assert (state, error) == ("dead", "RuntimeError: a middleware has not called the handler")


def test_a_payload_that_is_json_text_gives_a_warning(conn):
    with pytest.warns(UserWarning, match="without json.dumps"):
        enqueue(conn, "a", '{"to": "a"}')
    enqueue(conn, "a", "[sic]")
    job_id = enqueue(conn, "a", Jsonb({"to": "a"}))
    assert conn.execute("SELECT payload FROM queue.job(%s)", [job_id]).fetchone() == ({"to": "a"},)


@pytest.mark.parametrize("batch", [None, 3])
def test_a_transaction_that_is_not_awaited_fails_the_attempt(conn, conninfo, batch):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker, tasks = Worker(conninfo), []

    @worker.handler("a", batch=batch)
    async def handle(argument):
        async def later():
            async with argument.transaction() as there:
                await there.execute("SELECT pg_sleep(0.5)")

        tasks.append(asyncio.ensure_future(later()))
        await asyncio.sleep(0.1)

    worker.drain()
    state, error = conn.execute("SELECT state, error FROM queue.job(%s)", [job_id]).fetchone()
    assert state == "dead" and "before its job.transaction had ended: await it" in error


@pytest.mark.parametrize("commits,state,error", [(False, "dead", "ValueError: after"), (True, "completed", None)])
def test_a_completion_on_another_connection_counts_if_it_commits(conn, conninfo, commits, state, error):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        with psycopg.connect(conninfo) as own:
            job.complete(own)
            if commits:
                own.commit()
            raise ValueError("after")

    assert [event.kind for event in worker.drain()][-1] == ("completed" if commits else "failed")
    assert conn.execute("SELECT state, error FROM queue.job(%s)", [job_id]).fetchone() == (state, error)


def test_a_completion_that_has_rolled_back_can_be_repeated(conn, conninfo):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)

    @worker.handler("a")
    def handle(job):
        with psycopg.connect(conninfo) as own:
            job.complete(own)
            own.rollback()
        with job.transaction("again"):
            pass

    worker.drain()
    assert conn.execute("SELECT state, result FROM queue.job(%s)", [job_id]).fetchone() == ("completed", "again")


ROLLED_BACK = {
    "block": ("completed", None),
    "savepoint": ("completed", "the transaction's"),
    "own": ("completed", "returned"),
    "own, then raises": ("dead", None),
    "own, commits": ("completed", "its own"),
    "savepoint, commits": ("completed", "its own"),
}


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("how", ROLLED_BACK)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_end_counts_if_its_transaction_commits(conn, conninfo, kind, how, batch):
    """`how` names what is rolled back. The last two cases commit."""
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)
    returned = "returned" if batch is None else ["returned"]

    def finish():
        if "commits" not in how:
            raise psycopg.Rollback

    def handle(argument):
        job = argument if batch is None else argument[0]
        if how.startswith("own"):
            with psycopg.connect(conninfo) as own, own.transaction():
                job.complete(own, "its own")
                finish()
            if "raises" in how:
                raise ValueError("after")
            return returned
        with job.transaction("the transaction's") as there:
            if how == "block":
                job.complete(there)
                finish()
            with there.transaction():
                job.complete(there, "its own")
                finish()

    async def handle_async(argument):
        job = argument if batch is None else argument[0]
        if how.startswith("own"):
            async with await psycopg.AsyncConnection.connect(conninfo) as own, own.transaction():
                await job.complete(own, "its own")
                finish()
            if "raises" in how:
                raise ValueError("after")
            return returned
        async with job.transaction("the transaction's") as there:
            if how == "block":
                await job.complete(there)
                finish()
            async with there.transaction():
                await job.complete(there, "its own")
                finish()

    worker.handler("a", batch=batch)(handle if kind == "def" else handle_async)
    worker.drain()
    assert conn.execute("SELECT state, result FROM queue.job(%s)", [job_id]).fetchone() == ROLLED_BACK[how]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_batch_that_is_rolled_back_does_not_count(conn, conninfo, kind):
    ids = [enqueue(conn, "a") for _ in range(2)]
    worker = Worker(conninfo)

    def handle(batch):
        with batch.transaction() as there:
            for job in batch:
                job.complete(there)
            raise psycopg.Rollback

    async def handle_async(batch):
        async with batch.transaction() as there:
            for job in batch:
                await job.complete(there)
            raise psycopg.Rollback

    worker.handler("a", batch=2)(handle if kind == "def" else handle_async)
    worker.drain()
    for job_id in ids:
        assert conn.execute("SELECT state FROM queue.job(%s)", [job_id]).fetchone() == ("completed",)


def test_a_middleware_may_end_the_job_itself(conn, conninfo, caplog):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)
    worker.handler("a")(lambda job: None)

    @worker.middleware
    def around(job, call):
        with job.transaction("done before"):
            pass

    worker.drain()
    assert conn.execute("SELECT state, result FROM queue.job(%s)", [job_id]).fetchone() == ("completed", "done before")
    assert "middleware" not in caplog.text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of errors are of Python 3.11")
def test_the_error_of_the_attempt_names_the_errors_of_a_group(conn, conninfo):
    job_id = enqueue(conn, "a", max_attempts=1)
    worker = Worker(conninfo)

    @worker.handler("a")
    async def handle(job):
        async def fail():
            raise ValueError("the reason")

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    worker.drain()
    (error,) = conn.execute("SELECT error FROM queue.job(%s)", [job_id]).fetchone()
    assert error.endswith(": ValueError: the reason")


class Number:
    """An integer that is no `int`, such as one of numpy."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


numbers.Integral.register(Number)


class Passing:
    """A wrapped connection, as SQLAlchemy returns it."""

    def __init__(self, conn):
        self.driver_connection = conn

    def __getattr__(self, name):
        return getattr(self.driver_connection, name)


def test_other_integers_and_wrapped_connections_are_accepted(conn):
    first = enqueue(Passing(conn), "a", priority=Number(5))
    job_id = enqueue(conn, "a", after=[Number(first)])
    assert conn.execute("SELECT state FROM queue.job(%s)", [job_id]).fetchone() == ("held",)
    assert Worker("", concurrency=Number(3)).concurrency == 3
