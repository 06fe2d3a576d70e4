#!/bin/bash
# dayjs 1.11.23: a duration of weeks adds nothing to a date.
#
# The plugin reads `P1W`, and `asDays()` is 7. `date.add(duration)` adds years to seconds and leaves out the weeks, and
# so does `subtract`. `dayjs.duration(1, "week")` does add seven days, since it is kept as days.
# Seen: 2026-01-31 plus P1W is 2026-01-31, plus P7D 2026-02-07.
#
# Needs node 20 with npm, and its registry. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund dayjs@1.11.23
node - <<'JAVASCRIPT'
const assert = require("node:assert");
const dayjs = require("dayjs");
dayjs.extend(require("dayjs/plugin/utc"));
dayjs.extend(require("dayjs/plugin/duration"));
const date = dayjs.utc("2026-01-31");
const days = (duration) => [
  duration.asDays(), date.add(duration).diff(date, "day"), date.diff(date.subtract(duration), "day"),
];
const durations = ["P1W", { weeks: 1 }, "P7D"].map((written) => dayjs.duration(written));
const seen = [...durations, dayjs.duration(1, "week")].map(days);
console.log("dayjs", require("dayjs/package.json").version, JSON.stringify(seen));
assert.deepStrictEqual(seen, [[7, 0, 0], [7, 0, 0], [7, 7, 7], [7, 7, 7]], "this has changed");
JAVASCRIPT
