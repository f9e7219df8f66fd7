"""brim top, tap and streams, against a broker that runs; brim top also on a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit
from edge.mqtt import Properties, Publish, Subscribe, Subscription, encode
from ringbuf import WakeupThread
from tests.edge.cli.test_clients import brim as brim_clients
from tests.edge.cli.test_topics import brim, publish
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S

SETTINGS = "[[stream]]\nname = 'fast'\ntopics = ['fast/#']\npartitions = 2\nwhen_full = 'reject'\n"
HOSTILE = "a/\x1b[2J\u202e"


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS) as broker:
        yield broker
    WakeupThread.of_process().close()


def test_a_sample_has_rates_rings_bridges_and_losses(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(broker.port, "away", V5, properties=Properties(session_expiry_interval_s=99)) as client:
        client.sendall(encode(Subscribe(1, (Subscription("fast/#", 1),)), V5))
        assert client.recv(9)
    publish(broker, *(Publish("fast/a", b"x") for _ in range(50)))
    status, out, _ = brim(capsys, broker, "top", "--json", "--count", "2", "--interval", "10ms", "--clients")
    assert status == 0
    first, second = map(json.loads, out.splitlines())
    assert second["uptime_s"] >= first["uptime_s"]
    assert {ring["ring"] for ring in first["rings"]} == {"fast-0", "fast-1", "default-0"}
    assert sum(ring["end_offset"] for ring in first["rings"] if ring["stream"] == "fast") == 50
    assert [bridge["bridge"] for bridge in first["bridges"]] == ["lake"]
    assert {row["client_id"]: row["queued"] for row in first["clients"]}["away"] == 50
    status, out, _ = brim(capsys, broker, "top")  # no terminal: one sample
    assert status == 0
    assert "fast-0" in out
    assert "lost nothing" in out
    assert "lake" not in brim(capsys, broker, "top", "--once", "--filter", "fast")[1].splitlines()[-1]
    out = brim(capsys, broker, "top", "--once", "--clients", "--sort", "queued")[1]
    assert "away" in out.splitlines()[6]
    assert brim(capsys, broker, "top", "--sort", "no")[0] == Exit.USAGE


def test_streams_have_their_rings_and_readers(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(broker, Publish("fast/a", bytes(1_000)))
    rows = [json.loads(line) for line in brim(capsys, broker, "streams", "--json")[1].splitlines()]
    assert [(row["ring"], row["when_full"], row["topics"]) for row in rows] == [
        ("fast-0", "reject", ["fast/#"]), ("fast-1", "reject", ["fast/#"]), ("default-0", "overwrite", ["#"]),
    ]  # fmt: skip
    assert sum(row["end_offset"] for row in rows if row["stream"] == "fast") == 1
    assert "memory" in brim(capsys, broker, "streams")[1]
    readers = [
        json.loads(line) for line in brim(capsys, broker, "streams", "--readers", "--json")[1].splitlines()
    ]
    assert all(reader["lost"] == 0 for reader in readers)


class Terminal:
    """`brim` with a terminal of its own, which records what it prints."""

    def __init__(self, *words: str, columns: int = 100, lines: int = 24) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, lines)
        environment = {**os.environ, "TERM": "xterm"}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        command = [sys.executable, "-m", "edge", *words]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        """Change the size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, wanted: str) -> str:
        """Read until `wanted`, and return what was read, without it."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.text:
            assert select.select([self.master], [], [], max(deadline - time.monotonic(), 0))[0], self.text
            try:
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")
            except OSError:
                pytest.fail(f"it has ended: {self.text}")
        before, _, self.text = self.text.partition(wanted)
        return before

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def close(self) -> int:
        """Exit status, once it has ended by itself."""
        reader = threading.Thread(target=self._drain)
        reader.start()
        status = self.process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
        os.close(self.master)
        return status

    def _drain(self) -> None:
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    os.read(self.master, 1 << 16)
                except OSError:
                    return


def test_the_live_view_obeys_keys_resizes_and_waits_for_a_broker(broker: BrimProcess) -> None:
    connected(broker.port, HOSTILE, V5, properties=Properties(session_expiry_interval_s=99)).close()
    top = Terminal("top", "--interval", "100ms", "--runtime-dir", str(broker.runtime_dir))
    try:
        top.until("\x1b[?1049h")
        top.until("fast-0")
        top.press("c")
        shown = top.until(r"a/\x1b[2J\u202e")
        assert "\u202e" not in shown
        assert "\x1b[2J" not in shown.partition("\x1b[H")[2]  # only the view itself clears the screen
        top.press("c/fast-1\r")
        top.until("every 0.1 s  /fast-1")
        top.until("fast-1")
        top.resize(30, 5)
        top.process.send_signal(signal.SIGWINCH)
        top.until("\x1b[H")
        lines = top.until("\x1b[J").split("\x1b[K")
        while len(lines) > 6:  # a frame of the old size may be under way
            top.until("\x1b[H")
            lines = top.until("\x1b[J").split("\x1b[K")
        assert max(len(line.strip("\r\n")) for line in lines) <= 30
        top.resize(120, 40)
        top.process.send_signal(signal.SIGWINCH)
        broker.kill()
        top.until("waiting for a broker")
        broker.start()
        top.until("fast-1")
        top.press("q")
        top.until("\x1b[?1049l")
        assert top.close() == 0
    finally:
        top.process.kill()
        top.process.wait()


def test_the_help_is_readable_on_a_console_without_a_size() -> None:
    help_text = Terminal("top", "--help", columns=0, lines=0)
    try:
        help_text.until("usage: brim top [-h] [--once]")
    finally:
        help_text.process.kill()
        help_text.process.wait()
        os.close(help_text.master)


def test_messages_are_shown_as_they_pass(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    done = threading.Event()

    def publish_on() -> None:
        properties = Properties(content_type="text/plain", user=(("who", "\x1b[31m"),))
        while not done.wait(0.02):
            publish(
                broker,
                Publish("fast/a", b"\x1b[2J\xff", retain=True, properties=properties),
                Publish("other", b"plain"),
            )

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        out = brim(capsys, broker, "tap", "fast/#", "-C", "1")[1]
        assert "QoS 1R" in out
        assert r"content_type=text/plain" in out
        assert r"\x1b[2J\xff" in out
        assert "\x1b" not in out
        assert brim(capsys, broker, "tap", "--payload", "hex", "-C", "1", "--stream", "fast")[1].endswith(
            "1b 5b 32 4a ff\n"
        )
        status, _, error = brim(capsys, broker, "tap", "--stream", "fats", "-W", "1s")
        assert (status, error.splitlines()[0]) == (Exit.USAGE, "brim tap: there is no stream 'fats'")
        row = json.loads(brim(capsys, broker, "tap", "--retained", "--json", "-C", "1")[1])
        assert (row["topic"], row["size_bytes"], row["retain"], row["qos"]) == ("fast/a", 5, True, 1)
        assert row["properties"]["content_type"] == "text/plain"
        assert row["age_s"] >= 0
        assert brim(capsys, broker, "tap", "--qos", "2", "-W", "200ms")[0] == Exit.TIMEOUT
        with connected(broker.port, "plc", V5) as client:
            client.sendall(encode(Subscribe(1, (Subscription("$share/g/oth+r/#".replace("+", "e"), 0),)), V5))
            assert client.recv(9)
            row = json.loads(brim(capsys, broker, "tap", "--client", "plc", "--json", "-C", "1")[1])
        assert row["topic"] == "other"
        words = ("tap", "--rate", "--interval", "500ms", "-C", "1", "--json")
        rates = {row["topic"]: row for row in map(json.loads, brim(capsys, broker, *words)[1].splitlines())}
        assert set(rates) == {"fast/a", "other"}
        assert all(row["rate"] > 0 and row["count"] > 0 for row in rates.values())
    finally:
        done.set()
        publisher.join()
    assert brim(capsys, broker, "tap", "--client", "nobody")[0] == Exit.REFUSED
    assert brim(capsys, broker, "tap", "a", "--client", "plc")[0] == Exit.USAGE
    assert brim_clients(capsys, broker, "--connected")[0] == 0


def test_a_broker_that_stops_does_not_end_a_tap(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rings stay, and the next broker continues them."""

    def restart() -> None:
        broker.kill()
        broker.start()
        publish(broker, Publish("after", b"1"))

    restarting = threading.Timer(0.5, restart)
    restarting.start()
    try:
        status = main(["tap", "after", "-C", "1", "-W", "30", "--runtime-dir", str(broker.runtime_dir)])
    finally:
        restarting.join()
    assert status == 0
    assert "after" in capsys.readouterr().out
