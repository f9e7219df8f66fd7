"""`brim replay` over the log of a broker that runs, or has run: to lines, MQTT and ZeroMQ."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.asyncio import subscribe_zmq
from edge.cli import main
from edge.cli.plot import Plot
from edge.cli.replay_targets import number_in
from edge.client import connect
from edge.errors import EdgeError
from edge.log.log_place import LogPlace, place_of
from edge.mqtt import Properties, Version
from ringbuf import FLAG_RETAIN
from tests.support.children import ModuleChild
from tests.support.kept_logs import Kept, keep
from tests.support.project import ROOT

TIMEOUT_S = 30
SETTINGS = """
[[listener]]
port = 0
[[stream]]
name = "press"
topics = ["press/#"]
durability = "disk"
"""


def replay(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "edge", "replay", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)


def lines(*arguments: object) -> list[dict[str, Any]]:
    """Lines that a successful replay prints."""
    done = replay(*arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Broker:
    """`brim run` with a stream that is logged, in a directory that outlives it."""

    def __init__(self, runtime_dir: Path, state_dir: Path) -> None:
        (state_dir / "brim.toml").write_text(SETTINGS)
        directories = ("--runtime-dir", runtime_dir, "--state-dir", state_dir)
        self.child = ModuleChild("edge", "run", "--config", state_dir / "brim.toml", *directories)
        ready = self.child.lines_until("brim status")
        found = re.search(r"mqtt 127\.0\.0\.1:(\d+)", ready[0])
        assert found
        self.url = f"mqtt://127.0.0.1:{found[1]}"
        self.log = state_dir / "log"


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[Broker]:
    started = Broker(runtime_directory, tmp_path)
    with started.child:
        yield started


async def publish(broker: Broker, first: int, end: int) -> None:
    async with connect(broker.url, version=Version.V5) as client:
        for number in range(first, end):
            properties = Properties(user=(("number", str(number)),))
            await client.publish(f"press/{number % 2}", b"%d" % number, 1, properties=properties)


async def test_what_a_running_broker_has_acknowledged_is_replayed_as_lines(broker):
    await publish(broker, 0, 6)
    async with connect(broker.url) as client:  # The end of the log is proven by what comes behind it.
        await client.publish("press/last", b"", 1)
    found = await asyncio.to_thread(lines, "--log", broker.log, "--since", "-5m", "--topic", "press/1")
    assert [(it["offset"], it["payload"]) for it in found] == [(1, "1"), (3, "3"), (5, "5")]
    assert found[0]["properties"] == {"user": [["number", "1"]]}
    assert (found[0]["ring"], found[0]["qos"], found[0]["retain"]) == ("press-0", 1, False)


async def test_a_replay_follows_a_broker_that_writes(broker):
    await publish(broker, 0, 3)
    with ModuleChild("edge", "replay", "--log", broker.log, "--follow", "-C", 8) as child:
        assert json.loads(await asyncio.to_thread(child.line))["payload"] == "0"
        await publish(broker, 3, 9)
        rest = [json.loads(await asyncio.to_thread(child.line))["payload"] for _ in range(7)]
        assert rest == [str(number) for number in range(1, 8)]
        assert child.wait()[0] == 0


async def test_a_replay_to_a_broker_is_published_again(broker, tmp_path):
    old = tmp_path / "old"
    keep(
        old, "a-0", [Kept(f"a/{number % 3}", b"%d" % number, number, FLAG_RETAIN | 1) for number in range(30)]
    )
    async with connect(broker.url) as client, client.subscribe("again/#", qos=1) as messages:
        replayed = asyncio.create_task(
            asyncio.to_thread(replay, "--log", old, "--to", broker.url, "--prefix", "again/", "--from", 5)
        )
        found = []
        async for message in messages:
            found.append((message.topic, message.payload))
            assert not message.retain
            if len(found) == 25:
                break
        done = await replayed
    assert (done.returncode, done.stderr) == (0, b"25 records sent\n")
    assert found == [(f"again/a/{number % 3}", b"%d" % number) for number in range(5, 30)]


@pytest.fixture
def tenants_log(tmp_path: Path) -> Path:
    """A log with records of a tenant, after one of a client without a tenant."""
    keep(
        tmp_path / "old",
        "a-0",
        [Kept("b/1", b"0"), *(Kept(f"$tenant/acme/press/{n}", b"%d" % n) for n in (1, 2))],
    )
    return tmp_path / "old"


async def test_a_replay_publishes_topics_of_a_tenant_with_another_beginning(broker, tenants_log):
    remaps = [("$tenant/acme/=again/", "again/press/"), ("$tenant/=again/a/", "again/a/acme/press/")]
    remaps.append(("$tenant/=x/", "again/"))  # the longer beginning counts
    for remap, beginning in remaps:
        more = ("--remap", "$tenant/acme/press/=again/") if beginning == "again/" else ()
        async with connect(broker.url) as client, client.subscribe("again/#", qos=1) as messages:
            options = ("--log", tenants_log, "-t", "$tenant/acme/#", "--to", broker.url, "-q", 1)
            done = await asyncio.to_thread(replay, *options, "--remap", remap, *more)
            assert (done.returncode, done.stderr) == (0, b"2 records sent\n")
            found = [(await anext(messages)).topic for _ in range(2)]
        assert found == [f"{beginning}1", f"{beginning}2"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), b"no client may publish to '$tenant/acme/press/1'"),
        (("--remap", "$tenant/acme/press/1="), b"no client may publish to ''"),
        (("--remap", "acme"), b"'acme' is not OLD=NEW"),
    ],
)
def test_a_replay_refuses_topics_that_a_broker_would_drop(broker, tenants_log, options, error):
    done = replay("--log", tenants_log, "--to", broker.url, *options)
    assert done.returncode == 2
    assert error in done.stderr
    assert b"--remap '$tenant/acme/='" in done.stderr or b"'$tenant/acme/=acme/'" in done.stderr


async def test_a_replay_to_zeromq_waits_for_who_subscribes(tmp_path, runtime_directory):
    keep(tmp_path, "a-0", [Kept(f"a/{number % 2}", b"%d" % number, number) for number in range(200)])
    at = ("--log", tmp_path, "--to", "zmq", "--runtime-dir", runtime_directory)
    replayed = asyncio.create_task(asyncio.to_thread(replay, *at))
    endpoint = f"ipc://{runtime_directory / 'replay.sock'}"
    async with subscribe_zmq("a/1", endpoint=endpoint) as messages:
        found = []
        async for topic, header, payload in messages:
            found.append((topic, header.offset, payload))
            if len(found) == 100:
                break
    done = await replayed
    assert done.returncode == 0, done.stderr
    assert found == [("a/1", number, b"%d" % number) for number in range(1, 200, 2)]
    assert messages.gaps == 0


def test_a_replay_takes_no_endpoint_from_another(tmp_path, runtime_directory):
    keep(tmp_path, "a-0", [Kept("a/1", b"one")])
    at = ("--log", tmp_path, "--to", "zmq", "--runtime-dir", runtime_directory)
    with ModuleChild("edge", "replay", *at) as first:
        first.log_until("waiting for a subscriber")
        done = replay(*at)
        assert done.returncode == 2
        assert b"replay.sock is in use" in done.stderr
    killed = ModuleChild("edge", "replay", *at)  # no process owns the file that a killed one leaves behind
    with killed as second:
        second.log_until("waiting for a subscriber")


async def test_a_replay_does_not_follow_what_it_sends_itself(broker):
    await publish(broker, 0, 2)
    follow = ("--log", broker.log, "--follow", "--to", broker.url)
    to_itself = ("--topic", "a/+", "--remap", "press/=a/", "--remap", "a/=b/a/")
    for more in ((), ("--prefix", "press/"), ("--topic", "+/+", "--prefix", "x"), to_itself):
        done = await asyncio.to_thread(replay, *follow, "-C", 30, *more)
        assert done.returncode == 2, (more, done)
        assert b"that broker writes this log" in done.stderr
    for more in (("--prefix", "press/again/", "--topic", "press/+"), ("--prefix", "a", "--topic", "press/#")):
        done = await asyncio.to_thread(replay, *follow, "-C", 2, *more)
        assert (done.returncode, done.stderr) == (0, b"2 records sent\n"), more


def test_a_replay_follows_the_log_of_one_broker_to_another(broker, tmp_path):
    keep(tmp_path / "old", "a-0", [Kept("a/1", b"one"), Kept("a/1", b"two")])
    done = replay("--log", tmp_path / "old", "--follow", "-C", 2, "--to", broker.url)
    assert (done.returncode, done.stderr) == (0, b"2 records sent\n")


def test_raw_lines_are_payloads_perhaps_with_their_topics(tmp_path):
    keep(tmp_path, "a-0", [Kept("a/1", b"one"), Kept("a/2", b"\xff")])
    assert replay("--log", tmp_path, "--format", "raw").stdout == b"one\n\xff\n"
    assert replay("--log", tmp_path, "--format", "raw", "-v", "-C", 1).stdout == b"a/1 one\n"
    assert [it.get("encoding") for it in lines("--log", tmp_path)] == [None, "base64"]


def test_a_plot_shows_the_numbers_of_a_field_over_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "52")
    monkeypatch.setenv("LINES", "11")
    payloads = [b'{"motor": {"temp": %d}}' % (20 + number) for number in range(41)]
    others = [b"no json", b'{"motor": {"temp": "x"}}', b'{"motor": 1}', b'{"motor": {"temp": 1e999}}', b"[1]"]
    kept = [Kept("press/1", payload, number) for number, payload in enumerate(payloads)]
    keep(tmp_path, "a-0", [*kept, *(Kept("press/2", payload, 20) for payload in others)])
    assert main(["replay", "--log", str(tmp_path), "--plot", "motor.temp"]) == 0
    title, *rows, times = capsys.readouterr().out.splitlines()
    assert title == "motor.temp: 41 values, 1 topic, 5 records without a number"
    assert len(rows) == 5
    assert (rows[0].split()[0], rows[-1].split()[0]) == ("60", "20")
    cells = [row[12:] for row in rows]
    ends = [len(row) for row in cells]
    assert ends == sorted(ends, reverse=True)  # the line rises: higher rows end further to the right
    assert ends[0] == 40
    begins = [len(row) - len(row.lstrip()) for row in cells]
    assert begins == sorted(begins, reverse=True)
    assert len(times.split()) == 4


def test_a_plot_of_plain_numbers_is_bounded_whatever_their_times_and_sizes():
    plot = Plot(columns=10, height=4)
    for timestamp_ns, value in ((1 << 62, 1e308), (0, -1e308), (1 << 61, 5.0), (1 << 61, -1e308)):
        plot.add(timestamp_ns, value)
    lines = plot.lines()
    assert (len(lines), lines[0].split()[0], lines[3].split()[0]) == (5, "1e+308", "-1e+308")
    assert all(len(line) <= 12 + 10 for line in lines[:4])
    assert [row[-1] for row in lines[:4] if len(row) > 20] == ["•"]


@pytest.mark.parametrize(
    ("payload", "path", "number"),
    [
        (b"21.5", [], 21.5),
        (b'{"a": {"b": -3}}', ["a", "b"], -3.0),
        (b"true", [], None),
        (b'{"a": true}', ["a"], None),
        (b"[" * 100_000, [], None),
        (b"9" * 400, [], None),
        (b"\xff", [], None),
        (b'{"a": 1}', ["b"], None),
    ],
)
def test_a_number_is_found_in_a_payload_or_there_is_none(payload, path, number):
    assert number_in(memoryview(payload), path) == number


def test_records_come_at_the_rate_and_at_the_speed_that_is_asked_for(tmp_path):
    """0.3 s by each; that it is not sooner is certain, and no more is said of time."""
    keep(tmp_path, "a-0", [Kept("a", b"", number / 60) for number in range(4)])
    code = (
        "import sys, time\nfrom edge.cli import main\nbegun = time.monotonic()\n"
        "status = main(['replay', *sys.argv[1:]])\nprint(status, time.monotonic() - begun >= 0.299)"
    )
    for pace in (("--rate", "10"), ("--speed", "10")):
        line = [sys.executable, "-c", code, "--log", str(tmp_path), *pace]
        run = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=True)
        assert run.stdout.splitlines()[-1] == "0 True"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "tomorrow"), "--from 'tomorrow' is neither an offset nor a time"),
        (("--to", "kafka://x"), "invalid --to 'kafka://x'"),
        (("--to", "mqtt://h:1/topic"), "has more than host and port"),
        (("--to", "tcp://0.0.0.0:5"), "is reached from other machines"),
        (("--stream", "b"), "the log has a"),
        (("--ring", "b-0"), "the log has a-0"),
        (("--topic", "a/#/b"), "correct the filter"),
        (("--follow", "--until", "5"), "--follow and --until exclude"),
        (("--follow", "--plot", "x"), "--plot excludes --to and --follow"),
        (("--plot", "x"), "no number in field x of 1 record"),
        (("--log", "/nowhere"), "there is no log in /nowhere"),
    ],
)
def test_what_cannot_be_replayed_is_said_with_what_to_do(tmp_path, capsys, arguments, said):
    keep(tmp_path, "a-0", [Kept("a")])
    assert main(["replay", "--log", str(tmp_path), *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error


def test_a_replay_without_records_is_not_silent(tmp_path, capsys):
    keep(tmp_path, "a-0", [Kept("a", b"1")])
    assert main(["replay", "--log", str(tmp_path), "--topic", "b"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.splitlines()[0]) == ("", "brim replay: no records in this part of the log")


def test_no_broker_at_the_other_end_has_its_own_status(tmp_path):
    keep(tmp_path, "a-0", [Kept("a")])
    assert main(["replay", "--log", str(tmp_path), "--to", "mqtt://127.0.0.1:1"]) == 3


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", LogPlace()),
        ("5120", LogPlace(offset=5120)),
        ("-15m", LogPlace(timestamp_ns=(1_000_000 - 900) * 10**9)),
        ("-1.5h", LogPlace(timestamp_ns=(1_000_000 - 5400) * 10**9)),
        ("@12.25", LogPlace(timestamp_ns=12_250_000_000)),
        ("1970-01-02T00:00Z", LogPlace(timestamp_ns=86_400 * 10**9)),
        ("1970-01-01T01:00:00.000001+01:00", LogPlace(timestamp_ns=1000)),
        ("1970-01-01T00:00:01.000000001Z", LogPlace(timestamp_ns=10**9 + 1)),
        ("19700101T000001,500000001Z", LogPlace(timestamp_ns=1_500_000_001)),
        ("1970-W01-4T00:00:01.5Z", LogPlace(timestamp_ns=1_500_000_000)),
    ],
)
def test_a_place_is_an_offset_or_a_time(text, place):
    assert place_of(text, "--from", now_s=lambda: 1_000_000.0) == place


@pytest.mark.parametrize(
    "text", ["-15", "15m", "-5y", "yesterday", "@", "2026-13-01", "0x10", "2026-01-31T00:00:00.0000000001"]
)
def test_what_is_neither_is_refused(text):
    with pytest.raises(EdgeError, match="is neither an offset nor a time"):
        place_of(text, "--from")
