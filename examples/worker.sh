#!/bin/bash
# A worker of queue `greetings`, with psql and bash 4.3. Connects as the variables PGHOST, PGDATABASE, … say: anew for
# each step, so a restart of the server needs no care.

sql() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

# The job itself: one process, which is killed when it should stop.
work() { exec sleep "$1"; }

# What the job writes and its completion: both or neither.
finish() {
    sql -v id="$id" -v job_id="$job_id" -v payload="$payload" <<'SQL'
BEGIN;
INSERT INTO greeting VALUES (:job_id, 'Hello, ' || (:'payload'::jsonb ->> 'name') || '!');
SELECT queue.complete(:id);
COMMIT;
SQL
}

stopping=
trap 'stopping=1' TERM INT
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

while [ -z "$stopping" ]; do
    job=$(sql -F $'\t' -c "
        SELECT id, job_id, greatest(extract(epoch FROM lease_expires_at - clock_timestamp()) / 3, 0.1),
               coalesce(payload -> 'seconds', '0'), payload
        FROM queue.claim('greetings', wait => '5 seconds')") || sleep 1
    IFS=$'\t' read -r id job_id beat seconds payload <<< "$job"
    [ -n "$id" ] || continue

    give_back=$stopping missed=0
    work "$seconds" 2> "$errors" & work=$!
    while [ -z "$give_back" ] && kill -0 "$work" 2> /dev/null; do
        sleep "$beat" & wait -n "$work" $!    # until the work has ended, a heartbeat is due, or a signal comes
        { kill $! && wait $!; } 2> /dev/null
        kill -0 "$work" 2> /dev/null || break
        [ -z "$stopping" ] || { give_back=1 && break; }
        case $(timeout "$beat" psql -XAtq -v VERBOSITY=sqlstate -c "SELECT is_cancelled FROM queue.extend($id)" 2>&1) in
            f) missed=0 ;;
            t | *QJ001*) give_back=1 ;;                       # cancelled, or lost
            *) [ $((++missed)) -lt 3 ] || give_back=1 ;;      # any other error: as often as the lease leaves time
        esac
    done

    if [ -z "$give_back" ] && wait "$work" && finish 2> "$errors"; then
        continue
    elif [ -n "$give_back$stopping" ]; then    # a signal in the middle of a wait hides how the work has ended
        { kill "$work" && wait "$work"; } 2> /dev/null
        sql -c "SELECT queue.release($id)"     # not counted; cancels a job that is to be cancelled
    else
        sql -v id="$id" -v error="$(< "$errors")" <<< "SELECT queue.fail(:id, :'error')"
    fi > /dev/null    # an error here, such as QJ001, lost lease, means that the job is no longer ours
done
