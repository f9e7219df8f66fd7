"""Page of errors: each class with its meaning, and each message with its remedy, from the source.

Owns the reading of calls that make an error. A text that is computed stands as an ellipsis. The name of a
class is stable: programs catch it, and people search for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from docs.generate.markdown import code, prose, table

__all__ = ["page"]

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "edge": "Broker, clients and commands", "bridge": "Bridges, sinks and Spark",
    "persistence": "Segment log", "ringbuf": "Rings in shared memory",
}  # fmt: skip
GAP = "…"
_HEADER = ("Message", "Remedy")
_BUILT_IN = frozenset({"Exception", "OSError"})


class ErrorClass(NamedTuple):
    """A class in an errors.py, and the messages with which it is raised."""

    module: str
    name: str
    bases: tuple[str, ...]
    about: str
    messages: set[tuple[str, str]]


def page() -> str:
    """Text of errors.md."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _sources()}
    classes = {error.name: error for path, tree in trees.items() for error in _classes(path, tree)}
    for tree in trees.values():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                _read_messages(function, classes)
    parts = [
        "# Errors\n",
        "Every error of a command or a library has a class, a message and, if somebody can act, a remedy. "
        f"Commands print the message and the remedy. {GAP} stands for a value.\n",
    ]
    for package, title in PACKAGES.items():
        parts.append(f"## {title}\n")
        parts += [_section(it) for it in classes.values() if it.module.split(".")[0] == package]
    return "\n".join(parts)


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def _classes(path: Path, tree: ast.Module) -> Iterator[ErrorClass]:
    if path.name != "errors.py":
        return
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    known = set(_BUILT_IN)
    for item in tree.body:
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
        case ast.Name(id=name) if name in texts and depth:
            return _text(texts[name], texts, depth - 1)
    return GAP


def _section(error: ErrorClass) -> str:
    above = ", ".join(code(base) for base in error.bases)
    lines = [
        f"### {error.name}\n",
        f"{code(f'{error.module}.{error.name}')}, a {above}. {prose(error.about)}\n",
    ]
    if error.messages:
        rows = [(prose(message), prose(remedy)) for message, remedy in sorted(error.messages)]
        lines.append(table(_HEADER, rows))
    return "\n".join(lines)
