"""Ends a process whose worker makes no progress, so that its supervisor starts another one.

A worker whose event loop is blocked sends no heartbeats: its leases expire, and other workers get its jobs. The
watchdog is a thread, because code on that loop would be blocked, too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, ContextManager

if TYPE_CHECKING:
    from .engine import Engine

STATUS = 70
"""The exit status of the process: EX_SOFTWARE."""


class Watchdog(ContextManager[None]):
    def __init__(self, engine: Engine, limit: float) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._is_over = threading.Event()
        self._alive = time.monotonic()
        self._beat()
        threading.Thread(target=self._watch, name="pg_queue-watchdog", daemon=True).start()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _beat(self) -> None:
        self._alive = time.monotonic()
        if not self._is_over.is_set():
            self._loop.call_later(self._limit / 8, self._beat)

    def _watch(self) -> None:
        while not self._is_over.wait(self._limit / 8):
            if time.monotonic() - self._alive > self._limit:
                self._end("its event loop is blocked")
            if self._engine.is_stuck(self._limit):
                self._end("all its handlers go on after they were told to stop")

    def _end(self, reason: str) -> None:
        # It prints, because blocked threads may hold the locks of the loggers.
        print(f"pg_queue: the worker makes no progress: {reason}; its process ends", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(STATUS)
