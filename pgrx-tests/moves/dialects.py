"""Cases of `dialects.toml`: what cron expressions mean in pg_queue and in the parsers of other tools.

Each case is a parser. It proves three claims for each row: what the parser does, what pg_queue does, and that the text
to write here has the parser's times. Then it looks for differences that no row names (`Finder`).
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from place import HERE, Case

WRITTEN = tomllib.loads((HERE / "dialects.toml").read_text())
PYTHON = {"apscheduler", "celery", "cron-converter", "croniter", "crontab", "huey", "pycron"}
DEBIAN = {"fugit", "robfig"}
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
FIRST_DAY = "2032-01-01"
# How many times of a parser and of pg_queue are compared.
COMPARED = 8
# This many times are enough even if pg_queue leaves some of the other tool's times out.
MORE = 60


def claims():
    """Returns each claim as a flat table: a row, or a row with what its `like` replaces."""
    for row in WRITTEN["rows"]:
        yield {name: value for name, value in row.items() if name != "like"}
        for like in row.get("like", []):
            yield {**row, **like}


def weekday_field(text, change):
    """Returns an expression with another weekday field, which is the last one."""
    *others, weekday = text.split(" ")
    return " ".join([*others, change(weekday)])


def with_names(text):
    """Returns an expression with names of weekdays for numbers. Steps and the number of a week stay."""
    def name(found):
        return WEEKDAYS[int(found[0]) % 7]

    return weekday_field(text, lambda field: re.sub(r"(?<![/#\d])\d", name, field))


def with_numbers(text, monday=1):
    """Returns an expression with numbers of weekdays for names, as a tool counts whose Monday has this number.

    Sunday is 7 at the end of a range where Monday is 1.
    """
    def number(found):
        day = WEEKDAYS.index(found[2])
        if monday == 1:
            return found[1] + str(day or 7 * (found[1] == "-"))
        return found[1] + str((day + 6) % 7 if monday == 0 else day + 1)

    names = "|".join(WEEKDAYS)
    return weekday_field(text, lambda field: re.sub(rf"(^|[-,])({names})", number, field))


def shown_to_others(tool):
    """Returns the claims that the page shows in rows of a tool and that are only claims of other tools."""
    found = []
    for row in WRITTEN["rows"]:
        shown = [row, *({**row, **like} for like in row.get("like", []) if like.get("is_shown"))]
        is_mine = [tool["name"] in claim["tools"] for claim in shown]
        if any(is_mine) and not row.get("is_hidden"):
            found += [claim for claim, mine in zip(shown, is_mine, strict=True) if not mine]
    return found


def forms(text):
    """Returns the same expression with numbers and with names of weekdays."""
    return list(dict.fromkeys([text, with_names(text), with_numbers(with_names(text))]))


def spelled(tool, text):
    """Returns the text that means this for a tool, by the way it counts weekdays."""
    monday = tool.get("monday", 1)
    has_numbers = with_names(text) != text
    return with_numbers(with_names(text), monday) if has_numbers and monday != 1 else text


def start(claim):
    zone = ZoneInfo(claim.get("zone", "UTC"))
    day = datetime.fromisoformat(claim.get("after", FIRST_DAY))
    return (day - timedelta(hours=11, minutes=30)).replace(tzinfo=zone).astimezone(timezone.utc)


def shown(at):
    """Returns a time as the file writes it."""
    text = at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return text.removesuffix(":00").removesuffix("T00:00").removeprefix("2032-")


def read(times):
    return [shown(datetime.fromisoformat(at.replace("Z", "+00:00"))) for at in times]


def asked(place, tool, cases):
    """Returns what the parser answers to each case: times, or why it refuses."""
    if tool in PYTHON:
        return place.script("parsers/cron_parsers.py", "postgres", json.dumps(cases))
    if tool == "fugit":
        return run(fugit(place.dir / "debian/usr"), cases)
    if tool == "robfig":
        return run(robfig(place.dir), cases)
    if tool == "cron-rs":
        return run(cron_rs(place.dir), cases)
    return place.script("parsers/cron_parsers.mjs", "postgres", json.dumps(cases))


def run(command, cases):
    arguments, environment = command
    done = subprocess.run(
        [*map(str, arguments), json.dumps(cases)],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def fugit(usr):
    """Returns how to run Debian's Ruby from its unpacked packages."""
    gems = usr / "share/rubygems-integration/all/gems"
    libraries = [
        usr / "lib/ruby/3.1.0", usr / "lib/x86_64-linux-gnu/ruby/3.1.0", usr / "lib/ruby/vendor_ruby",
        gems / "fugit-1.5.2/lib", gems / "raabro-1.4.0/lib", gems / "tzinfo-2.0.5/lib",
        gems / "concurrent-ruby-1.1.6/lib/concurrent-ruby",
    ]
    environment = {"LD_LIBRARY_PATH": f"{usr}/lib/x86_64-linux-gnu", "RUBYLIB": ":".join(map(str, libraries))}
    return [usr / "bin/ruby3.1", "--disable-gems", HERE / "parsers/fugit.rb"], environment


