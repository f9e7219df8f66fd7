"""Loader of the configuration: file, text or values in, a checked Config or every mistake out.

Owns the order: read TOML, fill the structs of edge/config/schema.py, apply the rules of
edge/config/setting_rules.py. setting_reader.py refuses unknown keys. The environment gives only default
directories (directories.py). Never changes a value that was given. ConfigError names file, line and key of
every mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edge.config.directories import StrPath
from edge.config.listener import Listener
from edge.config.regular_file import require_regular
from edge.config.schema import DEFAULT_STREAM, Config, Stream
from edge.config.setting_reader import Problems, read_struct, read_toml, read_values
from edge.config.setting_rules import RULES
from edge.errors import ConfigError


def load(file: StrPath, *, again: bool = False) -> Config:
    """Read the configuration in `file`. Raises ConfigError with every mistake in it.

    `again`: for a reload. It refuses a pipe, because the start has already read all of it.
    """
    file = Path(file)
    try:
        if again:
            require_regular(file)
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"{file}: cannot be read: {error.strerror}; name a file that this user may read"
        raise ConfigError([problem], unreadable=True) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}:1: file: byte {error.start} is not UTF-8, which TOML must be"]) from error
    return parse(text, name=str(file), base=file.parent)


def parse(text: str, *, name: str = "brim.toml", base: Path = Path()) -> Config:
    """Parse a configuration; `name` is the file name in messages, relative paths begin at `base`."""
    problems = Problems(name)
    config = read_struct(Config, read_toml(text, problems), problems, base.absolute())
    if all(stream.name != DEFAULT_STREAM for stream in config.stream):
        rest = Stream(name=DEFAULT_STREAM, topics=("#",))
        config = msgspec.structs.replace(config, stream=(*config.stream, rest))
    return _ruled(config, problems)


def overridden(config: Config, overrides: Mapping[str, Any], name: str) -> Config:
    """Replace settings by the values of `overrides`, for which the rules of the file hold.

    Keys are those of [[listener]] (of the first one) and of the file itself; `name` is what messages call
    it.  Raises ConfigError.
    """
    problems = Problems(name)
    first = config.listener[0] if config.listener else Listener()
    listener = {key: value for key, value in overrides.items() if key in {"host", "port"}}
    values = read_values(Listener, listener, problems, Path.cwd(), ("listener", 0))
    changes = read_values(
        Config, {k: v for k, v in overrides.items() if k not in listener}, problems, Path.cwd()
    )
    if values:
        changed = msgspec.structs.replace(first, **values)
        changes["listener"] = (changed, *config.listener[1:])
    return _ruled(msgspec.structs.replace(config, **changes), problems)


def checked(config: Config, name: str) -> Config:
    """Check a `config` from code, or changed by `name`. Raises ConfigError if it breaks a rule."""
    return _ruled(config, Problems(name))


def _ruled(config: Config, problems: Problems) -> Config:
    for rule in RULES:
        rule(config, problems)
    if messages := problems.messages():
        raise ConfigError(messages)
    return _default_stream_last(config)


def _default_stream_last(config: Config) -> Config:
    """Move the stream "default" behind all others: "#" takes every topic.  Rules name places of the file."""
    streams = sorted(config.stream, key=lambda stream: stream.name == DEFAULT_STREAM)
    return msgspec.structs.replace(config, stream=tuple(streams))
