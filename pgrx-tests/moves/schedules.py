"""Cases of docs/coming-from/pg-cron.md: the schedules of real pg_cron and real pgAgent are moved by the page's blocks.

No registry has pg_timetable. Its tables are those of the docs' tests, and its rule for days is that of its function
`is_cron_in_time`, as read in 7.0.0: the day of the month and the weekday must both match.
"""

import re
import time
from datetime import datetime, timedelta, timezone

from pg_queue.testing import Server
from place import ROOT, Case, blocks

PAGE = "docs/coming-from/pg-cron.md"
START = datetime(2032, 1, 1, tzinfo=timezone.utc)
# The end of a schedule, which is also its fourth time. pgAgent still runs it.
END = datetime(2032, 4, 14, 3, 30, tzinfo=timezone.utc)


class Pages:
    """A database in which the page's blocks run, with the warnings that they raise."""

    def __init__(self, conn):
        self.conn, self.warnings, self.is_prepared = conn, [], False
        conn.add_notice_handler(self.heard)
        conn.execute("SET timezone = 'UTC'")
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_queue")
        if conn.execute("SELECT FROM pg_roles WHERE rolname = 'reports'").fetchone() is None:
            conn.execute("CREATE ROLE reports LOGIN")

    def heard(self, notice):
        if notice.severity_nonlocalized == "WARNING":  # a NOTICE tells how an expression is read
            self.warnings.append(notice.message_primary)

    def run(self, heading):
        """Runs the blocks. Returns why they failed, and nothing of them is left then."""
        self.warnings.clear()
        text = "\n".join(block for block in blocks(PAGE, heading) if "CREATE TABLE" not in block)
        if not self.is_prepared:
            self.conn.execute("\n".join(blocks(PAGE, "Before a block moves schedules")))
            self.is_prepared = True
        text = re.sub(r"^(BEGIN|COMMIT);$", "", text, flags=re.M)
        try:
            with self.conn.transaction():
                self.conn.execute(text)
        except Exception as error:
            return [f"{heading}: the blocks failed: {error}"]
        return []

    def schedules(self):
        rows = self.conn.execute("SELECT name, coalesce(cron, every::text), is_paused FROM queue.schedules")
        return {name: (plan, is_paused) for name, plan, is_paused in rows}

    def upcoming(self, name, count):
        """Returns the slots from 2032 on."""
        found = self.conn.execute(
            "SELECT upcoming FROM queue.schedules AS s, "
            "LATERAL queue.upcoming(s.name, %s) WHERE name = %s AND upcoming >= %s LIMIT %s",
            [10_000, name, START, count],
        )
        return [at for at, in found.fetchall()]

    def both(self, heading, moved, left):
        """Runs the blocks twice. Returns what is wrong with what was moved, and with what was listed."""
        wrong = self.run(heading)
        if wrong:
            return wrong
        found = self.schedules()
        for name in sorted(found.keys() | moved.keys()):
            if found.get(name) != moved.get(name):
                wrong.append(f"{name}: moved as {found.get(name)}, not as {moved.get(name)}")
        wrong += [f"{name} is not listed" for name in left if not self.has(name)]
        if len(self.warnings) != len(left):
            wrong.append(f"{len(left)} rows cannot be moved, {self.warnings} are listed")
        wrong += self.run(heading)
        if self.schedules() != found:
            wrong.append("the blocks change more when they run again")
        if len(self.warnings) != len(left):
            wrong.append(f"they list other rows when they run again: {self.warnings}")
        return wrong

    def has(self, name):
        return any(re.search(rf"(^|\W){re.escape(name)}\W", warning) for warning in self.warnings)


def one(conn, query, *values):
    """Returns the one value of a query."""
    return conn.execute(query, values).fetchone()[0]


def cron_server(place):
    settings = {"shared_preload_libraries": "pg_queue,pg_cron", "cron.database_name": "postgres"}
    return Server(str(place.server.bindir / "pg_config"), **settings)


