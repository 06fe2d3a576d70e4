#!/bin/bash
# pgmq 1.13.0 (in PyPI's pgmq 1.1.4): read_grouped hands out a later message beside earlier ones that are being read.
#
# read_grouped is for messages in order: one reader of a group at a time, as a FIFO queue of SQS has it, where a group
# with a message in flight gives nothing. A reader takes 1, 2 and 3 of a group and gives 1 back by set_vt(…, 0), as
# one does after an error. One would expect nothing, or 1 alone, until 2 and 3 are deleted or visible again. But pgmq
# looks only for messages in flight that are older than the group's first visible one. So the next reader gets
# 1 AND 4, while 2 and 3 are still with the first reader: 4 has overtaken 2 and 3, and two readers work on the group.
# Seen: first read 1 2 3; a second one before anything is given back: none; after set_vt(1, 0): 1 4.
#
# Needs python3 with venv, PyPI, and the programs of PostgreSQL 15 or newer. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pgmq==1.1.4 "psycopg[binary]==3.3.6"
sql=$(echo "$dir"/venv/lib/python*/site-packages/pgmq/sql)
psql() { "$bin/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }
psql -f "$sql/pgmq.sql" >/dev/null
psql -c "SELECT pgmq.create('q')" >/dev/null
psql -c "SELECT pgmq.send('q', '{}', '{\"x-pgmq-group\": \"a\"}'::jsonb) FROM generate_series(1, 4)" >/dev/null
read_grouped() { psql -c "SELECT string_agg(msg_id::text, ' ' ORDER BY msg_id) FROM pgmq.read_grouped('q', 600, 3)"; }
first=$(read_grouped)
second=$(read_grouped)
psql -c "SELECT pgmq.set_vt('q', 1, 0)" >/dev/null
third=$(read_grouped)
echo "pgmq $(<"$sql/pgmq.sql.version")"
printf '%s: %s\n' "first read" "$first" "while these are in flight" "${second:-none}" "after 1 was given back" "$third"
[ "$first|$second|$third" = "1 2 3||1 4" ] || { echo "this has changed" >&2; exit 1; }
