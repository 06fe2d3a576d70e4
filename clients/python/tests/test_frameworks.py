"""The code of docs/frameworks.md runs without changes, with Django, FastAPI, Flask, SQLAlchemy and Alembic."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from conftest import one, until, wait_state

PACKAGE = Path(__file__).parents[1]
PAGE = (PACKAGE.parents[1] / "docs/frameworks.md").read_text()

SCHEMA = """
    DROP TABLE IF EXISTS account, sent, shop_account, django_migrations, alembic_version;
    CREATE TABLE account (email text PRIMARY KEY);
    CREATE TABLE sent (job_id bigint, recipient text);
"""

SETTINGS = """
import os
SECRET_KEY = "none"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": os.environ["PGHOST"], "USER": "postgres",
    "NAME": os.environ["PGDATABASE"]}}
"""

MODELS = """
from django.db import models

class Account(models.Model):
    email = models.TextField(unique=True)
    is_welcome = models.BooleanField(default=False)
"""

REGISTER = """
import django
django.setup()
import psycopg
from shop.views import register
try:
    register("{email}")
except psycopg.Error:
    print("refused")
"""

# While the queue is full, the transaction with the account has to roll back.
FULL = "SELECT queue.alter('emails', max_waiting => 1)"


def blocks(section):
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def environment(conn, conninfo, monkeypatch):
    """Sets the variables that a user's program needs: the database, and where the packages are."""
    conn.execute(SCHEMA)
    parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
    for name, variable in {"host": "PGHOST", "dbname": "PGDATABASE", "user": "PGUSER"}.items():
        monkeypatch.setenv(variable, parameters[name])
    path = os.pathsep.join([".", str(PACKAGE / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def test_django(conn, environment, tmp_path):
    migration, views, command = blocks("Django")
    files = {
        "settings.py": SETTINGS,
        "shop/__init__.py": "",
        "shop/models.py": MODELS,
        "shop/views.py": views,
        "shop/migrations/__init__.py": "",
        "shop/management/__init__.py": "",
        "shop/management/commands/__init__.py": "",
        "shop/management/commands/work.py": command,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment["DJANGO_SETTINGS_MODULE"] = "settings"

    def python(*arguments):
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, check=True,
            capture_output=True, text=True).stdout

    python("-m", "django", "makemigrations", "shop")
    (tmp_path / "shop/migrations/0002_queues.py").write_text(migration)
    python("-m", "django", "migrate")
    assert one(conn, "SELECT max_attempts FROM queue.queues WHERE queue_name = 'emails'") == 5
    assert python("-c", REGISTER.format(email="ada@example.org")) == ""
    conn.execute(FULL)
    assert python("-c", REGISTER.format(email="grace@example.org")) == "refused\n"
    assert one(conn, "SELECT array_agg(email) FROM shop_account") == ["ada@example.org"]
    assert one(conn, "SELECT array_agg(payload->>'account') FROM queue.jobs WHERE queue_name = 'emails'") == ["1"]
    job = one(conn, "SELECT job_id FROM queue.jobs WHERE queue_name = 'emails'")
    worker = subprocess.Popen([sys.executable, "-m", "django", "work"], cwd=tmp_path, env=environment)
    try:
        wait_state(conn, job, "completed")
        assert one(conn, "SELECT is_welcome FROM shop_account")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
    python("-m", "django", "migrate", "shop", "0001")
    assert one(conn, "SELECT count(*) FROM queue.queues WHERE queue_name = 'emails'") == 0


def test_fastapi(conn, environment):
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    web, worker = blocks("FastAPI")
    conn.execute("SELECT queue.create('emails')")
    names = {}
    exec(compile(web, "frameworks.md", "exec"), names)
    with TestClient(names["app"], raise_server_exceptions=False) as client:
        job = client.post("/accounts", params={"email": "ada@example.org"}).json()["job_id"]
        conn.execute(FULL)
        assert client.post("/accounts", params={"email": "grace@example.org"}).status_code == 500
    assert one(conn, "SELECT array_agg(email) FROM account") == ["ada@example.org"]
    assert one(conn, "SELECT array_agg(job_id) FROM queue.jobs WHERE queue_name = 'emails'") == [job]
    exec(compile(worker, "frameworks.md", "exec"), names)
    with TestClient(FastAPI(lifespan=names["lifespan_with_worker"])):
        until("the lifespan's worker has done it", lambda: one(conn, "SELECT array_agg(recipient) FROM sent"))
    assert one(conn, "SELECT state FROM queue.job(%s)", job) == "completed"
    until("the worker has gone", lambda: one(conn, "SELECT count(*) = 0 FROM queue.workers"))


def test_flask_and_alembic(conn, environment):
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    web, migration = blocks("Flask, SQLAlchemy and Alembic")
    names = {"__name__": "shop"}
    exec(compile(web, "frameworks.md", "exec"), names)
    exec(compile(migration, "frameworks.md", "exec"), names)
    with names["engine"].begin() as connection, Operations.context(MigrationContext.configure(connection)):
        names["upgrade"]()
    client = names["web"].test_client()
    job = client.post("/accounts", data={"email": "ada@example.org"}).json["job_id"]
    conn.execute(FULL)
    assert client.post("/accounts", data={"email": "grace@example.org"}).status_code == 500
    assert one(conn, "SELECT array_agg(email) FROM account") == ["ada@example.org"]
    assert one(conn, "SELECT array_agg(job_id) FROM queue.jobs WHERE queue_name = 'emails'") == [job]
    assert one(conn, "SELECT max_attempts FROM queue.queues WHERE queue_name = 'emails'") == 5
    conn.execute("SELECT queue.cancel(%s)", [job])
    with names["engine"].begin() as connection, Operations.context(MigrationContext.configure(connection)):
        names["downgrade"]()
    assert one(conn, "SELECT count(*) FROM queue.queues WHERE queue_name = 'emails'") == 0
    names["engine"].dispose()
