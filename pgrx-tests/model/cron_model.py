#!/usr/bin/env python3
"""Compares the slots of cron expressions with those that cronsim and croniter find, or records theirs.

    pip install cronsim croniter tzdata
    export PYTHONTZPATH=
    cargo build -p pg_queue_core --example slots
    pgrx-tests/model/cron_model.py target/debug/examples/slots [--cases 4000] [--seed 1]
    pgrx-tests/model/cron_model.py --record src/core/schedule/tests/recorded.txt --cases 700

The first run compares with our program, and ends with 1 if anything differs. The second does not ask it: what the
others say is written to a file, for a test that needs neither them nor the network. Only cases are recorded whose slots
lie around a change of the clock or the end of a month, or that never match. It ends before newer zone data may say
something else.

* cronsim models Debian's cron, and so fixed times when the clock changes. Where expressions follow the elapsed time,
  it jumps by whole hours and misses or invents slots after changes of half an hour or at midnight; there its fields are
  held against each minute instead.
* croniter has rules of its own for changes of the clock, so it is asked for UTC only; it has no LW, and wants both days
  to fit where one is Friday's second. A list of all weekdays is `*` for it, if that of the days has a `*` further on
  (`1,*/17`), and the other way round.

Left out: `7-7/2`, which both take for `7-59/2`. Zone data of different ages differ, too: with `PYTHONTZPATH=` Python
takes that of the package.
"""

import argparse
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import TZPATH, ZoneInfo

from croniter import CroniterError, croniter
from cronsim import CronSim, CronSimError

ZONES = """
    UTC Europe/Berlin Europe/London Europe/Dublin America/New_York America/Sao_Paulo America/St_Johns America/Havana
    Australia/Lord_Howe Australia/Adelaide Asia/Kathmandu Asia/Tehran Asia/Gaza Africa/Casablanca Africa/Cairo
    Pacific/Chatham Pacific/Apia Antarctica/Troll America/Asuncion Pacific/Auckland
""".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
YEARS = [2011, 2014, 2018, 2024, 2026, 2030]


def midnight(year, month, day):
    return int(datetime(year, month, day, tzinfo=timezone.utc).timestamp())


# Times near which zones without changes in these years are tested.
QUIET = [midnight(2012, 2, 28), midnight(2014, 12, 31), midnight(2019, 6, 30)]
# The recorded cases end with the year 2024, for which rules no longer change.
SETTLED = midnight(2025, 1, 1)


def item(rng, low, high, names=()):
    def value(number):
        return rng.choice([str(number), names[number - low]]) if names and number - low < len(names) else str(number)

    first, last = sorted(rng.sample(range(low, high + 1), 2))
    match rng.randrange(5):
        case 0 | 1:
            return value(first)
        case 2:
            return f"{value(first)}-{value(last)}"
        case 3:
            return f"{first}-{last}/{rng.randint(1, high - low)}"
        case _:
            return f"*/{rng.randint(1, high - low)}"


def field(rng, low, high, names=(), star=0.3, letters=()):
    if rng.random() < star:
        return "*"
    if letters and rng.random() < 0.25:
        return rng.choice(letters)
    return ",".join(item(rng, low, high, names) for _ in range(rng.randint(1, 3)))


def expression(rng):
    # Most clocks change in the first hours of a day.
    early = [str(rng.randint(0, 4)) for _ in range(rng.randint(1, 3))]
    hour = field(rng, 0, 23) if rng.random() < 0.5 else ",".join(early)
    minute = field(rng, 0, 59) if rng.random() < 0.5 else str(rng.randint(0, 59))
    last = [f"{day}L" for day in range(7)]
    nth = [f"{rng.choice([*DAYS, *'0123456'])}#{n}" for n in range(1, 6)]
    fields = [
        minute,
        hour,
        field(rng, 1, 31, star=0.7, letters=["L", "LW"]),
        field(rng, 1, 12, MONTHS, star=0.7),
        field(rng, 0, 6, DAYS, star=0.7, letters=last + nth),
    ]
    return " ".join(fields)