# Expressions of pg_cron with their translations. None if the job stays. Those in seconds and with `$` need pg_cron 1.5.
CRON = {
    "plain": ("30 2 * * *", "30 2 * * *"),
    "six": ("0 3 * * * *", "0 3 * * *"),
    "seconds": ("* * * * * *", "* * * * *"),
    "last day": ("0 3 $ * *", "0 3 L * *"),
    "names": ("0 3 * JAN MON-Fri", "0 3 * jan mon-fri"),
    "hourly": ("@hourly", "@hourly"),
    "every": ("30 seconds", "00:00:30"),
    "Every": ("10 Seconds", "00:00:10"),
    "second": ("0 0 * * MON#2", None),
    "all days": ("0 0 * * MON-SUN", None),
    "backwards": ("0 22-2 * * *", None),
    "weekend": ("0 0 * * fri-mon", None),
    "yearly": ("@yearly", None),
    "reboot": ("@reboot", None),
    "never": ("0 0 31 2 *", None),
}

# Jobs with other hosts, ports and commands, and whether they are moved.
OTHERS = {
    "socket": ("/tmp", None, "SELECT 1", True),
    "other host": ("10.0.0.7", None, "SELECT 1", False),
    "other port": ("localhost", 6432, "SELECT 1", False),
    "transactions": ("localhost", None, "BEGIN; SELECT 1; COMMIT;", False),
    "comment first": ("localhost", None, "-- copies\n start transaction; SELECT 1; END", False),
    "body": ("localhost", None, "DO $x$ BEGIN PERFORM 1; COMMIT; END $x$; SELECT '; commit' -- ; end", True),
    "between bodies": ("localhost", None, "DO $$ BEGIN END $$; COMMIT; DO $$ BEGIN END $$", False),
    "running": ("localhost", None, "SELECT 1", False),
}


def pg_cron_moves(place):
    with cron_server(place) as server, server.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cron")
        pages = Pages(conn)
        for number, (name, (text, _)) in enumerate(CRON.items(), 1):
            conn.execute(
                "INSERT INTO cron.job (jobid, jobname, schedule, active, command, nodename, nodeport, database,"
                " username) VALUES (%s, %s, %s, %s, 'SELECT 1', 'localhost', 5432, 'postgres', 'reports')",
                [number, name, text, name != "hourly"],
            )
        port = int(one(conn, "SHOW port"))
        conn.execute("UPDATE cron.job SET nodeport = %s", [port])
        for number, (name, (host, other, command, _)) in enumerate(OTHERS.items(), 50):
            conn.execute(
                "INSERT INTO cron.job (jobid, jobname, schedule, command, nodename, nodeport, database, username)"
                " VALUES (%s, %s, '0 3 * * *', %s, %s, %s, 'postgres', 'reports')",
                [number, name, command, host, other or port],
            )
        conn.execute("INSERT INTO cron.job_run_details (jobid, runid, status)"
                     " SELECT jobid, 1, 'running' FROM cron.job WHERE jobname = 'running'")
        # pg_cron allows two users to have jobs with the same name.
        conn.execute(
            "INSERT INTO cron.job (jobid, username, jobname, schedule, command, nodename, nodeport, database)"
            " SELECT 99, 'postgres', jobname, schedule, command, nodename, nodeport, database"
            " FROM cron.job WHERE jobid = 1"
        )
        moved = {name: (plan, name == "hourly") for name, (_, plan) in CRON.items() if plan}
        moved.update({name: ("0 3 * * *", False) for name, row in OTHERS.items() if row[3]})
        left = [name for name, (_, plan) in CRON.items() if not plan]
        left += [*(name for name, row in OTHERS.items() if not row[3]), "plain"]
        conn.execute("SET standard_conforming_strings = off; SET escape_string_warning = off")
        wrong = pages.both("Take over the schedules", moved, left)
        active = [name for name, in conn.execute("SELECT jobname FROM cron.job WHERE active ORDER BY jobid")]
        if active != left:
            wrong.append(f"pg_cron goes on with {active}, not with {left}")
        return wrong


