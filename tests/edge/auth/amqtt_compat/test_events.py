"""Events of clients, as plug-ins of amqtt receive them."""

import asyncio
import logging
import threading

import pytest

from edge.auth.amqtt_compat.adapter import PluginAdapter
from edge.auth.amqtt_compat.events import PluginEvents
from edge.auth.interfaces import ClientInfo
from edge.mqtt import Connect, Unsubscribe
from tests.support.mqtt_bench import Bench
from tests.support.waiting import PATIENCE_S, wait_until

HERE = "tests.edge.auth.some_plugins"
EVENT_LOGGER = "amqtt.plugins.logging_amqtt.EventLoggerPlugin"


def visit(bench: Bench, client_id: str = "c", **fields) -> None:
    """A client comes, subscribes, unsubscribes and goes."""
    wire = bench.wire()
    wire.send(Connect(client_id, **fields))
    wait_until(lambda: bench.settle() >= 0 and wire.received())
    wire.subscribe("a/#", qos=1)
    wire.send(Unsubscribe(8, ("a/#", "never/had")))
    wire.drop()


def of(caplog: pytest.LogCaptureFixture, plugin: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith(f".{plugin}")]


def test_a_plugin_hears_in_order_of_what_clients_do(caplog):
    with caplog.at_level(logging.INFO):
        made = PluginAdapter([(f"{HERE}.Visits", {}), (f"{HERE}.Yes", {})])
        assert made.watcher
        with Bench(authenticator=made.authenticator) as bench:
            bench.broker.watchers.append(made.watcher)
            visit(bench, username="ann", password=b"x")
        made.close()  # which tells what waits
    assert of(caplog, "Visits") == [
        "c connected as ann",
        "c subscribed a/# 1",
        "c unsubscribed a/#",
        "c disconnected, was ann",
    ]


def test_amqtts_own_event_logger_runs_unchanged(caplog):
    with caplog.at_level(logging.DEBUG):
        made = PluginAdapter([(EVENT_LOGGER, {})])
        assert made.watcher
        assert made.authenticator is None
        assert made.access is None
        with Bench() as bench:
            bench.broker.watchers.append(made.watcher)
            visit(bench)
        made.close()
    fired = [text.split("'")[1] for text in of(caplog, "EventLoggerPlugin") if "broker_client" in text]
    assert fired == [
        f"on_broker_client_{what}" for what in ("connected", "subscribed", "unsubscribed", "disconnected")
    ]


def test_who_only_decides_hears_of_nothing():
    made = PluginAdapter([(f"{HERE}.Yes", {})])
    assert made.watcher is None
    made.close()


def test_a_plugin_that_fails_or_hangs_keeps_no_other_from_hearing(caplog, monkeypatch):
    monkeypatch.setattr("edge.auth.amqtt_compat.adapter.ANSWER_S", 0.2)
    with caplog.at_level(logging.INFO):
        made = PluginAdapter([(f"{HERE}.Stuck", {}), (f"{HERE}.Visits", {})])
        assert made.watcher
        for name in ("trouble", "d"):
            made.watcher.connected(ClientInfo(name, None, "", 0))
        wait_until(lambda: len(of(caplog, "Visits")) == 2)
        wait_until(lambda: "plug-in timed out plugin=Stuck" in caplog.text)
        made.close()
    assert of(caplog, "Visits") == ["trouble connected as None", "d connected as None"]
    assert "plug-in failed" in caplog.text


def test_what_is_too_much_is_dropped_and_counted_and_nobody_waits_for_it(caplog):
    heard: list[str] = []
    go = asyncio.Event()

    async def tell(event: str, facts) -> None:
        heard.append(facts["topic"])
        await go.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    events = PluginEvents(loop, lambda client: None, tell, waiting_max=3)
    who = ClientInfo("c", None, "", 0)
    events.unsubscribed(who, "0")
    wait_until(lambda: heard == ["0"])
    for number in range(1, 11):
        events.unsubscribed(who, str(number))
    assert events.dropped == 7
    assert caplog.text.count("event queue full, events dropped waiting_max=3") == 1
    loop.call_soon_threadsafe(go.set)
    asyncio.run_coroutine_threadsafe(events.finish(10), loop).result(PATIENCE_S)
    assert heard == ["0", "1", "2", "3"]
    events.unsubscribed(who, "11")  # no client is there any more
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert heard == ["0", "1", "2", "3"]
