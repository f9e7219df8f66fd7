"""The log of the process, for people and for machines."""

import io
import json
import logging

import pytest

from edge import logs
from edge.logs import pairs


@pytest.fixture
def output():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_says_when_how_grave_who_and_what(output):
    logs.configure("info", "text", output)
    logging.getLogger("edge.x").info("ring made %s", pairs(name="default-0", bytes=64, path="a b"))
    logging.getLogger("edge.x").debug("not shown")
    line = output.getvalue()
    assert line.endswith(' INFO    edge.x: ring made name=default-0 bytes=64 path="a b"\n')
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nFORGED line", r'"a\nFORGED line"'),
        ("\x1b[2J", r"\x1b[2J"),
        ('say "hi"', r'"say \"hi\""'),
        ("", '""'),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("a=b", '"a=b"'),
        ("plänt", "plänt"),
    ],
)
def test_other_peoples_text_cannot_act_or_forge(output, value, shown):
    logs.configure("info", "text", output)
    logging.getLogger("edge.x").info("client %s", pairs(id=value))
    assert output.getvalue().endswith(f"client id={shown}\n")
    logging.getLogger("edge.x").info(
        "client %s", value
    )  # and not through a message that forgot pairs() either
    assert output.getvalue().count("\n") == 2
    assert "\x1b" not in output.getvalue()


def test_for_machines_each_line_is_an_object_with_the_same_facts(output):
    logs.configure("warning", "json", output)
    logging.getLogger("edge.x").warning("cut %s", pairs(reason="a\nb"))
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("edge.x").exception("failed")
    first, second = map(json.loads, output.getvalue().splitlines())
    assert (first["level"], first["logger"]) == ("warning", "edge.x")
    assert first["message"].startswith("cut reason=")
    assert "ValueError: why" in second["exception"]


def test_a_traceback_follows_its_line(output):
    logs.configure("info", "text", output)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("edge.x").exception("failed")
    lines = output.getvalue().splitlines()
    assert lines[0].endswith("edge.x: failed")
    assert lines[-1] == "ValueError: why"
