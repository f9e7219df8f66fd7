"""Delivery settings of a group: lease, tries, back-off, speed. Each value is of the first source that has it:

    operator    `brim consumers set`
    members     the join of a member
    broker      [consumers] of the configuration file; the speed is 0 there

A member that names no value accepts the group's. While a group has members, a member that names another value
than an earlier member is refused. In a group without members the values of the next member replace the
earlier ones. No I/O, no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from edge.consumers.replay_clock import SPEED_MAX

SettingName = Literal["lease_ms", "tries_max", "backoff_ms", "backoff_max_ms", "speed_permille"]
Source = Literal["operator", "members", "broker"]

# Except for the speed as in edge.config.schema.Consumers.
LIMITS: Final[dict[SettingName, tuple[int, int]]] = {
    "lease_ms": (1, 3_600_000),
    "tries_max": (0, 1_000),
    "backoff_ms": (1, 3_600_000),
    "backoff_max_ms": (1, 3_600_000),
    "speed_permille": (0, 1000 * SPEED_MAX),
}


class DeliverySettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values of one source; None: it has none. Names and meaning as in [consumers].

    `speed_permille`: thousandths of the original speed at which new records come; 0: as fast as possible.
    """

    lease_ms: int | None = None
    tries_max: int | None = None
    backoff_ms: int | None = None
    backoff_max_ms: int | None = None
    speed_permille: int | None = None

    def named(self) -> Iterator[tuple[SettingName, int]]:
        """Name and value of each setting that has a value."""
        for name in LIMITS:
            if (value := getattr(self, name)) is not None:
                yield name, value


NO_SETTINGS: Final = DeliverySettings()


class SettingInfo(msgspec.Struct, frozen=True):
    """Value of a setting, and its source."""

    value: int
    source: Source


def first_of(*sources: DeliverySettings) -> DeliverySettings:
    """The value of each setting from the first source that has one."""
    values: dict[str, int] = {}
    for source in reversed(sources):
        values.update(source.named())
    return DeliverySettings(**values)


def origins(
    operator: DeliverySettings, members: DeliverySettings, broker: DeliverySettings
) -> dict[SettingName, SettingInfo]:
    """Each setting with its value and source."""
    infos: dict[SettingName, SettingInfo] = {}
    layers: tuple[tuple[Source, DeliverySettings], ...] = (
        ("broker", broker), ("members", members), ("operator", operator),
    )  # fmt: skip
    for source, layer in layers:
        infos.update((name, SettingInfo(value, source)) for name, value in layer.named())
    return infos


def invalid_value(settings: DeliverySettings) -> str:
    """Error text for the first value outside of its limits; "" if all are valid."""
    for name, value in settings.named():
        low, high = LIMITS[name]
        if not low <= value <= high:
            return f"invalid {name} {value} (allowed: {low} to {high})"
    return ""


def conflict(members: DeliverySettings, wanted: DeliverySettings) -> tuple[SettingName, int, int] | None:
    """The first setting with two values: its name, the members' value, and the other one."""
    known = dict(members.named())
    return next(
        (
            (name, known[name], value)
            for name, value in wanted.named()
            if name in known and known[name] != value
        ),
        None,
    )
