"""brim sessions, against a broker that runs: lists, and removes one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.config.directories import control_socket
from edge.local.protocol import RemoveSession
from edge.mqtt import Connect, Publish, Subscribe, Subscription, encode
from edge.observe.status_report import CLIENTS_PAGE, CLIENTS_SHOWN
from edge.rpc.protocol import encode as request_bytes
from tests.support.abuse import connected
from tests.support.brim_process import BrimProcess
from tests.support.children import Child


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        yield broker


def brim(capsys: pytest.CaptureFixture[str], broker: BrimProcess, *words: str) -> tuple[int, str, str]:
    status = main(["sessions", *words, "--runtime-dir", str(broker.runtime_dir)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_sessions_are_listed_and_removed(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert brim(capsys, broker) == (0, "", "")
    for n in range(300):  # two pages
        connected(broker.port, f"away-{n:03}", clean_start=False).close()
    with connected(broker.port, "plc-1", clean_start=False) as client:
        client.sendall(encode(Subscribe(1, (Subscription("a/#", 1),))))
        assert client.recv(5)
        status, out, _ = brim(capsys, broker, "ls")
        assert status == 0
        assert len(out.splitlines()) == 301
        assert "plc-1: connected, tcp 127.0.0.1:" in out
        assert "1 subscriptions, 0 queued, 0 in flight" in out
        rows = [json.loads(line) for line in brim(capsys, broker, "ls", "--json")[1].splitlines()]
        assert sorted(row["client_id"] for row in rows) == sorted(
            ["plc-1", *(f"away-{n:03}" for n in range(300))]
        )
        assert brim(capsys, broker, "rm", "plc-1") == (0, "session of plc-1 removed\n", "")
        assert client.recv(1) == b""  # MQTT 3.1.1 has no word for it
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(encode(Connect("plc-1", clean_start=False)))
        assert client.recv(4) == b"\x20\x02\x00\x00"  # no session is present


def test_what_cannot_be_removed_is_explained(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = brim(capsys, broker, "rm", "nobody-knows")
    assert (status, "client 'nobody-knows' has no session" in error) == (Exit.REFUSED, True)
    assert brim(capsys, broker, "rm")[0] == Exit.USAGE
    broker.stop()
    assert brim(capsys, broker, "rm", "x")[0] == Exit.CANNOT_CONNECT


FOREIGN = """
import os, socket, sys
os.setuid(12345)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
peer.send(bytes.fromhex(sys.argv[2]))
print(peer.recv(1 << 16))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
async def test_another_user_may_not_remove_a_session(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    connected(broker.port, "plc-1", clean_start=False).close()
    broker.runtime_dir.chmod(0o777)
    path = control_socket(broker.runtime_dir)
    path.chmod(0o777)
    with Child(FOREIGN, path, request_bytes(RemoveSession("plc-1")).hex()) as foreign:
        assert "may not remove sessions" in await asyncio.to_thread(foreign.line)
    assert "plc-1: away" in brim(capsys, broker)[1]


def test_the_status_shows_clients_in_trouble_and_counts_all_others(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are collected a page at a time."""
    for n in range(CLIENTS_PAGE + 50):
        connected(broker.port, f"away-{n:04}", clean_start=False).close()
    with connected(broker.port, "late", clean_start=False) as client:
        client.sendall(encode(Subscribe(1, (Subscription("a/#", 1),))))
        assert client.recv(5)
    with connected(broker.port, "sender") as client:
        client.sendall(encode(Publish("a/1", b"x", 1, packet_id=1)))
        assert client.recv(4)
        assert main(["status", "--json", "--runtime-dir", str(broker.runtime_dir)]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["clients"][0]["client_id"] == "late"
    assert len({it["client_id"] for it in status["clients"]}) == CLIENTS_SHOWN
    assert status["clients_not_shown"] == CLIENTS_PAGE + 52 - CLIENTS_SHOWN
