"""Queries of the console: roles, rows and their limits, errors, time, cancellation, and access to files."""

import http.client
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edge.mqtt import PingReq, Publish, encode
from edge.web.api_model import ApiError
from edge.web.query_process import QueryOutput
from edge.web.sql_api import QUERIES_MAX, _checked
from ringbuf.extras import install_extra
from tests.edge.web.test_access import signed_in
from tests.edge.web.test_read_api import close, tap
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.directories import memory_directory
from tests.support.sql_queries import ENDLESS, query_processes
from tests.support.waiting import wait_until
from tests.support.web_console import Answer, Visitor, console, write_users

STREAM = '[[stream]]\nname = "kept"\ntopics = ["plant/#"]\ndurability = "disk"\n'
PAYLOADS = '[[payload]]\ntopic = "plant/#"\nformat = "json"\nfields = { temp = "double" }\n'

WITHOUT_DUCKDB = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "duckdb" else find(name, *more)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ModuleChild, Path]]:
    """URL and process of a console, and the directory of its broker, which has ten records of plant/#."""
    directory = tmp_path_factory.mktemp("sql")
    (directory / "payloads.toml").write_text(PAYLOADS)
    bridge = f'[[bridge]]\nname = "lake"\nto = "{(directory / "lake").as_uri()}"\n'
    bridge += f'options = {{ format = "parquet", payloads = "{directory / "payloads.toml"}" }}\n'
    with (
        memory_directory() as runtime,
        BrimProcess(runtime, directory, STREAM + bridge, bridge=False) as broker,
        console(runtime, *write_users(directory / "users")) as (url, child),
    ):
        with connected(broker.port, "publisher", V5) as client:
            for number in range(10):
                message = Publish(
                    f"plant/{number % 2}", b'{"temp": %d.5}' % number, qos=1, packet_id=1 + number
                )
                client.sendall(encode(message, V5))
            client.sendall(encode(Publish("other", b"x"), V5) + encode(PingReq(), V5))
            received = b""
            while b"\xd0\x00" not in received or received.count(b"\x40") < 10:
                received += client.recv(1 << 16)
        yield url, child, directory


@pytest.fixture
def eve(served: tuple[str, ModuleChild, Path]) -> Visitor:
    """A viewer."""
    return signed_in(served[0], "eve")


def of_group(number: int) -> list[int]:
    """Processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == number and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def blocks_sigterm(pid: int) -> bool:
    """True once `brim sql` takes its signals by a thread."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigBlk"], 16) >> (signal.SIGTERM - 1) & 1)


