"""Texts and fields for the log and for the errors of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

if TYPE_CHECKING:
    from .job import BaseJob


def text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"its message could not be read: {type(failure).__name__}"


def line(error: BaseException) -> str:
    """Returns a message of several lines, such as one with a hint, as one line."""
    return " ".join(text(error).split())


def extra(job: BaseJob) -> Dict[str, Any]:
    """Returns fields for structured logs."""
    return {"queue": job.queue, "job_id": job.job_id, "attempt_id": job.id, "attempt": job.attempt}
