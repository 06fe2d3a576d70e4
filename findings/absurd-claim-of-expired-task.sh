#!/bin/bash
# absurd 0.5.1: the claim that finds a task of a dead worker gets nothing; only a later claim gets the task.
#
# A task is claimed for a second, and its worker is gone. The next claim_task of the queue ends the expired run and
# makes a new one without a delay. One would expect this claim to return it, as the queue has nothing else. But the new
# run is available from a moment that is read later than the claim's own "now", so the claim returns no row. A worker
# takes that for an empty queue and sleeps for its poll interval.
# Seen: the claim after the expiry: no row, and the task is "pending" again; one more claim at once: attempt 2.
#
# Needs python3 with venv, PyPI, and the programs of PostgreSQL 15 or newer. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check absurdctl==0.5.1
psql() { "$bin/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }
"$dir/venv/bin/python" -c 'from absurdctl import BUNDLED_SCHEMA_SQL; print(BUNDLED_SCHEMA_SQL)' | psql >/dev/null
psql -c "SELECT absurd.create_queue('q')" -c "SELECT absurd.spawn_task('q', 'task', '{}')" >/dev/null
claim() { psql -c "SELECT 'attempt ' || attempt FROM absurd.claim_task('q', '$1', 1)"; }
first=$(claim dead)
sleep 1.5
second=$(claim alive)
state=$(psql -c "SELECT state FROM absurd.t_q")
third=$(claim alive)
echo "absurd $(psql -c 'SELECT absurd.get_schema_version()')"
printf '%s: %s\n' "first claim" "$first" "after its expiry" "${second:-no row}" "the task" "$state" "one more" "$third"
[ "$first|$second|$state|$third" = "attempt 1||pending|attempt 2" ] || { echo "this has changed" >&2; exit 1; }
