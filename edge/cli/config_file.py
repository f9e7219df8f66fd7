"""Edit of one setting in a configuration file: `brim config set`. Comments and order stay.

Owns the way from a name to a place in the file, as `brim config show` prints names. The result is checked as
a whole before the file is replaced, so that a mistake changes nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from edge.cli.kept_access import keep_access
from edge.config import loader
from edge.config.live_settings import setting_changes
from edge.errors import EdgeError
from persistence.durable_file import NewFile
from persistence.files import OsFiles

REPEATED = frozenset({"stream", "bridge", "producer", "listener", "plugin"})  # sections in [[...]]
FREE = frozenset({"options", "remap", "priorities"})  # tables whose keys may contain dots


def set_value(file: Path, name: str, text: str) -> list[tuple[str, Any, Any]]:
    """Write the value `text` of the setting `name` into the file.

    Returns name, earlier and new value of each setting that has changed; secrets are hidden. Raises
    EdgeError: there is no place for the name; ConfigError: the file would not be valid.
    """
    before = loader.load(file)
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    parts = name.split(".")
    table = _table(document, parts, name)
    key = _key(parts)
    try:
        value: Any = tomlkit.value(text)
    except TOMLKitError:
        value = tomlkit.string(text)
    table[key] = value
    changed = document.as_string()
    after = loader.parse(changed, name=str(file), base=file.parent)
    with NewFile(OsFiles(), str(file.resolve()), mode=0o600) as new:  # a link stays
        new.write(changed.encode())
        keep_access(file.stat(), new.handle)
        new.publish()
    return list(setting_changes(before, after))


def _key(parts: Sequence[str]) -> str:
    """The rest of a name: one key, or a free key with dots, such as "sasl.password"."""
    depth = next((place for place, part in enumerate(parts) if part in FREE), len(parts) - 2)
    return ".".join(parts[depth + 1 :]) if len(parts) > 1 else parts[0]


def _table(document: MutableMapping[str, Any], parts: Sequence[str], name: str) -> MutableMapping[str, Any]:
    """The table of a name, made if it is a plain section that is not there yet. Raises EdgeError."""
    table, rest = document, list(parts[:-1])
    while rest:
        part = rest.pop(0)
        if part in REPEATED and rest:
            table = _element(table.get(part, ()), rest.pop(0), part, name)
            continue
        if part not in table:
            table[part] = tomlkit.table()
        table = table[part]
        if not isinstance(table, MutableMapping):
            kind = "a list; name one of its entries" if part in REPEATED else "a value, not a section"
            raise EdgeError(f"{name}: {part} is {kind}", hint=f"`brim config show {part}` has all names")
        if part in FREE:
            break
    return table


def _element(
    tables: Sequence[MutableMapping[str, Any]], which: str, section: str, name: str
) -> MutableMapping[str, Any]:
    """The [[section]] of that name or number. Raises EdgeError."""
    for number, table in enumerate(tables):
        if table.get("name", str(number)) == which:
            return table
    known = ", ".join(str(table.get("name", number)) for number, table in enumerate(tables)) or "none"
    raise EdgeError(
        f"{name}: there is no [[{section}]] {which!r} in the file (present: {known})",
        hint=f"add the section [[{section}]] with an editor, then check the file with `brim check`",
    )
