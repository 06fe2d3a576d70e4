"""The worker's log. It never raises: a filter or handler that fails must not keep an attempt from ending.

Invariant: what a filter or handler raises goes to stderr, except what ends the process.
"""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import Any


class Log:
    """The logger `pg_queue.worker`. Its records name the line that calls it."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("pg_queue.worker")
        self.isEnabledFor = self._logger.isEnabledFor

    def debug(self, message: str, *values: object, **more: Any) -> None:
        self._write(logging.DEBUG, message, values, more)

    def warning(self, message: str, *values: object, **more: Any) -> None:
        self._write(logging.WARNING, message, values, more)

    def error(self, message: str, *values: object, **more: Any) -> None:
        self._write(logging.ERROR, message, values, more)

    def exception(self, message: str, *values: object) -> None:
        self._write(logging.ERROR, message, values, {"exc_info": True})

    def _write(self, level: int, message: str, values: Any, more: Any) -> None:
        try:
            self._logger.log(level, message, *values, stacklevel=3, **more)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # also CancelledError, which would end the worker
            with suppress(Exception):  # there may be no stderr
                print(f"pg_queue.worker: the log has failed at {message!r}", file=sys.stderr)
                traceback.print_exc()


logger = Log()
