"""Checks arguments when they are given, and says in a sentence what is wrong with them."""

from __future__ import annotations

import json
import math
import warnings
from datetime import datetime, timedelta
from numbers import Integral
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import psycopg
from psycopg.types.json import Json, Jsonb

Duration = Union[timedelta, float]
"""A length of time; a number is seconds."""


def refuse(name: str, wanted: str, value: Any) -> TypeError:
    said = repr(value) if isinstance(value, (str, int, float, type(None))) else f"of type {type(value).__name__}"
    return TypeError(f"{name} is {wanted}, not {said[:80]}")


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise refuse(name, "a str", value)
    return value


def integer(value: Any, name: str, least: Optional[int] = None) -> int:
    # An Integral, such as one of numpy, is no int.
    if not isinstance(value, Integral) or isinstance(value, bool) or least is not None and int(value) < least:
        raise refuse(name, "an int" if least is None else f"an int of at least {least}", value)
    return int(value)


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, "a bool", value)
    return value


def seconds(value: Any, name: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise refuse(name, "a number of seconds", value)
    return value


def some_seconds(value: Any, name: str) -> float:
    if seconds(value, name) == 0:
        raise refuse(name, "a number of seconds above 0", value)
    return float(value)


def interval(duration: Optional[Duration], name: str = "delay") -> Optional[str]:
    """Returns the text of an interval for Postgres. Without days: psycopg would make 24 hours a day of the calendar."""
    if duration is None:
        return None
    if not isinstance(duration, timedelta):
        if not isinstance(duration, (int, float)) or not math.isfinite(duration):
            raise refuse(name, "a timedelta or a number of seconds", duration)
        duration = timedelta(seconds=duration)
    return f"{duration // timedelta(microseconds=1)} microseconds"


def moment(value: Any, name: str) -> datetime:
    if not isinstance(value, datetime):
        raise refuse(name, "a datetime", value)
    return value


def job_ids(value: Any, name: str = "after") -> List[int]:
    if isinstance(value, (int, str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} is a list of job ids, not {value!r}: write [job_id]")
    return [integer(one, f"each of {name}") for one in value]


def payload(value: Any) -> Any:
    """Returns a payload. Unwraps a `Jsonb`, and warns of a text that holds JSON, as SQL wants it."""
    if isinstance(value, (Json, Jsonb)):
        return value.obj
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            json.loads(value)
        except ValueError:
            return value
        advice = "give the object itself, without json.dumps"
        warnings.warn(f"a payload is a str that holds JSON: {advice}", UserWarning, stacklevel=4)
    return value


def payloads(values: Iterable[Any]) -> List[Any]:
    """Returns the payloads. Raises TypeError for a text or a dict, which would be taken apart."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"payloads is a list of payloads, not {type(values).__name__}: write [payload]")
    return [payload(one) for one in values]


def connection(value: Any, kind: type) -> None:
    """Refuses what cannot run a producer's statement."""
    # SQLAlchemy's connection of a driver passes everything on.
    if isinstance(value, kind) or isinstance(getattr(value, "driver_connection", None), kind):
        return
    wanted = f"a psycopg.{kind.__name__}"
    if isinstance(value, (psycopg.Connection, psycopg.AsyncConnection)):
        other = "the function without _async" if isinstance(value, psycopg.Connection) else "the function with _async"
        raise TypeError(f"the first argument is {wanted}: for this connection there is {other}")
    raise TypeError(
        f"the first argument is {wanted}, not of type {type(value).__name__}: within Django's atomic() that is "
        "connection.connection, with SQLAlchemy session.connection().connection.driver_connection"
    )


def conninfo(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise refuse(name, 'a str such as "dbname=app" (the worker connects itself)', value)
    return value


OPTIONS: Dict[str, Any] = {
    # checks of options: made by `make generate`
    "priority": integer,
    "delay": interval,
    "run_at": moment,
    "unique_key": text,
    "on_duplicate": text,
    "version": moment,
    "unique_for": interval,
    "group_key": text,
    "stage": text,
    "max_attempts": integer,
    "lease": interval,
    "after": job_ids,
    "upon": text,
    "flow": integer,
    "task": text,
    "start_by": moment,
    "start_within": interval,
    "max_delay": interval,
    # end of checks of options
    "mandatory": flag,
}
"""The checks of a job's options. Each returns the value for psycopg."""


def headers(value: Any) -> Any:
    found = value.obj if isinstance(value, (Json, Jsonb)) else value
    if found is not None and not isinstance(found, Mapping):
        raise refuse("headers", "a dict", found)
    return found


def options(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the options that are not None, checked. The headers are last."""
    chosen = {name: value for name, value in given.items() if name != "headers" and value is not None}
    found = {name: OPTIONS[name](value, name) for name, value in chosen.items()}
    if given.get("headers") is not None:
        found["headers"] = headers(given["headers"])
    return found


def maybe(check: Any, value: Any, *more: Any) -> Any:
    """Checks a value that may be None."""
    return None if value is None else check(value, *more)


def methods(value: Any, name: str, wanted: Sequence[str]) -> Any:
    if not all(callable(getattr(value, method, None)) for method in wanted):
        raise refuse(name, f"an object with the methods {', '.join(wanted)}", value)
    return value


def one_of(value: Any, name: str, known: Tuple[str, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, not {value!r}")
    return value
