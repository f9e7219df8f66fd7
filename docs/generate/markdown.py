"""Markdown of the reference pages: tables, code spans and plain text with its special characters escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE_SPAN = re.compile(r"(`[^`\n]+`)")
_SPECIAL = re.compile(r"([\\*]|(?<!\w)_|_(?!\w))")
# Keys and sections of brim.toml, files and names with underscores are code wherever they stand.
_SECTION = r"(?<!\w)\[{1,2}(?:[a-z_]+\.)*[a-z_]+\]{1,2}"
_NAME = r"(?<![\w./@])[a-z0-9]+(?:\.[a-z0-9]+)*(?:_[a-z0-9]+)+(?![\w(]|\.\w)"
_NAMES = re.compile(f"{_SECTION}|{_NAME}")


def code(text: str) -> str:
    """`text` as a code span."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def prose(text: str) -> str:
    """`text` of a docstring as Markdown; code spans stay, names of keys become code spans."""
    parts = _CODE_SPAN.split(text)
    parts[::2] = [_NAMES.sub(r"`\g<0>`", part) for part in parts[::2]]
    parts = _CODE_SPAN.split("".join(parts))
    parts[::2] = [_SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; line breaks in cells become spaces."""
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    lines += [" | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)
