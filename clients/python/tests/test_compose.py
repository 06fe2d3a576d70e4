"""The files for Docker Compose, tested without docker. The files that they name exist.

In clients/compose the schema, the pooler's configuration, the worker and the dashboard do what compose.yaml and the
pages say, as role app. In examples/bridge both servers do.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import yaml
from conftest import one, until
from pg_queue.testing import Server

COMPOSE = Path(__file__).parents[2] / "compose"
ROOT = COMPOSE.parents[1]
BRIDGE = ROOT / "examples/bridge"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def services(folder=COMPOSE):
    return yaml.safe_load((folder / "compose.yaml").read_text())["services"]


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


@contextmanager
def process(command, environment):
    with subprocess.Popen(command, env=environment, **QUIET) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("folder, expected",
    [(COMPOSE, {"db", "pgbouncer", "worker", "dashboard"}), (BRIDGE, {"primary", "queues"})])
def test_the_files_of_the_services_exist(folder, expected):
    found = services(folder)
    assert set(found) == expected
    for service in found.values():
        assert ("build" in service) != ("image" in service)
        if "build" in service:
            dockerfile = folder / service["build"]["context"] / service["build"].get("dockerfile", "Dockerfile")
            assert dockerfile.is_file()
            target = service["build"].get("target")
            assert target is None or f" AS {target}\n" in dockerfile.read_text()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (folder / source).is_file()
        assert set(service.get("depends_on", {})) <= set(found)
    for dockerfile in folder.glob("*.Dockerfile"):
        copied = [line.split()[1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
        assert all((folder / name).exists() for name in copied)


def test_the_worker_is_behind_the_pooler():
    assert services()["worker"]["environment"]["PGPORT"] in (COMPOSE / "pgbouncer.ini").read_text()


@pytest.mark.parametrize("major", ["15", "17", "18"])
def test_the_data_of_each_major_is_in_the_volume(major):
    """The volume of 18 is at /var/lib/postgresql, of older images at /var/lib/postgresql/data. PGDATA fits both."""
    text = re.sub(r"\$\{PG:-18\}", major, (COMPOSE / "compose.yaml").read_text())
    assert "${" not in text
    whole = yaml.safe_load(text)
    db = whole["services"]["db"]
    assert db["build"]["args"] == whole["services"]["dashboard"]["build"]["args"] == {"PG": major}
    assert db["environment"]["PGDATA"] == f"/var/lib/postgresql/{major}/docker"
    assert "data:/var/lib/postgresql" in db["volumes"]
    assert whole["volumes"]["data"]["name"].endswith(major)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "ARG PG=18\n" in dockerfile and "FROM postgres:${PG}-bookworm" in dockerfile


def set_up(server, port, folder, name, addresses=()):
    """Does what the image's entrypoint does in an empty data directory: asks for passwords over TCP, creates the
    database, and runs the scripts in the order of their names. `addresses`: pairs, in the network of compose.yaml and
    in this test.
    """
    service = services(folder)[name]
    env = service["environment"]
    with server.connect(port=port) as conn:
        conn.execute(f"ALTER ROLE postgres PASSWORD '{env['POSTGRES_PASSWORD']}'")
        conn.execute(f"CREATE DATABASE {env['POSTGRES_DB']}")
        (server.dir / "data/pg_hba.conf").write_text("local all all trust\nhost all all all scram-sha-256\n")
        conn.execute("SELECT pg_reload_conf()")
    volumes = [volume.split(":") for volume in service["volumes"]]
    scripts = {place: folder / source for source, place, *_ in volumes if "/docker-entrypoint-initdb.d/" in place}
    if "build" in service:
        scripts["/docker-entrypoint-initdb.d/00-pg_queue.sql"] = ROOT / "packaging/image/initdb.sql"
    command = [str(server.bindir / "psql"), "-v", "ON_ERROR_STOP=1", "--no-password", "--no-psqlrc", "--quiet"]
    where = ["-h", str(server.dir), "-p", str(port), "--username", env.get("POSTGRES_USER", "postgres"), "--dbname",
        env["POSTGRES_DB"]]
    for _, script in sorted(scripts.items()):
        text = script.read_text()
        for theirs, ours in addresses:
            text = text.replace(theirs, ours)
        subprocess.run([*command, *where], input=text, text=True, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def place():
    port = free_port()
    with Server(listen_addresses="127.0.0.1", port=port) as server:
        set_up(server, port, COMPOSE, "db")
        with ExitStack() as stack:
            pooled = free_port()
            (server.dir / "compose.ini").write_text(pooler_ini(server, port, pooled))
            (server.dir / "users.txt").write_text('"app" "app"\n')
            program = shutil.which("pgbouncer", path=f"/usr/sbin:{os.environ['PATH']}")
            account = ["--user=postgres"] if os.geteuid() == 0 else []
            stack.enter_context(process([program, "--quiet", *account, str(server.dir / "compose.ini")], None))
            yield {"server": server, "5432": str(port), "6432": str(pooled)}


def pooler_ini(server, port, pooled):
    """Returns the pooler's configuration with the addresses of this test."""
    text = (COMPOSE / "pgbouncer.ini").read_text()
    for theirs, ours in {
        "host=db port=5432": f"host=127.0.0.1 port={port}",
        "listen_addr = 0.0.0.0": f"listen_addr = 127.0.0.1\nunix_socket_dir = {server.dir}",
        "6432": str(pooled),
        "/etc/pgbouncer/users.txt": str(server.dir / "users.txt"),
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    return text


def environment(service, place):
    """Returns the environment that compose.yaml gives to the service, with the addresses of this test."""
    own = dict(services()[service]["environment"], PGHOST="127.0.0.1")
    own["PGPORT"] = place[own.get("PGPORT", "5432")]
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, **own}


