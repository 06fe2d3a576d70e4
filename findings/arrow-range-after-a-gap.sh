#!/bin/bash
# arrow 1.4.0: after a gap of the clock, a range of days keeps the moved time of day for good. A range of hours has an
# hour that comes twice only once.
#
# `Arrow.range("month", …)` from January 31st returns to the 31st after February. `Arrow.range("day", …)` from 2:30
# in Berlin does not return to 2:30: the day without 2:30 has 3:30, and so has each day after it. The range of hours of
# the day with 25 hours has 24 members.
# Seen: days 02:30 03:30 03:30 03:30, months 31 28 31, 24 hours.
#
# Needs python3 with venv, and PyPI. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check arrow==1.4.0 tzdata==2026.6
"$dir/venv/bin/python" - <<'PYTHON'
from datetime import datetime
from zoneinfo import ZoneInfo

import arrow

berlin = ZoneInfo("Europe/Berlin")


def span(frame, *start, **limits):
    return arrow.Arrow.range(frame, arrow.get(*start, tzinfo=berlin), **limits)


days = [at.format("HH:mm") for at in span("day", 2026, 3, 28, 2, 30, limit=4)]
months = [at.day for at in span("month", 2026, 1, 31, limit=3)]
hours = list(span("hour", 2026, 10, 25, end=arrow.get(2026, 10, 25, 23, tzinfo=berlin)))
elapsed = (hours[-1].timestamp() - hours[0].timestamp()) / 3600 + 1
print("arrow", arrow.__version__, days, months, f"{len(hours)} members in {elapsed:.0f} hours")
assert days == ["02:30", "03:30", "03:30", "03:30"] and months == [31, 28, 31], "this has changed"
assert len(hours) == 24, "this has changed"
PYTHON
