"""Public settings: a configuration as plain data, without passwords and keys, and as one value per name.

Data with secrets (`all_settings`) is for comparisons, and never leaves the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec.structs import FieldInfo, fields

from edge.config.limits import DefaultSize
from edge.config.schema import Config

HIDDEN: Final = "(hidden)"
_MARK: Final = "\0"  # no setting has this value
# Options of sinks and plug-ins are free: their names decide. Files and directories are no secrets.
_SECRET = re.compile(r"pass|secret|token|key|credential|sasl|conninfo", re.IGNORECASE)
_PLACE = re.compile(r"_(file|dir|max|bytes|s|ms)$")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")


def public_settings(config: Config) -> dict[str, Any]:
    """The configuration as dictionaries, lists, numbers and texts; secrets are HIDDEN."""
    settings: dict[str, Any] = _hidden(all_settings(config))
    return settings


def all_settings(config: Config) -> dict[str, Any]:
    """The same with secrets; flat_settings() has the same names for both."""
    settings: dict[str, Any] = msgspec.to_builtins(config, enc_hook=_plain)
    return settings


def sizes_of_kind(config: Config, kind: type[DefaultSize]) -> tuple[str, ...]:
    """Names of the settings whose value is a DefaultSize, or a LoweredSize."""

    def marked(value: Any) -> Any:
        return _MARK if isinstance(value, kind) else _plain(value)

    settings = flat_settings(msgspec.to_builtins(config, enc_hook=marked))
    return tuple(name for name, value in settings.items() if value == _MARK)


def flat_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """One entry per setting: `limits.topics_max`, `stream.default.ring_bytes`, `listener.0.port`."""
    return dict(_flat(settings, ""))


def repeated_sections(settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each [[section]], under the name that flat_settings() gives it: `stream.press`, `listener.0`."""
    for key, value in settings.items():
        yield from _sections(value, key)


def default_settings(settings: dict[str, Any], without: Config) -> dict[str, Any]:
    """Defaults of flat_settings(settings); `without`: the configuration of an empty file."""
    defaults = flat_settings(public_settings(without))
    for name, _ in repeated_sections(settings):
        defaults |= {f"{name}.{key}": value for key, value in _section_defaults(name).items()}
    return defaults


def own_values(name: str, section: dict[str, Any]) -> dict[str, Any]:
    """Settings of a [[section]] that are not the default, by their names in it."""
    defaults = _section_defaults(name)
    values = flat_settings(section).items()
    return {key: value for key, value in values if key not in defaults or defaults[key] != value}


def _section_defaults(name: str) -> dict[str, Any]:
    (kind, *_) = get_args(get_type_hints(Config)[name.partition(".")[0]])
    values = {one.name: _default(one) for one in fields(kind) if not one.required}
    return flat_settings(_hidden(msgspec.to_builtins(values, enc_hook=_plain)))


def _default(one: FieldInfo) -> Any:
    return one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, int):  # DefaultSize
        return int(value)
    return str(value) if isinstance(value, Path) else repr(value)


def _hidden(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _hidden(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, name) for item in value]
    if isinstance(value, str) and value:
        return HIDDEN if _SECRET.search(name) and not _PLACE.search(name) else _USER_INFO.sub("", value)
    return value


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    elif sections := list(_sections(value, name)):
        for section, item in sections:
            yield from _flat(item, section)
    else:
        yield name, value


def _sections(value: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each dictionary of a list, by its name or its place; nothing if the value is not such a list."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        for number, item in enumerate(value):
            yield f"{name}.{item.get('name', number)}", item
