"""How an attempt ends, and the statement that tells the server: one for all that end in the same way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Literal, Optional, Sequence, Tuple

from .events import EventKind
from .job import BaseJob

Kind = Literal["complete", "advance", "suspend", "fail", "release", "none"]

_SQL = {
    "complete": "SELECT queue.complete(i, r) FROM unnest(%s::bigint[], %s::jsonb[]) AS e(i, r)",
    "advance": "SELECT queue.advance(i, s, p, d) "
    "FROM unnest(%s::bigint[], %s::text[], %s::jsonb[], %s::interval[]) AS e(i, s, p, d)",
    # An array of arrays cannot be taken apart: one by one.
    "suspend": "SELECT queue.suspend(i, %s::bigint[], %s, %s) FROM unnest(%s::bigint[]) AS e(i)",
    "fail": "SELECT queue.fail(i, t, retry_in => r, fatal => f) "
    "FROM unnest(%s::bigint[], %s::text[], %s::interval[], %s::boolean[]) AS e(i, t, r, f)",
    "release": "SELECT queue.release(i, delay => d) FROM unnest(%s::bigint[], %s::interval[]) AS e(i, d)",
}

AGAIN = 0.01
"""After how many seconds an end is sent again that another open transaction was in the way of; twice as long each time, up
to a second or so."""

_EVENTS = {"advance": "advanced", "suspend": "suspended", "fail": "failed", "release": "released"}


class Ending:
    """How one attempt ends: `kind`, with the arguments that its function has beside the id.

    `none`: the handler has ended it itself, or it is lost.
    """

    def __init__(self, job: BaseJob, kind: Kind, *arguments: Any, error: Optional[str] = None) -> None:
        self.job = job
        self.id = job.id
        self.kind = kind
        self.arguments = arguments
        self.error = error
        self.seconds = 0.0
        self.delays = 0
        """How often the server has said: later."""

    @classmethod
    def failure(
        cls, job: BaseJob, text: str, retry_in: Optional[timedelta] = None, is_fatal: bool = False
    ) -> Ending:
        # Postgres takes neither NUL nor half of a surrogate pair.
        text = text.replace("\0", "").encode(errors="replace").decode()
        return cls(job, "fail", text, retry_in, is_fatal, error=text)

    @property
    def is_plain(self) -> bool:
        """Whether a claim can take it along: a completion without a result."""
        return self.kind == "complete" and self.arguments == (None,)

    @property
    def event(self) -> EventKind:
        return _EVENTS.get(self.kind, "completed")  # type: ignore[return-value]

    def delay(self) -> float:
        """How long to wait, in seconds, until it is sent again."""
        self.delays += 1
        return AGAIN * 2.0 ** min(self.delays - 1, 7)

    @staticmethod
    def alike(endings: Sequence[Ending]) -> List[Ending]:
        """The first one, and those that the same statement can tell. What was refused before would have them refused, too."""
        first = endings[0]
        if first.kind == "suspend" or first.delays:
            return [first]
        return [ending for ending in endings if ending.kind == first.kind and not ending.delays]

    @staticmethod
    def statement(kind: Kind, endings: Sequence[Ending]) -> Tuple[str, List[Any]]:
        if kind == "suspend":
            return _SQL[kind], [*endings[0].arguments, [endings[0].id]]
        arguments = zip(*(ending.arguments for ending in endings))
        return _SQL[kind], [[ending.id for ending in endings], *map(list, arguments)]
