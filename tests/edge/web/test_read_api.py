"""The management API of a console without users, with a broker that runs."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.mqtt import PingReq, Publish, Subscribe, Subscription, encode
from edge.web.action_api import ACTIONS
from edge.web.read_api import READS
from tests.support.abuse import V5, connected
from tests.support.brim_process import BrimProcess
from tests.support.directories import memory_directory
from tests.support.waiting import wait_until
from tests.support.web_console import Visitor, console

SETTINGS = "[[stream]]\nname = 'fast'\ntopics = ['fast/#']\ndurability = 'disk'\n"
HOSTILE = "a/<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrimProcess]:
    with (
        memory_directory() as runtime,
        BrimProcess(runtime, tmp_path_factory.mktemp("web"), SETTINGS) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def visitor(broker: BrimProcess) -> Iterator[Visitor]:
    with console(broker.runtime_dir) as (url, _):
        yield Visitor(url)


def publish(broker: BrimProcess, *messages: Publish) -> None:
    with connected(broker.port, "publisher", V5) as client:
        for message in messages:
            client.sendall(encode(message, V5))
        client.sendall(encode(PingReq(), V5))
        assert client.recv(1 << 16)


def test_the_overview_has_samples_for_the_charts_and_the_state_of_the_broker(visitor: Visitor) -> None:
    wait_until(lambda: len(visitor.get("overview")["samples"]) > 1)
    answer = visitor.get("overview")
    assert answer["state"]["edge_id"] == "here"
    assert {ring["ring"] for ring in answer["state"]["rings"]} == {"fast-0", "default-0"}
    numbers = [row["number"] for row in answer["samples"]]
    assert numbers == sorted(set(numbers))
    assert {"time_s", "in", "out", "lost", "bridge_lag"} <= answer["samples"][-1].keys()
    assert visitor.get("overview", since=answer["number"] + 1_000)["samples"] == []


def test_clients_are_sorted_filtered_and_paged(broker: BrimProcess, visitor: Visitor) -> None:
    with connected(broker.port, HOSTILE, V5) as client, connected(broker.port, "plc-2", V5):
        client.sendall(encode(Subscribe(1, (Subscription("x/#", 1), Subscription("y", 0))), V5))
        assert client.recv(99)
        wait_until(lambda: visitor.get("clients", text="plc-2")["total"] == 1)
        rows = visitor.get("clients", sort="subscriptions", count=1)["rows"]
        assert [(row["client_id"], row["subscriptions"]) for row in rows] == [(HOSTILE, 2)]
        assert visitor.get("clients", first=1, count=1)["rows"][0]["client_id"] == "plc-2"
        assert visitor.get("clients", state="away")["rows"] == []
        details = visitor.get("client", client_id=HOSTILE)
        assert [row["filter"] for row in details["filters"]] == ["x/#", "y"]
    answer = visitor.send("GET", "/api/v1/client?client_id=nobody-is-called-so")
    assert (answer.status, "no session" in answer.content["error"]) == (409, True)


def test_topics_have_sums_rates_values_and_series(broker: BrimProcess, visitor: Visitor) -> None:
    values = [Publish("tree/1/temp", str(20 + n).encode()) for n in range(5)]
    deep = Publish("tree/1/motor", b'{"rpm": 1450, "on": true, "name": "m", "deep": {"a": 1.5}}')
    publish(broker, *values, deep, Publish("tree/kept", b"\xff\x00", retain=True), Publish(HOSTILE, b"x"))
    wait_until(lambda: visitor.get("topics", prefix="tree/1")["total"] == 2)
    rows = {row["topic"]: row for row in visitor.get("topics")["rows"]}
    assert (rows["tree"]["topics"], rows["tree"]["count"], rows["tree"]["value"]) == (3, 7, None)
    rows = {row["topic"]: row for row in visitor.get("topics", prefix="tree")["rows"]}
    assert rows["tree/kept"]["value"] == "/wA="
    wait_until(lambda: visitor.get("topics", text="KEPT")["rows"][0]["retained"])
    assert [row["topic"] for row in visitor.get("topics", text="onerror")["rows"]] == [HOSTILE]
    assert visitor.get("topics", prefix="tree/1", sort="count")["rows"][0]["name"] == "temp"
    series = visitor.get("topic", topic="tree/1/temp")
    assert [value for _, value in series["fields"][""]] == [20, 21, 22, 23, 24]
    assert series["messages"][0]["payload"] == "24"
    fields = visitor.get("topic", topic="tree/1/motor")["fields"]
    assert {name: points[0][1] for name, points in fields.items()} == {"rpm": 1450, "on": 1, "deep.a": 1.5}
    assert visitor.send("GET", "/api/v1/topic?topic=a/%23").status == 400


def test_retained_messages_are_listed(broker: BrimProcess, visitor: Visitor) -> None:
    publish(broker, Publish("kept/1", b"on", retain=True))
    rows = visitor.get("retained", filter="kept/#")["rows"]
    assert [(row["topic"], row["payload"]) for row in rows] == [("kept/1", "on")]
    assert visitor.send("GET", "/api/v1/retained?filter=a%23").status == 409


def test_the_tap_shows_messages_as_they_pass_and_counts_what_it_skips(
    broker: BrimProcess, visitor: Visitor
) -> None:
    connection = http.client.HTTPConnection(visitor.host, visitor.port, timeout=30)
    connection.request("GET", "/api/v1/tap?filter=tap/%23")
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("application/x-ndjson")
    json.loads(response.readline())  # its readers are attached
    publish(broker, *(Publish(f"tap/{n}", b"\xff") for n in range(400)), Publish("other", b"x"))
    topics: list[str] = []
    skipped = 0
    while len(topics) + skipped < 400:
        row = json.loads(response.readline())
        topics += [message["topic"] for message in row["messages"]]
        skipped += row["skipped"]
    connection.close()
    assert topics[0] == "tap/0"
    assert all(topic.startswith("tap/") for topic in topics)
    assert skipped > 0


def tap(visitor: Visitor) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(visitor.host, visitor.port, timeout=30)
    connection.request("GET", "/api/v1/tap", headers={"Cookie": visitor.cookie} if visitor.cookie else {})
    response = connection.getresponse()
    if response.status == 200:
        response.readline()
    return connection, response


def close(*taps: tuple[http.client.HTTPConnection, http.client.HTTPResponse]) -> None:
    for connection, response in taps:
        response.close()
        connection.close()


def test_taps_are_bounded_and_their_places_are_free_again(visitor: Visitor) -> None:
    def four() -> bool:
        taps = [tap(visitor) for _ in range(5)]
        statuses = [response.status for _, response in taps]
        retry = taps[-1][1].headers["Retry-After"]
        close(*taps)
        return statuses == [200, 200, 200, 200, 429] and retry == "6"

    wait_until(four)  # an earlier tap may still be closing
    wait_until(four)


def test_streams_log_bridges_and_consumers_are_those_of_the_broker(visitor: Visitor) -> None:
    streams = visitor.get("streams")
    assert {stream["name"] for stream in streams["streams"]} == {"fast", "default"}
    assert {ring["durability"] for ring in streams["rings"]} == {"disk", "process"}
    assert visitor.get("log")["log"]["failures"] == 0
    assert [
        (one["name"], one["condition"] in {"idle", "draining"}) for one in visitor.get("bridges")["bridges"]
    ] == [("lake", True)]
    assert visitor.get("consumers") == {"consumers": []}


@pytest.mark.parametrize(
    "query",
    ["clients?first=-1", "clients?count=501", "clients?sort=no", "clients?what=1", "client", "topics?first=x",
     "topic?topic=", "tap?filter=" + "a" * 1_025, "overview?since=-1", "tap?filter=a%23"],
)  # fmt: skip
def test_invalid_parameters_are_refused_with_their_reason(query: str, visitor: Visitor) -> None:
    answer = visitor.send("GET", f"/api/v1/{query}")
    assert answer.status == 400
    assert answer.content["error"]


@pytest.mark.parametrize("endpoint", ACTIONS, ids=lambda endpoint: endpoint.path)
def test_a_console_without_users_changes_nothing(
    endpoint: Any, broker: BrimProcess, visitor: Visitor
) -> None:
    with connected(broker.port, "stays", V5) as client:
        body = {
            "client_id": "stays",
            "filter": "#",
            "topic": "t",
            "bridge": "lake",
            "group": "g",
            "to": "oldest",
        }
        answer = visitor.send(
            endpoint.method, endpoint.path, json.dumps(body).encode(), Content_Type="application/json"
        )
        assert (answer.status, "no users" in answer.content["error"]) == (403, True)
        client.sendall(encode(PingReq(), V5))
        assert client.recv(2) == encode(PingReq(), V5).replace(b"\xc0", b"\xd0")


def test_the_configuration_is_for_signed_in_users(visitor: Visitor) -> None:
    assert visitor.send("GET", "/api/v1/settings").status == 403
    assert visitor.get("session") == {
        "user": "",
        "role": "anonymous",
        "login": False,
        "reads": True,
        "csrf": "",
    }
    answer = visitor.post("session", {"user": "ann", "password": "x"})
    assert (answer.status, answer.content["hint"]) == (409, "set web.users_file, or start with --users")


def test_log_lines_need_a_user(visitor: Visitor) -> None:
    answer = visitor.send("GET", "/api/v1/log-lines")
    assert (answer.status, "operator" in answer.content["error"]) == (403, True)


def test_every_read_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [it.path for it in READS if it.path.rpartition("/")[2] not in text] == []


def test_a_broker_that_ends_is_named_and_waited_for(tmp_path: Path) -> None:
    with memory_directory() as runtime:
        broker = BrimProcess(runtime, tmp_path, bridge=False)
        with console(runtime) as (url, _):
            visitor = Visitor(url)
            answer = visitor.send("GET", "/api/v1/clients")
            assert (answer.status, "no broker answers" in answer.content["error"]) == (503, True)
            assert "no broker answers" in visitor.get("overview")["error"]
            broker.start()
            assert visitor.get("clients")["clients"] == 0
            broker.kill()
            assert visitor.send("GET", "/api/v1/retained").status == 503
            broker.start()
            assert visitor.get("retained")["rows"] == []
        broker.stop()
