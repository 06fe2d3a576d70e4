"""The statements of docs/clients.md for each Python driver. All drivers do the same steps."""

import asyncio
import json
import re
import threading
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
from conftest import one, until
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

SLEEPING = """SELECT count(*) FROM pg_stat_activity
    WHERE query ~ 'claim.*wait' AND state = 'active' AND pid <> pg_backend_pid()"""


def cancelled_while_it_sleeps(conn, claim, cancel):
    """Runs a claim in a thread, and cancels it once it sleeps. Returns the error of the claim."""
    raised = []

    def run():
        try:
            claim()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until("the claim sleeps", lambda: one(conn, SLEEPING))
    begun = time.monotonic()
    cancel()
    thread.join(20)
    assert time.monotonic() - begun < 5
    return raised[0]


def test_psycopg(conn, conninfo):
    with psycopg.connect(conninfo, autocommit=True) as db:
        job = one(db, "SELECT queue.enqueue('a', %s, delay => %s)", Jsonb({"n": 1}), timedelta(0))
        many = db.execute("SELECT queue.enqueue_many('a', %s)", [[Jsonb({"n": 2}), Jsonb({"n": 3})]]).fetchall()
        assert len(many) == 2
        rows = db.execute("SELECT id, job_id, payload FROM queue.claim('a', 3, wait => %s)",
            [timedelta(seconds=1)]).fetchall()
        assert [(row[1], row[2]["n"]) for row in rows] == [(job, 1), (many[0][0], 2), (many[1][0], 3)]
        ids = [row[0] for row in rows]
        assert db.execute("SELECT * FROM queue.complete_many(%s)",
            [ids[:1]]).fetchall() == [(ids[0], "completed", None)]
        assert db.execute("SELECT * FROM queue.complete_many(%s)", [[]]).fetchall() == []
        assert one(db, "SELECT queue.fail(%s, %s, retry_in => %s)", ids[1], "no", timedelta(hours=1)) is not None
        db.execute("SELECT queue.complete(%s, %s)", [ids[2], Jsonb({"ok": True})])
        with pytest.raises(psycopg.Error) as lost:
            db.execute("SELECT queue.complete(%s)", [ids[2]])
        assert lost.value.sqlstate == "QJ001"
        answers = db.execute("SELECT id, job_id, headers FROM queue.claim('a', completed => %s)", [ids[2:]]).fetchall()
        assert [(*row[:2], row[2]["outcome"]) for row in answers] == [(ids[2], None, "lost")]
        assert one(db, "SELECT result FROM queue.jobs WHERE job_id = %s", many[1][0]) == {"ok": True}
        claim = "SELECT FROM queue.claim('a', wait => '10 seconds')"
        error = cancelled_while_it_sleeps(conn, lambda: db.execute(claim), db.cancel)
        assert isinstance(error, psycopg.errors.QueryCanceled)


def test_psycopg2(conn, conninfo):
    db = psycopg2.connect(conninfo)
    db.autocommit = True
    cursor = db.cursor()

    def ask(sql, *parameters):
        cursor.execute(sql, parameters)
        return cursor.fetchall()

    Json = psycopg2.extras.Json
    ((job,),) = ask("SELECT queue.enqueue('a', %s, delay => %s)", Json({"n": 1}), timedelta(0))
    # The server sees an array of json as an array of text, so it needs a cast.
    assert len(ask("SELECT queue.enqueue_many('a', %s::jsonb[])", [Json({"n": 2}), Json({"n": 3})])) == 2
    rows = ask("SELECT id, job_id, payload FROM queue.claim('a', 3, wait => %s)", timedelta(seconds=1))
    assert (rows[0][1], [row[2]["n"] for row in rows]) == (job, [1, 2, 3])
    ids = [row[0] for row in rows]
    assert ask("SELECT * FROM queue.complete_many(%s)", ids[:1]) == [(ids[0], "completed", None)]
    assert ask("SELECT * FROM queue.complete_many(%s::bigint[])", []) == []
    ask("SELECT queue.fail(%s, %s, retry_in => %s)", ids[1], "no", timedelta(hours=1))
    ask("SELECT queue.complete(%s, %s)", ids[2], Json({"ok": True}))
    with pytest.raises(psycopg2.Error) as lost:
        ask("SELECT queue.complete(%s)", ids[2])
    assert lost.value.pgcode == "QJ001"
    ((attempt, headers),) = ask("SELECT id, headers FROM queue.claim('a', completed => %s) WHERE job_id IS NULL",
        ids[2:])
    assert (attempt, headers["outcome"]) == (ids[2], "lost")
    assert ask("SELECT result FROM queue.jobs WHERE job_id = %s", rows[2][1]) == [({"ok": True},)]
    error = cancelled_while_it_sleeps(conn, lambda: ask("SELECT FROM queue.claim('a', wait => '10 seconds')"),
        db.cancel)
    assert error.pgcode == "57014"
    db.close()


