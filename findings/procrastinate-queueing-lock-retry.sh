#!/bin/bash
# procrastinate 3.10.0: a job with a queueing lock is never retried if another job has taken the lock meanwhile.
#
# A queueing lock lets one job wait ("todo"). A job that runs does not hold it, so the next one may be deferred while it
# runs: that is its use. If the running job then fails and has retries left, one would expect it to wait for its retry
# behind the other job, or to be given up. But its row has to become "todo" again, which the unique index of queueing
# locks refuses. The worker goes on: it runs the second job. The first one stays "doing" with attempts 0, and
# as its worker is alive, get_stalled_jobs() does not name it.
# Seen: job 1 "doing" 0 attempts after the worker had run job 2 and had nothing left to do; stalled jobs: none. Without
# the second job it is retried.
#
# Needs python3 with venv, PyPI, and the programs of PostgreSQL 15 or newer. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check procrastinate==3.10.0 "psycopg[binary,pool]==3.3.6"
cat >"$dir/jobs.py" <<'PYTHON'
import asyncio
import logging
from importlib.metadata import version

from procrastinate import App, PsycopgConnector

logging.disable(logging.CRITICAL)
app = App(connector=PsycopgConnector())
ran = []


@app.task(name="sync", queueing_lock="sync", retry=3)
async def sync(n, defers=False):
    ran.append(n)
    if ran.count(n) == 1 and n == 1:
        if defers:
            await sync.defer_async(n=2)
        raise RuntimeError("once")


async def tried(defers):
    ran.clear()
    await sync.defer_async(n=1, defers=defers)
    worker = asyncio.ensure_future(app.run_worker_async(install_signal_handlers=False, fetch_job_polling_interval=0.1))
    await asyncio.sleep(5)
    stalled = [job.id for job in await app.job_manager.get_stalled_jobs()]
    jobs = [(job.task_kwargs["n"], job.status, job.attempts) for job in await app.job_manager.list_jobs_async()]
    worker.cancel()
    await asyncio.wait([worker])
    return list(ran), jobs, stalled


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        alone = await tried(False)
        await app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
        beside = await tried(True)
    print("procrastinate", version("procrastinate"))
    print("alone:", *alone)
    print("with another job under the lock:", *beside)
    assert alone == ([1, 1], [(1, "succeeded", 2)], []), "this has changed"
    assert beside == ([1, 2], [(1, "doing", 0), (2, "succeeded", 1)], []), "this has changed"


asyncio.run(main())
PYTHON
"$dir/venv/bin/python" "$dir/jobs.py"
