"""`brim schema infer` on a running broker, a log, drained files and lines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.payloads.schema import Payloads
from edge.client import connect
from tests.support.drained_files import drained_file_of, store
from tests.support.kept_logs import Kept, keep
from tests.support.logged_broker import LoggedBroker
from tests.support.project import ROOT

TIMEOUT_S = 60


def schema(*arguments: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "edge", "schema", "infer", *map(str, arguments)]
    return subprocess.run(line, input=given, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)


def columns(ended: subprocess.CompletedProcess[bytes], path: Path) -> dict[str, str]:
    assert ended.returncode == 0, ended.stderr
    path.write_bytes(ended.stdout)
    return Payloads.read(path).columns


async def test_records_of_a_running_broker_give_a_schema(runtime_directory: Path, tmp_path: Path) -> None:
    broker = LoggedBroker(runtime_directory, tmp_path, {"kept": "disk", "ram": "process"})
    broker.start()
    try:
        async with connect(f"mqtt://127.0.0.1:{broker.port}") as client:
            for number in range(20):
                await client.publish(f"kept/{number}/data", b'{"temp":%d.5}' % number, qos=1)
                await client.publish("ram/x", b"%d" % number, qos=1)
        place = "--log", broker.state_dir / "log", "--runtime-dir", broker.runtime_dir
        ended = schema(*place)
        both = columns(ended, tmp_path / "payloads.toml")
        assert both == {"level_2": "string", "temp": "double", "value": "long"}
        only = columns(schema(*place, "--stream", "kept", "-n", 5), tmp_path / "payloads.toml")
        assert only == {"level_2": "string", "temp": "double"}
        assert b"5 records of the sample" in schema(*place, "--stream", "kept", "-n", 5).stdout
    finally:
        broker.close()


def test_a_log_gives_a_schema_and_shares_for_programs(tmp_path: Path) -> None:
    records = [Kept("a/1", b'{"n":1}'), Kept("a/1", b'{"n":"x"}'), Kept("a/1", b'{"n":2}')]
    keep(tmp_path / "log", "a-0", records)
    output = tmp_path / "payloads.toml"
    place = "--log", tmp_path / "log", "--runtime-dir", tmp_path / "none"
    ended = schema(*place, "-t", "a/#", "--json", "-o", output)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    (entry,) = report["entries"]
    assert (entry["topic"], entry["format"], entry["records"]) == ("a/#", "json", 3)
    (field,) = entry["fields"]
    assert (field["column"], field["type"], field["present"], field["fitted"]) == ("n", "long", 3, 2)
    assert Payloads.read(output).columns == {"n": "long"}
    again = schema(*place, "-o", output)
    assert again.returncode == 2
    assert b"exists" in again.stderr


def test_drained_files_give_a_schema(tmp_path: Path) -> None:
    store(tmp_path / "lake", drained_file_of(0, 99, payload=lambda offset: b'{"n":%d}' % offset))
    found = columns(schema(tmp_path / "lake"), tmp_path / "payloads.toml")
    assert found == {"level_2": "string", "n": "long"}


def test_unreadable_drained_files_are_left_out_and_reported(tmp_path: Path) -> None:
    for first in (0, 100):
        file = drained_file_of(
            first, first + 99, drain_seq=first + 1, payload=lambda offset: b'{"n":%d}' % offset
        )
        store(tmp_path / "lake", file)
    damaged = min((tmp_path / "lake").glob("edge=*/dt=*/*"))
    damaged.write_bytes(b"x" * 100)
    ended = schema(tmp_path / "lake")
    assert columns(ended, tmp_path / "payloads.toml") == {"level_2": "string", "n": "long"}
    assert b"unreadable files left out: 1; the first: " in ended.stderr
    assert damaged.name.encode() in ended.stderr


def test_lines_are_payloads_or_messages_as_sub_prints_them(tmp_path: Path) -> None:
    lines = [
        b'{"n":1}',
        b'{"topic":"a/1","payload":"{\\"m\\":1.5}","qos":0}',
        b'{"topic":"a/1","payload":{"m":2}}',
        b"",
        b"[" * 100_000,
    ]
    ended = schema("-", given=b"\n".join(lines))
    assert ended.returncode == 0, ended.stderr
    path = tmp_path / "payloads.toml"
    path.write_bytes(ended.stdout)
    assert {rule.topic: [field.column for field in rule.fields] for rule in Payloads.read(path).rules} == {
        "#": ["n"],
        "a/1": ["m"],
    }


@pytest.mark.parametrize(
    ("arguments", "given_lines", "said"),
    [
        (("-",), b"", b"the sample has no records"),
        (("-",), b"\xff\xfe\n", b"no fields in 1 payload"),
        (("-", "-n", "1000001"), b"{}\n", b"invalid --sample 1000001 (allowed: 1 to 1,000,000)"),
        (("-", "--since", "-1h"), b"{}\n", b"--since, --until and --stream"),
        (("/nowhere/at/all",), b"", b"has no drained files"),
        (("-", "-t", "a/#/b"), b'{"a":1}\n', b"is no topic filter"),
        (("-", "-o", "/nowhere/x.toml"), b'{"a":1}\n', b"No such file"),
    ],
)
def test_a_sample_without_fields_or_a_wrong_option_is_refused(
    arguments: tuple[str, ...], given_lines: bytes, said: bytes
) -> None:
    ended = schema(*arguments, given=given_lines)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_topics_without_an_entry_are_reported() -> None:
    lines = [b'{"topic":"a","payload":{"n":1}}', b'{"topic":"b","payload":{"n":1}}']
    ended = schema("-", "-t", "a", given=b"\n".join(lines))
    assert ended.returncode == 1
    assert b"no entry for topics outside the filters: 1 record" in ended.stderr
