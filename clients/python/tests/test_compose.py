"""The files of clients/compose, as far as they go without docker: what they name exists, and the schema, the pooler's
configuration and the worker do what the head of compose.yaml says.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import yaml
from conftest import one, until

COMPOSE = Path(__file__).parents[2] / "compose"


def test_what_is_named_exists():
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    assert set(services) == {"db", "pgbouncer", "worker", "dashboard"}
    for service in services.values():
        context = COMPOSE / service["build"]["context"]
        dockerfile = context / service["build"].get("dockerfile", "Dockerfile")
        assert dockerfile.is_file()
        target = service["build"].get("target")
        assert target is None or f" AS {target}\n" in dockerfile.read_text()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).is_file()
        assert set(service.get("depends_on", {})) <= set(services)
    for dockerfile in COMPOSE.glob("*.Dockerfile"):
        copied = [line.split()[1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
        assert all((COMPOSE / name).exists() for name in copied)
    assert services["worker"]["environment"]["PGPORT"] in (COMPOSE / "pgbouncer.ini").read_text()


def test_the_worker_behind_the_pooler(pg_queue_server, tmp_path):
    dir = pg_queue_server.dir
    with pg_queue_server.connect() as conn:
        conn.execute("CREATE ROLE app SUPERUSER LOGIN")
        conn.execute("CREATE DATABASE app OWNER app")
    with pg_queue_server.connect("app", user="app") as conn:
        conn.execute((COMPOSE / "schema.sql").read_text())
    program = shutil.which("pgbouncer", path=f"/usr/sbin:{os.environ['PATH']}")
    text = (COMPOSE / "pgbouncer.ini").read_text()
    for theirs, ours in {
        "host=db ": f"host={dir} ",
        "listen_addr = 0.0.0.0": f"unix_socket_dir = {dir}",
        "6432": "6433",
        "/etc/pgbouncer/users.txt": str(dir / "users.txt"),
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    (dir / "compose.ini").write_text(text)
    (dir / "users.txt").write_text('"app" "app"\n')
    account = ["--user=postgres"] if os.geteuid() == 0 else []
    environment = {**os.environ, "PGHOST": str(dir), "PGPORT": "6433", "PGUSER": "app", "PGPASSWORD": "app", "PGDATABASE": "app"}
    environment["PYTHONPATH"] = f"{Path(__file__).parents[1] / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, "--quiet", *account, str(dir / "compose.ini")], **quiet) as pooler:
        with subprocess.Popen([sys.executable, str(COMPOSE / "worker.py")], env=environment, **quiet) as worker:
            try:
                with pg_queue_server.connect("app", user="app") as conn:
                    job_id = one(conn, "SELECT queue.enqueue('greetings', '{\"name\": \"Ada\"}')")
                    text = "SELECT (SELECT text FROM greeting WHERE job_id = %s)"
                    assert until("it is done", lambda: one(conn, text, job_id)) == "Hello, Ada!"
                with psycopg.connect(f"host={dir} port=6433 user=app password=app dbname=app") as pooled:
                    assert one(pooled, "SELECT count(*) FROM greeting") == 1
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(20) == 0
            finally:
                worker.kill()
                pooler.kill()
