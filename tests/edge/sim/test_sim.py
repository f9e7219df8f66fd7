"""brim sim: devices of a plan publish to a real broker, with drift and faults; a wrong plan is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.errors import ConfigError
from edge.mqtt import Publish, SubAck, Subscribe, Subscription
from edge.sim.plan import FIRST_PLAN, load
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port

PLAN = """
seed = 7
[[device]]
name = "press"
count = 50
[[device.value]]
name = "temp"
start = 60
drift = 0.5
min = 59.8
max = 60.2
decimals = 2
[[device.message]]
topic = "plant/$device/temp"
payload = '{"temp": $temp, "n": $sequence, "device": $number}'
rate = 20
qos = 1
[device.faults]
missing = 0.2
outlier = 0.1
"""


def simulated(broker: BrimProcess, plan: Path, *words: str) -> dict[str, Any]:
    """Counts of a run of three seconds."""
    port = ("--port", broker.port, "--duration", "3s", "--json")
    with ModuleChild("edge", "sim", plan, *port, *words) as child:
        status, out, log = child.wait()
    assert status in {0, 1}, log
    counts: dict[str, Any] = json.loads(out)
    return counts


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(PLAN)
    return path


def test_devices_publish_values_that_drift_within_bounds_and_with_faults(
    runtime_directory: Path, tmp_path: Path, plan: Path
) -> None:
    with (
        BrimProcess(runtime_directory, tmp_path, bridge=False) as broker,
        SocketClient(broker.port, "reader") as reader,
    ):
        reader.send(Subscribe(1, (Subscription("plant/+/temp", 0),)))
        assert isinstance(reader.receive(), SubAck)
        counts = simulated(broker, plan)
        found = []
        while (packet := reader.next(0.5)) is not None:
            assert isinstance(packet, Publish)
            found.append((packet.topic, json.loads(bytes(packet.payload))))
    assert (counts["failed"], counts["refused"], counts["cuts"]) == (0, 0, 0)
    assert min(counts["published"], counts["missing"], counts["outliers"]) > 0
    assert len(found) >= counts["published"]
    assert {topic for topic, _ in found} <= {f"plant/press-{n}/temp" for n in range(1, 51)}
    usual = [row["temp"] for _, row in found if row["temp"] < 100]
    assert all(59.8 <= temp <= 60.2 for temp in usual)
    assert len(set(usual)) > 5
    assert any(590 <= row["temp"] <= 610 for _, row in found)  # outliers
    assert all(topic == f"plant/press-{row['device']}/temp" for topic, row in found)


def test_a_cut_device_leaves_without_goodbye_and_comes_back(
    runtime_directory: Path, tmp_path: Path, plan: Path
) -> None:
    plan.write_text(PLAN.replace("missing = 0.2", "cut = 0.2\noffline_s = 0.1").replace("= 50", "= 5"))
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        counts = simulated(broker, plan)
        assert counts["cuts"] > 5  # more than there are devices: they have come back
        assert counts["published"] > 0


def test_without_a_broker_the_status_is_3(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", str(plan), "--port", str(free_port()), "--duration", "1s"]
    assert main(words) == Exit.CANNOT_CONNECT
    assert "last error" in capsys.readouterr().out


def test_the_first_plan_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--init"]) == 0
    path = tmp_path / "first.toml"
    path.write_text(capsys.readouterr().out)
    assert path.read_text() == FIRST_PLAN
    assert [device.count for device in load(path).device] == [20]
    assert main(["sim"]) == Exit.USAGE


def test_a_missing_plan_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "none")
    (problem,) = refused.value.problems
    assert problem.startswith(f"{tmp_path}/none: cannot be read: No such file or directory; name a file")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("$temp,", "$tmp,", "there is no value $tmp"),
        ("$temp,", "$ ,", "a $ without a name"),
        ("plant/$device", "plant/#/$device", "devices.toml:14"),
        ("rate = 20", "rate = 0", "below the least"),
        ("min = 59.8", "min = 99", "is above max"),
        ("missing = 0.2", "missing = 2", "above the limit"),
        ("count = 50", "counts = 50", "did you mean count"),
        ("[[device]]", "[[devices]]", "did you mean device"),
    ],
)
def test_a_mistake_in_a_plan_is_named_with_its_line(plan: Path, before: str, after: str, words: str) -> None:
    plan.write_text(PLAN.replace(before, after))
    with pytest.raises(ConfigError) as refused:
        load(plan)
    assert words in str(refused.value)
    assert f"{plan}:" in str(refused.value)