def commands(page):
    """Returns the commands with psql on a page."""
    found = re.findall(r"^#? *(psql postgresql://.*@localhost:.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert found, page
    return found


def typed(line, place):
    """Returns the output of a command, run with the ports of this test."""
    words = shlex.split(line)
    theirs = re.search(r"localhost:(\d+)/", words[1])
    words[1] = words[1].replace(theirs[0], f"127.0.0.1:{place[theirs[1]]}/")
    words[0] = str(place["server"].bindir / "psql")
    return subprocess.run([*words, "--no-psqlrc"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("page", ["README.md", "clients/compose/compose.yaml", "docs/testing.md"])
def test_the_commands_of_the_pages_work(place, page):
    env = environment("worker", place)
    env["PYTHONPATH"] = f"{COMPOSE.parent / 'python/src'}:{os.environ.get('PYTHONPATH', '')}"
    server = place["server"]
    with process([sys.executable, str(COMPOSE / "worker.py")], env) as worker:
        for line in commands(page):
            if "greeting'" in line:
                until("the greeting is there", lambda line=line: "Hello, Ada!" in typed(line, place))
            else:
                assert "queue.enqueue(" in line
                assert "(1 row)" in typed(line, place)
        with server.connect("app", user="app", port=place["5432"]) as conn:
            until("the job is done", lambda: one(conn,
                "SELECT sum(completed) = sum(enqueued) FROM queue.stats WHERE queue_name = 'greetings'"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0


def test_role_app_has_no_special_privileges(place):
    """It owns its tables, manages its queues, reads no table of the extension, and its SQL runs as itself."""
    with psycopg.connect(host="127.0.0.1", port=place["5432"], user="app", password="app", dbname="app",
        autocommit=True) as conn:
        is_more = "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls FROM pg_roles WHERE rolname = 'app'"
        assert one(conn, is_more) is False
        assert one(conn, "SELECT tableowner FROM pg_tables WHERE tablename = 'greeting'") == "app"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT * FROM queue_internal.queue")
        conn.execute("SELECT queue.create('nightly', executor => 'sql'), queue.create_topic('events')")
        conn.execute("CREATE TABLE IF NOT EXISTS nights (who text)")
        job = one(conn, "SELECT queue.enqueue_sql('nightly', 'INSERT INTO nights VALUES (current_user)')")
        until("its command has run", lambda: one(conn, "SELECT state FROM queue.job(%s)", job) == "completed")
        assert one(conn, "SELECT who FROM nights") == "app"
        assert one(conn, "SELECT count(*) FROM queue.doctor()") > 5
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(host="127.0.0.1", port=place["5432"], user="app", password="wrong", dbname="app")


def test_only_role_app_may_look_at_the_dashboard(place):
    """The dashboard accepts its command line. Role app logs in and sees its queue. No other role does."""
    program = Path(os.environ["PG_CONFIG"]).absolute().parents[1] / "pg_queue_web"
    assert program.exists(), "`make clients` builds it"
    port = free_port()
    command = services()["dashboard"]["command"]
    assert "0.0.0.0:8432" in command
    site = f"http://127.0.0.1:{port}"
    with process([str(program), *shlex.split(command.replace("0.0.0.0:8432", f"0.0.0.0:{port}"))],
        environment("dashboard", place)):

        def ask(path, body=None, cookie=""):
            headers = {"content-type": "application/json", "x-pg-queue-web": "1", "cookie": cookie}
            if body is not None:
                headers["origin"] = site
            request = urllib.request.Request(site + path, json.dumps(body).encode() if body is not None else None,
                headers)
            with urllib.request.urlopen(request) as answer:
                return answer.headers.get("set-cookie", "").split(";")[0], json.load(answer)

        def is_up():
            try:
                return ask("/api/session")
            except (urllib.error.URLError, ConnectionError):
                return None

        _, session = until("it listens", is_up)
        assert session["auth"] == "password" and session["allow_actions"]
        with pytest.raises(urllib.error.HTTPError):
            ask("/login", {"user": "app", "password": "wrong"})
        with pytest.raises(urllib.error.HTTPError):
            cookie, _ = ask("/login", {"user": "postgres", "password": "postgres"})
            ask("/api/overview", cookie=cookie)
        cookie, _ = ask("/login", {"user": "app", "password": "app"})
        _, overview = ask("/api/overview", cookie=cookie)
        assert "greetings" in [queue["queue"] for queue in overview["queues"]]


def settings(name):
    """Returns the settings that compose.yaml of the bridge gives to a server."""
    return dict(word.split("=") for word in services(BRIDGE)[name]["command"] if word != "-c")


@pytest.mark.parametrize("page", ["examples/bridge/compose.yaml", "docs/bridge.md"])
def test_the_commands_of_the_pages_about_the_bridge_work(page):
    there, here = free_port(), free_port()
    tcp = {"listen_addresses": "127.0.0.1"}
    with Server(**tcp, port=there, shared_preload_libraries="", **settings("primary")) as primary, \
            Server(**tcp, port=here, **settings("queues")) as queues:
        set_up(primary, there, BRIDGE, "primary")
        set_up(queues, here, BRIDGE, "queues", [("host=primary", f"host=127.0.0.1 port={there}")])
        ports = {"server": queues, "5433": str(there), "5434": str(here)}
        assert {port.split(":")[1] for service in services(BRIDGE).values() for port in service["ports"]} < set(ports)
        enqueue, claim = commands(page)
        assert "(1 row)" in typed(enqueue, ports)
        until("the job has come over", lambda: '{"order": 7}' in typed(claim, ports))
