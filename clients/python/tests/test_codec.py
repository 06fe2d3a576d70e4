"""The codecs' parts that only Python has: `async def` hooks, and the dependency on the package `cryptography`.

clients/conformance tests the promises of all packages. Its `codec.json` has values that each package has encrypted.
"""

import asyncio
import base64
import json
import sys
from pathlib import Path

import psycopg
import pytest
from conftest import one, running, state, wait_state

from pg_queue import AesGcm, Context, RetryIn, Task, UnknownCodec, Worker
from pg_queue import enqueue, enqueue_async, enqueue_flow, enqueue_many_async

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/codec.json").read_text())
KEYS = {key: base64.b64decode(text) for key, text in VECTORS["keys"].items()}


def context(vector):
    return Context(vector["kind"], vector["name"])


@pytest.mark.parametrize("vector", VECTORS["exact"], ids=lambda vector: vector["kind"])
def test_encrypted_bytes_equal_the_recorded_ones(vector):
    encoded = AesGcm(KEYS, "k1")._encode(vector["value"], context(vector), bytes.fromhex(vector["nonce"]))
    assert encoded == vector["stored"]


@pytest.mark.parametrize("vector", VECTORS["encoded"], ids=lambda vector: f"{vector['by']} {vector['kind']}")
def test_values_of_each_package_are_decrypted(vector):
    assert AesGcm(KEYS, "k1", strict=True).decode(vector["stored"], context(vector)) == vector["value"]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["why"])
def test_values_that_are_not_authentic_are_refused(vector):
    with pytest.raises(UnknownCodec if vector["error"] == "unknown" else ValueError):
        AesGcm(KEYS, "k1").decode(vector["stored"], context(vector))


@pytest.mark.parametrize("plain", VECTORS["plain"], ids=str)
def test_plain_values_are_read_unless_the_codec_is_strict(plain):
    assert AesGcm(KEYS, "k1").decode(plain, Context("payload", "a")) == plain
    with pytest.raises(ValueError, match="^the payload of a is not encrypted$"):
        AesGcm(KEYS, "k1", strict=True).decode(plain, Context("payload", "a"))


def test_each_value_has_a_nonce_of_its_own():
    codec = AesGcm(KEYS, "k1")
    assert len({codec.encode(1, Context("payload", "a"))["data"][:16] for _ in range(1000)}) == 1000


def test_invalid_keys_are_refused():
    with pytest.raises(ValueError, match="^there is no key 'k3'$"):
        AesGcm(KEYS, "k3")
    with pytest.raises(ValueError, match="^key 'k' must have 32 bytes, and has 16$"):
        AesGcm({"k": bytes(16)}, "k")
    for key in ("k\n", "k 1", "k" * 101):
        with pytest.raises(ValueError, match="of a key must have at most 100 characters"):
            AesGcm({key: bytes(32)}, key)


def test_half_of_a_surrogate_pair_is_kept_and_nan_is_refused():
    codec, payload = AesGcm(KEYS, "k1"), Context("payload", "a")
    assert codec.decode(codec.encode("ü\ud800", payload), payload) == "ü\ud800"
    with pytest.raises(ValueError, match="JSON"):
        codec.encode(float("nan"), payload)


def test_without_cryptography_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ImportError, match="pip install cryptography"):
        AesGcm(KEYS, "k1")


class Vault:
    """A codec with `async def` hooks, like one that asks a key server."""

    async def encode(self, value, context):
        await asyncio.sleep(0.01)
        return {"codec": "vault/1", "key": "", "data": json.dumps([value, context.kind, context.name])}

    async def decode(self, stored, context):
        await asyncio.sleep(0.01)
        value, *of = json.loads(stored["data"])
        assert of == [context.kind, context.name]
        return value


def test_async_hooks_serve_both_kinds_of_handlers(conn, conninfo):
    async def produce():
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            return [await enqueue_async(conn, "a", {"n": 1}, codec=Vault()),
                *await enqueue_many_async(conn, "b", [{"n": 2}], codec=Vault())]

    jobs, found = asyncio.run(produce()), []
    worker = Worker(conninfo, codec=Vault())

    @worker.handler("a")
    def handle(job):
        job.save_progress(job.payload)
        found.append(job.step("one", lambda conn: job.payload if job.attempt == 1 else None))
        if job.attempt == 1:
            raise RetryIn(0)
        return job.payload

    @worker.handler("b")
    async def handle_async(job):
        async def work(conn):
            return job.payload if job.attempt == 1 else None

        await job.save_progress(job.payload)
        found.append(await job.step("one", work))
        if job.attempt == 1:
            raise RetryIn(0)
        async with job.transaction(job.payload):
            pass

    worker.drain()
    assert sorted(found, key=str) == [{"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}]
    for queue, job in zip("ab", jobs):
        stored = conn.execute("SELECT payload, progress, result FROM queue.job(%s)", [job]).fetchone()
        kinds = ["payload", "progress", "result"]
        assert [json.loads(one["data"])[1:] for one in stored] == [[kind, queue] for kind in kinds]


def test_async_hooks_are_refused_with_a_synchronous_connection(conn):
    with pytest.raises(TypeError, match="the codec is for asyncio"):
        enqueue(conn, "a", codec=Vault())


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_hooks_that_fail_or_hang_do_not_block_the_worker(conn, conninfo, kind):
    class Broken:
        async def encode(self, value, context):
            raise LookupError("no vault")

        async def decode(self, stored, context):
            if stored == "hang":
                await asyncio.sleep(3600)
            return stored

    conn.execute("SELECT queue.alter('a', max_attempts => 1)")
    failed, hung, cancelled = enqueue(conn, "a", 1), enqueue(conn, "a", "hang"), enqueue(conn, "a", "hang")
    worker = Worker(conninfo, codec=Broken(), shutdown_timeout=0, heartbeat=0.1)
    if kind == "def":
        worker.handler("a")(lambda job: job.payload)
    else:

        @worker.handler("a")
        async def handle(job):
            return job.payload

    with running(worker):
        wait_state(conn, failed, "dead")
        conn.execute("SELECT queue.cancel(%s)", [cancelled])
        wait_state(conn, cancelled, "cancelled")
    assert one(conn, "SELECT error FROM queue.job(%s)", failed) == "LookupError: no vault"
    assert (state(conn, hung), one(conn, "SELECT attempt FROM queue.job(%s)", hung)) == ("ready", 1)


def test_a_task_can_be_used_again(conn):
    task, codec = Task("one", {"n": 1}), AesGcm(KEYS, "k1")
    for _ in range(2):
        enqueue_flow(conn, "a", [task], codec=codec)
    stored = conn.execute("SELECT payload FROM queue.jobs WHERE task = 'one'").fetchall()
    assert [codec.decode(payload, Context("payload", "a")) for payload, in stored] == [{"n": 1}, {"n": 1}]