def background(work: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    return thread, answers


def begin(visitor: Visitor, body: dict[str, Any]) -> http.client.HTTPConnection:
    """A request; the answer is not read."""
    connection = http.client.HTTPConnection(visitor.host, visitor.port, timeout=60)
    headers = {"Content-Type": "application/json", "X-CSRF-Token": visitor.csrf, "Cookie": visitor.cookie}
    connection.request("POST", "/api/v1/sql", json.dumps(body), headers)
    return connection


def test_a_query_has_columns_rows_and_the_fields_of_the_payload_schema(eve: Visitor) -> None:
    query = "SELECT topic, count(*) AS n, sum(temp) AS total FROM records GROUP BY topic ORDER BY topic"
    answer = eve.post("sql", {"query": query}).content
    assert answer["columns"] == ["topic", "n", "total"]
    assert answer["rows"] == [["other", 1, None], ["plant/0", 5, 22.5], ["plant/1", 5, 27.5]]
    assert (answer["is_cut"], answer["warning"]) == (False, "")
    assert answer["seconds"] > 0


def test_a_query_is_narrowed_by_topic_and_time(eve: Visitor) -> None:
    query = "SELECT count(*) FROM records"
    for narrowed, count in (
        ({"topic": "plant/+"}, 10), ({"topic": "plant/1", "since": "-1h"}, 5), ({"until": "-1h"}, 0),
        ({"since": "2020-01-01T00:00Z", "until": "@4000000000"}, 11),
    ):  # fmt: skip
        assert eve.post("sql", {"query": query, **narrowed}).content["rows"] == [[count]], narrowed


def test_values_that_javascript_would_change_are_texts(eve: Visitor) -> None:
    query = (
        "SELECT 9007199254740993 a, [-1234567890123456] b, 'nan'::DOUBLE c, 1.5 d, 42 e, NULL f, 'x' \"A\""
    )
    answer = eve.post("sql", {"query": query}).content
    assert answer["rows"] == [["9007199254740993", ["-1234567890123456"], "NaN", 1.5, 42, None, "x"]]
    assert len(answer["columns"]) == 7
    nested = eve.post("sql", {"query": "SELECT (repeat('[', 50000) || repeat(']', 50000))::JSON"})
    assert (nested.status, "recursion" in nested.content["error"]) == (400, True)
    assert eve.post("sql", {"query": "SELECT (repeat('[', 400) || repeat(']', 400))::JSON"}).status == 200


@pytest.mark.parametrize(
    ("query", "rows", "cut", "count"),
    [
        ("SELECT * FROM range(7)", 7, False, 7),
        ("SELECT * FROM range(8)", 7, True, 7),
        ("SELECT * FROM range(1_000_000_000_000)", 7, True, 7),
        ("SELECT repeat('x', 1_500_000) FROM range(9)", 7, True, 1),
        ("SELECT repeat('x', 4_000_000)", 7, True, 0),
        ("SELECT 1 WHERE false", 7, False, 0),
    ],
)
def test_rows_and_bytes_are_limited_and_the_cut_is_reported(
    query: str, rows: int, cut: bool, count: int, eve: Visitor, served: Any
) -> None:
    answer = eve.post("sql", {"query": query, "rows": rows}).content
    assert (answer["is_cut"], len(answer["rows"])) == (cut, count)
    wait_until(lambda: not query_processes(served[1].pid))


def test_an_error_is_that_of_the_command_with_its_hint(eve: Visitor) -> None:
    for body, status, error, hint in (
        ({"query": "SELEC 1"}, 400, "syntax error", "brim.records()"),
        ({"query": "SELECT no FROM records"}, 400, '"no" not found', "brim.records()"),
        ({"query": "SELECT 1", "since": "soon"}, 400, "soon", ""),
        ({"query": "SELECT 1", "topic": "a#"}, 400, "#", ""),
        ({"query": "SELECT 1", "topic": "a\x00b"}, 400, "", ""),
        ({"query": "SELECT 1", "since": "\x00"}, 400, "since", ""),
        ({"query": "SELECT 1", "topic": "--files"}, 200, "", ""),
        ({"query": ""}, 400, "query", ""),
        ({"query": "x" * 8_193}, 400, "query", ""),
        ({"query": "\ud800 \x00 SELECT"}, 400, "", ""),
        ({"query": "SELECT 1", "rows": 10_001}, 400, "rows", ""),
        ({"query": "SELECT 1", "limit_s": 0}, 400, "limit_s", ""),
        ({"query": "SELECT 1", "files": True}, 400, "files", ""),
    ):  # fmt: skip
        answer = eve.post("sql", body)
        assert answer.status == status, (body, answer.body)
        if status != 200:
            assert error in answer.content["error"], (body, answer.body)
            assert hint in answer.content["hint"], (body, answer.body)
            assert not answer.content["error"].startswith("brim sql")
            assert "Traceback" not in answer.content["error"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{file}')", "ATTACH '{file}.db'", "SET enable_external_access = true",
        "SELECT 1; COPY records TO '{file}.out'",
    ],
)  # fmt: skip
def test_a_hostile_query_uses_no_file_and_no_setting(query: str, eve: Visitor, served: Any) -> None:
    secret = served[2] / "secret"
    secret.write_text("hush")
    answer = eve.post("sql", {"query": query.format(file=secret)})
    assert answer.status == 400
    assert b"hush" not in answer.body
    assert {path.name for path in served[2].glob("secret*")} == {"secret"}


def test_the_time_limit_ends_the_process_of_the_query_and_its_group(eve: Visitor, served: Any) -> None:
    thread, answers = background(lambda: eve.post("sql", {"query": ENDLESS, "limit_s": 3}))
    wait_until(lambda: query_processes(served[1].pid))
    (child,) = query_processes(served[1].pid)
    assert of_group(child.pid) == [child.pid]
    thread.join(60)
    assert (answers[0].status, "longer than 3 s" in answers[0].content["error"]) == (504, True)
    assert "narrow" in answers[0].content["hint"]
    assert of_group(child.pid) == []


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "without processor"])
def test_a_client_that_leaves_ends_its_query(stopped: bool, eve: Visitor, served: Any) -> None:
    connection = begin(eve, {"query": ENDLESS})
    wait_until(lambda: query_processes(served[1].pid))
    (child,) = query_processes(served[1].pid)
    wait_until(lambda: blocks_sigterm(child.pid))
    if stopped:
        child.send_signal(signal.SIGSTOP)  # so its thread cannot take SIGTERM
    connection.close()
    wait_until(lambda: not of_group(child.pid))
    wait_until(lambda: eve.post("sql", {"query": "SELECT 1"}).status == 200)  # its place is free


def test_a_query_ends_in_time_without_the_console(served: Any, tmp_path: Path) -> None:
    users = write_users(tmp_path / "users")
    words = ("web", "--listen", "127.0.0.1:0", "--runtime-dir", runtime_of(served), *users)
    with ModuleChild("edge", *words) as alone:
        url = alone.lines_until("the console is at")[-1].rpartition(" ")[2].rstrip("/")
        connection = begin(signed_in(url, "bob"), {"query": ENDLESS, "limit_s": 5})
        wait_until(lambda: query_processes(alone.pid))
        (child,) = query_processes(alone.pid)
        alone.kill()
        connection.close()
        wait_until(lambda: not of_group(child.pid))


