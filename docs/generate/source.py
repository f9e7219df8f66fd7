"""Descriptions in source that Python drops: the string literals below the fields of a class."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping

from docs.generate import MissingDescription


def field_docs(cls: type) -> Mapping[str, str]:
    """The string below each annotated field or assigned name of `cls`, by name; {} for a class in C."""
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except OSError:
        return {}
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        names = [field.target] if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [])
        match below:
            case ast.Expr(value=ast.Constant(value=str(text))):
                docs |= {name.id: inspect.cleandoc(text) for name in names if isinstance(name, ast.Name)}
    return docs


def doc_of(item: object, name: str) -> str:
    """The docstring of `item` itself. Raises MissingDescription."""
    text = inspect.cleandoc(getattr(item, "__doc__", None) or "")
    if not text:
        raise MissingDescription(f"{name} has no docstring; write one")
    return text
