"""procrastinate: see ../peer.py for the verbs."""

import asyncio
import sys

import common
from common import CONNINFO, begin, finish, is_quiet, say, seconds
from procrastinate import App, PsycopgConnector

QUEUES = ("mail", "Mail", "other")
app = App(connector=PsycopgConnector(conninfo=CONNINFO))
concurrency = int(sys.argv[2]) if len(sys.argv) > 2 else 1


async def handle(label):
    begin(label)
    await asyncio.sleep(seconds(concurrency))
    finish(label)


@app.task(name="plain")
async def plain(label, timestamp=None):
    await handle(label)


@app.task(name="retried", retry=2)
async def retried(label):
    await handle(label)


async def defer(label, task="plain", queue="mail", **options):
    delay = options.get("schedule_in", {}).get("seconds")
    await app.configure_task(task, queue=queue, **options).defer_async(label=label)
    say(label=label, queue=queue, delay=delay, lock=options.get("lock"), key=options.get("queueing_lock"))


async def fetch(status=None):
    """Takes the first job as a worker does, and ends it."""
    worker = await app.job_manager.register_worker()
    job = await app.job_manager.fetch_job(queues=None, worker_id=worker)
    if status:
        await app.job_manager.finish_job(job, status, delete_job=False)


async def fill():
    from procrastinate.jobs import Status

    await app.schema_manager.apply_schema_async()
    await defer("done")
    await fetch(Status.SUCCEEDED)
    await defer("failed")
    await fetch(Status.FAILED)
    await defer("running")
    await fetch()
    await defer("lock running", lock="busy")
    await fetch()
    await defer("lock behind", lock="busy")
    await defer("first")
    await defer("high", priority=5)
    await defer("low", priority=-5)
    await defer("late", schedule_in={"seconds": 3600})
    for n in (1, 2, 3):
        await defer(f"locked {n}", lock="a")
    await defer("behind a delay, first", lock="slow", schedule_in={"seconds": 3600})
    await defer("behind a delay", lock="slow")
    await defer("two queues 1", lock="wide")
    await defer("two queues 2", lock="wide", queue="other")
    await defer("keyed", queueing_lock="k")
    await defer("case", queue="Mail")
    await defer("fail retried", task="retried")
    await app.job_manager.defer_periodic_job(
        job=app.configure_task("plain", queue="mail", task_kwargs={"label": "periodic", "timestamp": 1}).job,
        periodic_id="p", defer_timestamp=1)
    say(label="periodic", queue="mail")


async def work():
    worker = asyncio.ensure_future(app.run_worker_async(
        concurrency=concurrency, install_signal_handlers=False, fetch_job_polling_interval=0.1))
    while not is_quiet(1.2):
        await asyncio.sleep(0.05)
    worker.cancel()
    await asyncio.wait([worker])


async def main():
    async with app.open_async():
        if sys.argv[1] == "fill":
            await fill()
        elif sys.argv[1] == "late":
            await app.configure_task("plain", queue="mail").defer_async(label="later")
        else:
            common.last = common.time.monotonic()
            await work()


asyncio.run(main())
