"""What a worker asks the server before its first claim: whether the extension is there, and new enough."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import List

from .pool import Link
from .version import __version__

ASK = """
    SELECT pg_catalog.current_database(), pg_catalog.to_regnamespace('queue') IS NULL,
        (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_queue')"""


async def reach(link: Link, stopping: asyncio.Event) -> bool:
    """Connects, and asks. Returns false if `stopping` is set meanwhile.

    Raises as `Link.fetch`, and RuntimeError if the worker cannot work there.
    """
    row = await link.unless_set(stopping, ASK)
    if row is None:
        return False
    database, is_missing, version = row
    if is_missing:
        raise refusal(f"database {database} has no extension pg_queue: run CREATE EXTENSION pg_queue there")
    # A router of a cluster has the functions without the extension.
    if version is not None and _numbers(version) < _numbers(__version__):
        wanted = ".".join(map(str, _numbers(__version__)))
        need = f"this package needs {wanted}: run ALTER EXTENSION pg_queue UPDATE there"
        raise refusal(f"the extension in database {database} is {version}, {need}")
    return True


def refusal(text: str) -> RuntimeError:
    return RuntimeError(f"the worker cannot start: {text}")


def _numbers(version: str) -> List[int]:
    # A version such as `main` is newer than any number.
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return [int(part or 0) for part in found.groups()] if found else [sys.maxsize]
