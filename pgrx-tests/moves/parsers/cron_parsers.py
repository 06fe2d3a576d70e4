"""Asks the cron parsers of Python when expressions match. The argument is a list of cases in JSON: tool, text, zone,
the time after which to look, and how many times to find. Prints a line a case: times in UTC, or why the tool refuses.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

UTC = timezone.utc


def by_croniter(text, start, count):
    from croniter import croniter
    found = croniter(text, start)
    return [found.get_next(datetime) for _ in range(count)]


def by_crontab(text, start, count):
    from crontab import CronTab
    entry, found, at = CronTab(text), [], start
    for _ in range(count):
        at = (at.astimezone(UTC) + timedelta(seconds=entry.next(now=at, default_utc=True))).astimezone(start.tzinfo)
        found.append(at)
    return found


def by_cron_converter(text, start, count):
    from cron_converter import Cron
    found = Cron(text).schedule(start)
    return [found.next() for _ in range(count)]


def by_celery(text, start, count):
    from celery.schedules import crontab
    entry, found, at = crontab.from_string(text), [], start
    entry.tz = start.tzinfo
    for _ in range(count):
        entry.nowfun = lambda: at
        last, delta, _ = entry.remaining_delta(at, tz=start.tzinfo)
        at = (last + delta).astimezone(UTC).astimezone(start.tzinfo)
        found.append(at)
    return found


def by_apscheduler(text, start, count):
    from apscheduler.triggers.cron import CronTrigger
    trigger, found, at = CronTrigger.from_crontab(text, timezone=start.tzinfo), [], None
    for _ in range(count):
        at = trigger.get_next_fire_time(at, at or start)
        found.append(at)
    return found


def by_minutes(matches):
    """Looks at each minute, or at midnights if the time of day is midnight, as the tool's scheduler does."""
    def search(text, start, count):
        step = timedelta(days=1) if text.startswith("0 0 ") else timedelta(minutes=1)
        at = start.replace(minute=0, second=0, microsecond=0)
        at = at.replace(hour=0) if step.days else at
        found, end = [], start + 4000 * step
        while len(found) < count and at < end:
            at += step
            if matches(text, at):
                found.append(at)
        return found
    return search


def matches_huey(text, at):
    from huey import crontab
    return crontab(*text.split())(at.replace(tzinfo=None))


def matches_pycron(text, at):
    import pycron
    return pycron.is_now(text, at)


TOOLS = {
    "croniter": by_croniter,
    "crontab": by_crontab,
    "cron-converter": by_cron_converter,
    "celery": by_celery,
    "apscheduler": by_apscheduler,
    "huey": by_minutes(matches_huey),
    "pycron": by_minutes(matches_pycron),
}


def answer(tool, text, zone, start, count):
    start = datetime.fromisoformat(start.replace("Z", "+00:00")).astimezone(UTC if zone == "UTC" else ZoneInfo(zone))
    try:
        times = TOOLS[tool](text, start, count)
    except Exception as error:
        return f"refused: {type(error).__name__}: {error}"
    return [at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in times]


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        print(json.dumps(answer(*case)))
