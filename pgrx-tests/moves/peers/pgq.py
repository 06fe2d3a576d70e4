"""PgQ: its consumers take batches, so it has no place in peer.py's comparison."""

from place import Case, blocks

FILL = """
CREATE EXTENSION pgq;
SELECT pgq.create_queue('orders');
SELECT pgq.register_consumer('orders', 'mailer'), pgq.register_consumer('orders', 'ledger');
SELECT pgq.set_queue_config('orders', 'ticker_max_lag', '0'), pgq.set_queue_config('orders', 'ticker_max_count', '1');
SELECT pgq.insert_event('orders', 'placed', '{"label": "done"}');
SELECT pgq.insert_event('orders', 'placed', '{"label": "retried"}');
SELECT pgq.ticker();
"""
BATCH = "SELECT pgq.next_batch('orders', 'mailer')"
MORE = """
SELECT pgq.insert_event('orders', 'placed', '{"label": "in an open batch"}');
SELECT pgq.ticker();
"""
LAST = """
SELECT pgq.insert_event('orders', 'placed', '{"label": "first"}', 'x1', 'x2', 'x3', 'x4');
SELECT pgq.insert_event('orders', 'placed', 'plain text');
SELECT pgq.insert_event('orders', 'placed', NULL), pgq.insert_event('orders', 'placed', '{"label": "second"}');
SELECT pgq.force_tick('orders');
SELECT pgq.ticker();
"""
LATER = """
SELECT pgq.insert_event('orders', 'paid', '{"label": "later"}');
UPDATE pgq.retry_queue SET ev_retry_after = now();
SELECT pgq.maint_retry_events();
SELECT pgq.force_tick('orders');
SELECT pgq.ticker();
"""
LONG = """
SELECT pgq.insert_event('orders', 'placed', '{"label": "before"}');
SELECT pgq.insert_event('orders', 'placed', jsonb_build_object('label', repeat('x', 2000))::text);
SELECT pgq.insert_event('orders', 'placed', '{"label": "after"}');
SELECT pgq.force_tick('orders');
SELECT pgq.ticker();
"""
NARROW = "SET pg_queue.max_payload = '1kB';\n"
WAITING = ["in an open batch", "first", "plain text", None, "second"]
EXTRA = """SELECT jsonb_build_array(p -> 'extra1', p -> 'extra2', p -> 'extra3', p -> 'extra4')
    FROM queue.jobs, LATERAL (SELECT headers -> 'pgq' AS p) AS h WHERE payload ->> 'label' = 'first'"""
LABEL = "coalesce(payload ->> 'label', payload #>> '{}')"


def filled(place):
    """Returns a database with events of all kinds: ended, waiting for a retry, in an open batch, not yet in a batch."""
    database = place.database()
    place.psql(database, FILL)
    batch = place.psql(database, BATCH).strip()
    place.psql(database, f"""SELECT pgq.event_retry({batch}, ev_id, 600) FROM pgq.get_batch_events({batch})
        WHERE ev_data LIKE '%retried%'; SELECT pgq.finish_batch({batch});""")
    # The other consumer has a retry of its own.
    other = place.psql(database, BATCH.replace("mailer", "ledger")).strip()
    place.psql(database, f"""SELECT pgq.event_retry({other}, ev_id, 600) FROM pgq.get_batch_events({other})
        WHERE ev_data LIKE '%done%'; SELECT pgq.finish_batch({other});""")
    place.psql(database, MORE + BATCH)
    place.psql(database, LAST)
    return database


def consumed(place, database, consumer):
    """Lets a consumer of PgQ read what there is. Returns the data of the events."""
    found = []
    with place.connect(database) as conn:
        while True:
            batch = conn.execute("SELECT pgq.next_batch('orders', %s)", [consumer]).fetchone()[0]
            if batch is None:
                return found
            rows = conn.execute(f"SELECT ev_data FROM pgq.get_batch_events({batch}) ORDER BY ev_id").fetchall()
            found += [data for (data,) in rows]
            conn.execute(f"SELECT pgq.finish_batch({batch})")


def labels(found):
    return [data.split('"')[3] if data and "label" in data else data for data in found]


def check(place):
    wrong = []

    def same(what, found, wanted):
        if found != wanted:
            wrong.append(f"{what}: {found}, not {wanted}")

    there = filled(place)
    same("the peer's own consumer", labels(consumed(place, there, "mailer")), WAITING)
    place.psql(there, LATER)
    same("its later events", sorted(labels(consumed(place, there, "mailer"))), ["later", "retried"])

    here = filled(place)
    page = "docs/coming-from/pgq.md"
    block = "\n".join(blocks(page, "Move the waiting events", "text"))
    call = block[block.index("CALL"):]
    place.psql(here, "CREATE EXTENSION pg_queue; SELECT queue.create('orders');")

    def claimed():
        with place.connect(here) as conn:
            rows = conn.execute(f"SELECT id, {LABEL} FROM queue.claim('orders', 100) ORDER BY job_id").fetchall()
            conn.execute("SELECT queue.complete_many(%s)", [[row[0] for row in rows]])
        return [row[1] for row in rows]

    same("what the block lists", place.psql(here, block).strip(), "orders|1|it waits for a retry")
    same("moved", claimed(), WAITING)
    found = place.psql(here, EXTRA).strip()
    same("the extra fields", found, '["x1", "x2", "x3", "x4"]')
    place.psql(here, call)
    same("moved by a second call", claimed(), [])
    place.psql(here, LATER)
    same("what the last call lists", place.psql(here, call).strip(), "")
    same("moved later", sorted(claimed()), ["later", "retried"])
    same("what the other consumer still gets", len(consumed(place, here, "ledger")), 7)
    place.psql(here, LONG)
    same("an event that is too long", place.psql(here, NARROW + call).strip(), "orders|1|it waits for a retry")
    same("moved beside it", claimed(), ["before", "after"])
    place.say(f"{len(WAITING) + 4} events moved, 2 left with a reason until its retry")
    return wrong


CASES = [Case("pgq", check)]