def robfig(dir):
    """Builds the program beside its source's Go library from Debian, once, and returns how to run it."""
    program, usr = dir / "robfig", dir / "debian/usr"
    source = HERE / "parsers/robfig.go"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        environment = {
            "GOROOT": f"{usr}/lib/go-1.19", "GOPATH": f"{usr}/share/gocode", "GO111MODULE": "off", "GOFLAGS": "",
            "GOCACHE": f"{dir}/go-cache", "CGO_ENABLED": "0",
        }
        go = [str(usr / "lib/go-1.19/bin/go"), "build", "-o", str(program), str(source)]
        subprocess.run(go, check=True, env={**os.environ, **environment})
        shutil.rmtree(dir / "go-cache", ignore_errors=True)
    return [program], {}


MANIFEST = """
[package]
name = "cron_rs"
version = "0.0.0"
edition = "2024"
[workspace]
[[bin]]
name = "cron_rs"
path = "{source}"
[dependencies]
cron = "={version}"
chrono = "0.4"
serde_json = "1"
"""


def cron_rs(dir):
    """Builds the program with the crate in the version of `versions`, and returns how to run it."""
    [version] = re.findall(r"^crates cron@(.*)$", (HERE / "versions").read_text(), re.M)
    project = dir / "cron_rs"
    project.mkdir(exist_ok=True)
    (project / "Cargo.toml").write_text(MANIFEST.format(source=HERE / "parsers/cron_rs.rs", version=version))
    build = ["cargo", "build", "-q", "--manifest-path", str(project / "Cargo.toml"), "--target-dir", str(project)]
    subprocess.run(build, check=True)
    return [project / "debug/cron_rs"], {}


def ours(conn, text, claim, count):
    """Returns the times at which a schedule of pg_queue would fire, or why it is refused."""
    try:
        conn.execute(
            "SELECT queue.schedule('try', 'try', cron => %s, timezone => %s, starts_at => %s)",
            [text, claim.get("zone", "UTC"), start(claim)],
        )
    except Exception as error:
        return f"refused: {error}"
    found = conn.execute("SELECT upcoming FROM queue.upcoming('try', %s)", [count]).fetchall()
    return [shown(at) for at, in found]


def is_on(weekday, time):
    full = time if time[:2] == "20" else f"2032-{time}"
    return datetime.fromisoformat(full).strftime("%A") == weekday


