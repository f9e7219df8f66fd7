"""Catalogue of errors: each class with its meaning, and each message with its remedy, from the source.

Owns the reading of calls that make an error, in the packages as they are installed, so it needs no file of
its own. An ellipsis stands for a computed text. The name of a class is stable: programs catch it, and
people search for it. `brim explain` and docs/reference/errors.md print the catalogue.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "edge": "Broker, clients and commands", "bridge": "Bridges, sinks and Spark",
    "persistence": "Segment log", "ringbuf": "Rings in shared memory",
}  # fmt: skip
GAP = "…"
_BUILT_IN = frozenset({"Exception", "OSError"})


class ErrorClass(NamedTuple):
    """A class in an errors.py, and the messages with which it is raised."""

    module: str
    name: str
    bases: tuple[str, ...]
    about: str
    messages: set[tuple[str, str]]


def catalog(name: str = "") -> dict[str, ErrorClass]:
    """Classes by name: the class of this name, or all classes if `name` is empty. Empty: no such class."""
    classes = error_classes()
    if name:
        classes = {name: classes[name]} if name in classes else {}
    for path in _sources("*.py") if classes else ():
        text = path.read_text(encoding="utf-8")
        if "hint=" not in text or name not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                _read_messages(function, classes)
    return classes


def error_classes() -> dict[str, ErrorClass]:
    """All classes by name, without their messages, which take longer to read."""
    return {error.name: error for path in _sources("errors.py") for error in _classes(path)}


def _sources(pattern: str) -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob(pattern))


def _classes(path: Path) -> Iterator[ErrorClass]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    known = set(_BUILT_IN)
    for item in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(item, ast.ImportFrom) and (item.module or "").endswith("errors"):
            known |= {name.name for name in item.names}
        if not isinstance(item, ast.ClassDef):
            continue
        bases = tuple(base.id for base in item.bases if isinstance(base, ast.Name))
        if known & set(bases):
            known.add(item.name)
            yield ErrorClass(module, item.name, bases, ast.get_docstring(item) or "", set())


def _read_messages(function: ast.AST, classes: Mapping[str, ErrorClass]) -> None:
    """Enter each error that a function makes with a literal text."""
    texts = {
        item.targets[0].id: item.value
        for item in ast.walk(function)
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    }
    for call in ast.walk(function):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in classes):
            continue
        hint = next((word.value for word in call.keywords if word.arg == "hint"), None)
        if not call.args or hint is None:
            continue
        message, remedy = _text(call.args[0], texts), _text(hint, texts)
        if any(map(str.isalpha, message)) and any(map(str.isalpha, remedy)):
            classes[call.func.id].messages.add((message, remedy))


def _text(value: ast.expr, texts: Mapping[str, ast.expr], depth: int = 3) -> str:
    """Literal text of an expression, with GAP for computed parts."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, {}, 0) for part in parts)
        case ast.Call(func=ast.Name(id="install_extra"), args=[ast.Constant(value=str(extra))]):
            return f"`pip install -e '.[{extra}]'`"  # in a clone
        case ast.FormattedValue(value=ast.Call() as call):
            return _text(call, {}, 0)
        case ast.Name(id=name) if name in texts and depth:
            return _text(texts[name], texts, depth - 1)
    return GAP
