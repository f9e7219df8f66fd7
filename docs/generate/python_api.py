"""Page of the Python API: signatures and docstrings of the public names of the packages for programs."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, get_args, get_origin

import msgspec

from docs.generate import ROOT
from docs.generate.commands import help_text
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of, field_docs
from ringbuf import native

MODULES = ("brim", "brim.asyncio", "brim.errors", "brim.spark")
LINE_CHARACTERS = 100
_BETWEEN = re.compile(r", (?=[*/]|\w+(?:: |=))")  # arguments; all have annotations
_PACKAGES = {"brim", "bridge", "edge", "persistence", "ringbuf"}
_PROPERTIES = (property, cached_property, types.GetSetDescriptorType)
_IN_C = (types.MethodDescriptorType, types.ClassMethodDescriptorType)
_METHODS = (types.FunctionType, classmethod, staticmethod, *_IN_C)


def page() -> str:
    """Text of python.md."""
    parts = ["# Python API\n"]
    for name in MODULES:
        module = importlib.import_module(name)
        parts += [f"## {name}\n", help_text(doc_of(module, name)), *_module(module)]
    return "\n".join(parts)


def _module(module: types.ModuleType) -> Iterator[str]:
    values: list[str] = []
    for name in module.__all__:
        item, path = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.isclass(item) and name.islower():
            shown = _code(signature(item.__init__, name, item))
            yield f"### {path}\n\n{shown}\n{help_text(doc_of(item, name))}"
        elif inspect.isclass(item):
            yield from _class(item, name, path)
        elif inspect.isroutine(item):
            yield f"### {path}\n\n{_code(signature(item, name))}\n{help_text(doc_of(item, name))}"
        elif not inspect.ismodule(item):
            values.append(name)
    if values:
        yield f"### Values of {module.__name__}\n\n{', '.join(map(code, values))}\n"


def _class(cls: type, name: str, path: str) -> Iterator[str]:
    """Heading, constructor, docstring, fields, then methods and properties of a class."""
    init = inspect.getattr_static(cls, "__init__")
    if issubclass(cls, msgspec.Struct):
        heading = _generated(cls, name, _field_types(cls))
    elif inspect.isfunction(init) and not issubclass(cls, BaseException):
        heading = signature(init, name, cls)
    else:
        bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
        heading = f"{name}({bases})" if bases else name
    yield f"### {path}\n\n{_code(f'class {heading}')}\n{help_text(doc_of(cls, name))}"
    if issubclass(cls, enum.Enum):
        yield table(("Value", "Number"), ((code(member.name), str(member.value)) for member in cls))
        return
    if docs := field_docs(cls):
        yield table(("Field", "Meaning"), ((code(field), prose(text)) for field, text in docs.items()))
    bound = _bound(cls)
    for member, (item, owner) in _members(cls).items():
        doc = help_text(doc_of(item, f"{name}.{member}"))
        shown = "" if isinstance(item, _PROPERTIES) else f"{_code(signature(item, member, owner, bound))}\n"
        yield f"#### {name}.{member}\n\n{shown}{doc}"


def _members(cls: type) -> Mapping[str, tuple[Any, type]]:
    """Public methods and properties of a class and of its bases in these packages, each with its class."""
    members: dict[str, tuple[Any, type]] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.split(".")[0] in _PACKAGES]):
        members |= {name: (item, base) for name, item in vars(base).items() if not name.startswith("_")}
    return {name: pair for name, pair in members.items() if isinstance(pair[0], (*_METHODS, *_PROPERTIES))}


def _bound(cls: type) -> dict[str, str]:
    """Types that a class gives to the type variables of its bases, by their names."""
    bases = [base for base in getattr(cls, "__orig_bases__", ()) if get_args(base)]
    return {
        variable.__name__: re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(given))
        for base in bases
        for variable, given in zip(get_origin(base).__parameters__, get_args(base), strict=False)
    }


def signature(
    function: Any, name: str, owner: type | None = None, bound: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Name, arguments and result of a function as its source has them.

    `owner`: the class of a method; `bound`: the types of its type variables.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(function):
        assert owner is not None
        node: ast.stmt = _stubs()[owner, name]
    elif function.__code__.co_filename.startswith("<"):  # the __init__ of a dataclass
        return _generated(function, name, function.__annotations__)
    else:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = ast.unparse(node.args).removesuffix(", /")
    if owner is not None and not any(ast.unparse(line) == "staticmethod" for line in node.decorator_list):
        arguments = arguments.partition(", ")[2]
    returns = ast.unparse(node.returns) if node.returns and node.name != "__init__" else ""
    result = returns and f" -> {bound.get(returns, returns)}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return _wrapped(f"{prefix}{name}", arguments, result)


@cache
def _stubs() -> dict[tuple[type, str], ast.FunctionDef]:
    """Methods of the classes that are C, by class and name, from their stub."""
    tree = ast.parse((ROOT / "ringbuf" / "_ringbuf.pyi").read_text())
    classes = [(getattr(native, node.name), node) for node in tree.body if isinstance(node, ast.ClassDef)]
    return {(c, f.name): f for c, node in classes for f in node.body if isinstance(f, ast.FunctionDef)}


def _field_types(cls: type) -> dict[str, str]:
    """Types of the fields of a structure, as its source has them."""
    bases = [vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__)]
    return {name: text for base in bases for name, text in base.items()}


def _generated(function: Callable[..., object], name: str, types: Mapping[str, str]) -> str:
    """Signature of a constructor without source: of a dataclass or a structure."""
    shown = (
        f"{it.name}: {types[it.name]}{'' if it.default is it.empty else ' = ...'}"
        for it in inspect.signature(function).parameters.values()
        if it.name in types  # not `self`
    )
    return _wrapped(name, ", ".join(shown), "")


def _wrapped(name: str, arguments: str, result: str) -> str:
    line = f"{name}({arguments}){result}"
    if len(line) <= LINE_CHARACTERS:
        return line
    lines = "".join(f"    {argument},\n" for argument in _BETWEEN.split(arguments))
    return f"{name}(\n{lines}){result}"


def _code(text: str) -> str:
    return f"```\n{text}\n```\n"
