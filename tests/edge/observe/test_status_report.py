"""The broker's report: it always fits one answer, and leaves out details before facts."""

import asyncio
import threading
from contextlib import ExitStack
from typing import Any, cast

import pytest

from edge.broker.counters import ClientRow
from edge.config.schema import Config
from edge.local.protocol import ANSWER_MAX_BYTES, Report
from edge.observe import status_report
from edge.observe.health import troubles
from edge.observe.status_report import StatusReporter, _fitting, _lost
from edge.rpc.protocol import encode
from tests.support.mqtt_served import served
from tests.support.waiting import PATIENCE_S


def status(*, rings: int, readers: int, bridges: int, clients: int) -> dict[str, Any]:
    """As large as so many make it."""
    reader = {
        "name": "x" * 27,
        "pid": 1 << 22,
        "own": False,
        "state": "blocking",
        "lag": 1 << 60,
        "lost": 1 << 60,
    }
    partition = {
        "stream": "s" * 24,
        "partition": 63,
        "epoch": 1 << 31,
        "lag_records": 1 << 60,
        "error": "e" * 80,
    }
    client = {"client_id": "c" * 256, "connected": True, "queued": 1 << 20, "dropped": {"queue": 1 << 60}}
    return {
        "rings": [{"name": f"stream-{number}", "readers": [reader] * readers} for number in range(rings)],
        "bridges": [{"name": f"b{number}", "partitions": [partition] * rings} for number in range(bridges)],
        "clients": [client] * clients,
        "edge_id": "kept",
    }


DETAILS = ["readers", "partitions", "losses"]


@pytest.mark.parametrize(
    ("size", "shortened"),
    [
        ({"rings": 1, "readers": 3, "bridges": 1, "clients": 10}, []),
        ({"rings": 120, "readers": 16, "bridges": 1, "clients": 10}, ["readers"]),
        ({"rings": 120, "readers": 16, "bridges": 8, "clients": 10}, ["readers", "partitions"]),
        ({"rings": 120, "readers": 16, "bridges": 8, "clients": 500}, [*DETAILS, "clients"]),
    ],
)
def test_a_report_leaves_out_what_does_not_fit_and_says_so(size, shortened):
    report = _fitting(status(**size))
    assert report["shortened"] == shortened
    assert report["edge_id"] == "kept"
    assert len(report["rings"]) == size["rings"]
    assert len(encode(Report(report))) <= ANSWER_MAX_BYTES


def test_every_loss_has_its_cause_and_what_did_not_happen_is_not_shown():
    readers = [
        {"name": "app", "pid": 7, "lost": 3},
        {"name": "", "pid": 8, "lost": 1},
        {"name": "log", "pid": 1, "lost": 0},
    ]
    found = _lost(
        {
            "mqtt": {"dropped": {"queue": 2, "denied": 0}, "producer_lost": 0, "retained_refused": 4},
            "rings": [{"name": "r-0", "rejected": 5, "readers": readers}, {"name": "s@cam", "readers": []}],
            "zmq": {"overrun": 0, "full_queues": 1},
            "bridges": [{"name": "lake", "lost_by": {"overwritten": 9, "retention": 2}}],
        }
    )
    assert found == {
        "mqtt: queue": 2,
        "mqtt: delivered, but not retained: the store was full": 4,
        "r-0: refused, the ring was full": 5,
        "r-0: overrun of app (7)": 3,
        "r-0: overrun of reader (8)": 1,
        "zmq: a subscriber's queue was full (times)": 1,
        "bridge lake: overwritten in the ring before it was drained": 9,
        "bridge lake: removed from the log before it was drained": 2,
    }


def test_a_disk_that_does_not_answer_holds_no_report_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_report, "ANSWER_S", 0.05)
    answers, asked = threading.Event(), []

    def log() -> dict[str, Any]:
        asked.append(answers.wait(PATIENCE_S))
        return {"number": len(asked)}

    async def main() -> None:
        none = cast(Any, None)
        reporter = StatusReporter(none, "", none, none, none, none, log=log)
        answers.set()
        assert await reporter._log() == {"number": 1}
        answers.clear()
        for _ in range(2):
            found, *others = [it or {} for it in await asyncio.gather(*(reporter._log() for _ in range(4)))]
            assert [it["number"] for it in (found, *others)] == [1] * 4
        assert [it.part for it in troubles({"mqtt": {}, "log": found})] == ["log"]
        answers.set()
        while "silent_s" in found:
            await asyncio.sleep(0.01)
            found = await reporter._log() or {}
        assert troubles({"mqtt": {}, "log": found}) == []

    asyncio.run(main())
    assert len(asked) == 3


def test_reports_wait_for_the_first_answer_of_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it there are no figures, which metrics and `brim status` need."""
    monkeypatch.setattr(status_report, "ANSWER_S", 0.0)
    begun, answers = threading.Event(), threading.Event()

    def log() -> dict[str, Any]:
        begun.set()
        answers.wait(PATIENCE_S)
        return {"number": 1}

    async def main() -> None:
        none = cast(Any, None)
        reporter = StatusReporter(none, "", none, none, none, none, log=log)
        reports = [asyncio.create_task(reporter._log()) for _ in range(2)]
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        answers.set()
        assert await asyncio.gather(*reports) == [{"number": 1}] * 2

    asyncio.run(main())


@pytest.mark.parametrize(("seconds", "pages"), [(0.0, [0]), (PATIENCE_S, [0, 3, 6])])
def test_a_report_of_more_clients_than_can_be_visited_in_time_counts_the_others(
    monkeypatch: pytest.MonkeyPatch, seconds: float, pages: list[int]
) -> None:
    page_at, visited = StatusReporter._page, list[int]()

    def visit(reporter: StatusReporter, first: int) -> list[ClientRow]:
        visited.append(first)
        return page_at(reporter, first)

    monkeypatch.setattr(StatusReporter, "_page", visit)
    monkeypatch.setattr(status_report, "CLIENTS_S", seconds)
    monkeypatch.setattr(status_report, "CLIENTS_PAGE", 3)
    monkeypatch.setattr(status_report, "CLIENTS_SHOWN", 3)
    with served() as there, ExitStack() as clients:
        for number in range(8):
            clients.enter_context(there.client(f"c{number}"))
        reporter = StatusReporter(
            Config(), "1", cast(Any, None), cast(Any, None), there.listener, there.stats
        )
        rows, not_shown = asyncio.run(reporter._clients())
    assert (visited, len(rows), not_shown) == (pages, 3, 5)
