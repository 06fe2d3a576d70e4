"""Threads for synchronous handlers (`def`). They are daemons, so a handler that does not stop does not keep the process
alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextvars import Context
from queue import SimpleQueue
from typing import Any, Callable, Deque, NamedTuple, Optional, Tuple

from .texts import text


class NoThread(Exception):
    """The system has no thread for this worker."""


class Call(NamedTuple):
    """A function that a thread calls in a context. The event loop passes its result, or its exception, to `done`."""

    context: Context
    function: Callable[[Any], Any]
    argument: Any
    done: Callable[[Any], object]


class Threads:
    """Runs functions in threads, and keeps these for later calls. It has as many threads as functions run at the same
    time. If the system has no more threads, a function waits for one of those that it has. When its turn comes, it only
    runs if `is_over` returns false for its argument.

    A thread wakes the event loop only if it has not been woken yet: one turn takes the outcomes of many functions.
    """

    def __init__(self, is_over: Callable[[Any], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_over = is_over
        self._calls: SimpleQueue[Optional[Call]] = SimpleQueue()
        self._outcomes: Deque[Tuple[Call, Any]] = deque()
        self._is_woken = False
        self._count = 0
        self._busy = 0

    def call(self, call: Call) -> None:
        self._busy += 1
        if self._busy > self._count:
            try:
                threading.Thread(target=self._work, name=f"pg_queue-{self._count + 1}", daemon=True).start()
                self._count += 1
            except RuntimeError as error:
                if not self._count:
                    self._loop.call_soon(self._finish, call, NoThread(str(error)))
                    return
                call = call._replace(function=self._unless_over(call.function))
        self._calls.put(call)

    def close(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                outcome = call.context.run(call.function, call.argument)
            except BaseException as error:
                outcome = error
                if not isinstance(error, Exception) or isinstance(error, StopIteration):
                    outcome = RuntimeError(f"{type(error).__name__}: {text(error)}")
            self._outcomes.append((call, outcome))
            del call, outcome
            # The event loop clears the flag before it takes the outcomes, so none is left.
            if not self._is_woken:
                self._is_woken = True
                try:
                    self._loop.call_soon_threadsafe(self._finish_all)
                except RuntimeError:
                    return  # the event loop has ended

    def _finish_all(self) -> None:
        self._is_woken = False
        while self._outcomes:
            self._finish(*self._outcomes.popleft())

    def _finish(self, call: Call, outcome: Any) -> None:
        self._busy -= 1
        call.context.run(call.done, outcome)

    def _unless_over(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def late(argument: Any) -> Any:
            if self._is_over(argument):
                raise NoThread("there was none until the job was to stop")
            return function(argument)

        return late
