#!/bin/bash
# python-dateutil 2.9.0: `str(rule)` loses the zone of a recurrence rule, even UTC.
#
# `rrulestr` reads `DTSTART;TZID=America/New_York:…` and `DTSTART:…Z`, and the rule's times have that zone. `str` of
# the rule writes DTSTART and UNTIL without TZID and without Z, with no warning. A rule that is stored so and read
# again has naive times.
# Seen: DTSTART:20260328T203000 for both.
#
# Needs python3 with venv, and PyPI. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check python-dateutil==2.9.0.post0
"$dir/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from dateutil.rrule import rrulestr

print("python-dateutil", version("python-dateutil"))
for start, end in [
    (";TZID=America/New_York:20260328T203000", "COUNT=2"),
    (":20260328T203000Z", "UNTIL=20260330T000000Z"),
]:
    rule = rrulestr(f"DTSTART{start}\nRRULE:FREQ=DAILY;{end}")
    again = rrulestr(str(rule))
    print(str(rule).replace("\n", " "), rule[0].isoformat(), again[0].isoformat())
    assert str(rule).startswith("DTSTART:20260328T203000\n"), "this has changed"
    assert rule[0].tzinfo and not again[0].tzinfo, "this has changed"
PYTHON
