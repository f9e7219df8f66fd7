"""`brim sql` on the log and rings of a broker that runs, and its forms of output."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from edge.cli.exit_status import Exit
from edge.client import connect
from edge.sql.records import RecordRelation
from ringbuf import Ring
from tests.support.children import ModuleChild
from tests.support.kept_logs import Kept, keep
from tests.support.logged_broker import LoggedBroker
from tests.support.project import ROOT
from tests.support.sql_queries import ENDLESS

TIMEOUT_S = 60
TOPICS = "SELECT topic, count(*) AS n FROM records GROUP BY topic ORDER BY topic"


def sql(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "edge", "sql", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def part(tmp_path: Path) -> tuple[object, ...]:
    """Options that select six records."""
    keep(
        tmp_path / "log",
        "a-0",
        [Kept(f"a/{number % 2}", b'{"n":%d}' % number, number) for number in range(6)],
    )
    return "--log", tmp_path / "log", "--runtime-dir", tmp_path / "none"


def test_the_command_comes_last_from_its_imports_on(part: tuple[object, ...]) -> None:
    code = """
import os, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "pyarrow.lib":
            print("imports", os.sched_getscheduler(0) == os.SCHED_BATCH, flush=True)

sys.meta_path.insert(0, Finder())
from edge.cli import main
main(["sql", *sys.argv[1:]])
print(os.sched_getscheduler(0) == os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0))
"""
    line = [sys.executable, "-c", code, *map(str, part), "--format", "csv", "SELECT 1 AS one"]
    run = subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=True, text=True)
    assert run.stdout.split() == ["imports", "True", '"one"', '"1"', "True", "19"]


def test_the_command_does_not_import_pandas(part: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "payloads.toml").write_text(
        '[[payload]]\ntopic = "a/#"\nformat = "json"\nfields = { n = "long" }\n'
    )
    code = """
import sys
from edge.cli import main
for form in ("table", "csv", "json", "arrow"):
    assert main(["sql", *sys.argv[2:], "--format", form, "-o", f"{sys.argv[1]}/{form}"]) == 0
    print(form, "pandas" in sys.modules)