def runtime_of(served: Any) -> str:
    words = psutil.Process(served[1].pid).cmdline()
    return str(words[words.index("--runtime-dir") + 1])


def test_queries_are_limited_by_user_and_together(served: Any) -> None:
    visitors = [signed_in(served[0], name) for name in ("ann", "bob", "eve")]
    connections = [begin(visitor, {"query": ENDLESS}) for visitor in visitors[:QUERIES_MAX]]
    wait_until(lambda: len(query_processes(served[1].pid)) == QUERIES_MAX)
    for visitor, error in ((visitors[0], "a query of ann runs"), (visitors[2], "2 queries of other users")):
        answer = visitor.post("sql", {"query": "SELECT 1"})
        assert (answer.status, error in answer.content["error"]) == (429, True)
        assert int(answer.headers["Retry-After"]) > 0
    for connection in connections:
        connection.close()
    wait_until(lambda: visitors[2].post("sql", {"query": "SELECT 1"}).status == 200)


def test_taps_are_limited_by_user(served: Any) -> None:
    sessions = [signed_in(served[0], "ann"), signed_in(served[0], "ann"), signed_in(served[0], "eve")]
    taps = [tap(visitor) for visitor in (*sessions[:2], sessions[0], *sessions[2:] * 2)]
    assert [response.status for _, response in taps] == [200, 200, 429, 200, 200]
    assert b"2 taps of ann are open" in taps[2][1].read()
    close(*taps)


def test_a_query_has_a_role_a_token_and_a_line_in_the_audit_log(eve: Visitor, served: Any) -> None:
    stranger = Visitor(served[0])
    stranger.csrf = stranger.get("session")["csrf"]
    assert stranger.post("sql", {"query": "SELECT 1"}).status == 401
    assert eve.post("sql", {"query": "SELECT 1"}, X_CSRF_Token="").status == 403
    assert eve.post("sql", {"query": "SELECT 1"}, Origin="https://evil.example").status == 403
    assert eve.post("sql", {"query": "SELECT 1"}, **{"Content-Type": "text/plain"}).status == 415
    assert eve.send("GET", "/api/v1/sql?query=SELECT+1").status == 405
    assert eve.post("sql", {"query": "SELECT 'audited\n'", "topic": "plant/#"}).status == 200
    log = served[1].log_until("audited")
    line = next(line for line in log.splitlines() if "audited" in line)
    assert "console action action=sql user=eve role=viewer peer=127.0.0.1:" in line
    assert "topic=plant/#" in line


def test_a_console_without_users_runs_queries_of_this_machine_only(served: Any) -> None:
    with console(Path(runtime_of(served))) as (url, _):
        visitor = Visitor(url)
        assert visitor.post("sql", {"query": "SELECT count(*) FROM records"}).content["rows"] == [[11]]
        answer = visitor.post("sql", {"query": "SELECT 1"}, Sec_Fetch_Site="cross-site")
        assert answer.status == 403


def test_a_query_without_a_broker_names_it(tmp_path: Path) -> None:
    with memory_directory() as runtime, console(runtime) as (url, _):
        answer = Visitor(url).post("sql", {"query": "SELECT 1"})
        assert (answer.status, "no broker answers" in answer.content["error"]) == (503, True)


@pytest.mark.parametrize(
    ("status", "text", "answer", "error", "hint"),
    [
        (
            1,
            "brim sql: 3 records were missing\n  see `brim segments verify`\n",
            200,
            "3 records were missing",
            "",
        ),
        (1, "Traceback (most recent call last):\nValueError: hush\n", 500, "ended with status 1", "narrow"),
        (-9, "", 500, "ended with status -9", "narrow"),
        (2, "usage: brim sql\n", 500, "ended with status 2", "narrow"),
        (2, "brim sql: line 1\n  ^\n  the remedy\n", 400, "line 1\n  ^", "the remedy"),
        (5, "brim sql: the query took longer than 1 s\n  narrow it\n", 504, "longer than 1 s", "narrow it"),
    ],
)
def test_the_end_of_the_command_becomes_an_answer(
    status: int, text: str, answer: int, error: str, hint: str
) -> None:
    output = QueryOutput([], False, status, text)
    if answer == 200:
        assert error in _checked(output)
        return
    with pytest.raises(ApiError) as raised:
        _checked(output)
    assert (raised.value.status, error in str(raised.value), hint in raised.value.hint) == (
        answer,
        True,
        True,
    )
    assert "hush" not in str(raised.value)


def test_a_missing_library_is_named_with_its_remedy(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_DUCKDB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with console(Path(runtime_of(served))) as (url, _):
        answer = Visitor(url).post("sql", {"query": "SELECT 1"})
    assert answer.status == 400
    assert answer.content == {"error": "duckdb is not installed", "hint": install_extra("sql")}
