"""The MQTT sink against Mosquitto: records go up, commands come down, and nothing goes round."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bridge.errors import BadName, SinkUnavailable
from bridge.sinks.interface import RecordSink
from bridge.sinks.mqtt import MqttSink
from bridge.sinks.registry import open_sink
from edge.mqtt import Properties
from edge.mqtt.properties import record_properties
from ringbuf import FLAG_PROPERTIES
from tests.support.bridges import drain, publish, ring, run_dry, settings
from tests.support.drained_files import CREATED_NS, EPOCH, T0_NS, batch_of, drained_file_of, records_of
from tests.support.mosquitto import BINARY, Mosquitto, running
from tests.support.waiting import until
from tests.support.watch import Watch

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")

SETTLED_S = 40.0


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Mosquitto]:
    directory = tmp_path / "upstream"
    directory.mkdir()
    with running(directory, "max_queued_messages 0") as broker:
        yield broker


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Mosquitto]:
    directory = tmp_path / "here"
    directory.mkdir()
    with running(directory) as broker:
        yield broker


@pytest.fixture
def opened() -> Iterator[Callable[..., MqttSink]]:
    made: list[MqttSink] = []

    def open_it(url: str, **options: str) -> MqttSink:
        sink = open_sink(url, options)
        assert isinstance(sink, MqttSink)
        assert isinstance(sink, RecordSink)
        made.append(sink)
        return sink

    yield open_it
    for sink in made:
        sink.close()
        sink.close()


def drained_file_with(*properties: Properties, stamp_ns: int = T0_NS, topic: str = "plant/1") -> Any:
    """A file of one record for each of these properties."""
    from bridge.format.file_builder import build
    from bridge.format.write_intent import WriteIntent
    from ringbuf.record import encode

    records = []
    for offset, given in enumerate(properties):
        data = record_properties(given)
        flags = FLAG_PROPERTIES if data else 0
        records.append(encode(offset, b"x", epoch=EPOCH, key=topic.encode(), timestamp_ns=stamp_ns,
                              flags=flags, properties=data))  # fmt: skip
    intent = WriteIntent(1, CREATED_NS, "default", 0, EPOCH, 0, None, 0, len(records) - 1, (), ())
    return build("edge-1", intent, batch_of(records))


async def test_each_record_arrives_in_order_with_its_identity_or_is_named(
    upstream: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    sink = opened(upstream.url, prefix="site/")
    async with Watch(upstream.url, "#") as watch:
        await asyncio.to_thread(sink.begin, "edge-1")
        sent = [
            sink.send(records_of(drained_file_of(0, 299))),
            sink.send(records_of(drained_file_of(300, 499))),
        ]
        good = [offset for offset in range(500) if offset % 7]  # others have invalid properties
        found = await watch.heard(len(good))
        bad = [it for future in sent for it in await asyncio.to_thread(future.result, SETTLED_S)]
    assert [it.offset for it in bad] == list(range(0, 500, 7))
    for offset, message in zip(good, found, strict=True):
        assert message.topic == f"site/plant/{offset % 4}/temp"
        assert message.payload == str(offset).encode()
        flags = offset % 3 | (4 if offset % 5 == 0 else 0)
        user = dict(message.properties.user)
        assert user["brim-source"] == f"edge-1/default/0/{EPOCH}"
        assert user["brim-record"] == f"{offset} {T0_NS + offset * 1_000_000} {flags}"
        assert message.qos == 1


async def test_a_message_of_a_clock_that_was_not_set_keeps_its_interval(
    upstream: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    """A machine that begins in 1970 gets the time and its upstream from the same network."""
    sink = opened(upstream.url)
    file = drained_file_with(Properties(message_expiry_interval_s=50), stamp_ns=60 * 10**9)
    async with Watch(upstream.url, "#") as watch:
        await asyncio.to_thread(sink.begin, "edge-1")
        sink.send(records_of(file))
        (message,) = await watch.heard(1)
    assert 40 < (message.properties.message_expiry_interval_s or 0) <= 50
    assert sink.omitted["expired"] == 0


async def test_properties_go_along_and_expiry_counts_down(
    upstream: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    sink = opened(upstream.url, prefix="site/")
    aged_ns = time.time_ns() - 100 * 10**9
    file = drained_file_with(
        Properties(
            content_type="text/plain", response_topic="answers", correlation_data=b"7", user=(("a", "b"),)
        ),
        Properties(message_expiry_interval_s=50),
        Properties(message_expiry_interval_s=1000),
        stamp_ns=aged_ns,
    )
    async with Watch(upstream.url, "#") as watch:
        await asyncio.to_thread(sink.begin, "edge-1")
        future = sink.send(records_of(file))
        first, last = await watch.heard(2)
        assert list(await asyncio.to_thread(future.result, SETTLED_S)) == []
    given = first.properties
    assert (given.content_type, given.response_topic, given.correlation_data) == (
        "text/plain",
        "site/answers",
        b"7",
    )
    assert given.user[0] == ("a", "b")
    assert 800 < (last.properties.message_expiry_interval_s or 0) <= 900
    assert sink.omitted == {"echo": 0, "expired": 1}


async def test_what_is_not_acknowledged_fails_when_the_broker_goes_and_begin_goes_on(
    upstream: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    sink = opened(upstream.url)
    await asyncio.to_thread(sink.begin, "edge-1")
    upstream.pause()
    future = sink.send(records_of(drained_file_of(1, 6)))
    upstream.kill()
    with pytest.raises(SinkUnavailable):
        await asyncio.to_thread(future.result, SETTLED_S)
    with pytest.raises(SinkUnavailable) as caught:
        await asyncio.to_thread(sink.begin, "edge-1")
    assert "check the network" in caught.value.hint
    upstream.start()
    async with Watch(upstream.url, "#") as watch:
        await asyncio.to_thread(sink.begin, "edge-1")
        again = sink.send(records_of(drained_file_of(1, 6)))
        assert [message.payload for message in await watch.heard(6)] == [b"%d" % n for n in range(1, 7)]
        assert list(await asyncio.to_thread(again.result, SETTLED_S)) == []


async def test_a_broker_that_does_not_acknowledge_is_given_up(
    upstream: Mosquitto, opened: Callable[..., MqttSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.mqtt.ACK_TIMEOUT_S", 0.2)
    monkeypatch.setattr("bridge.sinks.mqtt.TICK_S", 0.1)
    sink = opened(upstream.url)
    await asyncio.to_thread(sink.begin, "edge-1")
    upstream.pause()
    future = sink.send(records_of(drained_file_of(1, 6)))
    with pytest.raises(SinkUnavailable, match="no acknowledgement"):
        await asyncio.to_thread(future.result, SETTLED_S)
    upstream.resume()


async def test_a_command_comes_down_as_a_local_publish_and_never_goes_up_again(
    upstream: Mosquitto, here: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    sink = opened(upstream.url, prefix="site/", commands="cmd/#, set/+", local=here.url)
    commands = sink.commands
    assert commands is not None
    async with Watch(here.url, "#") as local, Watch(upstream.url, "site/#") as above:
        await asyncio.to_thread(sink.begin, "edge-1")
        await above.publish(
            "site/cmd/valve", b"open", 1, properties=Properties(response_topic="site/cmd/done")
        )
        await above.publish("site/other", b"no command", 1)
        await above.publish("site/set/speed", b"7", 1)
        valve, speed = await local.heard(2)
        assert (valve.topic, valve.payload, valve.properties.response_topic) == (
            "cmd/valve",
            b"open",
            "cmd/done",
        )
        assert (speed.topic, speed.payload) == ("set/speed", b"7")
        assert dict(valve.properties.user)["brim-from"] == "edge-1"
        # What the local broker then has in its ring is drained like all else: it carries the mark.
        drained = drained_file_with(
            valve.properties, Properties(), stamp_ns=time.time_ns(), topic="cmd/valve"
        )
        future = sink.send(records_of(drained))
        assert list(await asyncio.to_thread(future.result, SETTLED_S)) == []
        seen = [(it.topic, dict(it.properties.user).get("brim-source")) for it in await above.heard(4)]
        assert seen[:3] == [("site/cmd/valve", None), ("site/other", None), ("site/set/speed", None)]
        assert seen[3] == ("site/cmd/valve", f"edge-1/default/0/{EPOCH}")  # a local publish, not an echo
        assert sink.omitted["echo"] == 1
    await until(lambda: commands.delivered == 2)


async def test_what_this_edge_has_sent_up_is_no_command_even_if_another_client_repeats_it(
    upstream: Mosquitto, here: Mosquitto, opened: Callable[..., MqttSink]
) -> None:
    sink = opened(upstream.url, commands="cmd/#", local=here.url)
    commands = sink.commands
    assert commands is not None
    async with Watch(here.url, "#") as local, Watch(upstream.url, "x") as above:
        await asyncio.to_thread(sink.begin, "edge-1")
        own = Properties(user=(("brim-source", "edge-1/default/0/7"),))
        await above.publish("cmd/a", b"echo", 1, properties=own)
        await above.publish("cmd/a", b"command", 1)
        assert [it.payload for it in await local.heard(1)] == [b"command"]
    await until(lambda: commands.delivered == 1)
    assert sink.omitted["command_echo"] == 1


async def test_commands_at_qos_0_behind_many_others_are_dropped_and_counted(
    upstream: Mosquitto, here: Mosquitto, opened: Callable[..., MqttSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.mqtt_commands.WAITING_MAX", 2)
    monkeypatch.setattr("bridge.sinks.mqtt_commands.RETRY_S", 0.05)
    sink = opened(upstream.url, commands="cmd/#", local=here.url)
    await asyncio.to_thread(sink.begin, "edge-1")
    here.stop()
    async with Watch(upstream.url, "x") as above:
        for number in range(8):
            await above.publish("cmd/a", b"%d" % number, 0)
        await until(lambda: sink.omitted["command_full"] >= 5)
    here.start()
    commands = sink.commands
    assert commands is not None
    await until(lambda: commands.delivered + sink.omitted["command_full"] == 8)


async def test_commands_given_while_the_bridge_or_the_local_broker_was_away_come_later(
    upstream: Mosquitto, here: Mosquitto, opened: Callable[..., MqttSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.sinks.mqtt_commands.RETRY_S", 0.05)
    options = {"commands": "cmd/#", "local": here.url}
    sink = opened(upstream.url, **options)
    await asyncio.to_thread(sink.begin, "edge-1")
    await asyncio.to_thread(sink.close)
    async with Watch(upstream.url, "x") as above:
        await above.publish("cmd/a", b"1", 1)
        here.stop()
        again = opened(upstream.url, **options)
        await asyncio.to_thread(again.begin, "edge-1")
        await above.publish("cmd/a", b"2", 1, retain=False)
    here.start()
    commands = again.commands
    assert commands is not None
    await until(lambda: commands.delivered == 2)


@pytest.mark.parametrize("known", [True, False])
def test_tls_and_a_password_are_used_and_what_is_wrong_is_said(
    known: bool, tmp_path: Path, opened: Callable[..., MqttSink]
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    (tmp_path / "secret").write_text("sesame\n")
    tool = shutil.which("mosquitto_passwd")
    assert tool is not None, "it comes with mosquitto"
    passwords = str(tmp_path / "passwords")
    subprocess.run([tool, "-b", "-c", passwords, "bridge", "sesame"], check=True, capture_output=True)
    config = (f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/server.pem",
              f"keyfile {tmp_path}/server.pem",
              f"password_file {passwords}")  # fmt: skip
    with running(tmp_path, *config) as broker:
        url = broker.url.replace("mqtt://", "mqtts://")
        if not known:
            with pytest.raises(SinkUnavailable) as caught:
                opened(url).begin("edge-1")
            assert "option ca" in caught.value.hint
        options = {"ca": str(tmp_path / "ca.pem"), "username": "bridge"}
        if not known:
            with pytest.raises(SinkUnavailable, match="not authorized") as caught:
                opened(url, **options).begin("edge-1")
            assert "password" in caught.value.hint
            return
        sink = opened(url, **options, password_file=str(tmp_path / "secret"))
        sink.begin("edge-1")
        assert list(sink.send(records_of(drained_file_of(1, 6))).result(SETTLED_S)) == []
        assert "sesame" not in sink.url


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("mqtt://", {}, "is not an MQTT URL"),
        ("mqtt://host:port", {}, "is not an MQTT URL"),
        ("mqtt://user:sesame@host/path", {}, "is not an MQTT URL"),
        ("mqtt://host", {"qos": "2"}, "no option qos"),
        ("mqtt://host", {"in_flight": "0"}, "in_flight"),
        ("mqtt://host", {"commands": "cmd/#"}, "go together"),
        ("mqtt://host", {"commands": "cmd/#/x", "local": "mqtt://127.0.0.1"}, "commands"),
        ("mqtt://host", {"ca": "/etc/ca.pem"}, "mqtts"),
        ("mqtts://host", {"ca": "/no/such/file"}, "No such"),
    ],
)
def test_a_url_or_option_that_cannot_be_is_refused(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadName, match=said) as caught:
        open_sink(url, options)
    assert "sesame" not in str(caught.value)


async def test_what_a_ring_holds_is_drained_once_and_in_order(
    upstream: Mosquitto, opened: Callable[..., MqttSink], tmp_path: Path
) -> None:
    made = ring(tmp_path)
    publish(made, 500, size=30)
    sink = opened(upstream.url)
    async with Watch(upstream.url, "#") as watch:
        await asyncio.to_thread(sink.begin, "edge-1")
        with drain(settings(tmp_path, tmp_path, file_bytes=16384, window=4), sink) as drained:
            await asyncio.to_thread(run_dry, drained)
        found = await watch.heard(500)
    made.close()
    assert [it.payload for it in found] == [str(n).encode().rjust(30, b".") for n in range(500)]
