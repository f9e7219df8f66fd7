"""A short history of `./dev simulate mixed`, and its ledger."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[archive]'")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.campaigns.mixed import run_seed
from tests.support.mixed_ledger import MixedLedger
from tests.support.outside_client import payload_of

EVENTS = ("back_up", "restart_second", "kill", "query")


def test_a_killed_broker_with_all_features_loses_nothing() -> None:
    counts, wrong = run_seed(1, EVENTS)
    assert not wrong
    for name in ("acknowledged", "kills", "kills of the second broker", "brim sql", "brim restore"):
        assert counts[name] > 0, counts


def test_the_ledger_reports_what_is_missing_and_what_is_twice(tmp_path: Path) -> None:
    ledger = MixedLedger()
    rows = [
        {"stream": "b", "epoch": 1, "offset": it, "topic": "b/1", "payload": payload_of(it)} for it in (0, 2)
    ]
    pq.write_table(pa.Table.from_pylist([*rows, rows[0]]), tmp_path / "rows.parquet")
    ledger.compare_rows(tmp_path, {"b/1": {0, 1, 2}, "c/1": {7}}, "the lake")
    (tmp_path / "member").write_text("0,2\n")
    ledger.compare_group([tmp_path / "member"], {"b/1": {0, 1, 2}})
    ledger.read_log("2026-01-01 INFO brim.a: b\n2026-01-01 ERROR brim.a: c\n")
    assert ledger.wrong == [
        "b/1: 1 of 3 acknowledged did not reach the lake: 1 to 1",
        "c/1: 1 of 1 acknowledged did not reach the lake: 7 to 7",
        "1 records are twice in the lake",
        "1 records did not reach the group: number 1 first",
        "the broker logged: 2026-01-01 ERROR brim.a: c",
    ]
