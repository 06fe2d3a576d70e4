"""Runs of a block while others work: a worker that is taking a job, another run, a producer here."""

import threading

import psycopg
from peers.peer import HELPER
from place import Case, blocks

PAGE = "docs/coming-from/libraries.md"
JOBS = """INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, lock)
    SELECT 'mail', 't', jsonb_build_object('n', n), 'todo', 'lock ' || n % {locks}
    FROM generate_series(1, {jobs}) AS n"""

# The pause makes the two runs lock the jobs at the same time.
SLOW = """CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM pg_sleep(0.004); RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON moving FOR EACH ROW EXECUTE FUNCTION pause();"""


def block(heading):
    return "\n".join(blocks(PAGE, heading))


def prepared(place, script):
    """Returns a database with a peer's tables and the helper, without jobs."""
    database = place.database()
    place.script(script, database, "late")
    place.psql(database, "CREATE EXTENSION pg_queue;" + "\n".join(blocks(*HELPER)))
    return database


def procrastinate(place, locks, jobs):
    database = place.database()
    place.script("peers/scripts/procrastinate_jobs.py", database, "fill")
    place.psql(database, "CREATE EXTENSION pg_queue; DELETE FROM procrastinate_jobs;" + "\n".join(blocks(*HELPER)))
    place.psql(database, JOBS.format(locks=locks, jobs=jobs))
    return database


def transaction(place, database):
    """Returns a connection whose first statement opens a transaction."""
    return psycopg.connect(host=place.server.dir, user="postgres", dbname=database)


def worker_takes(place):
    """A job that a worker is taking is passed over. The other jobs of its lock have to stay."""
    database = procrastinate(place, 1, 3)
    with transaction(place, database) as worker:
        worker.execute("SELECT procrastinate_fetch_job_v2(NULL, (SELECT min(id) FROM procrastinate_workers))")
        printed = place.psql(database, block("procrastinate"))
    if "mail|2|a job of its lock runs or stays|{" not in printed:
        return [f"two jobs of the taken job's lock should stay: {printed}"]
    return []


def two_runs(place):
    """Two runs of a block keep the order of each lock."""
    database = procrastinate(place, 4, 400)
    place.psql(database, SLOW)
    runs = [threading.Thread(target=place.psql, args=(database, block("procrastinate"))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    with place.connect(database) as conn:
        moved, swapped = conn.execute("""SELECT count(*), count(*) FILTER (WHERE before > n) FROM (
            SELECT (payload ->> 'n')::int AS n,
                lag((payload ->> 'n')::int) OVER (PARTITION BY group_key ORDER BY job_id) AS before
            FROM queue.jobs) AS j""").fetchone()
    return [] if (moved, swapped) == (400, 0) else [f"{moved} of 400 jobs moved, {swapped} before an earlier one"]


def keys(place):
    """A key that an open transaction has, and one of an ended job within unique_for: the peer's jobs have to stay."""
    wrong, database = [], prepared(place, "peers/scripts/graphile.js")
    place.psql(database, """SELECT queue.create('task');
        SELECT queue.enqueue('task', '{}', unique_key => 'ended', unique_for => '1 hour');
        SELECT queue.complete(id) FROM queue.claim('task');
        SELECT graphile_worker.add_job('task', '{}'::json, job_key => 'ended');
        SELECT graphile_worker.add_job('task', '{}'::json, job_key => 'open');""")
    printed = []
    with transaction(place, database) as producer:
        producer.execute("SELECT queue.enqueue('task', '{}', unique_key => 'open')")
        run = threading.Thread(target=lambda: printed.append(place.psql(database, block("graphile-worker"))))
        run.start()
        run.join(3)
    run.join()
    left = place.psql(database, "SELECT key FROM graphile_worker._private_jobs ORDER BY 1").split()
    if left != ["ended", "open"]:
        wrong.append(f"the jobs with the keys {left} stay: {printed}")
    return wrong


CASES = [
    Case("races worker takes", worker_takes),
    Case("races two runs", two_runs),
    Case("races keys", keys),
]
