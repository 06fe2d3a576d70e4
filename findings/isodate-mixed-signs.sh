#!/bin/bash
# isodate 0.7.2: a month less a day is written as minus a month and a day.
#
# `Duration(months=1, days=-1)` adds correctly. `duration_isoformat` puts one minus before the whole, as soon as the
# days are negative, and prints the months without a sign. What is read back goes the other way.
# Seen: -P1M1D; 2026-03-31 plus the duration is 2026-04-29, plus what is read back 2026-02-27.
#
# Needs python3 with venv, and PyPI. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check isodate==0.7.2
"$dir/venv/bin/python" - <<'PYTHON'
from datetime import date, timedelta
from importlib.metadata import version

from isodate import duration_isoformat, parse_duration

duration = parse_duration("P1M") - timedelta(days=1)
text = duration_isoformat(duration)
sums = [str(date(2026, 3, 31) + each) for each in (duration, parse_duration(text))]
print("isodate", version("isodate"), text, *sums)
assert (text, sums) == ("-P1M1D", ["2026-04-29", "2026-02-27"]), "this has changed"
PYTHON
