"""The page, the alert rules and the dashboard: clean for promtool, and made of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edge.observe.metric_families import METRICS
from edge.observe.prometheus import page
from tests.edge.observe.test_prometheus import everything
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S

RULES = ROOT / "release" / "monitoring" / "prometheus" / "brim.rules.yml"
DASHBOARD = ROOT / "release" / "monitoring" / "grafana" / "brim.json"
NAME = re.compile(r"\b(?:brim|process)_[a-z_]+\b")
SERIES = {name for name, metric in METRICS.items() if metric.kind != "histogram"} | {
    f"{name}_{part}"
    for name, metric in METRICS.items()
    if metric.kind == "histogram"
    for part in ("bucket", "sum", "count")
}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)

# Series that make each alert fire, in steps of a minute, and those of a broker without trouble.
LABELS = 'job="brim",instance="edge"'
GROWS, SOUND = "0+10x60", "5x60"
FIRING = {
    "BrimDown": {"up": "0x60"},
    "BrimNotReady": {"brim_ready": "0x60"},
    "BrimStalled": {"brim_stalls_total": "0x44 1x16"},
    "BrimFilesMissing": {"brim_missing_files": "1x60"},
    "BrimMessagesDropped": {'brim_mqtt_dropped_total{cause="queue_full"}': GROWS},
    "BrimLoginsRefused": {'brim_mqtt_refused_connects_total{cause="not_authorized"}': "0+120x60"},
    "BrimRingDamaged": {"brim_ring_damaged_total": "0x10 1x50"},
    "BrimRingNearlyFull": {"brim_ring_unread_ratio": "0.95x60"},
    "BrimLogFailing": {"brim_log_failed_writes_total": GROWS, "brim_log_failed_syncs_total": SOUND},
    "BrimLogReadOnly": {"brim_log_read_only": "1x60"},
    "BrimLogDamaged": {"brim_log_damaged_places": "1x60"},
    "BrimDiskNearlyFull": {"brim_log_disk_free_bytes": "5x60", "brim_log_disk_bytes": "100x60"},
    "BrimSyncsSlow": {
        'brim_log_fsync_seconds_bucket{le="0.5"}': "0x60",
        'brim_log_fsync_seconds_bucket{le="1"}': GROWS,
        'brim_log_fsync_seconds_bucket{le="+Inf"}': GROWS,
    },
    "BrimDeliverySlow": {
        'brim_mqtt_delivery_seconds_bucket{le="1"}': "0x60",
        'brim_mqtt_delivery_seconds_bucket{le="2"}': GROWS,
        'brim_mqtt_delivery_seconds_bucket{le="+Inf"}': GROWS,
    },
    "BrimDrainSlow": {
        'brim_bridge_drain_seconds_bucket{bridge="lake",le="30"}': "0x60",
        'brim_bridge_drain_seconds_bucket{bridge="lake",le="600"}': GROWS,
        'brim_bridge_drain_seconds_bucket{bridge="lake",le="+Inf"}': GROWS,
    },
    "BrimRecordsDeletedUnread": {"brim_log_unread_records_total": GROWS},
    "BrimBridgeDown": {"brim_bridge_up": "0x60"},
    "BrimBridgeRestarts": {'brim_bridge_restarts_total{bridge="lake"}': "0x10 1x50"},
    "BrimBridgeBlocked": {"brim_bridge_blocked_partitions": "1x60"},
    "BrimBridgeBufferEnds": {"brim_bridge_buffer_left_seconds": "60x60"},
    "BrimBridgeLosesRecords": {'brim_bridge_never_drained_total{cause="retention"}': GROWS},
    "BrimBridgeDeadLetters": {"brim_bridge_dead_letters_total": GROWS},
    "BrimBridgeRescuedRecords": {'brim_bridge_rescued_records_total{bridge="lake"}': "0x10 3x50"},
    "BrimDelayedRefused": {"brim_delayed_refuses": "1x60"},
    "BrimDelayedDropped": {'brim_delayed_dropped_total{cause="damaged"}': "0x10 1x50"},
    "BrimConsumerBehind": {"brim_consumer_lag_records": "200000x60"},
    "BrimDescriptorsNearlyUsed": {"process_open_fds": "95x60", "process_max_fds": "100x60"},
}
WELL = {
    "up": "1x60",
    "brim_ready": "1x60",
    "brim_missing_files": "0x60",
    "brim_stalls_total": SOUND,
    'brim_mqtt_dropped_total{cause="queue_full"}': SOUND,
    'brim_mqtt_refused_connects_total{cause="not_authorized"}': GROWS,
    "brim_ring_damaged_total": SOUND,
    "brim_ring_unread_ratio": "0.5x60",
    "brim_log_failed_writes_total": SOUND,
    "brim_log_failed_syncs_total": SOUND,
    "brim_log_read_only": "0x60",
    "brim_log_damaged_places": "0x60",
    "brim_log_disk_free_bytes": "50x60",
    "brim_log_disk_bytes": "100x60",
    'brim_log_fsync_seconds_bucket{le="0.5"}': GROWS,
    'brim_log_fsync_seconds_bucket{le="+Inf"}': GROWS,
    'brim_mqtt_delivery_seconds_bucket{le="1"}': GROWS,
    'brim_mqtt_delivery_seconds_bucket{le="+Inf"}': GROWS,
    'brim_bridge_drain_seconds_bucket{bridge="lake",le="30"}': GROWS,
    'brim_bridge_drain_seconds_bucket{bridge="lake",le="+Inf"}': GROWS,
    "brim_log_unread_records_total": SOUND,
    "brim_bridge_up": "1x60",
    'brim_bridge_restarts_total{bridge="lake"}': SOUND,
    "brim_bridge_blocked_partitions": "0x60",
    "brim_bridge_buffer_left_seconds": "90000x60",
    'brim_bridge_never_drained_total{cause="skipped"}': GROWS,
    "brim_bridge_dead_letters_total": SOUND,
    'brim_bridge_rescued_records_total{bridge="lake"}': SOUND,
    "brim_delayed_refuses": "0x60",
    'brim_delayed_dropped_total{cause="damaged"}': SOUND,
    "brim_consumer_lag_records": "10x60",
    "process_open_fds": "10x60",
    "process_max_fds": "100x60",
}


def promtool(*words: str, stdin: str = "") -> tuple[int, str]:
    command = ["promtool", *words]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout + done.stderr


def alerts() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", RULES.read_text()))


@needs_promtool
def test_the_page_has_nothing_that_promtool_objects_to() -> None:
    assert promtool("check", "metrics", stdin=page(everything())) == (0, "")


def test_no_label_value_has_a_blank_and_no_label_has_values_that_churn() -> None:
    found = everything()
    found["mqtt"]["closed"] = {"not authorized yet": 1}
    text = page(found)
    assert 'cause="not_authorized_yet"' in text
    assert not re.search(r'="[^"]*\s[^"]*"', text)
    assert not {"pid", "client", "address"} & {label for it in METRICS.values() for label in it.labels}


@needs_promtool
def test_the_rules_are_clean() -> None:
    status, text = promtool("check", "rules", str(RULES))
    assert (status, "SUCCESS" in text) == (0, True), text


def series(values: dict[str, str]) -> list[dict[str, str]]:
    named = []
    for name, steps in values.items():
        bare, brace, rest = name.partition("{")
        named.append({"series": f"{bare}{{{LABELS}{',' + rest if brace else '}'}", "values": steps})
    return named


def fires(alert: str, values: dict[str, str], directory: Path) -> bool:
    """True if the alert fires after 50 minutes."""
    expected: list[Any] = []  # promtool compares with no alert, and fails if there is one
    test = {
        "interval": "1m",
        "input_series": series(values),
        "alert_rule_test": [{"eval_time": "50m", "alertname": alert, "exp_alerts": expected}],
    }
    file = directory / "test.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    status, text = promtool("test", "rules", str(file))
    assert status in {0, 1}, text
    assert "FAILED" in text or status == 0, text
    return status == 1


@needs_promtool
@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_for_its_trouble_and_not_without(alert: str, tmp_path: Path) -> None:
    assert fires(alert, FIRING[alert], tmp_path)
    assert not fires(alert, WELL, tmp_path)


def test_every_alert_has_such_a_test_a_remedy_and_metrics_that_exist() -> None:
    assert alerts() == set(FIRING)
    text = RULES.read_text()
    assert text.count("remedy: ") == text.count("summary: ") == len(FIRING)
    used = {name for line in re.findall(r"expr: (.*)", text) for name in NAME.findall(line)}
    assert used <= SERIES


def test_the_dashboard_shows_metrics_that_exist() -> None:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in NAME.findall(query)}
    assert used
    assert used <= SERIES
    labels = {label for query in queries for label in re.findall(r"by \((\w+)\)", query)} - {"le"}
    assert labels <= {label for metric in METRICS.values() for label in metric.labels}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@needs_promtool
def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    queries = [it["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for it in panel["targets"]]
    plain = [query.replace("$__rate_interval", "1m").replace("$instance", ".*") for query in queries]
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(plain)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "q", "rules": rules}]}))
    status, text = promtool("check", "rules", str(file))
    assert status == 0, text
