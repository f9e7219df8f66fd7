"""The client of a control socket."""

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from edge.errors import InvalidArgument, NoAnswer
from edge.local.protocol import PROTOCOL, CancelDelayed, Session
from edge.rpc import client
from edge.rpc.client import RpcClient
from edge.rpc.protocol import encode


@pytest.fixture
def listening(tmp_path: Path):
    """A socket whose queue is full: one connection waits, and none was accepted."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first,
    ):
        listening.bind(str(tmp_path / "some.sock"))
        listening.listen(0)
        listening.settimeout(2)
        first.connect(str(tmp_path / "some.sock"))
        yield listening


def test_a_client_waits_for_a_server_that_has_many_connections_to_accept(listening, tmp_path: Path) -> None:
    def accept_both() -> None:
        with suppress(TimeoutError):
            for _ in range(2):
                listening.accept()[0].close()

    accepting = threading.Timer(0.05, accept_both)
    accepting.start()
    try:
        RpcClient(PROTOCOL, tmp_path / "some.sock").close()
    finally:
        accepting.join()


def test_a_server_that_accepts_nothing_is_not_taken_for_none(
    listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECT_MAX_MS", 1)
    with pytest.raises(NoAnswer, match="the broker accepts no connection now"):
        RpcClient(PROTOCOL, tmp_path / "some.sock")


def test_the_credentials_of_a_peer_are_read_as_the_kernel_lays_them_out() -> None:
    assert client._CREDENTIALS.size == struct.calcsize("3i")


@pytest.mark.parametrize("timeout_s", [0.001, 0])
def test_the_timeout_of_a_client_limits_its_connect_too(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    monkeypatch.setattr(client, "CONNECT_MAX_MS", 600_000)
    refused = threading.Event()

    def accept_at_last() -> None:
        if not refused.wait(5):
            listening.accept()

    accepting = threading.Thread(target=accept_at_last)
    accepting.start()
    try:
        with pytest.raises(NoAnswer, match="the broker accepts no connection now"):
            RpcClient(PROTOCOL, tmp_path / "some.sock", timeout_s=timeout_s)
    finally:
        refused.set()
        accepting.join()


def test_a_number_that_does_not_fit_a_request_is_an_error_with_the_limits() -> None:
    with pytest.raises(InvalidArgument, match="allowed: -2\\^63 to 2\\^64-1"):
        encode(CancelDelayed((1 << 64,)))


def test_an_argument_of_a_command_that_is_not_utf8_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidArgument, match=r"'press\\udcff' is not UTF-8"):
        encode(Session(os.fsdecode(b"press\xff")))
