#!/bin/bash
# pgAgent 4.2.2: a schedule for the 15th and the last day of the month never runs on the last day.
#
# `jscmonthdays` has 31 days and, as the 32nd, "last day", which may be chosen together with others. The function
# `pgagent.pga_next_schedule` compares the whole array with "only the last day" to decide whether a last day counts, so
# it does not where another day is chosen, too.
# Seen for 2032: the last day alone 01-31 02-29 03-31, the 15th and the last day 01-15 02-15 03-15.
#
# Needs PostgreSQL 15 or later in PG_BINDIR, and Debian 12's packages. As root it runs the server as `postgres`. Fails
# if this changes.
set -euo pipefail
bin=${PG_BINDIR:-/usr/lib/postgresql/15/bin}
dir=$(mktemp -d)
user=()
if [ "$(id -u)" = 0 ]; then
    chown postgres "$dir"
    user=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
as_user() { (cd "$dir" && "${user[@]}" "$@"); }
trap 'as_user "$bin/pg_ctl" -D data -m immediate -s stop || true; rm -rf "$dir"' EXIT
as_user apt-get -qq download pgagent=4.2.2-2
as_user bash -c 'dpkg-deb -x pgagent_*.deb files'
as_user "$bin/initdb" -D data -A trust -U postgres --no-sync >"$dir/initdb.log"
as_user "$bin/pg_ctl" -D data -s -w -l log -o "-k $dir -c listen_addresses= -c fsync=off -c timezone=UTC" start
psql() { as_user "$bin/psql" -h "$dir" -U postgres -XqAt -v ON_ERROR_STOP=1 "$@"; }
{
    echo "SET client_min_messages = warning; CREATE SCHEMA pgagent;"
    # The script of the extension, without what needs CREATE EXTENSION.
    sed '/^\\/d; /pg_extension_config_dump/d' "$dir/files/usr/share/postgresql/15/extension/pgagent--4.2.sql"
} | psql >"$dir/pgagent.log"
psql >"$dir/seen" <<'SQL'
CREATE FUNCTION times(days integer[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz := '2032-01-01';
    found text := '';
BEGIN
    FOR i IN 1 .. 3 LOOP
        SELECT pgagent.pga_next_schedule(1, at, NULL, array_agg(n = 1 ORDER BY n),
                   array_agg(n = 1 ORDER BY n) FILTER (WHERE n <= 24), array_agg(false) FILTER (WHERE n <= 7),
                   array_agg(n = ANY (days) ORDER BY n) FILTER (WHERE n <= 32), array_agg(false) FILTER (WHERE n <= 12))
        INTO at FROM generate_series(1, 60) AS n;
        found := concat_ws(' ', found, to_char(at, 'MM-DD'));
        at := at + interval '1 minute';
    END LOOP;
    RETURN found;
END
$$;
SELECT 'last:' || times('{32}');
SELECT '15th and last:' || times('{15,32}');
SQL
echo "pgAgent 4.2.2"
cat "$dir/seen"
diff "$dir/seen" - <<'SEEN' || { echo "this has changed"; exit 1; }
last: 01-31 02-29 03-31
15th and last: 01-15 02-15 03-15
SEEN
