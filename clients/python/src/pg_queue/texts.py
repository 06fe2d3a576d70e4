"""Texts and fields for the log and for the errors of attempts."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional

from .attempt import BaseJob


def text(error: BaseException) -> str:
    """Returns the text of an error, or a note that it cannot be read."""
    try:
        return str(error)
    except BaseException as failure:  # a thread must outlive it
        return f"its message could not be read: {type(failure).__name__}"


MAX_CAUSES = 5


def with_causes(error: BaseException, is_expected: bool = False) -> str:
    """Returns the text of an error and its causes, as after `raise … from …` or in a group. `is_expected`: without the
    class.
    """
    said = text(error) if is_expected else f"{type(error).__name__}: {text(error)}"
    found = _causes(error)
    for _ in range(MAX_CAUSES):
        if not found:
            break
        cause, *rest = found
        if text(cause) not in said:
            said += f": {type(cause).__name__}: {text(cause)}"
        found = [*rest, *_causes(cause)]
    return said


def _causes(error: BaseException) -> List[BaseException]:
    members: Any = getattr(error, "exceptions", None)  # of a group, such as that of a TaskGroup
    found = [error.__cause__, *(members if isinstance(members, (list, tuple)) else ())]
    return [cause for cause in found if isinstance(cause, BaseException)]


def said(notice: Any) -> str:
    """Returns the server's notice with its hint, as one line."""
    hint = f" Hint: {notice.message_hint}" if notice.message_hint else ""
    return " ".join(f"{notice.message_primary}{hint}".split())


def line(error: BaseException) -> str:
    """Returns a message of several lines, such as one with a hint, as one line."""
    return " ".join(text(error).split())


def array(values: Iterable[Optional[str]]) -> str:
    """Returns an array as Postgres reads it from text."""
    quoted = ["NULL" if one is None else '"%s"' % one.replace("\\", "\\\\").replace('"', '\\"') for one in values]
    return f"{{{','.join(quoted)}}}"


def extra(job: BaseJob) -> Dict[str, Any]:
    """Returns fields for structured logs."""
    return {"queue": job.queue, "job_id": job.job_id, "attempt_id": job.id, "attempt": job.attempt}
