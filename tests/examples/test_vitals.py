"""Measurements of this machine, as devices."""

import psutil

from edge.mqtt.topic_filters import check_name
from examples.demo.burst import record
from examples.demo.vitals import KINDS, Vitals, level


def test_every_reading_has_a_topic_that_mqtt_allows_and_a_number() -> None:
    readings = Vitals("a machine/with +odd# name", KINDS).read()
    for reading in readings:
        check_name(reading.device)
        assert reading.device.startswith("host/a-machine-with-odd-name/")
        assert isinstance(reading.value, float | int)
    devices = [reading.device for reading in readings]
    assert len(devices) == len(set(devices))


def test_every_cpu_of_this_machine_is_a_device() -> None:
    readings = Vitals("me", ["cpu"]).read()
    assert [reading.device for reading in readings] == [
        f"host/me/cpu/{n}" for n in range(psutil.cpu_count() or 0)
    ]
    assert all(0 <= reading.value <= 100 for reading in readings)


def test_only_the_kinds_that_were_asked_for_are_read() -> None:
    kinds = {reading.device.split("/")[2] for reading in Vitals("me", ["memory", "load", "process"]).read()}
    assert kinds == {"memory", "load", "process"}


def test_slow_readings_are_not_in_every_look() -> None:
    vitals = Vitals("me", ["load", "process"])
    first, second = vitals.read(), vitals.read()
    assert len(first) > len(second) == 1


def test_a_level_of_a_topic_is_never_empty() -> None:
    assert level("/#+") == "unnamed"
    assert level("dm-0") == "dm-0"


def test_the_recording_has_devices_of_its_own() -> None:
    readings = record("me", seconds=0.05)
    assert readings
    assert all(reading.device.startswith("replay/me/") for reading in readings)