def test_asyncpg(conn, conninfo):
    parameters = conninfo_to_dict(conninfo)

    async def main():
        # PgBouncer in transaction mode does not work with a cache of statements.
        db = await asyncpg.connect(
            host=parameters["host"], user=parameters["user"], database=parameters["dbname"], statement_cache_size=0
        )
        # jsonb is text unless there is a codec.
        job = await db.fetchval("SELECT queue.enqueue('a', $1, delay => $2)", json.dumps({"n": 1}), timedelta(0))
        many = await db.fetch("SELECT queue.enqueue_many('a', $1)", [json.dumps({"n": 2}), json.dumps({"n": 3})])
        assert len(many) == 2
        rows = await db.fetch("SELECT id, job_id, payload FROM queue.claim('a', 3, wait => $1)", timedelta(seconds=1))
        assert [json.loads(row["payload"])["n"] for row in rows] == [1, 2, 3] and rows[0]["job_id"] == job
        ids = [row["id"] for row in rows]
        answers = await db.fetch("SELECT * FROM queue.complete_many($1)", ids[:1])
        assert [tuple(row) for row in answers] == [(ids[0], "completed", None)]
        await db.execute("SELECT queue.fail($1, $2, retry_in => $3)", ids[1], "no", timedelta(hours=1))
        await db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await db.execute("SELECT queue.complete($1, $2)", ids[2], {"ok": True})
        with pytest.raises(asyncpg.PostgresError) as lost:
            await db.execute("SELECT queue.complete($1)", ids[2])
        assert lost.value.sqlstate == "QJ001"
        answers = await db.fetch("SELECT id, job_id, headers FROM queue.claim('a', completed => $1)", ids[2:])
        assert [(row["id"], row["job_id"], row["headers"]["outcome"]) for row in answers] == [(ids[2], None, "lost")]
        assert await db.fetchval("SELECT result FROM queue.jobs WHERE job_id = $1", rows[2]["job_id"]) == {"ok": True}
        sleeper = asyncio.ensure_future(db.fetch("SELECT FROM queue.claim('a', wait => '10 seconds')"))
        while not one(conn, SLEEPING):
            await asyncio.sleep(0.02)
        begun = time.monotonic()
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeper
        assert await db.fetchval("SELECT 1") == 1 and time.monotonic() - begun < 5  # asyncpg cancels on the server, too
        await db.close()

    asyncio.run(main())


@pytest.fixture
def page(conn):
    """Returns the names that the code of docs/clients.md defines."""
    conn.execute("CREATE TABLE IF NOT EXISTS account (name text UNIQUE); TRUNCATE account")
    conn.execute("SELECT queue.create('emails')")
    text = (Path(__file__).parents[3] / "docs/clients.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/clients.md", "exec"), names)
    return names


def check_register(conn, register, error):
    """Checks that `register` enqueues only if its transaction commits: the second call violates a constraint."""
    job = register("ada@example.org")
    assert one(conn, "SELECT payload FROM queue.job(%s)", job) == {"to": "ada@example.org"}
    with pytest.raises(error):
        register("ada@example.org")
    assert one(conn, "SELECT count(*) FROM account") == one(conn, "SELECT count(*) FROM queue.jobs") == 1


def test_sqlalchemy(conn, conninfo, page):
    import sqlalchemy
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(conninfo), poolclass=NullPool
    )
    check_register(conn, lambda name: page["register"](engine, name), sqlalchemy.exc.IntegrityError)
    with Session(engine) as session:
        undone = session.execute(page["ENQUEUE"], {"queue": "a", "payload": "{}"}).scalar_one()
        session.rollback()
        delayed = "SELECT queue.enqueue('a', delay => CAST(:delay AS interval))"
        session.execute(sqlalchemy.text(delayed), {"delay": timedelta(0)})
        session.commit()
        id = session.execute(sqlalchemy.text("SELECT id FROM queue.claim('a')")).scalar_one()
        session.execute(sqlalchemy.text("SELECT queue.complete(:id)"), {"id": id})
        session.commit()
        with pytest.raises(sqlalchemy.exc.DBAPIError) as lost:
            session.execute(sqlalchemy.text("SELECT queue.complete(:id)"), {"id": id})
        assert lost.value.orig.pgcode == "QJ001"
    assert conn.execute("SELECT FROM queue.job(%s)", [undone]).fetchone() is None


def test_django(conn, conninfo, page):
    import django
    from django.conf import settings
    from django.db import DatabaseError, IntegrityError, connection

    parameters = conninfo_to_dict(conninfo)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parameters["dbname"],
        "USER": parameters["user"],
        "HOST": parameters["host"],
    }
    settings.configure(DATABASES={"default": database}, USE_TZ=True)
    django.setup()
    try:
        check_register(conn, page["register_in_django"], IntegrityError)
        with connection.cursor() as cursor:
            cursor.execute("SELECT queue.enqueue('a', delay => %s)", [timedelta(0)])
            cursor.execute("SELECT id FROM queue.claim('a')")
            (id,) = cursor.fetchone()
            cursor.execute("SELECT queue.complete(%s)", [id])
            with pytest.raises(DatabaseError) as lost:
                cursor.execute("SELECT queue.complete(%s)", [id])
        cause = lost.value.__cause__  # psycopg2 has pgcode, psycopg has sqlstate
        assert (cause.pgcode if hasattr(cause, "pgcode") else cause.sqlstate) == "QJ001"
    finally:
        connection.close()
