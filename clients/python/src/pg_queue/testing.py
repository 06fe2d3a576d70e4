"""For tests of applications: which jobs were enqueued, letting time pass, and temporary servers.

The functions take a psycopg connection and read what its transaction sees, even before it commits.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row, tuple_row

from .checks import Duration, interval

_WATCH = """trap '' HUP INT TERM; read -r line
"$1/pg_ctl" -D "$2/data" stop --wait --timeout=20 --mode=immediate; rm -rf "$2\""""
"""Ends the server, and removes its folder, when its program has ended: then nobody has the other end of the pipe."""

_LIVING = ("ready", "scheduled", "retrying", "held", "running")


def enqueued(conn: Connection[Any], queue: str, payload: Any = None, **columns: Any) -> List[Dict[str, Any]]:
    """Returns the living jobs of the queue as rows of `queue.jobs`, the oldest first.

    `payload`: a value that their payload contains, as `@>` decides. Other columns have to be equal: `priority=5,
    state="ready"`.
    """
    sql = "SELECT * FROM queue.jobs WHERE queue_name = %s AND state = ANY (%s) ORDER BY job_id"
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(sql, [queue, list(_LIVING)]).fetchall()
    unknown = columns.keys() - found[0].keys() if found else set()
    if unknown:
        raise TypeError(f"queue.jobs has no column {min(unknown)}")
    return [
        job
        for job in found
        if (payload is None or contains(job["payload"], payload))
        and all(job[name] == value for name, value in columns.items())
    ]


def contains(whole: Any, part: Any) -> bool:
    """Returns whether a JSON value contains another one. Objects are compared as by `jsonb @> jsonb`; other values have
    to be equal.
    """
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(name in whole and contains(whole[name], value) for name, value in part.items())
    return bool(whole == part)


def assert_enqueued(
    conn: Connection[Any], queue: str, payload: Any = None, *, count: Optional[int] = None, **columns: Any
) -> List[Dict[str, Any]]:
    """Fails unless there are `count` such jobs, or at least one if `count` is not given. Returns them."""
    found = enqueued(conn, queue, payload, **columns)
    if len(found) == count or count is None and found:
        return found
    wanted = "jobs" if count is None else f"{count} jobs"
    others = [(job["state"], job["payload"]) for job in enqueued(conn, queue)[:10]]
    raise AssertionError(
        f"queue {queue!r} should have {wanted} with payload {payload!r} {columns or ''}: {len(found)} found. "
        f"It has: {others or 'none'}"
    )


def refute_enqueued(conn: Connection[Any], queue: str, payload: Any = None, **columns: Any) -> None:
    """Fails if there is such a job."""
    assert_enqueued(conn, queue, payload, count=0, **columns)


def advance_time(conn: Connection[Any], by: Duration, queue: Optional[str] = None) -> List[int]:
    """Lets time pass for jobs that wait for their time, by moving it earlier by this much. Returns the jobs that became
    due.

    Schedules and leases do not change.
    """
    sql = """
        SELECT j.job_id, j.run_at - %s::interval <= clock_timestamp()
        FROM queue.jobs AS j, LATERAL (SELECT queue.reschedule(j.job_id, j.run_at - %s::interval)) AS r
        WHERE j.state IN ('scheduled', 'retrying') AND j.queue_name = coalesce(%s::text, j.queue_name)
        ORDER BY j.job_id"""
    with conn.cursor(row_factory=tuple_row) as cursor:
        rows = cursor.execute(sql, [interval(by), interval(by), queue]).fetchall()
    return [job_id for job_id, is_due in rows if is_due]


