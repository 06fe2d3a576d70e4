#!/bin/bash
# date-fns 4.4.0: `formatISODuration` writes two weeks as a duration of zero.
#
# Its type Duration has weeks. `add` adds them and `formatDuration` prints them, but `formatISODuration` leaves them out
# with no error.
# Seen: { weeks: 2 } is P0Y0M0DT0H0M0S, and { weeks: 1, days: 2 } is P0Y0M2DT0H0M0S.
#
# Needs node 20 with npm, and its registry. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund date-fns@4.4.0
node - <<'JAVASCRIPT'
const assert = require("node:assert");
const { add, formatDuration, formatISODuration } = require("date-fns");
const weeks = { weeks: 2 };
const seen = [formatISODuration(weeks), formatISODuration({ weeks: 1, days: 2 }), formatDuration(weeks)];
console.log("date-fns", require("date-fns/package.json").version, ...seen, add(new Date(0), weeks).toISOString());
assert.deepStrictEqual(seen, ["P0Y0M0DT0H0M0S", "P0Y0M2DT0H0M0S", "2 weeks"], "this has changed");
assert.strictEqual(add(new Date(0), weeks).getTime(), 14 * 86400e3, "this has changed");
JAVASCRIPT
