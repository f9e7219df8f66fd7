"""Plan of a simulation: devices with their messages, values and faults, from a TOML file.

Owns the form of the file and its mistakes. In topics and payloads $name stands for a value; `$device`,
`$number`, `$sequence` and `$time_ms` are always there.
"""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Annotated, Final

from msgspec import Meta, Struct

from edge.config.setting_reader import Problems, read_struct, read_toml
from edge.errors import ConfigError
from edge.mqtt import ProtocolError, check_name

USUAL: Final = ("device", "number", "sequence", "time_ms")
Share = Annotated[float, Meta(ge=0, le=1)]

FIRST_PLAN = """\
# Devices for `brim sim FILE`. $name in topics and payloads stands for a value of the device;
# $device, $number, $sequence and $time_ms are always there.

[[device]]
name = "press"                       # client identifiers press-1 to press-20
count = 20

[[device.value]]                     # walks at random between min and max, by drift at most
name = "temp"
start = 60.0
drift = 0.5
min = 20.0
max = 95.0
decimals = 1

[[device.message]]
topic = "plant/$device/temp"
payload = '{"temp": $temp, "n": $sequence, "t": $time_ms}'
rate = 2.0                           # messages a second of each device
qos = 1

[[device.message]]
topic = "plant/$device/state"
payload = "on"
rate = 0.1
retain = true

[device.faults]                      # shares of messages
missing = 0.01                       # not sent
outlier = 0.001                      # values multiplied by outlier_factor
cut = 0.0005                         # the connection breaks, for offline_s
offline_s = 5
"""


class Value(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that walks at random."""

    name: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*\Z", description="write a-z, 0-9 and _")]
    start: float = 0.0
    drift: Annotated[float, Meta(ge=0)] = 0.0
    min: float | None = None
    max: float | None = None
    decimals: Annotated[int, Meta(ge=0, le=15)] = 2


class DeviceMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that a device publishes again and again."""

    topic: str
    payload: str
    rate: Annotated[float, Meta(ge=0.0001, le=10_000)] = 1.0
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False


class DeviceFaults(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of messages at which something goes wrong."""

    missing: Share = 0.0
    outlier: Share = 0.0
    outlier_factor: float = 10.0
    cut: Share = 0.0
    offline_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0


class DeviceKind(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one kind."""

    name: Annotated[str, Meta(pattern=r"^[^/+#$\0]{1,64}\Z", description="write no / + # or $")]
    message: tuple[DeviceMessage, ...]
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1
    value: tuple[Value, ...] = ()
    faults: DeviceFaults = DeviceFaults()


class FleetPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """All devices. `seed`: the same values and faults in each run."""

    device: tuple[DeviceKind, ...]
    seed: int | None = None


def load(file: Path) -> FleetPlan:
    """Read a plan. Raises ConfigError with every mistake in it."""
    problems = Problems(str(file))
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"{file}: cannot be read: {error.strerror}; name a file that this user may read"
        raise ConfigError([problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}:1: file: byte {error.start} is not UTF-8, which TOML must be"]) from error
    raw = read_toml(text, problems)
    plan = read_struct(FleetPlan, raw, problems, file.parent) if raw or not problems.messages() else None
    if plan is not None and not problems.messages():
        _check(plan, problems)
    if plan is None or problems.messages():
        raise ConfigError(problems.messages())
    return plan


def _check(plan: FleetPlan, problems: Problems) -> None:
    names = [device.name for device in plan.device]
    for index, device in enumerate(plan.device):
        if names.index(device.name) != index:
            problems.add(("device", index, "name"), f"{device.name!r} is taken; give each its own name")
        known = {*USUAL, *(value.name for value in device.value)}
        for number, value in enumerate(device.value):
            if value.min is not None and value.max is not None and value.min > value.max:
                problems.add(
                    ("device", index, "value", number, "min"), f"{value.min} is above max {value.max}"
                )
        for number, message in enumerate(device.message):
            for key in ("topic", "payload"):
                mistake = _mistake(getattr(message, key), known, is_topic=key == "topic")
                if mistake:
                    problems.add(("device", index, "message", number, key), mistake)


def _mistake(text: str, known: set[str], *, is_topic: bool) -> str:
    template = Template(text)
    if not template.is_valid():
        return "a $ without a name; write $$ for the sign itself"
    if unknown := sorted(set(template.get_identifiers()) - known):
        return f"there is no value ${unknown[0]}; the values are {', '.join(sorted(known))}"
    try:
        if is_topic:
            check_name(template.substitute(dict.fromkeys(known, "0")))
    except ProtocolError as error:
        return error.detail
    return ""
