"""The page for Prometheus: its format by its parser, its numbers by the report; HTTP by clients."""

import asyncio
import gc
import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.drain.drain import Totals
from bridge.drain.status import BridgeState
from edge.config.loader import parse
from edge.errors import ConfigError
from edge.observe.http_endpoint import OPEN_MAX, Answer, HttpEndpoint
from edge.observe.metric_families import METRICS, keys_of
from edge.observe.prometheus import page
from edge.observe.status_report import _ring_row
from edge.transport.listen_sockets import bind_http
from ringbuf import Ring
from tests.support.children import ModuleChild
from tests.support.waiting import PATIENCE_S, until

families = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families

DELAYED = (
    "pending", "bytes", "delivered", "cancelled", "postponed", "invalid", "damaged", "too_large", "lost",
)  # fmt: skip


def times(*below: tuple[int, int], count: int, total_us: int) -> dict[str, Any]:
    return {"below_us": {str(bound): seen for bound, seen in below}, "count": count, "total_us": total_us}


def log(**numbers: object) -> dict[str, Any]:
    return {
        "directory": "/srv/log", "records": 7, "record_bytes": 2000, "written_bytes": 2100,
        "syncs": 3, "read_only": False, "written_per_record_byte": 1.05,
        "fsync": times((64, 1), (128, 3), count=4, total_us=5000),
        "reads": {"log_reads": 1, "log_bytes": 10, "archive_reads": 2, "archive_bytes": 20},
        "disk": {"used_bytes": 1, "free_bytes": 2, "disk_bytes": 3}, **numbers,
    }  # fmt: skip


