"""`brim pub` and `brim sub` as processes, against mosquitto and against a broker that says no."""

import argparse
import asyncio
import base64
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import edge.client
from edge.cli import pub, sub
from edge.cli.exit_status import Exit
from edge.mqtt import ReasonCode, Version
from edge.terminal_escape import escaped, escaped_payload
from tests.support.mosquitto import BINARY, Mosquitto, running
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.scripted_broker import scripted

needs_mosquitto = pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")

BRIM = "import sys; from edge.cli import main; sys.exit(main())"
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(tmp_path_factory.mktemp("mosquitto"), "max_queued_messages 10000") as started:
        yield started


def command(verb: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", BRIM, verb, *map(str, arguments)]


def brim(verb: str, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(verb, *arguments), input=stdin, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False
    )


class Subscriber:
    """`brim sub` in the background, subscribed."""

    def __init__(self, broker: Mosquitto, *arguments: object) -> None:
        self.name = f"sub{os.urandom(4).hex()}"
        line = command("sub", *arguments, "--port", broker.port, "--id", self.name)
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        broker.wait_for_log(f"Sending SUBACK to {self.name}", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def finished(self) -> tuple[int, bytes]:
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        assert err == b""
        return self.process.returncode, out


def published(broker: Mosquitto, *arguments: object, stdin: bytes = b"") -> None:
    done = brim("pub", *arguments, "--port", broker.port, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_pub_sends_sub_shows(broker: Mosquitto, qos: int) -> None:
    with Subscriber(broker, f"show/{qos}", "-q", qos, "-C", 2, "-v") as subscriber:
        published(broker, f"show/{qos}", "hello world", "-q", qos)
        published(broker, f"show/{qos}", "-m=-dash", "-q", qos)
        expected = f"show/{qos} hello world\nshow/{qos} -dash\n".encode()
        assert subscriber.finished() == (0, expected)


@needs_mosquitto
def test_lines_of_standard_input_are_messages(broker: Mosquitto) -> None:
    with Subscriber(broker, "lines", "-q", 1, "-C", 5000) as subscriber:
        lines = [f"line {number}".encode() for number in range(4998)] + [b"\xff\x00 bytes", b"without an end"]
        published(broker, "lines", "--stdin-lines", "-q", 1, stdin=b"\r\n".join(lines))
        assert subscriber.finished() == (0, b"".join(line + b"\n" for line in lines))


@needs_mosquitto
def test_a_file_is_one_message(broker: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / "two lines").write_bytes(b"one\ntwo")
    with Subscriber(broker, "file", "-C", 2) as subscriber:
        published(broker, "file", "--file", tmp_path / "two lines")
        published(broker, "file", "--file", "-", stdin=b"three\nfour\n")
        assert subscriber.finished() == (0, b"one\ntwo\nthree\nfour\n\n")


@needs_mosquitto
def test_a_message_is_repeated_and_paced(broker: Mosquitto) -> None:
    with Subscriber(broker, "again", "-C", 5) as subscriber:
        published(broker, "again", "x", "--repeat", 5, "--rate", 500)
        assert subscriber.finished() == (0, b"x\n" * 5)


@needs_mosquitto
def test_json_tells_all_and_hides_no_bytes(broker: Mosquitto) -> None:
    published(broker, "json/text", "grün\n", "--retain", "-q", 1)
    with Subscriber(broker, "json/#", "--json", "-q", 1, "-C", 2) as subscriber:
        published(broker, "json/bytes", "--file", "-", stdin=b"\xff\x00")
        code, out = subscriber.finished()
    published(broker, "json/text", "", "--retain")
    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert first == {"topic": "json/text", "payload": "grün\n", "qos": 1, "retain": True}
    assert base64.b64decode(second.pop("payload")) == b"\xff\x00"
    assert second == {"topic": "json/bytes", "encoding": "base64", "qos": 0, "retain": False}


@needs_mosquitto
def test_rate_counts_instead_of_showing(broker: Mosquitto) -> None:
    with Subscriber(broker, "rate", "--rate", "--json", "-C", 100, "-q", 1) as subscriber:
        published(broker, "rate", "12345678", "--repeat", 100, "-q", 1)
        code, out = subscriber.finished()
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert all(set(line) == {"messages_per_s", "bytes_per_s"} for line in lines)
    assert any(line["messages_per_s"] > 0 for line in lines)
    assert all(abs(line["bytes_per_s"] - 8 * line["messages_per_s"]) < 1 for line in lines)


@needs_mosquitto
def test_waiting_ends_with_a_status_of_its_own(broker: Mosquitto) -> None:
    done = brim("sub", "silence", "-W", 0.2, "--port", broker.port)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.TIMEOUT, b"", b"")


@needs_mosquitto
def test_a_session_is_kept_when_asked_for(broker: Mosquitto) -> None:
    arguments = ("kept", "-q", 1, "--keep-session")
    with Subscriber(broker, *arguments) as subscriber:
        subscriber.process.send_signal(signal.SIGINT)
        assert subscriber.finished() == (Exit.OK, b"")
    published(broker, "kept", "while away", "-q", 1)
    done = brim("sub", *arguments, "-C", 1, "--port", broker.port, "--id", subscriber.name)
    assert done.stdout == b"while away\n"


@needs_mosquitto
def test_ctrl_c_is_how_one_ends_sub(broker: Mosquitto) -> None:
    for arguments, code in (([], Exit.OK), (["-C", 1], 130)):
        with Subscriber(broker, "endless", *arguments) as subscriber:
            subscriber.process.send_signal(signal.SIGINT)
            assert subscriber.finished() == (code, b"")


@needs_mosquitto
def test_whoever_reads_may_have_enough(broker: Mosquitto) -> None:
    with Subscriber(broker, "enough") as subscriber:
        assert subscriber.process.stdout is not None
        subscriber.process.stdout.close()
        published(broker, "enough", "x", "--repeat", 3, "-q", 1)
        assert subscriber.process.wait(TIMEOUT_S) == 0
        assert subscriber.process.stderr is not None
        assert subscriber.process.stderr.read() == b""


async def test_hostile_messages_do_not_act_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    async with scripted() as broker:
        line = command("sub", "evil/#", "-v", "-C", 1, "--port", broker.port)
        process = await asyncio.create_subprocess_exec(*line, stdout=theirs, cwd=ROOT)
        os.close(theirs)
        peer = await broker.accepted()
        subscribe = await peer.expect(edge.mqtt.Subscribe)
        peer.send(
            edge.mqtt.SubAck(subscribe.packet_id, (ReasonCode.SUCCESS,)),
            edge.mqtt.Publish("evil/\x1b[2J", b"\x1b]0;title\x07\nnext\xff"),
        )
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == Exit.OK
    shown = os.read(ours, 1000)
    os.close(ours)
    assert shown.rstrip() == rb"evil/\x1b[2J \x1b]0;title\x07\nnext\xff"


def test_what_could_act_on_a_terminal_is_escaped() -> None:
    assert escaped("a\tb\x1b[31m\u202egnp\u2028é✓") == r"a\tb\x1b[31m\u202egnp\u2028é✓"
    assert escaped_payload(b"ok \xff\x9b \xc2\x9b") == r"ok \xff\x9b \x9b"


# ---- exit codes and words ------------------------------------------------------------------------


def parsed(module: object, *arguments: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args([str(argument) for argument in arguments])


@pytest.mark.parametrize("verb", ["pub", "sub"])
def test_nobody_there(verb: str) -> None:
    port = free_port()
    arguments = ["a", "x"] if verb == "pub" else ["a"]
    done = brim(verb, *arguments, "--port", port)
    message, hint, code = done.stderr.decode().splitlines()
    assert code == "  see: brim explain CannotConnect"
    assert done.returncode == Exit.CANNOT_CONNECT
    assert (
        message
        == f"brim {verb}: cannot connect to 127.0.0.1:{port}: connection refused, no program listens there"
    )
    assert hint.startswith("  start a broker there")


@pytest.mark.parametrize(("module", "arguments"), [(pub, ["a", "x"]), (sub, ["a"])])
async def test_a_refusal_has_a_status_of_its_own(
    module: object, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with scripted() as broker:
        args = parsed(module, *arguments, "--port", broker.port, "--username", "u", "--password", "p")
        running_verb = asyncio.create_task(asyncio.to_thread(module.run, args))  # type: ignore[attr-defined]
        await broker.accepted(reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        assert await running_verb == Exit.REFUSED
    shown = capsys.readouterr().err
    assert "refused the connection: bad user name or password" in shown
    assert "check user name and password" in shown


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (pub, ["a/#", "x"], "wildcard in topic name 'a/#'"),
        (pub, ["a", "--stdin-lines", "--repeat", 2], "cannot be repeated"),
        (pub, ["a", "x", "--repeat", -1], "--repeat -1 is negative"),
        (pub, ["a", "x", "--rate", 0], "--rate 0 is not above 0"),
        (pub, ["a", "x", "--window", 0], "window 0 is not in 1..65535"),
        (pub, ["a", "--file", "/no/such/file"], "--file /no/such/file cannot be read: No such file"),
        (
            pub,
            ["a", "x", "--password-file", "/no/such/file"],
            "--password-file /no/such/file cannot be read: No such file or directory\n  name a file with the",
        ),
        (
            pub,
            ["a", "x", "--password-file", "/bin/sh"],
            "--password-file /bin/sh cannot be read: it is not UTF-8\n  name a file with the",
        ),
        (
            pub,
            ["a", "x", "--cafile", "/no/such/file"],
            "--cafile /no/such/file cannot be read: No such file or directory\n  name a PEM file",
        ),
        (
            pub,
            ["a", "x", "--cert", "/no/such/file"],
            "--cert /no/such/file, --key /no/such/file cannot be read: No such file or directory\n  name PEM",
        ),
        (pub, ["a", "x", "--keep-alive", 70_000], "keep_alive_s 70000 is not in 0..65535"),
        (sub, ["a/#/b"], "# must be the whole last level"),
        (sub, ["a", "-C", 0], "-C 0 is not at least 1"),
        (sub, ["a", "-W", 0], "-W 0 is not above 0"),
        (sub, ["a", "--keep-session"], "--keep-session needs --id"),
    ],
)
async def test_wrong_arguments_are_named(
    module: object, arguments: list[object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some are seen only once there is a connection: the broker is there, and would take it."""
    async with scripted() as broker:
        args = parsed(module, *arguments, "--port", broker.port)
        accepting = asyncio.create_task(broker.accepted())
        assert await asyncio.to_thread(module.run, args) == Exit.USAGE  # type: ignore[attr-defined]
        accepting.cancel()
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (pub, ["a"]),
        (pub, ["a", "x", "-m", "y"]),
        (pub, ["a", "x", "-q", 3]),
        (sub, []),
        (sub, ["a", "--shm", "--zmq"]),
    ],
)
def test_the_usage_is_shown_for_the_rest(
    module: object, arguments: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        module.run(parsed(module, *arguments))  # type: ignore[attr-defined]
    assert refused.value.code == Exit.USAGE
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("has_terminal", [True, False])
def test_a_password_is_entered_only_at_a_terminal(has_terminal: bool) -> None:
    ours, theirs = pty.openpty()
    line = command("pub", "a", "x", "--username", "u", "--password", "-", "--port", free_port())
    stdin = theirs if has_terminal else subprocess.DEVNULL
    with subprocess.Popen(
        line, cwd=ROOT, stdin=stdin, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stderr is not None
        begin = process.stderr.read(len("password of u: "))
        os.write(ours, b"secret\n")  # input before the prompt is discarded
        shown = begin + process.stderr.read()
    os.close(ours)
    os.close(theirs)
    assert (begin == b"password of u: ") == has_terminal
    error = b"there is no terminal to enter the password\n  use --password-file\n"
    assert (error in shown) != has_terminal
    assert process.returncode == (Exit.CANNOT_CONNECT if has_terminal else Exit.USAGE)


async def test_the_options_reach_the_broker(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\nnotes\n")
    async with scripted() as broker:
        who = ("--id", "me", "--username", "u", "--password-file", tmp_path / "password")
        args = parsed(pub, "a", "x", "--port", broker.port, *who, "--protocol", "5", "--keep-alive", 7)
        running_verb = asyncio.create_task(asyncio.to_thread(pub.run, args))
        peer = await broker.connection()
        connect = await peer.expect(edge.mqtt.Connect)
        assert (connect.client_id, connect.username, connect.password) == ("me", "u", b"secret")
        assert (connect.version, connect.keep_alive_s) == (Version.V5, 7)
        peer.send(edge.mqtt.ConnAck())
        assert (await peer.expect(edge.mqtt.Publish)).payload == b"x"
        assert await running_verb == Exit.OK


async def test_a_broken_connection_ends_sub_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted() as broker:
        running_verb = asyncio.create_task(
            asyncio.to_thread(sub.run, parsed(sub, "a", "--port", broker.port))
        )
        peer = await broker.accepted()
        await peer.expect(edge.mqtt.Subscribe)
        peer.close()
        assert await running_verb == Exit.CANNOT_CONNECT
    assert "closed the connection\n  the broker's log has the reason" in capsys.readouterr().err
