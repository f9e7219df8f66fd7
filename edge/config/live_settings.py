"""Live settings: the part of a new configuration that a running broker applies without a restart.

Owns the choice of these settings: [limits] except START_LIMITS, [quota], [[tenant]], [[bridge]], log_level,
and added [[stream]]s (edge/server/added_streams.py decides which). Never applies anything
(edge/server/live_configuration.py does).

    running, wanted -> after_reload() -> the configuration in effect after the reload
    what still differs from `wanted` needs a restart: setting_changes()

Changes never contain a secret: a setting whose secret differs has HIDDEN as both values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from edge.config import loader
from edge.config.limits import DefaultSize, Limits
from edge.config.public_settings import (
    HIDDEN,
    all_settings,
    flat_settings,
    own_values,
    public_settings,
    repeated_sections,
    sizes_of_kind,
)
from edge.config.schema import Config
from edge.config.tenant import Tenant

_MISSING: Final = "(not set)"

Change: TypeAlias = tuple[str, Any, Any]  # name, value in effect, wanted value

# Connected clients rely on the first three, which CONNACK announced; the others size memory at the start.
START_LIMITS: Final = frozenset(
    {"receive_max", "topic_alias_max", "qos_max", "in_flight_max_bytes", "spill_max_bytes"}
)
_LIVE_SECTIONS: Final = ("bridge", "log_level", "quota")
_LIVE_LIMITS = tuple(name for name in Limits.__struct_fields__ if name not in START_LIMITS)


def after_reload(running: Config, wanted: Config, *, adds_streams: bool = False) -> Config:
    """`running` with the live settings of `wanted`, and its streams if `adds_streams`.

    Raises ConfigError: these settings break a rule together with those that need a restart.
    """
    limits = replace(running.limits, **{name: getattr(wanted.limits, name) for name in _LIVE_LIMITS})
    changed = replace(
        running,
        limits=limits,
        tenant=_live_tenants(running, wanted),
        stream=wanted.stream if adds_streams else running.stream,
        **{name: getattr(wanted, name) for name in _LIVE_SECTIONS},
    )
    return loader.checked(changed, "reload without the settings that need a restart")


def is_live(name: str) -> bool:
    """True if after_reload() takes a changed setting of this name."""
    section, _, key = name.partition(".")
    return section in {*_LIVE_SECTIONS, "tenant"} or (section == "limits" and key in _LIVE_LIMITS)


def _live_tenants(running: Config, wanted: Config) -> tuple[Tenant, ...]:
    """Tenants of `wanted`; those of `running` if a listener, which a reload does not change, needs them."""
    names = {tenant.name for tenant in wanted.tenant}
    needed = {listener.tenant for listener in running.listener if listener.tenant}
    return wanted.tenant if needed <= names else running.tenant


def setting_changes(running: Config, wanted: Config) -> Iterator[Change]:
    """Each setting that differs."""
    shown = {name: (now, then) for name, now, then in public_changes(public_settings(running), wanted)}
    for name, _, _ in _changes(all_settings(running), all_settings(wanted)):
        now, then = shown.get(name, (HIDDEN, HIDDEN))
        yield name, now, then


def public_changes(
    running: dict[str, Any], wanted: Config, lowered: Collection[str] = ()
) -> Iterator[Change]:
    """Each setting that differs from public_settings() of the configuration in effect.

    Secrets are not compared: `running` does not have them. `lowered`: settings with defaults that the start
    has lowered.
    """
    defaults = sizes_of_kind(wanted, DefaultSize)
    for change in _changes(running, public_settings(wanted)):
        if change[0] not in lowered or change[0] not in defaults:
            yield change


def _changes(running: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Change]:
    whole = dict(repeated_sections(running)).keys() ^ dict(repeated_sections(wanted)).keys()
    now, then = _with_whole(running, whole), _with_whole(wanted, whole)
    for name in sorted({*now, *then} - {"runtime_dir"}):
        if now.get(name, _MISSING) != then.get(name, _MISSING):
            yield name, now.get(name, _MISSING), then.get(name, _MISSING)


def _with_whole(settings: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """flat_settings(), in which each [[section]] of these names is one setting: of its values that are not
    the default.
    """
    parts, lists = tuple(f"{name}." for name in names), {name.partition(".")[0] for name in names}
    flat = flat_settings(settings)  # an empty list is a setting, too
    rest = {key: value for key, value in flat.items() if key not in lists and not key.startswith(parts)}
    sections = repeated_sections(settings)
    return rest | {name: own_values(name, section) for name, section in sections if name in names}
