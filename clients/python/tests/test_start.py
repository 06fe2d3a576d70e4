"""A worker begins: with a queue that is missing, which is an error, without a server, which is waited for quietly, and with a
queue that goes and comes back.
"""

import logging

import pytest
from conftest import one, running, until, wait_state
from pg_queue import Worker, enqueue


def said(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize("way", ["run", "drain"])
def test_a_missing_queue_is_an_error(conn, conninfo, way):
    conn.execute("SELECT queue.create('emails')")
    worker = Worker(conninfo)
    worker.handler("a", "emials")(lambda job: None)
    with pytest.raises(RuntimeError) as error:
        getattr(worker, way)()
    text = str(error.value)
    assert text.startswith('the worker cannot start: queue "emials" does not exist'), text
    assert "HINT" in text and '"emails"' in text and "\n" not in text, text
    # The worker has not begun, and can be run once that is mended.
    conn.execute("SELECT queue.create('emials')")
    assert [event.kind for event in worker.drain()] == ["connected"]


def test_a_database_without_the_extension_is_an_error(pg_queue_server):
    worker = Worker(pg_queue_server.conninfo("postgres"))
    worker.handler("a")(lambda job: None)
    with pytest.raises(RuntimeError, match="the worker cannot start: .*queue"):
        worker.run()


def test_a_queue_that_is_dropped_later_is_tried_again(conn, conninfo, caplog):
    conn.execute("SELECT queue.create('comes')")
    worker = Worker(conninfo + " application_name=of_the_dropped", wait=0.2)
    worker.handler("comes")(lambda job: None)
    claims = "SELECT query_start FROM pg_stat_activity WHERE application_name = 'of_the_dropped' AND query ~ 'claim_any'"
    with running(worker), caplog.at_level(logging.WARNING):
        until("the worker claims", lambda: conn.execute(claims).fetchone())
        first = enqueue(conn, "comes", {})
        wait_state(conn, first, "completed")
        conn.execute("SELECT queue.drop('comes', force => true)")
        until("the worker says so", lambda: said(caplog, "a claim has failed"))
        tries = set()
        until("it tries again", lambda: tries.add(one(conn, claims)) or len(tries) >= 4)
        conn.execute("SELECT queue.create('comes')")
        wait_state(conn, enqueue(conn, "comes", {}), "completed")
    (text,) = said(caplog, "a claim has failed")
    assert 'queue "comes" does not exist' in text


def test_a_server_that_is_not_there_is_waited_for_quietly(tmp_path, caplog):
    tries = []
    worker = Worker(f"host={tmp_path} dbname=app", on_event=tries.append)
    worker.handler("a")(lambda job: None)
    with caplog.at_level(logging.DEBUG), running(worker):
        until("it has tried a few times", lambda: len(tries) >= 4)
    assert {event.kind for event in tries} == {"disconnected"}
    (text,) = [record.getMessage() for record in caplog.records if record.name.startswith("pg_queue")]
    assert text.startswith("no connection, the worker tries again: ") and str(tmp_path) in text and "\n" not in text