def changes(zone, years):
    """Instants just after which the clock of the zone shows another offset, in some years."""
    tz, found, day = ZoneInfo(zone), [], 86_400

    def offset(instant):
        return datetime.fromtimestamp(instant, tz).utcoffset()

    for year in years:
        start = midnight(year, 1, 1)
        found += [at for at in range(start, start + 365 * day, day) if offset(at) != offset(at + day)]
    return found


def draw(rng, cases, years):
    near = {zone: changes(zone, years) or QUIET for zone in ZONES}
    for _ in range(cases):
        # UTC comes more often than other zones, because all implementations can answer for it.
        zone = "UTC" if rng.random() < 0.2 else rng.choice(ZONES)
        start = rng.choice(near[zone]) + rng.randint(-30 * 3600, 40 * 3600)
        yield expression(rng), zone, start - start % 60


class TooSlow(Exception):
    pass


def give_up(*_):
    raise TooSlow


def by_cronsim(text, zone, start, count):
    tz = timezone.utc if zone == "UTC" else ZoneInfo(zone)
    slots, simulation = [], CronSim(text, datetime.fromtimestamp(start, tz))
    for slot in simulation:
        second = int(slot.timestamp())
        # cronsim may give one instant twice, for two times in one gap, or an instant before the start, because Debian
        # runs both times at once.
        if second > start and second not in slots:
            slots.append(second)
        if len(slots) == count:
            break
    return sorted(slots)


def by_minutes(text, zone, start, end):
    fields = CronSim(text, datetime.fromtimestamp(start, timezone.utc))
    slots = []
    for second in range(start + 60, end, 60):
        clock = datetime.fromtimestamp(second, ZoneInfo(zone))
        if clock.minute in fields.minutes and clock.hour in fields.hours and clock.month in fields.months:
            if fields.match_day(clock.date()):
                slots.append(second)
    return slots


def by_croniter(text, start, count):
    # croniter writes the last Friday as L5.
    *fields, weekday = text.split()
    weekday = f"L{weekday[0]}" if weekday.endswith("L") else weekday
    # Without this option, a field that begins with * and has more text does not count as unrestricted.
    clock = datetime.fromtimestamp(start, timezone.utc)
    iterator = croniter(" ".join([*fields, weekday]), clock, implement_cron_bug=True)
    return [int(iterator.get_next(float)) for _ in range(count)]


def follows_elapsed_time(text):
    """Also with a step without *, for which Debian's cron takes the time for fixed."""
    minute, hour, *_ = text.split()
    return any(letter in minute + hour for letter in "*/")


def croniter_knows(text):
    day, _, weekday = text.split()[2:]
    both_fit = day != "*" and any(letter in weekday for letter in "#L")
    return "LW" not in day and not both_fit and "*" not in day[1:] + weekday[1:]


class Answer(NamedTuple):
    # True if the expression has no slots at any time.
    never: bool
    # All slots after the start, up to and including `until`.
    slots: list[int]
    until: int


def answers(text, zone, start, count):
    """What each model that knows the case says; None where it takes too long."""
    if zone != "UTC" and follows_elapsed_time(text):
        end = start + 60 * 3600
        models = {"minutes": lambda: by_minutes(text, zone, start, end)[:count]}
    else:
        end = midnight(9999, 1, 1)
        models = {"cronsim": lambda: by_cronsim(text, zone, start, count)}
    if zone == "UTC" and croniter_knows(text):
        models["croniter"] = lambda: by_croniter(text, start, count)
    for name, model in models.items():
        signal.setitimer(signal.ITIMER_REAL, 5)
        try:
            slots = model()
            never = not slots and not by_cronsim(text, "UTC", start, 1)
        except TooSlow:
            yield name, None
            continue
        except (CronSimError, CroniterError):
            slots, never = [], True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        yield name, Answer(never, slots, slots[-1] if len(slots) == count else end - 1)


