"""`brim bench mqtt`: options become the load, its end a table, a report or JSON, its status the verdict."""

import dataclasses
import json
from collections.abc import Iterator

import pytest

from edge import cli
from edge.cli.exit_status import Exit
from edge.load import SCENARIOS, LoadError, Scenario, qos_pattern
from edge.load import runner as load_runner
from edge.mqtt import Version
from tests.support.mqtt_served import Served, served
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    with served(capacity_bytes=1 << 26) as there:
        yield there


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_runner, "CALIBRATION_S", 0.05)


def bench(*arguments: object) -> int:
    return cli.main(["bench", "mqtt", *map(str, arguments)])


def test_a_scenario_is_reported_beside_what_the_generator_can_do(broker: Served, capsys) -> None:
    status = bench("pair", "--port", broker.port, "--messages", 100, "-q", 1, "--size", 100)
    shown = capsys.readouterr().out
    assert status == 0
    assert "1 publishers, 1 subscribers, QoS 1, 100 bytes" in shown
    assert "sent 100, acknowledged 100, received 100" in shown
    assert "generator limit" in shown
    assert "nothing lost, doubled or out of order" in shown


def test_json_has_everything(broker: Served, capsys) -> None:
    changes = ("--rate", 1000, "--duration", 0.1, "--connections", 2, "--json")
    assert bench("latency", "--port", broker.port, *changes) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sent"], found["delivered"], found["latency"]["count"]) == (100, 100, 100)
    assert found["clean"] is True
    assert found["generator_p50_us"] > 0
    assert {"p50_us", "p90_us", "p99_us", "p99.9_us", "max_us"} <= set(found["latency"])


def test_the_tour_is_a_table_with_a_line_for_each_stop(broker: Served, capsys) -> None:
    assert bench("--port", broker.port, "--duration", 0.05, "--no-calibration") == 0
    lines = capsys.readouterr().out.splitlines()
    for title in ("publish, QoS 0", "200 devices, one in flight", "1 to 100", "1,000 connections"):
        assert any(line.startswith(title) for line in lines), title


def test_a_self_test_needs_no_broker(capsys) -> None:
    assert bench("publish", "--self-test", "--port", free_port()) == 0
    assert "messages/s" in capsys.readouterr().out


def test_a_broker_that_is_not_there_is_status_3_and_a_remedy(capsys) -> None:
    assert bench("--port", free_port()) == Exit.CANNOT_CONNECT
    assert "start one: `brim run`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publsh",), "there is no scenario 'publsh'"),
        (("--size", 100), "the tour has a fixed load"),
        (("publish", "-q", "3"), "invalid QoS '3'"),
        (("publish", "-q", "0:90,1:20"), "110 together, more than 100"),
        (("publish", "--window", 0), "window 0 is not in 1 .. 65,535"),
        (("publish", "--connections", 0), "there is no client"),
        (("publish", "--prefix", "a/+"), "topic or filter"),
        (("pair", "--size", 8), "payloads of 8 bytes cannot say whose they are"),
        (("pair", "--subscribe-qos", 7), "--subscribe-qos 7 is not 0, 1 or 2"),
        (("pair", "--filter", "a/#/b"), "topic or filter"),
        (("publish", "--password-file", "/nonexistent"), "--password-file /nonexistent"),
        (("publish", "--connections", 999_999), "open files are needed"),
        (("publish", "--host", "no.such.host.invalid"), "no host 'no.such.host.invalid'"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(
    arguments: tuple[object, ...], words: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    assert bench(*arguments) in {Exit.USAGE, Exit.CANNOT_CONNECT}
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "pattern"),
    [("1", (1,)), ("0:1,2:1", (0, 2)), ("0:2,1:1", (0, 1, 0)), ("0,1,2", (0, 1, 2))],
)
def test_a_mix_of_qos_is_spread_evenly(text: str, pattern: tuple[int, ...]) -> None:
    assert qos_pattern(text) == pattern


@pytest.mark.parametrize("text", ["", "x", "0:0", "0:-1,1:2", "1,1", "0:1:1"])
def test_a_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoadError):
        qos_pattern(text)


def test_pairs_are_as_many_as_publishers() -> None:
    scenario = dataclasses.replace(SCENARIOS["pair"], pairing="pairs", publishers=2)
    with pytest.raises(LoadError, match="1 subscribers for 2 publishers are not pairs"):
        scenario.check(Version.V311)


def test_who_subscribes_to_one_topic_asks_for_that_and_else_for_all() -> None:
    one = Scenario("x", subscribers=1, prefix="p")
    assert one.filter_of(0, 1) == "p/00000/t00"
    assert dataclasses.replace(one, topics=2).filter_of(0, 1) == "p/#"
    assert dataclasses.replace(one, pairing="shared").filter_of(0, 0xAB) == "$share/bench-ab/p/00000/t00"
