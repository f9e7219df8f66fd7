"""From publishers to the lake, once in each way: the line is cut, the bridge is killed; `./dev simulate
pipeline` and `overflow` do it with Spark and a table, until ten million records have gone through.

And that the ledger would see it: tables that are wrong in each way, and bridges with a mistake.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")
pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")

import numpy as np  # noqa: E402

from tests.campaigns.pipeline import check_table  # noqa: E402
from tests.support.cut_line import KINDS  # noqa: E402
from tests.support.lake_ledger import (  # noqa: E402
    COLUMNS,
    Place,
    check_complete,
    check_report,
    lost_of,
    missing_in,
)
from tests.support.mass_publisher import Ledger, payloads  # noqa: E402
from tests.support.outside_client import Lost  # noqa: E402
from tests.support.pipeline import AGAIN, Form, Pipeline, check  # noqa: E402
from tests.support.s3_server import s3_server  # noqa: E402
from tests.support.upstreams import CutDisk, CutS3, may_mount  # noqa: E402

SMALL_FILES = "file_bytes = 16384"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def made(runtime_directory: Path, tmp_path: Path, s3: str) -> Callable[..., Pipeline]:
    def make(form: Form, *bridge: str) -> Pipeline:
        how = bridge or ("edge",)
        return Pipeline(form, runtime_directory, tmp_path, CutS3(s3), settings=SMALL_FILES, bridge=how)

    return make


def test_cut_in_every_way_and_killed_the_bridge_drains_each_record_once(
    made: Callable[..., Pipeline],
) -> None:
    with made("kept") as pipeline:
        cut_and_kill(pipeline)
        assert pipeline.records == 5 * 600 * len(KINDS)
        assert any(it.again for it in pipeline.ledgers)


def cut_and_kill(pipeline: Pipeline) -> None:
    """Each cut once; the bridge dies in every second, and in the last."""
    pipeline.start_bridge()
    for number, kind in enumerate(pipeline.upstream.kinds, 1):
        pipeline.until_state(bool, "there")
        pipeline.upstream.cut(kind)
        pipeline.publish(600 * number - AGAIN)
        pipeline.reconnect(number % len(pipeline.publishers))
        pipeline.publish(600 * number)
        if number % 2:
            pipeline.kill_bridge()
            pipeline.start_bridge()
        pipeline.upstream.mend()
    pipeline.settle()
    assert not any(check(pipeline).values())


@pytest.mark.skipif(not may_mount(), reason="needs root, to mount")
def test_a_disk_that_is_full_or_away_gets_each_record_once(runtime_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    disk = CutDisk(tmp_path / "mount", 16 << 20)
    with Pipeline("kept", runtime_directory, tmp_path, disk, settings=SMALL_FILES) as pipeline:
        cut_and_kill(pipeline)


def lose_some(pipeline: Pipeline) -> None:
    """A cut that rings and log are too small for."""
    pipeline.start_bridge()
    pipeline.publish(300)
    pipeline.until_state(lambda state: state["totals"]["records"] > 0, "at work")
    pipeline.upstream.cut("refused")
    pipeline.publish(30_000)
    pipeline.kill_bridge()
    pipeline.upstream.reset()
    pipeline.start_bridge()
    pipeline.settle()


def test_what_a_buffer_that_is_too_small_loses_is_declared_to_the_offset(
    made: Callable[..., Pipeline],
) -> None:
    with made("small") as pipeline:
        lose_some(pipeline)
        missing = check(pipeline)
    assert len(missing) == 3
    assert all(missing.values())


# ---- that it would be seen ----

LEDGER = Ledger(7, "kept/a", 20, sent=10, acked=9, again=[(4, 6)])
PLACE = Place("edge-1", "kept", 0, 1)


def table_with(numbers: list[int], offsets: list[int] | None = None, spoil: int | None = None) -> Any:
    found = payloads(LEDGER, np.array(numbers, np.int64))
    if spoil is not None:
        found[spoil, -1] ^= 1
    rows = zip(offsets or range(len(numbers)), [bytes(it) for it in found], strict=True)
    columns = zip(*((*PLACE, offset, LEDGER.topic, payload) for offset, payload in rows), strict=True)
    return pa.table(dict(zip(COLUMNS, map(list, columns), strict=True)))


@pytest.mark.parametrize(
    "numbers", [[*range(9)], [*range(10)], [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8]], ids=["acked", "sent", "again"]
)
def test_what_was_promised_is_complete(numbers: list[int]) -> None:
    check_complete(table_with(numbers), [LEDGER])


@pytest.mark.parametrize(
    "numbers",
    [[*range(8)], [0, *range(2, 9)], [*range(9), 3], [*range(9), 4, 4], [*range(11)]],
    ids=["last lost", "one lost", "twice", "three times", "never sent"],
)
def test_what_is_lost_or_too_much_is_seen(numbers: list[int]) -> None:
    with pytest.raises(Lost):
        check_complete(table_with(numbers), [LEDGER])


def test_bytes_places_orders_and_strangers_are_looked_at() -> None:
    with pytest.raises(AssertionError, match="not what was published"):
        check_complete(table_with([*range(9)], spoil=3), [LEDGER])
    with pytest.raises(Lost, match="nobody has published"):
        check_complete(table_with([*range(9)]), [])
    with pytest.raises(Lost, match="order"):
        check_complete(table_with([1, 0]), [Ledger(7, "kept/a", 20, sent=2, acked=2)])
    with pytest.raises(Lost, match="twice"):
        missing_in(table_with([0, 1, 2], [0, 1, 1]))
    assert missing_in(table_with([0, 1, 2], [1, 2, 5])) == {PLACE: [(0, 0), (3, 4)]}
    with pytest.raises(Lost, match="at the offset"):
        lost_of(table_with([0, 1], [0, 2]), LEDGER)
    assert lost_of(table_with([0, 1, 5], [0, 1, 5]), LEDGER) == (PLACE, [(2, 4), (6, 8)])


def report_of(**changes: Any) -> dict[str, Any]:
    epoch = {**PLACE._asdict(), "lost": [(2, 4)], "skipped": [], "missing": [], "doubled": []}
    edge = {"edge": "edge-1", "first": 1, "last": 3, "missing": [], "doubled": []}
    row = {**PLACE._asdict(), "missing": [], "doubled": 0, "unknown": [], "quarantined": 0}
    parts = {"epochs": epoch, "edges": edge, "table": row}
    for key, change in changes.items():
        parts[key] = {**parts[key], **change}
    return {"verdict": "lost", "unreadable": [], **{key: [it] for key, it in parts.items()}}


def test_a_report_that_is_right_is_taken() -> None:
    check_report(report_of(), {PLACE: [(2, 4)]})


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": {"lost": [(2, 3)]}},
        {"epochs": {"lost": [(2, 4), (7, 7)]}},
        {"epochs": {"missing": [(7, 7)]}},
        {"epochs": {"skipped": [(7, 7)]}},
        {"epochs": {"doubled": [(7, 7)]}},
        {"edges": {"doubled": [2]}},
        {"edges": {"missing": [(2, 2)]}},
        {"edges": {"first": 2}},
        {"table": {"doubled": 1}},
        {"table": {"missing": [(7, 7)]}},
        {"table": {"quarantined": 1}},
    ],
    ids=str,
)
def test_a_report_that_says_anything_else_is_not_taken(changes: dict[str, Any]) -> None:
    with pytest.raises(Lost):
        check_report(report_of(**changes), {PLACE: [(2, 4)]})


def planted(mistake: str) -> tuple[str, str]:
    return "tests.support.planted_bridge", mistake


@pytest.mark.campaign
def test_a_range_of_lost_records_that_is_short_by_one_is_caught(made: Callable[..., Pipeline]) -> None:
    with made("small", *planted("miscounting")) as pipeline:
        lose_some(pipeline)
        with pytest.raises(Lost, match="report says lost"):
            check(pipeline)


@pytest.mark.campaign
def test_a_bridge_that_goes_on_before_the_sink_has_answered_is_caught(made: Callable[..., Pipeline]) -> None:
    with made("kept", *planted("careless")) as pipeline:
        pipeline.start_bridge()
        pipeline.publish(300)
        pipeline.until_state(lambda state: state["totals"]["records"] > 0, "at work")
        pipeline.upstream.cut("full")
        pipeline.publish(2000)
        pipeline.until_state(lambda state: state["lag_records"] == 0, "done")
        pipeline.settle()
        with pytest.raises(Lost, match="are lost"):
            check(pipeline)


@pytest.mark.campaign
def test_a_cursor_that_goes_too_far_is_caught(made: Callable[..., Pipeline]) -> None:
    with made("kept", *planted("hopping")) as pipeline:
        pipeline.start_bridge()
        for each in (100, 200, 300):
            pipeline.publish(each)
            pipeline.work(0.2)
        pipeline.settle()
        with pytest.raises(Lost, match="are lost"):
            check(pipeline)


@pytest.mark.campaign
@pytest.mark.parametrize("then", [("edge",), planted("renaming")], ids=["honest", "renaming"])
def test_killed_between_a_put_and_its_checkpoint_only_another_name_doubles(
    made: Callable[..., Pipeline], then: tuple[str, ...]
) -> None:
    with made("kept", *planted("dying")) as pipeline:
        pipeline.publish(300)
        pipeline.start_bridge()
        pipeline.until_bridge_has_died()
        pipeline.bridge = then
        pipeline.start_bridge()
        pipeline.settle()
        if then == ("edge",):
            assert not any(check(pipeline).values())
        else:
            with pytest.raises(Lost):
                check(pipeline)


@pytest.mark.campaign
@pytest.mark.java
@pytest.mark.timeout(580)
@pytest.mark.parametrize("job", ["bridge.spark.jobs.bronze", "tests.support.planted_bronze"])
def test_killed_while_it_writes_only_a_job_that_believes_too_early_loses_records(
    made: Callable[..., Pipeline], job: str
) -> None:
    with made("kept") as pipeline:
        pipeline.start_bridge()
        pipeline.publish(2_000)
        pipeline.settle()
        pipeline.spark = job
        pipeline.start_spark()
        while pipeline.batches < 3:
            assert pipeline.spark_runs
            pipeline.work(0.01)
        assert pipeline.kill_spark()
        if job.startswith("bridge"):
            check_table(pipeline)
        else:
            with pytest.raises(Lost, match="are lost"):
                check_table(pipeline)
