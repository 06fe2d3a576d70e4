"""The code of the pages runs without changes."""

import base64
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from conftest import one, until
from pg_queue import Context, Worker

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs"


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def empty(pg_queue_server):
    """The connection string of an empty database."""
    with pg_queue_server.connect() as conn:
        conn.execute("CREATE DATABASE as_the_page_has_it")
    yield pg_queue_server.conninfo("as_the_page_has_it")
    pg_queue_server.drop_database("as_the_page_has_it")


def test_the_readme_works_from_an_empty_database(empty, monkeypatch):
    with psycopg.connect(empty, autocommit=True) as conn:
        (setup,) = blocks(PACKAGE / "README.md", "sql")
        conn.execute(setup)
        follow(conn, empty, monkeypatch)


def follow(conn, conninfo, monkeypatch):
    parameters = psycopg.conninfo.conninfo_to_dict(conninfo)
    for name, variable in {"host": "PGHOST", "dbname": "PGDATABASE", "user": "PGUSER"}.items():
        monkeypatch.setenv(variable, parameters[name])
    names = {"__name__": "readme"}
    code = blocks(PACKAGE / "README.md")
    assert len(code) == 4
    for block in code:
        exec(compile(block, "README.md", "exec"), names)
    worker = names["worker"]
    worker.conninfo = conninfo
    until("the delayed job is ready", lambda: one(conn, "SELECT count(*) FROM queue.jobs WHERE state = 'ready'") == 3)
    worker.drain()
    assert one(conn, "SELECT array_agg(recipient ORDER BY recipient) FROM sent") == ["ada@example.org",
        "grace@example.org"]
    assert names["counter"]["calls"] == 3
    assert names["counter"][("completed", "emails")] == 2 and names["counter"][("failed", "emails")] == 1
    conn.execute("TRUNCATE sent")
    names["test_a_welcome"](conninfo)
    assert one(conn, "SELECT array_agg(recipient) FROM sent") == ["ada@example.org"]


def test_the_options_of_a_worker_are_in_its_table():
    page = (PACKAGE / "README.md").read_text()
    table = page.split("| `Worker(conninfo, …)` |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [name for name in inspect.signature(Worker.__init__).parameters if name != "self"]


def test_the_page_has_no_relative_links():
    """On a package registry a relative link leads nowhere."""
    for name in ("python", "node", "rust"):
        page = (PACKAGE.parent / name / "README.md").read_text()
        targets = re.findall(r"\]\(([^)]*)\)", page)
        assert all(target.startswith("https://") for target in targets), (name, targets)
        assert "A smaller\npriority runs first" in page or "A smaller priority runs first" in page, name


def test_the_code_of_docs_encryption_works(conn, conninfo, monkeypatch):
    conn.execute("SELECT queue.create('emails')")
    monkeypatch.setenv("QUEUE_KEY", base64.b64encode(bytes(32)).decode())
    names = {"__name__": "page"}
    (code,) = blocks(DOCS / "encryption.md")
    exec(compile(code, "encryption.md", "exec"), names)
    job = names["register"](conn, "ada@example.org")
    names["worker"].conninfo = conninfo
    names["worker"].drain()
    payload, result = conn.execute("SELECT payload, result FROM queue.job(%s)", [job]).fetchone()
    assert payload.keys() == {"codec", "key", "data"}
    assert names["codec"].decode(result, Context("result", "emails")) == {"sent": "ada@example.org"}


def test_the_tests_of_docs_testing_pass(tmp_path):
    """Runs pytest in a folder with a conftest of its own, like a user."""
    (code,) = blocks(DOCS / "testing.md")
    (tmp_path / "test_page.py").write_text(code)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pg_queue.pytest_plugin"]\n')
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
