"""A timer that is rarely set anew, for times that mostly do not come, such as the ends of leases."""

from __future__ import annotations

import asyncio
import math
from typing import Callable, Optional


class Alarm:
    """Calls a function at the earliest of the times that it has been given, by the event loop's clock, and forgets all
    of them. The function looks at what is due, and sets the alarm for the rest.

    A time that no longer matters is not taken back, so that an attempt can end without touching a timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        self._loop = loop
        self._function = function
        self._at = math.inf
        self._timer: Optional[asyncio.TimerHandle] = None

    def set(self, at: float) -> None:
        if at < self._at:
            self.cancel()
            self._at, self._timer = at, self._loop.call_at(at, self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = math.inf, None

    def _ring(self) -> None:
        self._at, self._timer = math.inf, None
        self._function()
