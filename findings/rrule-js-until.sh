#!/bin/bash
# rrule (npm) 2.8.1: with TZID, an UNTIL in UTC is compared with the local time of day.
#
# RFC 5545 wants UNTIL in UTC where DTSTART has a zone. 20:00 in New York on January 2nd is 01:00Z on the 3rd, after
# UNTIL=20260102T230000Z, so only January 1st is left. The library compares 20:00 with 23:00 and returns both. Its own
# toString writes this UNTIL back without the Z.
# Seen: 2026-01-02T01:00Z and 2026-01-03T01:00Z; ...UNTIL=20260102T230000
#
# Needs node 20 with npm, and its registry. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund rrule@2.8.1
node - <<'JAVASCRIPT'
process.env.TZ = "UTC";
const assert = require("node:assert");
const { rrulestr } = require("rrule");
const rule = rrulestr("DTSTART;TZID=America/New_York:20260101T200000\nRRULE:FREQ=DAILY;UNTIL=20260102T230000Z");
const seen = rule.all().map((at) => at.toISOString());
console.log("rrule", require("rrule/package.json").version, ...seen, rule.toString().split("\n")[1]);
assert.deepStrictEqual(seen, ["2026-01-02T01:00:00.000Z", "2026-01-03T01:00:00.000Z"], "this has changed");
assert(rule.toString().endsWith("UNTIL=20260102T230000"), "this has changed");
JAVASCRIPT
