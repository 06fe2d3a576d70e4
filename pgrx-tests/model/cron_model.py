#!/usr/bin/env python3
"""Compares the slots of cron expressions with those that cronsim and croniter find.

    pip install cronsim croniter tzdata
    cargo build -p pg_queue_core --example slots
    pgrx-tests/model/cron_model.py target/debug/examples/slots [--cases 4000] [--seed 1]

* cronsim models Debian's cron, and so fixed times when the clock changes. Where expressions follow the elapsed time,
  it jumps by whole hours and misses or invents slots after changes of half an hour or at midnight; there its fields are
  held against each minute instead.
* croniter has rules of its own for changes of the clock, so it is asked for UTC only; it has no LW, and wants both days
  to fit where one is Friday's second.

Left out: `7-7/2`, which both take for `7-59/2`. Zone data of different ages differ, too: with `PYTHONTZPATH=` set to
nothing, Python takes that of the package. Ends with 1 if anything differs.
"""

import argparse
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

ZONES = """
    UTC Europe/Berlin Europe/London Europe/Dublin America/New_York America/Sao_Paulo America/St_Johns America/Havana
    Australia/Lord_Howe Australia/Adelaide Asia/Kathmandu Asia/Tehran Asia/Gaza Africa/Casablanca Africa/Cairo
    Pacific/Chatham Pacific/Apia Antarctica/Troll America/Asuncion Pacific/Auckland
""".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()


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


def changes(zone):
    """Instants just after which the clock of the zone shows another offset, in some years."""
    tz, found, day = ZoneInfo(zone), [], 86_400

    def offset(instant):
        return datetime.fromtimestamp(instant, tz).utcoffset()

    for year in (2011, 2014, 2018, 2024, 2026, 2030):
        start = int(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp())
        found += [at for at in range(start, start + 365 * day, day) if offset(at) != offset(at + day)]
    return found


class TooSlow(Exception):
    pass


def give_up(*_):
    raise TooSlow


def by_cronsim(text, zone, start, count):
    if count == 0:
        return []
    tz = timezone.utc if zone == "UTC" else ZoneInfo(zone)
    slots, simulation = [], CronSim(text, datetime.fromtimestamp(start, tz))
    for slot in simulation:
        second = int(slot.timestamp())
        # It may give an instant twice, for two times in one gap, or one before the start: Debian runs both at once.
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
    # It writes the last Friday L5.
    *fields, weekday = text.split()
    weekday = f"L{weekday[0]}" if weekday.endswith("L") else weekday
    # Without this, a field that begins with * and goes on does not count as unrestricted.
    clock = datetime.fromtimestamp(start, timezone.utc)
    iterator = croniter(" ".join([*fields, weekday]), clock, implement_cron_bug=True)
    return [int(iterator.get_next(float)) for _ in range(count)]


def follows_elapsed_time(text):
    """Also with a step without *, for which Debian's cron takes the time for fixed."""
    minute, hour, *_ = text.split()
    return any(letter in minute + hour for letter in "*/")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("slots", help="the program that prints our slots")
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, give_up)
    rng = random.Random(options.seed)
    near = {zone: changes(zone) or [1_774_000_000] for zone in ZONES}

    cases = []
    for _ in range(options.cases):
        zone = rng.choice(ZONES)
        start = rng.choice(near[zone]) + rng.randint(-30 * 3600, 40 * 3600)
        cases.append((expression(rng), zone, start - start % 60))
    lines = "".join(f"{zone};{start};{options.count};{text}\n" for text, zone, start in cases)
    run = subprocess.run([options.slots], input=lines, capture_output=True, text=True, check=True)

    tally, shown = Counter(), 0
    for (text, zone, start), answer in zip(cases, run.stdout.splitlines(), strict=True):
        ours = answer if answer.startswith("error:") else [int(slot) for slot in answer.split()]
        end = start + 60 * 3600
        if zone != "UTC" and follows_elapsed_time(text):
            models = {"each minute": lambda: by_minutes(text, zone, start, end)[: options.count]}
            if isinstance(ours, list):
                ours = [slot for slot in ours if slot < end]
        else:
            models = {"cronsim": lambda: by_cronsim(text, zone, start, options.count)}
        day, _, weekday = text.split()[2:]
        if zone == "UTC" and "LW" not in day and (day == "*" or not any(letter in weekday for letter in "#L")):
            models["croniter"] = lambda: by_croniter(text, start, options.count)
        for name, model in models.items():
            signal.setitimer(signal.ITIMER_REAL, 5)
            try:
                theirs = model()
            except TooSlow:
                tally[f"{name}: gave up"] += 1
                continue
            except Exception as error:
                theirs = f"error: {type(error).__name__} {error}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            # What never matches is refused by us and has no slots there.
            same = not theirs or isinstance(theirs, str) if isinstance(ours, str) else ours == theirs
            tally[f"{name}: {'same' if same else 'different'}"] += 1
            tally[f"{name}: slots that are the same"] += len(ours) if same and isinstance(ours, list) else 0
            if not same and shown < 30:
                shown += 1
                print(f"{name} {text!r} {zone} after {at(start, zone)}", flush=True)
                if any(isinstance(result, str) for result in (ours, theirs)):
                    print(f"  ours {ours}\n  theirs {theirs}")
                else:
                    print("  only ours  ", *[at(slot, zone) for slot in ours if slot not in theirs])
                    print("  only theirs", *[at(slot, zone) for slot in theirs if slot not in ours])
    for what, count in sorted(tally.items()):
        print(f"{count:7} {what}")
    sys.exit(any("different" in what for what in tally))


def at(second, zone):
    return datetime.fromtimestamp(second, ZoneInfo(zone)).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
