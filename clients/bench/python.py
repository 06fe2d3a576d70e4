"""A contender for Python: `python.py CONTENDER setup|drain|latency CONFIG COUNT`, prints what it has measured as JSON.

The same for each: an empty `async def`, 20 at once, one process. The rate counts from before the worker connects until
it has stopped, with all completions told. The latency is from before the enqueue on a connection of its own to the
handler.
"""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python/src"))

CONCURRENCY = 20
AHEAD = 200

name, what, config, count = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
conninfo = f"host={config['host']} user=postgres dbname={config['database']}"
logging.disable(logging.CRITICAL)


class PgQueue:
    ahead = AHEAD if name.endswith("ahead") else 0

    async def setup(self, conn):
        await conn.execute("CREATE EXTENSION pg_queue")
        await conn.execute("SELECT queue.create('bench')")

    async def fill(self, conn):
        await conn.execute("SELECT queue.enqueue_many('bench', array_fill('{}'::jsonb, ARRAY[%s::int]))", [count])

    async def enqueue(self, conn):
        from pg_queue import enqueue_async

        await enqueue_async(conn, "bench")

    async def serve(self, call):
        from pg_queue import Worker

        self.worker = Worker(conninfo, concurrency=CONCURRENCY, prefetch=self.ahead)

        @self.worker.handler("bench")
        async def bench(job):
            call()

        await self.worker.serve()

    def stop(self):
        self.worker.stop()


class Procrastinate:
    def __init__(self):
        from procrastinate import App, PsycopgConnector

        self.app = App(connector=PsycopgConnector(conninfo=conninfo, max_size=CONCURRENCY))

        @self.app.task(name="bench", pass_context=False)
        async def bench():
            self.call()

        self.task = bench

    async def setup(self, conn):
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def fill(self, conn):
        async with self.app.open_async():
            await self.task.batch_defer_async(*({} for _ in range(count)))

    async def enqueue(self, conn):
        await self.task.defer_async()

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
    batch = AHEAD if name.endswith("ahead") else 10

    async def open(self):
        import asyncpg
        from pgqueuer import PgQueuer as Manager

        self.conn = await asyncpg.connect(host=config["host"], user="postgres", database=config["database"])
        self.manager = Manager.from_asyncpg_connection(self.conn)
        from pgqueuer.queries import Queries

        other = await asyncpg.connect(host=config["host"], user="postgres", database=config["database"])
        self.queries = Queries.from_asyncpg_connection(other)

    async def setup(self, conn):
        await self.open()
        await self.queries.install()

    async def fill(self, conn):
        await self.open()
        await self.queries.enqueue(["bench"] * count, [None] * count, [0] * count)

    async def enqueue(self, conn):
        await self.queries.enqueue("bench", None)

    async def serve(self, call):
        if not hasattr(self, "manager"):
            await self.open()

        @self.manager.entrypoint("bench")
        async def bench(job):
            call()

        await self.manager.run(batch_size=self.batch)

    def stop(self):
        self.manager.shutdown.set()


async def main():
    import psycopg

    contender = {"pg-queue": PgQueue, "procrastinate": Procrastinate, "pgqueuer": PgQueuer}[name.split(",")[0]]()
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
        if what == "setup":
            return await contender.setup(conn)
        if what == "drain":
            await contender.fill(conn)
            await conn.execute("VACUUM ANALYZE")  # what autovacuum does some time after a fill
            left, done = count, asyncio.Event()

            def call():
                nonlocal left
                left -= 1
                if left == 0:
                    done.set()

            begun = time.perf_counter()
            served = asyncio.ensure_future(contender.serve(call))
            await done.wait()
            contender.stop()
            await served
            print(json.dumps({"rate": count / (time.perf_counter() - begun)}))
            return
        waits, next_one = [], asyncio.Event()

        def call():
            waits.append(time.perf_counter() - begun)
            next_one.set()

        served = asyncio.ensure_future(contender.serve(call))
        for number in range(count + 1):
            next_one.clear()
            await asyncio.sleep(0.05 if number else 1)  # it has gone to sleep again
            begun = time.perf_counter()
            await contender.enqueue(conn)
            await next_one.wait()
        contender.stop()
        await served
        waits = sorted(wait * 1000 for wait in waits[1:])
        print(json.dumps({"p50": waits[count // 2], "p95": waits[int(count * 0.95)]}))


asyncio.run(main())