def status(**parts: object) -> dict[str, Any]:
    """A report of everything."""
    reader = {"name": 'a "b"\\\n', "pid": 9, "lag": 4, "lost": 0}
    ring = {
        "name": "press-0", "stream": "press", "end_offset": 100, "capacity_bytes": 1 << 20,
        "unread_ratio": 0.25, "durability": "disk", "not_durable_bytes": 512, "rejected": 0,
        "readers": [reader],
    }  # fmt: skip
    mqtt = {
        "published": 5,
        "delivered": 9,
        "restored": 2,
        "connections": 1,
        "dropped": {"queue": 3},
        "closed": {},
    }
    bridge = BridgeState(
        "lake", "file:///lake", "retrying", lag_records=11, lag_s=2.5, buffer_left_s=7200.0,
        totals=Totals(records=1, dead_letters=3),
    ).as_dict()  # fmt: skip
    place = {"ring": "press-0", "lag": 6, "in_flight": 1}
    return {
        "version": "1", "edge_id": "plant-7", "uptime_s": 1.5, "mqtt": mqtt, "rings": [ring], "log": log(),
        "zmq": {"sent": 1, "overrun": 0, "full_queues": 0}, "bridges": [bridge],
        "consumers": [{"name": "billing", "places": [place]}], **parts,
    }  # fmt: skip


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Each sample by name and labels."""
    found = [sample for family in families(text) for sample in family.samples]
    named = {(it.name, tuple(sorted(it.labels.items()))): it.value for it in found}
    assert len(named) == len(found)  # a sample stands once
    return named


def test_every_metric_has_the_value_of_the_report() -> None:
    found = samples(page(status()))
    ring = (("ring", "press-0"), ("stream", "press"))
    log_label = (("log", "/srv/log"),)
    expected = {
        ("brim_build_info", (("edge_id", "plant-7"), ("version", "1"))): 1,
        ("brim_uptime_seconds", ()): 1.5,
        ("brim_mqtt_messages_received_total", ()): 5,
        ("brim_mqtt_dropped_total", (("cause", "queue"),)): 3,
        ("brim_ring_records_total", ring): 100,
        ("brim_ring_unread_ratio", ring): 0.25,
        ("brim_ring_not_durable_bytes", ring): 512,
        ("brim_log_records_total", log_label): 7,
        ("brim_log_written_per_record_byte", log_label): 1.05,
        ("brim_log_read_only", log_label): 0,
        ("brim_log_disk_free_bytes", ()): 2,
        ("brim_reads_total", (("source", "ring"),)): 7,
        ("brim_reads_total", (("source", "archive"),)): 2,
        ("brim_read_bytes_total", (("source", "log"),)): 10,
        ("brim_bridge_up", (("bridge", "lake"),)): 0,
        ("brim_bridge_lag_seconds", (("bridge", "lake"),)): 2.5,
        ("brim_bridge_buffer_left_seconds", (("bridge", "lake"),)): 7200,
        ("brim_bridge_dead_letters_total", (("bridge", "lake"),)): 3,
        ("brim_consumer_lag_records", (("consumer", "billing"), ("ring", "press-0"))): 6,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_times_are_a_histogram_in_seconds() -> None:
    (family,) = [it for it in families(page(status())) if it.name == "brim_log_fsync_seconds"]
    assert family.type == "histogram"
    buckets = {it.labels["le"]: it.value for it in family.samples if it.name.endswith("_bucket")}
    assert {le: buckets[le] for le in ("6.4e-05", "0.000128", "0.000256", "+Inf")} == {
        "6.4e-05": 1, "0.000128": 3, "0.000256": 4, "+Inf": 4,
    }  # fmt: skip
    rest = {it.name.rpartition("_")[2]: it.value for it in family.samples if not it.name.endswith("_bucket")}
    assert rest == {"sum": 0.005, "count": 4}


def test_other_peoples_names_do_not_break_the_page() -> None:
    found = samples(page(status()))
    names = {dict(labels)["reader"] for name, labels in found if name == "brim_ring_reader_lag_records"}
    assert names == {'a_"b"\\'}


def test_each_of_several_logs_has_its_label() -> None:
    several = [log(directory="/a"), log(directory="/b", records=1)]
    found = samples(page(status(log={**log(), "logs": several})))
    records = {labels: value for (name, labels), value in found.items() if name == "brim_log_records_total"}
    assert records == {(("log", "/a"),): 7, (("log", "/b"),): 1}


def test_a_counter_and_a_gauge_are_told_apart() -> None:
    kinds = {family.name: family.type for family in families(page(status()))}
    assert kinds["brim_log_records"] == "counter"
    assert (
        kinds["brim_log_unsynced_bytes" if "brim_log_unsynced_bytes" in kinds else "brim_uptime_seconds"]
        == "gauge"
    )


def test_a_broker_without_a_log_or_bridge_has_a_page_too() -> None:
    found = samples(page(status(log=None, zmq=None, bridges=[], rings=[], consumers=[])))
    assert ("brim_uptime_seconds", ()) in found


# ---- by HTTP ----


@pytest.fixture
async def endpoint() -> AsyncIterator[HttpEndpoint]:
    async def made(_allowed: bool) -> Answer:
        return Answer(200, b"brim_x 1\n")

    served = HttpEndpoint(bind_http("127.0.0.1:0", "metrics.listen"), {"/metrics": made})
    await served.start()
    yield served
    await served.stop()


async def ask(endpoint: HttpEndpoint, request: bytes) -> tuple[int, bytes]:
    """Status and body."""
    port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]:9464\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nhost: evil.example:9464\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: 192.0.2.7\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /metrics HTTP/1.1\r\nHost: [\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
        (b"x" * 100_000, 400),
    ],
)
async def test_a_request_is_answered(endpoint, request_bytes, status):
    found, body = await ask(endpoint, request_bytes)
    assert found == status
    assert (body == b"brim_x 1\n") == (status == 200)


async def test_connections_that_send_no_request_exclude_no_other(endpoint):
    port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(OPEN_MAX)]
    for _, writer in idle:
        writer.write(b"GET /metrics")
    await until(lambda: endpoint.connections == OPEN_MAX)
    for _ in range(3):
        assert (await ask(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200
    with suppress(ConnectionResetError):
        assert await idle[0][0].read() == b""  # the oldest one made room
    for _, writer in idle:
        writer.close()


async def test_a_page_that_cannot_be_made_is_a_500_and_the_next_may_do():
    async def broken(_allowed: bool) -> Answer:
        raise RuntimeError("no")

    served = HttpEndpoint(bind_http("127.0.0.1:0", "metrics.listen"), {"/metrics": broken})
    await served.start()
    assert (await ask(served, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 500
    await served.stop()


async def test_clients_that_leave_before_their_answer_cost_no_log_line(caplog):
    """By a reset: the socket is then no longer connected when the answer is done."""
    reset = struct.pack("ii", 1, 0)
    ready, asked = asyncio.Event(), asyncio.Event()

    async def slow(_allowed: bool) -> Answer:
        asked.set()
        await ready.wait()
        return Answer(200, b"brim_x 1\n")

    served = HttpEndpoint(bind_http("127.0.0.1:0", "metrics.listen"), {"/metrics": slow})
    await served.start()
    port = int(served.url.rpartition(":")[2].partition("/")[0])
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    for _ in range(20):
        ready.clear()
        asked.clear()
        client = socket.create_connection(("127.0.0.1", port), 20.0)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asked.wait()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        client.close()
        ready.set()
        await until(lambda: not served.connections)
    assert (await ask(served, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200
    await served.stop()
    gc.collect()
    assert failures == []
    assert caplog.records == []


async def test_a_page_that_cannot_be_made_is_logged_seldom(caplog):
    async def broken(_allowed: bool) -> Answer:
        raise RuntimeError("no")

    served = HttpEndpoint(bind_http("127.0.0.1:0", "metrics.listen"), {"/metrics": broken})
    await served.start()
    for _ in range(20):
        assert (await ask(served, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 500
    await served.stop()
    assert len(caplog.records) == 1


def test_two_readers_of_one_name_are_one_sample() -> None:
    """A cursor file is its reader's to write: a page with a sample twice would be refused as a whole."""
    facts = status()
    facts["rings"][0]["readers"] *= 2
    assert samples(page(facts))