def proven(conn, claim, answer):
    """Returns what is wrong with a claim, given the parser's answer."""
    text, theirs = claim["text"], claim["there_times"].split()
    wrong = []
    if answer is not None:
        answer = read(answer) if isinstance(answer, list) else answer
        if answer != theirs:
            wrong.append(f"`{text}`: the parser answers {answer}, not {theirs}")
    mine = claim["times"].split()
    found = ours(conn, text, claim, len(mine))
    if found != mine:
        wrong.append(f"`{text}`: pg_queue answers {found}, not {mine}")
    if mine[: len(theirs)] == theirs[: len(mine)]:
        wrong.append(f"`{text}`: the claims do not differ")
    if claim["write"]:
        found = ours(conn, claim["write"], claim, MORE)
        if "only" in claim and isinstance(found, list):
            found = [at for at in found if is_on(claim["only"], at)]
        if found[: len(theirs)] != theirs:
            wrong.append(f"`{claim['write']}`, to write for `{text}`: {found[: len(theirs)]}, not {theirs}")
    return wrong


def question(tool, claim, text, count):
    """Returns a case for a parser: an expression, in the tool's spelling unless the row is about spelling."""
    asked_text = text if claim.get("is_literal") else spelled(tool, text)
    return [tool["name"], asked_text, claim.get("zone", "UTC"), start(claim).strftime("%Y-%m-%dT%H:%M:%SZ"), count]


class Finder:
    """Looks for differences between a parser and pg_queue that no row of the parser names."""

    def __init__(self, tool):
        self.tool = tool
        self.beside = shown_to_others(tool)
        # Collects the claims about each expression in a zone after a day.
        self.known = {}
        for claim in claims():
            if "zone" in claim and not tool.get("has_zones", True):
                continue
            for text in forms(claim["text"]):
                where = (text, claim.get("zone", "UTC"), claim.get("after", FIRST_DAY))
                self.known.setdefault(where, []).append(claim)

    def cases(self):
        """Returns a case for the parser for each expression."""
        asks = [{"zone": zone, "after": after} for _, zone, after in self.known]
        known = [question(self.tool, ask, text, COMPARED) for (text, *_), ask in zip(self.known, asks, strict=True)]
        beside = [(claim, len(claim["there_times"].split())) for claim in self.beside]
        return known + [question(self.tool, claim, claim["text"], count) for claim, count in beside]

    def wrong(self, conn, answers):
        """Returns the differences, given the parser's answers to the cases."""
        found = []
        for claim, answer in zip(self.beside, answers[len(self.known) :], strict=True):
            if not isinstance(answer, str) and answer and read(answer) != claim["there_times"].split():
                found.append(f"`{claim['text']}`: a row of the tool shows it, and the parser answers {read(answer)}")
        for ((text, zone, after), near), answer in zip(self.known.items(), answers):
            # An expression that never matches counts as refused.
            if isinstance(answer, str) or not answer:
                continue
            theirs, mine = read(answer), ours(conn, text, {"zone": zone, "after": after}, COMPARED)
            named = [claim["there_times"].split() for claim in near if self.tool["name"] in claim["tools"]]
            if theirs != mine[: len(theirs)] and all(theirs[: len(times)] != times for times in named):
                found.append(f"`{text}`: the parser answers {theirs}, pg_queue {mine}, and no row says so")
        return found


def case(tool):
    def check(place):
        mine = [claim for claim in claims() if tool["name"] in claim["tools"]]
        finder, is_tried = Finder(tool), tool.get("is_tried", True)
        answers, others = [None] * len(mine), []
        if is_tried and (tool["name"] not in DEBIAN or (place.dir / "debian/installed").exists()):
            cases = [question(tool, claim, claim["text"], len(claim["there_times"].split())) for claim in mine]
            answers = asked(place, tool["name"], cases + finder.cases())
            answers, others = answers[: len(mine)], answers[len(mine) :]
        if not others:
            place.say("the parser is left out")
        place.say(f"{len(mine)} expressions, and {len(others)} to compare")
        database = place.database()
        with place.connect(database) as conn:
            conn.execute("CREATE EXTENSION pg_queue")
            conn.execute("SELECT queue.create('try')")
            wrong = [one for claim, answer in zip(mine, answers, strict=True) for one in proven(conn, claim, answer)]
            return wrong + (finder.wrong(conn, others) if others else [])

    return Case(f"dialects {tool['name']}", check)


CASES = [case(tool) for tool in WRITTEN["tools"]]
