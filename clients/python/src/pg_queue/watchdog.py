"""Ends a process whose worker makes no progress, so that its supervisor starts another one.

A worker whose event loop is blocked sends no heartbeats: its leases expire, and other workers get its jobs. The
watchdog is a thread, because code on that loop would be blocked, too. The log may be what blocks that loop, so a second
thread writes the last message, and the process ends without it if need be.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import tempfile
import threading
import time
from typing import Callable, ContextManager

STATUS = 70
"""The exit status of the process: EX_SOFTWARE."""

LAST_MESSAGE_SECONDS = 1.0
"""How long the end of the process waits for its last message."""


class Watchdog(ContextManager[None]):
    def __init__(self, is_stuck: Callable[[float], bool], limit: float) -> None:
        self._is_stuck = is_stuck
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
        looked = time.monotonic()
        while not self._is_over.wait(self._limit / 8):
            before, looked = looked, time.monotonic()
            if looked - before > self._limit / 2:  # the whole process had stood still
                self._alive = looked
            if time.monotonic() - self._alive > self._limit:
                self._end("its event loop is blocked")
            if self._is_stuck(self._limit):
                self._end("all its handlers go on after they were told to stop")

    def _end(self, reason: str) -> None:
        try:
            writer = threading.Thread(target=self._write, args=(reason,), daemon=True)
            writer.start()
            writer.join(LAST_MESSAGE_SECONDS)
        finally:
            os._exit(STATUS)

    @staticmethod
    def _write(reason: str) -> None:
        """Writes the reason and the stacks of all threads. Blocked threads may hold the locks of the loggers and of
        `sys.stderr`. `faulthandler` writes while it holds the interpreter's lock, so it gets a file of its own.
        """
        if sys.__stderr__ is None:
            return  # the process was started without it, and its descriptor may be another file's
        with contextlib.suppress(OSError, ValueError):
            stderr = sys.__stderr__.fileno()
            os.write(stderr, f"pg_queue: the worker makes no progress: {reason}; its process ends\n".encode())
            with tempfile.TemporaryFile() as stacks:
                faulthandler.dump_traceback(stacks, all_threads=True)
                stacks.seek(0)
                os.write(stderr, stacks.read())
