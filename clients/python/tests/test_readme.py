"""The code of the pages runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
from conftest import one, until

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


SCHEMA = """
    CREATE TABLE IF NOT EXISTS account (name text);
    CREATE TABLE IF NOT EXISTS sent (job_id bigint, recipient text);
    TRUNCATE account, sent;
    SELECT queue.create('emails');
"""


def test_the_readme(conn, conninfo, monkeypatch):
    conn.execute(SCHEMA)
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
    assert one(conn, "SELECT array_agg(recipient ORDER BY recipient) FROM sent") == ["ada@example.org", "grace@example.org"]
    assert names["counter"]["calls"] == 3
    assert names["counter"][("completed", "emails")] == 2 and names["counter"][("failed", "emails")] == 1
    conn.execute("TRUNCATE sent")
    names["test_a_welcome"](conninfo)
    assert one(conn, "SELECT array_agg(recipient) FROM sent") == ["ada@example.org"]


def test_the_tests_of_docs_testing(tmp_path):
    """As a user's own: with a conftest of their own, and pytest as a process."""
    (code,) = blocks(DOCS / "testing.md")
    (tmp_path / "test_page.py").write_text(code)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pg_queue.pytest_plugin"]\n')
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
