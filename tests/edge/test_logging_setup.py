"""The log of the process, for people and for machines."""

import io
import json
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from edge import logging_setup
from edge.cli import standard_streams
from edge.config.limits import DefaultSize
from edge.logging_setup import pairs
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def output():
    return io.StringIO()


def test_a_line_says_when_how_grave_who_and_what(output):
    logging_setup.configure("info", "text", output)
    logging.getLogger("edge.x").info("ring created %s", pairs(name="default-0", s=0.1 + 0.2, path="a b"))
    logging.getLogger("edge.x").debug("not shown")
    line = output.getvalue()
    assert line.endswith(' INFO    edge.x: ring created name=default-0 s=0.3 path="a b"\n')
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\nFORGED line", r'"a\nFORGED line"'),
        ("\x1b[2J", r"\x1b[2J"),
        ('say "hi"', r'"say \"hi\""'),
        ("", '""'),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u061cgnp.exe", r"\u061cgnp.exe"),
        ("a=b", '"a=b"'),
        ("plänt", "plänt"),
    ],
)
def test_other_peoples_text_cannot_act_or_forge(output, value, shown):
    logging_setup.configure("info", "text", output)
    logging.getLogger("edge.x").info("client %s", pairs(id=value))
    assert output.getvalue().endswith(f"client id={shown}\n")
    logging.getLogger("edge.x").info(
        "client %s", value
    )  # and not through a message that forgot pairs() either
    assert output.getvalue().count("\n") == 2
    assert "\x1b" not in output.getvalue()


def test_for_machines_each_line_is_an_object_with_the_same_facts(output):
    logging_setup.configure("warning", "json", output)
    logging.getLogger("edge.x").warning("cut %s", pairs(reason="a\nb"))
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("edge.x").exception("failed")
    first, second = map(json.loads, output.getvalue().splitlines())
    assert (first["level"], first["logger"]) == ("warning", "edge.x")
    assert first["message"].startswith("cut reason=")
    assert "ValueError: why" in second["exception"]
    assert first["fields"] == {"reason": "a\nb"}
    assert "fields" not in second


def test_fields_keep_numbers_and_leave_no_object_out(output):
    logging_setup.configure("info", "json", output)
    facts = logging_setup.pairs(
        count=DefaultSize(3), share=0.5, on=True, none=None, path=Path("/a"), big=1 << 80, bad="\udcff"
    )
    logging.getLogger(logging_setup.AUDIT).info("client refused %s", facts)
    (line,) = map(json.loads, output.getvalue().splitlines())
    assert line["logger"] == "brim.audit"
    assert {key: line["fields"][key] for key in ("count", "share", "on", "none", "path")} == {
        "count": 3, "share": 0.5, "on": True, "none": None, "path": "/a",
    }  # fmt: skip


@pytest.mark.parametrize("form", logging_setup.FORMATS)
def test_a_client_cannot_make_a_line_long(output, form):
    """A client that is refused chooses 64 KiB for its identifier, and again for its user."""
    logging_setup.configure("info", form, output)
    facts = logging_setup.pairs(client="c" * 65_535, peer="127.0.0.1:1")
    logging.getLogger(logging_setup.AUDIT).info("client refused %s", facts)
    (line,) = output.getvalue().splitlines()
    assert len(line) < 3 * logging_setup.VALUE_MAX
    assert "ccc…" in line
    assert "127.0.0.1:1" in line


def test_a_traceback_follows_its_line(output):
    logging_setup.configure("info", "text", output)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("edge.x").exception("failed")
    lines = output.getvalue().splitlines()
    assert lines[0].endswith("edge.x: failed")
    assert lines[-1] == "ValueError: why"


def test_lines_of_one_kind_are_limited_and_the_rest_are_counted(output, monkeypatch):
    logging_setup.configure("info", "text", output)
    log, clock = logging.getLogger("edge.x"), [1_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    monkeypatch.setattr("time.time_ns", lambda: int(clock[0] * 1e9))  # what newer Pythons ask
    for n in range(logging_setup.LINES_BURST + 7):
        log.info("refused %s", pairs(n=n))
    log.info("another kind")
    clock[0] += 1
    log.info("refused %s", pairs(n="last"))
    lines = output.getvalue().splitlines()
    assert len(lines) == logging_setup.LINES_BURST + 2
    assert lines[-2].endswith("another kind")
    assert lines[-1].endswith("refused n=last lines_left_out=7")
    for _ in range(1_000):
        clock[0] += 0.1
        log.info("refused %s", pairs(n="more"))
    more = len(output.getvalue().splitlines()) - len(lines)
    assert more <= 101 * logging_setup.LINES_PER_S


def test_the_audit_log_takes_a_burst_and_then_a_rate_that_fills_no_disk(output, monkeypatch):
    logging_setup.configure("info", "text", output)
    audit, clock = logging.getLogger(logging_setup.AUDIT), [1_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    monkeypatch.setattr("time.time_ns", lambda: int(clock[0] * 1e9))
    for _ in range(10 * 3_600):
        audit.info("client refused %s", pairs(peer="10.0.0.7"))
        clock[0] += 0.1
    lines = output.getvalue().splitlines()
    assert len(lines) <= logging_setup.AUDIT_BURST + 3_600 * logging_setup.AUDIT_PER_S + 1
    assert lines[-1].endswith("lines_left_out=19")
    clock[0] -= 3_600
    audit.info("client refused %s", pairs(peer="10.0.0.7"))
    assert len(output.getvalue().splitlines()) == len(lines)  # a clock that is set back gives no lines


def test_a_logging_thread_does_not_wait_for_a_reader(output):
    reading, writing = os.pipe()
    done = threading.Event()

    def talk():
        for n in range(20_000):
            logging.getLogger(f"edge.x{n % 900}").info("a line %s", pairs(n=n))
        done.set()

    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        logging_setup.configure("info", "text", stream)
        with logging_setup.detached():
            threading.Thread(target=talk).start()
            assert done.wait(PATIENCE_S), "the logging thread waits for a pipe that is not read"
            text = reader.readline()
            emptying = threading.Thread(target=lambda: [None for _ in reader])
            emptying.start()
        logging.getLogger().handlers.clear()
        stream.close()
        emptying.join(PATIENCE_S)
    assert text.endswith("a line n=0\n")


def test_lines_wait_for_a_reader_that_pauses(monkeypatch):
    monkeypatch.setattr(standard_streams._LossyFile, "wait_ms", 1)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filler = os.write(writing, bytes(1 << 20))
    os.set_blocking(writing, True)
    stream = standard_streams._lossy(writing, "utf-8")
    logging_setup.configure("info", "text", stream)
    with open(reading, "rb") as reader:
        with logging_setup.detached():
            for n in range(20):
                logging.getLogger(f"edge.x{n}").info("a line %s", pairs(n=n))
            time.sleep(0.2)  # longer than all lines wait in a write
            assert reader.read(filler) == bytes(filler)
            lines = [reader.readline() for _ in range(20)]
        logging.getLogger().handlers.clear()
        stream.close()
        os.close(writing)
        assert [line.rpartition(b"n=")[2] for line in lines] == [b"%d\n" % n for n in range(20)]
        assert reader.read() == b""
