"""Lazy attributes of a module: the first use of a name imports the module that defines it (PEP 562)."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as of typing, which takes longer to import than this package
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy"]


def lazy(module: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A module's __getattr__.  `homes`: module -> names that it defines; "name=other" renames `other`."""
    names = {
        entry.partition("=")[0]: (home, entry.rpartition("=")[2])
        for home, entries in homes.items()
        for entry in entries
    }

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = names[name]
        return getattr(import_module(home), original)

    return attribute
