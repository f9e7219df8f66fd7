"""Ends of sockets that are not read, and of epoll's memory, in the event loop (tests/c/hung_up_clients.c)."""

import subprocess
from pathlib import Path

import pytest

from tests.support.c_programs import LOOP, compiled
from tests.support.project import ROOT

MAIN = ROOT / "tests" / "c" / "hung_up_clients.c"
WRAPPED = ("-Wl,--wrap=epoll_ctl",)
MISTAKES = (
    (
        "mqtt/event_loop",
        "EPOLL_CTL_ADD, connection, connection->interest) != 0)\n"
        "        mq_connection_close(loop->engine, connection, MQ_CLOSE_MEMORY);\n    else",
        "EPOLL_CTL_ADD, connection, connection->interest) == 0)",
    ),
    ("mqtt/event_loop", "connection->stop == MQ_STOP_OUT && connection->hung_up", "false"),
    ("mqtt/accept", "            pause_accepting(loop, i, REST_MS, false);\n", ""),
)

pytestmark = pytest.mark.timeout(400)  # the first test compiles the engine


def outcome(directory: Path, planted: dict[str, list[tuple[str, str]]] | None = None) -> str:
    program = compiled(directory, MAIN, "-O1", link_flags=WRAPPED, sources=LOOP, planted=planted)
    return subprocess.run([program], capture_output=True, text=True, check=False).stderr


def test_clients_that_hung_up_and_listeners_without_memory_do_not_stay(tmp_path: Path) -> None:
    assert outcome(tmp_path) == ""


@pytest.mark.parametrize(("stem", "right", "wrong"), MISTAKES)
def test_planted_mistakes_are_found(tmp_path: Path, stem: str, right: str, wrong: str) -> None:
    assert outcome(tmp_path, {stem: [(right, wrong)]}).startswith("not so: ")
