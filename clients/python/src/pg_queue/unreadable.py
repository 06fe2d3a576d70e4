"""JSON that Python cannot read, such as an integer of 5,000 digits. A job that has it fails, and its worker goes on.
"""

from __future__ import annotations

from typing import Any, Union

from psycopg import AsyncConnection
from psycopg.types.json import JsonbBinaryLoader


class Unreadable:
    """Stands for JSON that could not be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Loader(JsonbBinaryLoader):
    def load(self, data: Union[bytes, bytearray, memoryview]) -> Any:
        try:
            return super().load(data)
        except Exception as error:  # the application may have set a function of its own that reads JSON
            return Unreadable(error)


def keep(conn: AsyncConnection[Any]) -> None:
    """Lets the connection return an `Unreadable` for JSON that it cannot read, instead of raising an error."""
    conn.adapters.register_loader("jsonb", _Loader)