def test_the_name_of_a_reader_is_shown_escaped(runtime_directory: Path) -> None:
    with Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 16, epoch=1) as ring:
        reader = ring.reader(name='\x1b[2J"\r\n\x00\u202e')
        (facts,) = _ring_row(ring)["readers"]
        assert facts["name"] == '\\x1b[2J"\\r\\n'
        reader.close()


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("0.0.0.0:9464", "is reached from other machines"),
        ("9464", "is not an address"),
        ("127.0.0.1:x", "is not an address"),
    ],
)
def test_metrics_are_for_this_machine(listen, said):
    with pytest.raises(ConfigError, match=said):
        parse(f'[metrics]\nlisten = "{listen}"')


def test_a_broker_serves_its_numbers(runtime_directory: Path, tmp_path: Path) -> None:
    settings = (
        '[metrics]\nlisten = "127.0.0.1:0"\n[[listener]]\nport = 0\n'
        '[[stream]]\nname = "all"\ntopics = ["#"]\ndurability = "disk"\n'
    )
    (tmp_path / "brim.toml").write_text(settings)
    directories = ("--runtime-dir", runtime_directory, "--state-dir", tmp_path)
    log_format = ("--log-format", "json")
    with ModuleChild("edge", "run", "--config", tmp_path / "brim.toml", *directories, *log_format) as broker:
        port = int(broker.lines_until("brim status")[0].partition("mqtt 127.0.0.1:")[2].partition(",")[0])
        with ModuleChild("edge", "pub", "a/b", "x", "-q", "1", "--repeat", 5, "--port", port) as publisher:
            assert publisher.wait()[0] == 0
        with ModuleChild("edge", "status", "--json", "--runtime-dir", runtime_directory) as asked:
            told = json.loads(asked.wait()[1])
        with urllib.request.urlopen(told["metrics"], timeout=PATIENCE_S) as answer:
            found = samples(answer.read().decode())
        broker.stop()
    assert found["brim_mqtt_messages_received_total", ()] == told["mqtt"]["published"] == 5
    where = (("log", str(tmp_path / "log")),)
    assert found["brim_log_records_total", where] == told["log"]["records"] == 5
    assert 1 <= found["brim_log_commit_seconds_count", where] <= 5  # several records may share a sync
    assert found["brim_log_disk_used_bytes", ()] > 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(told["metrics"], timeout=PATIENCE_S)


UPKEEP = {
    "bytes_by_state": {"sealed": 4}, "bytes_by_stream": {"press": 4}, "forced_records": {"press": 1},
    "unread_records": {"billing": 2}, "archive": {"ratio": 10.5}, "scrub": {"read_bytes": 5, "damaged": 0},
}  # fmt: skip


def everything() -> dict[str, Any]:
    """A report in which no key of the table is missing."""
    found = status()
    for name, metric in METRICS.items():
        section, _, key = metric.json.rpartition(".")
        if section in {"mqtt", "log"}:
            value = times((64, 1), count=1, total_us=50) if metric.kind == "histogram" else 1
            found[section].setdefault(key, value)
        assert metric.about, name
    ring = {**found["rings"][0], "damaged": 1, "refused": {"full": 1}}
    bridge = found["bridges"][0] | dict.fromkeys(("buffer_left_s", "last_ack_age_s", "stalled_s"), 1.0)
    bridge |= {"omitted": {"expired": 2}}
    loss = {"stream": "press", "partition": 0, "lost_by": {"retention": 4}, "skipped_records": 7}
    found["log"]["maintenance"] = UPKEEP
    found["mqtt"]["closed"] = {"timeout": 1}
    found["mqtt"]["refused"] = {"not authorized": 1}
    return found | {
        "delayed": dict.fromkeys((*DELAYED, "refuses"), 1),
        "tenants": [{"name": "acme", "refused": {"topics": 2}} | dict.fromkeys(keys_of("tenants[]"), 1)],
        "rings": [ring], "bridges": [bridge | {"losses": [loss]}], "watchdog": {"stalls": 1, "stalled_s": 0},
    }  # fmt: skip


def test_every_metric_of_the_table_is_on_the_page_with_its_type_and_labels() -> None:
    found = list(families(page(everything())))
    types = {f"{it.name}_total" if it.type == "counter" else it.name: it.type for it in found}
    assert types == {name: metric.kind for name, metric in METRICS.items()}
    for family in found:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(METRICS[name].labels), name