def compare(program, cases, count):
    lines = "".join(f"{zone};{start};{count};{text}\n" for text, zone, start in cases)
    run = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    tally, shown = Counter(), 0
    for (text, zone, start), line in zip(cases, run.stdout.splitlines(), strict=True):
        for name, theirs in answers(text, zone, start, count):
            if theirs is None:
                tally[f"{name}: gave up"] += 1
                continue
            # pg_queue refuses an expression that never matches.
            refused = line.startswith("error:")
            ours = [] if refused else [slot for slot in map(int, line.split()) if slot <= theirs.until]
            same = refused == theirs.never and ours == theirs.slots
            tally[f"{name}: {'same' if same else 'different'}"] += 1
            tally[f"{name}: slots that are the same"] += len(ours) if same else 0
            if not same and shown < 30:
                shown += 1
                print(f"{name} {text!r} {zone} after {at(start, zone)}", flush=True)
                if refused or theirs.never:
                    print(f"  ours {line}\n  theirs {theirs}")
                else:
                    print("  only ours  ", *[at(slot, zone) for slot in ours if slot not in theirs.slots])
                    print("  only theirs", *[at(slot, zone) for slot in theirs.slots if slot not in ours])
    for what, number in sorted(tally.items()):
        print(f"{number:7} {what}")
    sys.exit(any("different" in what for what in tally))


# The largest share that a model has of the recorded cases. UTC, for which all models answer, would fill the file.
SHARES = {"cronsim": 0.7, "croniter": 0.3, "minutes": 0.35}

HEAD = """\
# What other implementations say about cron expressions: written by `pgrx-tests/model/cron_model.py`, not by hand.
#
#   PYTHONTZPATH= pgrx-tests/model/cron_model.py --record FILE --cases {cases} --count {count} --seed {seed}
#   cronsim {cronsim}, croniter {croniter}, tzdata {tzdata}
#
# zone;start;until;expression;models;slots
#
# The slots are all those after the start, up to and including `until`, which is in minutes after the start. Each slot
# is in minutes after the one before it, the first after the start. `never` instead of them: the expression is refused,
# or matches no time at all. Models that agree share a line: cronsim, croniter, and `minutes`, for which each minute was
# held against the fields as cronsim reads them.
"""


def is_telling(answer, zone):
    """Whether slots lie around a change of the clock or the end of a month, where implementations go wrong."""
    if len(answer.slots) < 2:
        return answer.never
    clocks = [datetime.fromtimestamp(slot, ZoneInfo(zone)) for slot in answer.slots]
    first, last = clocks[0], clocks[-1]
    return first.utcoffset() != last.utcoffset() or any((a.month, a.year) != (b.month, b.year) and a.day >= 28 for a,
        b in pairwise(clocks))


def record(path, cases, options):
    versions = {package: version(package) for package in ("cronsim", "croniter", "tzdata")}
    lines, tally = [HEAD.format(**vars(options), **versions)], Counter()
    for text, zone, start in cases:
        if len(lines) > options.cases:
            break
        models = {}
        for name, theirs in answers(text, zone, start, options.count):
            if theirs and is_telling(theirs, zone) and tally[name] < options.cases * SHARES[name]:
                tally[name] += 1
                models.setdefault(recorded(theirs, start), []).append(name)
        shown = datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
        for (until, slots), names in models.items():
            lines.append(f"{zone};{shown};{until};{text};{' '.join(names)};{slots}\n")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(lines)
    for what, number in sorted(tally.items()):
        print(f"{number:7} {what}")


def recorded(answer, start):
    until = min(answer.until, SETTLED - 60)
    slots = [slot for slot in answer.slots if slot <= until]
    minutes = [str((slot - before) // 60) for before, slot in pairwise([start, *slots])]
    return (until - start) // 60, "never" if answer.never else " ".join(minutes)


def main():
    parser = argparse.ArgumentParser()
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("slots", nargs="?", help="the program that prints our slots")
    task.add_argument("--record", metavar="FILE", help="writes what the others say, and asks no program of ours")
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, give_up)
    rng = random.Random(options.seed)
    if options.record:
        if TZPATH:
            parser.error("set PYTHONTZPATH= to record with the zone data of the package")
        settled = [year for year in YEARS if midnight(year, 1, 1) < SETTLED]
        record(options.record, draw(rng, 100 * options.cases, settled), options)
    else:
        compare(options.slots, list(draw(rng, options.cases, YEARS)), options.count)


def at(second, zone):
    return datetime.fromtimestamp(second, ZoneInfo(zone)).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
