"""Codecs: what is stored of payloads, results, progress and steps, so that the server need not see them.

A worker and the producers call a codec's hooks with each such value. `AesGcm` encrypts; docs/encryption.md describes
what it stores, byte by byte, and clients/conformance/codec.json has examples.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Iterable, List, Literal, Mapping, Optional, Protocol

Kind = Literal["payload", "result", "progress", "step"]


@dataclass(frozen=True)
class Context:
    """What a value is, and where: the name of the queue, or of the topic for the payload of an event."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} of {self.name}"


class Codec(Protocol):
    """The hooks. Each may also be an `async def`, for a worker and for the functions for asyncio."""

    def encode(self, value: Any, context: Context) -> Any:
        """Returns the JSON that is stored for a value."""

    def decode(self, stored: Any, context: Context) -> Any:
        """Returns the value. Raises `UnknownCodec` if only another worker may be able to read it; any other error fails
        the attempt.
        """


class UnknownCodec(Exception):
    """This worker has no codec or no key for a value. The job is released, as a job without a handler is."""


_ID = re.compile("[!-~]{0,100}")
"""What the names of codecs and keys look like: the log shows them."""


def is_encoded(stored: Any) -> bool:
    """Returns whether stored JSON has the form of an encoded value."""
    return (
        isinstance(stored, dict)
        and len(stored) == 3
        and stored.keys() == {"codec", "key", "data"}
        and all(isinstance(part, str) for part in stored.values())
        and all(_ID.fullmatch(stored[part]) for part in ("codec", "key"))
    )


class _Plain:
    """The codec of a worker that has none: it stores values as they are, and leaves encoded values to others."""

    def encode(self, value: Any, context: Context) -> Any:
        return value

    def decode(self, stored: Any, context: Context) -> Any:
        if is_encoded(stored):
            raise UnknownCodec(f"no codec {stored['codec']} for {context}")
        return stored


PLAIN: Codec = _Plain()


class AesGcm:
    """Encrypts with AES-256-GCM. Needs the package `cryptography`, which the extra `aes` installs.

    * `keys`: the keys, 32 bytes each, by their ids.
    * `current`: the id of the key that encrypts. All keys decrypt, so that keys can be rotated.
    * `strict`: refuses values that are not encrypted. Otherwise they are read as they are, as long as producers without
      the codec exist.
    * `accepts`: the names of other queues and topics whose values a queue accepts: that of a topic that it is bound to,
      and of a queue whose dead jobs are copied to it.
    """

    NAME = "aes-gcm/1"

    def __init__(
        self,
        keys: Mapping[str, bytes],
        current: str,
        *,
        strict: bool = False,
        accepts: Mapping[str, Iterable[str]] = {},
    ) -> None:
        try:
            cipher: Any = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self._invalid: Any = import_module("cryptography.exceptions").InvalidTag
        except ImportError as error:
            raise ImportError("AesGcm needs the package cryptography: pip install cryptography") from error
        if current not in keys:
            raise ValueError(f"there is no key {current!r}")
        for key, content in keys.items():
            if not _ID.fullmatch(key):
                raise ValueError(f"the id {key!r} of a key must have at most 100 characters, of ASCII from ! to ~")
            if len(content) != 32:
                raise ValueError(f"key {key!r} must have 32 bytes, and has {len(content)}")
        self._ciphers = {key: cipher(bytes(content)) for key, content in keys.items()}
        self._current = current
        self._strict = strict
        self._accepts = {name: list(others) for name, others in accepts.items()}

    def encode(self, value: Any, context: Context) -> Any:
        return self._encode(value, context, os.urandom(12))

    def _encode(self, value: Any, context: Context, nonce: bytes) -> Any:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        plain = text.encode("utf-8", "backslashreplace")  # half of a surrogate pair as JSON escapes it
        data = nonce + self._ciphers[self._current].encrypt(nonce, plain, _associated(context.kind, context.name))
        return {"codec": self.NAME, "key": self._current, "data": base64.b64encode(data).decode()}

    def decode(self, stored: Any, context: Context) -> Any:
        if not is_encoded(stored):
            if self._strict:
                raise ValueError(f"{context} is not encrypted")
            return stored
        codec, key = stored["codec"], stored["key"]
        if codec != self.NAME:
            raise UnknownCodec(f"no codec {codec} for {context}")
        if key not in self._ciphers:
            raise UnknownCodec(f"no key {key} of codec {codec} for {context}")
        try:
            data = base64.b64decode(stored["data"], validate=True)
        except ValueError:
            data = b""
        if len(data) >= 28:
            for name in [context.name, *self._accepts.get(context.name, ())]:
                try:
                    plain = self._ciphers[key].decrypt(data[:12], data[12:], _associated(context.kind, name))
                except self._invalid:
                    continue
                return json.loads(plain)
        raise ValueError(f"{context} is not what key {key} has encrypted for it")


def _associated(kind: str, name: str) -> bytes:
    """Returns the additional authenticated data. No name of Postgres contains a zero character."""
    return "\0".join(["pg_queue", AesGcm.NAME, kind, name]).encode()


def now(found: Any, loop: Optional[asyncio.AbstractEventLoop] = None) -> Any:
    """Returns what a hook has returned, for callers that cannot await. `loop`: the event loop, in another thread, that
    runs a hook that is an `async def`.
    """
    if not inspect.isawaitable(found):
        return found
    if loop is None:
        getattr(found, "close", lambda: None)()
        raise TypeError("the codec is for asyncio: use the functions for asyncio, or call its hooks yourself")
    return asyncio.run_coroutine_threadsafe(later(found), loop).result()


async def later(found: Any) -> Any:
    """Returns what a hook has returned, for callers that can await."""
    return await found if inspect.isawaitable(found) else found


def encoded(codec: Optional[Codec], values: Iterable[Any], name: str) -> List[Any]:
    """Returns what is stored for the payloads of a queue or topic."""
    return list(values) if codec is None else [now(codec.encode(one, Context("payload", name))) for one in values]


async def encoded_async(codec: Optional[Codec], values: Iterable[Any], name: str) -> List[Any]:
    """The same for asyncio."""
    if codec is None:
        return list(values)
    return [await later(codec.encode(one, Context("payload", name))) for one in values]
