"""Threads for synchronous handlers (`def`). They are daemons, so a handler that does not stop does not keep the process
alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from queue import SimpleQueue
from typing import Any, Callable, Optional, Tuple

Task = Tuple[Callable[[], Any], "asyncio.Future[Any]", contextvars.Context]


class NoThread(Exception):
    """The system has no thread for this worker."""


class Threads:
    """Runs functions in threads, and keeps these for later calls. It has as many threads as functions run at the same
    time. If the system has no more threads, a function waits for one of those that it has. When its turn comes, it only
    runs if `is_over` returns false.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[Optional[Task]] = SimpleQueue()
        self._count = 0
        self._busy = 0

    async def call(self, function: Callable[[], Any], is_over: Callable[[], bool]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._count:
            try:
                threading.Thread(target=self._work, name=f"pg_queue-{self._count + 1}", daemon=True).start()
                self._count += 1
            except RuntimeError as error:
                if not self._count:
                    self._busy -= 1
                    raise NoThread(str(error)) from error
                function = _unless(is_over, function)
        self._tasks.put((function, future, contextvars.copy_context()))
        try:
            # Python cannot interrupt the function. If its caller is cancelled, the function goes on in its thread.
            return await asyncio.shield(future)
        finally:
            if future.done():
                self._busy -= 1
            else:
                future.add_done_callback(self._late)

    def _late(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # marks it as retrieved, as nothing else reads it

    def close(self) -> None:
        for _ in range(self._count):
            self._tasks.put(None)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            function, future, context = task
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the event loop has ended
            del task, function, future, context, result, error


def _unless(is_over: Callable[[], bool], function: Callable[[], Any]) -> Callable[[], Any]:
    def late() -> Any:
        if is_over():
            raise NoThread("there was none until the job was to stop")
        return function()

    return late


def _settle(future: asyncio.Future[Any], result: Any, error: Optional[BaseException]) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # such as SystemExit, which must not end the event loop; a future refuses a StopIteration
        future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
