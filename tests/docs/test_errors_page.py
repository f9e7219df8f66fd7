"""The page of errors: each class and message of the source is on the page, with its remedy."""

import ast

import pytest

from bridge.errors import BridgeError
from docs.generate import errors
from edge.cli.error_catalog import ErrorClass, _read_messages
from edge.errors import EdgeError
from persistence.errors import LogError
from ringbuf.errors import RingError


@pytest.fixture(scope="module")
def text() -> str:
    """The page, as generated from the source."""
    return errors.page()


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(subclasses(below) for below in kind.__subclasses__()))


@pytest.mark.parametrize("tree", [EdgeError, BridgeError, LogError, RingError])
def test_every_class_of_an_error_tree_has_a_section(tree: type[Exception], text: str) -> None:
    wanted = {it for it in subclasses(tree) if it.__module__.split(".")[-1] == "errors"}
    assert [it.__name__ for it in wanted if f"`{it.__module__}.{it.__name__}`" not in text] == []


def test_a_message_stands_with_its_remedy(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert any("cannot listen on … port …" in line and "set host and port" in line for line in lines)
    assert len(lines) > 200


def test_texts_of_names_and_gaps_are_read() -> None:
    function = ast.parse(
        'def f(x):\n    text = f"bad {x}"\n    raise EdgeError(text, hint="mend " "x")\n'
        "    raise EdgeError(x, hint=x)\n"
    )
    error = ErrorClass("edge.errors", "EdgeError", ("Exception",), "", set())
    _read_messages(function, {"EdgeError": error})
    assert error.messages == {("bad …", "mend x")}
