"""Where a case runs: databases of a throw-away server, the installed peers, and the blocks of the pages.

A case is a name and a function. The function gets a Place and returns what is wrong, a sentence each. A module of cases
has a list `CASES`, and `run` has the list of the modules.
"""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Case:
    """One thing to try. `check` returns what is wrong: an empty list is a success."""

    name: str
    check: "Callable[[Place], List[str]]"


class Place:
    """A server with pg_queue, and what `versions` names, installed below `dir`."""

    def __init__(self, server, dir):
        self.server, self.dir, self.count, self.notes = server, Path(dir).resolve(), 0, []
        self.databases = []
        self.environment = {
            **os.environ,
            "NODE_PATH": f"{self.dir}/node_modules",
            "PYTHONPATH": f"{self.dir}/python",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PGHOST": str(server.dir),
            "PGUSER": "postgres",
        }

    def say(self, text):
        """Notes a fact that is worth printing and that is not wrong."""
        self.notes.append(text)

    def database(self):
        """Returns the name of a new, empty database."""
        self.count += 1
        name = f"moves{self.count}"
        with self.server.connect() as conn:
            conn.execute(f"CREATE DATABASE {name}")
        self.databases.append(name)
        return name

    def clear(self):
        """Ends a case: forgets its notes and drops its databases."""
        self.notes.clear()
        with self.server.connect() as conn:
            while self.databases:
                conn.execute(f"DROP DATABASE {self.databases.pop()} WITH (FORCE)")

    def connect(self, database):
        """Returns a connection of psycopg in autocommit mode."""
        return self.server.connect(database)

    def script(self, script, database, *arguments, timeout=120):
        """Runs a script beside the cases with the peers' packages. Returns the lines that it printed, read as JSON."""
        path = HERE / script
        interpreter = self.dir / "node_modules/node/bin/node" if path.suffix in (".js", ".mjs") else "/usr/bin/python3"
        done = subprocess.run(
            [str(interpreter), str(path), *map(str, arguments)],
            env={**self.environment, "PGDATABASE": database},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(f"{script} {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def psql(self, database, sql):
        """Runs SQL as a reader does, and returns what psql prints, without headers, columns separated by `|`.

        Raises RuntimeError with the server's message if a statement fails.
        """
        done = subprocess.run(
            [str(self.server.bindir / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", database],
            input=sql, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout


def blocks(page, heading, kind="sql"):
    """Returns the SQL below a heading of a page, up to the next heading, as one text for each block of a kind.

    Blocks of kind `sql output` show what the page's own example does, so they are left out.
    """
    text = (ROOT / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    if not found:
        raise LookupError(f"{page} has no heading {heading!r}")
    return re.findall(rf"^```{kind}\n(.*?)^```$", found[1], re.M | re.S)
