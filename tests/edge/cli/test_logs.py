"""brim logs, against a broker that runs."""

import json
import os
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.local.protocol import ANSWER_MAX_BYTES, Connection, Disconnect, Done, LogLines, LogPage
from edge.rpc.protocol import encode as request_bytes
from tests.edge.cli.test_topics import brim
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild

HOSTILE = "plc\x1b[2J\nFORGED"


def disconnect(broker: BrimProcess, *clients: str) -> None:
    """Have lines logged that name the clients."""
    with Connection(broker.runtime_dir) as connection:
        for client in clients:
            with connected(broker.port, client, V5):
                connection.request(Disconnect(client), Done)


def test_the_last_lines_are_shown_by_level_and_text(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    disconnect(broker, HOSTILE)
    status, out, _ = brim(capsys, broker, "logs", "--text", "FORGED", "-n", "1")
    assert (status, out.count("\n"), "\x1b" in out) == (0, 1, False)
    assert r"plc\x1b[2J\nFORGED" in out
    assert out in broker.log_until("disconnected by an operator")
    assert " ready edge_id=here" in brim(capsys, broker, "logs", "-n", "1000")[1]
    assert brim(capsys, broker, "logs", "--level", "error") == (0, "", "")
    rows = [json.loads(line) for line in brim(capsys, broker, "logs", "--json")[1].splitlines()]
    assert rows[-1]["fields"] == {"client": HOSTILE, "uid": os.getuid(), "pid": os.getpid()}
    assert [row["number"] for row in rows] == sorted({row["number"] for row in rows})


def test_new_lines_follow(broker: BrimProcess) -> None:
    with ModuleChild("edge", "logs", "-f", "-n", "1", "--runtime-dir", broker.runtime_dir) as child:
        child.lines_until(" INFO ")
        disconnect(broker, "follows-1")
        assert "by an operator client=follows-1" in child.lines_until("by an operator")[-1]
        child.stop()


def test_many_lines_come_in_pages_that_fit_into_an_answer(broker: BrimProcess) -> None:
    disconnect(broker, *(f"{number:04}" + "\u00e4" * 1_500 for number in range(40)))
    with Connection(broker.runtime_dir) as connection:
        seen, last, more, pages = [], 0, True, 0
        while more:
            page = connection.request(LogLines(last), LogPage)
            assert len(request_bytes(page)) <= ANSWER_MAX_BYTES
            seen += [line["number"] for line in page.lines]
            last, more, pages = page.last, page.more, pages + 1
        assert connection.request(LogLines(last), LogPage).lines == ()
    assert pages > 1
    assert seen == list(range(seen[0], seen[-1] + 1))


def test_without_a_broker_the_error_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--runtime-dir", str(tmp_path)]) == Exit.CANNOT_CONNECT
    assert "no broker" in capsys.readouterr().err