def pg_cron_runs(place):
    """Looks which expressions pg_cron runs in one minute."""
    with cron_server(place) as server, server.connect() as conn:
        conn.execute("CREATE EXTENSION pg_cron")
        place.say("pg_cron " + one(conn, "SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'"))
        if time.time() % 60 > 45:
            time.sleep(16)
        at = datetime.now(timezone.utc) + timedelta(minutes=1)
        day = at.isoweekday() % 7
        when = f"{at.minute} {at.hour} * *"
        other = 1 if at.day > 7 else 2
        runs = {
            f"{when} *": True,
            f"{when} * 59": True,
            f"{when} {day}#{other}": True,
            f"{when} MON-SUN": False,
            f"{when} {day or 6}-{max(day - 1, 0)}": False,
        }
        ids = {one(conn, "SELECT cron.schedule(%s, 'SELECT 1')", text): text for text in runs}
        time.sleep(65 - time.time() % 60 + 5)
        ran = {ids[job] for job, in conn.execute("SELECT jobid FROM cron.job_run_details")}
        return [f"`{text}` ran: {text in ran}, not {does}" for text, does in runs.items() if (text in ran) != does]


def pgagent(conn, dir):
    """Makes pgAgent's tables and functions: the script of its extension, which is plain SQL."""
    lines = (dir / "debian/usr/share/postgresql/15/extension/pgagent--4.2.sql").read_text().splitlines(keepends=True)
    conn.execute("CREATE SCHEMA pgagent")
    conn.execute("".join(line for line in lines if "config_dump" not in line and not line.startswith("\\")))


# Jobs of pgAgent: days of the month (32 is the last), weekdays (0 is Sunday), and whether they can be moved.
AGENT = {
    "days": ([14], [], True),
    "weekdays": ([], [1, 6], True),
    "last": ([32], [], True),
    "with sundays": ([13], [0], True),
    "with others": ([14, 15], [0, 3], True),
    "last sunday": ([32], [0], True),
    "both": ([14], [6], False),
    "last and others": ([15, 32], [], False),
    "elsewhere": ([14], [], False),
    "batch": ([14], [], False),
    "exception": ([14], [], False),
    "transactions": ([14], [], False),
}


def pgagent_moves(place):
    with place.connect(place.database()) as conn:
        pgagent(conn, place.dir)
        pages = Pages(conn)
        conn.execute("SELECT queue.create('sql', executor => 'sql', max_attempts => 1)")
        conn.execute("SELECT queue.grant('sql', 'reports', 'manage')")
        flags = "SELECT array_agg(n = ANY (%s) ORDER BY n) FROM generate_series(1, %s) AS n"
        for name, (days, weekdays, _) in AGENT.items():
            job = one(conn, "INSERT INTO pgagent.pga_job (jobjclid, jobname) VALUES (1, %s) RETURNING jobid", name)
            database = "template1" if name == "elsewhere" else conn.info.dbname
            command = "COMMIT; SELECT 1" if name == "transactions" else "SELECT 1"
            step = ["b", "true", ""] if name == "batch" else ["s", command, database]
            conn.execute(
                "INSERT INTO pgagent.pga_jobstep (jstname, jstjobid, jstkind, jstcode, jstdbname)"
                " VALUES ('x', %s, %s, %s, %s)",
                [job, *step],
            )
            fields = [([31], 60), ([4], 24), ([day + 1 for day in weekdays], 7), (days, 32), ([], 12)]
            sets = [one(conn, flags, values, count) for values, count in fields]
            number = one(
                conn,
                "INSERT INTO pgagent.pga_schedule (jscname, jscjobid, jscstart, jscend, jscminutes, jschours,"
                " jscweekdays, jscmonthdays, jscmonths) VALUES ('x', %s, %s, %s, %s, %s, %s, %s, %s) RETURNING jscid",
                job, START, END if name == "days" else START + timedelta(days=1000), *sets,
            )
            if name == "exception":
                conn.execute("INSERT INTO pgagent.pga_exception (jexscid, jexdate) VALUES (%s, '2032-01-14')", [number])
        wanted = {name: agent_times(conn, name) for name, row in AGENT.items() if row[2]}
        left = [name for name, row in AGENT.items() if not row[2]]
        wrong = pages.both("From pgAgent", {}, left)
        wrong = [one for one in wrong if ": moved as " not in one or one.split(":")[0] in left]
        for name, times in wanted.items():
            found = pages.upcoming(name, len(times) + 1)
            if found[: len(times)] != times or name == "days" and len(found) != len(times):
                wrong.append(f"{name}: {found}, pgAgent: {times}")
        ends = conn.execute("SELECT name FROM queue.schedules WHERE ends_at IS NULL OR starts_at IS NULL").fetchall()
        wrong += [f"{name}: starts_at or ends_at is left out" for name, in ends]
        going = conn.execute(
            "SELECT jobname FROM pgagent.pga_job JOIN pgagent.pga_schedule ON jscjobid = jobid"
            " WHERE jscenabled ORDER BY jobid"
        )
        going = [name for name, in going]
        if going != left:
            wrong.append(f"pgAgent goes on with {going}, not with {left}")
        return wrong


