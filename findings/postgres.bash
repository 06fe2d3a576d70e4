# For the scripts here that need a server: `. postgres.bash` makes the folder $dir and in it a throw-away server of the
# PostgreSQL that pg_config names, without pg_queue. Sets PGHOST, PGUSER and PGDATABASE. Both go at the end.
dir=$(mktemp -d)
bin=$(pg_config --bindir)
# The server refuses to run as root.
as=()
[ "$(id -u)" != 0 ] || as=(runuser -u postgres --)
end() {
    "${as[@]}" "$bin/pg_ctl" -D "$dir/server/data" stop --silent --mode=immediate || true
    rm -rf "$dir"
}
trap end EXIT
chmod 755 "$dir"
mkdir "$dir/server"
[ "$(id -u)" != 0 ] || chown postgres "$dir/server"
"${as[@]}" "$bin/initdb" --no-sync --auth=trust --username=postgres --encoding=UTF8 --locale=C \
    -D "$dir/server/data" >/dev/null
"${as[@]}" "$bin/pg_ctl" -D "$dir/server/data" start --silent --wait --log="$dir/server/log" \
    --options="-c listen_addresses= -c unix_socket_directories=$dir/server -c fsync=off"
export PGHOST=$dir/server PGUSER=postgres PGDATABASE=postgres
export URL="postgresql://postgres@localhost:5432/postgres?host=$dir/server"
"$bin/psql" -XqAt -c 'SHOW server_version' | sed 's/^/PostgreSQL /'
