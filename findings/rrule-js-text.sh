#!/bin/bash
# rrule (npm) 2.8.1: the text of a rule leaves out minutes and "the last", and the library says that it is complete.
#
# `isFullyConvertibleToText()` is true for both rules below. `fromText` takes "at 14:30" and makes 14:00, with no error.
# Seen: "every day at 14", "every month on Friday"; FREQ=DAILY;BYHOUR=14.
#
# Needs node 20 with npm, and its registry. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund rrule@2.8.1
node - <<'JAVASCRIPT'
const assert = require("node:assert");
const { RRule } = require("rrule");
const rules = ["FREQ=DAILY;BYHOUR=14;BYMINUTE=30", "FREQ=MONTHLY;BYDAY=FR;BYSETPOS=-1"].map(RRule.fromString);
const texts = rules.map((rule) => rule.toText());
const read = RRule.fromText("every day at 14:30").toString();
console.log("rrule", require("rrule/package.json").version, texts, read);
assert.deepStrictEqual(texts, ["every day at 14", "every month on Friday"], "this has changed");
assert(rules.every((rule) => rule.isFullyConvertibleToText()), "this has changed");
assert.strictEqual(read, "RRULE:FREQ=DAILY;BYHOUR=14", "this has changed");
JAVASCRIPT
