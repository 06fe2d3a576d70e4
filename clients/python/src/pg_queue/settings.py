"""What a worker has been told: its options, its handlers and middleware, and whether it is to stop.

Not responsible for running it (`engine`), nor for how its user calls it (`worker`).
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple

from . import checks
from .checks import Duration
from .codec import Codec
from .events import Event
from .handlers import Handler

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
        wait: float = 15.0,
        linger: float = 0.0,
        heartbeat: float = 10.0,
        lease: Optional[Duration] = None,
        disconnect: Optional[float] = 5.0,
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
        self.handlers: Dict[Route, Handler] = {}
        self.middlewares: List[Callable[..., Any]] = []
        self._is_told_to_stop = False  # stop() was called before run()
        self._starting = threading.Lock()

    __init__.__qualname__ = "Worker.__init__"  # Python names it if an option is misspelt

    @property
    def name(self) -> str:
        """The worker's name in the views."""
        # A worker that was made before a fork runs in several processes.
        return self._name or f"{socket.gethostname()}:{os.getpid()}"

    def collected(self) -> Optional[int]:
        """Returns how many jobs a claim collects if it lingers. None: it cannot."""
        return next(iter(self.handlers.values())).batch if len(self.handlers) == 1 else None
