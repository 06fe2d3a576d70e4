"""A contender for Python: `python.py CONTENDER setup|fill|drain|latency|loud|work CONFIG COUNT`. `run` starts it.

It prints the measurement as JSON. `work` prints the number of each job that has run, a line each, until it is stopped.

Each contender has an empty `async def`, 20 handlers together, and one process. The rate counts from before the worker
connects until it has stopped and all completions are confirmed. The latency counts from before the enqueue, on another
connection, to the handler.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python/src"))

CONCURRENCY = 20
AHEAD = 200

name, what, config, count = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
conninfo = f"host={config['host']} user=postgres dbname={config['database']}"
url = f"postgresql://postgres@localhost:{config['port']}/{config['database']}?host={config['host']}"
ahead = AHEAD if name.endswith("ahead") else 0
logging.disable(logging.CRITICAL)


class PgQueue:
    waiting = "SELECT ready FROM queue.stats WHERE queue_name = 'bench'"

    def __init__(self):
        from pg_queue import Worker, enqueue_async

        self.Worker, self.enqueue_job = Worker, enqueue_async

    async def setup(self, conn):
        await conn.execute("CREATE EXTENSION pg_queue")
        await conn.execute("SELECT queue.create('bench', max_running_per_group => 10)")

    async def fill(self, conn, count, group=None):
        await conn.execute(
            "SELECT queue.enqueue_many('bench', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, %s) AS n),"
            " group_key => %s)",
            [count, group],
        )

    async def enqueue(self, conn, number, group=None):
        await self.enqueue_job(conn, "bench", number, group_key=group)

    async def serve(self, call):
        self.worker = self.Worker(conninfo, concurrency=CONCURRENCY, prefetch=ahead)

        @self.worker.handler("bench")
        async def bench(job):
            await call(job.payload)

        await self.worker.serve()

    def stop(self):
        self.worker.stop()


class Procrastinate:
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"

    def __init__(self):
        from procrastinate import App, PsycopgConnector

        self.app = App(connector=PsycopgConnector(conninfo=conninfo, max_size=CONCURRENCY))

        @self.app.task(name="bench", pass_context=False)
        async def bench(number):
            await self.call(number)

        self.task = bench

    async def setup(self, conn):
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def fill(self, conn, count, group=None):
        async with self.app.open_async():
            await self.task.batch_defer_async(*({"number": n} for n in range(1, count + 1)))

    async def enqueue(self, conn, number, group=None):
        await self.task.defer_async(number=number)

    async def serve(self, call):
        self.call = call
        async with self.app.open_async():
            self.worker = asyncio.ensure_future(
                self.app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
            )
            try:
                await self.worker
            except asyncio.CancelledError:
                pass

    def stop(self):
        self.worker.cancel()  # it ends gracefully


class PgQueuer:
    waiting = "SELECT count(*) FROM pgqueuer WHERE status = 'queued'"

    def __init__(self):
        import asyncpg
        from pgqueuer import PgQueuer as Manager
        from pgqueuer.queries import Queries

        self.asyncpg, self.Manager, self.Queries = asyncpg, Manager, Queries

    async def open(self):
        if not hasattr(self, "queries"):
            where = {"host": config["host"], "user": "postgres", "database": config["database"]}
            self.manager = self.Manager.from_asyncpg_connection(await self.asyncpg.connect(**where))
            self.queries = self.Queries.from_asyncpg_connection(await self.asyncpg.connect(**where))

    async def setup(self, conn):
        await self.open()
        await self.queries.install()

    async def fill(self, conn, count, group=None):
        await self.open()
        await self.queries.enqueue(["bench"] * count, [b"%d" % n for n in range(1, count + 1)], [0] * count)

    async def enqueue(self, conn, number, group=None):
        await self.queries.enqueue("bench", b"%d" % number)

    async def serve(self, call):
        await self.open()

        @self.manager.entrypoint("bench")
        async def bench(job):
            await call(int(job.payload))

        # The library takes a limit of at least two batches.
        await self.manager.run(batch_size=ahead or CONCURRENCY // 2, max_concurrent_tasks=2 * ahead or CONCURRENCY)

    def stop(self):
        self.manager.shutdown.set()


@dataclass
class Bench:
    number: int


class Awa:
    waiting = "SELECT count(*) FROM awa.jobs WHERE queue = 'bench' AND state = 'available'"

    def __init__(self):
        from awa import AsyncClient

        self.client = AsyncClient(url)
        self.stopped = asyncio.Event()

    async def setup(self, conn):
        await self.client.migrate()

    async def fill(self, conn, count, group=None):
        await self.client.insert_many_copy([Bench(n) for n in range(1, count + 1)], queue="bench")

    async def enqueue(self, conn, number, group=None):
        await self.client.insert(Bench(number), queue="bench")

    async def serve(self, call):
        @self.client.task(Bench, queue="bench")
        async def bench(job):
            await call(job.args.number)

        await self.client.start([("bench", CONCURRENCY)])
        await self.stopped.wait()
        await self.client.shutdown()

    def stop(self):
        self.stopped.set()


class Pgmq:
    """It has no worker: reads of as many as run at once, which wait in the server, and one archive for each read."""

    waiting = "SELECT queue_visible_length FROM pgmq.metrics('bench')"
    stopped = False

    async def setup(self, conn):
        await conn.execute("CREATE EXTENSION pgmq")
        await conn.execute("SELECT pgmq.create('bench')")

    async def fill(self, conn, count, group=None):
        await conn.execute(
            "SELECT pgmq.send_batch('bench', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, %s) AS n))", [count]
        )

    async def enqueue(self, conn, number, group=None):
        await conn.execute("SELECT pgmq.send('bench', to_jsonb(%s::int))", [number])

    async def serve(self, call):
        import psycopg

        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            while not self.stopped:
                # A message is read again after 30 s, as in its documentation.
                read = "SELECT msg_id, message FROM pgmq.read_with_poll('bench', 30, %s, 1)"
                rows = await (await conn.execute(read, [ahead or CONCURRENCY])).fetchall()
                await asyncio.gather(*(call(number) for _, number in rows))
                if rows:
                    await conn.execute("SELECT pgmq.archive('bench', %s::bigint[])", [[id for id, _ in rows]])

    def stop(self):
        self.stopped = True


CONTENDERS = {"pg-queue": PgQueue, "procrastinate": Procrastinate, "pgqueuer": PgQueuer, "awa": Awa, "pgmq": Pgmq}


async def drain(contender, conn):
    left, done = count, asyncio.Event()

    async def call(_):
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    begun, busy = time.perf_counter(), time.process_time()
    served = asyncio.ensure_future(contender.serve(call))
    await done.wait()
    contender.stop()
    await served
    return {
        "rate": count / (time.perf_counter() - begun),
        "cpu": (time.process_time() - busy) / count * 1e6,
    }


async def waits(contender, conn, count, busy=0, group=None):
    """Measures how long jobs wait, in ms, when they are enqueued one after the other."""
    times, next_one = [], asyncio.Event()

    async def call(number):
        if number < 0:
            times.append(time.perf_counter() - begun)
            next_one.set()
        else:
            await asyncio.sleep(busy)

    served = asyncio.ensure_future(contender.serve(call))
    await asyncio.sleep(1)
    for number in range(1, count + 1):
        next_one.clear()
        begun = time.perf_counter()
        await contender.enqueue(conn, -number, group)
        await next_one.wait()
        await asyncio.sleep(0.05)  # until the worker sleeps again
    return sorted(one * 1000 for one in times), served


async def latency(contender, conn):
    times, served = await waits(contender, conn, count)
    contender.stop()
    await served
    return {"p50": times[count // 2], "p95": times[int(count * 0.95)]}


async def loud(contender, conn):
    """Measures the longest wait of a tenant with one job at a time, beside `count` jobs of 20 ms of another tenant."""
    await contender.fill(conn, count, "loud")
    times, _ = await waits(contender, conn, 5, busy=0.02, group="quiet")
    return times[-1]


async def work(contender, conn):
    async def call(number):
        await asyncio.sleep(count / 1000)
        print(number, flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, contender.stop)
    await contender.serve(call)


async def main():
    import psycopg

    contender = CONTENDERS[name.split(",")[0]]()
    if what == "waiting":
        print(json.dumps(contender.waiting))
        return
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
        if what == "setup":
            await contender.setup(conn)
        elif what == "fill":
            await contender.fill(conn, count)
        else:
            result = await {"drain": drain, "latency": latency, "loud": loud, "work": work}[what](contender, conn)
            if result is not None:
                print(json.dumps(result), flush=True)
                # Jobs that still run are not awaited.
                os._exit(0)


asyncio.run(main())
