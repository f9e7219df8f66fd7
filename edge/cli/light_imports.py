"""Imports of `brim run` without modules that a library imports in case they are needed.

    msgspec   without typing_extensions, which imports inspect: 1 MB, and 10 ms of the start. Other packages
              install it; Python 3.11 has the same names.
    asyncio   without inspect, ast and dis, 1 MB: for the text of a callback that has failed. Without ssl,
              libssl and libcrypto, 4 MB: for TLS of asyncio. TLS of MQTT clients does not use it.

The library imports an absent module when it uses it. Other modules find the real ones at any time.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _AtFirstUse(ModuleType):
    """Takes the place of a module for those that import it now, and imports it when it is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        try:
            module = importlib.import_module(self.__name__)
        except (ImportError, OSError):  # the disk, or no descriptor is left: the event loop must not end
            return lambda _: None
        return getattr(module, name)


def import_msgspec() -> None:
    """Import msgspec."""
    with _replaced({"typing_extensions": None}):
        importlib.import_module("msgspec")


def import_asyncio(*, with_tls: bool) -> None:
    """Import asyncio; without TLS as in a Python that has none."""
    absent: dict[str, ModuleType | None] = {"inspect": _AtFirstUse("inspect")}
    with _replaced(absent if with_tls else {**absent, "ssl": None}):
        importlib.import_module("asyncio")


@contextmanager
def _replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Let imports find these modules; None, as documented, raises ModuleNotFoundError.

    A module that is imported already stays.
    """
    replaced: dict[str, Any] = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(replaced)
    try:
        yield
    finally:
        for name, module in replaced.items():
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]
