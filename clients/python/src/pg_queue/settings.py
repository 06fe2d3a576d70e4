"""What a worker has been told: its options, its handlers and middleware, and whether it is to stop.

Not responsible for running it (`engine`), nor for how its user calls it (`worker`).
"""

from __future__ import annotations

import inspect
import os
import socket
import threading
from functools import partial
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple

from . import checks
from .attempt import BaseJob
from .checks import Duration
from .codec import Codec
from .events import Event

Route = Tuple[str, Optional[str]]
"""A queue, and the stage whose jobs a handler runs; None: those of all stages without a handler of their own."""


class BaseWorker:
    """The part of a worker that its run reads. `Worker` has the meaning of the options."""

    def __init__(
        self,
        conninfo: str = "",
        *,
        concurrency: int = 10,
        prefetch: int = 0,
        max_connections: Optional[int] = None,
        wait: float = 10.0,
        linger: float = 0.0,
        heartbeat: float = 10.0,
        lease: Optional[Duration] = None,
        disconnect: Optional[float] = 15.0,
        shutdown_timeout: float = 30.0,
        stall_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
        trace: bool = False,
        effects: Optional[str] = None,
        codec: Optional[Codec] = None,
        on_unknown: Literal["release", "fail"] = "release",
        name: Optional[str] = None,
        on_event: Optional[Callable[[Event], None]] = None,
    ) -> None:
        self.conninfo = checks.conninfo(conninfo, "conninfo")
        self.concurrency = checks.integer(concurrency, "concurrency", 1)
        self.prefetch = checks.integer(prefetch, "prefetch", 0)
        self.max_connections = checks.maybe(checks.integer, max_connections, "max_connections", 1)
        self.wait = checks.seconds(wait, "wait")
        self.linger = checks.seconds(linger, "linger")
        self.heartbeat = checks.some_seconds(heartbeat, "heartbeat")
        self.lease = checks.interval(lease, "lease")
        self.disconnect = checks.maybe(checks.seconds, disconnect, "disconnect")
        self.shutdown_timeout = checks.seconds(shutdown_timeout, "shutdown_timeout")
        self.stall_timeout = checks.maybe(checks.some_seconds, stall_timeout, "stall_timeout")
        self.timeout = checks.maybe(checks.some_seconds, timeout, "timeout")
        self.trace = checks.flag(trace, "trace")
        self.effects = checks.maybe(checks.conninfo, effects, "effects")
        self.codec = checks.maybe(checks.methods, codec, "codec", ("encode", "decode"))
        self.on_unknown = checks.one_of(on_unknown, "on_unknown", ("release", "fail"))
        self._name = checks.maybe(checks.text, name, "name")
        self.on_event = checks.maybe(checks.methods, on_event, "on_event", ("__call__",))
        self.handlers: Dict[Route, Callable[..., Any]] = {}
        self.batches: Dict[Route, int] = {}
        self.timeouts: Dict[Route, float] = {}
        self._middleware: List[Callable[..., Any]] = []
        self._is_told_to_stop = False  # stop() was called before run()
        self._starting = threading.Lock()

    @property
    def name(self) -> str:
        """The worker's name in the views."""
        # A worker that was made before a fork runs in several processes.
        return self._name or f"{socket.gethostname()}:{os.getpid()}"

    def route(self, queue: str, stage: Optional[str]) -> Route:
        """Returns which handler runs a job that this worker has claimed."""
        return (queue, stage) if (queue, stage) in self.handlers else (queue, None)

    def bound(self, route: Route) -> Callable[..., Any]:
        """Returns a handler within the middleware of its kind."""
        call = self.handlers[route]
        if route in self.batches:
            return call
        is_async = inspect.iscoroutinefunction(call)
        chosen = [around for around in self._middleware if inspect.iscoroutinefunction(around) == is_async]
        if not chosen:
            return call
        return partial(_around_async if is_async else _around, chosen, call)

    def collected(self) -> Optional[int]:
        """Returns how many jobs a claim collects if it lingers. None: it cannot."""
        return next(iter(self.batches.values()), None) if len(self.handlers) == 1 else None


def _around(middleware: List[Callable[..., Any]], handler: Callable[..., Any], job: BaseJob) -> Any:
    called = _Called(handler)
    return called.check(job, _within(middleware, called)(job))


async def _around_async(middleware: List[Callable[..., Any]], handler: Callable[..., Any], job: BaseJob) -> Any:
    called = _Called(handler)
    return called.check(job, await _within(middleware, called)(job))


def _within(middleware: List[Callable[..., Any]], call: Callable[..., Any]) -> Callable[..., Any]:
    for around in reversed(middleware):
        call = partial(_next, around, call)
    return call


def _next(around: Callable[..., Any], call: Callable[..., Any], job: BaseJob) -> Any:
    return around(job, call)


class _Called:
    """A handler, and whether the middleware has called it."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler = handler
        self._is_called = False

    def __call__(self, job: BaseJob) -> Any:
        self._is_called = True
        return self._handler(job)

    def check(self, job: BaseJob, result: Any) -> Any:
        if result is None and not self._is_called and not job.ended:
            raise RuntimeError("a middleware has not called the handler")
        return result
