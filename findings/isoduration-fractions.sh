#!/bin/bash
# isoduration 20.11.0: half an hour is added as one hour, and half a year as one year.
#
# The parser keeps the fraction of an ISO 8601 duration, and `format_duration` prints it. The sum with a datetime rounds
# each field to a whole number first, halves away from zero, except seconds.
# Seen: 2026-01-01 + PT0.5H = 01:00, + P1.5D = 2026-01-03, + P0.5Y = 2027-01-01; + P0.4D changes nothing.
#
# Needs python3 with venv, and PyPI. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check isoduration==20.11.0
"$dir/venv/bin/python" - <<'PYTHON'
from datetime import datetime
from importlib.metadata import version

from isoduration import format_duration, parse_duration

texts = ["PT0.5H", "P1.5D", "P0.5Y", "P0.4D"]
seen = {text: (datetime(2026, 1, 1) + parse_duration(text)).isoformat(timespec="minutes") for text in texts}
print("isoduration", version("isoduration"), seen, [format_duration(parse_duration(text)) for text in texts])
assert seen == {
    "PT0.5H": "2026-01-01T01:00",
    "P1.5D": "2026-01-03T00:00",
    "P0.5Y": "2027-01-01T00:00",
    "P0.4D": "2026-01-01T00:00",
}, "this has changed"
assert format_duration(parse_duration("P1.5D")) == "P1.5D", "this has changed"
PYTHON
