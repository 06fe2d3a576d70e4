"""Fixtures for pytest. They are available if the package is installed.

Override `pg_queue_schema` in conftest.py with the SQL that makes the application's own queues and tables.
"""

from __future__ import annotations

from typing import Any, Iterator

import psycopg
import pytest
from psycopg import Connection

from .testing import Server


@pytest.fixture(scope="session")
def pg_queue_schema() -> str:
    """Returns the SQL that runs in each new database."""
    return ""


@pytest.fixture(scope="session")
def pg_queue_server() -> Iterator[Server]:
    """A temporary server for the whole test run."""
    with Server() as server:
        yield server


@pytest.fixture
def pg_queue_database(pg_queue_server: Server, pg_queue_schema: str) -> Iterator[str]:
    """The connection string of a new database: for tests that commit, such as those that run a worker."""
    name = _create(pg_queue_server, pg_queue_schema)
    yield pg_queue_server.conninfo(name)
    pg_queue_server.drop_database(name)


@pytest.fixture(scope="session")
def pg_queue_shared_database(pg_queue_server: Server, pg_queue_schema: str) -> str:
    """The connection string of a database for all tests that roll back."""
    return pg_queue_server.conninfo(_create(pg_queue_server, pg_queue_schema))


@pytest.fixture
def pg_queue_transaction(pg_queue_shared_database: str) -> Iterator[Connection[Any]]:
    """A connection in a transaction that is rolled back when the test ends. It is fast, but its jobs cannot be claimed.
    """
    with psycopg.connect(pg_queue_shared_database) as conn:
        yield conn
        conn.rollback()


def _create(server: Server, schema: str) -> str:
    name = server.create_database()
    if schema:
        with server.connect(name) as conn:
            conn.execute(schema)
    return name
