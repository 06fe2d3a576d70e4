"""Reads the JSON of claimed jobs, which the server sends as text. Most values need one call of Python's decoder."""

from __future__ import annotations

import json
from typing import Any, Callable

from psycopg.types.json import JsonbBinaryLoader

_scan: Callable[[str, int], Any] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def reader() -> Callable[[str], Any]:
    """Returns a function that reads JSON as psycopg does now: the application may have called `set_json_loads`."""
    loader = JsonbBinaryLoader(0)
    if getattr(loader, "loads", None) is json.loads:
        return lambda text: _scan(text, 0)[0]
    return lambda text: loader.load(b"\1" + text.encode())
