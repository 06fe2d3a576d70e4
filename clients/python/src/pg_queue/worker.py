"""The worker as its user sees it: its options, its handlers, and how to run it. `engine` runs it."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from typing import Any, Callable, List, Optional, TypeVar

from . import checks
from .engine import Engine
from .events import Event
from .handlers import Handler
from .settings import BaseWorker

H = TypeVar("H", bound=Callable[..., Any])


class Worker(BaseWorker):
    """Runs the jobs of up to eight queues.

    * `conninfo`: as for libpq; the environment (`PGHOST`, …) gives what it leaves out. If it names several hosts, the
      worker uses the one that accepts writes.
    * `concurrency`: how many handlers run at the same time.
    * `prefetch`: how many further jobs are claimed ahead. Use it for short jobs, which then need fewer round trips.
      Beside jobs whose last attempt has timed out, none is claimed ahead.
    * `max_connections`: how many connections handlers use at the same time, for `job.transaction()`, steps and so on.
      They wait for each other. None: as many as they ask for, and the server accepts.
    * `wait`: how long one claim sleeps, in seconds; at most the server's `pg_queue.max_wait`.
    * `linger`: how long a claim collects a full batch, in seconds, from when its first job is ready. For a worker with
      one handler, of batches. If its queue has stages, it is for one of them.
    * `heartbeat`: the longest time between two heartbeats, in seconds; a third of the lease or of `disconnect` if that
      is shorter. A handler learns within this time that its job is to be cancelled.
    * `lease`: as for `queue.claim`.
    * `disconnect`: when the jobs of this worker run elsewhere, in seconds after its connection has broken and not come
      back, as when the process is killed. 0: immediately, however the connection ends; not behind a pooler. None: when
      their leases end.
    * `shutdown_timeout`: how long handlers may go on after `stop` or SIGTERM, in seconds.
    * `stall_timeout`: ends the process, with status 70, if for this many seconds the event loop was blocked, or all
      slots were taken by handlers that did not stop when they were told to. None: never.
    * `timeout`: how long a handler may take, in seconds. Then it is told to stop, and the attempt fails. None: as long
      as it likes.
    * `trace`: whether the error of a failed attempt is kept with its trace, of 4,096 characters at most.
    * `effects`: a second `conninfo`, for `job.transaction()`: the primary of a bridge (docs/bridge.md). Effects there
      are committed once, however often the job runs. None: `job.transaction()` is on the queue's server.
    * `codec`: encodes and decodes payloads, results, progress and steps, such as `AesGcm`.
    * `on_unknown`: what becomes of a job whose codec or key this worker does not have, such as one that a newer
      producer has enqueued. `release` gives it back for 30 seconds, without counting the attempt, so that another
      worker runs it; `fail` fails the attempt. The log says so once for each key.
    * `name`: the worker's name in the views; the default is host and process id.
    * `on_event`: called with each `Event` on the thread of the worker, so it must not block.
    """

    _engine: Optional[Engine] = None

    def handler(
        self,
        *queues: str,
        stage: Optional[str] = None,
        batch: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Callable[[H], H]:
        """Decorates a function that runs the jobs of these queues.

        With `stage` it runs the jobs of this stage only. A handler without it runs those of all stages that have no
        handler of their own. The worker claims no job that has no handler.

        A `def` runs in a thread and gets a `Job`. An `async def` runs on the event loop and gets an `AsyncJob`. The
        function returns the job's result; an exception fails the attempt.

        With `batch` it gets up to this number of jobs of a queue together, as a `Batch` or an `AsyncBatch`. Each job
        takes a slot of `concurrency`. If it returns None, all jobs are completed. Otherwise it returns a list with a
        result for each job, which may be an exception. Middleware is not called.

        `timeout`: in place of the worker's.
        """

        wrong = next((queue for queue in queues if not isinstance(queue, str)), None)
        if wrong is not None or not queues:
            raise TypeError('name the queues of the handler, such as @worker.handler("emails")')

        checks.maybe(checks.text, stage, "stage")
        if batch is not None:
            checks.integer(batch, "batch", 1)
        if timeout is not None:
            checks.some_seconds(timeout, "timeout")

        def register(function: H) -> H:
            for queue in queues:
                if (queue, stage) in self.handlers:
                    of_stage = "" if stage is None else f" for stage {stage!r}"
                    raise ValueError(f"queue {queue!r} has a handler{of_stage}")
                self.handlers[queue, stage] = Handler(function, inspect.iscoroutinefunction(function), batch, timeout)
            if len(self.queues()) > 8:
                raise ValueError("a worker has at most eight queues")
            return function

        return register

    def middleware(self, function: H) -> H:
        """Decorates a function that is called around each handler of its kind, with the job and the next function to
        call.

        `def around(job, call): return call(job)`, or `async def around(job, call): return await call(job)`. The first
        one is the outermost.
        """
        self.middlewares.append(function)
        return function

    def queues(self) -> List[str]:
        """Returns the queues that have a handler."""
        return list(dict.fromkeys(queue for queue, _ in self.handlers))

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Then it waits for the handlers, and releases the remaining jobs.

        A second signal ends the wait. Raises RuntimeError if a queue does not exist when the worker starts. If a queue
        is dropped later, the worker keeps trying.
        """
        asyncio.run(self._run_with_signals())

    async def serve(self) -> None:
        """Works within the caller's event loop until `stop`. Cancelling this coroutine stops the worker, too."""
        await self._serve()

    def stop(self) -> None:
        """Begins to shut down; any thread may call it. A second call ends the wait for the handlers. If the worker does
        not run yet, it stops as soon as it starts.
        """
        with self._starting:
            if self._engine is None:
                self._is_told_to_stop = True
            else:
                self._engine.stop()

    def drain(self) -> List[Event]:
        """Runs all jobs that are ready now, and returns the events. For tests, and for workers that cron starts."""
        events: List[Event] = []
        asyncio.run(self._serve(drain=True, watch=events.append))
        return events

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        handlers = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in handlers:
            loop.add_signal_handler(number, self.stop)
        try:
            await self.serve()
        finally:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def _serve(self, drain: bool = False, watch: Optional[Callable[[Event], None]] = None) -> None:
        if not self.handlers:
            raise ValueError("a worker needs a handler")
        if self.linger and self.collected() is None:
            raise ValueError("linger needs one handler, of batches; if its queue has stages, of one of them")
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