"""
    query = "SELECT topic, sum(n)::BIGINT AS n FROM records WHERE n > 0 GROUP BY 1"
    words = (tmp_path, *part, "--payloads", tmp_path / "payloads.toml", query)
    line = [sys.executable, "-c", code, *map(str, words)]
    run = subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=True, text=True)
    assert (run.stdout, run.stderr) == ("table False\ncsv False\njson False\narrow False\n", "")
    for form in ("table", "csv", "json", "arrow"):
        assert b"a/0" in (tmp_path / form).read_bytes()


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[LoggedBroker]:
    started = LoggedBroker(
        runtime_directory, tmp_path, {"kept": "disk", "late": "interval", "ram": "process"}
    )
    started.start()
    yield started
    started.close()


def of(broker: LoggedBroker) -> tuple[object, ...]:
    return "--log", broker.state_dir / "log", "--runtime-dir", broker.runtime_dir


async def test_acknowledged_messages_of_every_durability_are_found(broker):
    async with connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        for number in range(30):
            for stream in ("kept", "late", "ram"):
                await client.publish(f"{stream}/x", b"%d" % number, 1)
        done = await asyncio.to_thread(sql, *of(broker), "--format", "json", TOPICS)
    assert (done.returncode, done.stderr) == (0, b"")
    found = {row["topic"]: row["n"] for row in map(json.loads, done.stdout.splitlines())}
    assert found == {"kept/x": 30, "late/x": 30, "ram/x": 30}


async def test_without_a_configuration_the_log_is_that_of_the_running_broker(broker):
    async with connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        await client.publish("kept/x", b"1", 1)
        options = "--runtime-dir", broker.runtime_dir
        line = [sys.executable, "-m", "edge", "segments", "ls", "--json", *map(str, options)]
        listed = json.loads(
            await asyncio.to_thread(subprocess.check_output, line, cwd=ROOT, timeout=TIMEOUT_S)
        )
    assert {row["log"] for row in listed["segments"]} == {str(broker.state_dir / "log")}
    records = RecordRelation(runtime_dir=broker.runtime_dir)
    assert records.log_directory == broker.state_dir / "log"


def test_a_log_that_cannot_be_read_is_not_taken_for_absent(runtime_directory: Path, tmp_path: Path) -> None:
    with Ring.create(runtime_directory / "a-0", capacity_bytes=65_536, epoch=1):
        (tmp_path / "log").write_text("a file in its place")
        done = sql("--log", tmp_path / "log", "--runtime-dir", runtime_directory, TOPICS)
    assert done.returncode == Exit.USAGE
    assert b"log: Not a directory" in done.stderr


async def test_follow_prints_each_record_once(broker):
    options = ("--follow", "--every", "0.5", "--format", "json")
    sent = 0

    async def publish() -> None:
        nonlocal sent
        async with connect(f"mqtt://127.0.0.1:{broker.port}") as client:
            while True:
                await client.publish(("kept/x", "ram/x")[sent % 2], b"%d" % sent, 1)
                sent += 1
                await asyncio.sleep(0.05)

    with ModuleChild("edge", "sql", *of(broker), *options, "SELECT payload_text AS p FROM records") as child:
        publishing = asyncio.create_task(publish())
        found = [int(json.loads(await asyncio.to_thread(child.line))["p"]) for _ in range(20)]
        publishing.cancel()
        last = sent - 1
        while set(range(min(found), last + 1)) - set(found):  # rows of a window come in any order
            found.append(int(json.loads(await asyncio.to_thread(child.line))["p"]))
    assert len(found) == len(set(found))


def test_each_form_has_the_rows(part, tmp_path):
    assert sql(*part, TOPICS).stdout.decode().splitlines() == ["topic  n", "a/0    3", "a/1    3"]
    found = sql(*part, "--format", "csv", TOPICS).stdout.decode()
    assert list(csv.reader(io.StringIO(found))) == [["topic", "n"], ["a/0", "3"], ["a/1", "3"]]
    rows = [{"topic": "a/0", "n": 3}, {"topic": "a/1", "n": 3}]
    assert [json.loads(line) for line in sql(*part, "--json", TOPICS).stdout.splitlines()] == rows
    streamed = sql(*part, "--format", "arrow", TOPICS).stdout
    assert ipc.open_stream(pa.py_buffer(streamed)).read_all().to_pylist() == rows
    file = tmp_path / "out.parquet"
    assert sql(*part, "-o", file, TOPICS).returncode == 0
    assert parquet.read_table(file).to_pylist() == rows


def test_a_table_has_the_names_of_the_query_and_a_window_without_rows_no_heading(part):
    query = """SELECT payload_text->>'$.N' AS "N", count(*) FROM records WHERE topic = 'a/1' GROUP BY 1"""
    assert sql(*part, query).stdout.decode().splitlines() == ["N  count_star()", "-             3"]
    windows = sql(*part, "--follow", "--every", "0.2", "-C", "3", query)
    assert windows.stdout.decode().splitlines() == ["window_start  N  count_star()"]


def test_options_narrow_the_records(part, tmp_path):
    schema = tmp_path / "payloads.toml"
    schema.write_text('[[payload]]\ntopic = "#"\nformat = "json"\nfields = { n = "long" }\n')
    options = ("--payloads", schema, "-t", "a/1", "--until", "2023-11-14T22:16:00Z", "--format", "json")
    assert sql(*part, *options, "SELECT sum(n) AS n FROM records").stdout == b'{"n":1}\n'


def test_json_has_texts_for_numbers_that_json_cannot_have(part):
    query = """SELECT 'NaN'::DOUBLE AS "NaN", ['-inf'::FLOAT, 1.5] AS a, 'Infinity "NaN\\' AS t,
        1234567890.123456789012345678::DECIMAL(38, 18) AS exact, (2::HUGEINT << 100) AS big"""
    line = sql(*part, "--json", query).stdout.decode()
    assert json.loads(line, parse_constant=pytest.fail)["t"] == 'Infinity "NaN\\'
    assert line.startswith('{"NaN":"NaN","a":["-Infinity",1.5],"t":"')
    assert line.endswith('"exact":1234567890.123456789012345678,"big":2535301200456458802993406410752}\n')


@pytest.mark.parametrize("mistake", ["SELECT topik FROM records", "SELECT topic::INTEGER FROM records"])
def test_a_query_that_fails_leaves_the_file_of_an_earlier_result_only(part, tmp_path, mistake):
    file = tmp_path / "rows.CSV"
    assert sql(*part, "-o", file, TOPICS).returncode == 0
    written = file.read_bytes()
    assert written.startswith(b'"topic","n"\n')
    assert sql(*part, "-o", file, mistake).returncode == 2
    assert file.read_bytes() == written
    assert sql(*part, "-o", tmp_path / "new.csv", mistake).returncode == 2
    assert [path.name for path in tmp_path.iterdir() if ".csv" in path.name.lower()] == ["rows.CSV"]


def test_a_result_keeps_the_mode_of_the_file_that_it_replaces(part, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("secret")
    file.chmod(0o600)
    assert sql(*part, "-o", file, TOPICS).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_result_keeps_the_owner_of_the_file_that_it_replaces(part, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("secret")
    os.chown(file, 4321, 1234)
    file.chmod(0o640)
    assert sql(*part, "-o", file, TOPICS).returncode == 0
    facts = file.stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (4321, 1234, 0o640)


def test_two_results_for_one_file_and_a_file_with_a_similar_name_do_not_disturb_each_other(part, tmp_path):
    file, similar = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    similar.write_text("mine")
    query = "SELECT topic FROM records, range(200000)"
    with ThreadPoolExecutor(2) as both:
        statuses = [both.submit(sql, *part, "-o", file, query) for _ in range(2)]
        assert [status.result().returncode for status in statuses] == [0, 0]
    assert similar.read_text() == "mine"
    assert file.read_bytes() == sql(*part, "--format", "csv", query).stdout


def test_a_file_that_is_standard_output_is_not_replaced(part, tmp_path):
    line = [sys.executable, "-m", "edge", "sql", *map(str, part), "--format", "csv", "-o", "/dev/stdout"]
    with (tmp_path / "rows.csv").open("wb+") as output:
        subprocess.run([*line, TOPICS], stdout=output, cwd=ROOT, timeout=TIMEOUT_S, check=True)
        assert output.read() == sql(*part, "--format", "csv", TOPICS).stdout


def test_a_table_shows_the_time_between_two_records(part):
    query = "SELECT INTERVAL '1 day 61.5 seconds' AS t, INTERVAL 14 MONTH AS m FROM records LIMIT 1"
    assert sql(*part, query).stdout.split(b"\n")[1] == b"1 day, 0:01:01.500000  14 months, 0:00:00"


def test_text_of_a_publisher_cannot_act_on_the_terminal(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"\x1b[31mred")])
    done = sql("--log", tmp_path, "--runtime-dir", tmp_path, "SELECT payload FROM records")
    assert done.stdout == b"payload\n\\x1b[31mred\n"


def test_a_query_uses_no_files_without_the_option(part, tmp_path):
    (tmp_path / "names.csv").write_text("topic\na/1\n")
    query = f"SELECT count(*) AS n FROM read_csv('{tmp_path}/names.csv') JOIN records USING (topic)"
    refused = sql(*part, "--format", "csv", query)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"--files" in refused.stderr
    assert sql(*part, "--files", "--format", "csv", query).stdout == b'"n"\n"3"\n'


def test_a_table_ends_long_values_early(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"x" * 200), Kept("b", b"y" * 201)])
    done = sql("--log", tmp_path, "--runtime-dir", tmp_path, "SELECT payload FROM records ORDER BY topic")
    assert done.stdout.decode().split() == ["payload", "x" * 200, "y" * 200 + "..."]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_long_query_at_once_and_removes_its_files(part, tmp_path, stop):
    query = "SELECT topic, count(*) FROM records, range(1_000_000_000_000) GROUP BY topic"
    line = [sys.executable, "-m", "edge", "sql", *map(str, part), query]
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    environment = {**os.environ, "TMPDIR": str(spilled)}
    with subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, env=environment) as child:
        while not list(spilled.iterdir()):
            time.sleep(0.02)
        time.sleep(0.3)  # DuckDB runs the query
        child.send_signal(stop)
        _, errors = child.communicate(timeout=TIMEOUT_S)
    assert (child.returncode, errors, list(spilled.iterdir())) == (130, b"", [])


def test_a_command_that_a_script_starts_in_the_background_ignores_sigint(part):
    query = "SELECT 1 AS n FROM records LIMIT 1"
    line = [sys.executable, "-m", "edge", "sql", *map(str, part), "--format", "csv", query]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it
    try:
        child = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    while child.poll() is None:
        child.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert (child.returncode, child.communicate()[0]) == (0, b'"n"\n"1"\n')


def test_missing_records_are_status_1(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"x" * 600)] * 30, segment_bytes=12_288)
    second = sorted(tmp_path.glob("*.log"))[1]
    second.unlink()
    done = sql("--log", tmp_path, "--runtime-dir", tmp_path, "SELECT count(*) FROM records")
    assert done.returncode == 1
    assert b" missing: damaged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["SELEC 1"], b"syntax error"),
        (["SELECT offset FROM records"], b'in double quotes, as in SELECT "offset" FROM records'),
        (["SELECT topic FORM records LIMIT 1 OFFSET 5"], b"describe the columns"),
        ([" "], b"the query is empty"),
        (["-o", "rows.xlsx", "SELECT 1 FROM records"], b"no format has the suffix .xlsx (known: .txt, .csv,"),
        (["--since", "yesterday", "SELECT 1 FROM records"], b"'yesterday' is not a time\n  write"),
        (
            ["--payloads", "none.toml", "SELECT 1 FROM records"],
            b"cannot be read: No such file",
        ),
        (["--since", "12", "SELECT 1 FROM records"], b"is an offset"),
        (["--stream", "b", "SELECT 1 FROM records"], b"stream 'b' does not exist"),
        (["--follow", "--format", "parquet", "SELECT 1 FROM records"], b"--follow cannot write parquet"),
        (["--every", "5s", "SELECT 1 FROM records"], b"--every and --count need --follow"),
        (["-C", "2", "SELECT 1 FROM records"], b"--every and --count need --follow"),
    ],
)
def test_mistakes_are_status_2(part, arguments, text):
    done = sql(*part, *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"nanobind" not in done.stderr


def test_a_time_limit_ends_a_query_and_removes_its_files(part, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = sql(*part, "--time-limit", "2s", "-o", tmp_path / "new.json", ENDLESS)
    assert (done.returncode, b"longer than 2 s" in done.stderr, done.stdout) == (5, True, b"")
    assert not list(tmp_path.glob("brim-sql-*")) + list(tmp_path.glob("new*"))
    as_json = sql(*part, "--time-limit", "100ms", "--json", ENDLESS)
    assert json.loads(as_json.stderr)["error"] == "the query took longer than 0.1 s"
    as_text = sql(*part, "--time-limit", "100ms", "--format", "json", ENDLESS)  # the form of the result only
    assert as_text.stderr.startswith(b"brim sql: the query took longer than 0.1 s\n")
    assert sql(*part, "--time-limit", "9" * 300, "SELECT 1").returncode == 0


def test_a_query_has_the_memory_that_it_is_given(part):
    query = "SELECT current_setting('memory_limit') AS bytes"
    limits = [
        sql(*part, "--format", "csv", *words, query).stdout
        for words in ((), ("--memory", "25"), ("--memory", "1"))
    ]
    assert limits[0] == limits[1] != limits[2]
    for wrong in ("0", "101", "1e1"):
        assert sql(*part, "--memory", wrong, query).returncode == 2
