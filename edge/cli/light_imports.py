"""Imports of commands without modules that a library imports in case they are needed.

    msgspec   without typing_extensions, which imports inspect: 1 MB, and 10 ms of the start. Other packages
              install it; Python 3.11 has the same names.
    asyncio   without inspect, ast and dis, 1 MB: for the text of a callback that has failed; Python 3.14
              needs them. Without ssl, libssl and libcrypto, 4 MB: for TLS of asyncio. TLS of MQTT clients
              does not use it.
    pyarrow   for `brim sql`, without pandas, which the first scalar imports to recognise values of pandas:
              40 MB, and half of the time of all imports.

msgspec and asyncio import an absent module when they use it. Other modules find the real ones at any time,
except pandas after forgo_pandas().
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
    """Import asyncio; without TLS as in a Python that has none.

    From Python 3.13 on, the first traceback imports tokenize. Without a descriptor left, the error of a
    callback would not be logged.
    """
    importlib.import_module("tokenize")
    absent: dict[str, ModuleType | None] = {"inspect": _AtFirstUse("inspect")}
    with _replaced(absent if with_tls else {**absent, "ssl": None}):
        importlib.import_module("asyncio")


def forgo_pandas() -> None:
    """Let the libraries of this process not find pandas, as if it were not installed."""
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas:
    """Finder in place of None in sys.modules, which compiled modules take for a module."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


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
