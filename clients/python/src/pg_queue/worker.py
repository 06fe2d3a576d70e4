"""The worker as its user sees it: what it is told, which handlers it has, how it is run. `engine` runs it."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import threading
from functools import partial
from typing import Any, Callable, Dict, List, Optional, TypeVar

from .engine import Engine
from .events import Event
from .job import BaseJob
from .outcomes import Duration

H = TypeVar("H", bound=Callable[..., Any])


class Worker:
    """Runs the jobs of up to eight queues.

    * `conninfo`: as of libpq; what it leaves out comes from the variables `PGHOST`, …. Several hosts: the one that
      takes writes is used.
    * `concurrency`: so many handlers run at once.
    * `prefetch`: so many jobs more are claimed ahead. For short jobs, which then need fewer round trips.
    * `wait`: how long one claim sleeps, in seconds; the server's `pg_queue.max_wait` at most.
    * `heartbeat`: the longest time between two heartbeats, in seconds; a third of the lease if that is shorter. A
      cancelled job is told so within it.
    * `lease`, `stage`, `session_bound`: as of `queue.claim`. `session_bound` not behind a pooler in transaction mode.
    * `shutdown_timeout`: how long handlers may go on after `stop` or SIGTERM, in seconds.
    * `stall_timeout`: ends the process, with status 70, when for so many seconds the event loop was blocked, or all
      slots were taken by handlers that go on after they were told to stop. None: never.
    * `name`: for the views; host and process id unless given.
    * `on_event`: called with each `Event`, on the worker's own thread: it must not block.
    """

    def __init__(
        self,
        conninfo: str = "",
        *,
        concurrency: int = 10,
        prefetch: int = 0,
        wait: float = 10.0,
        heartbeat: float = 10.0,
        lease: Optional[Duration] = None,
        stage: Optional[str] = None,
        session_bound: bool = False,
        shutdown_timeout: float = 30.0,
        stall_timeout: Optional[float] = None,
        name: Optional[str] = None,
        on_event: Optional[Callable[[Event], None]] = None,
    ) -> None:
        if concurrency < 1 or prefetch < 0:
            raise ValueError("concurrency must be at least 1, and prefetch not negative")
        self.conninfo = conninfo
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.wait = wait
        self.heartbeat = heartbeat
        self.lease = lease
        self.stage = stage
        self.session_bound = session_bound
        self.shutdown_timeout = shutdown_timeout
        self.stall_timeout = stall_timeout
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.on_event = on_event
        self.handlers: Dict[str, Callable[..., Any]] = {}
        self.batches: Dict[str, int] = {}
        self._middleware: List[Callable[..., Any]] = []
        self._engine: Optional[Engine] = None
        self._is_told_to_stop = False  # before it runs
        self._starting = threading.Lock()

    def handler(self, *queues: str, batch: Optional[int] = None) -> Callable[[H], H]:
        """A decorator: the function runs the jobs of these queues.

        A `def` runs in a thread and gets a `Job`, an `async def` on the event loop, and gets an `AsyncJob`. What it
        returns is the job's result; an exception fails the attempt.

        With `batch` it gets up to this number of jobs of a queue together, as a `Batch` or an `AsyncBatch`. Each of
        them takes a slot of `concurrency`. It returns None, and all are completed, or a list with a result for each,
        which may be an exception. Middleware is not called.
        """

        def register(function: H) -> H:
            for queue in queues:
                if queue in self.handlers:
                    raise ValueError(f"queue {queue!r} has a handler")
                self.handlers[queue] = function
                if batch is not None:
                    self.batches[queue] = max(batch, 1)
            if len(self.handlers) > 8:
                raise ValueError("a worker has at most eight queues")
            return function

        return register

    def middleware(self, function: H) -> H:
        """A decorator: the function is called around each handler of its kind, with the job and what to call next.

        `def around(job, call): return call(job)`, or `async def around(job, call): return await call(job)`. The first
        one is the outermost.
        """
        self._middleware.append(function)
        return function

    def bound(self, queue: str) -> Callable[..., Any]:
        """The queue's handler within the middleware of its kind."""
        call = self.handlers[queue]
        if queue in self.batches:
            return call
        is_async = inspect.iscoroutinefunction(call)
        for around in reversed(self._middleware):
            if inspect.iscoroutinefunction(around) == is_async:
                call = partial(_around, around, call)
        return call

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`; then waits for the handlers, and gives back what is left.

        A second signal ends the wait. Raises RuntimeError if a queue does not exist when the worker starts; a queue
        that is dropped later is tried again.
        """
        asyncio.run(self._run_with_signals())

    async def serve(self) -> None:
        """Works within the caller's event loop until `stop`. Cancelling it stops it as well."""
        await self._serve()

    def stop(self) -> None:
        """Begins to shut down, from any thread. A second call ends the wait for the handlers. A worker that does not
        run yet ends as soon as it does.
        """
        with self._starting:
            if self._engine is None:
                self._is_told_to_stop = True
            else:
                self._engine.stop()

    def drain(self) -> List[Event]:
        """Works off everything that is ready now, and returns what happened: for tests, and for jobs by cron."""
        events: List[Event] = []
        asyncio.run(self._serve(drain=True, watch=events.append))
        return events

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        signals = []
        if threading.current_thread() is threading.main_thread():
            signals = [signal.SIGTERM, signal.SIGINT]
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            await self.serve()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def _serve(self, drain: bool = False, watch: Optional[Callable[[Event], None]] = None) -> None:
        if not self.handlers:
            raise ValueError("a worker needs a handler")
        with self._starting:
            if self._engine is not None:
                raise RuntimeError("this worker runs already")
            self._engine = Engine(self, drain, watch)
            if self._is_told_to_stop:
                self._engine.stop()
            self._is_told_to_stop = False
        try:
            await self._engine.serve()
        finally:
            self._engine = None


def _around(around: Callable[..., Any], call: Callable[..., Any], job: BaseJob) -> Any:
    return around(job, call)
