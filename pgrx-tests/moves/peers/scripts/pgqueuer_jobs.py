"""pgqueuer: see ../peer.py for the verbs."""

import asyncio
import logging
import os
import sys
from datetime import timedelta

import asyncpg
import common
from common import begin, finish, is_quiet, say, seconds
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

logging.disable(logging.CRITICAL)
WHERE = {"host": os.environ["PGHOST"], "user": "postgres", "database": os.environ["PGDATABASE"]}


async def fill(conn, queries):
    await queries.install()

    async def add(label, queue="task", delay=None, **options):
        after = timedelta(seconds=delay) if delay else None
        await queries.enqueue(queue, label.encode(), execute_after=after, **options)
        say(label=label, queue=queue, delay=delay, key=options.get("dedupe_key"))

    async def mark(label, change):
        await conn.execute(f"UPDATE pgqueuer SET {change} WHERE payload = $1", label.encode())

    await add("first")
    await add("high", priority=5)
    await add("low", priority=-5)
    await add("late", delay=3600)
    await add("keyed", dedupe_key="k")
    await add("case", queue="Task")
    await add("headers", headers={"trace": "b7"})
    # Writes these states as a worker and its executor do.
    await add("running")
    await mark("running", "status = 'picked', queue_manager_id = gen_random_uuid(), heartbeat = now()")
    await add("held")
    await mark("held", "status = 'failed'")
    await add("tried")
    await mark("tried", "attempts = 1")


async def work(concurrency):
    manager = PgQueuer.from_asyncpg_connection(await asyncpg.connect(**WHERE))

    async def handle(job):
        label = job.payload.decode()
        begin(label, job.entrypoint)
        await asyncio.sleep(seconds(concurrency))
        finish(label)

    for name in ("task", "Task"):
        # One more than the jobs that run, because the endless job of `fill` also counts.
        manager.entrypoint(name, concurrency_limit=concurrency + 1)(handle)
    common.last = common.time.monotonic()
    running = asyncio.ensure_future(manager.run(batch_size=concurrency, dequeue_timeout=timedelta(seconds=0.2)))
    while not is_quiet(1.2):
        await asyncio.sleep(0.05)
    manager.shutdown.set()
    await running


async def main():
    conn = await asyncpg.connect(**WHERE)
    queries = Queries.from_asyncpg_connection(conn)
    if sys.argv[1] == "fill":
        await fill(conn, queries)
    elif sys.argv[1] == "late":
        await queries.enqueue("task", b"later")
    else:
        await work(int(sys.argv[2]))


asyncio.run(main())