def agent_times(conn, name):
    """Asks pgAgent for its next four times."""
    times, after = [], START
    while len(times) < 4:
        at = one(
            conn,
            "SELECT pgagent.pga_next_schedule("
            "jscid, %s, NULL, jscminutes, jschours, jscweekdays, jscmonthdays, jscmonths)"
            " FROM pgagent.pga_schedule JOIN pgagent.pga_job ON jobid = jscjobid WHERE jobname = %s",
            after, name,
        )
        times.append(at)
        after = at + timedelta(minutes=1)
    return times


# Chains of pg_timetable: their times, and the cron expression or period of the translation, or None.
TIMETABLE = {
    "month": ("0 1 1 * *", "0 1 1 * *"),
    "odd": ("0 1 */2 * 1", "0 1 */2 * 1"),
    "sundays": ("0 0 13 * 0", "0 0 13 * */7,0"),
    "period": ("@every 2 hours", "02:00:00"),
    "friday 13": ("0 0 13 * 5", None),
    "after": ("@after 2 hours", None),
    "reboot": ("@reboot", None),
    "by hand": (None, None),
    "once": ("0 1 1 * *", None),
    "transactions": ("0 1 1 * *", None),
}


def timetable_moves(place):
    with place.connect(place.database()) as conn:
        pages = Pages(conn)
        conn.execute("SELECT queue.create('sql', executor => 'sql', max_attempts => 1)")
        tables = (ROOT / "pgrx-tests/docs/peers/pg-cron.sql").read_text()
        conn.execute(re.search(r"^CREATE SCHEMA timetable;\n.*?(?=^INSERT|^CREATE SCHEMA|\Z)", tables, re.M | re.S)[0])
        for number, (name, (run_at, _)) in enumerate(TIMETABLE.items(), 1):
            conn.execute(
                "INSERT INTO timetable.chain (live, chain_id, chain_name, run_at, self_destruct)"
                " VALUES (true, %s, %s, %s, %s)",
                [number, name, run_at, name == "once"],
            )
            conn.execute(
                "INSERT INTO timetable.task (task_id, chain_id, task_order, kind, command, run_as)"
                " VALUES (%s, %s, 10, 'SQL', %s, 'reports')",
                [number, number, "COMMIT; SELECT 1" if name == "transactions" else "SELECT 1 -- a comment"],
            )
        conn.execute("INSERT INTO timetable.task (task_id, chain_id, task_order, kind, command, run_as)"
                     " VALUES (99, 1, 20, 'SQL', 'SELECT 2', 'reports')")
        moved = {name: (plan, False) for name, (_, plan) in TIMETABLE.items() if plan}
        left = [name for name, (_, plan) in TIMETABLE.items() if not plan]
        wrong = pages.both("From pg_timetable", moved, left)
        found = conn.execute("SELECT payload ->> 'command' FROM queue.schedules WHERE name = 'month'").fetchall()
        if found != [("SELECT 1 -- a comment\n; SELECT 2",)]:
            wrong.append(f"the second task is in the first one's comment: {found}")
        if "sundays" in pages.schedules():
            days = [START + timedelta(days=n) for n in range(2000)]
            both = [day for day in days if day.day == 13 and day.isoweekday() == 7][:4]
            if pages.upcoming("sundays", 4) != both:
                wrong.append(f"the 13th on a Sunday: {pages.upcoming('sundays', 4)}, not {both}")
        return wrong


CASES = [
    Case("schedules pg_cron runs", pg_cron_runs),
    Case("schedules pg_cron moves", pg_cron_moves),
    Case("schedules pgagent moves", pgagent_moves),
    Case("schedules pg_timetable moves", timetable_moves),
]
