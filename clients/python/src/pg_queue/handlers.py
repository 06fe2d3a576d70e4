"""Handlers as the engine calls them: within the middleware of their kind, a batch, and a span.

Not responsible for when a handler is called, nor for what becomes of its result (`engine`).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, List, Optional, Sequence

from . import tracing
from .attempt import BaseJob
from .batch import AsyncBatch, Batch


@dataclass(frozen=True)
class Handler:
    """A function that runs jobs, and its own options."""

    function: Callable[..., Any]
    is_async: bool
    batch: Optional[int] = None
    """How many jobs it gets together at most; None: one job, without a batch."""
    timeout: Optional[float] = None
    """How many seconds it may take."""

    def within(self, middleware: Sequence[Callable[..., Any]], timeout: Optional[float]) -> Handler:
        """Returns the handler that the engine calls. Its function takes a job and returns its result. The function of a
        batch takes a list of jobs and returns a list of results. `timeout`: the worker's.
        """
        call = self.function
        chosen = [around for around in middleware if inspect.iscoroutinefunction(around) == self.is_async]
        if self.batch is not None:
            call = partial(_batched_async if self.is_async else _batched, call)
        elif chosen:
            call = partial(_around_async if self.is_async else _around, chosen, call)
        return replace(self, function=tracing.traced(call, self.is_async), timeout=self.timeout or timeout)


def _batched(function: Callable[..., Any], jobs: List[Any]) -> List[Any]:
    return _results(jobs, function(Batch(jobs)))


async def _batched_async(function: Callable[..., Any], jobs: List[Any]) -> List[Any]:
    return _results(jobs, await function(AsyncBatch(jobs)))


def _results(jobs: List[Any], result: Any) -> List[Any]:
    """Returns a result for each job of a batch."""
    if result is None:
        return [None] * len(jobs)
    if not isinstance(result, (list, tuple)) or len(result) != len(jobs):
        raise ValueError(f"a handler of {len(jobs)} jobs must return {len(jobs)} results or None")
    return list(result)


def _around(middleware: List[Callable[..., Any]], handler: Callable[..., Any], job: BaseJob) -> Any:
    called: List[BaseJob] = []
    return _checked(called, job, _within(middleware, handler, called)(job))


async def _around_async(middleware: List[Callable[..., Any]], handler: Callable[..., Any], job: BaseJob) -> Any:
    called: List[BaseJob] = []
    return _checked(called, job, await _within(middleware, handler, called)(job))


def _within(
    middleware: List[Callable[..., Any]], handler: Callable[..., Any], called: List[BaseJob]
) -> Callable[[BaseJob], Any]:
    """Returns the handler within the middleware. It notes in `called` that the middleware has called the handler."""
    def call(job: BaseJob) -> Any:
        called.append(job)
        return handler(job)

    for around in reversed(middleware):
        call = partial(_next, around, call)
    return call


def _next(around: Callable[..., Any], call: Callable[[BaseJob], Any], job: BaseJob) -> Any:
    return around(job, call)


def _checked(called: List[BaseJob], job: BaseJob, result: Any) -> Any:
    if result is None and not called and not job.ended:
        raise RuntimeError("a middleware has not called the handler")
    return result
