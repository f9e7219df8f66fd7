"""brim clients, against a broker that runs: lists, shows, disconnects and forgets."""

import asyncio
import json
import os
import socket
import time

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.config.directories import control_socket
from edge.local.protocol import Disconnect, Message, RemoveSession
from edge.mqtt import Connect, Properties, Publish, Subscribe, Subscription, Will, encode
from edge.observe.status_report import CLIENTS_PAGE, CLIENTS_SHOWN
from edge.rpc.protocol import encode as request_bytes
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.children import Child


def brim(capsys: pytest.CaptureFixture[str], broker: BrimProcess, *words: str) -> tuple[int, str, str]:
    status = main(["clients", *words, "--runtime-dir", str(broker.runtime_dir)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def names(listing: str) -> list[str]:
    """First column of a table without its heading."""
    return [line.split()[0] for line in listing.splitlines()[1:]]


def test_clients_are_listed_and_forgotten(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(brim(capsys, broker)[1]) == []
    for n in range(300):  # two pages
        connected(broker.port, f"away-{n:03}", clean_start=False).close()
    with connected(broker.port, "plc-1", clean_start=False) as client:
        client.sendall(encode(Subscribe(1, (Subscription("a/#", 1),))))
        assert client.recv(5)
        status, out, _ = brim(capsys, broker, "ls")
        assert status == 0
        assert names(out) == [*(f"away-{n:03}" for n in range(300)), "plc-1"]
        assert names(brim(capsys, broker, "--sort", "subscriptions", "--limit", "1")[1])[0] == "plc-1"
        assert "and 300 more" in brim(capsys, broker, "--sort", "subscriptions", "--limit", "1")[1]
        assert names(brim(capsys, broker, "ls", "--connected")[1]) == ["plc-1"]
        assert names(brim(capsys, broker, "ls", "away-00*", "plc")[1]) == [
            *(f"away-00{n}" for n in range(10)), "plc-1",
        ]  # fmt: skip
        rows = {it["client_id"]: it for it in map(json.loads, brim(capsys, broker, "--json")[1].splitlines())}
        assert len(rows) == 301
        row = rows["plc-1"]
        assert (row["protocol"], row["keep_alive_s"], row["subscriptions"]) == ("3.1.1", 0, 1)
        assert row["address"].startswith("127.0.0.1:")
        assert rows["away-000"]["protocol"] is None
        assert rows["away-000"]["since_s"] <= row["since_s"] <= time.time()
        assert brim(capsys, broker, "forget", "plc-1") == (0, "session of plc-1 removed\n", "")
        assert client.recv(1) == b""  # MQTT 3.1.1 has no word for it
    with socket.create_connection(("127.0.0.1", broker.port)) as client:
        client.sendall(encode(Connect("plc-1", clean_start=False)))
        assert client.recv(4) == b"\x20\x02\x00\x00"  # no session is present


def test_a_client_is_shown_and_kicked(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    options = Properties(session_expiry_interval_s=3600)
    fields = {"properties": options, "will": Will("gone/plc", b"x", 1), "username": "u"}
    with connected(broker.port, "plc", V5, **fields) as client:
        wanted = (Subscription("a/#", 1, no_local=True), Subscription("$share/g/b", 2))
        client.sendall(encode(Subscribe(1, wanted), V5))
        assert client.recv(100)
        out = brim(capsys, broker, "show", "plc")[1]
        for text in ("connected by MQTT 5", "QoS 1, no local  a/#", "QoS 2  $share/g/b", "gone/plc", "1 h"):
            assert text in out
        row = json.loads(brim(capsys, broker, "show", "plc", "--json")[1])
        assert (row["username"], row["expiry_s"], row["will"]["qos"]) == ("u", 3600, 1)
        assert row["filters"][0] == {"filter": "a/#", "qos": 1, "no_local": True}
        assert brim(capsys, broker, "kick", "plc") == (0, "client plc is disconnected\n", "")
        assert client.recv(4) == b"\xe0\x01\x98"  # DISCONNECT, administrative action
        assert client.recv(1) == b""
    status, _, error = brim(capsys, broker, "kick", "plc")
    assert (status, "has no connection" in error) == (Exit.REFUSED, True)
    row = json.loads(brim(capsys, broker, "ls", "--away", "--json")[1])
    assert (row["client_id"], row["subscriptions"]) == ("plc", 2)


def test_a_session_with_more_filters_than_an_answer_has_room_for_is_shown(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(broker.port, "plc", clean_start=False) as client:
        for n in range(1_000):
            client.sendall(encode(Subscribe(1, (Subscription(f"{n:04}/{'x' * 800}", 1),))))
            assert client.recv(5)
    row = json.loads(brim(capsys, broker, "show", "plc", "--json")[1])
    assert row["subscriptions"] == 1_000
    assert len(row["filters"]) + row["filters_not_shown"] == 1_000
    assert len(row["filters"]) > 100


def test_clients_with_the_longest_names_are_listed_shown_and_kicked(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their texts would not fit one answer of the control socket."""
    name = "c" * 65_535
    user, will = "u" * 65_535, Will("t" * 65_535, b"x")
    with (
        connected(broker.port, name, username=user, will=will),
        connected(broker.port, "plc", username=user, will=will),
    ):
        rows = [json.loads(line) for line in brim(capsys, broker, "--json")[1].splitlines()]
        assert {row["client_id"] for row in rows} == {name, "plc"}
        row = json.loads(brim(capsys, broker, "show", name, "--json")[1])
        assert (row["client_id"], row["username"][-2:], row["will"]["topic"][-2:]) == (name, "u…", "t…")
        assert main(["status", "--json", "--runtime-dir", str(broker.runtime_dir)]) == 0
        status = json.loads(capsys.readouterr().out)
        assert (len(status["clients"]), status["shortened"]) == (2, [])
        assert brim(capsys, broker, "kick", name)[0] == 0
    broker.stop()


def test_hostile_identifiers_do_not_reach_the_terminal(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[2J\u202e\x9b31m"
    connected(broker.port, name, V5, properties=Properties(session_expiry_interval_s=9)).close()
    for words in (("ls",), ("show", name), ("kick", name), ("forget", name)):
        _, out, error = brim(capsys, broker, *words)
        assert r"a\x1b[2J" in out + error
        assert not set("\x1b\x9b\u202e") & set(out + error)


def test_what_cannot_be_removed_is_explained(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = brim(capsys, broker, "forget", "nobody-knows")
    assert (status, "client 'nobody-knows' has no session" in error) == (Exit.REFUSED, True)
    assert brim(capsys, broker, "kick")[0] == Exit.USAGE
    assert main(["sessions", "rm", "x", "--runtime-dir", str(broker.runtime_dir)]) == Exit.REFUSED
    broker.stop()
    assert brim(capsys, broker, "kick", "x")[0] == Exit.CANNOT_CONNECT


FOREIGN = """
import os, socket, sys
os.setuid(12345)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(sys.argv[1])
peer.send(bytes.fromhex(sys.argv[2]))
print(peer.recv(1 << 16))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
@pytest.mark.parametrize("request_", [RemoveSession("plc-1"), Disconnect("plc-1")])
async def test_another_user_may_neither_kick_nor_forget(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str], request_: Message
) -> None:
    with connected(broker.port, "plc-1", clean_start=False):
        broker.runtime_dir.chmod(0o777)
        path = control_socket(broker.runtime_dir)
        path.chmod(0o777)
        with Child(FOREIGN, path, request_bytes(request_).hex()) as foreign:
            assert "may not disconnect clients or remove sessions" in await asyncio.to_thread(foreign.line)
        assert names(brim(capsys, broker, "--connected")[1]) == ["plc-1"]


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


def test_a_tenant_that_does_not_exist_is_an_error(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = brim(capsys, broker, "ls", "--tenant", "nope")
    assert (status, out) == (Exit.USAGE, "")
    assert err == "brim clients: there is no tenant 'nope'\n  leave --tenant out: the broker has none\n"