class Server:
    """A temporary server with pg_queue in a folder of its own. It listens only on a socket in that folder, and ends
    when this process does.

    `pg_config` names the installation; the default is the variable `PG_CONFIG`, else the PATH. If root starts it, it
    runs as the account `postgres` or `nobody`.
    """

    def __init__(self, pg_config: Optional[str] = None, **settings: Any) -> None:
        command = [pg_config or os.environ.get("PG_CONFIG") or "pg_config", "--bindir"]
        self.bindir = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        self._account = _account()
        self.dir = Path(tempfile.mkdtemp(prefix="pg_queue-", dir=_memory()))
        self.log = self.dir / "log"
        self._count = 0
        if self._account:
            os.chown(self.dir, self._account[0], self._account[1])
        self._watch = self._watched()
        try:
            self._call("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
            mine = {
                "listen_addresses": "",
                "unix_socket_directories": str(self.dir),
                "shared_preload_libraries": "pg_queue",
                "max_worker_processes": 50,
                "shared_buffers": "16MB",
                "fsync": "off",
            }
            with (self.dir / "data/postgresql.conf").open("a") as file:
                file.writelines(f"{name} = '{value}'\n" for name, value in {**mine, **settings}.items())
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        try:
            self._call("pg_ctl", "start", "--wait", "--silent", f"--log={self.log}")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"the server did not start: {self.log.read_text()}") from error

    def stop(self, mode: str = "fast") -> None:
        """Stops the server. Mode `immediate` stops it as a crash does."""
        self._call("pg_ctl", "stop", "--wait", "--silent", f"--mode={mode}")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def base_backup(self, standby: Server) -> None:
        """Makes the other server a standby of this one, and starts it."""
        standby.stop()
        data = standby.dir / "data"
        kept = (data / "postgresql.conf").read_text()
        shutil.rmtree(data)
        source = ["--pgdata", str(data), "--write-recovery-conf", "--checkpoint=fast", "--dbname", self.conninfo()]
        self._run("pg_basebackup", *source)
        (data / "postgresql.conf").write_text(kept)
        standby.start()

    def promote(self) -> None:
        """Promotes a standby, and waits until it is promoted."""
        self._call("pg_ctl", "promote", "--wait", "--silent")

    def close(self) -> None:
        """Stops the server and removes its folder."""
        if self._watch.poll() is None:
            self._watch.communicate(b"\n")  # forked processes may keep the pipe open
        shutil.rmtree(self.dir, ignore_errors=True)

    def conninfo(self, dbname: str = "postgres", **parameters: Any) -> str:
        return make_conninfo(**{"host": str(self.dir), "user": "postgres", "dbname": dbname, **parameters})

    def connect(self, dbname: str = "postgres", **parameters: Any) -> Connection[Any]:
        """Returns a connection that commits each statement."""
        return psycopg.connect(self.conninfo(dbname, **parameters), autocommit=True)

    def create_database(self) -> str:
        """Makes a database with the extension, and returns its name."""
        self._count += 1
        name = f"test{self._count}"
        with self.connect() as conn:
            conn.execute(f"CREATE DATABASE {name}")
        with self.connect(name) as conn:
            conn.execute("CREATE EXTENSION pg_queue")
        return name

    def drop_database(self, name: str) -> None:
        with self.connect() as conn:
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _watched(self) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", _WATCH, "sh", str(self.bindir), str(self.dir)]
        quiet: Dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd="/", stdin=pipe, start_new_session=True, **quiet, **self._user())

    def _user(self) -> Dict[str, Any]:
        if not self._account:
            return {}
        return {"user": self._account[0], "group": self._account[1], "extra_groups": []}

    def _call(self, program: str, *arguments: str) -> None:
        self._run(program, "-D", str(self.dir / "data"), *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        """Runs a program of the server as its account. The server must not inherit the pipes of this process."""
        command = [str(self.bindir / program), *arguments]
        errors = subprocess.DEVNULL if program == "pg_ctl" else None
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=errors, **self._user())


def _memory() -> Optional[str]:
    """Returns the folder of an in-memory file system, if it has room for a few servers. Containers may have little of
    it.
    """
    path = "/dev/shm"
    if not os.access(path, os.W_OK):
        return None
    found = os.statvfs(path)
    return path if found.f_bavail * found.f_frsize > 2 << 30 else None


def _account() -> Any:
    """Returns user and group for a server that root starts, because Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise RuntimeError("root has neither `postgres` nor `nobody` to run a server as")

